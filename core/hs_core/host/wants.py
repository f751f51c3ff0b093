"""What the controller wants of this host: jobs come, change, and go."""

from fractions import Fraction

from hs_core.events.host import ExitFound, Forget
from hs_core.host import deadlines, edgeless
from hs_core.host.board import Board
from hs_core.host.hosted import HostedJob
from hs_core.host.pausing import pause
from hs_core.reports import TOLD_TO_END, Exit, JobReport, Phase
from hs_core.wanted import WantedJob


def want(board: Board, entry: WantedJob) -> None:
    job = board.jobs.get(entry.job)
    if job is None:
        job = take_up(board, entry)
    elif entry.epoch > job.wanted.epoch:
        job.next, job.dropped = entry, False
        if job.alive:
            board.kill(job, f"replaced by incarnation {entry.epoch}")
        else:
            bury(board, job)
        return
    elif entry.epoch < job.wanted.epoch:
        return
    else:
        taken_back = job.wanted.leave and not entry.leave
        if entry.leave and not job.wanted.leave:
            board.takes_along(job)
        job.wanted, job.dropped, job.next = entry, False, None
        source = entry.source
        if source is not None and not job.alive and _lies_here(entry) and source.step > job.checkpoint_step:
            job.checkpoint_generation, job.checkpoint_step = source.generation, source.step
        deadlines.hurry(board, job)
        if taken_back:
            deadlines.stays_here(board, job)
    if entry.cancelled and not job.ended:
        if job.alive:
            if edgeless.starts_up(job) and not edgeless.waits_for_others(job):
                edgeless.ended(board, job, board.now_s)
            board.kill(job, TOLD_TO_END)
        else:
            board.exited(job, Exit(why=TOLD_TO_END))
    elif entry.paused and job.in_turn:
        pause(board, job)
    elif not job.alive and job.in_turn and not job.startable:
        job.in_turn, job.gpus = False, ()


def take_up(board: Board, entry: WantedJob) -> HostedJob:
    board.arrivals += 1
    job = HostedJob(wanted=entry, order=board.arrivals, came_s=board.now_s)
    job.carry = None if entry.carry is None else Fraction(entry.carry)
    source = entry.source
    if source is None and not job.part:
        job.checkpoint_generation, job.checkpoint_step = board.lent_by(job.id)
        job.looks = entry.restarts > 0 and entry.copy < 0 and job.checkpoint_generation < 0
    elif source is not None and _lies_here(entry):
        job.checkpoint_generation, job.checkpoint_step = source.generation, source.step
    board.jobs[entry.job] = job
    board.tell("arrived", f"wants {entry.gpus} GPUs", job)
    return job


def _lies_here(entry: WantedJob) -> bool:
    """What it goes on from was written here, by a part of its rank."""
    source = entry.source
    own = entry.nodes[entry.node_rank : entry.node_rank + 1]
    return source is not None and not source.is_sought and source.peer in own and _as_this_part(entry)


def _as_this_part(entry: WantedJob) -> bool:
    """What it goes on from was written by a node of its rank, of as many."""
    source = entry.source
    return source is not None and (source.rank, source.nodes) == (entry.node_rank, max(1, len(entry.nodes)))


def drop(board: Board, job: HostedJob) -> None:
    job.dropped, job.next = True, None
    if job.alive:
        board.kill(job, "no longer wanted here")
    else:
        bury(board, job)


def bury(board: Board, job: HostedJob) -> None:
    """Nothing of it is alive, and the controller knows, does not care, or is told when it is met again."""
    job.note_phase(board.now_s)
    board.last_words.keep(job.wanted, job.report(board.now_s, board.config.can_freeze), board.now_s)
    board.forget(job)
    if job.id in board.queue:
        board.queue.remove(job.id)
    del board.jobs[job.id]
    if job.next is None:
        board.last_words.look(board.jobs, board.lends)
    else:
        # A new incarnation on the same host goes on from the newest checkpoint of the one before; the parts of
        # a gang over several hosts all go on from one, which the controller names, and have files of their own,
        # which are of no use to who has the job for itself. So have copies, whose files go with them.
        heir = take_up(board, job.next)
        source = heir.wanted.source
        if (
            job.part
            or heir.part
            or job.wanted.copy >= 0
            or (source is not None and (source.parts or source.is_sought or not _as_this_part(heir.wanted)))
        ):
            return
        heir.checkpoint_generation, heir.checkpoint_step = job.checkpoint_generation, job.checkpoint_step
        heir.checkpoint_bytes = job.checkpoint_bytes
        # What was never fetched says nothing of what an incarnation before that may have left here.
        heir.looks = job.looks or (heir.looks and job.needs_fetch)


def found(board: Board, event: ExitFound) -> None:
    """What it received, and saved, is not known any more: only that it was, how far its processes say that it got, and how it ended."""
    there = board.jobs.get(event.job)
    if there is not None and there.wanted.epoch == event.epoch:
        return
    wanted = event.wanted
    last = JobReport(
        job=event.job,
        epoch=event.epoch,
        phase=Phase.EXITED,
        step=max(0, event.step),
        nodes=wanted.servers,
        rank=wanted.node_rank,
        exit=event.exit,
    )
    board.last_words.keep(event.wanted, last, board.now_s)
    board.out.append(Forget(job=event.job, epoch=event.epoch))

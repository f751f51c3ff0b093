"""Before a job may be started here, and before it leaves for another host: its rendezvous, its checkpoint."""

from dataclasses import replace
from math import inf

from hs_core.events.host import CheckpointFetched, Fetch, FetchFailed, Lack, Reserve
from hs_core.host.board import Board
from hs_core.host.hosted import HostedJob
from hs_core.host.writing_out import has_stood_long
from hs_core.reports import CANNOT_START, LOST, Exit, Phase, Tier
from hs_core.wanted import NOBODY

FETCH_AGAIN_S, FETCH_AGAIN_AT_MOST_S = 5.0, 60.0
START_AGAIN_S, START_AGAIN_AT_MOST_S = 5.0, 60.0
# Fetches in a row that end so: then the job is to go on from something else. One that is damaged the first time is read once more, as memory errs, too.
TRIES = {Lack.GONE: 5, Lack.DAMAGED: 2}
TRIES_OF_OLDER = 2
"""Of one that is kept beside the one that is damaged, perhaps: whoever has said that of the one knows whether there is the other."""
RESERVE_AGAIN_S = 30.0
WORD_S = 3.0  # that the controller's word may be on its way to one server of a gang longer than to another
STANDING = frozenset({Phase.HELD, Phase.SWAPPED})


def prepare(board: Board, job: HostedJob) -> None:
    """Order what its start waits for."""
    if job.alive or job.ended or job.dropped:
        return
    if job.start_why and board.now_s >= job.start_at_s:
        job.start_why = ""
    if job.back_at_s is not None and board.now_s >= job.back_at_s:
        job.back_at_s, job.passed_over = None, False
    if job.reserves and board.now_s >= job.reserve_at_s:
        job.reserve_at_s = board.now_s + RESERVE_AGAIN_S
        board.out.append(Reserve(job=job.id, epoch=job.wanted.epoch))
    source = job.source
    if job.needs_fetch and job.fetching != source and board.now_s >= job.fetch_at_s and not job.wanted.leave:
        assert source is not None
        job.fetching = source
        board.out.append(Fetch(wanted=replace(job.wanted, source=source)))
        board.tell("fetching", f"fetches {source.text}", job)


def leave(board: Board, job: HostedJob) -> None:
    """It is about to move: through a checkpoint as soon as it can write one, then its process is gone."""
    if not job.wanted.leave or not leaves_now(board, job):
        return
    if job.phase is Phase.RUNNING:
        board.suspend(job, Tier.CHECKPOINT)
    else:
        job.in_turn = False
        job.asked_s = board.now_s
        board.ask(job, Tier.CHECKPOINT)


def give_up(board: Board, job: HostedJob) -> None:
    """It came up ahead of a turn that it cannot have: on a GPU that is out of use since. What cannot go through a checkpoint begins anew, and has done nothing here that would be lost."""
    if job.resumed or not job.ahead or job.can_checkpoint or board.all_healthy(job.gpus):
        return
    lose(board, job, "a GPU on which it came up is out of use")


def lose(board: Board, job: HostedJob, why: str) -> None:
    """By no fault of its own it is to begin anew, here or elsewhere."""
    job.exit_why = f"{LOST}: {why}"
    board.kill(job, why)


def wait_for_word(board: Board, job: HostedJob, asked: Tier | None) -> None:
    """It left through a checkpoint. Where not this host asked for that another did, for GPUs of its own, or because it was told first that
    all of the gang move away: that one is not to be started here again.
    """
    job.passed_over = asked is not Tier.CHECKPOINT
    job.shelved = job.shelved or (job.passed_over and has_stood_long(board, job))
    job.back_at_s = board.now_s + WORD_S if job.passed_over else None


def leaves_now(board: Board, job: HostedJob) -> bool:
    return _could_leave(job) and board.now_s >= job.checkpoint_after_s


def _could_leave(job: HostedJob) -> bool:
    """But for the time. What stands at step edges can be stopped there, with a freezer or without; one that was seen not to stop cannot."""
    stops = job.phase in STANDING or (job.phase is Phase.RUNNING and job.sliceable(can_freeze=False))
    return job.alive and job.ready and job.can_checkpoint and job.asked is None and stops


def due_s(job: HostedJob) -> float:
    """When `prepare` or `leave` has something to do, unless something happens before."""
    if job.alive:
        return job.checkpoint_after_s if job.wanted.leave and _could_leave(job) else inf
    if job.ended or job.dropped:
        return inf
    due = job.reserve_at_s if job.reserves else inf
    if job.start_why:
        due = min(due, job.start_at_s)
    if job.back_at_s is not None:
        due = min(due, job.back_at_s)
    if job.needs_fetch and job.fetching is None and not job.wanted.leave:
        due = min(due, job.fetch_at_s)
    return due


def fetched(board: Board, job: HostedJob, event: CheckpointFetched) -> None:
    if job.alive or job.ended:
        return
    generation, step = event.generation, event.step
    job.fetching, job.fetch_why, job.fetch_fails, job.fetch_alike, job.looks = None, "", 0, 0, False
    job.checkpoint_generation, job.checkpoint_step = generation, step
    job.checkpoint_bytes = event.size_bytes or job.checkpoint_bytes
    job.step = max(job.step, step)
    job.came_s = board.now_s
    found = f"has checkpoint {generation}, step {step}" if generation >= 0 else "no checkpoint was found"
    board.tell("fetched", found, job)
    if job.takes_older and generation <= job.older:
        job.fallbacks += 1
        job.trouble = job.fallback_why
        board.tell("fell-back", f"{job.fallback_why}; it goes on from step {step}", job)


def fetch_failed(board: Board, job: HostedJob, event: FetchFailed) -> None:
    if job.fetching is None:
        return
    job.fetching, job.fetch_why = None, event.why
    job.start_fails += event.host_fault  # nor could it be started here, nor others
    if event.host_fault and job.part:
        board.exited(job, Exit(why=f"{LOST}: {job.waits_for}"))
        return
    wait_s = min(FETCH_AGAIN_S * 2.0 ** min(job.fetch_fails, 10), FETCH_AGAIN_AT_MOST_S)
    job.fetch_fails += 1
    job.fetch_alike = job.fetch_alike + 1 if event.lack is job.fetch_lack else 1
    job.fetch_lack = event.lack
    if job.fetch_alike < _tries(job):
        job.fetch_at_s = board.now_s + wait_s
        board.tell("failed", f"{job.waits_for}; tried again in {wait_s:g} s", job)
    elif (generation := _one_before(job)) is not None:
        _take_older(board, job, generation)
    else:
        before = f" ({job.fallback_why})" if job.takes_older else ""
        board.exited(job, Exit(why=f"{job.waits_for}; tried {job.fetch_alike} times{before}"))


def _tries(job: HostedJob) -> float:
    tries = TRIES.get(job.fetch_lack, inf)
    return min(tries, TRIES_OF_OLDER) if job.takes_older and tries < inf else tries


def _one_before(job: HostedJob) -> int | None:
    """Number of the generation that who has the named one, all of it, keeps beside it."""
    source = job.wanted.source
    if source is None or source.peer == NOBODY or source.parts or source.nodes > 1 or job.part:
        return None
    return source.generation - 1 if source.generation > 0 and not job.takes_older else None


def _take_older(board: Board, job: HostedJob, generation: int) -> None:
    assert job.wanted.source is not None
    job.fallback_why = f"{job.wanted.source.text}: {job.fetch_why}"
    board.tell("failed", f"{job.waits_for}; the one before it is fetched", job)
    job.older, job.fetch_why, job.fetch_fails, job.fetch_alike = generation, "", 0, 0
    job.fetch_at_s = board.now_s


def start_failed(board: Board, job: HostedJob, why: str) -> None:
    """It is as it was before, and waits here: the controller gives it another home where there is one.

    Of a gang over several hosts the other parts are up, perhaps, and wait for it where they meet: all of it begins anew.
    """
    wait_s = min(START_AGAIN_S * 2.0 ** min(job.start_fails, 10), START_AGAIN_AT_MOST_S)
    job.start_fails += 1
    if job.part:
        board.exited(job, Exit(why=f"{LOST}: {CANNOT_START}: {why}"))
        return
    board.gone(job)
    job.phase = Phase.CHECKPOINTED if job.checkpoint_generation >= 0 else Phase.WAITING
    job.start_why, job.start_at_s = why, board.now_s + wait_s
    board.tell("failed", f"{job.waits_for}; tried again in {wait_s:g} s", job)


def reserved(board: Board, job: HostedJob, address: str) -> None:
    if job.alive or job.ended or job.rendezvous:
        return
    job.rendezvous = address
    board.tell("rendezvous", f"its nodes meet at {address}", job)


def order_again(board: Board, job: HostedJob) -> None:
    """After a restart: nobody answers what was ordered before."""
    job.fetching = None
    if job.reserves:
        job.reserve_at_s = board.now_s

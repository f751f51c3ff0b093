"""Whose turn it is: the quantum's edge, idle GPUs in between, and losers leaving before winners arrive."""

from collections.abc import Collection, Iterable
from fractions import Fraction

from hs_core.host import moving, waking
from hs_core.host.board import Board
from hs_core.host.half_up import PATIENCE_TURNS, give_up
from hs_core.host.hosted import HostedJob
from hs_core.host.mates import are_mates
from hs_core.host.room import could_swap, fits_now, found_no_room
from hs_core.host.sizes import is_unknown
from hs_core.host.walk import Walk, able, ahead_on, comes_ahead, fills, has_turn, local, may_start_ahead, walk
from hs_core.host.writing_out import is_near
from hs_core.names import JobId
from hs_core.reports import MEMORY_HELD, Phase, Tier


def stride(board: Board, this: Walk, have: Collection[HostedJob]) -> None:
    """The walk by (pass, arrival, id) over jobs other than those that `have` GPUs; then GPUs that stay idle go to jobs without a process.

    A turn that begins with an import of torch blocks its GPUs for many seconds, so a job first comes to a step edge outside any turn.
    """
    for id_ in this.order:
        job = board.jobs[id_]
        if job in have or not local(board, job):
            continue
        if comes_ahead(board, this, job):
            this.coming.add(id_)
        else:
            this.pick(job)
    for id_ in this.order:
        job = board.jobs[id_]
        if id_ in this.coming and not job.alive and not job.part and this.pick(job):
            this.coming.discard(id_)
    # What these picks left too little memory for waits for its turn like everybody.
    this.coming = {id_ for id_ in this.coming if comes_ahead(board, this, board.jobs[id_])}


# --- the edge


def edge(board: Board) -> None:
    """A quantum begins. Forced ones first, then the walk by (pass, arrival, id); losers are told to stop."""
    for job in board.jobs.values():
        job.passed_over, job.back_at_s = False, None
        if job.part and (job.begun_ahead or _comes_up_for_long(board, job)):
            job.in_turn = False
            job.free(board.now_s)  # somebody else may have a use for its GPUs
        if not has_turn(board, job):
            job.held_up = ""
        if not job.alive:
            job.gpus = ()
    board.queue.space_out(board.absent)
    _deal(board, None)


def change(board: Board) -> None:
    """The controller changed its mind within the quantum: its gangs come first; others keep theirs where that goes."""
    have = [job for job in board.in_order if job.in_turn and job.alive and local(board, job)]
    for job in board.jobs.values():
        if not job.alive:
            job.gpus = ()
    _deal(board, have)


def _deal(board: Board, have: Collection[HostedJob] | None) -> None:
    for job in sorted(board.in_order, key=lambda job: job.id in board.turn.gangs):
        if job.phase is not Phase.STARTING or not job.occupying:
            continue
        rivals = board.rivals(job)  # they were to share GPUs, and are no more
        if board.is_out_of_turn(job) or any(other.occupying for other in rivals) or _makes_room(board, job):
            job.free(board.now_s)  # goes on starting, like one started ahead of its turn
    this = walk(board)
    forced = [job for job in board.in_order if board.immovable(job)]
    for job in forced:
        this.claim(job)
    this.picks += [job for job in forced if job.id in board.queue]
    woken = waking.wake(board, this)
    misplaced = moving.misplaced(board, this)
    pick_gangs(board, this, [*this.picks, *misplaced])
    for job in have or ():
        if job not in this.picks and job not in misplaced:
            this.pick(job)
    if fills(board):
        stride(board, this, [*this.picks, *misplaced])
    if have is None:
        begin_coming(board, this)
    board.idle_since_s = {gpu: board.idle_since_s.get(gpu, board.now_s) for gpu in this.free}
    leaving = moving.movers(board, this, misplaced)
    stand_in(board, this, leaving)
    for job in board.jobs.values():
        job.in_turn = job in this.picks and job.phase not in (Phase.SUSPENDING, Phase.KILLING)
    if have is None:
        for job in board.jobs.values():
            job.waited_quanta = _missed(board, job)
        give_up(board, this)
        charge(board, this, forced, woken)
    elif fresh := [job.id for job in this.picks if job not in have and job not in forced]:
        board.queue.charge(fresh, board.left_of_quantum(), absent=absent(board, this))
    for job in board.in_order:
        if job.phase is Phase.RUNNING and not job.in_turn and job.occupying:
            leaves = job in leaving or waking.leaves_drained(board, job)
            tier = this.parked.pop(job.id, Tier.HOLD)
            job.unparked = job.unparked or _is_unparked(board, job, tier)
            board.suspend(job, Tier.CHECKPOINT if leaves else tier)
        elif job in leaving:
            board.ask(job, Tier.CHECKPOINT)
    park(board, this)


def _comes_up_for_long(board: Board, part: HostedJob) -> bool:
    """It has been on its way for a whole quantum: its other hosts have no room for theirs yet, perhaps."""
    if part.phase is not Phase.STARTING or not part.occupying or not may_start_ahead(board, part):
        return False
    return part.launched_s is not None and board.now_s - part.launched_s >= board.quantum_s


def begin_coming(board: Board, this: Walk) -> None:
    """Parts on their way that may never come to a step edge compute already, perhaps: on GPUs that would idle their turn begins."""
    for id_ in this.order:
        job = board.jobs[id_]
        unknown = id_ in this.coming and job.part and job.alive and job.hooked is None
        if unknown and set(job.gpus) <= set(this.free) and this.pick(job):
            this.coming.discard(id_)


def _makes_room(board: Board, job: HostedJob) -> bool:
    """It was started where a gang of the controller's had no turn, which has one now and would wait for this start, with its other hosts where it has
    several; or, where the controller alone decides, for as long as the quantum lasts, as there are too few GPUs beside."""
    if job.id in board.turn.gangs or not may_start_ahead(board, job):
        return False
    if any(other.ready and other.id in board.turn.gangs for other in board.rivals(job)):
        return True
    if fills(board):
        return False
    named = [board.jobs[gang] for gang in board.turn.gangs if gang in board.jobs]
    kept = {
        gpu
        for other in board.jobs.values()
        if board.immovable(other) and other not in named
        for gpu in other.gpus
    }
    left = sum(gpu not in kept for gpu in board.gpus if board.usable(gpu))
    return sum(other.gang for other in named if able(board, other)) > left


def _missed(board: Board, job: HostedJob) -> int:
    """Turns in a row; a part of a gang over several hosts: of those that the controller gave it, all since its start. Who comes up could not have had one."""
    if job.phase is Phase.STARTING:
        return 0
    waits = has_turn(board, job) and not job.in_turn
    return (job.waited_quanta if waits or job.part else 0) + waits


def pick_gangs(board: Board, this: Walk, have: Collection[HostedJob]) -> None:
    """The turn's, guests last. One that is on its way to its first step edge takes its turn when it stands there, where others fill its GPUs until then."""
    turn = board.turn
    guests = {guest.job for guest in turn.guests}
    gangs = [board.jobs[gang] for gang in turn.gangs if gang in board.jobs]
    for job in sorted(gangs, key=lambda job: (job.id in guests, not _long_waited(job))):
        if job in have or not able(board, job):
            continue
        if (job.part or fills(board)) and comes_ahead(board, this, job):
            this.coming.add(job.id)
        elif not gives_way(board, job) and not this.pick(job) and job in this.misfits and not fills(board):
            job.held_up = f"its process is bound to {board.names(job.gpus)}, where another of this turn runs"


def _long_waited(job: HostedJob) -> bool:
    """For GPUs that others of the turn are bound to as well. A gang's hosts agree on who goes first only while nobody goes by that."""
    return not job.part and job.waited_quanta >= PATIENCE_TURNS


def stand_in(board: Board, this: Walk, leaving: Collection[HostedJob] = ()) -> None:
    """Where gangs of the turn cannot have GPUs because they are bound to others', because there is no memory to start them, or because they are left
    out of this quantum, as many go by pass to jobs that stand there for them.

    The controller does not know of bindings: by number there was room for all. Nor does it count GPUs that are drained or went bad: who goes on on
    these leaves as many of the others. Gangs that move, or are about to come back from a checkpoint without their binding, take the first of them.
    """
    under_way = [job for job in moving.under_way(board) if job.id in board.turn.gangs and job not in leaving]
    coming = [*leaving, *under_way]
    missing = [job for job in this.misfits if job.id in board.turn.gangs and job not in this.picks]
    there = [board.jobs[gang] for gang in board.turn.gangs if gang in board.jobs]
    missing += [job for job in there if job.passed_over and not job.ended]
    refused = [job for job in there if job.id in board.refused and job.refused_quanta > 1]
    refused += [job for job in there if job in this.lacking]
    missing += [job for job in refused if not job.alive and job not in this.picks]
    missing += [job for job in there if job in this.crowded_out and job not in missing]
    kept = sum(job.gang for job in coming)
    uncounted = [
        gpu for gpu, owner in this.claimed.items() if owner in board.turn.gangs and not board.usable(gpu)
    ]
    wide = len(uncounted) + sum(job.gang for job in missing if job not in coming)
    free = len(this.free) - kept
    if wide <= 0:
        return
    away = {job.id for job in (*missing, *leaving, *this.picks)}
    others = [
        job for id_ in this.order if id_ not in away and (job := board.jobs[id_]).alive and local(board, job)
    ]
    if not _take(this, others, min(wide, free)):
        _take(this, others, free)  # only wider ones stand there: they have what idles besides


def _take(this: Walk, jobs: Iterable[HostedJob], gpus: int) -> bool:
    """One after the other, while there are so many. False: nobody does."""
    left = gpus
    for job in jobs:
        if job.gang <= left and this.pick(job):
            left -= job.gang
    return left < gpus


def gives_way(board: Board, part: HostedJob) -> bool:
    """To one of this host that is bound to the same GPUs, has waited for several turns, and can no more be moved than the part.

    The controller does not know of bindings: by number there is room for all, so that the part has every turn. Its other hosts
    lose a quantum by it.
    """
    if not part.part or not part.alive or part.can_checkpoint or not board.sliceable(part):
        return False
    run = [job for job in board.jobs.values() if has_turn(board, job)]
    if sum(job.gang for job in run) > sum(map(board.usable, board.gpus)):
        return False
    bound = [job for job in board.on(part.gpus) if job is not part and job in run]
    waited = [job for job in bound if job.waited_quanta >= PATIENCE_TURNS]
    return any(not job.part and not job.can_checkpoint for job in waited)


def charge(board: Board, this: Walk, immovable: Collection[HostedJob], woken: Collection[HostedJob]) -> None:
    """Passes of those in this turn. What the walk did not choose by pass (gangs, unsliceable jobs, those that are woken to leave) counts as forced."""
    forced = [
        j.id
        for j in this.picks
        if j in woken or j.id in board.turn.gangs or (board.immovable(j) and not board.sliceable(j))
    ]
    blocked = {gpu for job in immovable for gpu in job.gpus}
    could = [
        id_
        for id_ in this.order
        if local(board, board.jobs[id_])
        and (not board.jobs[id_].held_up or id_ in this.outrun)
        and id_ not in this.coming
        and blocked.isdisjoint(board.jobs[id_].gpus)
    ]
    chosen = [job.id for job in this.picks if job.id not in forced]
    board.advance = board.queue.charge(
        chosen, forced=forced, able=could, absent=absent(board, this), idle=len(this.free)
    )


def absent(board: Board, this: Walk) -> list[JobId]:
    """On their way to their first step edge: neither they nor the others shall pay for that time."""
    return [id_ for id_ in this.coming if board.jobs[id_].gpu_s == 0]


def charge_missed(board: Board, quanta: int) -> None:
    jobs = [job.id for job in board.jobs.values() if job.in_turn and job.id in board.queue]
    if jobs:
        board.queue.charge(jobs, Fraction(quanta))


def park(board: Board, this: Walk) -> None:
    for id_, tier in this.parked.items():
        job = board.jobs[id_]
        if job.asked is None and job.phase is Phase.HELD:
            job.asked_s = board.now_s
            job.unparked = job.unparked or _is_unparked(board, job, tier)
            board.ask(job, tier)


def _is_unparked(board: Board, job: HostedJob, tier: Tier) -> bool:
    """It writes a checkpoint as there is no room for it, or for others, on the host."""
    return tier is Tier.CHECKPOINT and could_swap(board, job)


# --- inside the quantum


def fill(board: Board) -> None:
    """GPUs that became idle, or were, are given at once; whoever gets them pays for the rest of the quantum."""
    if board.now_s >= board.next_edge_s or not (board.turn.local or board.turn.gangs):
        return
    have = [job for job in board.jobs.values() if job.in_turn or job.occupying]
    if len(have) == len(board.jobs):
        return
    taken = {gpu for job in have for gpu in job.gpus}
    had = {job.id for job in have}
    full = all(gpu in taken or not board.usable(gpu) for gpu in board.gpus)
    if full and had.issuperset(guest.job for guest in board.turn.guests):
        return
    this = walk(board)
    for job in have:
        this.claim(job)
    waking.wake(board, this)
    pick_gangs(board, this, [*have, *this.picks])
    if board.turn.local and this.free:
        stride(board, this, [*have, *this.picks])
    stand_in(board, this)
    part = board.left_of_quantum()
    for job in this.picks:
        job.in_turn = True
    if this.picks:
        board.queue.charge([job.id for job in this.picks], part, absent=absent(board, this))
    park(board, this)


def advance(board: Board) -> bool:
    """Winners arrive where everybody else has left. True if one had to be passed over, so that others may fill in."""
    passed = False
    for job in board.in_order:
        if (
            not job.in_turn
            or job.occupying
            or job.asked is not None
            or (job.phase is Phase.CHECKPOINTED and job.alive)
        ):
            continue
        if any(other.occupying for other in board.rivals(job)):
            continue
        if not fits_now(board, job):
            passed |= not wait_for_room(board, job)
            continue
        if job.stood_from_s is not None:
            job.stood_s = board.now_s - job.stood_from_s
        job.begin(board.now_s)
        if not job.alive:
            board.launch(job)
        elif job.phase is not Phase.STARTING:
            board.resume(job)
    return passed


def wait_for_room(board: Board, job: HostedJob) -> bool:
    """Memory it was promised is not free yet: is somebody still leaving, or can another?"""
    this = walk(board)
    room = this.room(job, job.gpus)
    if room is None:
        found_no_room(board, job.gpus, [other.id for other in board.jobs.values() if other.in_turn])
        pass_over(job, f"the memory of {board.names(job.gpus)} {MEMORY_HELD}")
        return False
    this.take_room(job, room)
    park(board, this)
    return True


def pass_over(job: HostedJob, why: str) -> None:
    job.in_turn, job.passed_over, job.held_up = False, True, why
    if not job.alive:
        job.gpus = ()


def make_way(board: Board, job: HostedJob) -> None:
    """This job holds its GPUs and can't be stopped: others that count on them leave their turn."""
    for other in board.in_order:
        if other is job or not other.in_turn or set(other.gpus).isdisjoint(job.gpus):
            continue
        if are_mates(board.turn, job.id, other.id):
            continue
        coming_up = other.phase is Phase.STARTING
        if board.immovable(other) and not coming_up:
            continue
        running = other.occupying
        pass_over(other, f"job {job.id} does not leave {board.names(other.gpus)}")
        if coming_up:
            other.free(board.now_s)  # like one started ahead of its turn
        elif running:
            board.suspend(other, Tier.HOLD)


def preload(board: Board) -> None:
    """Start the next jobs ahead of their turn, so that a turn does not begin with an import of torch.

    Parts of jobs over several hosts first, however many: their other parts wait for them.
    """
    coming = [
        job
        for job in board.jobs.values()
        if not job.alive
        and not job.in_turn
        and (job.part or board.turn.local)
        and may_start_ahead(board, job)
        and not (job.shelved and not is_near(board, job))
    ]
    if not coming or board.config.preload == 0:
        return
    # One whose memory is known is accounted for once it stands; of the others only a few may lie on the GPUs untried.
    room = board.config.preload - sum(
        job.ahead and not job.part and (job.phase is Phase.STARTING or is_unknown(board, job))
        for job in board.jobs.values()
    )
    this = walk(board)
    for job in sorted(coming, key=lambda job: (not job.part, this.rank[job.id])):
        if room <= 0 and not job.part:
            return
        gpus = ahead_on(board, this, job)
        if gpus is None:
            continue
        this.bind(job, gpus)
        board.launch(job)
        room -= not job.part

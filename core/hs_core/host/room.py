"""Device memory: nothing is started or brought back beside what is held unless both fit, as far as is known (`host.sizes`).

Who may take all that a GPU has is alone there in its first turn, as far as others can leave. Where those that can't hold more than half it is not started,
and ahead of its turn on no GPU of which others hold more, or may take all.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from hs_core.host.board import Board
from hs_core.host.hosted import HostedJob
from hs_core.host.mates import are_mates
from hs_core.host.sizes import capacity_bytes, is_unknown, least_bytes, lying_bytes, most_bytes, size_bytes
from hs_core.names import GpuId, JobId
from hs_core.reports import Phase, Tier


def excess_bytes(board: Board, job: HostedJob, gpu: GpuId, others_bytes: Iterable[int]) -> int:
    """By how much `job` and others of these sizes are too large for a GPU together; what is unknown counts as nothing."""
    capacity = capacity_bytes(board, gpu)
    return size_bytes(board, job) + sum(others_bytes) - capacity if capacity else 0


def _lacking_bytes(board: Board, job: HostedJob, gpu: GpuId, staying: Sequence[HostedJob]) -> int:
    """What should leave a GPU for it. One that nobody knows anything of may need all there is."""
    there_bytes = [lying_bytes(board, other, gpu) for other in staying]
    if is_unknown(board, job) and capacity_bytes(board, gpu):
        return sum(there_bytes)
    return excess_bytes(board, job, gpu, there_bytes)


def _is_refused(board: Board, job: HostedJob, gpu: GpuId, staying: Sequence[HostedJob]) -> bool:
    """It is known not to fit beside these, or they leave too little to start it there. Not for what swapped ones leave behind: they stay, and it would wait
    for as long as they live.
    """
    capacity = capacity_bytes(board, gpu)
    own_bytes = least_bytes(board, job, gpu)
    if job.resident or not own_bytes or not capacity:
        return False
    unknown = is_unknown(board, job)
    whole_bytes = 0
    for other in staying:
        if not other.resident or (unknown and are_mates(board.turn, job.id, other.id)):
            continue
        if unknown and other.part and other.phase is Phase.STARTING and not job.part:
            return True  # until its other hosts have started theirs it cannot leave
        whole_bytes += least_bytes(board, other, gpu)
    return own_bytes + whole_bytes > capacity


def residents(board: Board) -> dict[GpuId, list[HostedJob]]:
    """Jobs of which something lies on each GPU."""
    found: dict[GpuId, list[HostedJob]] = {}
    for job in board.jobs.values():
        if job.resident or job.residue_bytes:
            for gpu in job.gpus:
                found.setdefault(gpu, []).append(job)
    return found


def fits_now(board: Board, job: HostedJob) -> bool:
    """Who has to leave its GPUs for it has left. Of unknown size, or short of what swapped ones leave behind, it waits only for those that can; so does who stands
    there and has not trained yet, which holds less than it will."""
    if job.resident and job.resumed and not job.untried:
        return True
    there = residents(board)
    on = {gpu: [other for other in there.get(gpu, ()) if other is not job] for gpu in job.gpus}
    if all(_lacking_bytes(board, job, gpu, others) <= 0 for gpu, others in on.items()):
        return True
    if any(_is_refused(board, job, gpu, others) for gpu, others in on.items()):
        return False
    others = [other for some in on.values() for other in some]
    if any(
        other.leaving_memory and (size_bytes(board, other) or is_unknown(board, other)) for other in others
    ):
        return False
    if is_unknown(board, job) and any(_comes_up(board, other, beside=job) for other in others):
        return False  # as soon as they stand they can leave
    fixed = [other.id for other in others if other.in_turn]
    return not make_room(board, job, job.gpus, there=there, parked={}, rank={}, fixed=fixed)


def _comes_up(board: Board, job: HostedJob, *, beside: HostedJob) -> bool:
    """Soon, as that is its own host's affair alone; and it is not to run beside that one."""
    return job.phase is Phase.STARTING and not job.part and not are_mates(board.turn, job.id, beside.id)


def parked_bytes(board: Board) -> int:
    """Host memory that swapped jobs hold, or are about to."""
    return sum(
        parked_by(board, job)
        for job in board.jobs.values()
        if job.alive and (job.phase is Phase.SWAPPED or job.asked is Tier.SWAP)
    )


def parked_by(board: Board, job: HostedJob) -> int:
    return job.parked_bytes or swap_bytes(board, job)


def swap_bytes(board: Board, job: HostedJob) -> int:
    """What a swap moves: what the last one moved, of it or of its class. Else all that it holds, which is more, as activations are not moved; or, where that
    is less, what a checkpoint holds and as much again for gradients, on each of its GPUs.
    """
    class_bytes = board.class_moved_bytes.get(job.wanted.job_class, 0)
    if known_bytes := job.moved_bytes or class_bytes * job.gang:
        return known_bytes
    whole = job.memory_bytes
    if job.checkpoint_bytes and not job.part:  # of which each host may have a part alone
        whole = min(whole, 2 * job.checkpoint_bytes)
    return whole * job.gang


def over_bytes(board: Board) -> int:
    """By how much more is parked than may be."""
    return parked_bytes(board) - board.config.host_memory_budget_bytes


def _host_has_room(board: Board, job: HostedJob, reserved_bytes: int, back_bytes: int = 0) -> bool:
    """Within the budget, and nobody has to be killed for the memory that it does not have yet. `back_bytes`: of who comes back as soon as it has left."""
    size = swap_bytes(board, job)
    if over_bytes(board) + reserved_bytes + size > back_bytes:
        return False
    lacking = size - job.moved_bytes
    reserve = board.config.host_memory_reserve_bytes
    return board.free_bytes is None or lacking <= max(0, board.free_bytes - reserve)


def lacking_on_host(board: Board, job: HostedJob) -> tuple[int, int]:
    """Bytes of the budget, and of the host's memory, that are missing for what it holds of its GPUs; 0 or less: none."""
    size = swap_bytes(board, job)
    over = over_bytes(board) + size
    if board.free_bytes is None:
        return over, 0
    left_bytes = max(0, board.free_bytes - board.config.host_memory_reserve_bytes)
    return over, size - job.moved_bytes - left_bytes


def could_swap(board: Board, job: HostedJob) -> bool:
    """Were there room on the host."""
    return job.can_swap and board.now_s >= job.swap_after_s


def found_no_room(board: Board, gpus: Collection[GpuId], staying: Collection[JobId]) -> None:
    """Others are kept from these GPUs by what those that stand there, but for `staying`, could not have swapped, nor written."""
    for job in board.on(gpus):
        if job.id in staying or not job.resident or job.asked is not None or not could_swap(board, job):
            continue
        writes = job.can_checkpoint and board.now_s >= job.checkpoint_after_s
        job.unparked = job.unparked or (not writes and max(lacking_on_host(board, job)) > 0)


def parking_tier(
    board: Board, job: HostedJob, reserved_bytes: int, to: HostedJob, *, sparing: bool = False
) -> Tier | None:
    """The cheapest tier that takes the job's state off its GPUs, None if there is none now; `sparing`: host memory is for those that cannot write a checkpoint.

    Where no other is left, a job whose place a swapped one takes (`to`) is swapped beyond the budget, until that one is back: else it never would be.
    """
    stops = job.phase is Phase.RUNNING and board.sliceable(job)
    # Whoever came to no step to stand at comes to none to be swapped at, which is waited for far longer.
    stands = job.phase is Phase.HELD or (stops and board.now_s >= job.hold_after_s)
    if not stands or not job.ready or job.asked is not None:
        return None
    swaps = could_swap(board, job)
    writes = job.can_checkpoint and board.now_s >= job.checkpoint_after_s
    if swaps and not (sparing and writes) and _host_has_room(board, job, reserved_bytes):
        return Tier.SWAP
    if writes:
        return Tier.CHECKPOINT
    back_bytes = parked_by(board, to) if to.phase is Phase.SWAPPED else 0
    if swaps and back_bytes and _host_has_room(board, job, reserved_bytes, back_bytes):
        return Tier.SWAP
    return None


def coming_back(board: Board) -> list[HostedJob]:
    """Swapped jobs for whom others were swapped: more may be parked than the budget, by what they have there, until they are back."""
    return [job for job in board.jobs.values() if job.coming_back and job.phase is Phase.SWAPPED]


def make_room(
    board: Board,
    job: HostedJob,
    gpus: Sequence[GpuId],
    *,
    there: Mapping[GpuId, Sequence[HostedJob]],
    parked: Mapping[JobId, Tier],
    rank: Mapping[JobId, int],
    fixed: Collection[JobId] = (),
) -> dict[JobId, Tier] | None:
    """Whom to park, and how, so that `job` fits on these GPUs, besides those parked already; None if it can't fit.

    Those whose turn is furthest away go first; where host memory does not hold all of them, those that can write a checkpoint leave it to the others. A job whose state is on the GPU already fits; but where jobs turned out
    larger than they had said, others leave as far as they can. `there`: the residents; `fixed`: those of them that stay.
    """
    either = any(other.can_swap and other.can_checkpoint for gpu in gpus for other in there.get(gpu, ()))
    for sparing in (False, True) if either else (False,):
        more = _make_room(
            board, job, gpus, there=there, parked=parked, rank=rank, fixed=fixed, sparing=sparing
        )
        if more is not None:
            return more
    return None


def _make_room(
    board: Board,
    job: HostedJob,
    gpus: Sequence[GpuId],
    *,
    there: Mapping[GpuId, Sequence[HostedJob]],
    parked: Mapping[JobId, Tier],
    rank: Mapping[JobId, int],
    fixed: Collection[JobId],
    sparing: bool,
) -> dict[JobId, Tier] | None:
    more: dict[JobId, Tier] = {}
    for gpu in gpus:
        staying = [
            other
            for other in there.get(gpu, ())
            if other is not job
            and not other.leaving_memory
            and other.id not in parked
            and other.id not in more
        ]
        if _lacking_bytes(board, job, gpu, staying) <= 0:
            continue
        for other in sorted(staying, key=lambda o: -rank.get(o.id, len(rank))):
            if _lacking_bytes(board, job, gpu, staying) <= 0:
                break
            if other.id in fixed or (is_unknown(board, job) and are_mates(board.turn, job.id, other.id)):
                continue  # who is to run beside it does not leave for it
            swapping = (o for o, tier in (*parked.items(), *more.items()) if tier is Tier.SWAP)
            reserved_bytes = sum(swap_bytes(board, board.jobs[o]) for o in swapping)
            tier = parking_tier(board, other, reserved_bytes, job, sparing=sparing)
            if tier is not None:
                more[other.id] = tier
                staying.remove(other)
        if _is_refused(board, job, gpu, staying):
            return None
    return more


def spare_for_preload(
    board: Board,
    job: HostedJob,
    gpu: GpuId,
    holders: Collection[HostedJob],
    picked: Collection[HostedJob],
) -> bool:
    """A start ahead of its turn must not push out anybody: swapped jobs and planned launches count as well. `holders`: all that have GPUs."""
    others = [o for o in holders if o is not job and gpu in o.gpus]
    bound = [o for o in others if o.alive or o.in_turn or o in picked]
    if is_unknown(board, job) and (capacity := capacity_bytes(board, gpu)):
        return sum(most_bytes(board, other, gpu) for other in bound) <= capacity // 2
    return excess_bytes(board, job, gpu, [most_bytes(board, other, gpu) for other in bound]) <= 0

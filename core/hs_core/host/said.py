"""What is heard of a job, from its processes and from who starts them or fetches for it: how it stands after that."""

from typing import assert_never

from hs_core.errors import BrokenError
from hs_core.events.host import (
    CheckpointFailed,
    CheckpointFetched,
    CheckpointWeighed,
    FetchFailed,
    JobCapable,
    JobCheckpointed,
    JobCondemned,
    JobExited,
    JobFroze,
    JobHeld,
    JobHooked,
    JobProgressed,
    JobReady,
    JobRestored,
    JobTrespassed,
    JobWentOn,
    LaunchFailed,
    RendezvousReserved,
    SuspendFailed,
)
from hs_core.host import comings, deadlines, device_memory, edgeless, host_memory, wants
from hs_core.host.board import Board, remember_most
from hs_core.host.hosted import HostedJob
from hs_core.host.pausing import pause
from hs_core.names import GpuId
from hs_core.reports import BROKE_AGENT, LAUNCH_FAILED, NOT_AS_BEFORE, TRESPASSED, Exit, Phase, Tier

CHECKPOINTED_STATUS = 75
"""How a process exits once its checkpoint is durable (docs/job-protocol.md)."""

PHASE_OF_TIER = {
    Tier.HOLD: Phase.HELD,
    Tier.SWAP: Phase.SWAPPED,
    Tier.CHECKPOINT: Phase.CHECKPOINTED,
    Tier.FREEZE: Phase.FROZEN,
}

JobEvent = (
    JobHooked | JobReady | JobCapable | JobHeld | JobWentOn | JobProgressed | JobCheckpointed | CheckpointWeighed | CheckpointFailed
    | JobRestored | JobFroze | SuspendFailed | JobExited | LaunchFailed | CheckpointFetched | FetchFailed | RendezvousReserved | JobTrespassed | JobCondemned
)  # fmt: skip


def hear(board: Board, job: HostedJob, event: JobEvent) -> None:
    match event:
        case JobProgressed():
            _progressed(board, job, event)
        case JobHooked():
            _hooked(board, job)
        case JobReady():
            _ready(board, job, event)
        case JobCapable():
            _capable(board, job, event)
        case JobHeld():
            _held(board, job, event)
        case JobWentOn():
            _went_on(board, job, event.step)
        case JobCheckpointed():
            _durable(board, job, event.step, event.generation)
        case CheckpointWeighed():
            job.checkpoint_bytes = event.size_bytes
        case CheckpointFailed():
            _checkpoint_failed(board, job, event.why)
        case JobRestored():
            _restored(board, job, event)
        case JobFroze():
            _froze(board, job)
        case SuspendFailed():
            if job.asked is not None and not job.is_past(event.order):
                deadlines.unanswered(board, job, event.why)
        case JobExited():
            _exited(board, job, event)
        case LaunchFailed():
            _launch_failed(board, job, event)
        case CheckpointFetched():
            comings.fetched(board, job, event)
        case FetchFailed():
            comings.fetch_failed(board, job, event)
        case RendezvousReserved():
            comings.reserved(board, job, event.address)
        case JobTrespassed():
            _trespassed(board, job, event.gpu)
        case JobCondemned():
            _condemned(board, job)
        case _:
            assert_never(event)


def _can(job: HostedJob, event: JobReady | JobCapable) -> None:
    job.can_swap, job.can_checkpoint, job.single = event.can_swap, event.can_checkpoint, event.single


def _capable(board: Board, job: HostedJob, event: JobCapable) -> None:
    """All of its ranks have come to a step edge. Those of a gang that was let go before go on as they come, and never stand there as one."""
    _can(job, event)
    goes = job.phase in (Phase.RUNNING, Phase.SUSPENDING, Phase.FROZEN)
    if job.ready or not goes or not job.hookable:
        return
    _hooked(board, job)
    edgeless.stood(board, job)
    job.ready = True
    board.tell("ready", "can be stopped at a step edge by now", job)
    if job.phase is Phase.RUNNING and (not job.in_turn or job.wanted.paused or _is_others_turn(board, job)):
        board.suspend(job, Tier.HOLD)  # it was let be for as long as it could not be stopped


def _is_others_turn(board: Board, job: HostedJob) -> bool:
    return board.is_out_of_turn(job) or any(other.in_turn or other.occupying for other in board.rivals(job))


def _hooked(board: Board, job: HostedJob) -> None:
    if not job.hookable or not job.alive:
        return
    first = job.hooked is None
    if first:
        job.start_deadline_s = board.now_s + board.config.ready_deadline_s
    job.hooked = True  # late, perhaps: until JobReady it is still in the freezer's care
    if first and job.wanted.paused and job.occupying:
        pause(board, job)


def _ready(board: Board, job: HostedJob, event: JobReady) -> None:
    if not job.alive or not job.hookable or job.phase in (Phase.KILLING, Phase.SWAPPED, Phase.CHECKPOINTED):
        return
    _hooked(board, job)
    edgeless.stood(board, job)
    first, job.ready, job.start_fails = not job.ready, True, 0
    _can(job, event)
    job.step = event.step
    if first:
        job.start_s = board.now_s - (job.launched_s or board.now_s)
        board.tell("ready", f"stands at its first suspend point, step {job.step}", job)
        if job.ahead:
            board.begins(job)
    if job.phase is Phase.FROZEN or job.asked in (Tier.SWAP, Tier.CHECKPOINT):
        return
    if job.phase is Phase.SUSPENDING:
        if not job.is_past(event.order):  # else it is let go yet, before it stops
            board.stopped(job, Phase.HELD, Tier.HOLD)
    elif job.phase in (Phase.STARTING, Phase.RUNNING):
        others = any(other.occupying for other in board.rivals(job))
        lets_go = not job.wanted.paused and not job.portion_done
        job.in_turn = job.in_turn and not board.is_out_of_turn(job)
        if job.in_turn and job.occupying and not others and lets_go:
            board.resume(job)
            return
        job.free(board.now_s)
        job.phase, job.going_s, job.stuck = Phase.HELD, None, ""
        job.in_turn = job.in_turn and not others and not job.portion_done


def _held(board: Board, job: HostedJob, event: JobHeld) -> None:
    if event.tier not in PHASE_OF_TIER:
        raise BrokenError(f"job {job.id} held with tier {event.tier}")
    if event.tier is Tier.CHECKPOINT:
        _durable(board, job, event.step, event.generation)
    if not job.alive or job.ended:
        return
    if event.tier is not Tier.CHECKPOINT and job.is_past(event.order):
        return  # it goes on again, or will stop again, and then says so
    job.ready, job.resumed = True, True
    _hooked(board, job)
    edgeless.stood(board, job)
    asked, job.step = job.asked, event.step
    if asked is None and job.phase is PHASE_OF_TIER[event.tier]:
        return  # told again, because another host of its gang asked
    if asked in (Tier.HOLD, Tier.SWAP):
        job.hold_fails = 0
    if asked is Tier.SWAP and event.tier is Tier.HOLD:
        deadlines.parking_failed(board, job, Tier.SWAP, "device memory stays where it is")
    board.stopped(job, PHASE_OF_TIER[event.tier], event.tier)
    job.parked_bytes = event.parked_bytes if event.tier is Tier.SWAP else 0
    if job.parked_bytes > job.moved_bytes:
        job.moved_bytes = job.parked_bytes
        remember_most(board.class_moved_bytes, job.wanted.job_class, job.moved_bytes // job.gang)
    job.in_turn = job.in_turn and not job.portion_done
    if event.tier is Tier.CHECKPOINT:
        job.in_turn = False
        comings.wait_for_word(board, job, asked)


def _went_on(board: Board, job: HostedJob, step: int) -> None:
    if not job.alive or job.ended or job.phase is Phase.SUSPENDING:
        return
    job.step = max(job.step, step)
    if job.phase is Phase.RUNNING:
        board.went_on(job)
        return
    # It trains without having been let go: what is so goes before what was ordered.
    job.phase, job.ready, job.resumed, job.asked = Phase.RUNNING, job.hookable, True, None
    if not (job.in_turn and job.occupying):
        deadlines.intrude(board, job)


def _progressed(board: Board, job: HostedJob, event: JobProgressed) -> None:
    if not job.alive:
        return
    if job.phase is Phase.RUNNING:
        board.went_on(job)
    job.step = max(job.step, event.step)
    job.steps_per_s = event.steps_per_s
    if event.noise_samples:
        job.noise_scale, job.noise_samples = event.noise_scale, event.noise_samples
    device_memory.told(board, job, event.device_memory_bytes)


def _trespassed(board: Board, job: HostedJob, gpu: GpuId) -> None:
    """What it takes there is charged to nobody, and whoever has that GPU trains at half its speed or fails for want of memory."""
    if not job.alive or job.ended or gpu in job.gpus:
        return
    there, own = board.names([gpu]), board.names(job.gpus)
    board.tell(
        "trespassed", f"computes on {there}, its own is {own}: does its script set CUDA_VISIBLE_DEVICES?", job
    )
    board.kill(job, TRESPASSED)


def _condemned(board: Board, job: HostedJob) -> None:
    if job.alive:
        board.kill(job, BROKE_AGENT)
    elif job.phase is not Phase.EXITED:
        _ended(board, job, Exit(why=BROKE_AGENT))


def _durable(board: Board, job: HostedJob, step: int, generation: int) -> None:
    if generation >= job.checkpoint_generation:
        job.checkpoint_step, job.checkpoint_generation = step, generation
    board.saves_later(job)
    job.trouble = ""
    job.checkpoint_fails = 0  # what failed before works again
    job.checkpoint_after_s = min(job.checkpoint_after_s, board.now_s)


def _checkpoint_failed(board: Board, job: HostedJob, why: str) -> None:
    deadlines.parking_failed(board, job, Tier.CHECKPOINT, why)
    board.saves_later(job)
    if job.asked is Tier.CHECKPOINT:
        job.asked = None
        if job.phase is Phase.SUSPENDING:  # it goes on, but its turn is over
            board.ask(job, Tier.HOLD)


def _restored(board: Board, job: HostedJob, event: JobRestored) -> None:
    if not job.step:
        job.first_step = event.step
    elif job.step > event.step:
        spent = job.gpu_s + job.seconds_in_turn(board.now_s) * job.charged_gpus
        part = (job.step - event.step) / max(1, job.step - job.first_step)
        job.lost_gpu_s += max(0.0, spent - job.lost_gpu_s) * min(1.0, part)
        job.first_step = min(job.first_step, event.step)
    if event.generation < job.checkpoint_generation:
        job.fallbacks += 1
        job.fallback_why = event.note
        job.trouble = event.note
        board.tell("fell-back", f"{event.note}; it goes on from step {event.step}", job)
    job.step = job.began_step = event.step
    job.checkpoint_step, job.checkpoint_generation = event.step, event.generation


def _froze(board: Board, job: HostedJob) -> None:
    if job.alive and not job.ended and job.phase not in (Phase.SWAPPED, Phase.CHECKPOINTED, Phase.FROZEN):
        board.stopped(job, Phase.FROZEN, Tier.FREEZE)


def _exited(board: Board, job: HostedJob, event: JobExited) -> None:
    if job.phase is Phase.EXITED:
        return
    exit_ = host_memory.judged(board, job, device_memory.judged(board, job, event))
    ended_s = min(event.ended_s, board.now_s)
    job.in_touch = event.in_touch and not job.ended
    job.step = max(job.step, event.step)
    job.free(ended_s)
    job.gone_s = ended_s
    # Who stops one part of a gang over several hosts stops all, whether this host has been told yet or not.
    asked = job.asked is Tier.CHECKPOINT or (job.part and not job.ended)
    parked = asked and exit_.code == CHECKPOINTED_STATUS and not exit_.signal
    if job.phase is Phase.CHECKPOINTED or parked:
        if job.phase is not Phase.CHECKPOINTED:
            comings.wait_for_word(board, job, job.asked)
            # Durable, or it would not have left like this. The word of it is lost with an agent, or on its way from node 0,
            # which alone knows how many there were: until it comes a part goes by the newest that it was told of.
            if not job.part:
                job.checkpoint_generation += 1
                job.checkpoint_step = job.step
            board.stopped(job, Phase.CHECKPOINTED, Tier.CHECKPOINT)
        board.gone(job)
    else:
        if edgeless.starts_up(job) and not exit_.why:  # by itself
            edgeless.ended(board, job, ended_s)
        _ended(board, job, exit_)


def _launch_failed(board: Board, job: HostedJob, event: LaunchFailed) -> None:
    goes = job.phase is Phase.KILLING or job.next is not None or job.dropped
    if job.phase is Phase.EXITED:
        return
    # It has begun somewhere, so this host lacks something, or its user took it away: what it has done is not to be lost by where
    # it was sent. Of copies the others go on.
    begun = job.checkpoint_generation >= 0 and job.wanted.copy < 0
    if event.host_fault and not goes:
        comings.start_failed(board, job, event.why)
    elif begun and not goes:
        comings.start_failed(board, job, f"{NOT_AS_BEFORE}: {event.why}")
    else:
        _ended(board, job, Exit(why=f"{LAUNCH_FAILED}: {event.why}"))


def _ended(board: Board, job: HostedJob, exit_: Exit) -> None:
    board.exited(job, exit_)
    if job.next is not None or job.dropped:
        wants.bury(board, job)

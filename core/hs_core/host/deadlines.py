"""What happens when nothing happens: answers that do not come, limits, intervals."""

from math import inf

from hs_core.events.host import Resume
from hs_core.host import comings, edgeless, waking
from hs_core.host.board import Board
from hs_core.host.hosted import HostedJob
from hs_core.host.turns import make_way
from hs_core.reports import TIME_LIMIT, UNDYING, Phase, Tier


def due_s(job: HostedJob) -> float:
    """The first time at which `expire` or `comings` has something to do for this job."""
    due = comings.due_s(job) if job.wanted.leave or not job.alive else inf
    if job.phase is Phase.STARTING and not job.ready:
        due = min(due, job.start_deadline_s)
    if job.asked is not None or job.phase is Phase.KILLING:
        due = min(due, job.deadline_s)
    if job.going_s is not None:
        due = min(due, job.resend_s)
    if job.charged_from_s is None:
        return due
    if job.wanted.time_limit_s > 0 and job.phase is not Phase.KILLING:
        due = min(due, _limit_s(job, job.charged_from_s))
    if _saves(job):
        due = min(due, _save_s(job, job.charged_from_s))
    return due


def _saves(job: HostedJob) -> bool:
    """It is to write checkpoints on the way; one node asks for all of its ranks."""
    wanted = job.wanted
    asked = wanted.spec.checkpoint_interval_s > 0 and wanted.node_rank == 0
    return asked and job.phase is Phase.RUNNING and job.ready and job.can_checkpoint


def _save_s(job: HostedJob, charged_from_s: float) -> float:
    return charged_from_s + max(0.0, job.saves_at_run_s - job.run_s)


def _limit_s(job: HostedJob, charged_from_s: float) -> float:
    return charged_from_s + max(0.0, job.wanted.time_limit_s - job.run_s)


def _over_limit(board: Board, job: HostedJob) -> bool:
    if job.charged_from_s is None or job.wanted.time_limit_s <= 0:
        return False
    return board.now_s >= _limit_s(job, job.charged_from_s)


def expire(board: Board, job: HostedJob) -> None:
    config, now_s = board.config, board.now_s
    if job.phase is not Phase.KILLING and _over_limit(board, job):
        board.kill(job, TIME_LIMIT)
    elif job.phase is Phase.KILLING and now_s >= job.deadline_s:
        job.stuck = f"{UNDYING}: {board.names(job.gpus)} out of use until it does"
        board.tell("unkillable", job.stuck, job)
        board.send_kill(job)
        make_way(board, job)
    elif job.phase is Phase.STARTING and not job.ready and now_s >= job.start_deadline_s:
        _no_edge(board, job)
    elif job.asked is not None and now_s >= job.deadline_s:
        if job.asked in (Tier.HOLD, Tier.SWAP):
            _hold_later(board, job)
        unanswered(board, job, f"no answer in {now_s - job.asked_s:.0f} s")
    elif job.going_s is not None and now_s >= job.resend_s:
        job.resend_s = now_s + config.suspend_deadline_s
        board.out.append(Resume(job=job.id, epoch=job.wanted.epoch, order=job.orders))
    elif _saves(job) and job.charged_from_s is not None and now_s >= _save_s(job, job.charged_from_s):
        board.save(job)


def _no_edge(board: Board, job: HostedJob) -> None:
    """It will not stop by itself at a step edge: from here on it counts as running, and must not run out of its turn."""
    if job.hooked is None:
        job.hooked = False
    else:
        job.overdue = True
        board.say_go(job)  # ranks that wait for one that will not get there
    board.begins(job)
    edgeless.goes_on(board, job)
    job.phase, job.resumed = Phase.RUNNING, True
    board.tell("unhooked", job.note(board.config.can_freeze), job)
    if not job.in_turn or not job.occupying or job.wanted.paused:
        intrude(board, job)


def intrude(board: Board, job: HostedJob) -> None:
    """It runs although it is not its turn: charge it, and stop it whatever its mode."""
    job.begin(board.now_s)
    if job.ready:
        board.suspend(job, Tier.HOLD)
    elif board.config.can_freeze:
        board.suspend(job, Tier.FREEZE)
    else:
        stay(board, job, "no freezer on this host")


def stay(board: Board, job: HostedJob, why: str) -> None:
    """It can't be stopped: it keeps its GPUs, turn after turn, and is charged for them."""
    job.phase, job.asked = Phase.RUNNING, None
    job.stuck, job.resumed = why, True
    job.in_turn = not job.dropped
    board.tell("unsliceable", f"does not stop: {why}", job)
    make_way(board, job)


def unanswered(board: Board, job: HostedJob, why: str) -> None:
    """A Suspend failed or was not answered: the freezer next, then it has to be lived with."""
    if job.phase is Phase.SUSPENDING:
        if job.asked is Tier.CHECKPOINT:
            _checkpoint_later(board, job)
        elif job.asked is Tier.SWAP:
            parking_failed(board, job, Tier.SWAP, why)
        if job.asked is not Tier.FREEZE and board.config.can_freeze:
            board.ask(job, Tier.FREEZE)
        else:
            stay(board, job, why)
        return
    parking_failed(board, job, job.asked, why)
    job.asked = None


def parking_failed(board: Board, job: HostedJob, tier: Tier | None, why: str) -> None:
    """It stays as it was, and is left alone for a while."""
    if tier is Tier.SWAP:
        job.swap_after_s = board.now_s + board.config.park_retry_quanta * board.quantum_s
    elif tier is Tier.CHECKPOINT:
        _checkpoint_later(board, job)
    else:
        return
    job.trouble = f"{tier} failed: {why}"
    board.tell("failed", job.trouble, job)


def cannot_save(board: Board, job: HostedJob) -> None:
    """It is to leave, stands where no checkpoint can be written, and cannot be let go from there: who waits for it elsewhere is to know."""
    why = waking.why_not(board, job)
    if why:
        parking_failed(board, job, Tier.CHECKPOINT, why)


def _hold_later(board: Board, job: HostedJob) -> None:
    """Its ranks wait for one another at different steps, maybe: until the freezer takes it its GPUs idle, so it is asked less and less often."""
    job.hold_fails += 1
    quanta = min(2 ** min(job.hold_fails, 10), board.config.park_retry_quanta)
    job.hold_after_s = board.now_s + quanta * board.quantum_s


def _checkpoint_later(board: Board, job: HostedJob) -> None:
    """Others wait for its GPUs or its memory: it is asked again soon, then less and less often, for while it is asked it has no turn."""
    job.checkpoint_fails += 1
    quanta = min(2 ** min(job.checkpoint_fails - 1, 10), board.config.park_retry_quanta)
    job.checkpoint_after_s = board.now_s + quanta * board.quantum_s
    hurry(board, job)


def hurry(board: Board, job: HostedJob) -> None:
    """One that is to leave for another host is asked again soon, also where it failed before it was to: others wait for it there, too."""
    if job.wanted.leave:
        job.checkpoint_after_s = min(job.checkpoint_after_s, board.now_s + board.wanted_quantum_s)


def stays_here(board: Board, job: HostedJob) -> None:
    """Its move was taken back: who has come to no place to be saved at is waited for no longer than for one to stand at."""
    if job.phase is Phase.SUSPENDING and job.asked is Tier.CHECKPOINT:
        job.deadline_s = min(job.deadline_s, max(board.now_s, job.asked_s + board.config.suspend_deadline_s))

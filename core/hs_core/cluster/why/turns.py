"""A job that waits for GPUs: whose turn it is, and when its own comes."""

from collections.abc import Collection

from hs_core.cluster import gpus_out
from hs_core.cluster.why.reason import Reason, Why
from hs_core.cluster.why.scene import Scene
from hs_core.cluster.why.wording import (
    at,
    by_itself,
    goes_on,
    has_run,
    short_of_gpu_memory,
    short_of_memory,
    soon,
)
from hs_core.mechanism.idle_elsewhere import IDLE
from hs_core.model import Migrate
from hs_core.names import GpuId
from hs_core.words import about, counted, listed

OVERDUE = (
    2  # quanta: of who waits so much longer than its share makes, not half have their turn at the next edge
)
NO_SHARE = 0.02  # of its gang, and of a GPU: weights are never nothing, and who has so little lives on what others leave
NEARLY = 0.05  # of what its tickets come to: nobody cares for less


def for_turn(scene: Scene) -> Why:
    job = scene.job
    gpus = sum(len(host.healthy_gpus) for host in scene.hosts)
    due, part = min(1.0, scene.share_gpus / job.gang), scene.part
    if due <= 0 or part <= 0:
        return for_gpus(scene)
    if (bound := _bound(scene, scene.idle)) is not None:
        return bound
    if job.gang > gpus - sum(scene.unsliced.values()):
        return _behind_unsliced(scene, gpus)
    if held := short_of_gpu_memory(job):
        return Why(reason=Reason.WAITING_FOR_GPUS, text=held, next_step=by_itself(job))
    if due < NO_SHARE and 0 <= scene.user_gpus < NO_SHARE:
        return _without_share(scene)
    one_in = 1 / part
    wait_s = _until_turn(one_in, scene.waited_s, scene.quantum_s)
    when = f"unless jobs come or go, next turn {soon(wait_s)}{short_of_memory(job, ', or later: it ')}"
    if wait_s < 0:
        others = short_of_memory(job, "it ") or "others there have had less of their shares"
        when = f"it has waited for {about(scene.waited_s)}, longer than that, as {others}: when its turn comes is not known"
    share = f"its share is {scene.share_gpus:.3g} of {counted(gpus, 'GPU')}"
    of = f"{one_in:.2g}" if one_in < 10 else f"{one_in:.0f}"
    runs = f"it runs in 1 of {of} quanta" if one_in >= 1.05 else "it runs nearly all the time"
    turns = (
        f"so {runs}"
        if part > (1 - NEARLY) * due
        else f"and as not all jobs there fit beside one another {runs}"
    )
    return Why(
        reason=Reason.WAITING_FOR_TURN,
        text=f"it waits for its turn on {at(job)}: {share}, {turns}; {when}",
        next_step=by_itself(job),
        expected_wait_s=wait_s,
    )


def _until_turn(one_in: float, waited_s: float, quantum_s: float) -> float:
    """Turns begin at edges: who waits does so for a whole quantum at least, and where its time has passed until the next edge. -1: others have been served before it again and again."""
    wait_s = max(1, round(one_in - 1)) * quantum_s - waited_s
    if wait_s <= -OVERDUE * quantum_s:
        return -1.0
    return wait_s if wait_s > 0 else quantum_s - waited_s % quantum_s


def _without_share(scene: Scene) -> Why:
    """Its user's share is of other GPUs, or was given for others in a trade: no turn there is its own."""
    job = scene.job
    moves = "" if job.spec.migrate is Migrate.NEVER else ", until it is moved to where it can have more"
    return Why(
        reason=Reason.WAITING_FOR_TURN,
        text=f"it waits for its turn on {at(job)}: {job.user} has no share of {job.gpu_model} GPUs now, so it has there what others leave{moves}",
        next_step=by_itself(job),
    )


def _behind_unsliced(scene: Scene, gpus: int) -> Why:
    """Whatever its share: these end before it has its turn there, or it leaves."""
    job, others = scene.job, sorted(scene.unsliced)
    one = len(others) == 1
    has = f"{'job' if one else 'jobs'} {listed(others)} {'has' if one else 'have'}"
    return Why(
        reason=Reason.WAITING_FOR_TURN,
        text=f"it waits for its turn on {at(job)}: {has} {sum(scene.unsliced.values())} of {counted(gpus, 'GPU')} there"
        " and cannot be suspended",
        next_step=f"it {goes_on(job)} when {'that one ends' if one else 'enough of them have ended'}, or on another server if it is moved to one",
    )


def for_gpus(scene: Scene) -> Why:
    job = scene.job
    if (bound := _bound(scene, scene.idle if scene.in_turn else ())) is not None:
        return bound
    memory = short_of_memory(job, "it ")
    if not memory and (why := _in_its_turn(scene)) is not None:
        return why
    if not memory and scene.turn_after_s >= 0 and scene.policy_says and not short_of_gpu_memory(job):
        return Why(
            reason=Reason.WAITING_FOR_TURN,
            text=f"{scene.policy_says}; next turn, as planned now, {soon(scene.turn_after_s)}",
            next_step=by_itself(job),
            expected_wait_s=scene.turn_after_s,
        )
    return Why(
        reason=Reason.WAITING_FOR_GPUS,
        text=memory
        or _as_decided(scene)
        or short_of_gpu_memory(job)
        or f"it waits for {counted(job.gang, 'GPU')} to be free",
        next_step=by_itself(job),
    )


def _as_decided(scene: Scene) -> str:
    """What the policy says of it, and when it decides again."""
    if not scene.policy_says and not scene.until_edge:
        return ""
    if scene.round_in_s < 0:
        return scene.policy_says or scene.until_edge
    when = f"the next round begins {soon(scene.round_in_s)}"
    within = scene.until_edge != scene.policy_says and scene.until_edge
    said_then = scene.policy_says.split("; ")
    # Which GPUs are idle is known anew: what was so as the round began is not said beside it.
    says = "; ".join(part for part in said_then if not (within and part.startswith(IDLE)))
    said = f"{says}; {when}" if says else f"it waits: {when}"
    return f"{said}; in this one {within}" if within else said


def _in_its_turn(scene: Scene) -> Why | None:
    """The controller has given it GPUs, and it does not run yet."""
    job = scene.job
    if not scene.in_turn and scene.turn_in_s < 0:
        return None
    if held_up := short_of_gpu_memory(job):
        return Why(reason=Reason.WAITING_FOR_GPUS, text=held_up, next_step=by_itself(job))
    if scene.in_turn and scene.in_its_way:
        others = f"{'job' if len(scene.in_its_way) == 1 else 'jobs'} {listed(scene.in_its_way)}"
        have = "has" if len(scene.in_its_way) == 1 else "have"
        text = (
            f"it has its turn on {at(job)} now, and {goes_on(job)} as soon as {others} {have} left its GPUs"
        )
        step = f"nothing to do; `hsctl why {scene.in_its_way[0]}` says where {'that one' if len(scene.in_its_way) == 1 else 'the first of them'} stands"
        return Why(reason=Reason.WAITING_FOR_TURN, text=text, next_step=step)
    if scene.in_turn:
        text = f"it has its turn on {at(job)} now, and is about to {'go on' if has_run(job) else 'start'}"
        return Why(reason=Reason.WAITING_FOR_TURN, text=text, next_step="nothing to do", expected_wait_s=0.0)
    return Why(
        reason=Reason.WAITING_FOR_TURN,
        text=f"it has its turn on {at(job)} in the next quantum, as planned now: {soon(scene.turn_in_s)}",
        next_step=f"it {goes_on(job)} by itself",
        expected_wait_s=scene.turn_in_s,
    )


def _bound(scene: Scene, idle: Collection[GpuId]) -> Why | None:
    """Its process cannot leave GPUs of which one is out of use, or which others have while as many of these are idle; None: it is not so."""
    job = scene.job
    for host in scene.hosts:
        if bound := gpus_out.bound_beside(job, host, idle):
            return Why(
                reason=Reason.WAITING_FOR_TURN,
                text=f"it waits for its turn on {at(job)}: {bound}",
                next_step="it does not go on there before the GPU is mended; `hsctl node drain` with a deadline takes it to another server, from its newest checkpoint"
                if gpus_out.sick_of(job, host)
                else "it goes on by itself; one that keeps its state with `hs_job` (docs/training-scripts.md) can go to where there is room",
            )
    return None

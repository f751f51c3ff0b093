"""Which of the reasons that may hold is the one to tell."""

from dataclasses import replace

from hs_core.cluster import checkpoints, gpus_out
from hs_core.cluster.why.end import ending, explain_end
from hs_core.cluster.why.homeless import without_home
from hs_core.cluster.why.moving import moving
from hs_core.cluster.why.reason import Reason, Why
from hs_core.cluster.why.running import paused, runs, starting
from hs_core.cluster.why.scene import Scene
from hs_core.cluster.why.servers import host_away, source_away, unhealthy
from hs_core.cluster.why.turns import for_gpus, for_turn
from hs_core.cluster.why.wording import at, goes_on, short_of_memory, told
from hs_core.model import JobState
from hs_core.reports import CANNOT_FETCH, CANNOT_START, Phase

CANNOT_WRITE = "the controller cannot write its journal just now: nothing new is decided, running jobs go on"

_ELSEWHERE = "it goes to another server that has room for it, or is tried again by itself; tell an administrator: `hsctl nodes` says it too"


def explain(scene: Scene) -> Why:
    if scene.job.state.ended:
        return explain_end(scene.job)
    why = _of_live(scene)
    if scene.failed_at and why.reason is not Reason.RUNNING:
        why = replace(why, text=f"{why.text}; {_failed_at(scene)}")
    if not scene.looks_on:
        return why
    if why.reason is Reason.WAITING_FOR_GPUS:
        # Of whom the policy has chosen nothing is known, nor which GPUs are free.
        on = f"its turn on {at(scene.job)}, which goes on without a word" if scene.job.hosts else "GPUs"
        why = replace(why, reason=Reason.READ_ONLY, text=f"it waits for {on}")
    return replace(
        why,
        text=f"{why.text}; {CANNOT_WRITE}",
        next_step="it is decided about again when there is room on the controller's disk: tell an administrator"
        if why.reason is Reason.READ_ONLY
        else why.next_step,
    )


def _failed_at(scene: Scene) -> str:
    there = ", ".join(f"{name} ({how})" for name, how in scene.failed_at.items())
    return f"at its start it failed on {there}, where it was sent, and others come first that could go on with it"


def _of_live(scene: Scene) -> Why:
    job = scene.job
    if job.state is JobState.CANCELLING:
        return ending(scene, f"was cancelled by {job.cancelled_by} and is being ended")
    if job.state is JobState.PAUSED:
        return paused(job)
    if not job.hosts:
        return without_home(scene)
    if scene.away:
        return host_away(scene)
    if job.report is not None and job.report.phase is Phase.KILLING:
        return ending(scene, "is being ended")
    if scene.evicted:
        return ending(
            scene,
            f"is being ended: {at(job)} was to be empty by now; it is queued again",
            scene.saves_within_s,
        )
    if job.state is JobState.RUNNING:
        return runs(scene)
    return _on_its_host(scene)


def _on_its_host(scene: Scene) -> Why:
    job = scene.job
    phase = job.report.phase if job.report else None
    if job.move is not None:
        return moving(job)
    if scene.source_away and phase in {None, Phase.WAITING}:
        return source_away(scene)
    if trouble := told(job, CANNOT_START):
        return Why(
            reason=Reason.HOST_TROUBLE,
            text=f"it {trouble}",
            next_step=_ELSEWHERE,
        )
    if trouble := told(job, CANNOT_FETCH):
        return Why(
            reason=Reason.HOST_TROUBLE,
            text=f"it {trouble}",
            next_step=f"it is tried again by itself: see that {at(job)} can have it (the other server's `peer_address`, or the folder that was named)",
        )
    if scene.unable and phase in {None, Phase.WAITING, Phase.CHECKPOINTED}:
        states = (f"{name} cannot start it ({why})" for name, why in scene.unable.items())
        return Why(
            reason=Reason.HOST_TROUBLE,
            text=f"it waits on {at(job)}, and {', '.join(states)}",
            next_step=_ELSEWHERE,
        )
    stored = job.stored
    fetched = stored is not None and (stored.surpassed or not stored.is_at(job.hosts))
    brought = (
        phase is Phase.WAITING
        and fetched
        and not checkpoints.has_come_along(job)
        and not short_of_memory(job)
    )
    if phase in {None, Phase.STARTING} or brought:
        return starting(job)
    misfit = scene.healthy_misfit.text if scene.healthy_misfit is not None else ""
    for host in scene.hosts:
        if lacks := gpus_out.lacking(job, host):
            stays = gpus_out.why_it_stays(job, misfit, scene.unsaved) or _not_elsewhere(scene)
            unsaved = bool(scene.unsaved) and scene.unsaved in stays
            return unhealthy(lacks + stays, goes_on(job), unsaved=unsaved)
    if scene.central or job.nodes > 1:
        return for_gpus(scene)
    return for_turn(scene)


def _not_elsewhere(scene: Scene) -> str:
    """Its server has too few GPUs for it, it could leave, and there are others that have enough."""
    if scene.closed:
        states = ", ".join(f"{name} ({why})" for name, why in scene.closed.items())
        return f"; too few of the others that could take it take anybody now: {states}"
    if unreached := [host.name for host in scene.hosts if not host.peer]:
        are = "has" if len(unreached) == 1 else "have"
        return f"; its checkpoint cannot be fetched from there, as {', '.join(unreached)} {are} no address for other agents (peer_listen)"
    return f"; the policy in office, {scene.policy}, leaves it where it is for now"

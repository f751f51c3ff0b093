"""Servers that keep a job from going on: its own are away, or have too few GPUs in health, or others have its checkpoint."""

from hs_core.cluster import checkpoints
from hs_core.cluster.why.reason import Reason, Why
from hs_core.cluster.why.scene import Scene
from hs_core.model import OnPartition


def host_away(scene: Scene) -> Why:
    job = scene.job
    servers = "server" if len(scene.away) == 1 else "servers"
    is_ = "is" if len(scene.away) == 1 else "are"
    fenced = job.spec.on_partition is OnPartition.FENCE
    return Why(
        reason=Reason.HOST_AWAY,
        text=f"its {servers} {', '.join(scene.away)} {is_} not connected; what it was doing there goes on",
        next_step="it asked to be started again elsewhere if that takes long"
        if fenced
        else f"its state is known again when the {servers} {is_} back; an administrator can remove a server that will not come back",
    )


def source_away(scene: Scene) -> Why:
    names = ", ".join(scene.source_away)
    back = checkpoints.back(scene.job, scene.source_away)
    step = scene.job.stored.step if scene.job.stored is not None else 0
    spec = scene.job.spec
    fenced = spec.on_partition is OnPartition.FENCE and not scene.job.hosts
    else_ = f"that is looked for in {spec.checkpoint_dir}" if spec.checkpoint_dir else "it starts afresh"
    return Why(
        reason=Reason.SOURCE_AWAY,
        text=f"it goes on from its checkpoint of step {step}, which is on {names}, not connected now",
        next_step=f"it goes on when {back}; it asked to be fenced, so where that takes long and there is room for it elsewhere {else_}"
        if fenced
        else f"it goes on when {back}; an administrator can remove a server that will not come back",
    )


def unhealthy(text: str, goes_on: str, *, unsaved: bool = False) -> Why:
    """`unsaved`: it was to leave, and no checkpoint of it could be written."""
    elsewhere = ", or elsewhere once its checkpoint can be written" if unsaved else ""
    return Why(
        reason=Reason.GPU_UNHEALTHY,
        text=f"too few healthy GPUs: {text}",
        next_step=f"it {goes_on} when they are repaired, or drained no longer{elsewhere}; `hsctl gpus` shows them",
    )

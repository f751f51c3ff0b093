"""A job that has ended, or is being ended."""

from hs_core.cluster.why.reason import Reason, Why
from hs_core.cluster.why.scene import Scene
from hs_core.model import Job, JobState
from hs_core.reports import LAUNCH_FAILED, Exit


def ending(scene: Scene, what: str, saves_within_s: float = 0.0) -> Why:
    """`saves_within_s`: it writes a checkpoint first, which may take so long; 0: it does not."""
    if away := scene.away or scene.without:
        return Why(
            reason=Reason.HOST_AWAY,
            text=f"it {what}, but its server {', '.join(away)} is not connected",
            next_step="it ends when the server is back",
        )
    step = "its GPUs are free in a few seconds"
    if saves_within_s:
        step = f"it writes a checkpoint first, for which it has {saves_within_s:g} s from then on"
    return Why(reason=Reason.ENDING, text=f"it {what}", next_step=step)


def explain_end(job: Job) -> Why:
    """For this the job is enough: it may have ended long ago."""
    reason = {
        JobState.SUCCEEDED: Reason.SUCCEEDED,
        JobState.FAILED: Reason.FAILED,
        JobState.CANCELLED: Reason.CANCELLED,
    }[job.state]
    ended = job.exit or Exit()
    step = "nothing to do"
    if reason is Reason.FAILED:
        step = f"`hsctl logs {job.id}` shows what it said"
        if ended.why.startswith(LAUNCH_FAILED):
            before = job.epoch > 0 or job.step > 0
            said = f"{step} before" if before else "it said nothing, as it never began"
            step = f"{said}: submit it again when that is mended"
    text = f"it {job.state}" if reason is not Reason.CANCELLED else f"it was cancelled by {job.cancelled_by}"
    how = exit_text(ended)
    return Why(reason=reason, text=f"{text}: {how}" if how and how not in text else text, next_step=step)


def exit_text(ended: Exit) -> str:
    if ended.why:
        return ended.why
    if ended.signal:
        return f"signal {ended.signal}"
    return f"exit code {ended.code}"

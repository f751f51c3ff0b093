"""A job that has its GPUs or is about to, and one whose owner has paused it."""

from hs_core.cluster import gpus_out, reports
from hs_core.cluster.way import way_from_here
from hs_core.cluster.why.reason import Reason, Why
from hs_core.cluster.why.scene import Scene
from hs_core.cluster.why.wording import at, what_its_servers_say
from hs_core.model import Job
from hs_core.reports import UNSTOPPED, Phase
from hs_core.words import counted, listed

_GOING = (Phase.STARTING, Phase.RUNNING, Phase.SUSPENDING)


def runs(scene: Scene) -> Why:
    job = scene.job
    moving = (
        f"; it is about to {way_from_here(job, job.move)}{what_its_servers_say(job)}"
        if job.move is not None
        else ""
    )
    comes_up = job.report is not None and job.report.phase is Phase.STARTING
    trial = (
        f"; {scene.trial}"
        if scene.trial
        else gpus_out.on_drained(job, scene.hosts, scene.unsaved) or _unstopped(job)
    )
    early = "; its process has not got to a first step yet" if comes_up else ""
    return Why(
        reason=Reason.RUNNING,
        text=f"it runs on {at(job)}, on {counted(job.gang, 'GPU')}{_each(scene)}{_beside(job)}{_as(scene)}{early}{trial}{_held_back(scene)}{moving}",
        next_step=_asked_again(job) if scene.unsaved and scene.unsaved in trial else "nothing to do",
        expected_wait_s=0.0,
    )


def _asked_again(job: Job) -> str:
    if reports.can_leave(job.report):
        return "it is asked again by itself, less and less often: see that its checkpoint can be written"
    return "it goes on undisturbed, and is asked again as soon as it can write a checkpoint: see what keeps it from that (docs/training-scripts.md)"


def _each(scene: Scene) -> str:
    if not scene.job.portions:
        return ""
    away = f"; not connected: {', '.join(scene.without)}" if scene.without else ""
    return f" each, as {len(scene.job.portions)} copies{away}"


def _held_back(scene: Scene) -> str:
    if not scene.copies_fail:
        return ""
    return f"; no copy of it is made for a while where one failed as it was started: {scene.copies_fail}"


def _beside(job: Job) -> str:
    others = job.report.beside if job.report is not None else ()
    return f", shared with {'job' if len(others) == 1 else 'jobs'} {listed(others)}" if others else ""


def _as(scene: Scene) -> str:
    if scene.policy_chose and scene.job.move is None:
        return f", {scene.policy_chose}"
    return f", as {scene.job.strategy.text}" if scene.job.strategy is not None else ""


def _unstopped(job: Job) -> str:
    """Ranks of it hang, or have gone apart: it is charged for turns that are others'."""
    said = next((part.note for part in job.reports.values() if part.note.startswith(UNSTOPPED)), "")
    return f"; it {said}" if said else ""


def starting(job: Job) -> Why:
    text = f"it is being started on {at(job)}"
    if job.stored is not None:
        source = "" if job.stored.hosts == job.hosts else f" {job.stored.where}"
        text += f" from its checkpoint of step {job.stored.step}{source}"
    if job.unconfirmed:
        text += f" once {', '.join(job.unconfirmed)}, where it was to start before, has said that it does not"
    if job.nodes > 1 and not job.reports:
        text += ", its servers are told of one another"
    return Why(reason=Reason.STARTING, text=text, next_step=f"`hsctl logs {job.id}` shows what it says")


def paused(job: Job) -> Why:
    if reports.cannot_pause(job):
        note = job.report.note if job.report is not None else ""
        return Why(
            reason=Reason.PAUSED,
            text=f"it was paused by its owner, but runs on {at(job)}: it cannot be stopped{f' ({note})' if note else ''}",
            next_step=f"`hsctl cancel {job.id}` ends it",
        )
    going = job.report is not None and job.report.phase in _GOING
    rest = f"; its process on {at(job)} goes on until it can be stopped" if going else ""
    return Why(
        reason=Reason.PAUSED,
        text=f"it is paused by its owner{rest}",
        next_step=f"`hsctl resume {job.id}` lets it go on",
    )

"""A job without a home: what has to come before it can have one."""

from hs_core.cluster.admission import CONDITION_WORDS
from hs_core.cluster.fits import Misfit
from hs_core.cluster.why.reason import Reason, Why
from hs_core.cluster.why.scene import AWAY, Scene
from hs_core.cluster.why.servers import source_away, unhealthy
from hs_core.cluster.why.turns import for_gpus
from hs_core.cluster.why.wording import goes_on
from hs_core.model import Job
from hs_core.policies import POLICIES
from hs_core.words import counted, listed

REASON_OF_MISFIT = {
    "gpu_types": Reason.MODEL_ABSENT,
    "gpu_memory_bytes": Reason.MEMORY_TOO_SMALL,
    "memory_bytes": Reason.MEMORY_TOO_SMALL,
    "gpus": Reason.TOO_LARGE,
    "nodes": Reason.TOO_LARGE,
    "hosts": Reason.NO_HOST,
}


def without_home(scene: Scene) -> Why:
    job = scene.job
    if scene.open_after is not None:
        other = scene.open_after.job
        return Why(
            reason=Reason.DEPENDENCY,
            text=f"it runs once job {other} has {CONDITION_WORDS[scene.open_after.condition]}",
            next_step=f"it {goes_on(job)} by itself; `hsctl why {other}` says where that one stands",
        )
    if scene.misfit is not None:
        return _misfit(scene.misfit)
    if scene.array_first:
        first = scene.array_first
        jobs = f"{'job' if len(first) == 1 else 'jobs'} {listed(first)}"
        return Why(
            reason=Reason.ARRAY_LIMIT,
            text=f"its array may have {counted(job.spec.array_limit, 'job')} under way at once, and {jobs} of it, waiting too, "
            f"{'comes' if len(first) == 1 else 'come'} first",
            next_step=f"`hsctl why {first[0]}` says what {'that one' if len(first) == 1 else 'the first of them'} waits for",
        )
    if scene.array_full:
        return Why(
            reason=Reason.ARRAY_LIMIT,
            text=f"its array may have {counted(job.spec.array_limit, 'job')} under way at once, and has",
            next_step=f"it {goes_on(job)} when {'that one' if job.spec.array_limit == 1 else 'one of them'} ends",
        )
    if scene.healthy_misfit is not None:
        return unhealthy(f"it {scene.healthy_misfit.text}", goes_on(job))
    if scene.source_away:
        return source_away(scene)
    return _closed(scene) if scene.closed else for_gpus(scene)


def _misfit(misfit: Misfit) -> Why:
    reason = REASON_OF_MISFIT[misfit.field]
    if reason is Reason.NO_HOST:
        return Why(
            reason=reason,
            text="no server has joined the cluster yet",
            next_step="it is placed when an agent connects; `hsctl nodes` lists the servers",
        )
    if misfit.of_one_model:
        able = ", ".join(sorted(name for name, policy in POLICIES.items() if policy.needs.mixed))
        return Why(
            reason=reason,
            text=f"under the policy in office it cannot run: it {misfit.text}",
            next_step=f"it starts under a policy that lays a job over servers of several GPU models ({able}), or when such a server joins",
        )
    return Why(
        reason=reason,
        text=f"it can never run on the servers that are left: it {misfit.text}",
        next_step="cancel it and submit it with a smaller wish, or wait for such a server to join",
    )


def _closed(scene: Scene) -> Why:
    """Too few of the servers that could hold it take anybody now."""
    job, closed = scene.job, scene.closed
    away = [name for name, why in closed.items() if why == AWAY]
    unable = [name for name in closed if name in scene.unable]
    drained = len(closed) > len(away) + len(unable)
    kinds = ["away"] * bool(away) + ["drained"] * drained + ["unable to start it"] * bool(unable)
    states = ", ".join(away if kinds == ["away"] else (f"{name} ({why})" for name, why in closed.items()))
    text = f"{_short_of_servers(job)} {', '.join(kinds[:-1])}{' or ' * (len(kinds) > 1)}{kinds[-1]}: {states}"
    if unable:
        return Why(
            reason=Reason.HOST_TROUBLE,
            text=text,
            next_step="they are tried again by themselves; tell an administrator: `hsctl nodes` says it too",
        )
    when = f"it is placed when {'one of them is' if job.nodes == 1 else 'enough of them are'}"
    if away:
        or_not = ", or drained no longer" if drained else ""
        step = f"{when} back{or_not}; tell an administrator if that takes long"
        return Why(reason=Reason.HOST_AWAY, text=text, next_step=step)
    return Why(
        reason=Reason.HOST_DRAINED,
        text=text,
        next_step=f"{when} drained no longer (`hsctl node undrain`), or when another joins that could hold it",
    )


def _short_of_servers(job: Job) -> str:
    if job.nodes == 1:
        return "every server that could hold it is"
    return f"it needs {job.nodes} servers at once, and too many of those that could hold it are"

"""GPUs that jobs may not have, in words: which and why, how many a job lacks for it, and what becomes of it."""

from collections.abc import Collection

from hs_core.cluster.reports import can_leave, cannot_leave
from hs_core.model import Host, Job, Migrate
from hs_core.names import GpuId
from hs_core.reports import Phase


def gpus_text(host: Host, gpus: Collection[GpuId]) -> str:
    """By index: GPU 2, GPUs 0, 1; one that is no longer in the server by its identity."""
    here = {gpu.id: gpu.index for gpu in host.gpus}
    known, gone = sorted(here[gpu] for gpu in gpus if gpu in here), sorted(set(gpus) - here.keys())
    if not known:
        return ", ".join(gone)
    return f"GPU{'s' * (len(known) + len(gone) != 1)} {', '.join([*map(str, known), *gone])}"


def lacking(job: Job, host: Host) -> str:
    """Why its server has too few for it; empty if it has enough."""
    healthy = len(host.healthy_gpus)
    # What cannot leave goes on where it is, also when that is drained.
    kept = () if _writes(job) else _bound(job, host)
    stays = host.drained_gpus.intersection(gpu.id for gpu in host.gpus if gpu.healthy and gpu.id in kept)
    if healthy + len(stays) >= job.gpus:
        return ""
    out = _out_of_use(host)
    has = f"{healthy} of {len(host.gpus)} ({out})" if out else f"{len(host.gpus)} in all now"
    return f"it needs {job.gpus}, its server {host.name} has {has}"


def why_it_stays(job: Job, misfit: str, unsaved: str = "") -> str:
    """Why it does not go to another server. `misfit`: what it asks for that no other has; empty: one has all. `unsaved`: why it could not leave when it was to."""
    if job.spec.migrate is Migrate.NEVER:
        return "; it may not go to another server (migrate: never)"
    if not can_leave(job.report):
        why = f": {unsaved}" if unsaved else " as it writes no checkpoints"
        return f"; it cannot go to another server{' before its first step' if _fresh(job) else why}"
    if misfit:
        return f"; no other server can take it: it {misfit}"
    return f"; it was to leave, but {unsaved}" if unsaved else ""


def bound_beside(job: Job, host: Host, idle: Collection[GpuId]) -> str:
    """That its process has its turns on its own GPUs only, though one of these is out of use or enough others of its server are idle; empty: it is not so."""
    bound = _bound(job, host)
    if not bound or not cannot_leave(job.report):
        return ""
    out, free = sick_of(job, host), set(idle).difference(bound)
    enough = len(free) >= job.gpus
    if not out and not enough:
        return ""
    here = {gpu.id for gpu in host.gpus}
    found = ((here.intersection(out), "unhealthy"), (set(out) - here, "gone"))
    states = " and ".join(f"{gpus_text(host, gpus)} {_is(gpus)} {how}" for gpus, how in found if gpus)
    whose = f"of which {states}" if states else "which others have their turns on, too"
    others = f"{gpus_text(host, free)}, idle now," if enough else "others"
    why = "before its first turn there" if _unused(job, host) else "as it writes no checkpoints"
    its = "its process" if job.nodes == 1 else f"its process on {host.name}"
    return f"{its} stays on {gpus_text(host, bound)}, {whose}; it cannot go to {others} {why}"


def sick_of(job: Job, host: Host) -> list[GpuId]:
    """Of the GPUs that its process stays on those on which nobody has a turn any more: unhealthy, or not in the server any more."""
    healthy = {gpu.id for gpu in host.gpus if gpu.healthy}
    return [gpu for gpu in _bound(job, host) if gpu not in healthy]


def on_drained(job: Job, hosts: Collection[Host], unsaved: str) -> str:
    """It goes on for a while on what is to be free. `unsaved`: why it could not leave when it was to."""
    if job.move is not None:
        return ""
    for host in hosts:
        if host.drain is not None:
            if can_leave(job.report) and unsaved:
                return f"; {host.name} is drained: it was to leave, but {unsaved}"
            stays = why_it_stays(job, "", unsaved) or ": it leaves as soon as it can"
            return f"; {host.name} is drained{stays}"
        on = host.drained_gpus.intersection(_bound(job, host))
        if on:
            return f"; {gpus_text(host, on)} of {host.name} {_is(on)} drained: it is there {_until(job)}"
    return ""


def _out_of_use(host: Host) -> str:
    sick = [gpu.id for gpu in host.gpus if not gpu.healthy]
    drained = [gpu.id for gpu in host.gpus if gpu.healthy and gpu.id in host.drained_gpus]
    found = ((sick, "unhealthy"), (drained, "drained"))
    return "; ".join(f"{gpus_text(host, gpus)} {_is(gpus)} {how}" for gpus, how in found if gpus)


def _until(job: Job) -> str:
    if _writes(job):
        return "until its turn ends"
    return "until its first turn ends" if _fresh(job) else "until it ends, as it writes no checkpoints"


def _fresh(job: Job) -> bool:
    """What it could hand over is not known yet. One that has no step hook has turns, and comes to no step."""
    report = job.report
    if report is None or report.phase is Phase.STARTING:
        return True
    return report.step <= 0 and report.suspends == 0


def _unused(job: Job, host: Host) -> bool:
    """What its process there could hand over is not known yet."""
    report = job.reports.get(host.name)
    return report is not None and report.run_s <= 0 and report.suspends == 0


def _is(some: Collection[object]) -> str:
    return "is" if len(some) == 1 else "are"


def _bound(job: Job, host: Host) -> tuple[GpuId, ...]:
    report = job.reports.get(host.name)
    return report.gpus if report is not None else ()


def _writes(job: Job) -> bool:
    return job.report is not None and job.report.can_checkpoint

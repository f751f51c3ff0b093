"""What is believed of a host's word (counters only grow, and nonsense does not get in), and how a job stands by it."""

from collections.abc import Set as AbstractSet
from dataclasses import fields, replace
from itertools import chain
from math import isfinite
from operator import attrgetter

from hs_core.cluster import copies
from hs_core.model import Job
from hs_core.names import GpuId
from hs_core.reports import (
    CANNOT_FETCH,
    CANNOT_START,
    CROWDED_OUT,
    FINAL,
    FOLLOWED,
    LOST,
    Exit,
    JobReport,
    Phase,
    report_with,
)

_COUNTERS = frozenset(
    [
        "step",
        "steps_per_s",
        "gpu_s",
        "run_s",
        "suspends",
        "resumes",
        "suspend_s",
        "resume_s",
        "lost_gpu_s",
        "tier",
        "host_memory_bytes",
        "noise_scale",
        "noise_samples",
    ]
)
_standing = attrgetter(*(one.name for one in fields(JobReport) if one.name not in _COUNTERS))
_MOST = 1e15  # of any counter in seconds or bytes: beyond is nonsense, and floats would stop counting
SENT = frozenset({9, 15})  # signals that somebody sent: its server may have been shut down
_TEXT = 1000  # characters of what a host tells people
_HAS_PROCESS = frozenset({Phase.HELD, Phase.SWAPPED, Phase.FROZEN, Phase.RUNNING})
_BEFORE_PROCESS = frozenset({Phase.WAITING, Phase.STARTING, Phase.CHECKPOINTED})


def merge(old: JobReport | None, new: JobReport, gpus: AbstractSet[GpuId]) -> JobReport:
    """The newest word on where it stands; of every counter the largest said so far. `gpus` are its host's; one that its process has may be gone from there."""
    before = old or JobReport(job=new.job, epoch=new.epoch, phase=new.phase)
    if _believed(before, new, gpus):
        return new
    sane = (fell_back(before, new) or _kept_on(before, new)) and (
        -1 <= new.checkpoint_generation < 1 << 31 and -1 <= new.checkpoint_step < _MOST
    )
    newest_kept = new if sane else before
    return report_with(
        new,
        phase=Phase.EXITED if before.exit is not None else new.phase,
        gpus=tuple(gpu for gpu in new.gpus if gpu in gpus or gpu in before.gpus),
        step=_step(before, new),
        steps_per_s=_real(new.steps_per_s, 0.0),
        gpu_s=max(before.gpu_s, _real(new.gpu_s, 0.0)),
        run_s=max(before.run_s, _real(new.run_s, 0.0)),
        suspends=max(before.suspends, _whole(new.suspends)),
        resumes=max(before.resumes, _whole(new.resumes)),
        suspend_s=max(before.suspend_s, _real(new.suspend_s, 0.0)),
        resume_s=max(before.resume_s, _real(new.resume_s, 0.0)),
        lost_gpu_s=max(before.lost_gpu_s, _real(new.lost_gpu_s, 0.0)),
        device_memory_bytes=max(before.device_memory_bytes, _whole(new.device_memory_bytes)),
        host_memory_bytes=max(before.host_memory_bytes, _whole(new.host_memory_bytes)),
        noise_scale=_real(new.noise_scale, 0.0),
        noise_samples=_whole(new.noise_samples),
        note=new.note[:_TEXT],
        rendezvous=new.rendezvous[:_TEXT] or before.rendezvous,
        checkpoint_step=newest_kept.checkpoint_step,
        checkpoint_generation=newest_kept.checkpoint_generation,
        checkpoint_bytes=_whole(new.checkpoint_bytes) or before.checkpoint_bytes,
        fallbacks=max(before.fallbacks, _whole(new.fallbacks)),
        fallback_why=new.fallback_why[:_TEXT],
        began_step=new.began_step if -1 <= new.began_step < _MOST else before.began_step,
        carry=new.carry if _is_carry(new.carry) else before.carry,
        checkpoint_fails=_whole(new.checkpoint_fails),
        start_fails=_whole(new.start_fails),
        in_touch=new.in_touch if before.exit is None else before.in_touch,
        exit=before.exit or new.exit or (_unsaid() if new.phase is Phase.EXITED else None),
    )


def happened_s(report: JobReport, said_s: float | None, now_s: float, *, least_s: float) -> float:
    """When it came to stand as it says, by the controller's clock: it was `said_s`, by its host's own, when it said so. Clocks of hosts are not compared with others', only
    what has gone by on one; nor is it before `least_s`, what is known already, or later than now."""
    ago_s = said_s - report.since_s if said_s is not None and report.since_s > 0 else 0.0
    if not ago_s > 0.0:  # nor one that is no number
        return now_s
    return min(now_s, max(least_s, now_s - ago_s))


def _believed(before: JobReport, new: JobReport, gpus: AbstractSet[GpuId]) -> bool:
    """Nearly every report: there is nothing in it that `merge` would put otherwise."""
    return (
        before.exit is None
        and new.exit is None
        and new.phase is not Phase.EXITED
        and before.fallbacks == new.fallbacks
        and _kept_on(before, new)
        and new.checkpoint_generation < 1 << 31
        and new.checkpoint_step < _MOST
        and 0 <= new.checkpoint_bytes < _MOST
        and (new.checkpoint_bytes > 0 or before.checkpoint_bytes == 0)
        and 0 <= new.step < _MOST
        and 0.0 <= new.steps_per_s <= _MOST
        and before.gpu_s <= new.gpu_s <= _MOST
        and before.run_s <= new.run_s <= _MOST
        and before.suspends <= new.suspends < _MOST
        and before.resumes <= new.resumes < _MOST
        and before.suspend_s <= new.suspend_s <= _MOST
        and before.resume_s <= new.resume_s <= _MOST
        and before.lost_gpu_s <= new.lost_gpu_s <= _MOST
        and before.device_memory_bytes <= new.device_memory_bytes < _MOST
        and before.host_memory_bytes <= new.host_memory_bytes < _MOST
        and 0.0 <= new.noise_scale <= _MOST
        and 0 <= new.noise_samples < _MOST
        and _is_carry(new.carry)
        and 0 <= new.checkpoint_fails < _MOST
        and 0 <= new.start_fails < _MOST
        and len(new.note) <= _TEXT
        and len(new.fallback_why) <= _TEXT
        and -1 <= new.began_step < _MOST
        and len(new.rendezvous) <= _TEXT
        and (new.rendezvous != "" or before.rendezvous == "")
        and gpus >= set(new.gpus)
    )


def _is_carry(value: float | None) -> bool:
    return value is None or -1.0 <= value <= 1.0


def carried(row: Job) -> float | None:
    """What a job brings of its turns from the server that it has left: of one that is in a server's stride."""
    if row.nodes > 1 or row.portions or len(row.hosts) != 1:
        return None
    report = row.reports.get(row.hosts[0])
    return report.carry if report is not None else None


def _step(before: JobReport, new: JobReport) -> int:
    if not 0 <= new.step < _MOST:
        return before.step
    # An agent that has lost what it knew of a job only knows how it ended: that takes back no steps.
    forgot = new.exit is not None and new.run_s < before.run_s
    return max(before.step, new.step) if forgot else new.step


def fell_back(before: JobReport | None, new: JobReport) -> bool:
    """Its process could not begin from its newest checkpoint: what it says of it now counts, though it is less."""
    return (before.fallbacks if before is not None else 0) < new.fallbacks < _MOST


def _kept_on(before: JobReport, new: JobReport) -> bool:
    """No checkpoint was taken back."""
    return (
        before.checkpoint_generation <= new.checkpoint_generation
        and before.checkpoint_step <= new.checkpoint_step
    )


def _real(value: float, otherwise: float) -> float:
    return value if isfinite(value) and 0 <= value <= _MOST else otherwise


def _whole(value: int) -> int:
    return value if 0 <= value < _MOST else 0


def _unsaid() -> Exit:
    return Exit(why="its host did not say how it ended")


def followed(part: JobReport) -> JobReport:
    """Of a part that ended because another one had: that one's exit is the job's. Its time limit it reached by itself, or ran out of memory, or ended with its own agent."""
    if (
        part.exit is None
        or part.exit.ok
        or part.exit.why in FINAL
        or part.exit.why.startswith((LOST, CROWDED_OUT))
    ):
        return part
    return replace(part, exit=replace(part.exit, why=FOLLOWED))


def own_end(row: Job) -> Exit | None:
    """How a gang has failed all of whose servers were cut off from the controller, and not from one another: none of these is to blame. None: that is not so."""
    parts = [row.reports.get(host) for host in row.hosts]
    ends = [part.exit for part in parts if part is not None and part.exit is not None and part.in_touch]
    if row.portions or len(parts) < 2 or len(ends) < len(parts):
        return None
    own = [end for end in ends if (end.code or end.signal) and end.why not in FINAL]
    if len(own) < len(ends) or any(end.signal in SENT for end in own):
        return None
    crowded = (end for end in own if end.why.startswith(CROWDED_OUT))
    first = next(chain(crowded, (end for end in own if end.why != FOLLOWED), own))
    return replace(first, why="") if first.why.startswith((LOST, FOLLOWED)) else first


def broken(row: Job) -> bool:
    """A part of it has failed or is lost: the other parts are to end as well. Copies go on without one another, until one is through."""
    if len(row.hosts) < 2:
        return False
    if row.portions:
        return copies.through(row)
    parts = [row.reports.get(host) for host in row.hosts]
    return any(p is not None and p.exit is not None and not p.exit.ok for p in parts)


def is_held_up(report: JobReport) -> bool:
    """It has no process there, and can have none for now."""
    return report.note.startswith((CANNOT_FETCH, CANNOT_START))


def came_up(before: JobReport | None, new: JobReport) -> bool:
    """A process of it was started there since: it stands, runs, or has ended."""
    if before is not None and before.phase not in _BEFORE_PROCESS:
        return False
    return new.phase in _HAS_PROCESS or (new.exit is not None and not new.exit.why)


def began_afresh(before: JobReport | None, new: JobReport) -> bool:
    """A process of it did, and did not look for a checkpoint first."""
    return new.began_step == 0 and not new.fallbacks and (before is None or before.began_step != 0)


def has_process(report: JobReport | None) -> bool:
    """Whether it has something on its host that it would lose elsewhere: a process, or the checkpoint of one."""
    return report is not None and report.phase is not Phase.WAITING


def cannot_pause(row: Job) -> bool:
    """Paused by its owner it runs on: a server of it cannot stop it."""
    return row.paused and any(
        part.phase is Phase.RUNNING and not part.sliceable for part in row.reports.values()
    )


def begins_to_train(old: JobReport | None, new: JobReport) -> bool:
    """The first word of steps that it has done there, or of its good end; of one incarnation once, but for an end."""
    if new.exit is not None and new.exit.ok and (old is None or old.exit is None):
        return True
    if new.phase not in (Phase.RUNNING, Phase.EXITED) or new.step <= 0:
        return False
    if old is None or old.step <= 0:
        return True
    return old.phase is not Phase.RUNNING and old.suspends == 0 and old.exit is None


def stands_alike(old: JobReport, new: JobReport) -> bool:
    """Nothing is new but what it did, received and used meanwhile."""
    return _standing(old) == _standing(new)


def cannot_leave(report: JobReport | None) -> bool:
    """Its process is up, and has no way to write a checkpoint."""
    return report is not None and report.phase in _HAS_PROCESS and not report.can_checkpoint


def can_leave(report: JobReport | None) -> bool:
    """It could write a checkpoint and go, or has done so."""
    if report is None or report.phase is Phase.WAITING:
        return True
    return report.phase is Phase.CHECKPOINTED or (report.phase in _HAS_PROCESS and report.can_checkpoint)


def half_up(row: Job) -> bool:
    """A part comes up and another has no process: told to leave, that one would not be started, and the first would wait for it."""
    phases = {part.phase for part in row.reports.values()}
    return Phase.STARTING in phases and not phases.isdisjoint((Phase.WAITING, Phase.CHECKPOINTED))

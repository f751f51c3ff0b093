"""What is believed of a host's word: counters only grow, and nonsense does not get in."""

from dataclasses import replace
from math import isfinite

from hs_core.model import Exit, JobReport, Phase

LOST = "lost with its host"  # an exit's reason begins with it where the job is not to blame
TIME_LIMIT = "time limit"

_MOST = 1e15  # of any counter in seconds or bytes: beyond is nonsense, and floats would stop counting


def merge(old: JobReport | None, new: JobReport) -> JobReport:
    """The newest word on where it stands; of every counter the largest said so far."""
    before = old or JobReport(job=new.job, epoch=new.epoch, phase=new.phase)
    sane = before.checkpoint_generation <= new.checkpoint_generation < 1 << 31
    newest_kept = new if sane else before
    return replace(
        new,
        step=new.step if 0 <= new.step < _MOST else before.step,
        steps_per_s=_real(new.steps_per_s, 0.0),
        gpu_s=max(before.gpu_s, _real(new.gpu_s, 0.0)),
        run_s=max(before.run_s, _real(new.run_s, 0.0)),
        suspends=max(before.suspends, new.suspends),
        resumes=max(before.resumes, new.resumes),
        suspend_s=max(before.suspend_s, _real(new.suspend_s, 0.0)),
        resume_s=max(before.resume_s, _real(new.resume_s, 0.0)),
        lost_gpu_s=max(before.lost_gpu_s, _real(new.lost_gpu_s, 0.0)),
        device_memory_bytes=max(before.device_memory_bytes, new.device_memory_bytes),
        checkpoint_step=newest_kept.checkpoint_step,
        checkpoint_generation=newest_kept.checkpoint_generation,
        exit=before.exit or new.exit or (_unsaid() if new.phase is Phase.EXITED else None),
    )


def _real(value: float, otherwise: float) -> float:
    return value if isfinite(value) and 0 <= value <= _MOST else otherwise


def _unsaid() -> Exit:
    return Exit(why="its host did not say how it ended")


def has_process(report: JobReport | None) -> bool:
    """Whether it has something on its host that it would lose elsewhere: a process, or the checkpoint of one."""
    return report is not None and report.phase is not Phase.WAITING


def lost_work_gpu_s(report: JobReport) -> float:
    """GPU-seconds since the newest checkpoint of an incarnation that died with its host, steps taken as equally long.

    The host cannot say it any more.
    """
    if report.checkpoint_generation < 0 or report.step <= 0:
        kept = 0.0
    else:
        kept = min(1.0, max(0, report.checkpoint_step) / report.step)
    return report.gpu_s * (1.0 - kept)

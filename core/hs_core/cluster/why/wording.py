"""What several reasons say of a job in the same words."""

from hs_core.model import Job
from hs_core.reports import FOR_GPU_MEMORY, FOR_MEMORY
from hs_core.words import about


def at(job: Job) -> str:
    return ", ".join(job.hosts)


def goes_on(job: Job) -> str:
    return "goes on" if has_run(job) else "starts"


def has_run(job: Job) -> bool:
    return job.first_run_s is not None


def by_itself(job: Job) -> str:
    return f"it {goes_on(job)} by itself; `hsctl share` shows who has what"


def soon(wait_s: float) -> str:
    return f"in about {about(wait_s)}" if wait_s >= 1 else "very soon"


def what_its_servers_say(job: Job) -> str:
    """What its servers say of it."""
    notes = dict.fromkeys(part.note for part in job.reports.values() if part.note)
    return f" ({'; '.join(notes)})" if notes else ""


def told(job: Job, beginning: str) -> str:
    """What a server of it says that begins so; else nothing."""
    return next((part.note for part in job.reports.values() if part.note.startswith(beginning)), "")


def short_of_memory(job: Job, before: str = "") -> str:
    """That its server has too little for its process; else nothing. Turns of those who have theirs come first, whatever shares say."""
    said = told(job, FOR_MEMORY)
    return f"{before}{said}" if said else ""


def short_of_gpu_memory(job: Job) -> str:
    """That a policy lets it run and its server cannot, as others hold the memory of GPUs; else nothing."""
    said = next(filter(None, (told(job, beginning) for beginning in FOR_GPU_MEMORY)), "")
    return f"its turn is not given to it on {at(job)}: {said}" if said else ""

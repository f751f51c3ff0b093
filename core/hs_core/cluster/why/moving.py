"""A job that is to leave its home, or to be restarted in another shape."""

from hs_core.cluster.way import reshapes
from hs_core.cluster.why.reason import Reason, Why
from hs_core.cluster.why.wording import at, what_its_servers_say
from hs_core.model import Job


def moving(job: Job) -> Why:
    assert job.move is not None
    why = f": {job.move.text}" if job.move.text else f" ({job.move.reason})"
    if reshapes(job, job.move):
        there = f" on {', '.join(job.move.to)}" if job.move.to != job.hosts else ""
        return Why(
            reason=Reason.MOVING,
            text=f"it is being restarted with {job.move.shape}{there}{why}; it is told to stop and to write its checkpoint",
            next_step="nothing to do: it goes on from its checkpoint, or as before if that fails",
            expected_wait_s=0.0,
        )
    return Why(
        reason=Reason.MOVING,
        text=f"it is moving from {at(job)} to {', '.join(job.move.to)}{why}; it is told to stop and to write its checkpoint{what_its_servers_say(job)}",
        next_step="it goes on there by itself",
    )

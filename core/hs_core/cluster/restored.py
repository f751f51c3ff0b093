"""A backup that was put back: hosts have gone on since, and know of incarnations of which the copy knows nothing.

What of a job is there under a later epoch, or anywhere else, is ended by its host; the job begins once more. Incarnations that begin from now on have epochs above
all that there ever were (`State.first_epoch`): hosts take them for newer ones, and nothing that is said of an earlier one is taken for theirs. Nothing is
decided before all hosts have said what goes on there, or had `lease_s` for it (`Held.is_awaiting`), and a job whose host is still to end what it has
of it does not begin anywhere before that has been done (`Job.unconfirmed`).
"""

from dataclasses import replace

from hs_core.cluster.state import State
from hs_core.model import Job


def as_restored(state: State) -> State:
    """Jobs that had no home may have begun since, under the epoch that they have."""
    return replace(
        state, jobs={id_: _begins_later(row, state.first_epoch) for id_, row in state.jobs.items()}
    )


def _begins_later(row: Job, epoch: int) -> Job:
    waits = not row.hosts and not row.state.ended and row.epoch < epoch
    return replace(row, epoch=epoch) if waits else row

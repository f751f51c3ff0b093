"""A backup that was put back: hosts have gone on since, and know of incarnations of which the copy knows nothing.

What of a job is there under a later epoch, or anywhere else, is ended by its host; the job begins once more. Incarnations that begin from now on have epochs above
all that there ever were: hosts take them for newer ones, and nothing that is said of an earlier one is taken for theirs. Nothing is decided before all
hosts have said what goes on there, or had `lease_s` for it, and a job whose host is still to end what it has of it does not begin anywhere before that
has been done (`Job.unconfirmed`).
"""

from dataclasses import dataclass, replace
from math import inf

from hs_core.cluster.state import State
from hs_core.model import Job, Stored


@dataclass(slots=True)
class Backup:
    """What is known of the one that was put back last, if any ever was. Mutable."""

    first_epoch: int  # of incarnations that began after that
    awaits: bool  # some host is yet to say what goes on there
    until_s: float = inf  # it has had time enough then
    _began_s: float = inf

    def begins(self, now_s: float, lease_s: float) -> None:
        """With the first event of a term."""
        self._began_s, self.until_s = now_s, now_s + lease_s

    def heard(self, now_s: float, *, all_here: bool) -> bool:
        """Time has passed, or hosts came, while it awaits them. True: no longer."""
        if not all_here and self._began_s <= now_s < self.until_s:
            return False
        self.awaits = False
        return True

    def epoch_after(self, row: Job) -> int:
        return max(row.epoch + 1, self.first_epoch)

    def has(self, stored: Stored | None) -> bool:
        """A checkpoint that was written before it was put back: nobody has said since that it is there."""
        return stored is not None and stored.epoch < self.first_epoch


def as_restored(state: State) -> State:
    """Jobs that had no home may have begun since, under the epoch that they have."""
    if not state.restored:
        return state
    jobs = {id_: _begins_later(row, state.first_epoch) for id_, row in state.jobs.items()}
    return replace(state, jobs=jobs)


def _begins_later(row: Job, epoch: int) -> Job:
    waits = not row.hosts and not row.state.ended and row.epoch < epoch
    return replace(row, epoch=epoch) if waits else row

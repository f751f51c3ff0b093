"""A backup that was put back: hosts have gone on since, and know of incarnations of which the copy knows nothing.

What of a job is there under a later epoch, or anywhere else, is ended by its host; the job begins once more, unless it ended well there, and
from what that wrote, where it is there still (`is_beyond`), of one over several servers once all have said which part they have. Incarnations that begin from now on have epochs above
all that there ever were: hosts take them for newer ones, and nothing that is said of an earlier one is taken for theirs. Nothing is decided before all
hosts have said what goes on there, or had `lease_s` for it, and a job whose host is still to end what it has of it does not begin anywhere before that
has been done (`Job.unconfirmed`).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from hs_core.cluster.given_up import MOST, form_over
from hs_core.cluster.state import FIRST_JOB, State
from hs_core.model import Job, Stored, spans, spreads
from hs_core.names import HostName, JobId
from hs_core.reports import JobReport


@dataclass(slots=True)
class Backup:
    """What is known of the one that was put back last, if any ever was. Mutable."""

    first_epoch: int  # of incarnations that began after that
    awaits: bool  # some host is yet to say what goes on there
    until_s: float = inf  # it has had time enough then
    knows: dict[JobId, int] = field(default_factory=dict)  # the newest incarnation that the copy does, by job
    unknown: tuple[JobId, JobId] = (FIRST_JOB, FIRST_JOB)  # as `State.unknown`
    taken_up: frozenset[JobId] = frozenset()  # as `State.taken_up`
    _began_s: float = inf
    _parts: dict[JobId, dict[int, dict[HostName, JobReport]]] = field(
        default_factory=dict
    )  # of incarnations over several servers, by epoch
    _keeps: dict[HostName, set[JobId]] = field(default_factory=dict)  # jobs of which it has said such a part

    @classmethod
    def of(cls, state: State) -> "Backup":
        first = state.first_epoch
        known = ((row.id, _known(row, first)) for row in state.jobs.values() if first and not row.state.ended)
        knows = {job: epoch for job, epoch in known if epoch is not None}
        return cls(first, state.restored, knows=knows, unknown=state.unknown, taken_up=state.taken_up)

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

    def is_later(self, row: Job, report: JobReport) -> bool:
        """Than all of which the copy knows, and before it was put back: what the copy knows of was over by then."""
        return self.knows.get(row.id, self.first_epoch) < report.epoch < self.first_epoch

    def is_beyond(self, row: Job, report: JobReport) -> bool:
        """Likewise, of a job that has not begun since: that incarnation counts as one that was given up. One that never was anything says nothing."""
        if row.epoch != self.first_epoch or not self.is_later(row, report):
            return False
        return report.run_s > 0 or report.checkpoint_generation >= 0 or report.exit is not None

    def last(self, row: Job) -> int:
        """Epoch of its newest incarnation that the controller knew of, where it waits."""
        return self.knows.get(row.id, row.epoch - 1) if row.epoch == self.first_epoch else row.epoch - 1

    def says(self, row: Job, host: HostName, report: JobReport) -> None:
        """What is said of a job over several servers is put together."""
        if not (self.awaits or row.epoch == self.first_epoch) or report.epoch >= self.first_epoch:
            return
        epochs = self._parts.setdefault(row.id, {})
        epochs.setdefault(report.epoch, {})[host] = report
        self._keeps.setdefault(host, set()).add(row.id)
        if len(epochs) > MOST:
            del epochs[min(epochs)]

    def whole(self, row: Job, epoch: int) -> tuple[Job | None, Mapping[HostName, JobReport]]:
        """What each server said of such a one, by node rank, of a job that has not begun since; none: not all have. And as it was known."""
        was = next((one for one in row.given_up if one.epoch == epoch), None)
        parts = self._parts.get(row.id, {}).get(epoch, {})
        if row.epoch != self.first_epoch or (was is not None and was.portions):
            return was, {}
        if was is not None:
            return was, parts if parts.keys() == set(was.hosts) else {}
        by_rank = sorted(parts, key=lambda host: parts[host].rank)
        if [parts[host].rank for host in by_rank] != list(range(len(parts))):
            return was, {}
        if any(servers(row, part) != len(parts) for part in parts.values()):
            return was, {}
        return was, {host: parts[host] for host in by_rank}

    def keeps(self, host: HostName) -> Iterator[tuple[JobId, int, int]]:
        """Job, epoch and generation of what it wrote of later incarnations: who says that it has the other parts may be heard yet."""
        for job in sorted(self._keeps.get(host, ())):
            for epoch, parts in self._parts[job].items():
                part = parts.get(host)
                later_ = self.knows.get(job, self.first_epoch) < epoch
                if part is not None and later_ and part.checkpoint_generation >= 0:
                    yield job, epoch, part.checkpoint_generation

    def begun(self, row: Job) -> Iterable[HostName]:
        """It has a process, perhaps of an incarnation before. As `over`."""
        return self.over(row.id) if row.id in self._parts and row.epoch >= self.first_epoch else ()

    def over(self, job: JobId) -> Iterable[HostName]:
        """Of what was written before nothing is of use any more. Servers that have kept it."""
        parts = self._parts.pop(job, {}).values()
        hosts = {host for epoch in parts for host in epoch}
        for host in hosts:
            self._keeps[host].discard(job)
        return hosts

    def may_take_up(self, job: JobId, epoch: int) -> bool:
        """It was submitted since the copy was made, perhaps, and has not been taken up yet: what is said of it later is of what had gone on elsewhere."""
        first, past = self.unknown
        return first <= job < past and job not in self.taken_up and epoch < self.first_epoch

    def takes_up(self, job: JobId, epoch: int | None) -> None:
        """As this incarnation; None: none that has begun is known of it."""
        self.taken_up |= {job}
        self.knows[job] = -1 if epoch is None else epoch

    def has(self, stored: Stored | None) -> bool:
        """A checkpoint that was written before it was put back: nobody has said since that it is there."""
        return stored is not None and stored.epoch < self.first_epoch


def as_restored(state: State) -> State:
    """Jobs that had no home may have begun since, under the epoch that they have. Also with later terms: of one that waits still nothing was written."""
    if not state.first_epoch:
        return state
    jobs = {id_: _begins_later(row, state.first_epoch) for id_, row in state.jobs.items()}
    return replace(state, jobs=jobs)


def _begins_later(row: Job, epoch: int) -> Job:
    waits = not row.hosts and not row.state.ended and row.epoch < epoch
    return replace(row, epoch=epoch) if waits else row


def _known(row: Job, first_epoch: int) -> int | None:
    """None: it is not known any more which."""
    if row.epoch < first_epoch:
        return row.epoch if row.hosts else row.epoch - 1  # else that is yet to begin
    return min((was.epoch for was in row.given_up if was.epoch < first_epoch), default=None)


def servers(row: Job, report: JobReport) -> int:
    """Over how many an incarnation was of which nothing else is known: what the job asks for, or, of one that may be over any number, what its server says."""
    return report.nodes if spans(row.spec) or len(spreads(row.spec)) > 1 else row.spec.nodes


def with_later(row: Job, models: Mapping[HostName, str], epoch: int) -> Job:
    """With an incarnation there that the copy does not know, among those that were given up. `models`: of its servers' GPUs, by node rank."""
    if any(was.epoch == epoch and models.keys() <= set(was.hosts) for was in row.given_up):
        return row
    return replace(row, given_up=(*row.given_up, later(row, models, epoch))[-MOST:])


def later(row: Job, models: Mapping[HostName, str], epoch: int) -> Job:
    """Such a one, as far as it is known before anything is heard of it."""
    hosts, gpu_models = tuple(models), tuple(models.values())
    there = replace(row, hosts=hosts, gpu_models=gpu_models, epoch=epoch, reports={}, portions=(), move=None)
    there = replace(there, shape=form_over(row, len(hosts)))
    return replace(there, unconfirmed=(), given_up=(), left_behind=())

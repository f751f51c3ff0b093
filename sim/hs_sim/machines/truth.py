"""What is really so, whatever the machines believe: who trains where, how far, and what was written for good.

What must never happen is refused here, at the moment when it would.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from hs_core.forms import Form
from hs_core.model import JobSpec, OnPartition
from hs_core.names import GpuId, HostName, JobId
from hs_core.wanted import Turn
from hs_sim.model import SimJob

Owner = tuple[JobId, int, int]
"""Job, epoch, copy."""


class Saved(NamedTuple):
    """A part of a checkpoint."""

    epoch: int  # that wrote it
    step: int
    rank: int  # node rank, whose it is
    copy: int = -1  # that wrote it, or fetched it to begin with; -1: the job was not forked
    torn: bool = False  # its files are not what was written


Shelf = dict[tuple[int, int], Saved]
"""Of one job, by generation and node rank."""


class LawBrokenError(Exception):
    """Something happened that must never happen."""


@dataclass(slots=True, kw_only=True)
class JobTruth:
    """One job over all of its incarnations."""

    sim: SimJob
    spec: JobSpec
    id: JobId | None = None  # in the system, once it was accepted
    started_s: float | None = None
    ended_s: float | None = None
    cancelled: bool = False
    failed: bool = False  # so the controller has it
    gpu_s: dict[str, float] = field(default_factory=dict)  # occupied, by GPU model
    stops: dict[int, dict[int, int]] = field(
        default_factory=dict
    )  # by epoch and copy, how often while it trained
    homes: dict[int, dict[int, tuple[tuple[HostName, ...], Form | None]]] = field(default_factory=dict)
    """By epoch and copy, where and in which shape it was launched."""
    restarts: int = 0
    kills: int = 0  # times that it ended badly by itself
    failed_abroad: int = 0  # and so often at its start where it was sent, since it trained last
    lost_gpu_s: float = 0.0
    steps: int = 0  # furthest that counts: at its end all
    launches: int = 0  # also those of which not all parts came to be started
    averaging_s: float = 0.0  # that its starts took longer than one that reads a single checkpoint
    last_home: tuple[HostName, ...] = ()
    last_shape: Form | None = None
    last_epoch: int = 0
    epoch: int = 0  # newest that the controller's journal knows
    reach: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By epoch, where one began that is not the first: the controller's life in which that was decided, and the newest step of a checkpoint that
    it could have chosen then."""
    gone_with: set[HostName] = field(default_factory=set)
    """Servers whose disks had something of it and are lost, which the controller does not know yet: what it takes to be safe may not be."""
    torn_step: int = -1  # what the journal knows of up to that step may be torn
    acknowledged: int = -1  # newest step of a checkpoint that the controller's journal knows
    busy: set[tuple[int, int]] = field(default_factory=set)  # (epoch, copy) that train now

    def stopped(self, epoch: int, copy: int) -> None:
        of = self.stops.setdefault(epoch, {})
        of[copy] = of.get(copy, 0) + 1

    @property
    def over(self) -> bool:
        return self.ended_s is not None or self.cancelled or self.failed

    @property
    def untold(self) -> bool:
        """Its user does not say what it holds of each of its GPUs, which is something."""
        return self.sim.gpu_memory_bytes > 0 and not self.spec.gpu_memory_bytes

    def room_bytes(self, capacity_bytes: int) -> int:
        """What has to be free of a GPU before it is given to it; where nobody knows what it will hold, half at least."""
        return (
            max(self.sim.gpu_memory_bytes, capacity_bytes // 2) if self.untold else self.spec.gpu_memory_bytes
        )

    @property
    def suspends(self) -> int:
        """As the controller counts them: of copies the most."""
        return sum(max(of.values()) for of in self.stops.values())

    @property
    def migrations(self) -> int:
        """From epoch to epoch, of all copies together."""
        homes = [sorted(self.homes[epoch].items()) for epoch in sorted(self.homes)]
        places = [[home for _, home in of] for of in homes]
        return sum(now != before for before, now in pairwise(places))


class Truth:
    def __init__(self) -> None:
        self.jobs: dict[int, JobTruth] = {}  # by SimJob.id
        self.by_id: dict[JobId, JobTruth] = {}
        self.users: dict[GpuId, list[Owner]] = {}  # who computes on it
        self.holders: dict[
            GpuId, set[Owner]
        ] = {}  # who was let go there: it computes, or stands until all of its gang are
        self.mates: set[frozenset[JobId]] = set()  # jobs that were ever told to share GPUs
        self.last: list[str] = []

    def occupy(self, gpus: tuple[GpuId, ...], owner: Owner, now_s: float) -> None:
        for gpu in gpus:
            users = self.users.setdefault(gpu, [])
            if owner in users:
                continue
            mates = len(users) == 1 and frozenset((users[0][0], owner[0])) in self.mates
            if users and not mates:
                others = " and ".join(f"job {job} (epoch {epoch})" for job, epoch, _ in users)
                raise LawBrokenError(
                    f"at {now_s:.3f}: {gpu} is used by {others} and given to job {owner[0]} (epoch {owner[1]})"
                )
            users.append(owner)

    def hold(self, gpus: tuple[GpuId, ...], owner: Owner) -> None:
        for gpu in gpus:
            self.holders.setdefault(gpu, set()).add(owner)

    def free(self, gpus: tuple[GpuId, ...], owner: Owner) -> None:
        for gpu in gpus:
            self.holders.get(gpu, set()).discard(owner)
            if owner in self.users.get(gpu, ()):
                self.users[gpu].remove(owner)

    def told(self, turn: Turn) -> None:
        for guest in turn.guests:
            self.mates.update(frozenset((guest.job, other)) for other in guest.beside)

    def mates_of(self, job: JobId) -> Iterator[JobTruth]:
        """Jobs that were ever told to share GPUs with it."""
        return (self.by_id[other] for pair in self.mates if job in pair for other in pair - {job})

    def share_of(self, gpus: tuple[GpuId, ...], owner: Owner) -> tuple[float, set[Owner]]:
        """GPUs that it has, of those that it shares its part; and with whom.

        Two that were let go on one GPU have half of it each, also while one of them stands and waits for the rest of its gang: as of a gang that has
        its GPUs for itself, what is held counts, and of no GPU more than there is.
        """
        if not self.mates:
            return float(len(gpus)), set()
        on = [self._holding(gpu, owner) for gpu in gpus]
        return sum(1 / (1 + len(others)) for others in on), {other for others in on for other in others}

    def _holding(self, gpu: GpuId, owner: Owner) -> list[Owner]:
        """Its mates that have the GPU as it has."""
        holders = self.holders.get(gpu, set())
        if owner not in holders:
            return []
        return [other for other in holders if frozenset((other[0], owner[0])) in self.mates]

    def beside(self, gpus: tuple[GpuId, ...], owner: Owner) -> set[Owner]:
        """Who computes where it computes."""
        on = [self.users.get(gpu, ()) for gpu in gpus] if self.mates else []
        return {other for users in on if owner in users for other in users} - {owner}

    def trains(self, job: JobTruth, who: tuple[int, int], now_s: float) -> None:
        """`who`: epoch and copy. Copies of one epoch train at once; one that was left behind, cut off, may go on in vain."""
        epoch, copy = who
        for other in job.busy:
            behind = other[1] >= 0 and other[0] < epoch
            beside = other[0] == epoch and other[1] != copy
            ahead = copy >= 0 and epoch < other[0]
            if not (behind or beside or ahead):
                raise LawBrokenError(
                    f"at {now_s:.3f}: job {job.id} trains twice; one of them is epoch {epoch}"
                )
        job.busy.add(who)

    def stands(self, job: JobTruth, who: tuple[int, int]) -> None:
        job.busy.discard(who)

    def restored(self, job: JobTruth, epoch: int, step: int, within_reach: int) -> None:
        """`within_reach`: newest step of a checkpoint that the controller could have it fetched from now."""
        if job.spec.on_partition is OnPartition.FENCE:
            # Who asks to be started elsewhere asks not to wait for a server that is cut off. Judged by when that was decided, too: a server
            # may come back while the order to start is on its way, and by then another one may have obeyed it.
            _, decided = job.reach.get(epoch, (0, within_reach))
            job.acknowledged = min(job.acknowledged, max(step, min(within_reach, decided)))

    def goes_on(self, job: JobTruth, step: int, now_s: float) -> None:
        """It trains, from here; what was started and ended before that did no harm."""
        if step < job.acknowledged:
            raise LawBrokenError(
                f"at {now_s:.3f}: job {job.id} goes on at step {step}; step {job.acknowledged} was acknowledged as safe"
            )

    def acknowledge(self, steps: Mapping[JobId, int]) -> None:
        for job, step in steps.items():
            known = self.by_id.get(job)
            if known is not None and not known.gone_with and step > known.torn_step:
                known.acknowledged = max(known.acknowledged, step)

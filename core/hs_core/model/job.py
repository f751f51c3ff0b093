"""The controller's row for a job."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from hs_core.ages import Ages, Stage
from hs_core.forms import Elastic, Form, NoiseScale
from hs_core.model.move import Move
from hs_core.model.spec import JobSpec, gpus_as, nodes_as, strategy_as
from hs_core.model.stored import Stored
from hs_core.model.switches import NO_SWITCHES, Switches
from hs_core.names import HostName, JobId, UserName
from hs_core.newest import Kept
from hs_core.reports import Exit, JobReport, as_one, copies_as_one
from hs_core.strategy import Strategy


class JobState(StrEnum):
    """A job's life as users see it (docs/states.md is drawn from `cluster.TRANSITIONS`)."""

    QUEUED = "queued"  # not placed on a host
    STARTING = "starting"  # placed; its process is coming up ahead of its turn, or soon
    RUNNING = "running"  # in its turn, from the start of its process on
    SUSPENDED = "suspended"  # placed, waiting for its turn
    PAUSED = "paused"  # by its owner
    CANCELLING = "cancelling"  # told to end, not gone yet
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self in ENDED_STATES


ENDED_STATES = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})


_STAGES = {
    JobState.QUEUED: Stage.WAITING,
    JobState.SUSPENDED: Stage.WAITING,
    JobState.STARTING: Stage.STARTING,
    JobState.RUNNING: Stage.RUNNING,
    JobState.PAUSED: Stage.PAUSED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The controller's row for a job."""

    id: JobId
    user: UserName
    spec: JobSpec
    arrival_s: float  # wall clock, for display and order of arrival
    state: JobState = JobState.QUEUED
    epoch: int = 0  # grows whenever a new incarnation may be started
    restarts: int = (
        0  # incarnations before this one: by one each time, where the epoch leaps when a backup is put back
    )
    hosts: tuple[HostName, ...] = ()  # home, once placed: one server per node, by node rank
    gpu_models: tuple[str, ...] = ()  # of the home by node rank (of the last one, where there is none now)
    reports: Mapping[HostName, JobReport] = field(default_factory=dict)  # newest of the current epoch
    move: Move | None = None  # leaving its home for another
    stored: Stored | None = None  # a checkpoint made before the current epoch that its start goes on from
    origin: Stored | None = (
        None  # what its parts went on from, where they changed places: each of their servers has parts that it does not use
    )
    portions: tuple[
        int, ...
    ] = ()  # it trains as copies, one on each of its servers, each with so many mini-batches to do in this epoch, by rank; empty: it does not
    base_step: int = 0  # mini-batches done where its copies began
    accumulation: int = 1  # sub-batches of each mini-batch, since it was last started
    needs_bytes: int = (
        0  # of the memory of each of its GPUs, since others left it too little; 0: that was never so
    )
    crowded_step: int = -1  # where it was, when it was last killed as its server had no memory left
    shape: Form | None = None  # that it has at its home; None: as declared
    noise: NoiseScale | None = (
        None  # of an elastic job, newest that was measured well enough; None: as declared
    )
    migrations: int = 0
    state_bytes: int = 0  # of its newest checkpoint that was weighed, on all of its servers, whichever incarnation wrote it; of copies: of one; 0: none was
    unconfirmed: tuple[
        HostName, ...
    ] = ()  # homes that it was taken from before they started it, and that may not know that yet
    given_up: tuple[
        "Job", ...
    ] = ()  # incarnations that may have gone on unheard since, as they were: `cluster.given_up`
    left_behind: tuple[
        "Job", ...
    ] = ()  # and the last round of copies that ended without one that was cut off
    settled_s: float = 0.0  # when it was placed or last moved, and its checkpoint had come along
    carry: float | None = (
        None  # what it brings of its turns from the server that it has left (`StrideQueue.carry`)
    )
    past_gpu_s: float = 0.0  # of earlier epochs
    past_gpu_s_by_model: Mapping[str, float] = field(default_factory=dict)  # the same, by GPU model
    past_run_s: float = 0.0
    past_lost_gpu_s: float = 0.0
    past_switches: Switches = NO_SWITCHES
    ages: Ages | None = None  # until its last change; None: it has been waiting since it came
    first_run_s: float | None = None  # wall clock
    ended_s: float | None = None
    exit: Exit | None = None
    retries: int = 0
    paused: bool = False  # by its owner
    cancelled_by: str = ""

    @property
    def forked(self) -> bool:
        """It trains as copies that are averaged."""
        return bool(self.portions)

    @property
    def elastic(self) -> Elastic | None:
        """What it allows, with the noise scale that was measured, if one was."""
        said = self.spec.elastic
        return said if said is None or self.noise is None else replace(said, noise_scale=self.noise.examples)

    @property
    def gpus(self) -> int:
        """On each of its servers."""
        return gpus_as(self.spec, self.shape)

    @property
    def gang(self) -> int:
        """GPUs it needs at once, in the shape that it has."""
        return self.gpus * self.nodes

    @property
    def laid(self) -> JobSpec:
        """What was asked for, over the servers that it has."""
        if self.nodes == self.spec.nodes:
            return self.spec
        return replace(self.spec, nodes=self.nodes, gpus=self.gpus)

    @property
    def nodes(self) -> int:
        """Servers that it needs at once."""
        return nodes_as(self.spec, self.shape)

    @property
    def strategy(self) -> Strategy | None:
        """That it runs in; None: it declared none."""
        return strategy_as(self.spec, self.shape)

    @property
    def host(self) -> HostName | None:
        """Its first server: node rank 0."""
        return self.hosts[0] if self.hosts else None

    @property
    def report(self) -> JobReport | None:
        """Its servers' reports as one; None until one of them has said something."""
        if len(self.hosts) == 1 and not self.portions:
            return self.reports.get(self.hosts[0])
        return self.report_of(self.reports)

    def report_of(self, reports: Mapping[HostName, JobReport]) -> JobReport | None:
        """What it would be if they had said this."""
        if self.portions:
            said = tuple(reports[host] for host in self.hosts if host in reports)
            return _copies_as_one(said, len(self.hosts), self.base_step)
        if len(self.hosts) == 1:
            return reports.get(self.hosts[0])
        return _parts_as_one(tuple(reports[host] for host in self.hosts if host in reports), len(self.hosts))

    @property
    def gpu_s(self) -> float:
        """GPU-seconds received over all incarnations."""
        report = self.report
        return self.past_gpu_s if report is None else self.past_gpu_s + report.gpu_s

    @property
    def switches(self) -> Switches:
        """Over all incarnations."""
        return self.past_switches + Switches.of(self.report)

    @property
    def stage(self) -> Stage:
        """That it is in, or was in at its end."""
        if self.state is JobState.SUSPENDED and self.move is not None:
            return Stage.LEAVING
        return _STAGES.get(self.state, Stage.ENDING)

    @property
    def known_until_s(self) -> float:
        """In which stage it was is settled until then."""
        return self.arrival_s if self.ages is None else self.ages.until_s

    def ages_at(self, now_s: float) -> Ages:
        """Until its end, where it has ended."""
        ages = self.ages or Ages(until_s=self.arrival_s)
        return ages if self.state.ended else ages.after(self.stage, now_s)

    @property
    def gpu_model(self) -> str:
        """For people: `V100`, or `K80+V100` where its servers have several."""
        models = self.gpu_models
        return models[0] if len(models) == 1 else "+".join(sorted(set(models)))

    @property
    def now_gpu_s_by_model(self) -> Mapping[str, float]:
        """GPU-seconds of the current epoch: no rank changes its model within one."""
        if not self.reports:
            return {}
        if len(self.hosts) == 1 and (report := self.reports.get(self.hosts[0])) is not None:
            (model,) = self.gpu_models
            return {model: report.gpu_s}
        found: dict[str, float] = {}
        for host, model in zip(self.hosts, self.gpu_models, strict=True):
            if (report := self.reports.get(host)) is not None:
                found[model] = found.get(model, 0.0) + report.gpu_s
        return found

    @property
    def gpu_s_by_model(self) -> Mapping[str, float]:
        """GPU-seconds received over all incarnations, by GPU model."""
        found = dict(self.past_gpu_s_by_model)
        for model, gpu_s in self.now_gpu_s_by_model.items():
            found[model] = found.get(model, 0.0) + gpu_s
        return found

    @property
    def step(self) -> int:
        """Of one that has not taken up the checkpoint that it goes on from: of that, which its process can't tell before."""
        report, stored = self.report, self.stored
        if report is None:
            return stored.step if stored is not None else self.base_step
        if stored is not None and not self.portions:
            return max(report.step, stored.step)
        return report.step


# Asked for a dozen times between two reports.
_parts_as_one = Kept[JobReport, JobReport | None](lambda reports, nodes, _: as_one(reports, nodes))
_copies_as_one = Kept[JobReport, JobReport | None](copies_as_one)

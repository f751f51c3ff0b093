"""What of the mind goes into the journal, and when: changes at once, counters a little later, totals with the rows they are charged from."""

from collections.abc import Sequence

import pytest

from hs_controller.config import Config
from hs_controller.meters import Meters
from hs_controller.mind import COUNTERS_S, FLUSH_S, Draft, Mind
from hs_controller.rows import Batch, Loaded
from hs_core.events import ClusterEvent, HostJoined, HostReported, JobsSubmitted, UserSet
from hs_core.model import Gpu, Host, JobSpec
from hs_core.names import GpuId, HostName, JobId, UserName
from hs_core.reports import JobReport, Phase
from tests.controller.kit import PLAIN

ANN = UserName("ann")
H1 = HostName("h1")
HOST = Host(
    name=H1,
    boot_id="b",
    gpus=tuple(Gpu(id=GpuId(f"GPU-{i}"), index=i, model="V100", memory_bytes=1 << 34) for i in range(4)),
)


class Journalled:
    """A mind, and what each moment's batch would write."""

    def __init__(self, config: Config) -> None:
        loaded = Loaded(
            term=1,
            jobs=(),
            ended=(),
            users=(),
            hosts=(),
            meta={},
            last_seq=0,
            last_s=0.0,
            usage={},
            samples=(),
            answered=(),
        )
        self.mind = Mind(loaded, config, PLAIN, 0.0, meters=Meters())
        self.gpu_s: dict[JobId, float] = {}  # as the journal has it
        self.used_s = 0.0

    def write(self, now_s: float, *events: ClusterEvent, last: bool = False) -> Batch:
        draft = Draft()
        for event in events:
            self.mind.handle(event, draft)
        batch = self.mind.batch(draft, now_s, last=last)
        self.gpu_s |= {row.id: row.gpu_s for row in batch.jobs}
        for usage in batch.usage.values():
            self.used_s = usage.gpu_s
        assert self.used_s == pytest.approx(sum(self.gpu_s.values())), "totals are those of the rows"
        return batch


def says(now_s: float, *jobs: tuple[int, float], phase: Phase = Phase.RUNNING) -> HostReported:
    reports = tuple(JobReport(job=JobId(job), epoch=0, phase=phase, gpu_s=gpu_s) for job, gpu_s in jobs)
    return HostReported(now_s=now_s, host=H1, reports=reports)


def started(config: Config, quantum_s: float) -> Journalled:
    """With three jobs that run."""
    config = Config(file=config.file, state_dir=config.state_dir, socket=config.socket, quantum_s=quantum_s)
    here = Journalled(config)
    specs = tuple(JobSpec(name=f"j{i}", command=("true",)) for i in range(3))
    here.write(0.0, UserSet(now_s=0.0, name=ANN), HostJoined(now_s=0.0, host=HOST, reports=()))
    here.write(10.0, JobsSubmitted(now_s=10.0, user=ANN, specs=specs))
    here.write(20.0, says(20.0, (1, 0.0), (2, 0.0), (3, 0.0)))
    return here


def written(batch: Batch) -> Sequence[tuple[int, float]]:
    return sorted((row.id, row.gpu_s) for row in batch.jobs)


def test_counters_are_written_once_they_have_waited_and_not_sooner(config: Config) -> None:
    here = started(config, quantum_s=60.0)
    wait_s = COUNTERS_S - FLUSH_S
    assert written(here.write(21.0, says(21.0, (1, 1.0)))) == []
    assert written(here.write(22.0, says(22.0, (1, 2.0), (2, 2.0)))) == []
    assert written(here.write(21.0 + wait_s)) == [(1, 2.0)], "as it is by now"
    assert written(here.write(22.0 + wait_s)) == [(2, 2.0)]
    assert not here.mind.unwritten


def test_a_change_takes_the_jobs_own_counters_along_and_nobody_elses(config: Config) -> None:
    here = started(config, quantum_s=60.0)
    here.write(21.0, says(21.0, (1, 1.0), (2, 1.0)))
    batch = here.write(
        22.0, says(22.0, (1, 2.0)), says(22.0, (1, 2.5), phase=Phase.HELD), says(22.0, (3, 2.0))
    )
    assert written(batch) == [(1, 2.5)]
    assert written(here.write(23.0, says(23.0, (1, 3.0), (2, 3.0), phase=Phase.EXITED))) == [
        (1, 3.0),
        (2, 3.0),
    ]


def test_counters_that_follow_a_change_within_one_batch_are_written_with_it(config: Config) -> None:
    here = started(config, quantum_s=60.0)
    batch = here.write(22.0, says(22.0, (1, 2.0), phase=Phase.HELD), says(22.0, (1, 2.5), phase=Phase.HELD))
    assert written(batch) == [(1, 2.5)]
    assert not here.mind.unwritten


def test_the_last_batch_has_all_counters(config: Config) -> None:
    here = started(config, quantum_s=60.0)
    here.write(21.0, says(21.0, (1, 1.0), (2, 1.0), (3, 1.0)))
    assert written(here.write(21.0, last=True)) == [(1, 1.0), (2, 1.0), (3, 1.0)]


def test_where_quanta_are_short_counters_wait_for_the_next_commit_only(config: Config) -> None:
    here = started(config, quantum_s=12.0)
    assert written(here.write(21.0, says(21.0, (1, 1.0)))) == [(1, 1.0)]

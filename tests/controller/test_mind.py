"""What of the mind goes into the journal, and when: changes at once, counters a little later, totals with the rows they are charged from."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from hs_controller import views
from hs_controller.config import Config
from hs_controller.meters import Meters
from hs_controller.mind import COUNTERS_S, FLUSH_S, Draft, Mind
from hs_controller.pieces import Pieces
from hs_controller.rows import Batch, Loaded, Usage
from hs_controller.tables import COUNTED_BEFORE, FINE, usage_doc
from hs_core.events.cluster import (
    ClusterEvent,
    HostJoined,
    HostLeft,
    HostReported,
    JobsSubmitted,
    PolicyAnswered,
    QuantumEnded,
    UserSet,
)
from hs_core.model import Gpu, Host, JobSpec, OnPartition
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


NOTHING = Loaded(
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


class Journalled:
    """A mind, and what each moment's batch would write."""

    def __init__(self, config: Config, loaded: Loaded = NOTHING, now_s: float = 0.0) -> None:
        self.mind = Mind(loaded, config, PLAIN, now_s, meters=Meters())
        self.kept = loaded  # what is in the journal
        self.gpu_s: dict[JobId, float] = {}  # as the journal has it
        self.used_s = 0.0

    def write(self, now_s: float, *events: ClusterEvent, last: bool = False) -> Batch:
        draft = Draft()
        for event in events:
            self.mind.handle(event, draft)
            if (question := draft.question) is not None:
                draft.question = None
                answered = PolicyAnswered(now_s=event.now_s, question=question, answer=question.answer())
                self.mind.handle(answered, draft)
        batch = self.mind.batch(draft, now_s, last=last)
        self.gpu_s |= {row.id: row.gpu_s for row in batch.jobs}
        for usage in batch.usage.values():
            self.used_s = usage.gpu_s
        assert self.used_s == pytest.approx(sum(self.gpu_s.values())), "totals are those of the rows"
        kept = self.kept
        self.kept = replace(
            kept,
            jobs=tuple(({row.id: row for row in kept.jobs} | {row.id: row for row in batch.jobs}).values()),
            users=batch.users or kept.users,
            hosts=batch.hosts or kept.hosts,
            meta=kept.meta | batch.meta,
            usage=kept.usage | batch.usage,
            samples=(*kept.samples, *(sample for sample in batch.samples if sample.tier == FINE)),
        )
        return batch

    def received(self, now_s: float) -> float:
        return self.mind.ledger.received_gpus((ANN, "V100"), 60.0, now_s)


def says(now_s: float, *jobs: tuple[int, float], phase: Phase = Phase.RUNNING) -> HostReported:
    reports = tuple(JobReport(job=JobId(job), epoch=0, phase=phase, gpu_s=gpu_s) for job, gpu_s in jobs)
    return HostReported(now_s=now_s, host=H1, reports=reports)


def started(config: Config, quantum_s: float, **spec: OnPartition) -> Journalled:
    """With three jobs that run."""
    config = Config(file=config.file, state_dir=config.state_dir, socket=config.socket, quantum_s=quantum_s)
    here = Journalled(config)
    specs = tuple(JobSpec(name=f"j{i}", command=("true",), **spec) for i in range(3))
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


def running(config: Config, until_s: int, **spec: OnPartition) -> Journalled:
    """Three jobs have a GPU each from 20 on."""
    here = started(config, quantum_s=60.0, **spec)
    for now_s in range(21, until_s + 1):
        here.write(float(now_s), says(now_s, *((job, now_s - 20.0) for job in (1, 2, 3))))
    return here


def back(now_s: float, **more: float) -> HostJoined:
    """Their server is there again: they have gone on all the while."""
    told = tuple(
        JobReport(job=JobId(job), epoch=0, phase=Phase.RUNNING, gpu_s=now_s - 20.0, **more)
        for job in (1, 2, 3)
    )
    return HostJoined(now_s=now_s, host=HOST, reports=told)


def test_what_a_server_that_was_away_tells_at_once_is_not_more_gpus_than_there_are(config: Config) -> None:
    here = running(config, until_s=100)
    assert here.received(100.0) == pytest.approx(3.0, rel=0.1)
    here.write(100.0, HostLeft(now_s=100.0, host=H1))
    for now_s in range(110, 1000, 10):  # others' commits
        here.write(float(now_s), QuantumEnded(now_s=float(now_s)))
    assert here.received(990.0) == 0.0, "nothing is known of it"
    here.write(1000.0, back(1000.0))
    assert here.received(1000.0) == pytest.approx(3.0, rel=0.1)
    here.write(1010.0, says(1010.0, *((job, 990.0) for job in (1, 2, 3))))
    here.write(1020.0)
    assert here.received(1020.0) == pytest.approx(2.5, rel=0.1)


def test_nor_is_what_it_tells_in_last_words_of_jobs_that_were_given_up(config: Config) -> None:
    here = running(config, until_s=100, on_partition=OnPartition.FENCE)
    here.write(100.0, HostLeft(now_s=100.0, host=H1))
    for now_s in range(110, 1000, 10):
        here.write(float(now_s), QuantumEnded(now_s=float(now_s)))
    given_up = here.mind.machine.find(JobId(1))
    assert given_up is not None
    assert given_up.epoch > 0
    told = back(1000.0)
    last_words = tuple(replace(report, phase=Phase.EXITED) for report in told.reports)
    here.write(1000.0, replace(told, reports=(), last_words=last_words))
    assert here.mind.ledger.totals[ANN, "V100"].gpu_s == pytest.approx(3 * 980.0), "it is charged"
    assert here.received(1000.0) == pytest.approx(3.0, rel=0.1)


@pytest.mark.parametrize("restored", [False, True])
def test_nor_is_what_was_received_while_the_controller_was_away_or_since_a_backup_was_made(
    config: Config, *, restored: bool
) -> None:
    kept = running(config, until_s=100).kept
    meta = kept.meta | ({"restored": True, "first_epoch": 1000} if restored else {})
    here = Journalled(config, replace(kept, term=2, meta=meta), now_s=4000.0)
    assert here.received(4000.0) == 0.0
    here.used_s, here.gpu_s = 240.0, {JobId(job): 80.0 for job in (1, 2, 3)}
    for now_s in (4001.0, 4002.0, 4003.0):  # its first commits, before any server is there
        here.write(now_s, UserSet(now_s=now_s, name=ANN, tickets=now_s))
    here.write(4010.0, back(4010.0))
    assert here.received(4010.0) == pytest.approx(3.0, rel=0.1)
    assert here.mind.ledger.totals[ANN, "V100"].gpu_s == pytest.approx(3 * 3990.0), "and all of it is charged"


def test_of_an_account_of_which_no_samples_are_kept_nothing_was_received_lately(config: Config) -> None:
    loaded = replace(NOTHING, usage={(ANN, "V100"): Usage(gpu_s=1e6)})
    assert Journalled(config, loaded, now_s=4000.0).received(4060.0) == 0.0


def test_of_a_backup_that_was_put_back_prometheus_is_told_once_what_was_lost_and_received(
    config: Config,
) -> None:
    """Between the copy and its return it was told by the controller before."""
    kept = running(config, until_s=100).kept
    then = {COUNTED_BEFORE: usage_doc(kept.usage), "restored": True, "first_epoch": 1000}
    here = Journalled(config, replace(kept, term=2, meta=kept.meta | then), now_s=4000.0)
    here.used_s, here.gpu_s = 240.0, {JobId(job): 80.0 for job in (1, 2, 3)}
    account = (ANN, "V100")

    def counted(mind: Mind) -> Usage:
        return mind.ledger.totals[account] - mind.counted_before[account]

    assert counted(here.mind) == Usage()
    here.write(4010.0, back(4010.0, lost_gpu_s=900.0))
    assert counted(here.mind) == Usage()
    assert here.mind.ledger.totals[account].lost_gpu_s == 2700.0
    later = JobReport(job=JobId(1), epoch=0, phase=Phase.HELD, gpu_s=4000.0, lost_gpu_s=905.0)
    here.write(4020.0, HostReported(now_s=4020.0, host=H1, reports=(later,)))
    assert (counted(here.mind).gpu_s, counted(here.mind).lost_gpu_s) == (pytest.approx(10.0), 5.0)
    again = Mind(here.kept, config, PLAIN, 4030.0, meters=Meters())
    assert counted(again) == counted(here.mind), "it survives the controller"


def test_while_the_journal_cannot_be_written_who_received_what_is_as_it_was_written_last(
    config: Config,
) -> None:
    """Jobs go on: it does not sink to nothing."""
    here = Journalled(config, running(config, until_s=100).kept, now_s=4000.0)
    shown = views.shares(here.mind, 60.0, 4000.0, Pieces())
    assert [share.received_gpus for share in asyncio.run(shown).shares] == [0.0]
    here.mind.machine.look_on([H1])
    reply = asyncio.run(views.shares(here.mind, 60.0, 4000.0, Pieces()))
    assert reply.read_only
    assert [share.received_gpus for share in reply.shares] == [pytest.approx(3.0, rel=0.1)]
    assert [(pool.gpus, pool.away) for pool in reply.pools] == [(4, 0)]

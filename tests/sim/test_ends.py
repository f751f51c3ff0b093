"""Depth quanta: when it is decided about jobs that have ended."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from hs_core.names import UserName
from hs_core.policies import find
from hs_core.policy import Memory, Snapshot, Verdict
from hs_sim.cluster import parse_cluster
from hs_sim.metrics import summarize
from hs_sim.model import Experiment, SimJob, Workload
from hs_sim.quanta import engine, patience, run_quanta
from hs_sim.quanta.patience import ENDED_JOBS, EVENED_JOBS, IDLE_PART, MANY_JOBS, Patience

ALICE = UserName("alice")


@pytest.mark.parametrize(("name", "at_once"), [("gandiva-fair", False), ("las", True)])
def test_gpus_of_who_ended_are_used_at_once_and_decided_about_when_the_policy_says(
    name: str, at_once: bool
) -> None:
    """Four jobs on the one server; the first ends in the middle of a quantum, and the last has its GPU from then on."""
    lengths = [90.0, 600.0, 600.0, 600.0, 600.0]
    jobs = tuple(
        SimJob(id=at, user=ALICE, arrival_s=0.1 * at, steps=round(10 * length_s), job_class="c", gpus=1)
        for at, length_s in enumerate(lengths, start=1)
    )
    load = Workload(name="ends", jobs=jobs, tickets={ALICE: 100.0}, rates={("c", "V100"): 10.0})
    policy = find(name)
    asked: list[float] = []

    def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
        asked.append(snapshot.now_s)
        return policy.decide(snapshot, memory)

    result = run_quanta(
        Experiment(cluster=parse_cluster("v100:4"), workload=load), policy=replace(policy, decide=decide)
    )
    first = min(job.ended_s or 0.0 for job in result.jobs)
    assert first % 60 > 1, "in the middle of a quantum"
    assert (first in asked) is at_once
    edge = 60.0 * (first // 60 + 1)
    assert at_once or edge in asked
    (there,) = [sample for sample in result.samples if sample.at_s == edge]
    assert sum(there.gpus.values()) == pytest.approx(4.0, abs=0.01), "no GPU idled until the edge"


def test_who_has_not_trained_yet_has_not_started() -> None:
    """A process comes up in 10 s: on GPUs of its own when the run ends, and on an idle one until an edge gives it to a gang of two."""
    lengths = {1: 1_000.0, 2: 1_000.0, 3: 100.0}
    gpus, arrivals = {1: 1, 2: 2, 3: 1}, {1: 0.0, 2: 0.0, 3: 55.0}
    jobs = tuple(
        SimJob(id=at, user=UserName(f"u{at}"), arrival_s=arrivals[at], steps=round(10 * length_s), job_class="c", gpus=gpus[at])
        for at, length_s in lengths.items()
    )  # fmt: skip
    load = Workload(
        name="starts", jobs=jobs, tickets={job.user: 100.0 for job in jobs}, rates={("c", "V100"): 10.0}
    )
    asked = Experiment(cluster=parse_cluster("v100:2@2"), workload=load)
    short = run_quanta(replace(asked, until_s=3.0))
    assert [job.started_s for job in short.jobs] == [None] * 3
    assert summarize(short).starved == 3 - 1
    for until_s in range(60, 600, 5):
        *_, last = run_quanta(replace(asked, until_s=float(until_s))).jobs
        assert (last.started_s is not None) == (last.steps_done > 0), until_s


def asked_quanta(lengths: list[float], monkeypatch: pytest.MonkeyPatch, evened: int = 10) -> list[Snapshot]:
    """What `gandiva-fair` was asked about jobs of such lengths on 16 GPUs, as among very many: for each ten live ones an end waits for a quantum more,
    and for each `evened` if it leaves nothing idle."""
    monkeypatch.setattr(engine, "PROMPT_JOBS", 0)
    monkeypatch.setattr(patience, "ENDED_JOBS", 10)
    monkeypatch.setattr(patience, "MANY_JOBS", 0)
    monkeypatch.setattr(patience, "EVENED_JOBS", evened)
    jobs = tuple(
        SimJob(id=at, user=ALICE, arrival_s=0.0, steps=round(10 * length_s), job_class="c", gpus=1)
        for at, length_s in enumerate(lengths, start=1)
    )
    load = Workload(name="ends", jobs=jobs, tickets={ALICE: 100.0}, rates={("c", "V100"): 10.0})
    policy = find("gandiva-fair")
    asked: list[Snapshot] = []

    def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
        asked.append(snapshot)
        return policy.decide(snapshot, memory)

    experiment = Experiment(
        cluster=parse_cluster("v100:16"), workload=load, known_rates=True, until_s=40 * 60.0
    )
    run_quanta(experiment, policy=replace(policy, decide=decide))
    return asked


def test_among_very_many_jobs_ends_wait_for_a_few_quanta(monkeypatch: pytest.MonkeyPatch) -> None:
    """In every quantum some end; 40 and more go on."""
    asked = asked_quanta([60.0 * (1 + at % 30) / 4 for at in range(60)] + [1e6] * 40, monkeypatch)
    settled = [snapshot.quantum for snapshot in asked if snapshot.quantum > 5]
    gaps = [later - before for before, later in itertools.pairwise(settled)]
    assert min(gaps) >= 4


def test_ends_that_leave_nothing_idle_wait_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [60.0 * (1 + at % 30) / 4 for at in range(60)] + [1e6] * 40
    few, many = (asked_quanta(lengths, monkeypatch, evened) for evened in (10, 3))
    assert len(many) < len(few) / 2


def test_who_waits_for_ends_goes_by_what_is_idle_and_who_is_there() -> None:
    servers = SimpleNamespace(gpus=np.array([4 * IDLE_PART]))
    fleet = SimpleNamespace(servers=servers, live=range(2 * ENDED_JOBS))
    since = SimpleNamespace(users_left=False)
    waits = Patience(fleet, since)  # type: ignore[arg-type]
    waits.decided(100)
    longest = (2 * ENDED_JOBS - MANY_JOBS) // EVENED_JOBS
    some = 4 * IDLE_PART - 3  # GPUs that are busy: three nobody wants
    for _ in range(2):
        assert [waits.ends(100 + age, some) for age in (1, 2, longest - 1, longest)] == [
            True,
            True,
            True,
            False,
        ]
        assert waits.ends(105, some - 4)
        assert not waits.ends(105, some - 5)
        assert waits.ends(101, some - 5)
        since.users_left = True
        assert [waits.ends(100 + age, some) for age in (1, 2)] == [True, False]
        since.users_left = False
        waits.decided(100)


def test_a_decision_may_make_the_moves_of_the_quanta_that_went_on_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = asked_quanta([1e6] * 16, monkeypatch)
    first, *others = asked
    assert first.migrations_left == 20
    assert all(snapshot.migrations_left <= 4 * 15 for snapshot in others)
    assert max(snapshot.migrations_left for snapshot in others) == 4 * 15, "four a quantum"

"""The baselines: what each is for, and the lotteries' row of table 2."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import sqrt

import pytest

from hs_core.model import MoveReason
from hs_core.names import HostName, JobId
from hs_core.policies import find
from hs_core.policy import JobFacts, Memory, Policy, Snapshot, Verdict

from .worlds import TABLE_2, after, having, homes_of, host, job, snapshot  # noqa: TID252 — tests are no package on the path

FIFO, LAS, LOTTERY, GANG_LOTTERY = (find(name) for name in ("fifo", "las", "lottery", "gang-lottery"))
SJF, SRTF, SRSF, TIRESIAS, YARN_CS = (find(name) for name in ("sjf", "srtf", "srsf", "tiresias", "yarn-cs"))


def turns(policy: Policy, asked: Snapshot, quanta: int) -> Iterator[tuple[Snapshot, Verdict, list[JobId]]]:
    memory: Memory = {}
    for _ in range(quanta):
        verdict = policy.decide(asked, memory)
        memory = verdict.memory
        ran = {name: list(turn.gangs) for name, turn in verdict.plan.turns.items()}
        yield asked, verdict, sorted(job for jobs in ran.values() for job in jobs)
        asked = after(asked, verdict, ran)


def shares(policy: Policy, quanta: int, seed: int) -> dict[int, float]:
    ran = Counter(job for _, _, jobs in turns(policy, replace(TABLE_2, seed=seed), quanta) for job in jobs)
    return {int(job.id): ran[job.id] / quanta for job in TABLE_2.jobs}


# --- fifo ---------------------------------------------------------------------------------------------------------


def test_fifo_the_head_of_the_line_blocks() -> None:
    asked = snapshot([host("h")], [job(1, gang=2), job(2, gang=4), job(3, gang=1)])
    verdict = FIFO.decide(asked, {})
    assert verdict.plan.turns[HostName("h")].gangs == (1,)
    assert verdict.why == {
        2: "first in line: waits until 4 GPUs on one server are free",
        3: "job 2 is ahead of it and waits for 4 GPUs on one server",
    }


def test_fifo_waits_for_one_gpu_in_the_singular() -> None:
    asked = snapshot([host("h")], [job(1, gang=4), job(2, gang=1), job(3, gang=1)])
    assert FIFO.decide(asked, {}).why == {
        2: "first in line: waits until 1 GPU on one server is free",
        3: "job 2 is ahead of it and waits for 1 GPU on one server",
    }


def test_fifo_what_can_never_run_does_not_block() -> None:
    asked = snapshot([host("h")], [job(1, gang=8), job(2, gang=1)])
    verdict = FIFO.decide(asked, {})
    assert verdict.plan.turns[HostName("h")].gangs == (2,)
    assert "asks for 8 GPUs" in verdict.why[JobId(1)]


def test_fifo_a_running_job_keeps_its_gpus_to_its_end() -> None:
    running = job(5, gang=3, host=HostName("h"), started=True, running=True)
    verdict = FIFO.decide(snapshot([host("h")], [job(1, gang=4), running]), {})
    assert verdict.plan.turns[HostName("h")].gangs == (5,)


@pytest.mark.parametrize("healthy", [4, 1])
def test_fifo_one_without_a_process_goes_where_there_is_room_and_holds_up_nobody(healthy: int) -> None:
    """Its home was given to it before it was paused, and to others since; or has too few GPUs in health."""
    comes = job(1, gang=2, host=HostName("h"), movable=True)
    running = job(2, gang=healthy, host=HostName("h"), started=True, running=True)
    jobs = [comes, running, job(3, gang=2)]
    verdict = FIFO.decide(snapshot([host("h", healthy), host("i")], jobs), {})
    assert homes_of(verdict) == {1: "i", 2: "h", 3: "i"}
    assert not verdict.plan.moves
    alone = FIFO.decide(snapshot([host("h", healthy)], jobs), {})
    assert homes_of(alone)[JobId(1)] == "h"
    assert alone.plan.turns[HostName("h")].gangs == (2,)


def test_fifo_packs_the_fullest_server_of_the_newest_pool() -> None:
    hosts = [host("a"), host("b"), host("k", 8, "K80")]
    running = job(1, gang=2, host=HostName("b"), started=True, running=True)
    verdict = FIFO.decide(snapshot(hosts, [running, job(2, gang=2), job(3, gang=4), job(4, gang=1)]), {})
    assert homes_of(verdict) == {1: "b", 2: "b", 3: "a", 4: "k"}


def test_fifo_takes_over_jobs_that_were_time_sliced() -> None:
    jobs = [job(at, gang=2, host=HostName("h"), started=True, running=at in (2, 3)) for at in range(1, 5)]
    verdict = FIFO.decide(snapshot([host("h"), host("i")], [*jobs, job(9, gang=1)]), {})
    assert verdict.plan.turns[HostName("h")].gangs == (2, 3)
    assert homes_of(verdict)[JobId(1)] == "h"
    assert "first in line" in verdict.why[JobId(1)]
    assert JobId(9) not in verdict.plan.homes


# --- las ----------------------------------------------------------------------------------------------------------


def test_las_runs_who_had_least_and_backfills() -> None:
    jobs = [
        job(1, gang=2, attained_gpu_s=900.0),
        job(2, gang=3, attained_gpu_s=100.0),
        job(3, gang=1, attained_gpu_s=500.0),
    ]
    verdict = LAS.decide(snapshot([host("h")], jobs), {})
    assert verdict.plan.turns[HostName("h")].gangs == (2, 3)
    assert "it had 900 GPU-seconds" in verdict.why[JobId(1)]


def test_las_preempts_for_a_newcomer() -> None:
    old = job(1, gang=4, host=HostName("h"), started=True, running=True, attained_gpu_s=5_000.0)
    verdict = LAS.decide(snapshot([host("h")], [old, job(2, gang=1)]), {})
    assert verdict.plan.turns[HostName("h")].gangs == (2,)
    assert homes_of(verdict)[old.id] == "h"


def test_las_gives_equal_jobs_equal_service_without_changing_every_quantum() -> None:
    asked = snapshot([host("h", 1)], [job(1, host=HostName("h")), job(2, host=HostName("h"))])
    ran = [jobs for _, _, jobs in turns(LAS, asked, 100)]
    changes = sum(one != other for one, other in pairwise(ran))
    assert abs(ran.count([JobId(1)]) - ran.count([JobId(2)])) <= 2
    assert changes <= 50


# --- lotteries ----------------------------------------------------------------------------------------------------

INTERVALS = 100
PAPER_LOTTERY = {0: 0.718, 1: 0.718, 2: 0.367, 3: 0.367, 4: 0.124, 5: 0.114}
PAPER_GANG = {0: 0.66, 1: 0.665, 2: 0.46, 3: 0.24, 4: 0.20, 5: 0.12}
# With weights 4:2:1 a 4-GPU job runs only if it is drawn first (1 in 14); two 2-GPU jobs run together only if both come before any
# 1-GPU job (1 in 15 of the rest); else both 1-GPU jobs run beside one of them.
EXPECTED_LOTTERY = {0: 0.8, 1: 0.8, 2: 16 / 35, 3: 16 / 35, 4: 1 / 14, 5: 1 / 14}
EXPECTED_GANG = {0: 2 / 3, 1: 2 / 3, 2: 1 / 3, 3: 1 / 3, 4: 1 / 6, 5: 1 / 6}


def sampling_error(share: float, quanta: int) -> float:
    return sqrt(share * (1 - share) / quanta)


def test_the_lottery_with_backfilling_comes_to_what_its_odds_say() -> None:
    got = shares(LOTTERY, 3_000, seed=11)
    for at, share in EXPECTED_LOTTERY.items():
        assert got[at] == pytest.approx(share, abs=4 * sampling_error(share, 3_000))


def test_the_gang_lottery_is_fair_in_the_long_run() -> None:
    # Quanta hang together through the waiting queue, so the tolerance is stated: 3 of 100 quanta.
    got = shares(GANG_LOTTERY, 3_000, seed=11)
    for at, share in EXPECTED_GANG.items():
        assert got[at] == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize("policy", [LOTTERY, GANG_LOTTERY], ids=lambda policy: policy.name)
@pytest.mark.parametrize("seed", range(20))
def test_nobody_loses_within_a_quantum_what_it_won_in_a_lottery(policy: Policy, seed: int) -> None:
    """Where jobs live, and who else is here, is another from one moment to the next, and so is what draws are by."""
    jobs = [job(at, "ABC"[at % 3], gang) for at, gang in enumerate([1, 2, 4, 1, 2, 4])]
    tickets = dict.fromkeys("ABCD", Fraction(100))
    asked = snapshot([host("h"), host("i", 2, "K80")], jobs, seed=seed)
    asked = replace(asked, tickets=tickets)
    first = policy.decide(asked, {})
    won = {name: list(turn.gangs) for name, turn in first.plan.turns.items()}
    then = after(asked, first, won, quanta=0)
    again = policy.decide(then, first.memory)
    assert again.plan.turns == first.plan.turns
    assert again.memory == first.memory
    assert policy.decide(having(then, [*then.jobs, job(9, "D")]), first.memory).plan.turns == first.plan.turns


def test_gpus_that_come_free_within_a_quantum_are_drawn_for() -> None:
    jobs = [job(at, "AB"[at % 2], gang) for at, gang in enumerate([2, 2, 2, 4])]
    asked = snapshot([host("h")], jobs)
    for policy in (LOTTERY, GANG_LOTTERY):
        first = policy.decide(asked, {})
        winners = first.plan.turns[HostName("h")].gangs
        left = having(asked, [one for one in asked.jobs if one.id != winners[0]])
        now = policy.decide(left, first.memory).plan.turns[HostName("h")].gangs
        assert set(winners[1:]) <= set(now), "who won stays"
        assert sum(one.gang for one in left.jobs if one.id in now) == 4, "what is free is used"


@pytest.mark.parametrize(
    ("policy", "paper"),
    [(LOTTERY, PAPER_LOTTERY), (GANG_LOTTERY, PAPER_GANG)],
    ids=["lottery", "gang-lottery"],
)
def test_the_papers_table_2_is_within_the_sampling_error_of_our_lotteries(
    policy: Policy, paper: dict[int, float]
) -> None:
    # The paper ran each once, for 100 intervals; we run several seeds as long. Every figure of its row must lie within three
    # standard deviations of our mean, as seen over the seeds (and not below what 100 coin tosses would give).
    runs = [shares(policy, INTERVALS, seed) for seed in range(20)]
    for at, figure in paper.items():
        mean = sum(run[at] for run in runs) / len(runs)
        seen = sqrt(sum((run[at] - mean) ** 2 for run in runs) / (len(runs) - 1))
        assert abs(figure - mean) <= 3 * max(seen, sampling_error(mean, INTERVALS))


@pytest.mark.parametrize("policy", [LOTTERY, GANG_LOTTERY], ids=lambda policy: policy.name)
def test_a_gang_that_another_policy_laid_over_two_pools_has_lots_where_it_is(policy: Policy) -> None:
    home = (HostName("k"), HostName("v"))
    gang = job(1, gang=4, nodes=2, hosts=home, started=True, movable=True)
    asked = snapshot([host("v", 4), host("k", 4, "K80")], [gang])
    verdict = policy.decide(asked, {})
    assert all(gang.id in verdict.plan.turns[name].gangs for name in home)


def test_lotteries_are_seeded() -> None:
    assert shares(LOTTERY, 50, seed=3) == shares(LOTTERY, 50, seed=3)
    assert shares(LOTTERY, 50, seed=3) != shares(LOTTERY, 50, seed=4)


def test_the_lottery_is_unfair_to_large_gangs_and_the_gang_lottery_is_not() -> None:
    assert shares(LOTTERY, 1_000, seed=5)[4] < 0.11
    assert shares(GANG_LOTTERY, 1_000, seed=5)[4] > 0.13


def test_a_winner_that_did_not_fit_comes_first_in_the_next_quantum() -> None:
    for asked, verdict, _ in turns(GANG_LOTTERY, replace(TABLE_2, seed=2), 40):
        waiting = verdict.memory["waiting"]
        if not waiting:
            continue
        follow = GANG_LOTTERY.decide(replace(asked, quantum=asked.quantum + 1), verdict.memory)
        assert waiting[0] in follow.plan.turns[HostName("h")].gangs


def test_deciding_twice_in_one_quantum_plays_the_same_lotteries() -> None:
    for asked, verdict, ran in turns(GANG_LOTTERY, replace(TABLE_2, seed=2), 20):
        again = GANG_LOTTERY.decide(asked, verdict.memory)
        assert sorted(again.plan.turns[HostName("h")].gangs) == ran
        assert again.memory == verdict.memory


def test_the_waiting_queue_is_bounded() -> None:
    jobs = [job(1, "A", 4), *(job(at, "B", 1) for at in range(2, 6))]
    asked = snapshot([host("h")], jobs, {"A": 100_000, "B": 1})
    longest = max(len(verdict.memory["waiting"]) for _, verdict, _ in turns(GANG_LOTTERY, asked, 200))
    assert longest <= 64 * len(jobs)


# --- by length ----------------------------------------------------------------------------------------------------

RATES = {("x", "V100"): 2.0, ("x", "K80"): 1.0}


def sized(at: int, steps: float, gang: int = 1, **facts: object) -> JobFacts:
    return job(at, gang=gang, steps=steps, job_class="x", **facts)


def gangs(verdict: Verdict) -> dict[str, tuple[int, ...]]:
    return {str(name): tuple(map(int, turn.gangs)) for name, turn in verdict.plan.turns.items()}


def test_srtf_goes_by_what_is_left_and_not_by_what_there_was() -> None:
    jobs = [
        sized(1, 1000.0, 2, steps_done=900.0, host=HostName("h"), started=True),
        sized(2, 500.0, 2, host=HostName("h"), started=True, running=True),
        sized(3, 300.0, 4),
    ]
    verdict = SRTF.decide(snapshot([host("h")], jobs, rates=RATES), {})
    assert gangs(verdict) == {"h": (1, 2)}
    assert verdict.why == {3: "jobs with less time left run first"}


def test_srsf_multiplies_by_gpus() -> None:
    jobs = [sized(1, 300.0, 4), sized(2, 500.0, 1), sized(3, 1100.0, 1)]
    verdict = SRSF.decide(snapshot([host("h")], jobs, rates=RATES), {})
    assert gangs(verdict) == {"h": (2, 3)}


def test_sjf_never_takes_gpus_from_who_runs() -> None:
    jobs = [
        sized(1, 9000.0, 3, host=HostName("h"), started=True, running=True),
        sized(2, 10.0, 2),
        sized(3, 20.0),
        sized(4, 15.0),
    ]
    verdict = SJF.decide(snapshot([host("h")], jobs, rates=RATES), {})
    assert gangs(verdict) == {"h": (1, 4)}


def test_what_was_never_measured_goes_first_and_what_has_no_length_last() -> None:
    new = job(9, steps=1e9, job_class="new")
    silent = job(1, job_class="x")
    verdict = SRTF.decide(snapshot([host("h", 2)], [silent, sized(2, 10.0), new], rates=RATES), {})
    assert gangs(verdict) == {"h": (2, 9)}
    assert "--steps" in verdict.why[JobId(1)]


def test_the_first_in_line_gets_the_fastest_pool_and_a_job_that_was_put_aside_moves_where_gpus_are_free() -> (
    None
):
    hosts = [host("v"), host("k", model="K80")]
    jobs = [
        sized(1, 900.0, 4, host=HostName("v"), started=True, running=True, movable=True),
        sized(2, 100.0, 4),
    ]
    asked = snapshot(hosts, jobs, rates=RATES, migrations_left=1)
    verdict = SRTF.decide(asked, {})
    assert homes_of(verdict) == {1: "k", 2: "v"}
    assert verdict.plan.moves[JobId(1)][0] is MoveReason.ROUND
    kept = SRTF.decide(replace(asked, migrations_left=0), {})
    assert homes_of(kept) == {1: "v", 2: "v"}
    assert gangs(kept)["v"] == (2,)


def test_tiresias_demotes_by_gpu_time_and_is_first_in_first_out_inside_a_queue() -> None:
    jobs = [
        job(1, gang=2, attained_gpu_s=4000.0, host=HostName("h"), started=True, running=True),
        job(2, gang=2, attained_gpu_s=3000.0),
        job(3, gang=2, attained_gpu_s=10.0),
    ]
    verdict = TIRESIAS.decide(snapshot([host("h")], jobs), {})
    assert gangs(verdict) == {"h": (2, 3)}
    assert verdict.why == {
        1: "it had 4000 GPU-seconds, so jobs with less than 3250 run first, then others with more that came earlier"
    }


def test_yarn_cs_serves_the_queue_that_uses_least_and_backfills() -> None:
    jobs = [job(1, "A", 2), job(2, "A", 2), job(3, "B", 4), job(4, "B", 1), job(5, "B", 1)]
    verdict = YARN_CS.decide(snapshot([host("h")], jobs), {})
    assert gangs(verdict) == {"h": (1, 4, 5)}, "B's first does not fit beside A's, its others pass it"
    assert verdict.why[JobId(3)] == (
        "it waits until 4 GPUs on one server are free, and those come first whose jobs use least for their tickets: B's use 2 GPUs"
    )


def test_yarn_cs_goes_by_tickets() -> None:
    jobs = [job(at, "A") for at in range(1, 5)] + [job(at, "B") for at in range(5, 9)]
    verdict = YARN_CS.decide(snapshot([host("h")], jobs, {"A": 300, "B": 100}), {})
    assert gangs(verdict) == {"h": (1, 2, 3, 5)}

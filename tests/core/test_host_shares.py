"""The bound stride gives the shares of free choice (specs: Table 2, figure 4)."""

from collections import defaultdict
from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise

import pytest
from fakejob import Ways
from hostsim import HostSim

from hs_core.names import JobId

USERS = (("A", 1), ("B", 2), ("C", 4))


def fill(sim: HostSim, each: int, *, interleaved: bool, tickets: float) -> dict[str, list[int]]:
    jobs: dict[str, list[int]] = defaultdict(list)
    pairs = (
        [(u, g) for _ in range(each) for u, g in USERS]
        if interleaved
        else [(u, g) for u, g in USERS for _ in range(each)]
    )
    for number, (user, gang) in enumerate(pairs, start=1):
        jobs[user].append(
            sim.job(
                number,
                gang,
                user=user,
                tickets=tickets,
                ways=Ways(hook_s=0.01, ready_s=0.02, hold_s=0.001, resume_s=0.001),
            )
        )
    return jobs


@pytest.mark.parametrize("interleaved", [False, True])
def test_table_2_shares_are_exact_in_every_six_quanta(interleaved: bool):
    sim = HostSim()
    jobs = fill(sim, 2, interleaved=interleaved, tickets=2 / 3)
    sim.send()
    sim.quanta(12)
    ran: list[set[int]] = []
    for _ in range(60):
        sim.run(30)
        ran.append({int(j) for j in sim.running()})
        sim.run(30)
    for start in range(len(ran) - 6):
        for user, share in (("A", 4), ("B", 2), ("C", 1)):
            for job in jobs[user]:
                assert sum(job in quantum for quantum in ran[start : start + 6]) == share, (start, user, job)


@pytest.mark.parametrize("interleaved", [False, True])
def test_figure_4_gives_each_user_a_third(interleaved: bool):
    sim = HostSim()
    jobs = fill(sim, 4, interleaved=interleaved, tickets=1 / 3)
    sim.send()
    sim.quanta(24)
    received: list[dict[str, float]] = []
    for _ in range(120):
        received.append({user: sum(sim.gpu_s(j) for j in ids) for user, ids in jobs.items()})
        sim.quanta(1)
    for start in range(len(received) - 30):
        for user in jobs:
            gpus = (received[start + 30][user] - received[start][user]) / (30 * sim.quantum_s)
            assert gpus == pytest.approx(4 / 3, rel=0.02), (start, user)
    assert not any("checkpoint" in words for _, words in sim.log)


def three_pairs(*, can_checkpoint: bool) -> list[float]:
    """Shares of the time that three jobs of 2 GPUs get on 4, equal tickets."""
    sim = HostSim()
    jobs = [
        sim.job(n, 2, user=user, ways=Ways(hold_s=0.01, resume_s=0.01, can_checkpoint=can_checkpoint))
        for n, user in enumerate("ABC", start=1)
    ]
    sim.send()
    sim.quanta(20)
    before = [sim.gpu_s(job) for job in jobs]
    sim.quanta(240)
    return [(sim.gpu_s(job) - was) / (240 * 60 * 2) for job, was in zip(jobs, before, strict=True)]


def test_jobs_that_can_move_get_equal_shares_where_blocks_do_not_divide_evenly():
    assert three_pairs(can_checkpoint=True) == pytest.approx(
        [2 / 3] * 3, rel=0.07
    )  # each move costs one of them a start


def test_jobs_that_stay_where_they_were_started_get_the_most_that_the_least_of_them_can():
    """Two of three run in each quantum, on other GPUs: bound for ever, only one pair of them can be apart. Any binding gives
    some job half of the time at the most, and one whose pairs overlap leaves GPUs idle besides."""
    shares = three_pairs(can_checkpoint=False)
    assert min(shares) == pytest.approx(1 / 2, rel=0.02)
    assert sum(shares) == pytest.approx(2.0, rel=0.02)


QUICK = Ways(hook_s=0.01, ready_s=0.02, hold_s=0.001, resume_s=0.001)


def test_a_gang_that_comes_does_not_wait_for_what_a_light_job_got_beside_others():
    """Four hours long it has had the GPU that neither of two gangs could use."""
    sim = HostSim()
    for number, (gang, tickets) in enumerate(((3, 1.0), (3, 1.0), (1, 0.1)), start=1):
        sim.job(number, gang, tickets=tickets, ways=QUICK)
    sim.send()
    sim.quanta(250)
    new = sim.job(4, 3, tickets=1.0, ways=QUICK)
    sim.send()
    sim.quanta(2)
    before = sim.gpu_s(new)
    sim.quanta(30)
    assert (sim.gpu_s(new) - before) / sim.quantum_s == pytest.approx(3 * 10, abs=3)


def test_what_a_quantum_handed_out_in_advance_is_over_all_that_begin_within_it():
    """Each that comes up is told less of a credit than the one before, or they would all be owed what the first one is."""
    sim = HostSim(1)
    sim.job(1, ways=QUICK)
    sim.send()
    sim.quanta(3)
    assert sim.machine._board.advance == 1
    for number in (2, 3):
        sim.job(number, ways=Ways(hook_s=0.01, ready_s=5.0, hold_s=0.001, resume_s=0.001))
    sim.send()
    sim.run(sim.quantum_s / 2)
    assert sim.machine._board.advance == Fraction(1, 3)


def test_a_gang_that_comes_beside_jobs_of_next_to_no_tickets_has_its_turns():
    """They had the server to themselves, and are ahead or behind by thousands of quanta of hers: neither she nor her gang, who begins in the middle
    of a quantum, has anything to do with that."""
    sim = HostSim(4)
    for number, (gpus, tickets) in enumerate(
        [(2, 2e-3), (1, 1e-3), (2, 2e-3), (1, 1e-3), (4, 1e-3), (4, 1e-6)], 1
    ):
        sim.job(number, gpus, user=f"light{number}", tickets=tickets, ways=QUICK)
    sim.send()
    sim.quanta(7)
    sim.run(20.0)
    small = sim.job(13, 1, user="her", tickets=0.95, ways=Ways(hook_s=1.0, ready_s=10.0))
    sim.send()
    sim.quanta(1)
    gang = sim.job(15, 4, user="her", tickets=3.8, ways=Ways(hook_s=5.0, ready_s=50.0))
    sim.send()
    sim.quanta(2)
    before = [sim.gpu_s(job) for job in (small, gang)]
    sim.quanta(60)
    turns = [
        (sim.gpu_s(job) - was) / sim.quantum_s / gpus
        for job, was, gpus in zip((small, gang), before, (1, 4), strict=True)
    ]
    assert turns == pytest.approx([30, 30], abs=2)


def phases(sim: HostSim, jobs: Iterable[int]) -> list[float]:
    """Where on their stride these stand, of jobs that have equal tickets."""
    queue = sim.machine._board.queue
    lags, turn = queue.passes(), 1 / sim.wanted[JobId(min(jobs))].tickets
    return sorted(float(lags[JobId(job)]) / turn % 1 for job in jobs)


def are_apart(places: list[float]) -> bool:
    """Equally far from one another, on a circle."""
    around = [*places, places[0] + 1]
    return all(b - a == pytest.approx(1 / len(places), abs=1e-6) for a, b in pairwise(around))


def sweep_beside_a_gang() -> HostSim:
    """Six jobs of one user on two GPUs, and one of two GPUs of another's; all have had turns."""
    sim = HostSim(2)
    for number in range(1, 7):
        sim.job(number, user="A", tickets=1 / 6)
    sim.job(7, 2, user="B")
    sim.send()
    sim.quanta(20.5)
    assert are_apart(phases(sim, range(1, 7)))
    return sim


def test_those_who_are_left_of_a_sweep_are_equally_far_apart_from_the_next_edge_on():
    sim = sweep_beside_a_gang()
    for number in (2, 3):
        del sim.wanted[JobId(number)]
    sim.send()
    assert not are_apart(phases(sim, (1, 4, 5, 6)))
    sim.quanta(1)
    assert are_apart(phases(sim, (1, 4, 5, 6)))


def test_who_is_still_coming_up_is_not_put_among_them():
    sim = sweep_beside_a_gang()
    sim.job(8, user="A", tickets=1 / 6, ways=Ways(ready_s=300.0))
    sim.send()
    sim.quanta(3)
    assert are_apart(phases(sim, range(1, 7)))
    sim.quanta(10)
    assert are_apart(phases(sim, (*range(1, 7), 8)))

"""Jobs go to other GPUs of their own host: where others are ahead, where tickets become even, and where GPUs stay idle."""

from itertools import pairwise

import pytest
from fakejob import Ways
from hostsim import HostSim

from hs_core.host.board import tickets_per_gpu
from hs_core.host.places import Rearrangement
from hs_core.names import GpuId, JobId

SHORT = {"hook_s": 0.01, "hold_s": 0.001, "resume_s": 0.001}


def bound(sim: HostSim) -> dict[int, list[str]]:
    """Where each job was launched, time after time."""
    found: dict[int, list[str]] = {}
    for launch in sim.ordered("launch"):
        _, job, _, gpus, *_ = launch.split()
        found.setdefault(int(job), []).append(gpus)
    return found


def test_a_job_that_shares_its_gpu_goes_to_one_whose_job_is_ahead_and_never_back_to_the_same() -> None:
    """Five jobs on four GPUs: two of them share one, and the others must give some of their time to them."""
    sim = HostSim()
    ways = Ways(hook_s=0.01, ready_s=10.0, hold_s=0.001, resume_s=0.001, can_checkpoint=True)
    jobs = [sim.job(number, ways=ways) for number in range(1, 6)]
    sim.send()
    sim.quanta(20)
    received = []
    for _ in range(200):
        received.append([sim.gpu_s(job) / sim.quantum_s for job in jobs])
        sim.quanta(1)
    for before, after in zip(received, received[40:], strict=False):
        for was, now in zip(before, after, strict=True):
            assert now - was == pytest.approx(0.8 * 40, abs=4), "over 40 quanta"
    for launches in bound(sim).values():
        assert all(one != other for one, other in pairwise(launches))
    moves = sum(len(launches) - 1 for launches in bound(sim).values())
    assert 0 < moves < 220 / 3


def test_jobs_whose_start_takes_longer_than_many_quanta_are_moved_less_often() -> None:
    def moves(quantum_s: float) -> int:
        sim = HostSim(quantum_s=quantum_s)
        ways = Ways(hook_s=0.01, ready_s=20.0, hold_s=0.001, resume_s=0.001, can_checkpoint=True)
        for number in range(1, 6):
            sim.job(number, ways=ways)
        sim.send()
        sim.quanta(200)
        return sum(len(launches) - 1 for launches in bound(sim).values())

    assert 0 < moves(2.0) < moves(60.0) / 2


def test_where_tickets_can_be_even_for_good_one_job_moves_at_once_and_then_none() -> None:
    """Four jobs are left on one GPU and two on the other: one of the four moves, though a start takes five quanta."""
    sim = HostSim(2, quantum_s=2.0)
    jobs = [sim.job(number, ways=Ways(ready_s=10.0, can_checkpoint=True, **SHORT)) for number in range(1, 9)]
    sim.send()
    sim.quanta(150)
    on_one = [job for job in jobs if bound(sim)[job] == ["1"]]
    assert len(on_one) == 4
    for job in on_one[:2]:
        sim.change(job, cancelled=True)
    sim.send()
    left = [job for job in jobs if job not in on_one[:2]]
    before = {job: sim.gpu_s(job) for job in left}
    sim.quanta(15)
    assert sum(len(bound(sim)[job]) - 1 for job in left) == 1
    sim.quanta(60)
    for job in left:  # those that had GPU 1 to themselves meanwhile have made good for it
        assert (sim.gpu_s(job) - before[job]) / 2.0 == pytest.approx(25, abs=1), (
            "of 75 quanta, on 2 GPUs, for 6"
        )
    assert sum(len(bound(sim)[job]) - 1 for job in left) == 1


def test_one_that_makes_tickets_even_goes_where_they_are_fewest_and_not_where_somebody_is_ahead_just_now() -> (
    None
):
    """Two tickets on each GPU are to be had by one move. One that went where least is due now would have to go on from there."""
    sim = HostSim(3, quantum_s=2.0)
    jobs = [
        sim.job(number, tickets=tickets, ways=Ways(ready_s=20.0, can_checkpoint=True, **SHORT))
        for number, tickets in enumerate((2.0, 2.0, 1.0, 1.0, 1.0, 1.0), start=1)
    ]
    beside_two, lone, *end = jobs[5], jobs[2], jobs[3], jobs[4]
    sim.send()
    sim.quanta(100)
    (gpu,) = bound(sim)[beside_two]
    assert gpu in ("0", "2"), "with one of those that have two tickets"
    assert {job: bound(sim)[job] for job in jobs} == dict(
        zip(jobs, (["0"], ["2"], ["1"], ["1"], ["1"], [gpu]), strict=True)
    )
    for job in end:
        sim.change(job, cancelled=True)
    sim.send()
    sim.quanta(60)
    assert bound(sim)[beside_two] == [gpu, "1"]
    before = {job: sim.gpu_s(job) for job in (jobs[0], jobs[1], lone, beside_two)}
    sim.quanta(60)
    had = [round((sim.gpu_s(job) - was) / 2.0) for job, was in before.items()]
    assert had == [60, 60, 30, 30], "of 60 quanta"
    assert sum(len(launches) - 1 for launches in bound(sim).values()) == 1


@pytest.mark.parametrize("quantum_s", [2.0, 60.0])
def test_a_gpu_that_stays_idle_is_used_after_as_long_as_two_starts_take(quantum_s: float) -> None:
    sim = HostSim(2, quantum_s=quantum_s)
    jobs = [sim.job(number, ways=Ways(ready_s=20.0, can_checkpoint=True, **SHORT)) for number in range(1, 4)]
    sim.send()
    sim.quanta(150)
    gpus = {job: bound(sim)[job][-1] for job in jobs}
    lone = next(job for job in jobs if list(gpus.values()).count(gpus[job]) == 1)
    sim.change(lone, cancelled=True)
    sim.send()
    sim.run(2 * 20.0 + 3 * quantum_s + 20.0)  # two starts, the edge after them, the job's own start
    left = [job for job in jobs if job != lone]
    before = {job: sim.gpu_s(job) for job in left}
    sim.quanta(20)
    for job in left:
        assert (sim.gpu_s(job) - before[job]) / quantum_s == pytest.approx(20, abs=0.5)


def test_who_is_behind_nobody_goes_to_a_gpu_that_has_been_idle_for_as_long_as_two_starts_take() -> None:
    """It never waits for as long as a start takes, and nobody can make room for it: a gang that cannot move has every other turn."""
    sim = HostSim(3, quantum_s=2.0)

    def job(number: int, gpus: int, tickets: float, *, can_move: bool) -> JobId:
        ways = Ways(ready_s=20.0, can_checkpoint=can_move, **SHORT)
        return sim.job(number, gpus, tickets=tickets, ways=ways)

    gang, ends = job(1, 2, 2.0, can_move=False), job(2, 1, 2.0, can_move=False)
    moves, stays = job(3, 1, 1.0, can_move=True), job(4, 1, 1.0, can_move=False)
    sim.send()
    sim.quanta(100)
    assert bound(sim) == {gang: ["0,1"], ends: ["2"], moves: ["0"], stays: ["1"]}
    sim.change(ends, cancelled=True)
    sim.send()
    sim.run(2 * 20.0)
    assert bound(sim)[moves] == ["0"]
    sim.run(3 * 2.0 + 20.0)  # the edge after them, the job's own start
    assert bound(sim)[moves] == ["0", "2"]
    before = sim.gpu_s(moves)
    sim.quanta(20)
    assert (sim.gpu_s(moves) - before) / 2.0 == pytest.approx(20, abs=0.5)


def test_gangs_that_came_to_the_same_gpus_go_apart_though_narrow_jobs_on_the_others_are_never_ahead_for_long() -> (
    None
):
    """All four pairs are on GPUs 2 and 3. Beside a pair nobody but who is on 0 and 1 can run, whatever its pass, so that it is forgiven what it has more."""
    sim = HostSim(quantum_s=2.0)
    ways = Ways(ready_s=10.0, can_checkpoint=True, **SHORT)
    numbers = iter(range(1, 9))
    singles = [sim.job(next(numbers), user="A", tickets=8.0, ways=ways) for _ in range(2)]
    pairs = [sim.job(next(numbers), 2, user="B", tickets=1.0, ways=ways) for _ in range(4)]
    sim.send()
    sim.quanta(60)
    singles += [sim.job(next(numbers), user="A", tickets=1.0, ways=ways) for _ in range(2)]
    sim.send()
    sim.quanta(20)
    assert [bound(sim)[job] for job in (*singles, *pairs)] == [["0"], ["1"], ["2"], ["3"], *[["2,3"]] * 4]

    for job in singles[:2]:
        sim.change(job, tickets=1.0)
    sim.send()
    sim.quanta(20)
    assert sorted(bound(sim)[job][-1] for job in pairs) == ["0,1", "0,1", "2,3", "2,3"]
    before = {job: sim.gpu_s(job) for job in (*singles, *pairs)}
    sim.quanta(64)
    had = [round((sim.gpu_s(job) - was) / 2.0) for job, was in before.items()]
    assert had == pytest.approx([32] * 8, abs=2), "of 64 quanta on 4 GPUs, half for each user"
    assert sum(len(launches) - 1 for launches in bound(sim).values()) == 2


USERS = "CBACBBCCCBBBBABC"
"""Whose jobs come, one after the other: of A two singles that are due all of a GPU, of B eight singles, of C six pairs."""
OF = {user: [JobId(at) for at, other in enumerate(USERS, start=1) if other == user] for user in "ABC"}
FIRST = 100  # a job that was there before all of them, and ends


def stuck(*, start_s: float = 10.0, first: bool = False) -> HostSim:
    """Both of A come to different blocks, each beside some of the pairs: whichever moves first makes it worse."""
    sim = HostSim(4)
    ways = Ways(ready_s=start_s, can_checkpoint=True, **SHORT)
    kinds = {"A": (1, 48.0), "B": (1, 6.0), "C": (2, 8.0)}
    if first:
        sim.job(FIRST, tickets=24.0, ways=ways)
        sim.send()
        sim.run(1.0)
    for number, user in enumerate(USERS, start=1):
        gpus, tickets = kinds[user]
        sim.job(number, gpus, user=user, tickets=tickets, ways=ways)
        sim.send()
        sim.run(1.0)
    if first:
        sim.quanta(1)
        sim.change(JobId(FIRST), cancelled=True)
        sim.send()
    return sim


def moves_of(sim: HostSim) -> int:
    return sum(len(launches) - 1 for launches in bound(sim).values())


@pytest.mark.parametrize(
    ("first", "block", "moves"),
    [
        pytest.param(False, {"0", "1"}, 8, id="most-stay-where-those-that-are-due-most-come-first"),
        pytest.param(True, {"2", "3"}, 11, id="most-stay-in-its-mirror-image"),
    ],
)
def test_several_change_places_where_no_single_move_would_make_gpus_more_even(
    first: bool, block: set[str], moves: int
) -> None:
    """Both of A to one block, and all pairs to the other: all have their shares."""
    sim = stuck(first=first)
    sim.quanta(60)
    assert {bound(sim)[job][-1] for job in OF["A"]} == block
    assert len({bound(sim)[job][-1] for job in OF["C"]}) == 1
    assert moves_of(sim) == moves
    before = {user: sum(map(sim.gpu_s, jobs)) for user, jobs in OF.items()}
    sim.quanta(40)
    had = {user: (sum(map(sim.gpu_s, jobs)) - before[user]) / sim.quantum_s / 40 for user, jobs in OF.items()}
    assert had == pytest.approx({"A": 2.0, "B": 1.0, "C": 1.0}, abs=0.03), "GPUs"
    assert moves_of(sim) == moves, "and then nobody moves"


def test_they_stay_where_so_many_starts_would_cost_more_than_that_is_worth() -> None:
    """A start takes six quanta. One that is moved by itself is another matter."""
    sim = stuck(start_s=360.0)
    sim.quanta(160)
    assert moves_of(sim) <= 1


def test_who_was_to_change_places_stays_once_tickets_are_others() -> None:
    sim = stuck()
    while sim.machine._board.rearrangement is None:
        assert sim.now_s < sim.start_s + 40 * sim.quantum_s, "it is not thought of"
        sim.quanta(1)
    for job in OF["A"]:
        sim.change(job, tickets=6.0)
    sim.send()
    sim.quanta(2)
    assert sim.machine._board.rearrangement is None
    assert moves_of(sim) < 4


def to_gpu_1(*, can_checkpoint: bool) -> HostSim:
    """The only job of a host, which has every turn, is to change places."""
    sim = HostSim(2)
    job = sim.job(1, ways=Ways(ready_s=10.0, can_checkpoint=can_checkpoint, **SHORT))
    sim.send()
    sim.quanta(2)
    board = sim.machine._board
    board.rearrangement = Rearrangement(
        {job: (GpuId("GPU-1"),)}, {job: tickets_per_gpu(board.jobs[job])}, until_s=sim.now_s + 300.0
    )
    sim.quanta(3)
    return sim


def test_one_of_them_that_has_every_turn_leaves_out_of_it_and_the_rearrangement_is_over() -> None:
    sim = to_gpu_1(can_checkpoint=True)
    assert bound(sim) == {1: ["0", "1"]}
    assert sim.machine._board.rearrangement is None
    assert sim.running() == {1}


def test_one_that_cannot_leave_is_not_waited_for_for_ever() -> None:
    """Else no single job would be moved any more."""
    sim = to_gpu_1(can_checkpoint=False)
    assert sim.machine._board.rearrangement is not None
    sim.quanta(3)
    assert sim.machine._board.rearrangement is None
    assert bound(sim) == {1: ["0"]}

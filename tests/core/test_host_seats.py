"""GPUs that a turn names: who is bound where, and what is moved for it."""

from fakejob import Ways
from hostsim import HostSim
from hypothesis import given, settings
from hypothesis import strategies as st

from hs_core.model import SuspendMode
from hs_core.names import JobId
from hs_core.wanted import Seat, Turn


def seats(**named: tuple[int, ...]) -> Turn:
    """`j1=(0,)`: job 1 on GPU 0."""
    made = tuple(Seat(job=JobId(int(job[1:])), gpus=gpus) for job, gpus in named.items())
    return Turn(gangs=tuple(seat.job for seat in made), local=False, seats=made)


def told(host: HostSim, new: Turn) -> None:
    host.turn = new
    host.send()


def bound(host: HostSim, job: int) -> list[int]:
    return [int(gpu.removeprefix("GPU-")) for gpu in host.machine.report(JobId(job)).gpus]


def two(*, can_checkpoint: bool = True) -> HostSim:
    """Job 1 on GPU 0, job 2 on GPU 1, one minute under way."""
    host = HostSim(gpus=4)
    for number in (1, 2):
        host.job(number, 1, user="AB"[number - 1], ways=Ways(can_checkpoint=can_checkpoint))
    told(host, seats(j1=(0,), j2=(1,)))
    host.run(60.0)
    return host


def test_a_job_is_started_on_the_gpus_that_its_turn_names() -> None:
    host = HostSim(gpus=4)
    host.job(1, 2)
    host.job(2, 1, user="B")
    told(host, seats(j1=(1, 3), j2=(2,)))
    host.run(60.0)
    assert host.running() == {1, 2}
    assert (bound(host, 1), bound(host, 2)) == ([1, 3], [2])


def test_a_part_that_starts_ahead_of_its_turn_is_bound_to_the_gpus_that_the_next_turn_names() -> None:
    """Bound to others it would leave through a checkpoint when its turn comes, and all of its gang would lose that turn."""
    host = HostSim(gpus=4)
    host.job(1, 1)
    host.job(2, 2, user="B", nodes=2, rendezvous="a:1", ways=Ways(can_checkpoint=True))
    host.start_clock([seats(j1=(0,)), seats(j1=(0,), j2=(1, 2))])
    host.run(30.0)
    assert host.phases() == {1: "running", 2: "held"}
    assert bound(host, 2) == [1, 2]
    host.run(31.0)
    assert host.running() == {1, 2}


def test_a_job_moves_to_the_gpus_named_now_and_loses_no_step() -> None:
    host = two()
    told(host, seats(j1=(3,), j2=(1,)))
    host.run(120.0)
    assert (bound(host, 1), bound(host, 2)) == ([3], [1])
    assert host.running() == {1, 2}
    assert host.machine.report(JobId(1)).lost_gpu_s == 0


def test_two_jobs_change_places_at_once() -> None:
    host = two()
    told(host, seats(j1=(1,), j2=(0,)))
    host.run(180.0)
    assert (bound(host, 1), bound(host, 2)) == ([1], [0])
    assert host.running() == {1, 2}


def test_who_cannot_write_a_checkpoint_stays_and_so_does_who_wants_its_gpu() -> None:
    host = two(can_checkpoint=False)
    told(host, seats(j1=(1,), j2=(0,)))
    host.run(180.0)
    assert (bound(host, 1), bound(host, 2)) == ([0], [1])
    assert host.running() == {1, 2}


def test_gpus_that_are_not_there_are_chosen_by_the_host() -> None:
    host = HostSim(gpus=2)
    host.job(1, 1)
    told(host, seats(j1=(7,)))
    host.run(60.0)
    assert host.running() == {1}


def test_who_is_named_for_nothing_keeps_off_the_gpus_of_others() -> None:
    host = HostSim(gpus=2)
    host.job(1, 1)
    host.job(2, 1, user="B")
    told(host, Turn(gangs=(JobId(1), JobId(2)), local=False, seats=(Seat(job=JobId(2), gpus=(0,)),)))
    host.run(60.0)
    assert (bound(host, 1), bound(host, 2)) == ([1], [0])


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_whatever_turns_name_all_of_a_turn_run_where_it_said_in_the_end(data: st.DataObject) -> None:
    host = HostSim(gpus=4)
    gangs = data.draw(st.lists(st.sampled_from([1, 1, 2]), min_size=2, max_size=5))
    for number, gang in enumerate(gangs, start=1):
        host.job(number, gang, user="ABCDE"[number - 1], ways=Ways(can_checkpoint=True))
    drawn: dict[str, tuple[int, ...]] = {}
    for _ in range(3):
        free, drawn = data.draw(st.permutations(range(4))), {}
        for number in data.draw(st.permutations(range(1, len(gangs) + 1))):
            if gangs[number - 1] <= len(free):
                drawn[f"j{number}"] = tuple(sorted(free[: gangs[number - 1]]))
                free = free[gangs[number - 1] :]
        told(host, seats(**drawn))
        host.run(data.draw(st.sampled_from([30.0, 90.0, 400.0])))
    host.run(600.0)
    assert {f"j{job}" for job in host.running()} == set(drawn)
    assert {job: tuple(bound(host, int(job[1:]))) for job in drawn} == drawn


def test_one_that_is_about_to_move_does_not_stand_in_for_one_that_cannot_have_its_gpus() -> None:
    """Job 1 is bound to two GPUs, cannot move, and needs one of them that job 4, which does not stop, has: GPUs would be idle."""
    host = HostSim(gpus=4)
    host.job(1, 2, ways=Ways())
    told(host, seats(j1=(1, 3)))
    host.run(60.0)
    for number in (2, 3):
        host.job(number, 1, ways=Ways(can_checkpoint=True))
    host.job(4, 1, mode=SuspendMode.NONE)
    told(host, seats(j2=(2,), j3=(1,), j4=(3,)))
    host.run(60.0)
    assert host.running() == {2, 3, 4}
    told(host, seats(j2=(2,), j1=(1, 3), j3=(0,)))
    host.run(120.0)
    assert bound(host, 3) == [0]
    assert host.running() == {2, 3, 4}

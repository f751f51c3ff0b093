"""Host memory: only so many processes fit beside each other; who waits and who leaves for whom."""

import pytest
from fakejob import Ways
from hostsim import GIB, HostSim

from hs_core.host import HostConfig
from hs_core.model import SuspendMode
from hs_core.names import JobId
from hs_core.reports import Phase
from hs_core.wanted import Turn

CONFIG = HostConfig(host_memory_reserve_bytes=2 * GIB)


def host(gpus: int = 1, ram_gib: int = 16, config: HostConfig = CONFIG) -> HostSim:
    return HostSim(gpus, ram_bytes=ram_gib * GIB, config=config)


def ways(host_gib: int, **more: object) -> Ways:
    return Ways(ready_s=10.0, can_checkpoint=True, host_bytes=host_gib * GIB, **more)  # type: ignore[arg-type]


def processes(sim: HostSim) -> int:
    return len(sim.processes)


def launches(sim: HostSim, job: JobId) -> int:
    return len(sim.ordered(f"launch {job} "))


def names(sim: HostSim, job: JobId, quanta: int) -> None:
    """The controller alone decides, and lets this job run."""
    sim.turn = Turn(gangs=(job,), local=False)
    sim.send()
    sim.quanta(quanta)


def note(sim: HostSim, job: JobId) -> str:
    return sim.machine.report(job).note


def test_turns_are_longer_where_each_begins_with_a_start_and_as_before_where_all_can_stand() -> None:
    """A start of ten seconds, in which the GPU idles, for a turn of a minute: a sixth would be lost."""

    def trained(memory_bytes: int) -> tuple[float, int, list[float]]:
        sim = HostSim(1)
        ways = Ways(memory_bytes=memory_bytes, ready_s=10.0, can_checkpoint=True)
        jobs = [sim.job(number, memory_bytes=memory_bytes, ways=ways) for number in (1, 2)]
        sim.send()
        sim.quanta(120)
        shares = [sim.trained(job) / (120 * sim.quantum_s) for job in jobs]
        return sum(shares), len(sim.ordered("launch")), shares

    crowded, starts, shares = trained(10 * GIB)
    assert crowded > 0.93
    assert 20 < starts < 120 / 2
    assert shares == pytest.approx([crowded / 2] * 2, abs=0.04)
    roomy, starts, shares = trained(6 * GIB)
    assert (roomy > 0.98, starts) == (True, 2)
    assert shares == pytest.approx([roomy / 2] * 2, abs=0.01)


def test_more_jobs_than_memory_holds_get_equal_shares_and_the_gpu_is_never_idle_for_long() -> None:
    sim = host()
    jobs = [sim.job(number, memory_bytes=0, ways=ways(4)) for number in range(1, 11)]
    sim.send()
    sim.quanta(40)
    before = [sim.trained(job) for job in jobs]
    most = 0
    for _ in range(200):
        sim.quanta(1)
        most = max(most, processes(sim))
    assert most <= 3, "14 GiB above the reserve, 4 each"
    assert sim.fullest_bytes <= 14 * GIB
    trained = [sim.trained(job) - was for job, was in zip(jobs, before, strict=True)]
    assert sum(trained) > 0.98 * 200 * 60
    for each in trained:
        assert each == pytest.approx(20 * 60, abs=70)


def test_who_had_its_turn_last_leaves_so_that_many_still_have_their_process_when_theirs_comes() -> None:
    """Of ten that come round one after the other and eight that fit, most turns need no start."""
    sim = host(ram_gib=2 + 8 * 4)
    jobs = [sim.job(number, ways=ways(4)) for number in range(1, 11)]
    sim.send()
    sim.quanta(20)
    before = sum(launches(sim, job) for job in jobs)
    sim.quanta(200)
    started = sum(launches(sim, job) for job in jobs) - before
    assert started < 200 / 2, "the first to leave would be those that come next: a start in every turn"


def test_with_memory_for_all_nobody_leaves() -> None:
    sim = host(2, ram_gib=64)
    jobs = [sim.job(number, ways=ways(4)) for number in range(1, 9)]
    sim.send()
    sim.quanta(60)
    assert all(launches(sim, job) == 1 for job in jobs)
    assert not sim.ordered("suspend 1 (checkpoint)")


def test_one_that_cannot_leave_keeps_its_memory_and_who_waits_for_it_says_so() -> None:
    sim = host()
    first = [sim.job(number, ways=Ways(ready_s=10.0, host_bytes=6 * GIB, work_s=600.0)) for number in (1, 2)]
    sim.send()
    sim.quanta(4)
    third = sim.job(3, ways=ways(6))
    sim.send()
    sim.quanta(4)
    assert sim.phases()[int(third)] == Phase.WAITING.value
    assert note(sim, third) == "waits for host memory of its server, of which it needs about 6.0 GiB"
    assert all(launches(sim, job) == 1 for job in first)
    sim.quanta(20)
    assert sim.phases()[int(first[0])] == Phase.EXITED.value
    assert sim.trained(third) > 60
    assert note(sim, third) == ""


def test_a_user_s_word_counts_where_nothing_was_seen_of_its_class() -> None:
    sim = host()
    sim.job(1, ways=Ways(ready_s=10.0, host_bytes=GIB))
    sim.send()
    sim.quanta(2)
    asks = sim.job(2, user="B", ways=ways(1), memory_bytes=0)
    sim.change(asks, spec=type(sim.wanted[asks].spec)(name="big", command=("train",), memory_bytes=15 * GIB))
    sim.send()
    sim.quanta(5)
    assert launches(sim, asks) == 0
    assert "needs about 15.0 GiB" in note(sim, asks)


def test_where_little_is_left_those_that_stand_leave_until_enough_is_and_who_runs_runs_on() -> None:
    sim = host(ram_gib=64)
    jobs = [sim.job(number, ways=ways(4)) for number in range(1, 7)]
    sim.send()
    sim.quanta(10)
    assert processes(sim) == 6
    trained = sum(map(sim.trained, jobs))
    sim.others_bytes = 64 * GIB - 24 * GIB - GIB // 2
    sim.run(10.0)
    assert processes(sim) == 5
    sim.others_bytes += 8 * GIB
    sim.run(10.0)
    assert processes(sim) == 3
    sim.quanta(50)
    assert sum(map(sim.trained, jobs)) - trained > 0.97 * 50 * 60
    sim.others_bytes = 0
    sim.quanta(10)
    assert processes(sim) == 6


def test_the_only_process_of_a_host_is_started_however_little_is_left() -> None:
    sim = host()
    sim.others_bytes = 16 * GIB
    sim.run(5.0)
    job = sim.job(1, ways=ways(1))
    sim.send()
    sim.quanta(3)
    assert sim.trained(job) > 60


def test_one_that_needs_nearly_all_of_a_host_has_its_turns_too() -> None:
    sim = host()
    large = sim.job(1, user="B", ways=ways(12))
    sim.send()
    sim.quanta(3)
    small = [sim.job(number, ways=ways(2)) for number in (2, 3, 4)]
    sim.send()
    sim.quanta(200)
    for job in (large, *small):
        assert 0.5 * 50 * 60 < sim.trained(job) < 1.5 * 50 * 60


def test_small_ones_of_later_turns_do_not_take_what_was_freed_for_a_large_one() -> None:
    sim = host(2, ram_gib=2 + 12)
    large = sim.job(1, user="B", ways=ways(8))
    sim.send()
    sim.quanta(3)
    small = [sim.job(number, ways=ways(3)) for number in range(2, 10)]
    sim.send()
    sim.quanta(300)
    assert sim.fullest_bytes <= 14 * GIB
    share = sim.trained(large)
    assert share > 0.6 * 300 * 60 * 2 / 9
    for job in small:
        assert sim.trained(job) > 0.6 * 300 * 60 * 2 / 9


def test_gangs_that_the_controller_names_are_made_room_for_at_once() -> None:
    sim = host(ram_gib=2 + 8)
    jobs = [sim.job(number, ways=ways(4)) for number in range(1, 5)]
    for number in (*range(4), *range(4)):
        names(sim, jobs[number], 1)
        assert sim.trained(jobs[number]) > 30
    assert sim.fullest_bytes <= 8 * GIB


def test_jobs_without_a_hook_wait_for_memory_like_others() -> None:
    sim = host(2, ram_gib=2 + 4)
    plain = Ways(hooks=False, host_bytes=3 * GIB, work_s=300.0)
    first = sim.job(1, mode=SuspendMode.NONE, ways=plain)
    sim.send()
    sim.quanta(1)
    second = sim.job(2, mode=SuspendMode.NONE, ways=plain)
    sim.send()
    sim.quanta(2)
    assert sim.running() == {first}
    assert note(sim, second).endswith("needs about 3.0 GiB")
    sim.quanta(20)
    assert sim.phases() == {1: "exited", 2: "exited"}
    assert sim.fullest_bytes <= 4 * GIB


def test_what_is_known_of_memory_survives_the_agent() -> None:
    sim = host()
    jobs = [sim.job(number, memory_bytes=0, ways=ways(4)) for number in range(1, 7)]
    sim.send()
    sim.quanta(20)
    sim.kill_agent()
    sim.run(30.0)
    sim.start_agent()
    sim.quanta(30)
    assert sim.fullest_bytes <= 14 * GIB
    assert all(sim.trained(job) > 4 * 60 for job in jobs)


def test_a_gang_of_the_controller_s_turn_that_nobody_can_leave_for_lends_its_gpus_to_who_is_there() -> None:
    """The policy does not know of memory: it would name the same one for ever."""
    sim = host(ram_gib=2 + 8)
    stays = sim.job(1, ways=Ways(ready_s=10.0, host_bytes=6 * GIB, work_s=400.0))
    names(sim, stays, 2)
    named = sim.job(2, ways=ways(6))
    names(sim, named, 12)
    assert sim.phases()[int(stays)] == Phase.EXITED.value
    assert sim.trained(named) > 60
    assert sim.fullest_bytes <= 8 * GIB


def test_parts_of_gangs_leave_for_one_that_the_controller_names_again_and_again() -> None:
    sim = host(ram_gib=2 + 8)
    part = sim.job(1, nodes=2, rendezvous="a:1", ways=ways(6))
    named = sim.job(2, ways=ways(6))
    names(sim, part, 2)
    assert sim.trained(part) > 60
    names(sim, named, 8)
    assert sim.trained(named) > 60
    assert sim.ordered("suspend 1 (checkpoint)")
    assert sim.fullest_bytes <= 8 * GIB


def test_parts_of_gangs_that_the_controller_does_not_name_are_not_ahead_of_who_has_the_hosts_own_turns() -> (
    None
):
    """By their passes both come before it, and nobody says that they run."""
    sim = host(gpus=2, ram_gib=2 + 8)
    parts = [
        sim.job(1, gpus=2, nodes=2, rendezvous="a:1", ways=ways(4)),
        sim.job(2, gpus=1, nodes=2, rendezvous="a:2", ways=ways(4)),
    ]
    for part in parts:
        names(sim, part, 1)
    own = sim.job(3, gpus=2, ways=ways(8))
    sim.turn = Turn()
    sim.send()
    sim.quanta(4)
    assert sim.trained(own) > 60
    assert all(sim.ordered(f"suspend {part} (checkpoint)") for part in parts)
    assert sim.fullest_bytes <= 8 * GIB


def test_where_nobody_runs_for_long_a_job_is_started_though_others_hold_the_memory() -> None:
    """A part that cannot leave, and whose turn does not come before the other one has ended."""
    sim = host(ram_gib=2 + 8)
    part = sim.job(1, nodes=2, rendezvous="a:1", ways=Ways(ready_s=10.0, host_bytes=6 * GIB))
    names(sim, part, 2)
    named = sim.job(2, ways=ways(6))
    names(sim, named, 9)
    assert launches(sim, named) == 0
    sim.quanta(5)
    assert sim.trained(named) > 60


def test_turns_that_a_gang_has_in_between_do_not_put_that_off() -> None:
    sim = host(ram_gib=2 + 8)
    part = sim.job(1, nodes=2, rendezvous="a:1", ways=Ways(ready_s=10.0, host_bytes=6 * GIB))
    names(sim, part, 2)
    own = sim.job(2, ways=ways(6))
    for _ in range(5):
        sim.turn = Turn()  # the host's own, and nobody else is there
        sim.send()
        sim.quanta(3)
        names(sim, part, 1)
    assert sim.trained(own) > 60

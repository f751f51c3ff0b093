"""Two jobs on one GPU: what a host does when its turn says so."""

from collections.abc import Sequence

import pytest
from fakejob import Ways
from hostsim import GIB, HostSim
from hypothesis import given, settings
from hypothesis import strategies as st

from hs_core.names import JobId
from hs_core.wanted import Guest, Turn


def turn(*gangs: int, guests: Sequence[tuple[int, dict[int, int]]] = ()) -> Turn:
    """`guests`: (job, {partner: GPUs shared with it})."""
    made = tuple(
        Guest(job=JobId(job), beside=tuple(map(JobId, beside)), gpus=tuple(beside.values()))
        for job, beside in guests
    )
    return Turn(gangs=tuple(map(JobId, gangs)), local=False, guests=made)


def told(host: HostSim, new: Turn) -> None:
    host.turn = new
    host.send()


def bound(host: HostSim, job: int) -> set[int]:
    return {int(gpu.removeprefix("GPU-")) for gpu in host.machine.report(JobId(job)).gpus}


def pair(**more: object) -> HostSim:
    """Jobs 1 and 2 of two GPUs each on two GPUs, the second a guest of the first, one minute under way."""
    host = HostSim(gpus=2)
    for number in (1, 2):
        host.job(number, 2, user="AB"[number - 1], memory_bytes=6 * GIB, ways=Ways(**more))  # type: ignore[arg-type]
    told(host, turn(1, 2, guests=[(2, {1: 2})]))
    host.run(60.0)
    return host


def test_a_guest_runs_on_its_partners_gpus_at_the_same_time() -> None:
    host = pair()
    assert host.running() == {1, 2}
    assert bound(host, 1) == bound(host, 2) == {0, 1}
    assert host.trained(JobId(1)) > 50
    assert host.trained(JobId(2)) > 50
    assert host.machine.report(JobId(1)).beside == (2,)
    assert host.machine.report(JobId(2)).beside == (1,)


def test_who_shares_gpus_is_charged_for_its_part_of_them() -> None:
    host = pair()
    before = host.gpu_s(JobId(1)), host.gpu_s(JobId(2))
    host.run(100.0)
    assert host.gpu_s(JobId(1)) - before[0] == pytest.approx(100.0)
    assert host.gpu_s(JobId(2)) - before[1] == pytest.approx(100.0)


def test_who_is_left_alone_is_charged_for_all_of_its_gpus() -> None:
    host = pair()
    told(host, turn(1))
    host.run(10.0)
    assert host.running() == {1}
    assert host.machine.report(JobId(1)).beside == ()
    suspends = host.machine.report(JobId(1)).suspends
    before = host.gpu_s(JobId(1)), host.gpu_s(JobId(2))
    host.run(100.0)
    assert host.gpu_s(JobId(1)) - before[0] == pytest.approx(200.0)
    assert host.gpu_s(JobId(2)) == before[1]
    assert suspends == 0, "its partner's leaving does not disturb it"


def test_a_guest_goes_on_alone_when_its_partner_ends() -> None:
    host = HostSim(gpus=2)
    host.job(1, 2, memory_bytes=GIB, ways=Ways(work_s=90.0))
    host.job(2, 2, memory_bytes=GIB)
    told(host, turn(1, 2, guests=[(2, {1: 2})]))
    host.run(200.0)
    report = host.machine.report(JobId(2))
    assert host.running() == {2}
    assert (report.suspends, report.beside) == (0, ())
    before = host.gpu_s(JobId(2))
    host.run(50.0)
    assert host.gpu_s(JobId(2)) - before == pytest.approx(100.0)


@pytest.mark.parametrize("gone", [1, 2], ids=["partner", "guest"])
@pytest.mark.parametrize("how", ["cancelled", "paused"])
def test_who_shared_gpus_goes_on_while_the_other_takes_its_time_to_leave(gone: int, how: str) -> None:
    host, stays = pair(die_s=8.0, hold_s=8.0), JobId(3 - gone)
    before = host.trained(stays), host.gpu_s(JobId(1)) + host.gpu_s(JobId(2))
    host.change(JobId(gone), **{how: True})
    told(host, turn(stays))
    host.run(5.0)
    assert host.phases()[gone] in {"killing", "suspending"}
    assert host.running() >= {stays}
    host.run(15.0)
    report = host.machine.report(stays)
    assert host.running() == {stays}
    assert (report.suspends, report.beside) == (0, ())
    assert host.trained(stays) - before[0] == pytest.approx(20.0)
    had = host.gpu_s(JobId(1)) + host.gpu_s(JobId(2)) - before[1]
    assert had == pytest.approx(2 * 20.0), "who stays is charged for all of it once it is alone"


def test_a_third_job_comes_once_one_of_two_has_left() -> None:
    host = pair(die_s=8.0)
    host.job(3, 2, user="C", memory_bytes=GIB)
    host.change(JobId(1), cancelled=True)
    told(host, turn(2, 3, guests=[(3, {2: 2})]))
    host.run(5.0)
    assert host.phases() == {1: "killing", 2: "running", 3: "waiting"}
    host.run(60.0)
    assert host.running() == {2, 3}
    assert host.machine.report(JobId(2)).suspends == 0


def test_a_guest_that_does_not_fit_waits_and_its_partner_is_not_pushed_out() -> None:
    host = HostSim(gpus=1)
    for number in (1, 2):
        host.job(number, memory_bytes=10 * GIB, ways=Ways(can_swap=True, can_checkpoint=True))
    told(host, turn(1, 2, guests=[(2, {1: 1})]))
    host.run(120.0)
    assert host.running() == {1}
    assert host.machine.report(JobId(1)).suspends == 0
    assert "more memory than job 1 leaves" in host.machine.report(JobId(2)).note


def test_a_guest_waits_for_the_partner_whose_gpus_it_shares() -> None:
    host = HostSim(gpus=2)
    host.job(1, memory_bytes=GIB, paused=True)
    host.job(2, memory_bytes=GIB)
    told(host, turn(1, 2, guests=[(2, {1: 1})]))
    host.run(60.0)
    assert host.running() == set()
    assert "waits for GPUs that it shares with job 1" in host.machine.report(JobId(2)).note
    host.change(JobId(1), paused=False)
    host.send()
    host.run(60.0)
    assert host.running() == {1, 2}
    assert bound(host, 1) == bound(host, 2)


def test_nobody_is_started_beside_a_partner_on_a_gpu_that_went_bad() -> None:
    host = HostSim(gpus=3)
    for number in (1, 2):
        host.job(number, 2, memory_bytes=6 * GIB)
    told(host, turn(1))
    host.run(60.0)
    host.see_gpus([min(bound(host, 1))])
    told(host, turn(1, 2, guests=[(2, {1: 2})]))
    host.run(10.0)
    assert host.running() == {1}
    assert host.machine.report(JobId(2)).note == "waits for GPUs that it shares with job 1"


def test_one_that_stands_on_other_gpus_moves_beside_its_partner_through_a_checkpoint() -> None:
    host = HostSim(gpus=2)
    for number in (1, 2, 3):
        host.job(number, memory_bytes=GIB, ways=Ways(can_checkpoint=True))
    told(host, turn(1, 2))
    host.run(60.0)
    assert bound(host, 1) != bound(host, 2)
    trained = host.trained(JobId(2))
    told(host, turn(1, 2, 3, guests=[(2, {1: 1})]))
    host.quanta(4)
    assert host.running() == {1, 2, 3}
    assert bound(host, 1) == bound(host, 2)
    assert bound(host, 3).isdisjoint(bound(host, 1))
    assert host.trained(JobId(2)) > trained


def test_a_part_that_starts_ahead_of_its_turn_is_bound_beside_the_partner_that_the_next_turn_names() -> None:
    """It cannot be moved: on the idle GPU it would have no turn, and the half of its gang on another server would hold a GPU in vain."""
    host = HostSim(gpus=2)
    host.job(1, memory_bytes=GIB)
    host.job(2, memory_bytes=GIB, nodes=2, rendezvous="a:1")
    host.start_clock([turn(1), turn(1, 2, guests=[(2, {1: 1})])])
    host.run(30.0)
    assert host.phases() == {1: "running", 2: "held"}
    assert bound(host, 1) == bound(host, 2)
    host.run(60.0)
    assert host.running() == {1, 2}


def test_a_part_is_not_started_ahead_while_nobody_knows_where_its_partner_will_be() -> None:
    host = HostSim(gpus=2)
    host.job(1, memory_bytes=GIB, paused=True)
    host.job(2, memory_bytes=GIB, nodes=2, rendezvous="a:1")
    host.start_clock([turn(1), turn(1, 2, guests=[(2, {1: 1})])])
    host.run(30.0)
    assert host.phases() == {1: "waiting", 2: "waiting"}
    host.change(JobId(1), paused=False)
    host.send()
    host.run(60.0)
    assert host.running() == {1, 2}
    assert bound(host, 1) == bound(host, 2)


def test_a_guest_may_share_with_several_and_have_gpus_of_its_own() -> None:
    host = HostSim(gpus=4)
    host.job(1, memory_bytes=GIB)
    host.job(2, 2, memory_bytes=GIB)
    host.job(3, 3, memory_bytes=GIB)
    told(host, turn(1, 2, 3, guests=[(3, {1: 1, 2: 1})]))
    host.run(60.0)
    assert host.running() == {1, 2, 3}
    assert len(bound(host, 3) & bound(host, 1)) == 1
    assert len(bound(host, 3) & bound(host, 2)) == 1
    before = [host.gpu_s(JobId(job)) for job in (1, 2, 3)]
    host.run(100.0)
    had = [host.gpu_s(JobId(job)) - b for job, b in zip((1, 2, 3), before, strict=True)]
    assert had == pytest.approx([50.0, 150.0, 200.0])


def test_a_restarted_agent_knows_who_shares() -> None:
    host = pair()
    host.kill_agent()
    host.run(20.0)
    host.start_agent()
    host.run(100.0)
    assert host.running() == {1, 2}
    total = host.gpu_s(JobId(1)) + host.gpu_s(JobId(2))
    assert total <= 2 * (host.now_s - host.start_s)
    assert total >= 2 * 170.0


def test_back_to_the_local_stride_only_one_of_two_goes_on() -> None:
    host = pair()
    told(host, Turn())
    host.run(5.0)
    assert len(host.running()) == 1
    before = host.gpu_s(JobId(1)), host.gpu_s(JobId(2))
    host.quanta(20)
    had = [host.gpu_s(JobId(job)) - b for job, b in zip((1, 2), before, strict=True)]
    assert had == pytest.approx([1200.0, 1200.0], rel=0.06)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    """Of jobs 1 to 5 (gangs 1, 1, 2, 2, 1) on four GPUs: those that fit, and guests of some of them."""
    gangs = {1: 1, 2: 1, 3: 2, 4: 2, 5: 1}
    order = draw(st.permutations(list(gangs)))
    free, hosts, guests = 4, list[int](), list[tuple[int, dict[int, int]]]()
    for job in order:
        if gangs[job] <= free and draw(st.booleans()):
            free -= gangs[job]
            hosts.append(job)
        elif partners := [
            p for p in hosts if gangs[p] >= gangs[job] and p not in {q for _, b in guests for q in b}
        ]:
            guests.append((job, {partners[0]: gangs[job]}))
    return turn(*hosts, *(job for job, _ in guests), guests=guests)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(turns(), st.sampled_from([1.0, 5.0, 60.0, 130.0])), min_size=1, max_size=6),
    st.sets(st.integers(1, 5)),
)
def test_whatever_turns_are_told_no_third_job_computes_on_a_gpu_and_gpu_seconds_add_up(
    told_turns: list[tuple[Turn, float]], stuck: set[int]
) -> None:
    host = HostSim()
    for number, gpus in ((1, 1), (2, 1), (3, 2), (4, 2), (5, 1)):
        host.job(number, gpus, memory_bytes=3 * GIB, ways=Ways(can_checkpoint=number not in stuck))
    for new, seconds in told_turns:
        told(host, new)
        host.run(seconds)  # the host and its machine hold their laws after every event
    wanted = set(told_turns[-1][0].gangs) if not stuck else set()
    host.quanta(8)
    assert host.running() >= wanted
    assert sum(host.gpu_s(JobId(job)) for job in range(1, 6)) <= 4 * (host.now_s - host.start_s) + 1e-6

"""The schedulers of other papers: what each is for, on cases small enough to see the answer."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from hs_core.mechanism.rows import rows
from hs_core.mechanism.seats import Seats
from hs_core.model import Migrate
from hs_core.names import HostName, JobId
from hs_core.policies import find
from hs_core.policy import Going, HostFacts, JobFacts, Memory, Policy, Snapshot, Verdict
from hs_core.wanted import Turn

from .worlds import Run, after, having, homes_of, host, job, snapshot  # noqa: TID252 — tests are no package on the path

V, K = host("v", 1), host("k", 1, "K80")
RATES = {("fast", "V100"): 10.0, ("fast", "K80"): 1.0, ("even", "V100"): 1.0, ("even", "K80"): 1.0}

HADARS = ("hadar", "hadar-exact")


def sized(at: int, steps: float, of: str = "even", **facts: object) -> JobFacts:
    return job(at, **{"steps": steps, "job_class": of, "movable": True, **facts})


def decide(name: str, asked: Snapshot, memory: Memory | None = None) -> Verdict:
    return find(name).decide(asked, memory or {})


def gpu_quanta(policy: Policy, asked: Snapshot, quanta: int) -> dict[int, float]:
    world = Run(policy, replace(asked, migrations_left=10**6))
    for _ in range(quanta):
        before = {one.id: one for one in world.asked.jobs}
        world.step()
        world.asked = replace(
            world.asked,
            jobs=tuple(replace(one, steps_done=before[one.id].steps_done) for one in world.asked.jobs),
        )
    return {int(at): gpus for at, gpus in world.gpus.items()}


@pytest.mark.parametrize(
    "name", ["gavel-max-min", "gavel-water-filling", "gavel-makespan", "gavel-max-sum", "fft"]
)
def test_who_gains_most_from_the_fast_gpu_gets_it(name: str) -> None:
    asked = snapshot([V, K], [sized(1, 1e4, "even"), sized(2, 1e4, "fast")], rates=RATES)
    assert homes_of(decide(name, asked)) == {1: "k", 2: "v"}


def test_the_blind_one_gives_both_as_much_of_either() -> None:
    asked = snapshot([V, K], [sized(1, 1e9, "even"), sized(2, 1e9, "fast")], rates=RATES)
    world = Run(find("gavel-max-min-blind"), replace(asked, migrations_left=10**6))
    fast = 0
    for _ in range(60):
        fast += homes_of(world.step())[2] == "v"
    assert 20 <= fast <= 40


def test_gavel_max_min_gives_gpu_time_by_tickets() -> None:
    jobs = [sized(at, 1e9, user=user) for at, user in enumerate("AABB", start=1)]
    got = gpu_quanta(
        find("gavel-max-min"), snapshot([host("h", 1)], jobs, {"A": 300, "B": 100}, rates=RATES), 400
    )
    assert got[1] + got[2] == pytest.approx(300, rel=0.05)
    assert got[3] + got[4] == pytest.approx(100, rel=0.15)


def test_gavel_hierarchical_shares_among_users_and_not_among_jobs() -> None:
    jobs = [sized(1, 1e9, user="A")] + [sized(at, 1e9, user="B") for at in range(2, 6)]
    got = gpu_quanta(find("gavel-hierarchical"), snapshot([host("h", 1)], jobs, rates=RATES), 400)
    assert got[1] == pytest.approx(200, rel=0.05)


@pytest.mark.parametrize("name", ["gavel-sjf", "srtf", "srsf", "allox", "tesserae-srtf"])
def test_the_shorter_job_goes_first(name: str) -> None:
    asked = snapshot([host("h", 1)], [sized(1, 1e6), sized(2, 1e3)], rates=RATES)
    assert homes_of(decide(name, asked))[2] == "h"
    assert JobId(1) in decide(name, asked).why


@pytest.mark.parametrize("name", ["sjf", "srtf", "srsf", "sjf-bsbf", "tesserae-srtf"])
def test_a_job_is_as_long_as_it_is_where_it_may_run(name: str) -> None:
    """On V100 it would be the shorter one."""
    pinned, other = sized(1, 100.0, "fast", gpu_types=("K80",)), sized(2, 50.0, gpu_types=("K80",))
    assert homes_of(decide(name, snapshot([V, K], [pinned, other], rates=RATES))) == {2: "k"}


@pytest.mark.parametrize("name", ["srtf", "srsf", "tesserae-srtf"])
@pytest.mark.parametrize("facts", [{"migrate": Migrate.SAME_TYPE}, {"rooted": True, "movable": False}])
def test_a_job_that_cannot_leave_its_gpu_model_is_as_long_as_it_is_there(
    name: str, facts: Mapping[str, object]
) -> None:
    stays = sized(1, 100.0, "fast", host=HostName("k"), started=True, running=True, **facts)
    asked = snapshot([V, K], [stays, sized(2, 50.0, gpu_types=("K80",))], rates=RATES)
    assert decide(name, asked).plan.turns[HostName("k")].gangs == (2,)


def test_allox_waits_for_a_fast_gpu_that_will_be_free_soon() -> None:
    """Ten times as long on the free one is more than the wait."""
    runs = sized(1, 100.0, host=HostName("v"), started=True, running=True)
    slow, soon = sized(2, 1e4, "fast"), sized(3, 50.0)
    found = decide("allox", snapshot([V, K], [runs, slow, soon], rates=RATES))
    assert homes_of(found) == {1: "v", 3: "k"}
    assert found.why[JobId(2)] == "it is to run on a V100 that others use before it"
    patient = replace(runs, steps=1e9)
    assert homes_of(decide("allox", snapshot([V, K], [patient, slow], rates=RATES))) == {1: "v", 2: "k"}


def test_allox_leaves_no_class_that_was_not_measured_on_a_newer_model_beside_idle_gpus_of_that() -> None:
    here = {("even", "K80"): 1.0}
    for rates in ({}, here):
        assert homes_of(decide("allox", snapshot([K, V], [sized(1, 1e4)], rates=rates))) == {1: "v"}
    assert homes_of(
        decide("allox", snapshot([K, V], [sized(1, 1e4)], rates={**here, ("even", "V100"): 0.9}))
    ) == {1: "k"}


@pytest.mark.parametrize("name", ["sjf", "sjf-bsbf", "sjf-ffs"])
def test_who_was_measured_on_an_old_model_only_starts_on_a_newer_one_that_is_idle(name: str) -> None:
    rates = {("even", "K80"): 1.0}
    assert homes_of(decide(name, snapshot([K, V], [sized(1, 1e4)], rates=rates))) == {1: "v"}
    slower = {**rates, ("even", "V100"): 0.9}
    assert homes_of(decide(name, snapshot([K, V], [sized(1, 1e4)], rates=slower))) == {1: "k"}


def test_allox_gives_what_a_gang_found_no_room_on_to_the_next_gang() -> None:
    """Of four GPUs that are left over no three are on one server."""
    hosts = [host("a", 3), host("b", 2)]
    jobs = [sized(1, 1e3, host=HostName("a")), sized(2, 1e3), sized(3, 1e3, gang=3), sized(4, 1e3, gang=2)]
    found = decide("allox", snapshot(hosts, jobs, rates=RATES))
    assert {1, 2, 4} == homes_of(found).keys()
    assert JobId(3) in found.why


def test_allox_lets_nobody_wait_behind_one_that_can_only_run_where_others_do() -> None:
    """It was time-sliced under another policy and cannot leave its server; another one of the pool has an idle GPU."""
    long, stands = (
        sized(1, 1e6, host=HostName("h"), started=True, running=True),
        sized(2, 10.0, host=HostName("h")),
    )
    stands = replace(stands, started=True, movable=False)
    asked = snapshot([host("h", 1), host("i", 1)], [long, stands, sized(3, 1e3)], rates=RATES)
    found = decide("allox", asked)
    assert homes_of(found) == {1: "h", 2: "h", 3: "i"}
    assert found.plan.turns[HostName("i")].gangs == (3,)


def test_themis_leases_to_the_worst_off_and_takes_nothing_back_before_the_lease_ends() -> None:
    late, new = sized(1, 1e4), sized(2, 1e4, arrival_s=9_000.0)
    asked = snapshot([host("h", 1)], [new, late], rates=RATES, now_s=10_000.0)
    first = decide("themis", asked)
    assert homes_of(first) == {1: "h"}
    assert "times as long as with a fair part" in first.why[JobId(2)]
    asked = after(asked, first, {HostName("h"): [JobId(1)]})
    older = tuple(replace(one, arrival_s=-1e6) if one.id == 2 else one for one in asked.jobs)
    assert homes_of(decide("themis", having(asked, jobs=older), first.memory)) == {1: "h"}
    later = having(asked, jobs=older, now_s=asked.now_s + 1200.0)
    turn = decide("themis", later, first.memory).plan.turns[HostName("h")]
    assert turn.gangs == (2,)


def test_themis_leases_end_together_so_that_a_gang_finds_gpus_free_at_once() -> None:
    one, two, gang = sized(1, 1e5), sized(2, 1e5, arrival_s=600.0), sized(3, 1e4, gang=2, arrival_s=600.0)
    asked = snapshot([host("h", 2)], [one], {"A": 1}, rates=RATES, now_s=0.0)
    first = decide("themis", asked)
    asked = replace(having(after(asked, first, {HostName("h"): [JobId(1)]}), [one]), now_s=600.0)
    runs = replace(asked.jobs[0], hosts=(HostName("h"),), started=True)
    asked = replace(asked, jobs=(runs, two), running=frozenset({JobId(1)}))
    second = decide("themis", asked, first.memory)
    assert second.plan.turns[HostName("h")].gangs == (1, 2)
    both = tuple(replace(job, hosts=(HostName("h"),), started=True) for job in asked.jobs)
    late = replace(gang, arrival_s=-1e6)
    then = replace(asked, jobs=(*both, late), running=frozenset({JobId(1), JobId(2)}), now_s=1200.0)
    assert decide("themis", then, second.memory).plan.turns[HostName("h")].gangs == (3,)


@pytest.mark.parametrize("name", ["themis", "tesserae-ftf"])
@pytest.mark.parametrize(
    "closed",
    [host("h", accepts=False), host("h", connected=False), host("h", starts=False)],
    ids=["drained", "away", "unable to start any"],
)
def test_a_fair_part_of_the_cluster_is_one_of_the_gpus_that_jobs_can_have(
    name: str, closed: HostFacts
) -> None:
    """On half of four GPUs the gang would take twice as long as on half of eight, so it is less behind than the single job that came later."""
    gang, single = sized(1, 1000.0, gang=4), replace(sized(2, 1000.0), arrival_s=20.0)
    asked = snapshot([closed, host("i")], [gang, single], rates=RATES, now_s=100.0)
    assert decide(name, asked).plan.turns[HostName("i")].gangs == (2,)


def test_themis_says_how_late_a_gang_is_for_which_too_few_gpus_are_free() -> None:
    """On what there is, whoever has it just now: without that it would be late beyond measure, or not at all."""
    stuck = sized(1, 1e5, host=HostName("h"), started=True, running=True, sliceable=False)
    asked = snapshot([host("h", 2)], [stuck, sized(2, 1e3, gang=2)], rates=RATES, now_s=100.0)
    # It waits for a lease that ends at 1200 s, then takes 1000 s; on its half of two GPUs it runs half of the time.
    assert f"takes {(98 + 1100 + 1000) / 2000:.2f} times" in decide("themis", asked).why[JobId(2)]


def test_a_job_of_a_class_that_nobody_measured_is_as_long_as_the_median_job() -> None:
    """A thousand million of its steps may be over in a second: they do not send it behind all others."""
    short, new, long = sized(1, 2e3), sized(2, 1e9, "new"), sized(3, 5e3)
    asked = snapshot([V], [short, new, long], rates=RATES)
    table = rows(asked, Seats(asked))
    assert (table.steps_left / table.speed[:, 0]).tolist() == [2e3, 3.5e3, 5e3]


def test_finish_time_fairness_helps_who_is_late() -> None:
    late, new = sized(1, 1e4, steps_done=10.0, arrival_s=-1e5), sized(2, 1e4, arrival_s=0.0)
    for name in ("gavel-ftf", "tesserae-ftf"):
        found = decide(name, snapshot([host("h", 1)], [new, late], rates=RATES, now_s=10.0))
        assert found.plan.turns[HostName("h")].gangs == (1,), name


def test_fft_measures_a_class_first_where_there_is_most_memory() -> None:
    asked = snapshot([V, K], [sized(1, 1e4, "new"), sized(2, 1e4, "new")], rates={})
    found = decide("fft", asked)
    assert homes_of(found)[1] == "v"
    assert found.memory["policy"]["owed"].keys() == {"2"}, "it is no part of the round's program"


def test_fft_tells_the_others_apart_beside_a_job_that_was_given_steps_without_end() -> None:
    def turns(steps: float) -> Mapping[HostName, Turn]:
        jobs = [*(sized(at, 100.0 * at, "fast") for at in range(1, 6)), sized(6, steps, "fast")]
        asked = snapshot([host("v", 2), host("k", 1, "K80")], jobs, rates=RATES, now_s=600.0)
        return decide("fft", asked).plan.turns

    assert turns(1e15) == turns(1e7)


def test_fft_decides_also_where_jobs_of_a_moment_have_waited_for_very_long() -> None:
    jobs = [sized(at, steps, "fast", arrival_s=0.0) for at, steps in ((1, 1.0), (2, 5.0))]
    jobs += [sized(at, steps, "fast", arrival_s=3e6) for at, steps in ((3, 1e6), (4, 2e7))]
    rates = {("fast", "V100"): 1e3, ("fast", "K80"): 1e2}
    asked = snapshot([host("v", 1), host("k", 1, "K80")], jobs, rates=rates)
    memory: Memory = {}
    for quantum in range(12):
        found = decide("fft", replace(asked, quantum=quantum, now_s=3e6 + 60.0 * quantum), memory)
        memory = found.memory
    assert sum(len(turn.gangs) for turn in found.plan.turns.values()) == 2


def test_fft_owes_a_fair_part_of_all_gpus_also_beside_who_cannot_be_suspended() -> None:
    """Four jobs and one on 6 of 8 GPUs: each is due a fifth of the eight, more than it can use, not a fourth of the two that are left."""
    small = [sized(at, 3e4, user=f"u{at}", job_class="even") for at in (1, 2, 3, 4)]
    owed = []
    for sliceable in (True, False):
        big = sized(5, 3e5, gang=6, host=HostName("h"), started=True, running=True, sliceable=sliceable)
        asked = snapshot([host("h", 8)], [*small, big], rates=RATES, quantum_s=300.0, now_s=9000.0)
        found = decide("fft", asked)
        waits = [
            at for at in ("1", "2", "3", "4") if JobId(int(at)) not in found.plan.turns[HostName("h")].gangs
        ]
        owed += [found.memory["policy"]["next"][at] for at in waits]
    tau, age, work = 100.0, 30.0, 100.0
    assert len(owed) >= 2
    assert owed == pytest.approx([age / tau * work / tau] * len(owed), rel=1e-3)


def test_fft_owes_who_waits() -> None:
    asked = snapshot([host("h", 1)], [sized(1, 1e3), sized(2, 1e3)], rates=RATES, now_s=6000.0)
    first = decide("fft", asked)
    [runs] = first.plan.turns[HostName("h")].gangs
    waits = ({1, 2} - {runs}).pop()
    assert first.memory["policy"]["next"][str(waits)] > first.memory["policy"]["next"][str(runs)]
    again = decide("fft", replace(asked, quantum=1), first.memory)
    assert again.memory["policy"]["owed"] == first.memory["policy"]["next"]
    assert decide("fft", asked, first.memory).memory["policy"] == first.memory["policy"], (
        "charged once a round"
    )


def test_fft_owes_a_job_no_less_for_a_round_in_which_it_has_no_part() -> None:
    jobs = [sized(1, 1e3, host=HostName("h")), sized(2, 1e3), sized(3, 1e3)]
    asked = snapshot([host("h", 1), host("i", 1)], jobs, rates=RATES, now_s=6000.0)
    first = decide("fft", asked).memory
    memory = {**first, "policy": {"quantum": 0, "owed": {}, "next": {"1": 5.0, "9": 2.0}}}
    away = replace(asked, quantum=1, hosts=(host("h", 1, connected=False), host("i", 1)))
    owed = decide("fft", away, memory).memory["policy"]
    assert owed["owed"]["1"] == owed["next"]["1"] == 5.0
    assert "9" not in owed["owed"], "it has ended"


def test_fft_charges_who_really_runs() -> None:
    """Its program knows no servers: two gangs of two would use most GPUs, and one of them fits on none. A job of one GPU has what is left."""
    jobs = [sized(at, 1e3, gang=gang) for at, gang in enumerate([2, 2, 1])]
    found = decide("fft", snapshot([host("h", 3), host("i", 1)], jobs, rates=RATES, now_s=6000.0))
    assert homes_of(found) == {0: "h", 2: "h"}
    following = found.memory["policy"]["next"]
    assert following["0"] == following["2"] == 0.0 < following["1"]


def test_pop_solves_parts_and_shares_like_the_whole() -> None:
    jobs = [sized(at, 1e9) for at in range(1, 33)]
    got = gpu_quanta(find("pop"), snapshot([host("h", 8)], jobs, rates=RATES), 200)
    assert set(got) == set(range(1, 33))
    assert max(got.values()) / min(got.values()) < 1.3


@pytest.mark.parametrize("name", HADARS)
def test_hadar_gives_a_gang_what_is_left_of_two_models(name: str) -> None:
    """The paper's motivation: no model has GPUs enough, all together have (II-A: 2 V100, 3 P100, 1 K80)."""
    hosts = [host("v1", 1), host("v2", 1), host("k", 1, "K80")]
    gang = sized(1, 1e4, gang=3, nodes=3)
    found = decide(name, snapshot(hosts, [gang], rates=RATES))
    assert homes_of(found) == {1: "k+v1+v2"}
    assert all(found.plan.turns[HostName(at)].gangs == (1,) for at in ("k", "v1", "v2"))
    assert homes_of(decide("fft", snapshot(hosts, [gang], rates=RATES))) == {}


@pytest.mark.parametrize("name", HADARS)
def test_hadar_leaves_the_fast_gpu_to_whom_it_serves(name: str) -> None:
    asked = snapshot([V, K], [sized(1, 1e4, "even"), sized(2, 1e4, "fast")], rates=RATES)
    assert homes_of(decide(name, asked)) == {1: "k", 2: "v"}


def test_hadar_moves_nobody_within_a_round_and_keeps_gpus_for_who_is_on_its_way() -> None:
    runs = sized(1, 1e6, "fast", host=HostName("k"), started=True, running=True)
    asked = snapshot([V, K], [runs], rates=RATES, migrations_left=9)
    first = decide("hadar", asked)
    assert homes_of(first) == {1: "v"}
    leaves = replace(runs, movable=False, running=False)
    asked = having(asked, jobs=(leaves, sized(2, 1e6, "fast")))
    assert homes_of(decide("hadar", asked, first.memory)) == {1: "k", 2: "k"}, "the V100 is spoken for"
    stays = snapshot([V, K], [runs, sized(2, 10.0)], rates=RATES, migrations_left=9)
    kept = {"quantum": 0, "homes": {"1": ["k"]}}
    assert homes_of(decide("hadar", stays, kept)) == {1: "k", 2: "v"}
    assert homes_of(decide("hadar", replace(stays, quantum=1), kept))[1] == "v"


@pytest.mark.parametrize("name", HADARS)
def test_hadar_moves_no_more_jobs_than_the_budget_allows(name: str) -> None:
    jobs = [
        sized(at, 1e6, "fast", host=HostName(f"k{at}"), started=True, running=True, user=f"u{at}")
        for at in range(3)
    ]
    hosts = [
        host(f"{letter}{at}", 1, model) for at in range(3) for letter, model in (("v", "V100"), ("k", "K80"))
    ]
    for budget in (0, 1, 3):
        found = decide(name, snapshot(hosts, jobs, rates=RATES, migrations_left=budget))
        assert len(found.plan.moves) == budget


@pytest.mark.parametrize("name", HADARS)
def test_under_hadar_no_gpu_idles_beside_a_suspended_job_that_may_move_and_who_moved_stays(name: str) -> None:
    def at(job: int, gang: int, home: str, steps: float, *, running: bool = True) -> JobFacts:
        return sized(job, steps, gang=gang, host=HostName(home), started=True, running=running)

    wide = [at(1, 3, "h", 1e5), at(2, 3, "k", 1e5), at(3, 2, "h", 1e5, running=False)]
    small = [at(4, 1, "h", 1e2), at(5, 1, "h", 1e2, running=False)]
    asked = snapshot([host("h", 4), host("k", 4)], [*wide, *small], rates=RATES, migrations_left=99)
    world = Run(find(name), asked)
    for _ in range(8):
        before, found = world.asked, world.step()
        runs = {job for turn in found.plan.turns.values() for job in turn.gangs}
        left = {
            each.name: each.gpus
            - sum(
                one.gang for one in before.jobs if one.id in runs and found.plan.homes[one.id] == (each.name,)
            )
            for each in before.hosts
        }
        waits = [one.gang for one in before.jobs if one.id not in runs]
        assert max(left.values()) < min(waits), "somebody fits"
    moved = [job for _, job in world.moved]
    assert len(moved) == len(set(moved))


FIVE = [host("v", 1), *(host(f"k{at}", 1, "K80") for at in range(2))]
SPEEDS = {("c", "V100"): 8.0, ("c", "K80"): 2.0}


def test_hadare_has_a_lone_job_train_on_every_server_each_its_part_by_speed() -> None:
    """Once it is up on one of them: until then the others are kept for it."""
    asked = snapshot(FIVE, [sized(1, 1200.0, "c"), sized(2, 1e5, "c", user="late")], rates=SPEEDS)
    asked = having(asked, jobs=asked.jobs[:1], migrations_left=1)
    first = decide("hadare", asked)
    assert first.plan.copies == {}
    [home] = first.plan.homes.values()
    starts = replace(asked.jobs[0], hosts=home, started=True, movable=False)
    late = sized(2, 1e5, "c", user="late")
    again = decide("hadare", having(asked, jobs=(starts, late)), first.memory)
    assert (again.plan.copies, again.plan.homes) == ({}, {1: home}), "the other servers are kept for it"
    up = replace(starts, movable=True, running=True, steps_done=60.0)
    found = decide("hadare", having(asked, jobs=(up, late)), again.memory)
    assert dict(zip(found.plan.homes[JobId(1)], found.plan.copies[JobId(1)], strict=True)) == {
        "v": 760, "k0": 190, "k1": 190
    }  # fmt: skip
    assert found.plan.homes[JobId(1)][:1] == home


def test_hadare_forks_nobody_whose_length_is_not_known_or_who_may_not_move_or_has_no_average() -> None:
    jobs = [
        sized(1, 0.0, "c"),
        sized(2, 1e4, "c", migrate=Migrate.SAME_TYPE),
        sized(3, 1e4, "c", sliceable=False),
        sized(4, 1e4, "c", host=HostName("k3"), started=True, single=True),
    ]
    asked = snapshot([*FIVE, host("k3", 4, "K80")], jobs, rates=SPEEDS, migrations_left=9)
    found = decide("hadare", asked)
    assert found.plan.copies == {}
    assert all(len(home) == 1 for home in found.plan.homes.values())
    assert len(found.plan.homes) == 4
    lone = having(asked, [replace(jobs[3], single=False)])
    assert decide("hadare", lone).plan.copies, "as one that has is"


def test_hadare_has_a_gang_over_several_servers_go_where_it_is_faster() -> None:
    """Nobody forks it: on the GPUs that were left when it came it would stay to its end, beside faster ones that idle."""
    there = (HostName("k1"), HostName("k2"))
    gang = sized(1, 1e5, "fast", gang=2, nodes=2, hosts=there, started=True, running=True)
    hosts = [host("v1", 1), host("v2", 1), host("k1", 1, "K80"), host("k2", 1, "K80")]
    asked = snapshot(hosts, [gang], rates=RATES, migrations_left=9)
    found = decide("hadare", asked)
    assert homes_of(found) == {1: "v1+v2"}
    assert found.plan.moves[JobId(1)][1] == "it does 10 steps/s on V100, 1 where it is"
    for stays in (
        replace(asked, migrations_left=0),
        having(asked, [replace(gang, job_class="even")]),  # as fast as here
        having(asked, [replace(gang, migrate=Migrate.SAME_TYPE)]),
        having(
            asked, [gang, sized(2, 1e5, host=HostName("v1"), started=True, running=True, sliceable=False)]
        ),
    ):
        assert homes_of(decide("hadare", stays))[1] == "k1+k2"


def test_hadare_averages_at_the_edges_of_rounds_only() -> None:
    alone = sized(1, 1e4, "c", host=HostName("v"), started=True, running=True)
    asked = snapshot(FIVE, [alone], rates=SPEEDS, migrations_left=9)
    first = decide("hadare", asked)
    runs = replace(alone, hosts=first.plan.homes[JobId(1)], steps_done=900.0)
    assert len(runs.hosts) == 3
    asked = having(asked, jobs=(runs, sized(2, 1e4, "c")))
    again = decide("hadare", asked, first.memory)
    assert again.plan.copies == {}, "they go on with what they have"
    assert again.plan.homes == first.plan.homes, "who comes in between waits"
    later = decide("hadare", replace(asked, quantum=1), again.memory)
    assert sum(later.plan.copies[JobId(1)]) == 9100


def test_hadare_keeps_the_gpus_of_copies_that_are_averaged_where_they_are() -> None:
    """It is asked while they leave their servers for the same ones, and again when they come up there."""
    home = tuple(map(HostName, ("k0", "k1", "v")))
    copies = sized(1, 1e4, "c", hosts=home, started=True, running=True, arrival_s=1.0)
    asked = snapshot(FIVE, [copies], rates=SPEEDS, migrations_left=9)
    first = decide("hadare", asked)
    leave = replace(copies, movable=False, running=False, going=Going(hosts=home, gpus=1))
    earlier = sized(2, 1e4, "c", arrival_s=0.0)  # its GPUs were sick
    asked = having(asked, jobs=(leave, earlier))
    second = decide("hadare", asked, first.memory)
    assert homes_of(second) == {1: "k0+k1+v"}
    third = decide(
        "hadare", having(asked, jobs=(replace(copies, started=False, running=False), earlier)), second.memory
    )
    assert {name: turn.gangs for name, turn in third.plan.turns.items()} == dict.fromkeys(home, (1,))


def test_hadare_has_copies_that_are_averaged_on_all_of_their_servers_or_none() -> None:
    """Two jobs' copies come up on the same servers when one of those loses a GPU to a drain: one of the jobs waits, whole."""
    home = tuple(map(HostName, ("k0", "k1", "v")))
    jobs = [
        sized(at, 1e4, "c", hosts=home, started=True, movable=False, running=at == 1, arrival_s=float(at))
        for at in (1, 2)
    ]
    hosts = [host("v", 2), host("k0", 1, "K80"), host("k1", 2, "K80")]
    found = decide("hadare", snapshot(hosts, jobs, rates=SPEEDS, migrations_left=9))
    assert found.plan.homes == {1: home, 2: home}
    assert {name: turn.gangs for name, turn in found.plan.turns.items()} == dict.fromkeys(home, (1,))


def test_hadare_without_leave_to_move_averages_where_its_copies_are() -> None:
    asked = snapshot(FIVE, [sized(1, 1e4, "c")], rates=SPEEDS)
    home = (HostName("v"), HostName("k0"))
    runs = replace(asked.jobs[0], hosts=home, started=True, running=True, steps_done=5000.0)
    found = decide("hadare", having(asked, jobs=(runs,)))
    assert (found.plan.homes, found.plan.copies) == ({1: home}, {1: (4000, 1000)})
    found = decide("hadare", having(asked, jobs=(runs,), migrations_left=1))
    assert set(found.plan.homes[JobId(1)]) == {"v", "k0", "k1"}


POOLS = {"v": "V100", "p": "Q9", "k": "K80"}


def test_hadare_averages_copies_that_stay_also_where_others_would_move_and_may_not() -> None:
    there = tuple(map(HostName, ("v1", "v2")))
    hosts = [host(f"{name}{at}", 1, model) for name, model in POOLS.items() for at in (1, 2)]
    copies = sized(1, 1e4, "c", hosts=there, started=True, running=True, gpu_types=("V100",))
    lone = [
        sized(at, 1e4, "c", host=HostName(f"{name}1"), started=True, running=True, gpu_types=(POOLS[name],))
        for at, name in ((2, "k"), (3, "p"))
    ]
    for budget in (2, 1):
        rates = SPEEDS | {("c", "Q9"): 4.0}
        asked = snapshot(hosts, [copies, *lone], rates=rates, migrations_left=budget)
        found = decide("hadare", asked)
        assert len(found.plan.moves) == budget
        assert found.plan.homes[JobId(1)] == there
        assert found.plan.copies[JobId(1)] == (5000, 5000)


@pytest.mark.parametrize("trouble", [{"accepts": False}, {"starts": False}])
def test_hadare_lets_copies_go_on_whose_server_takes_none_while_nobody_may_move(
    trouble: dict[str, bool],
) -> None:
    home = tuple(map(HostName, ("v", "k0")))
    copies = sized(1, 1e4, "c", hosts=home, started=True, running=True, steps_done=5000.0)
    hosts = [replace(one, **trouble) if one.name == "k0" else one for one in FIVE]
    found = decide("hadare", snapshot(hosts, [copies], rates=SPEEDS))
    assert (found.plan.homes, found.plan.copies) == ({1: home}, {})
    assert all(found.plan.turns[name].gangs == (1,) for name in home)
    found = decide("hadare", snapshot(hosts, [copies], rates=SPEEDS, migrations_left=1))
    assert set(found.plan.homes[JobId(1)]) == {"v", "k1"}


def test_hadare_moves_no_more_than_the_budget_allows_with_those_of_gangs() -> None:
    """Else its plan is refused, and nothing is decided any more."""
    there = tuple(map(HostName, ("k1", "k2")))
    gang = sized(1, 1e5, "fast", gang=2, nodes=2, hosts=there, started=True, running=True)
    lone = [sized(at, 1e4, "c", host=HostName(f"p{at}"), started=True, running=True) for at in (2, 3)]
    hosts = [host(f"{name}{at}", 1, POOLS[name]) for name, at in (("v", 1), ("v", 2), ("k", 1), ("k", 2))]
    hosts += [host(f"p{at}", 1, "Q9") for at in (2, 3)]
    rates = RATES | SPEEDS | {("c", "Q9"): 0.1, ("fast", "Q9"): 0.1}
    for budget in (1, 2, 9):
        found = decide("hadare", snapshot(hosts, [gang, *lone], rates=rates, migrations_left=budget))
        assert len(found.plan.moves) == min(budget, 3)
        assert JobId(1) in found.plan.moves


def test_hadare_gives_no_copy_nothing_to_do_where_nobody_may_move() -> None:
    home = tuple(map(HostName, ("v", "k0", "k1")))
    copies = sized(1, 1e4, "c", hosts=home, started=True, running=True, steps_done=9998.0)
    found = decide("hadare", snapshot(FIVE, [copies], rates=SPEEDS))
    assert (found.plan.homes, found.plan.copies) == ({1: home}, {}), "they go on with what they have"

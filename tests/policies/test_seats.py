"""Handing out the GPUs of a round: what was chosen fits together, and as few move as can be."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import strategies as st

from hs_core.mechanism.attained import least_attained_first
from hs_core.mechanism.placing import by_arrival
from hs_core.mechanism.renaming import rename
from hs_core.mechanism.seats import Seats
from hs_core.mechanism.slots import Slots
from hs_core.model import Migrate, MoveReason
from hs_core.names import HostName, JobId
from hs_core.policies import find, srsf, srtf, tiresias
from hs_core.policy import HostFacts, JobFacts, Plan, Policy, Snapshot

from .lawful import law  # noqa: TID252
from .worlds import Run, having, host, job, of, snapshot  # noqa: TID252 — tests are no package on the path

H, J = HostName("h"), HostName("i")


def there(at: int, name: HostName, gang: int = 1, **facts: object) -> JobFacts:
    return job(at, gang=gang, **{"host": name, "started": True, "movable": True, **facts})


def seated(jobs: list[JobFacts], chosen: dict[int, str], *, renamed: bool = False, **facts: object) -> Plan:
    asked = snapshot([host("h"), host("i")], jobs, **{"migrations_left": 9, **facts})
    seats = Seats(asked)
    for one in jobs:
        if one.id in chosen:
            assert seats.choose(one, chosen[one.id])
    return seats.verdict({}, {}, (), renamed=renamed).plan


def test_a_whole_server_is_found_for_a_gang_by_moving_the_fewest() -> None:
    jobs = [there(1, H), there(2, J, 2), there(3, J), job(4, gang=4)]
    plan = seated(jobs, {1: "V100", 2: "V100", 3: "V100", 4: "V100"})
    assert plan.homes == {1: (J,), 2: (J,), 3: (J,), 4: (H,)}
    assert plan.moves.keys() == {1}
    assert plan.moves[JobId(1)][0] is MoveReason.ROUND


def test_if_one_cannot_leave_the_others_make_room() -> None:
    jobs = [there(1, H, movable=False), there(2, J, 2), there(3, J), job(4, gang=4)]
    plan = seated(jobs, {1: "V100", 2: "V100", 3: "V100", 4: "V100"})
    assert plan.homes == {1: (H,), 2: (H,), 3: (H,), 4: (J,)}


@pytest.mark.parametrize("stuck", [{"migrate": Migrate.NEVER}, {"movable": False}])
def test_a_gang_waits_where_nobody_can_make_room(stuck: dict[str, object]) -> None:
    jobs = [there(1, H, **stuck), there(2, J, **stuck), job(4, gang=4)]
    plan = seated(jobs, {1: "V100", 2: "V100", 4: "V100"})
    assert plan.homes == {1: (H,), 2: (J,)}


def test_nobody_moves_when_the_budget_is_used_up() -> None:
    jobs = [there(1, H), there(2, J), job(4, gang=4)]
    plan = seated(jobs, {1: "V100", 2: "V100", 4: "V100"}, migrations_left=0)
    assert plan.homes == {1: (H,), 2: (J,)}


def test_no_more_are_promised_gpus_of_another_model_than_may_move() -> None:
    """Who may not move keeps its own GPUs, before somebody behind it gets them."""
    models = [host("h", 3, "K80"), host("i", 3)]
    jobs = [there(at, H, job_class="c") for at in range(1, 6)]
    rates = {("c", "V100"): 2.0, ("c", "K80"): 1.0}
    asked = snapshot(models, jobs, rates=rates, migrations_left=1)
    seats = Seats(asked)
    seats.serve(jobs)
    assert seats.chosen() == {1: "V100", 2: "K80", 3: "K80", 4: "K80"}
    plan = seats.verdict({}, {}, jobs).plan
    assert plan.turns[H].gangs == (2, 3, 4)
    assert plan.turns[J].gangs == (1,)


def test_of_a_drained_server_as_many_gpus_are_promised_as_who_lives_there_asks_for() -> None:
    drained = host("h", accepts=False)
    jobs = [there(1, H), job(2, gang=4), job(3)]
    seats = Seats(snapshot([drained, host("i")], jobs))
    assert seats.free("V100") == 4 + 1
    seats.serve(jobs)
    assert seats.chosen().keys() == {1, 2}


def test_no_more_is_promised_than_a_pool_has() -> None:
    asked = snapshot([host("h")], [job(1, gang=3), job(2, gang=2), job(3)])
    seats = Seats(asked)
    assert [seats.choose(one, "V100") for one in asked.jobs] == [True, False, True]
    assert seats.free("V100") == 0


def test_who_is_laid_and_finds_no_server_leaves_its_promise_to_the_others() -> None:
    jobs = [job(at, gang=3) for at in (1, 2, 3)] + [job(4), job(5), job(6)]
    seats = Seats(snapshot([host("h"), host("i")], jobs))
    assert seats.choose(jobs[0], "V100")
    assert seats.lay([(one, "V100") for one in jobs[:2] + jobs[3:5]]) == {1, 2, 4, 5}
    assert seats.lay([(one, "V100") for one in jobs[1:3] + jobs[3:4]]) == {2, 3, 4}, "begun anew"
    assert seats.free("V100") == 1
    assert not seats.add(jobs[0], "V100")
    assert [seats.add(one, "V100") for one in jobs[4:]] == [True, False]
    assert {2, 3, 4, 5} == seats.verdict({}, {}, ()).plan.homes.keys()


def test_one_for_which_the_others_leave_no_server_is_not_added() -> None:
    jobs = [job(1, gang=3), job(2, gang=3), job(3, gang=2), job(4, gang=2), job(5)]
    seats = Seats(snapshot([host("h"), host("i")], jobs))
    assert seats.lay([(one, "V100") for one in jobs[:3]]) == {1, 2}
    assert [seats.add(one, "V100") for one in jobs[2:]] == [False, False, True]
    assert seats.free("V100") == 1


def test_one_that_goes_on_over_servers_of_two_models_has_its_gpus_of_each() -> None:
    mixed = job(1, gang=8, nodes=2, hosts=(H, J), started=True)
    asked = snapshot([host("h"), host("i", model="K80"), host("j")], [mixed], running=frozenset({mixed.id}))
    seats = Seats(asked)
    assert seats.keep(mixed)
    assert (seats.free("V100"), seats.free("K80")) == (4, 0)


def test_who_moves_to_be_measured_takes_of_the_budget_that_a_round_has_left() -> None:
    jobs = [there(1, H), there(2, H)]
    hosts, reserved = [host("h"), host("i", model="K80")], {JobId(1): (J,)}
    asked = snapshot(hosts, jobs, migrations_left=1, reserved=reserved)
    assert (Slots(asked).moves_left, Slots(replace(asked, reserved={})).moves_left) == (0, 1)
    assert not Slots(asked).may_go(jobs[1], asked.hosts[1])


def test_a_server_that_is_away_promises_nothing() -> None:
    asked = snapshot([host("h", connected=False), host("i")], [job(1, gang=4), job(2, gang=4)])
    seats = Seats(asked)
    assert [seats.choose(one, "V100") for one in asked.jobs] == [True, False]


def test_a_model_where_a_class_was_measured_not_to_run_is_no_choice() -> None:
    asked = snapshot(
        [host("v"), host("k", model="K80")],
        [job(1, job_class="r")],
        rates={("r", "K80"): 0.0, ("r", "V100"): 1.0},
    )
    assert Seats(asked).choices(asked.jobs[0]) == ("V100",)


def test_plans_that_differ_only_by_names_move_nobody() -> None:
    jobs = [there(1, H, 4), there(2, J, 2), there(3, J, 2)]
    names = rename([H, J], 4, {JobId(1): (J,), JobId(2): (H,), JobId(3): (H,)}, snapshot([], jobs))
    assert names == {H: J, J: H}


def test_what_is_placed_afresh_is_renamed_so_that_the_fewest_move() -> None:
    jobs = [there(1, H, 4), there(2, J, 2), there(3, J, 2)]
    plan = seated(jobs, {1: "V100", 2: "V100", 3: "V100"}, renamed=True)
    assert plan.homes == {1: (H,), 2: (J,), 3: (J,)}
    assert not plan.moves


def test_who_was_promised_gpus_of_a_drained_server_has_those_of_another_model() -> None:
    asked = snapshot(
        [host("v", gpus=1), host("w", gpus=1, accepts=False), host("k", gpus=1, model="K80")],
        [job(1), job(2), there(3, HostName("w"))],
    )
    seats = Seats(asked)
    assert [seats.choose(one, "V100") for one in asked.jobs] == [True, True, False]
    assert seats.verdict({}, {}, ()).plan.homes == {1: ("v",), 2: ("k",), 3: ("w",)}


SIX = [host("h", 6), host("i", 6)]


def alike(count: int = 3, *, job_class: str = "c") -> list[JobFacts]:
    """The first two have run, one on each server, and the last has had least."""
    homes = [H, J]
    return [
        there(at, homes[at - 1], 4, running=True, attained_gpu_s=1e5 - at, job_class=job_class)
        if at < 3
        else job(at, gang=4, movable=True, job_class=job_class)
        for at in range(1, count + 1)
    ]


def test_where_not_all_fit_server_by_server_who_was_chosen_first_has_gpus_and_no_more_move_than_must() -> (
    None
):
    jobs = alike()
    for chosen in ([3, 2, 1], [3, 1, 2]):
        seats = Seats(snapshot(SIX, jobs, migrations_left=9))
        assert all(seats.choose(jobs[at - 1], "V100") for at in chosen)
        verdict = seats.verdict({}, {}, ())
        assert {job for turn in verdict.plan.turns.values() for job in turn.gangs} == set(chosen[:2])
        assert not verdict.plan.moves
        assert verdict.why[JobId(chosen[2])] == (
            "it was to run, but no server that can take it has 4 V100 left beside jobs that come before it"
        )


def test_who_cannot_leave_its_server_makes_room_there_for_who_was_chosen_before_it() -> None:
    stuck = [there(at, name, 4, migrate=Migrate.NEVER) for at, name in ((1, H), (2, J))]
    plan = seated_on(SIX, [*stuck, job(3, gang=4)], [1, 3, 2], renamed=False)
    assert {name: turn.gangs for name, turn in plan.turns.items()} == {H: (1,), J: (3,)}


def test_who_finds_no_gpus_of_its_model_has_those_of_another_before_who_comes_later() -> None:
    jobs = [job(at, gang=4, movable=True, job_class="c") for at in range(1, 5)]
    hosts = [*SIX, host("k", 4, "K80")]
    asked = snapshot(hosts, jobs, rates={("c", "V100"): 2.0, ("c", "K80"): 1.0}, migrations_left=9)
    seats = Seats(asked)
    seats.serve(jobs)
    assert seats.chosen() == {1: "V100", 2: "V100", 3: "V100", 4: "K80"}
    plan = seats.verdict({}, {}, jobs).plan
    assert plan.homes == {1: (H,), 2: (J,), 3: ("k",)}


def test_who_was_promised_one_model_takes_no_other_from_who_was_promised_that() -> None:
    jobs = [job(at, gang=4, movable=True, job_class="c") for at in range(1, 5)]
    hosts = [*SIX, host("k", 4, "K80")]
    asked = snapshot(hosts, jobs, rates={("c", "V100"): 2.0, ("c", "K80"): 1.0}, migrations_left=9)
    seats = Seats(asked)
    assert all(seats.choose(one, "K80" if one.id == 4 else "V100") for one in jobs)
    assert seats.verdict({}, {}, ()).plan.homes == {1: (H,), 2: (J,), 4: ("k",)}


def test_servers_are_not_filled_afresh_at_the_expense_of_who_was_chosen_first() -> None:
    """With job 2 in place of job 3 a GPU more would be in use."""
    jobs = [there(1, H, 4), there(2, J, 4), job(3, gang=3), there(4, HostName("k"))]
    plan = seated_on([*SIX, host("k", 1, "K80")], jobs, [3, 1, 2, 4], renamed=True)
    assert {job for turn in plan.turns.values() for job in turn.gangs} == {1, 3, 4}


def seated_on(hosts: list[HostFacts], jobs: list[JobFacts], order: list[int], *, renamed: bool) -> Plan:
    seats = Seats(snapshot(hosts, jobs, migrations_left=9))
    assert all(seats.choose(jobs[at - 1], "V100") for at in order)
    return seats.verdict({}, {}, (), renamed=renamed).plan


@pytest.mark.parametrize("name", ["fft", "gavel-max-min", "las", "pal", "srtf", "themis", "tiresias"])
@pytest.mark.parametrize(("gpus", "gangs"), [(3, (2, 2, 2)), (4, (3, 3, 2))])
def test_nobody_waits_as_long_as_others_run(name: str, gpus: int, gangs: tuple[int, ...]) -> None:
    """Two gangs that run on two servers are promised to be joined by a third, for which neither has room."""
    jobs = [
        job(at + 1, gang=gang, movable=True, job_class="c", steps=3e4 if at < 2 else 3e3)
        for at, gang in enumerate(gangs)
    ]
    asked = replace(
        snapshot([host("h", gpus), host("i", gpus)], jobs[:2], migrations_left=99), quantum_s=360.0
    )
    run = Run(find(name), replace(asked, rates={("c", "V100"): 1.0}))
    run.go(3)
    come = replace(jobs[2], arrival_s=run.asked.now_s)
    run.asked = having(run.asked, [*run.asked.jobs, come])
    run.go(12)
    assert run.gpus[come.id] > 0


ORDERS: Mapping[str, Callable[[Snapshot], Sequence[JobFacts]]] = {
    "las": least_attained_first,
    "pal": least_attained_first,
    "srsf": srsf.order,
    "srtf": srtf.order,
    "tesserae-las": least_attained_first,
    "tesserae-srtf": srtf.order,
    "tiresias": lambda asked: sorted(asked.jobs, key=lambda one: (tiresias.queue(one), by_arrival(one))),
}


@st.composite
def on_odd_servers(draw: st.DrawFn) -> Snapshot:
    """Gangs of all sizes that may go anywhere; who has a home runs there."""
    sizes = draw(st.lists(st.sampled_from([3, 5, 6, 7]), min_size=1, max_size=4))
    hosts = [host(f"h{at}", gpus, draw(of("V100", "V100", "K80"))) for at, gpus in enumerate(sizes)]
    left = {one.name: one.gpus for one in hosts}
    jobs = []
    for at in range(1, draw(st.integers(3, 9))):
        per_node, nodes = draw(of((1, 1), (2, 1), (3, 1), (4, 1), (4, 1), (5, 1), (2, 2)))
        name = draw(st.sampled_from([None, *left]))
        had, steps = draw(of(0.0, 2e3, 9e3)), draw(of(1e4, 2e4, 3e4))
        made = job(at, gang=per_node * nodes, nodes=nodes, movable=True, job_class="c", steps=steps)
        made = replace(made, attained_gpu_s=had)
        if nodes == 1 and name is not None and left[name] >= per_node:
            left[name] -= per_node
            made = replace(made, hosts=(name,), started=True, running=True)  # type: ignore[call-arg]
        jobs.append(made)
    rates = {("c", "V100"): 2.0, ("c", "K80"): 1.0}
    return snapshot(hosts, jobs, rates=rates, migrations_left=99, now_s=1e5)


@law(on_odd_servers(), policies=[find(name) for name in ORDERS], examples=150)
def test_of_two_jobs_alike_the_first_in_the_order_has_gpus_if_the_second_has(
    policy: Policy, asked: Snapshot
) -> None:
    turns = policy.decide(asked, {}).plan.turns.values()
    runs, waits = {one for turn in turns for one in turn.gangs}, set[tuple[int, int]]()
    for one in ORDERS[policy.name](asked):
        shape = one.gang, one.nodes
        if one.id not in runs:
            waits.add(shape)
        assert one.id not in runs or shape not in waits

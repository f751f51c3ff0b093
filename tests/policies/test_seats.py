"""Handing out the GPUs of a round: what was chosen fits together, and as few move as can be."""

from dataclasses import replace

import pytest

from hs_core.mechanism.renaming import rename
from hs_core.mechanism.seats import Seats
from hs_core.mechanism.slots import Slots
from hs_core.model import Migrate, MoveReason
from hs_core.names import HostName, JobId
from hs_core.policy import JobFacts, Plan

from .worlds import host, job, snapshot  # noqa: TID252 — tests are no package on the path

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

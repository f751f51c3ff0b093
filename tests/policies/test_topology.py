"""Consolidated or spread (Tiresias, 3.3): jobs that may be laid over any number of servers are consolidated where that has room, spread where they bear it."""

from dataclasses import replace

import pytest

from hs_core.errors import BrokenError
from hs_core.forms import Spread
from hs_core.names import JobId
from hs_core.plan import check
from hs_core.policies import find
from hs_core.policy import JobFacts, Snapshot, Verdict
from hs_core.strategy import parse

from .worlds import Run, homes_of, host, job, snapshot  # noqa: TID252 — tests are no package on the path

TIRESIAS = find("tiresias")
ANY = (1, 2, 4)
ONE, TWO = ("c", "V100"), ("c on 2 servers", "V100")


def some(at: int, gang: int = 4, **facts: object) -> JobFacts:
    return job(at, gang=gang, job_class="c", **({"movable": True, "spreads": ANY} | facts))


def world(*jobs: JobFacts, rates: dict[tuple[str, str], float] | None = None) -> Snapshot:
    """Two servers of four, and two jobs of one GPU that have one of each."""
    small = [
        job(at, hosts=(one.name,), started=True, running=True, job_class="small")
        for at, one in ((8, host("a")), (9, host("b")))
    ]
    return snapshot([host("a"), host("b")], [*jobs, *small], rates=rates or {}, migrations_left=0)


def shape(verdict: Verdict) -> object:
    return verdict.plan.shapes.get(JobId(10))


def asked(**facts: object) -> JobFacts:
    return replace(some(10), **facts)  # type: ignore[arg-type]  # the tests' own facts


def test_it_is_consolidated_where_one_server_has_room() -> None:
    verdict = TIRESIAS.decide(snapshot([host("a"), host("b")], [asked()]), {})
    assert (homes_of(verdict)[10], shape(verdict)) == ("a", None)
    assert verdict.how[JobId(10)] == "over one server, as few as can be"


def test_where_none_has_room_it_is_spread_over_the_fewest_that_have() -> None:
    verdict = TIRESIAS.decide(world(asked()), {})
    assert (homes_of(verdict)[10], shape(verdict)) == ("a+b", Spread(nodes=2))
    assert "how much slower it is so was not measured" in verdict.how[JobId(10)]


@pytest.mark.parametrize("name", ["tiresias", "pal", "hadar", "hadar-exact"])
@pytest.mark.parametrize(("nodes", "gpus", "where"), [(1, (3, 3), "a+b"), (4, (4, 4), "a")])
def test_one_that_finds_no_place_as_it_asks_is_laid_over_servers_that_there_are(
    name: str, nodes: int, gpus: tuple[int, int], where: str
) -> None:
    """A GPU of each server is out of service; or there are fewer servers."""
    policy = find(name)
    hosts = [host("a", gpus[0]), host("b", gpus[1])]
    asking = snapshot(hosts, [asked(nodes=nodes)])
    verdict = policy.decide(asking, {})
    check(asking, verdict.plan, policy.needs)
    assert homes_of(verdict)[10] == where
    first = some(1, gang=sum(gpus), nodes=2, spreads=())  # takes all of them
    assert "on one server" not in policy.decide(snapshot(hosts, [first, asked()]), {}).why[JobId(10)]


@pytest.mark.parametrize(("loose", "is_spread"), [(0.95, True), (0.85, False)])
def test_who_was_measured_to_lose_by_it_waits_for_one_server(loose: float, *, is_spread: bool) -> None:
    verdict = TIRESIAS.decide(world(asked(), rates={ONE: 1.0, TWO: loose}), {})
    assert (10 in homes_of(verdict)) is is_spread
    if is_spread:
        assert "does 0.95 steps/s so, 1 over one server" in verdict.how[JobId(10)]
    else:
        assert JobId(10) in verdict.why


@pytest.mark.parametrize(("loose", "is_spread"), [(0.95, True), (0.85, False)])
def test_what_was_measured_of_one_with_strategies_is_that_of_the_one_that_it_has(
    loose: float, *, is_spread: bool
) -> None:
    dp, tp = parse("dp=4"), parse("tp=4")
    measured = {
        ("c as dp=4", "V100"): 1.0,
        ("c on 2 servers as dp=4", "V100"): loose,
        ("c on 2 servers as tp=4", "V100"): 0.01,
    }
    one = asked(strategies=(dp, tp), job_class="c as dp=4")
    verdict = TIRESIAS.decide(world(one, rates=measured), {})
    assert (10 in homes_of(verdict)) is is_spread
    assert shape(verdict) == (Spread(nodes=2) if is_spread else None)


def test_a_policy_of_strategies_leaves_it_over_the_servers_that_it_has() -> None:
    dp, tp = parse("dp=4"), parse("tp=4")
    laid = asked(
        strategies=(dp, tp), job_class="c on 2 servers as dp=4", nodes=2, hosts=("a", "b"), spreads=(),
        shape=Spread(nodes=2), started=True, running=True, steps=10_000.0, restartable=True,
    )  # fmt: skip
    rates = {(f"c on 2 servers as {each.text}", "V100"): rate for each, rate in ((dp, 1.0), (tp, 4.0))}
    asking = replace(world(laid, rates=rates), migrations_left=9)
    tesserae = find("tesserae-las")
    verdict = tesserae.decide(asking, {})
    check(asking, verdict.plan, tesserae.needs)
    assert (homes_of(verdict)[10], shape(verdict)) == ("a+b", Spread(nodes=2, strategy=tp))
    for wrong in (tp, Spread(nodes=1, strategy=tp), Spread(nodes=2, strategy=parse("pp=4"))):
        with pytest.raises(BrokenError, match="job 10 is given"):
            check(asking, replace(verdict.plan, shapes={JobId(10): wrong}), tesserae.needs)


def test_who_does_not_say_that_it_may_is_not() -> None:
    assert 10 not in homes_of(TIRESIAS.decide(world(asked(spreads=())), {}))


def test_one_that_asks_for_several_servers_is_consolidated_too() -> None:
    verdict = TIRESIAS.decide(
        snapshot([host("a"), host("b")], [asked(nodes=2, job_class="c on 2 servers")]), {}
    )
    assert (homes_of(verdict)[10], shape(verdict)) == ("a", Spread(nodes=1))


def test_once_placed_it_stays_as_it_is() -> None:
    run = Run(TIRESIAS, world(asked()))
    verdict = run.go(3)
    assert verdict.how[JobId(10)] == "over 2 servers: so it had room when it was placed"
    here = {one.id: one for one in run.asked.jobs}[JobId(10)]
    assert (here.hosts, here.nodes, here.per_node) == (("a", "b"), 2, 2)
    run.change(jobs=tuple(one for one in run.asked.jobs if one.id == 10))
    run.go(3)
    assert run.moved == []


@pytest.mark.parametrize("name", ["hadar", "hadar-exact"])
@pytest.mark.parametrize(("loose", "where"), [(1.0, "a+b"), (0.3, "k")])
def test_hadars_lay_it_where_it_is_worth_most_less_what_communication_costs(
    name: str, loose: float, where: str
) -> None:
    hosts = [host("a", 2), host("b", 2), host("k", 4, "K80")]
    rates = {ONE: 1.0, TWO: loose, ("c", "K80"): 0.5, ("c on 2 servers", "K80"): 0.5 * loose}
    found = find(name).decide(
        snapshot(hosts, [asked(spreads=(1, 2, 4), steps=1e4)], rates=rates, migrations_left=9), {}
    )
    check(snapshot(hosts, [asked(spreads=(1, 2, 4))]), found.plan, find(name).needs)
    assert homes_of(found)[10] == where
    assert shape(found) == (Spread(nodes=2) if where == "a+b" else None)
    assert "as it is worth most there" in found.how[JobId(10)]


@pytest.mark.parametrize("name", ["hadar", "hadar-exact"])
def test_hadars_spread_it_where_no_server_has_room_and_keep_it_there_for_the_round(name: str) -> None:
    run = Run(find(name), world(asked(steps=1e4)))
    verdict = run.go(3)
    here = {one.id: one for one in run.asked.jobs}[JobId(10)]
    assert (here.hosts, here.nodes, here.per_node) == (("a", "b"), 2, 2)
    assert 10 in verdict.plan.turns[here.hosts[0]].gangs
    assert run.moved == []


def test_other_policies_take_it_as_it_asks() -> None:
    for name in ("las", "gandiva-fair", "fifo", "gavel-max-min", "tesserae-las"):
        assert shape(find(name).decide(world(asked()), {})) is None, name


@pytest.mark.parametrize("name", ["hadar", "hadar-exact"])
def test_hadars_leave_no_gpus_of_several_models_beside_a_gang_over_as_many_servers(name: str) -> None:
    """Whom the program gives two K80s finds them on servers of which the other one has but one left."""
    hosts = [host("a", 2, "K80"), host("b", 2, "Q9"), host("c", 1, "K80")]
    gangs = [some(at, gang=2, nodes=2, spreads=(), steps=1e4) for at in (1, 2)]
    asking = snapshot(hosts, gangs, rates={("c", model): 1.0 for model in ("K80", "Q9")})
    verdict = find(name).decide(asking, {})
    check(asking, verdict.plan, find(name).needs)
    assert verdict.plan.homes.keys() == {1, 2}
    assert verdict.why == {}

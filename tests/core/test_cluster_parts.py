"""The small parts of the controller's mind: edges, the budget of moves, measured rates, trades and their laws."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from hs_core.cluster import ClusterMachine, Settings
from hs_core.cluster.budget import Budget
from hs_core.cluster.edges import Edges
from hs_core.cluster.harness import World, plain_policy
from hs_core.cluster.plain import Wishes
from hs_core.cluster.rates import Rates, WayRate
from hs_core.errors import BrokenError
from hs_core.forms import Elastic, Shape
from hs_core.model import JobSpec, MoveReason, Topology
from hs_core.names import HostName, JobId, UserName
from hs_core.policy import Memory, Needs, Policy, Snapshot, Trade, TradeNews, Verdict
from hs_core.profile import Profile, RateSample
from hs_core.reports import JobReport, Phase
from hs_core.strategy import Strategy, class_as

ALICE, BOB = UserName("alice"), UserName("bob")


def test_late_timers_and_clocks_that_are_set_never_take_a_quantum_back() -> None:
    edges = Edges(20.0, 7)
    edges.keep(100.0, needed=True)
    assert [edges.passed(now_s) for now_s in (119.0, 120.0, 120.0, 185.0)] == [0, 1, 0, 3]
    assert (edges.quantum, edges.at_s) == (11, 200.0)
    assert edges.passed(-3600.0) == 0
    assert edges.at_s == -3580.0
    assert edges.passed(-3580.0) == 1
    edges.keep(-3580.0, needed=False)
    assert edges.passed(1e9) == 0
    assert edges.quantum == 12


def test_a_budget_fills_with_time_and_not_by_starting_again() -> None:
    budget = Budget(120.0, None)  # one in 30 s, ten at once
    for _ in range(10):
        assert budget.left(0.0) >= 1
        budget.take(0.0)
    assert budget.left(0.0) == 0
    again = Budget(120.0, budget.saved)
    assert [again.left(now_s) for now_s in (0.0, 29.0, 30.0, 1e6)] == [0, 0, 1, 10]
    assert again.left(-1e6) == 0
    assert Budget(0.0, None).left(1e9) == 0


def test_a_budget_that_nobody_could_ask_holds_what_came_in_meanwhile() -> None:
    budget = Budget(120.0, (0.0, 0.0))  # one in 30 s, ten at once
    assert budget.left(1_200.0) == 10
    budget.hold(1_200.0)
    assert budget.left(1_200.0) == 40
    for _ in range(5):
        budget.take(1_200.0)
    assert budget.left(1_200.0) == 35
    budget.hold(60.0)
    assert budget.left(1_200.0) == 10
    (none := Budget(0.0, None)).hold(1e9)
    assert none.left(1e9) == 0


def test_moves_take_from_the_budget_but_drains_do_not() -> None:
    wishes: Wishes = {}
    settings = Settings(quantum_s=10.0, settle_s=0.0, migrations_per_hour=1.0)
    at = World(plain_policy(wishes=wishes), settings, wishes=wishes)
    for line in (
        "user alice",
        "host n1 V100:4",
        "submit alice a count=3",
        "report n1 1:0=running can_checkpoint=yes 2:0=running can_checkpoint=yes 3:0=running can_checkpoint=yes",
        "host n2 V100:4",
    ):
        at.do(line)
    for job in (1, 2):
        wishes[JobId(job)] = ((HostName("n2"),), MoveReason.BALANCE, "")
    wishes[JobId(3)] = ((HostName("n2"),), MoveReason.DRAIN, "")
    at.do("user alice 50")
    assert [row.move is not None for row in at.machine.jobs()] == [True, False, True]
    left = ClusterMachine(at.policy, settings, at.machine.state).budget
    assert left is not None
    assert left[0] < 1


def test_what_a_gang_over_several_models_measured_is_its_slowest_ones_once_all_are_known() -> None:
    rates, known = Rates([], 60.0, 10), {"V100": 10.0, "K80": 2.0}
    turns = iter(range(100))

    def measured(models: list[str], rate: float) -> bool:
        turn = next(turns)
        before = JobReport(
            job=JobId(1), epoch=0, phase=Phase.RUNNING, resumes=1, run_s=20.0 * turn, step=turn
        )
        after = replace(before, run_s=20.0 * turn + 20.0, step=turn + 1, steps_per_s=rate)
        turn_s = rates.turn_s(before, after)
        assert turn_s is not None
        return rates.measured("c", models, after.steps_per_s, turn_s, 0.0)

    measured(["V100"], 10.0)  # a turn's beginning
    for model, rate in known.items():
        assert not measured(["V100", "K80"], 2.5), "nobody knows which of them it tells of"
        assert all(measured([model], rate) for _ in range(3))
    assert rates.known == {("c", model): rate for model, rate in known.items()}
    assert all(measured(["V100", "K80", "V100"], 1.2) for _ in range(4))
    assert rates.known == {("c", "V100"): 10.0, ("c", "K80"): 1.2}


def test_rates_are_measured_in_turns_and_shown_by_pool() -> None:
    at = World(plain_policy(), Settings(quantum_s=20.0, settle_s=0.0))
    for line in (
        "user alice",
        "host n1 V100:1",
        "host k1 K80:1",
        "submit alice v gpu_types=V100 job_class=net",
        "submit alice k gpu_types=K80 job_class=net",
    ):
        at.do(line)
    for turn in range(1, 5):
        at.now_s += 20
        for host, job, rate in (("n1", 1, 10.0), ("k1", 2, 2.0)):
            at.do(f"report {host} {job}:0=running resumes={turn} step={turn} run_s={20 * (turn - 1)}")
            told = f"resumes={turn} step={turn + 1} run_s={20 * turn - 10} steps_per_s={rate}"
            at.do(f"report {host} {job}:0=running {told}")
            assert at.outcome.touched.profile
            at.do(f"report {host} {job}:0=running {told}")
            assert not at.outcome.touched.profile, "what is repeated is no sample"
    assert [(r.model, r.steps_per_s, r.samples, r.speedup) for r in at.machine.rates(JobId(1))] == [
        ("K80", 2.0, 4, 1.0),
        ("V100", 10.0, 4, 5.0),
    ]
    again = ClusterMachine(at.policy, at.settings, at.machine.state)
    assert again.rates(JobId(2)) == at.machine.rates(JobId(1))
    assert again.profile == at.machine.profile


def a_trade(**changes: object) -> Trade:
    trade = Trade(
        fast="V100",
        slow="K80",
        giver=ALICE,
        taker=BOB,
        fast_gpus=Fraction(1),
        slow_gpus=Fraction(2),
        price=2.0,
        giver_speedup=1.25,
        taker_speedup=5.0,
        since_s=3.0,
    )
    return replace(trade, **changes)  # type: ignore[arg-type]


def trading(trade: Trade, *, undone: bool = False, entitled: int = 1) -> Policy:
    plain = plain_policy()

    def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
        verdict = plain.decide(snapshot, memory)
        news = TradeNews(trade=trade, undone=undone, why="its base no longer carries it" if undone else "")
        base = {(ALICE, "V100"): Fraction(1)}
        after = {(BOB, "V100"): Fraction(entitled)}
        return replace(verdict, trades=(trade,), news=(news,), entitled=after, base=base)

    return Policy(name="trading", needs=Needs(), decide=decide)


def test_a_trade_is_told_with_everything_about_it_and_shown() -> None:
    at = World(trading(a_trade()), Settings(settle_s=0.0))
    for line in ("user alice", "host n1 V100:1", "submit alice a"):
        at.do(line)
    fact = next(fact for fact in at.outcome.facts if fact.kind == "trade")
    assert fact.data == {
        "at": 3.0,
        "fast": "V100",
        "slow": "K80",
        "gives": "alice",
        "receives": "bob",
        "fast_gpus": 1.0,
        "slow_gpus": 2.0,
        "price": 2.0,
        "giver_speedup": 1.25,
        "taker_speedup": 5.0,
    }
    assert fact.text == (
        "1 V100 of alice for 2 K80 of bob, at 2 K80 each: a V100 is worth 1.25 K80 to alice, who gains 0.75 K80, and 5 to bob, who gains 3"
    )
    assert [user for user in ("alice", "bob", "eve") if fact.concerns(user)] == ["alice", "bob"]
    assert at.machine.trades() == (a_trade(),)
    assert (at.machine.base(), at.machine.entitled()) == ({(ALICE, "V100"): 1.0}, {(BOB, "V100"): 1.0})
    undone = World(trading(a_trade(), undone=True), Settings(settle_s=0.0))
    for line in ("user alice", "host n1 V100:1", "submit alice a"):
        undone.do(line)
    told = next(fact for fact in undone.outcome.facts if fact.kind == "trade-undone")
    assert told.data["why"] == "its base no longer carries it"


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (trading(a_trade(giver_speedup=3.0)), "alice loses"),
        (trading(a_trade(taker_speedup=1.5)), "bob loses"),
        (trading(a_trade(fast_gpus=Fraction(-1))), "of -1 for 2"),
        (trading(a_trade(), entitled=2), "entitled to 2.0 of V100"),
    ],
)
def test_a_trade_that_somebody_loses_by_stops_the_controller(policy: Policy, words: str) -> None:
    at = World(policy, Settings(settle_s=0.0))
    at.do("user alice")
    at.do("host n1 V100:1")
    with pytest.raises(BrokenError, match=words):
        at.do("submit alice a")


def test_what_an_elastic_job_measured_is_told_by_its_shape() -> None:
    shapes = {JobId(1): Shape(gpus=2, per_gpu=32)}
    seen: list[Snapshot] = []
    plain = plain_policy(shapes=shapes)

    def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
        seen.append(snapshot)
        return plain.decide(snapshot, memory)

    at = World(replace(plain, decide=decide), Settings(quantum_s=20.0, settle_s=0.0), shapes=shapes)
    for line in (
        "user alice",
        "host n1 V100:2",
        "submit alice v job_class=net elastic=1,2,32,128,32",
    ):
        at.do(line)

    def measured(job: int, rate: float) -> None:
        for turn in range(1, 5):
            at.now_s += 20
            said = f"report n1 {job}:0=running resumes={turn}"
            at.do(f"{said} step={turn} run_s={20 * (turn - 1)}")
            at.do(f"{said} step={turn + 1} run_s={20 * turn - 10} steps_per_s={rate}")
        at.do(f"user alice {50 + job}")

    measured(1, 4.0)
    told = shapes[JobId(1)]
    assert seen[-1].speeds == {("alice/net", "V100"): {told: 4.0}}
    assert seen[-1].rates == {}, "it tells nothing of the job as declared"
    assert at.machine.rates(JobId(1)) == ()

    del shapes[JobId(1)]
    at.do("cancel alice 1")
    at.do("report n1 1:0=exited code=1")
    at.do("submit alice v job_class=net elastic=1,2,32,128,32")
    measured(2, 3.0)
    as_declared = Shape(gpus=1, per_gpu=32)
    assert seen[-1].speeds == {("alice/net", "V100"): {told: 4.0, as_declared: 3.0}}, (
        "remembered in other shapes"
    )
    assert seen[-1].rates == {("alice/net", "V100"): 3.0}


def test_of_a_job_it_is_known_how_fast_its_class_is_in_every_way_in_which_it_may_run() -> None:
    profile = Profile(settle_s=0.0)

    def measured(job_class: str, rate: float, **way: Any) -> None:
        profile.add(
            RateSample(
                job_class=job_class, model="V100", steps_per_s=rate, now_s=0.0, since_resume_s=9.0, **way
            )
        )

    dp, tp, many = Strategy(data=4), Strategy(tensor=4), Strategy(pipeline=4)
    measured(class_as("ann/gpt", dp), 2.0)
    measured(class_as("ann/gpt", tp), 3.0)
    measured(class_as("ann/gpt", tp), 1.5, beside="bob/vae")
    measured("ann/net", 8.0)
    measured("ann/net on 2 servers", 6.0)
    large = Shape(gpus=2, per_gpu=128)
    measured("ann/elastic", 5.0)
    measured("ann/elastic", 5.0, shape=Shape(gpus=1, per_gpu=64))
    measured("ann/elastic", 4.0, shape=large)
    rates = Rates(profile.dump(), 60.0, 10)

    def ways(**wishes: Any) -> list[WayRate]:
        return list(rates.ways(JobSpec(name="j", command=("x",), **wishes), UserName("ann")))

    way = WayRate(model="V100", steps_per_s=2.0, nodes=1, strategy=dp)
    in_tp = replace(way, strategy=tp, steps_per_s=3.0)
    assert ways(job_class="gpt", gpus=4, strategies=(dp, tp, many)) == [
        way,
        in_tp,
        replace(in_tp, steps_per_s=1.5, beside="bob/vae"),
    ]
    alone = WayRate(model="V100", steps_per_s=8.0, nodes=1)
    assert ways(job_class="net", gpus=2) == [alone]
    anywhere = ways(job_class="net", gpus=2, topology=Topology.ANY)
    assert anywhere == [alone, replace(alone, nodes=2, steps_per_s=6.0)]
    limits = Elastic(gpus_min=1, gpus_max=4, batch=64, batch_max=512, batch_per_gpu_max=128)
    as_declared = WayRate(model="V100", steps_per_s=5.0, nodes=1, shape=Shape(gpus=1, per_gpu=64))
    found = ways(job_class="elastic", elastic=limits)
    assert found == [as_declared, replace(as_declared, steps_per_s=4.0, shape=large)]

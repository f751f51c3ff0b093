"""Gandiva_fair over many servers and pools: split stride, pools by effective rate, moves, drains, trades."""

import gc
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import pytest

from hs_core.model import Migrate, MoveReason
from hs_core.names import HostName, JobId
from hs_core.policies import find
from hs_core.policies.gandiva_fair import LIMITS
from hs_core.policy import HostFacts, JobFacts, Snapshot, Verdict

from .worlds import GIB, Run, having, homes_of, host, job, snapshot  # noqa: TID252 — tests are no package on the path

GANDIVA_FAIR = find("gandiva-fair")
LONG_AGO = 1e6  # seconds: every cool-down is over


def ask(hosts: list[HostFacts], jobs: list[JobFacts], **facts: object) -> Snapshot:
    settled = [replace(one, movable=True) for one in jobs]
    return snapshot(hosts, settled, **{"now_s": LONG_AGO, "migrations_left": 1_000, **facts})  # type: ignore[arg-type]  # the tests' own facts


def at(name: str, *jobs: JobFacts) -> list[JobFacts]:
    return [replace(one, hosts=tuple(map(HostName, name.split("+"))), started=True) for one in jobs]


def run(hosts: list[HostFacts], jobs: list[JobFacts], *, delay: int = 0, **facts: object) -> Run:
    return Run(GANDIVA_FAIR, ask(hosts, jobs, **facts), delay=delay)


def decide(hosts: list[HostFacts], jobs: list[JobFacts], **facts: object) -> Verdict:
    return GANDIVA_FAIR.decide(ask(hosts, jobs, **facts), {})


def moves(verdict: Verdict) -> dict[int, MoveReason]:
    return {int(job_id): reason for job_id, (reason, _) in verdict.plan.moves.items()}


def sweep(first: int, count: int, user: str, gang: int = 1, of: str = "", **facts: object) -> list[JobFacts]:
    return [job(first + n, user, gang, job_class=of or f"{user}/x", **facts) for n in range(count)]


def rates(**classes: Mapping[str, float]) -> dict[tuple[str, str], float]:
    return {(f"{user}/x", model): rate for user, of in classes.items() for model, rate in of.items()}


def where(verdict: Verdict) -> Counter[str]:
    return Counter(homes_of(verdict).values())


# --- split stride -----------------------------------------------------------------------------------------------------


def test_section_5_2_two_thirds_of_four_gpus_each_then_four_and_four() -> None:
    """Figure 5: an 8-GPU job, two of 2 GPUs, four of 1 GPU, on two servers of 4."""
    jobs = [job(1, "A", 8, nodes=2), *sweep(2, 2, "B", 2), *sweep(4, 4, "C", 1)]
    world = run([host("x"), host("y")], jobs)
    world.go(90)
    assert world.by_user() == {"A": 240, "B": 240, "C": 240}
    world.change(jobs=tuple(one for one in world.asked.jobs if one.user != "A"))
    world.gpus.clear()
    verdict = world.go(30)
    assert world.by_user() == {"B": 120, "C": 120}
    assert verdict.plan.turns == {}
    assert "books" not in verdict.memory


def test_a_large_job_lives_on_the_least_loaded_servers_of_one_pool() -> None:
    hosts = [host("a"), host("b"), host("c"), host("k", 8, "K80")]
    jobs = [*at("a", job(1, "B", 4)), job(2, "A", 8, nodes=2)]
    assert homes_of(decide(hosts, jobs))[2] == "b+c"
    verdict = decide([host("a"), host("k", 4, "K80")], [job(2, "A", 8, nodes=2)])
    assert "asks for 2 servers of one model with 4 GPUs each; there are 1" in verdict.why[JobId(2)]


def test_a_quantum_is_charged_once_however_often_it_is_decided() -> None:
    jobs = [job(1, "A", 8, nodes=2), *sweep(2, 8, "B")]
    world = run([host("x"), host("y")], jobs)
    world.go(3)
    first = GANDIVA_FAIR.decide(world.asked, world.memory)
    again = GANDIVA_FAIR.decide(world.asked, first.memory)
    assert again.plan.turns == first.plan.turns
    assert again.memory == first.memory
    gone = having(world.asked, jobs=world.asked.jobs[1:])
    assert GANDIVA_FAIR.decide(gone, first.memory).plan.turns == {}


@pytest.mark.parametrize("others", [sweep(2, 8, "B"), []], ids=["others have left", "it has come"])
def test_a_gang_has_its_turn_in_the_next_quantum_where_nobody_else_could_use_its_gpus(
    others: list[JobFacts],
) -> None:
    """Else it would stand beside idle GPUs until the quantum after that."""
    gang, local = job(1, "A", 8, nodes=2), job(10, "B", 1)
    hosts, there = [host("x"), host("y"), host("z")], at("z", local)
    everybody = ask(
        hosts, [*there, *at("x", *others[:4]), *at("y", *others[4:]), *at("x+y", gang)[: len(others)]]
    )
    first = GANDIVA_FAIR.decide(everybody, {})
    assert first.plan.turns == {}
    left = ask(hosts, [*there, *at("x+y", gang)])
    verdict = GANDIVA_FAIR.decide(left, first.memory)
    assert {name: turn.gangs for name, turn in verdict.plan.turns.items()} == {"x": (1,), "y": (1,)}
    assert verdict.memory.get("books") == first.memory.get("books"), "nobody is charged for that"


# --- pools ------------------------------------------------------------------------------------------------------------

HETERO = [host("k", 4, "K80"), host("v", 4, "V100")]


def test_eight_vae_end_half_on_each_model() -> None:
    """The spec's golden case: speed-up 1.25, four V100 and four K80."""
    world = run(HETERO, at("v", *sweep(1, 8, "A")), rates=rates(A={"V100": 1.25, "K80": 1.0}))
    verdict = world.go(3)
    assert where(verdict) == {"v": 4, "k": 4}
    assert len(world.moved) == 4
    world.go(200)
    assert len(world.moved) == 4


def test_dcgan_at_five_times_stays_on_the_fast_ones() -> None:
    world = run(HETERO, at("v", *sweep(1, 8, "A")), rates=rates(A={"V100": 5.0, "K80": 1.0}))
    assert where(world.go(50)) == {"v": 8}
    assert world.moved == []


def test_moves_under_way_are_not_made_twice() -> None:
    facts = {"rates": rates(A={"V100": 1.25, "K80": 1.0})}
    world = run(HETERO, at("v", *sweep(1, 8, "A")), delay=5, **facts)
    assert where(world.go(20)) == {"v": 4, "k": 4}
    assert len(world.moved) == 4


def test_one_job_finds_out_about_a_pool_that_its_class_was_not_measured_on() -> None:
    world = run(HETERO, at("v", *sweep(1, 8, "A")), rates=rates(A={"V100": 5.0}))
    verdict = world.go(10)
    assert where(verdict) == {"v": 7, "k": 1}
    assert len(world.moved) == 1


def test_classes_without_any_rate_are_spread_over_the_shares() -> None:
    assert where(run(HETERO, at("v", *sweep(1, 8, "A"))).go(10)) == {"v": 4, "k": 4}


def test_a_new_job_goes_where_its_effective_rate_is_highest() -> None:
    there = at("v", *sweep(1, 4, "A"))
    known = rates(A={"V100": 5.0, "K80": 1.0})
    assert homes_of(decide(HETERO, [*there, *sweep(9, 1, "A")], rates=known))[9] == "v"
    known = rates(A={"V100": 1.1, "K80": 1.0})
    assert homes_of(decide(HETERO, [*there, *sweep(9, 1, "A")], rates=known))[9] == "k"


@pytest.mark.parametrize("migrate", [Migrate.NEVER, Migrate.SAME_TYPE])
def test_who_must_not_change_the_model_does_not(migrate: Migrate) -> None:
    jobs = at("v", *sweep(1, 8, "A", migrate=migrate))
    world = run(HETERO, jobs, rates=rates(A={"V100": 1.0, "K80": 1.0}))
    verdict = world.go(5)
    assert world.moved == []
    assert verdict.entitled == {("A", "V100"): 4}


def test_pins_are_demand_for_their_pool_only() -> None:
    jobs = [*at("v", *sweep(1, 8, "A", gpu_types=("V100",))), *at("k", *sweep(20, 4, "B"))]
    verdict = decide(HETERO, jobs)
    assert verdict.entitled == {("A", "V100"): 2, ("B", "V100"): 2, ("B", "K80"): 2} or verdict.entitled == {
        ("A", "V100"): 2, ("B", "V100"): 2, ("B", "K80"): 2,
    }  # fmt: skip


# --- trades -----------------------------------------------------------------------------------------------------------

TABLE_3_HOSTS = [host(f"v{n}", 4, "V100") for n in range(3)] + [host(f"k{n:02}", 4, "K80") for n in range(15)]
TABLE_3_RATES = rates(A={"V100": 1.25, "K80": 1.0}, B={"V100": 5.0, "K80": 1.0}, C={"V100": 6.25, "K80": 1.0})


def table_3(each: int = 60) -> list[JobFacts]:
    return [one for n, user in enumerate("ABC") for one in sweep(1 + n * 100, each, user)]


def test_table_3_from_jobs_to_trades_and_shares() -> None:
    verdict = decide(TABLE_3_HOSTS, table_3(), rates=TABLE_3_RATES)
    assert verdict.base == {
        (user, model): gpus for user in "ABC" for model, gpus in (("V100", 4), ("K80", 20))
    }
    assert verdict.entitled == {("A", "K80"): 40, ("B", "V100"): 4, ("B", "K80"): 20, ("C", "V100"): 8}
    assert sum(trade.fast_gpus for trade in verdict.trades) == 4
    assert {trade.price for trade in verdict.trades} == {5.0}


def test_jobs_follow_the_trades_and_users_gain() -> None:
    world = run(TABLE_3_HOSTS, table_3(), delay=1, migrations_left=100)
    world.go(2)
    world.change(
        rates=TABLE_3_RATES, now_s=world.asked.now_s + 10 * LIMITS.cool_down_quanta * world.asked.quantum_s
    )
    world.go(60)
    model = {h.name: h.model for h in TABLE_3_HOSTS}
    homes = Counter((one.user, model[one.hosts[0]]) for one in world.asked.jobs)
    assert homes["A", "V100"] == 0
    assert homes["A", "K80"] == 60
    assert homes["C", "V100"] > 8
    before = Counter(world.gpus)
    world.go(60)
    speed = {"A": 1.25, "B": 5.0, "C": 6.25}
    got: Counter[str] = Counter()
    for one in world.asked.jobs:
        rate = speed[one.user] if model[one.hosts[0]] == "V100" else 1.0
        got[one.user] += (world.gpus[one.id] - before[one.id]) * rate / 60
    assert got["A"] > 25
    assert got["B"] > 40 * 0.97
    assert got["C"] > 45


def test_a_user_who_comes_takes_back_what_the_others_no_longer_have() -> None:
    world = run(TABLE_3_HOSTS, table_3(), rates=TABLE_3_RATES)
    first = world.step()
    assert first.news
    assert not any(news.undone for news in first.news)
    world.change(
        jobs=(*world.asked.jobs, *(replace(one, movable=True) for one in sweep(900, 60, "D"))),
        tickets={**world.asked.tickets, "D": Fraction(100)},
    )
    after = world.step()
    assert any(news.undone for news in after.news)
    assert all(gpus >= 0 for gpus in after.entitled.values())
    assert sum(after.entitled.values()) == 72


# --- moves within a pool ------------------------------------------------------------------------------------------------


def test_load_is_balanced_and_then_left_alone() -> None:
    world = run([host("a"), host("b")], at("a", *sweep(1, 8, "A")))
    verdict = world.go(3)
    assert where(verdict) == {"a": 4, "b": 4}
    world.go(100)
    assert len(world.moved) == 4


def test_a_decision_leaves_nothing_to_the_garbage_collector() -> None:
    """Each looks at a world of its own: thousands of them in cycles keep it busy for a tenth of a run."""
    jobs = [*at("a", *sweep(1, 8, "A")), *at("a+b", *sweep(9, 2, "B", 8, nodes=2))]
    asked = ask([host(name) for name in "abc"], jobs)
    assert moves(GANDIVA_FAIR.decide(asked, {}))
    gc.collect()
    gc.disable()
    try:
        GANDIVA_FAIR.decide(asked, {})
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_servers_that_nobody_waits_on_are_left_alone() -> None:
    world = run([host("a"), host("b")], at("a", *sweep(1, 4, "A")))
    world.go(20)
    assert world.moved == []


def test_a_job_is_not_moved_before_its_cool_down() -> None:
    jobs = [*at("a", *sweep(1, 9, "A")), *at("b", *sweep(10, 7, "A"))]
    world = run([host("a"), host("b")], [replace(one, settled_s=LONG_AGO) for one in jobs])
    world.go(14)
    assert world.moved == []
    world.go(3)
    assert len(world.moved) == 1


def test_where_loads_are_far_apart_its_cool_down_is_short() -> None:
    jobs = [replace(one, settled_s=LONG_AGO) for one in at("a", *sweep(1, 8, "A"))]
    world = run([host("a"), host("b")], jobs)
    world.go(2)
    assert world.moved == []
    world.go(3)
    assert len(world.moved) == 3, "the last one's gap is half the mean load, no more"
    world.go(12)
    assert len(world.moved) == 4


def test_a_small_job_that_should_run_all_the_time_goes_where_nothing_else_helps() -> None:
    """Its GPU idles beside three others', and it is in the way of gangs of two."""
    jobs = [*at("a", *sweep(1, 3, "A")), *at("b", *sweep(4, 1, "A"), *sweep(5, 3, "B", 2))]
    world = run([host("a"), host("b")], jobs)
    world.go(30)
    assert [int(moved) for _, moved in world.moved] == [4]


def test_moves_stay_within_the_budget_and_a_few_a_quantum() -> None:
    jobs = at("a", *sweep(1, 40, "A"))
    hosts = [host("a"), *(host(f"b{n}") for n in range(9))]
    assert len(decide(hosts, jobs, migrations_left=3).plan.moves) == 3
    assert len(decide(hosts, jobs, migrations_left=0).plan.moves) == 0
    assert len(decide(hosts, jobs).plan.moves) == LIMITS.started_a_quantum


def test_jobs_that_were_not_started_move_without_a_budget() -> None:
    waiting = [replace(one, started=False) for one in at("a", *sweep(1, 8, "A"))]
    verdict = decide([host("a"), host("b")], waiting, migrations_left=0)
    assert where(verdict) == {"a": 4, "b": 4}


def test_gpus_that_idle_are_filled_from_a_server_with_a_job_that_is_due_all_the_time() -> None:
    """B's gang is due all the time on a and b. Without one of D's five b is needed for as long yet, but for one of its GPUs only."""
    gangs = at("c", *sweep(20, 4, "D", 4, migrate=Migrate.NEVER))
    jobs = [*at("a+b", job(1, "B", 2, nodes=2)), *at("b", *sweep(2, 5, "D")), *gangs]
    world = run([host(name) for name in "abc"], jobs)
    assert where(world.go(3)) == {"a+b": 1, "a": 2, "b": 3, "c": 4}
    world.gpus.clear()
    world.go(100)
    assert len(world.moved) == 2
    assert world.by_user() == {"B": 200, "D": 900}, "one GPU idles: nobody is left who could use it"


def test_small_jobs_do_not_go_to_and_fro_beside_jobs_that_are_due_all_the_time() -> None:
    hosts = [host("a", 8), host("b", 8)]
    jobs = [
        *at("a+b", job(1, "C", 2, nodes=2)),
        *at("a", *sweep(2, 3, "C", 2), *sweep(5, 3, "A"), job(8, "B")),
        *at("b", job(9, "C", 2), job(10, "A"), job(11, "A", 4), *sweep(12, 2, "B", 4)),
    ]
    world = run(hosts, jobs, tickets={"A": 100, "B": 100, "C": 300})
    world.go(200)
    assert world.moved == []
    assert sum(world.idle.values()) < 200 * 16 / 1000
    assert all(
        world.by_user()[user] == pytest.approx(gpus * 200, rel=0.05)
        for user, gpus in {"A": 3.2, "B": 3.2, "C": 9.6}.items()
    )


def test_gpus_that_idle_beside_a_gang_are_filled() -> None:
    """The paper's 3.3: a 1-GPU and a 4-GPU job on 4 GPUs leave 3 idle every other quantum; two such servers need not."""
    jobs = [*at("a", job(1, "A"), job(2, "B", 4)), *at("b", job(3, "A"), job(4, "B", 4))]
    world = run([host("a"), host("b")], jobs)
    verdict = world.step()
    assert MoveReason.PACKING in moves(verdict).values()
    assert any("GPUs idle beside gangs" in text for _, text in verdict.plan.moves.values())
    world.go(200)
    # No arrangement of whole jobs gives A its 2 GPUs and B its 6: now and then who lacks more is helped.
    assert len(world.moved) <= 200 // 20
    world.idle.clear()
    world.gpus.clear()
    world.go(60)
    apart = Run(GANDIVA_FAIR, replace(ask([host("a"), host("b")], jobs), migrations_left=0))
    apart.go(60)
    assert sum(world.idle.values()) < 0.6 * sum(apart.idle.values())
    assert all(gpus > 1.1 * apart.by_user()[user] for user, gpus in world.by_user().items())


def test_two_jobs_leave_a_gang_together_where_it_would_wait_for_either_one_as_long() -> None:
    jobs = [
        *at("a", job(1, "gang", 4), *sweep(2, 2, "S")),
        *at("b", *sweep(10, 4, "S"), *sweep(20, 5, "T", 2)),
        *at("c", *sweep(30, 4, "S"), *sweep(40, 5, "T", 2)),
    ]
    tickets = {"gang": 200, "S": 100, "T": 100}
    verdict = decide([host(name) for name in "abc"], jobs, tickets=tickets)
    assert moves(verdict).items() >= {2: MoveReason.BALANCE, 3: MoveReason.BALANCE}.items()
    assert {homes_of(verdict)[2], homes_of(verdict)[3]} == {"b", "c"}


def test_narrow_jobs_leave_together_where_each_one_keeps_a_gpu_idle() -> None:
    """Of 1, 1, 2 and 2 GPUs on four; servers beside have one GPU to spare each. With one of them gone three would still not fill it."""
    jobs = [
        *at("a", *sweep(1, 2, "A"), *sweep(3, 2, "A", 2)),
        *at("b", job(5, "A"), job(6, "A", 2)),
        *at("c", job(7, "A"), job(8, "A", 2)),
        *at("d", *sweep(10, 2, "B", 4)),
        *at("e", *sweep(12, 2, "B", 4)),
    ]
    verdict = decide([host(name) for name in "abcde"], jobs, tickets={"A": 200, "B": 100})
    assert moves(verdict).keys() == {1, 2}
    assert {homes_of(verdict)[1], homes_of(verdict)[2]} == {"b", "c"}


def test_a_narrow_job_gives_its_place_to_a_wider_one_where_it_keeps_a_gpu_idle_and_nobody_waits() -> None:
    """Of three servers two idle a GPU each beside one and two, and nobody can have it while the third has five jobs of two."""
    jobs = [
        *at("a", job(1, "A", 2), job(2, "B")),
        *at("b", job(3, "A", 2), job(4, "B")),
        *at("c", *sweep(5, 5, "A", 2)),
    ]
    world = run([host(name) for name in "abc"], jobs)
    world.go(3)
    world.gpus.clear()
    world.go(100)
    assert world.by_user() == {"A": 1000, "B": 200}
    assert len(world.moved) == 3


def test_one_of_its_narrow_jobs_fills_another_server_so_that_wider_ones_can_come_beside_parts_of_gangs() -> (
    None
):
    """Two servers idle a GPU each beside two jobs of one and a part, and nobody can have it while the third has seven jobs of two and the other parts."""
    jobs = [
        *at("a", *sweep(1, 7, "A", 2)),
        *at("b", *sweep(8, 2, "B")),
        *at("c", *sweep(10, 2, "B")),
        *at("a+b", job(12, "C", 2, nodes=2)),
        *at("a+c", job(13, "D", 2, nodes=2)),
    ]
    tickets = {"A": Fraction(2), "B": Fraction(2), "C": Fraction(1), "D": Fraction(1)}
    world = run([host(name) for name in "abc"], jobs, tickets=tickets)
    world.go(5)
    world.gpus.clear()
    world.go(100)
    due = {"A": 400, "B": 400, "C": 200, "D": 200}
    assert all(world.by_user()[user] >= 0.9 * gpus for user, gpus in due.items())
    assert sum(world.by_user().values()) >= 0.95 * 1200


def test_gangs_over_several_servers_leave_one_whose_small_jobs_are_due_all_the_time() -> None:
    """Each stays where it can, in its place among the gang's nodes."""
    stay = at("a", *sweep(1, 4, "A", migrate=Migrate.NEVER))
    jobs = [*stay, *at("a+b", *sweep(5, 2, "B", 8, nodes=2)), *at("c", job(9, "B", 4))]
    world = run([host(name) for name in "abc"], jobs)
    verdict = world.go(30)
    assert {homes_of(verdict)[5], homes_of(verdict)[6]} == {"c+b"}
    assert [int(moved) for _, moved in world.moved] == [5, 6]


def test_gangs_that_crowd_on_two_servers_spread_over_all_and_stay_there() -> None:
    world = run([host(name) for name in "abcd"], at("a+b", *sweep(1, 4, "A", 8, nodes=2)))
    verdict = world.go(3)
    assert where(verdict) == {"a+b": 2, "c+d": 2}
    world.go(100)
    assert len(world.moved) == 2


def users_with(jobs: str) -> list[JobFacts]:
    """Of each the user, its GPUs, and `+` where they are on two servers."""
    return [
        job(at, one[0], int(one[1]), nodes=1 + one.endswith("+")) for at, one in enumerate(jobs.split(), 1)
    ]


@pytest.mark.parametrize(
    ("gpus", "jobs", "used"),
    [
        ((8, 4, 8), "F8 H1 E8+ C2 E1 A4", 0.77),
        ((8, 8), "H8 H8 F8 H8 A1 C2 C2 A1 A2 D4 D1 C1", 0.98),
    ],
)
def test_jobs_do_not_go_to_and_fro_to_where_more_is_lost_than_one_user_gains(
    gpus: tuple[int, ...], jobs: str, used: float
) -> None:
    """Who was short became heavier, and jobs left for where others were shorter: up to five of them every thirty quanta, for ever."""
    world = run([host(f"h{at}", has) for at, has in enumerate(gpus)], users_with(jobs), delay=1)
    world.go(30)
    before = sum(world.gpus.values())
    world.go(120)
    assert [quantum for quantum, _ in world.moved if quantum >= 30] == []
    assert sum(world.gpus.values()) - before >= used * 120 * sum(gpus)


def test_who_is_short_where_it_lives_takes_turns_with_others_on_a_server_with_more_room() -> None:
    """Five users on two servers, three on one of them: whoever is short becomes heavier, and one gang moves each twenty quanta or so."""
    world = run([host("a", 8), host("b", 8)], users_with("A8 B8 C8 D8" + 8 * " E1"), delay=1)
    world.go(120)
    assert all(count == pytest.approx(120 * 16 / 5, rel=0.05) for count in world.by_user().values())
    assert 2 <= len(world.moved) <= 6
    assert {world.asked.jobs[job_id - 1].gang for _, job_id in world.moved} == {8}


def test_gangs_over_several_servers_do_not_go_to_and_fro_where_loads_cannot_be_alike() -> None:
    """Of nine no four servers have as many parts each; small jobs are on two of them."""
    gangs = at("a+b", *sweep(1, 5, "A", 8, nodes=2)) + at("c+d", *sweep(6, 4, "B", 8, nodes=2))
    jobs = [*gangs, *at("a", *sweep(20, 3, "C")), *at("c", *sweep(30, 2, "C", 2))]
    world = run([host(name) for name in "abcd"], jobs)
    world.go(100)
    world.moved.clear()
    world.go(200)
    assert world.moved == []


@pytest.mark.parametrize(
    "facts",
    [
        {"migrate": Migrate.NEVER},
        {"settled_s": LONG_AGO},
        {"gpu_memory_bytes": 16 * GIB},
    ],
)
def test_a_gang_over_several_servers_stays_where_a_job_of_one_server_would(facts: dict[str, object]) -> None:
    """Its user wants it to, it has just come, it fits nowhere else."""
    hosts = [host("a"), host("b"), replace(host("c"), gpu_memory_bytes=8 * GIB)]
    stay = at("a", *sweep(1, 4, "A", migrate=Migrate.NEVER))
    assert 5 in moves(decide([host(name) for name in "abc"], [*stay, *at("a+b", job(5, "B", 8, nodes=2))]))
    assert moves(decide(hosts, [*stay, *at("a+b", job(5, "B", 8, nodes=2, **facts))])) == {}


def test_a_gang_with_a_part_on_a_server_that_is_cut_off_is_not_moved() -> None:
    jobs = [*at("a", *sweep(1, 4, "A", migrate=Migrate.NEVER)), *at("a+b", job(5, "B", 8, nodes=2))]
    assert moves(decide([host("a"), host("b", connected=False), host("c")], jobs)) == {}


# --- drains -------------------------------------------------------------------------------------------------------------


def test_a_drained_server_is_emptied_at_once_and_says_why() -> None:
    jobs = [replace(one, settled_s=LONG_AGO) for one in at("a", *sweep(1, 4, "A"))]
    verdict = decide([host("a", accepts=False), host("b"), host("c")], jobs)
    assert moves(verdict) == dict.fromkeys(range(1, 5), MoveReason.DRAIN)
    assert where(verdict) == {"b": 2, "c": 2}
    assert "a is drained" in verdict.plan.moves[JobId(1)][1]


def test_a_gang_leaves_with_all_its_parts() -> None:
    jobs = at("a+b", job(1, "A", 8, nodes=2))
    verdict = decide([host("a", accepts=False), host("b"), host("c")], jobs)
    assert set(homes_of(verdict)[1].split("+")) == {"b", "c"}
    assert moves(verdict) == {1: MoveReason.DRAIN}


def test_who_may_not_or_cannot_move_stays_on_a_drained_server() -> None:
    hosts = [host("a", accepts=False), host("k", model="K80")]
    jobs = at("a", job(1, migrate=Migrate.NEVER), job(2, migrate=Migrate.SAME_TYPE), job(3))
    assert where(decide(hosts, jobs)) == {"a": 2, "k": 1}
    stuck = having(ask(hosts, jobs), jobs=tuple(replace(one, movable=False) for one in jobs))
    assert where(GANDIVA_FAIR.decide(stuck, {})) == {"a": 3}


def test_a_job_whose_server_lost_gpus_goes_to_one_that_has_them() -> None:
    verdict = decide([host("a", 2), host("b")], at("a", job(1, "A", 4)))
    assert where(verdict) == {"b": 1}


def test_a_drain_goes_on_as_the_budget_allows() -> None:
    world = run([host("a", accepts=False), host("b")], at("a", *sweep(1, 4, "A")), migrations_left=1)
    world.go(4)
    assert [quantum for quantum, _ in world.moved] == [0, 1, 2, 3]


# --- edges --------------------------------------------------------------------------------------------------------------


def test_shares_and_trades_stand_while_a_job_that_was_moved_is_starting() -> None:
    hosts = [host("v", 8), host("k", 8, "K80")]
    speeds = rates(A={"V100": 1.2, "K80": 1.0}, B={"V100": 4.0, "K80": 1.0})
    jobs = [*at("v", *sweep(1, 8, "A")), *at("k", *sweep(9, 8, "A")), *at("v", *sweep(17, 16, "B"))]
    calm = decide(hosts, jobs, rates=speeds)
    assert calm.trades
    starting = [replace(one, movable=one.id > 8) for one in ask(hosts, jobs).jobs]
    asked = having(ask(hosts, jobs, rates=speeds), jobs=tuple(starting))
    verdict = GANDIVA_FAIR.decide(asked, calm.memory)
    assert (verdict.trades, verdict.base) == (calm.trades, calm.base)
    assert not any(one.undone for one in verdict.news)
    rooted = having(asked, jobs=tuple(replace(one, rooted=not one.movable) for one in starting))
    assert GANDIVA_FAIR.decide(rooted, calm.memory).base != calm.base, (
        "what is there for good asks for no other pool"
    )


def test_a_class_nobody_has_measured_on_an_idle_newer_model_sends_one_job_there_to_find_out() -> None:
    hosts = [host("v", 4), host("k", 4, "K80")]
    jobs = at("k", *sweep(1, 2, "A", started=True, running=True))
    known = rates(A={"K80": 1.0})
    assert list(moves(decide(hosts, jobs, rates=known)).values()) == [MoveReason.POOL]
    here = [
        *at("v", *sweep(1, 1, "A", started=True, running=True)),
        *at("k", *sweep(2, 1, "A", started=True, running=True)),
    ]
    assert not moves(decide(hosts, here, rates=known)), "one is enough"


@pytest.mark.parametrize("share", [4, 0])
def test_classes_find_out_one_after_the_other_about_a_newer_model_that_their_user_has_a_share_of(
    share: int,
) -> None:
    """Its other jobs have those GPUs, and came first; to whoever has no share of them it is nothing."""
    hosts = [host("v", share or 4), host("k", 8, "K80")]
    known = {**rates(A={"V100": 1.2, "K80": 1.0}), ("y", "K80"): 1.0, ("w", "K80"): 1.0}
    first = [*at("v", *sweep(1, 4, "A")), *at("k", *sweep(5, 4, "A"))]
    new = [*at("k", *sweep(9, 3, "A", of="y")), *at("k", *sweep(12, 2, "A", of="w"))]
    if not share:
        first = [replace(one, gpu_types=("K80",)) for one in at("k", *sweep(1, 8, "A"))]
        new = [*at("k", *sweep(9, 3, "B", of="y")), *at("v", *sweep(20, 4, "C", of="C/x"))]
    tickets = None if share else {"B": 1, "C": 10_000}
    world = run(hosts, [*first, *new], rates=known, tickets=tickets)
    verdict = world.step()
    if not share:
        assert not any(job_id in range(9, 12) for job_id in verdict.plan.moves)
        return
    ((scout, (reason, text)),) = verdict.plan.moves.items()
    assert scout in range(9, 14)
    assert (reason, text) == (
        MoveReason.POOL,
        "nobody knows how fast its class is on V100; it goes there to find out",
    )
    world.go(30)
    assert len(world.moved) == 1, "until that one is measured"
    found = "w" if scout >= 12 else "y"
    world.change(rates={**known, (found, "V100"): 5.0})
    world.go(5)
    assert {"y", "w"} == {job.job_class for job in world.asked.jobs if job.hosts == ("v",)} - {"A/x"}

"""The gang-aware stride: the paper's table 2 and figure 4, and what must hold when jobs come, go and change weight."""

import json
from collections import Counter
from fractions import Fraction
from itertools import permutations
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hs_core.errors import BrokenError
from hs_core.mechanism.exact import exact
from hs_core.mechanism.stride import COARSEST, StrideQueue

F = Fraction
Jobs = list[tuple[str, int, F]]  # name (its first letter is the user), gang, tickets


def queue_of(jobs: Jobs) -> StrideQueue[str]:
    queue: StrideQueue[str] = StrideQueue()
    for at, (name, gang, tickets) in enumerate(jobs):
        queue.add(name, gang, tickets, (at,), kin=name[0])
    return queue


TABLE_2: Jobs = [
    (f"{user}{n}", gang, F(2, 3)) for user, gang in (("A", 1), ("B", 2), ("C", 4)) for n in (1, 2)
]
FIGURE_4: Jobs = [
    (f"{user}{n}", gang, F(1, 3)) for user, gang in (("A", 1), ("B", 2), ("C", 4)) for n in range(4)
]


def assert_table_2(runs: list[list[str]]) -> None:
    want = {"A1": 4, "A2": 4, "B1": 2, "B2": 2, "C1": 1, "C2": 1}
    for start in range(len(runs) - 5):
        assert Counter(job for run in runs[start : start + 6] for job in run) == want


def test_table_2_is_exact_in_every_window_of_six_quanta() -> None:
    queue = queue_of(TABLE_2)
    assert_table_2([queue.pick(4) for _ in range(300)])


@pytest.mark.parametrize("users", list(permutations("ABC")))
def test_table_2_is_exact_whoever_came_first(users: tuple[str, ...]) -> None:
    queue = queue_of(sorted(TABLE_2, key=lambda job: users.index(job[0][0])))
    assert_table_2([queue.pick(4) for _ in range(60)])


def test_table_2_is_exact_for_jobs_that_all_enter_at_one_point() -> None:
    queue: StrideQueue[str] = StrideQueue()
    for at, (name, gang, tickets) in enumerate(TABLE_2):
        queue.add(name, gang, tickets, (at,), carry=F(0))
    assert_table_2([queue.pick(4) for _ in range(60)])


@pytest.mark.parametrize("users", list(permutations("ABC")))
def test_figure_4_gives_each_user_a_third_over_any_30_quanta(users: tuple[str, ...]) -> None:
    queue = queue_of(sorted(FIGURE_4, key=lambda job: users.index(job[0][0])))
    gang = {name: gang for name, gang, _ in FIGURE_4}
    runs = [queue.pick(4) for _ in range(240)]
    for start in range(len(runs) - 29):
        got: Counter[str] = Counter()
        for run in runs[start : start + 30]:
            for job in run:
                got[job[0]] += gang[job]
        for user in "ABC":
            assert got[user] / 30 == pytest.approx(4 / 3, rel=0.02)


def test_the_user_who_remains_gets_all_gpus() -> None:
    queue = queue_of(FIGURE_4)
    for _ in range(25):
        queue.pick(4)
    for job in FIGURE_4:
        if job[0][0] != "B":
            queue.remove(job[0])
    queue.set_tickets({f"B{n}": F(1) for n in range(4)})
    runs = [queue.pick(4) for _ in range(40)]
    assert all(len(run) == 2 for run in runs)
    assert Counter(job for run in runs for job in run) == {f"B{n}": 20 for n in range(4)}


def test_passes_do_not_drift_in_a_million_quanta() -> None:
    jobs: Jobs = [("A", 1, F(1, 3)), ("B", 1, F(2, 7)), ("C", 1, F(8, 21))]  # sum to the one GPU there is
    queue = queue_of(jobs)
    ran: Counter[str] = Counter()
    for _ in range(1_000_000 // 21):
        for _ in range(21):
            ran.update(queue.pick(1))
    quanta = ran.total()
    assert ran == {name: int(tickets * quanta) for name, _, tickets in jobs}
    assert queue.virtual_time() == quanta
    assert set(queue.passes().values()) == {0}


def test_a_rounded_scale_does_not_drift_either() -> None:
    jobs: Jobs = [(f"{chr(65 + n)}", 1, F(1_000_003 + 2 * n, 7_000_000_021 + n)) for n in range(7)]
    queue = queue_of(jobs)
    ran: Counter[str] = Counter()
    for _ in range(50_000):
        ran.update(queue.pick(3))
    total = sum(tickets for _, _, tickets in jobs)
    for name, _, tickets in jobs:
        assert abs(ran[name] - 150_000 * tickets / total) <= 1


def test_a_newcomer_after_a_long_capped_run_is_neither_starved_nor_favoured() -> None:
    # A's one job can use one GPU and ran always: its pass is what a minimum-pass rule would hand to the newcomer.
    queue: StrideQueue[str] = StrideQueue()
    queue.add("a", 1, F(1), (0,), kin="A")
    for n in range(3):
        queue.add(f"b{n}", 2, F(1), (1, n), kin="B")
    for _ in range(5_000):
        queue.pick(4)
    # Entitlement with the newcomer: A 1, B 1.5, C 1.5.
    queue.set_tickets({"a": F(1), **{f"b{n}": F(1, 2) for n in range(3)}})
    for n in range(3):
        queue.add(f"c{n}", 2, F(1, 2), (2, n), kin="C")
    got: Counter[str] = Counter()
    for quantum in range(1, 201):
        for job in queue.pick(4):
            got[job[0]] += 2 if job[0] != "a" else 1
        assert abs(got["b"] - got["c"]) <= 6
        if quantum >= 4:
            assert got["c"] > 0
    # One GPU idles beside A's, whatever is done: 1 to 1.5 to 1.5 of what can be used.
    assert got["c"] == pytest.approx(got["b"], rel=0.02)
    assert got["c"] == pytest.approx(1.5 * got["a"], rel=0.02)


def test_gpus_idle_for_lack_of_fit_do_not_make_a_newcomer_wait() -> None:
    queue: StrideQueue[str] = StrideQueue()
    queue.add("x", 3, F(2), (0,), kin="X")
    queue.add("y", 3, F(2), (1,), kin="Y")
    for _ in range(10_000):
        assert len(queue.pick(4)) == 1
    queue.set_tickets({"x": F(4, 3), "y": F(4, 3)})
    queue.add("z", 3, F(4, 3), (2,), kin="Z")
    runs = [queue.pick(4)[0] for _ in range(30)]
    assert "z" in runs[:3]
    for start in range(28):
        assert sorted(runs[start : start + 3]) == ["x", "y", "z"]


def test_a_server_below_its_demand_does_not_make_a_newcomer_wait() -> None:
    queue: StrideQueue[str] = StrideQueue()
    queue.add("x", 1, F(1), (0,))
    for _ in range(10_000):
        assert queue.pick(4) == ["x"]
    queue.add("y", 4, F(3), (1,))
    runs = [queue.pick(4) for _ in range(40)]
    assert ["y"] in runs[:2]
    # GPU-time 1 to 3 is quanta 4 to 3: 40 * 3/7.
    assert 16 <= runs.count(["y"]) <= 18


def test_a_job_that_never_fits_does_not_hold_back_the_virtual_time() -> None:
    queue: StrideQueue[str] = StrideQueue()
    queue.add("large", 8, F(2), (0,))
    queue.add("a", 2, F(1), (1,))
    queue.add("b", 4, F(1), (2,))
    for _ in range(3_000):
        assert "large" not in queue.pick(4)
    assert queue.carry("large") == -1
    queue.add("c", 4, F(1), (3,))
    first = [queue.pick(4) for _ in range(60)]
    assert sum("c" in run for run in first) == pytest.approx(15, abs=2)


def test_a_job_that_fits_again_has_earned_one_stride_and_no_more() -> None:
    queue: StrideQueue[str] = StrideQueue()
    queue.add("large", 4, F(2), (0,))
    queue.add("a", 1, F(1), (1,))
    queue.add("b", 1, F(1), (2,))
    for _ in range(1_000):
        assert "large" not in queue.pick(2)
    runs = [queue.pick(4) for _ in range(40)]
    # A third of the quanta (4 of 12 GPU-quanta to 2 of 6), and one more that it had earned.
    assert 14 <= sum("large" in run for run in runs) <= 15


def test_forced_jobs_run_every_quantum_and_owe_at_most_one_stride() -> None:
    queue = queue_of([("u", 2, F(1)), ("a", 2, F(3, 2)), ("b", 2, F(3, 2))])
    for _ in range(1_000):
        run = queue.pick(4, forced=["u"])
        assert run[0] == "u"
        assert len(run) == 2
    assert queue.carry("u") == 1
    assert abs(queue.carry("a")) <= 1
    queue.add("n", 2, F(1), (9,))
    runs = [queue.pick(4, forced=["u"]) for _ in range(40)]
    assert sum("n" in run for run in runs) == pytest.approx(10, abs=1)
    assert any("u" in queue.pick(4) for _ in range(4))


def test_forced_jobs_that_do_not_fit_are_a_bug_of_the_caller() -> None:
    queue = queue_of([("u", 3, F(1)), ("v", 2, F(1))])
    with pytest.raises(BrokenError, match="need 5 GPUs, the server has 4"):
        queue.pick(4, forced=["u", "v"])


def test_a_fraction_of_a_quantum_is_charged_as_such() -> None:
    queue = queue_of([("a", 1, F(1, 2)), ("b", 1, F(1, 2))])
    queue.charge(["a"], F(1, 4))
    queue.charge(["b"], F(1, 4))
    passes = queue.passes()
    assert passes["a"] == passes["b"]
    queue.charge(["a"], F(7, 10))
    passes = queue.passes()
    assert float(passes["a"] - passes["b"]) == pytest.approx(1.4, abs=2**-COARSEST)
    assert queue.order() == ["b", "a"]


def test_charging_what_pick_would_choose_is_the_same_as_pick() -> None:
    left, right = queue_of(FIGURE_4), queue_of(FIGURE_4)
    for _ in range(50):
        chosen = left.pick(4)
        right.charge(chosen)
        assert left.passes() == right.passes()
        assert left.order() == right.order()


def test_a_job_that_is_not_able_waits_along() -> None:
    queue = queue_of([("a", 1, F(1, 2)), ("b", 1, F(1, 2)), ("s", 1, F(1, 2))])
    for quantum in range(500):
        job = "ab"[quantum % 2]
        queue.charge([job], able=["a", "b"])
    assert queue.carry("s") == -1
    assert abs(queue.carry("a")) <= 1


def test_credit_earned_while_unable_ends_at_one_stride_exactly() -> None:
    queue = queue_of([("a", 1, F(3, 7)), ("b", 1, F(4, 7)), ("s", 4, F(5, 7))])
    for quantum in range(50):
        queue.charge(["a" if quantum % 7 < 3 else "b"], able=["a", "b"])
    assert queue.passes()["s"] == -F(28, 5)


def test_credit_of_more_than_a_stride_is_not_lost_by_being_unable_for_a_while() -> None:
    queue = queue_of([("a", 1, F(1, 2)), ("b", 1, F(1, 2)), ("s", 1, F(1, 2))])
    for quantum in range(15):
        queue.charge(["ab"[quantum % 2]])  # it could have run: whoever binds GPUs had none for it
    owed = queue.passes()["s"]
    assert owed < -4
    for quantum in range(15, 25):
        queue.charge(["ab"[quantum % 2]], able=["a", "b"])
    assert abs(queue.passes()["s"] - owed) < F(1, 2**30)


def test_those_who_leave_unserved_leave_no_credit_to_newcomers() -> None:
    queue: StrideQueue[str] = StrideQueue()
    queue.add("x", 1, F(1), (0,))
    for n in range(500):
        queue.add(f"c{n}", 1, F(9), (1, n))
        queue.charge(["x"])
        queue.remove(f"c{n}")
    queue.add("late", 1, F(1), (2,))
    runs = [queue.pick(1)[0] for _ in range(20)]
    assert abs(runs.count("late") - runs.count("x")) <= 1


def test_an_unsettled_queue_answers_as_a_settled_one() -> None:
    queue = queue_of(TABLE_2)
    for _ in range(4):
        queue.pick(4)
    before = {job: queue.carry(job) for job, _, _ in TABLE_2}
    queue.add("n", 1, F(1), (99,))
    assert {job: queue.carry(job) for job, _, _ in TABLE_2} == before


def test_who_carries_a_debt_elsewhere_enters_with_it() -> None:
    here, there = queue_of(TABLE_2), queue_of([("x", 1, F(1, 2)), ("y", 4, F(1, 2))])
    here.pick(4)
    there.pick(4)
    carried = here.remove("C1")
    assert -1 <= carried < 0
    there.add("C1", 4, F(2), (5,), carry=carried)
    assert there.carry("C1") == carried
    there.add("far", 1, F(1), (6,), carry=F(50))
    assert there.carry("far") == 1


def test_changed_tickets_scale_the_difference_with_the_stride() -> None:
    queue = queue_of(TABLE_2)
    for _ in range(4):
        queue.pick(4)
    before = {job: queue.carry(job) for job, _, _ in TABLE_2}
    queue.set_tickets({job: tickets * 5 for job, _, tickets in TABLE_2[:3]})
    assert {job: queue.carry(job) for job, _, _ in TABLE_2} == before


def test_scaling_all_tickets_changes_no_choice() -> None:
    left = queue_of(FIGURE_4)
    right = queue_of([(job, gang, tickets * F(300, 7)) for job, gang, tickets in FIGURE_4])
    assert [left.pick(4) for _ in range(60)] == [right.pick(4) for _ in range(60)]


def test_cancelling_and_submitting_again_every_quantum_gains_nothing() -> None:
    queue: StrideQueue[str] = StrideQueue()
    honest = [f"h{n}" for n in range(7)]
    for at, job in enumerate(honest):
        queue.add(job, 1, F(1, 2), (0, at), kin=job)
    got = 0
    for quantum in range(4_000):
        queue.add(f"c{quantum}", 1, F(1, 2), (1, quantum), kin="c")
        got += f"c{quantum}" in queue.pick(4)
        queue.remove(f"c{quantum}")
    assert got / 4_000 <= 0.5 * 1.03


@pytest.mark.parametrize("quit_when", ["served", "not served"])
def test_leaving_when_it_pays_gains_nothing(quit_when: str) -> None:
    queue: StrideQueue[str] = StrideQueue()
    for at in range(7):
        queue.add(f"h{at}", 1, F(1, 2), (0, at), kin=at)
    got, name = 0, 0
    queue.add("c0", 1, F(1, 2), (1, 0), kin="c")
    for _ in range(4_000):
        served = f"c{name}" in queue.pick(4)
        got += served
        if served == (quit_when == "served"):
            queue.remove(f"c{name}")
            name += 1
            queue.add(f"c{name}", 1, F(1, 2), (1, name), kin="c")
    assert got / 4_000 <= 0.5 * 1.03


def test_splitting_into_many_small_jobs_gains_nothing() -> None:
    queue: StrideQueue[str] = StrideQueue()
    for n in range(4):
        queue.add(f"a{n}", 1, F(2, 4), (0, n), kin="A")
    for n in range(100):
        queue.add(f"b{n}", 1, F(2, 100), (1, n), kin="B")
    got = Counter(job[0] for _ in range(1_000) for job in queue.pick(4))
    assert got["b"] / 4_000 == pytest.approx(0.5, rel=0.03)


def test_a_dump_survives_json_and_goes_on_exactly() -> None:
    queue = queue_of(FIGURE_4)
    for _ in range(17):
        queue.pick(4)
    queue.charge(["A0"], F(1, 3))
    queue.add("late", 2, F(5, 9), (77,), carry=F(1, 3))
    queue.pick(4)
    again: StrideQueue[str] = StrideQueue.load(json.loads(json.dumps(queue.dump())))
    assert again.dump() == queue.dump()
    assert again.virtual_time() == queue.virtual_time()
    assert [again.pick(4) for _ in range(60)] == [queue.pick(4) for _ in range(60)]


def test_an_empty_queue_picks_nobody_and_round_trips() -> None:
    queue: StrideQueue[str] = StrideQueue()
    assert queue.pick(4) == []
    assert queue.order() == []
    queue.add("a", 1, F(1), (0,))
    queue.pick(4)
    queue.remove("a")
    assert queue.pick(4) == []
    assert StrideQueue[str].load(queue.dump()).dump() == queue.dump()


@pytest.mark.parametrize(
    ("gang", "tickets", "said"), [(0, F(1), "gang of 0"), (1, F(0), "0 tickets"), (1, F(-1), "-1 tickets")]
)
def test_what_has_no_stride_is_refused(gang: int, tickets: F, said: str) -> None:
    queue: StrideQueue[str] = StrideQueue()
    with pytest.raises(BrokenError, match=said):
        queue.add("a", gang, tickets, (0,))
    assert len(queue) == 0


def test_unknown_and_repeated_jobs_are_refused() -> None:
    queue = queue_of([("a", 1, F(1)), ("b", 1, F(1))])
    for call in (
        lambda: queue.add("a", 1, F(1), (9,)),
        lambda: queue.remove("x"),
        lambda: queue.set_tickets({"x": F(1)}),
        lambda: queue.charge(["x"]),
        lambda: queue.charge(["a"], forced=["a"]),
        lambda: queue.charge(["a"], F(0)),
        lambda: queue.carry("x"),
    ):
        with pytest.raises(BrokenError):
            call()
    assert queue.pick(1) == ["a"]


@pytest.mark.parametrize("tickets", [F(2, 3), F(1, 6), F(4, 3), F(1, 999), F(100), F(64, 7)])
def test_tickets_that_travelled_as_a_float_are_exact_again(tickets: F) -> None:
    assert exact(float(tickets)) == tickets


def test_tickets_that_are_no_simple_fraction_stay_what_they_are() -> None:
    assert exact(1e-9) == F(1e-9)
    assert exact(0.123456789123) == F(0.123456789123)


@st.composite
def servers(draw: st.DrawFn) -> tuple[int, Jobs]:
    """A server that is full, with tickets that are entitlements: nobody above its gang, their sum the server's GPUs."""
    free = draw(st.sampled_from([1, 2, 4, 8]))
    gangs = draw(st.lists(st.sampled_from([g for g in (1, 2, 4, 8) if g <= free]), min_size=1, max_size=10))
    weights = [draw(st.fractions(F(1, 5), F(5), max_denominator=9)) for _ in gangs]
    total = sum(weights)
    return free, [
        (f"{chr(65 + n)}", g, w * free / total) for n, (g, w) in enumerate(zip(gangs, weights, strict=True))
    ]


@settings(max_examples=150, deadline=None)
@given(servers(), st.integers(1, 60))
def test_the_mean_pass_is_the_virtual_time(server: tuple[int, Jobs], quanta: int) -> None:
    free, jobs = server
    queue = queue_of(jobs)
    for _ in range(5):
        queue.pick(free)
    tickets = {name: t for name, _, t in jobs}
    before = sum((tickets[job] * lag for job, lag in queue.passes().items()), F(0))
    for _ in range(quanta):
        queue.pick(free)
    after = sum((tickets[job] * lag for job, lag in queue.passes().items()), F(0))
    # Exactly, but that each quantum in which somebody is too far ahead is a change: rounded once, by half a step for each of them.
    assert abs(after - before) <= F(1, 2**COARSEST) * max(1, quanta * sum(tickets.values()))


@settings(max_examples=150, deadline=None)
@given(servers())
def test_gangs_run_whole_and_never_beyond_the_server(server: tuple[int, Jobs]) -> None:
    free, jobs = server
    gang = {name: g for name, g, _ in jobs}
    queue = queue_of(jobs)
    for _ in range(40):
        run = queue.pick(free)
        assert len(set(run)) == len(run)
        used = sum(gang[job] for job in run)
        assert used <= free
        assert not [job for job in gang if job not in run and gang[job] <= free - used]


@settings(max_examples=60, deadline=None)
@given(servers())
def test_equal_gangs_share_by_their_tickets_but_for_what_is_due_while_each_other_has_one_turn(
    server: tuple[int, Jobs],
) -> None:
    """At equal passes all others may come first: whoever has most tickets is behind by most then."""
    free, jobs = server
    # A job cannot use more than itself: leave those out that the server could not give what they are weighed at.
    jobs = [(name, 1, tickets) for name, _, tickets in jobs]
    total = sum(t for _, _, t in jobs)
    if len(jobs) < free or any(t * free > total for _, _, t in jobs):
        return
    queue = queue_of(jobs)
    ran: Counter[str] = Counter()
    for quantum in range(1, 81):
        ran.update(queue.pick(free))
        for name, _, tickets in jobs:
            due = free * tickets / total
            assert abs(ran[name] - quantum * due) <= 1 + ceil((len(jobs) - 1) / free) * due


actions = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 4), st.fractions(F(1, 9), F(9), max_denominator=12)),
        st.tuples(st.just("remove"), st.integers(0, 20), st.just(F(0))),
        st.tuples(st.just("tickets"), st.integers(0, 20), st.fractions(F(1, 9), F(9), max_denominator=12)),
        st.tuples(st.just("pick"), st.integers(0, 4), st.just(F(0))),
        st.tuples(st.just("force"), st.integers(0, 20), st.just(F(0))),
        st.tuples(st.just("crash"), st.just(0), st.just(F(0))),
    ),
    max_size=60,
)


@settings(max_examples=120, deadline=None)
@given(actions)
def test_whatever_happens_a_crash_changes_nothing_and_a_newcomer_is_served(
    steps: list[tuple[str, int, F]],
) -> None:
    queue: StrideQueue[int] = StrideQueue()
    twin: StrideQueue[int] = StrideQueue()
    gangs: dict[int, int] = {}
    for at, (what, n, tickets) in enumerate(steps):
        present = sorted(gangs)
        job = present[n % len(present)] if present else None
        for q in (queue, twin):
            if what == "add":
                q.add(at, n, tickets, (at,))
            elif what == "remove" and job is not None:
                q.remove(job)
            elif what == "tickets" and job is not None:
                q.set_tickets({job: tickets})
            elif what == "pick":
                q.pick(n)
            elif what == "force" and job is not None:
                q.pick(4, forced=[job])
        if what == "add":
            gangs[at] = n
        elif what == "remove" and job is not None:
            del gangs[job]
        elif what == "crash":
            twin.dump()
            queue = StrideQueue.load(json.loads(json.dumps(queue.dump())))
    assert queue.dump() == twin.dump()
    if not gangs:
        return
    share = max(F(1, 9), sum((e.tickets for e in queue._entries.values()), F(0)) / 4)
    queue.add(-1, 1, share, (10_000,))
    waited = next(q for q in range(200) if -1 in queue.pick(4))
    assert waited <= 4 * len(gangs) + 4

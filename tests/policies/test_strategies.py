"""Tesserae's choice of parallelism strategies: what is measured, the fastest alone, the best for a pair; a restart must pay."""

from dataclasses import replace

import pytest

from hs_core.model import Migrate, MoveReason
from hs_core.names import HostName, JobId
from hs_core.plan import check
from hs_core.policies import find
from hs_core.policy import JobFacts, Snapshot, Verdict
from hs_core.strategy import Strategy, class_as, parse

from .worlds import GIB, Run, host, job, snapshot  # noqa: TID252 — tests are no package on the path

H = HostName("h")
LAS = find("tesserae-las")
DP, TP, PP = parse("dp=2"), parse("tp=2"), parse("pp=2")
ALL = (DP, TP, PP)


def some(at: int, own: Strategy | None = None, name: str = "c", **facts: object) -> JobFacts:
    """`own`: that it has at its home, where it runs."""
    more: dict[str, object] = {"strategies": ALL, "movable": True, "memory_bytes": 4 * GIB, "steps": 10_000.0}
    if own is not None:
        more |= {"hosts": (H,), "started": True, "running": True, "shape": own}
    made = job(at, gang=2, job_class=class_as(name, own or DP), **more)
    return replace(made, **facts)  # type: ignore[arg-type]  # the tests' own facts


def world(*jobs: JobFacts, gpus: int = 2, left: int = 9, **rates: float) -> Snapshot:
    """`rates`: of class c by strategy."""
    known = {(class_as("c", parse(f"{name}=2")), "V100"): rate for name, rate in rates.items()}
    return snapshot([host("h", gpus)], list(jobs), rates=known, migrations_left=left)


def given(verdict: Verdict) -> dict[int, str]:
    return {int(job): str(getattr(form, "text", form)) for job, form in verdict.plan.shapes.items()}


def test_a_class_that_was_never_measured_begins_with_the_first_that_its_user_declares() -> None:
    verdict = LAS.decide(world(some(1)), {})
    assert given(verdict) == {}
    assert "as dp=2: it was not measured yet on V100" in verdict.how[JobId(1)]


def test_jobs_of_one_class_that_start_at_once_measure_different_strategies() -> None:
    verdict = LAS.decide(world(*(some(at) for at in (1, 2, 3)), gpus=6), {})
    tried = {given(verdict).get(at, "dp=2") for at in (1, 2, 3)}
    assert tried == {"dp=2", "tp=2", "pp=2"}


def test_a_job_keeps_what_it_has_until_that_was_measured() -> None:
    assert given(LAS.decide(world(some(1, DP)), {})) == {}
    assert given(LAS.decide(world(some(1, DP), tp=9.0, pp=1.0), {})) == {}


def test_then_it_is_restarted_in_one_that_was_not() -> None:
    verdict = LAS.decide(world(some(1, DP), dp=1.0), {})
    assert given(verdict)[1] in {"tp=2", "pp=2"}
    assert verdict.plan.moves[JobId(1)][0] is MoveReason.SHAPE
    assert verdict.plan.homes[JobId(1)] == (H,)


@pytest.mark.parametrize(("faster", "chosen"), [(1.05, {}), (1.2, {1: "tp=2"})])
def test_alone_it_has_the_fastest_if_that_gains_a_tenth(faster: float, chosen: dict[int, str]) -> None:
    assert given(LAS.decide(world(some(1, DP), dp=1.0, tp=faster, pp=0.5), {})) == chosen


def test_one_that_has_not_started_has_the_fastest_whatever_that_gains() -> None:
    assert given(LAS.decide(world(some(1), dp=1.0, tp=1.01, pp=0.5), {})) == {1: "tp=2"}


@pytest.mark.parametrize(
    "facts",
    [{"migrate": Migrate.NEVER}, {"movable": False}, {"steps": 50.0}, {"strategies": (DP,)}],
    ids=["never", "no-checkpoint", "nearly-done", "only-one"],
)
def test_it_is_not_restarted_where_that_cannot_be_or_does_not_pay(facts: dict[str, object]) -> None:
    assert given(LAS.decide(world(some(1, DP, **facts), dp=1.0, tp=3.0, pp=0.5), {})) == {}


def test_restarts_are_moves_of_the_budget() -> None:
    asked = world(some(1, DP), some(2, DP), gpus=4, left=1, dp=1.0, tp=3.0, pp=0.5)
    assert given(LAS.decide(asked, {})) == {1: "tp=2"}


def test_beside_another_job_both_have_what_is_best_for_the_pair() -> None:
    """Figure 7: what is fastest alone does not fit beside the other."""
    slowed = {
        (class_as("c", DP), "v", "V100"): 1.9, ("v", class_as("c", DP), "V100"): 1.9,
        (class_as("c", TP), "v", "V100"): 1.1, ("v", class_as("c", TP), "V100"): 1.1,
    }  # fmt: skip
    language = some(1, DP, strategies=(DP, TP))
    vision = job(2, gang=2, job_class="v", memory_bytes=4 * GIB, movable=True, attained_gpu_s=500.0)
    asked = replace(world(language, vision, dp=1.0, tp=0.95), interference=slowed)
    verdict = LAS.decide(asked, {})
    (guest,) = verdict.plan.turns[H].guests
    assert guest.job == 2
    assert given(verdict) == {1: "tp=2"}
    assert verdict.how[JobId(1)] == "as tp=2: beside job 2 both get most done so"


def test_over_rounds_each_strategy_is_tried_once_and_the_best_is_kept() -> None:
    true = {DP: 1.0, TP: 2.0, PP: 1.5}
    run = Run(LAS, world(some(1)))
    known: dict[tuple[str, str], float] = {}
    had = []
    for _ in range(12):
        run.change(rates=dict(known))
        run.step()
        (now,) = run.asked.jobs
        assert now.strategy is not None
        known[class_as("c", now.strategy), "V100"] = true[now.strategy]
        had.append(now.strategy)
    assert set(had[:3]) == set(ALL)
    assert set(had[4:]) == {TP}
    assert len(run.moved) <= 3


def test_other_policies_leave_strategies_as_they_are() -> None:
    for name in ("las", "gandiva-fair", "gavel-max-min-packed", "sjf-bsbf", "pollux"):
        verdict = find(name).decide(world(some(1, TP), dp=9.0, tp=1.0, pp=1.0), {})
        assert given(verdict) == {}, name


def test_one_that_is_placed_and_has_not_come_up_keeps_what_it_was_given() -> None:
    placed = some(1, TP, started=False, running=False)
    for rates in ({"dp": 1.0}, {"dp": 1.0, "pp": 9.0}, {"dp": 1.0, "tp": 1.0, "pp": 1.05}):
        assert given(LAS.decide(world(placed, **rates), {})) == {}, rates


def test_who_was_never_measured_is_joined_in_the_strategy_in_which_its_class_was_seen_to_fit() -> None:
    waits = some(2, name="d", memory_bytes=0, attained_gpu_s=500.0)
    asked = world(some(1, DP), waits, dp=1.0, tp=1.0, pp=1.0)
    d = {name: class_as("d", parse(f"{name}=2")) for name in ("dp", "tp")}
    c = class_as("c", DP)
    asked = replace(
        asked,
        rates={**asked.rates, **{(name, "V100"): 1.0 for name in d.values()}},
        interference={(c, d["tp"], "V100"): 1.1, (d["tp"], c, "V100"): 1.1},
    )
    verdict = LAS.decide(asked, {})
    assert [guest.job for guest in verdict.plan.turns[H].guests] == [2]
    assert given(verdict) == {2: "tp=2"}
    check(asked, verdict.plan, LAS.needs)


@pytest.mark.parametrize(("left", "together"), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2)])
def test_jobs_are_joined_in_other_strategies_only_where_the_budget_lets_both_of_a_pair_be_restarted(
    left: int, together: int
) -> None:
    """Nobody knows how much memory they take: only as tp=2 they were seen to fit."""
    run = [some(at, DP, memory_bytes=0) for at in (1, 2)]
    wait = [
        some(at, DP, name="d", memory_bytes=0, running=False, attained_gpu_s=500.0, strategies=(DP, TP))
        for at in (3, 4)
    ]
    c, d = class_as("c", TP), class_as("d", TP)
    asked = world(*run, *wait, gpus=4, left=left, dp=1.0, tp=1.0, pp=0.5)
    asked = replace(
        asked,
        rates={**asked.rates, (class_as("d", DP), "V100"): 1.0, (d, "V100"): 1.0},
        interference={(c, d, "V100"): 1.1, (d, c, "V100"): 1.1},
    )
    verdict = LAS.decide(asked, {})
    check(asked, verdict.plan, LAS.needs)
    assert len(verdict.plan.turns[H].guests) == together
    assert given(verdict) == dict.fromkeys([*range(1, together + 1), *range(3, together + 3)], "tp=2")

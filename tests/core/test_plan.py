"""A plan that breaks a law is stopped before anybody acts on it."""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import pytest

from hs_core.errors import BrokenError
from hs_core.forms import Elastic, Shape
from hs_core.model import Migrate, MoveReason
from hs_core.names import HostName, JobId, UserName
from hs_core.plan import check
from hs_core.policy import HostFacts, JobFacts, Needs, Plan, Snapshot
from hs_core.wanted import Guest, Seat, Turn

GIB = 2**30
H, K, X = HostName("h"), HostName("k"), HostName("x")
HOSTS = (
    HostFacts(name=H, model="V100", gpus=4, gpu_memory_bytes=16 * GIB),
    HostFacts(name=K, model="K80", gpus=8, gpu_memory_bytes=12 * GIB),
)


def job(at: int, gang: int = 2, **facts: object) -> JobFacts:
    made = JobFacts(id=JobId(at), user=UserName("u"), gang=gang, arrival_s=float(at))
    return replace(made, **facts)  # type: ignore[arg-type]  # the tests' own facts


def ask(*jobs: JobFacts, hosts: tuple[HostFacts, ...] = HOSTS) -> Snapshot:
    """Whoever has a process is in its turn."""
    return Snapshot(
        now_s=0.0,
        quantum_s=60.0,
        quantum=0,
        hosts=hosts,
        jobs=jobs,
        running=frozenset(one.id for one in jobs if one.started),
        tickets={UserName("u"): Fraction(1)},
    )


def plan(
    homes: Mapping[int, HostName | tuple[HostName, ...]],
    turns: Mapping[HostName, Turn] | None = None,
    tickets: Mapping[int, Fraction] | None = None,
) -> Plan:
    return Plan(
        homes={JobId(at): home if isinstance(home, tuple) else (home,) for at, home in homes.items()},
        turns={H: Turn(), K: Turn()} | dict(turns or {}),
        tickets={JobId(at): Fraction(1) for at in homes}
        if tickets is None
        else {JobId(at): t for at, t in tickets.items()},
    )


def turn(*jobs: int) -> Turn:
    return Turn(gangs=tuple(JobId(at) for at in jobs), local=False)


def test_a_lawful_plan_passes() -> None:
    check(ask(job(1), job(2), job(3)), plan({1: H, 2: H, 3: K}, {H: turn(1, 2), K: turn(3)}))
    check(ask(), plan({}))


@pytest.mark.parametrize(
    ("jobs", "wanted", "said"),
    [
        (
            [job(1, 3), job(2, 2)],
            plan({1: H, 2: H}, {H: turn(1, 2)}),
            "promised twice: its turn needs 5, it has 4",
        ),
        ([job(1)], plan({1: H}, {H: turn(1, 1)}), "twice in the turn of h"),
        ([job(1)], plan({1: K}, {H: turn(1)}), "job 1 is in the turn of h; its home is"),
        ([job(1)], plan({}, {H: turn(1)}), "job 1 is in the turn of h; its home is"),
        ([job(1)], plan({1: X}), "job 1 has a home on x; the snapshot has no such server"),
        (
            [job(1)],
            replace(plan({1: H}), in_step=frozenset({H, X})),
            "x is to be in step; the snapshot has no such server",
        ),
        ([], plan({1: H}), "the snapshot has no such job"),
        ([job(1, 5)], plan({1: H}), "needs 5 GPUs and is placed on h, which has 4"),
        ([job(1, gpu_types=("K80",))], plan({1: H}), "is for K80 and is placed on h"),
        ([job(1, gpu_memory_bytes=13 * GIB)], plan({1: K}), "bytes of GPU memory and is placed on k"),
        ([job(1, hosts=(H,), started=True)], plan({1: K}), "is planned on .*; it cannot move"),
        ([job(1, hosts=(H,), started=True)], plan({}), "planned on None; it cannot move"),
        ([job(1)], plan({1: H}, tickets={}), "job 1 has a home and no tickets"),
        ([job(1)], plan({1: H}, tickets={1: Fraction(0)}), "job 1 has 0 tickets"),
        ([job(1)], plan({1: H}, tickets={1: Fraction(-1)}), "job 1 has -1 tickets"),
        ([job(1)], plan({}, tickets={1: Fraction(1)}), "job 1 has tickets and no home"),
        ([], plan({}, {X: Turn()}), "a turn for x"),
        (
            [job(1, hosts=(H,), started=True, sliceable=False)],
            plan({1: H}, {H: turn()}),
            "job 1 cannot be suspended and is not in the turn of h",
        ),
    ],
)
def test_what_breaks_a_law_is_named(jobs: list[JobFacts], wanted: Plan, said: str) -> None:
    with pytest.raises(BrokenError, match=said):
        check(ask(*jobs), wanted)


@pytest.mark.parametrize(
    ("facts", "said"), [({"connected": False}, "is away"), ({"accepts": False}, "is drained")]
)
def test_no_job_enters_a_server_that_is_away_or_drained(facts: dict[str, bool], said: str) -> None:
    hosts = (replace(HOSTS[0], **facts), HOSTS[1])  # type: ignore[arg-type]  # the tests' own facts
    check(ask(job(1, hosts=(H,), started=True), hosts=hosts), plan({1: H}))
    with pytest.raises(BrokenError, match=said):
        check(ask(job(1), hosts=hosts), plan({1: H}))


def test_a_server_without_a_turn_is_left_to_itself() -> None:
    check(ask(job(1)), Plan(homes={JobId(1): (H,)}, turns={}, tickets={JobId(1): Fraction(1)}))


def test_a_job_stays_on_a_server_that_lost_gpus_under_it() -> None:
    hosts = (replace(HOSTS[0], gpus=1), HOSTS[1])
    stuck = job(1, hosts=(H,), started=True, sliceable=False)
    check(ask(stuck, hosts=hosts), plan({1: H}, {H: turn()}))


def moving(*jobs: JobFacts, to: HostName = K, left: int = 1) -> tuple[Snapshot, Plan]:
    asked = replace(ask(*jobs), migrations_left=left)
    wanted = plan({int(job.id): to for job in jobs})
    return asked, replace(wanted, moves={job.id: (MoveReason.BALANCE, "less load there") for job in jobs})


def started(at: int, **facts: object) -> JobFacts:
    return job(at, hosts=(H,), started=True, movable=True, **facts)


def test_a_started_job_moves_with_a_reason_within_the_budget() -> None:
    check(*moving(started(1)))
    asked, wanted = moving(started(1))
    with pytest.raises(BrokenError, match="without a reason"):
        check(asked, replace(wanted, moves={}))
    with pytest.raises(BrokenError, match="2 started jobs move; the budget allows 1"):
        check(*moving(started(1), started(2)))


@pytest.mark.parametrize("migrate", [Migrate.NEVER, Migrate.SAME_TYPE])
def test_a_job_is_not_moved_where_its_owner_forbids(migrate: Migrate) -> None:
    with pytest.raises(BrokenError, match=f"may migrate {migrate}"):
        check(*moving(started(1, migrate=migrate)))


def test_a_gang_has_its_servers_in_one_pool_and_runs_on_all_or_none() -> None:
    wide = job(1, 4, nodes=2)
    hosts = (*HOSTS, replace(HOSTS[0], name=X))
    check(ask(wide, hosts=hosts), plan({1: (H, X)}, {H: turn(1), X: turn(1)}))
    with pytest.raises(BrokenError, match="needs 2 servers; its home is h"):
        check(ask(wide, hosts=hosts), plan({1: H}))
    with pytest.raises(BrokenError, match="needs 2 servers; its home is h, h"):
        check(ask(wide, hosts=hosts), plan({1: (H, H)}))
    with pytest.raises(BrokenError, match="one pool was expected"):
        check(ask(wide, hosts=hosts), plan({1: (H, K)}))
    with pytest.raises(BrokenError, match="not of x: gangs run whole"):
        check(ask(wide, hosts=hosts), plan({1: (H, X)}, {H: turn(1)}))


def test_a_home_lies_in_one_pool_unless_the_policy_may_mix() -> None:
    gang = ask(job(1, 4, nodes=2))
    both = plan({1: (H, K)}, {H: turn(1), K: turn(1)})
    with pytest.raises(BrokenError, match="is placed on K80 and V100; one pool was expected"):
        check(gang, both)
    check(gang, both, Needs(mixed=True))
    lives = ask(job(1, 4, nodes=2, hosts=(H, K), started=True))
    check(lives, both)


def test_who_keeps_to_its_model_keeps_the_model_of_each_rank() -> None:
    same = job(1, 4, nodes=2, hosts=(H, K), started=True, movable=True, migrate=Migrate.SAME_TYPE)
    swapped = replace(plan({1: (K, H)}), moves={JobId(1): (MoveReason.ROUND, "why")})
    with pytest.raises(BrokenError, match="may migrate same-type and moves"):
        check(replace(ask(same), migrations_left=1), swapped, Needs(mixed=True))


@pytest.mark.parametrize(
    ("steps", "nodes", "needs", "said"),
    [
        ((60, 40), 1, Needs(), "does not say that it makes any"),
        ((60, 40), 2, Needs(copies=True), "has copies and 2 nodes"),
        ((100,), 1, Needs(copies=True), "needs 1 servers|1 copies on 2 servers"),
        ((100, 0), 1, Needs(copies=True), "a copy of job 1 has 0 steps to do"),
        ((60, 39), 1, Needs(copies=True), "do 99 steps; expected 100"),
        ((900, 200), 1, Needs(copies=True), "do 1100 steps; expected 100"),
    ],
)
def test_copies_that_break_a_law_are_refused(
    steps: tuple[int, ...], nodes: int, needs: Needs, said: str
) -> None:
    asked = ask(job(1, 2 * nodes, nodes=nodes, hosts=(H, K), started=True, steps=1000.0, steps_done=900.0))
    forked = replace(plan({1: (H, K)}, {H: turn(1), K: turn(1)}), copies={JobId(1): steps})
    with pytest.raises(BrokenError, match=said):
        check(asked, forked, needs)


def test_copies_are_on_servers_of_their_own_and_take_their_gpus_on_each() -> None:
    asked = ask(job(1, 2, hosts=(H, K), steps=1000.0), job(2, 3))
    copies = {JobId(1): (600, 400)}
    fits = replace(plan({1: (H, K), 2: K}, {H: turn(1), K: turn(1, 2)}), copies=copies)
    check(asked, fits, Needs(copies=True))
    with pytest.raises(BrokenError, match="job 1 needs 2 servers; its home is h, h"):
        check(asked, replace(plan({1: (H, H)}), copies=copies), Needs(copies=True))
    with pytest.raises(BrokenError, match="promised twice: its turn needs 5, it has 4"):
        check(
            asked,
            replace(plan({1: (K, H), 2: H}, {H: turn(1, 2), K: turn(1)}), copies=copies),
            Needs(copies=True),
        )


def seated(*gangs: int, **named: tuple[int, ...]) -> Plan:
    """All in the turn of h; `j1=(0,)`: job 1 is to have GPU 0."""
    seats = tuple(Seat(job=JobId(int(name[1:])), gpus=gpus) for name, gpus in named.items())
    return plan(dict.fromkeys(gangs, H), {H: replace(turn(*gangs), seats=seats)})


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (seated(1, j1=(0, 4)), "job 1 has GPU 4 of h; expected one of [0, 1, 2, 3]"),
        (seated(1, j1=(0, -1)), "job 1 has GPU -1 of h; expected one of [0, 1, 2, 3]"),
        (seated(1, j1=(0,)), "job 1 has GPUs [0] of h; expected 2 different ones"),
        (seated(1, j1=(0, 0)), "job 1 has GPUs [0, 0] of h; expected 2 different ones"),
        (seated(1, j2=(0, 1)), "job 2 has a seat on h; expected one for each gang of its turn at most"),
        (seated(1, 2, j1=(0, 1), j2=(1, 2)), "GPU 1 of h is named for jobs 1 and 2"),
    ],
)
def test_gpus_that_a_turn_names_must_be_there_and_be_one_gangs(wanted: Plan, said: str) -> None:
    with pytest.raises(BrokenError) as caught:
        check(ask(job(1), job(2)), wanted, Needs(by_gpu=True))
    assert said in str(caught.value)


def test_only_a_policy_that_says_so_names_gpus() -> None:
    lawful = seated(1, 2, j1=(0, 3), j2=(1, 2))
    check(ask(job(1), job(2)), lawful, Needs(by_gpu=True))
    with pytest.raises(
        BrokenError, match="the turn of h names GPUs; the policy does not say that it does so"
    ):
        check(ask(job(1), job(2)), lawful)


def test_a_guest_may_be_named_its_partners_gpus() -> None:
    found = seated(1, 2, j1=(0, 1), j2=(1, 2))
    guest = Guest(job=JobId(2), beside=(JobId(1),), gpus=(1,))
    shared = replace(found, turns={**found.turns, H: replace(found.turns[H], guests=(guest,))})
    jobs = [replace(job(at), memory_bytes=4 * GIB) for at in (1, 2)]
    check(ask(*jobs), shared, Needs(by_gpu=True, sharing=True))


ELASTIC = Elastic(gpus_min=1, gpus_max=4, batch=32, batch_max=128, batch_per_gpu_max=32)
SHAPING = Needs(elastic=True)


def shaped(wanted: Plan, **shape: int) -> Plan:
    """Job 1 in that shape."""
    return replace(wanted, shapes={JobId(1): Shape(**{"gpus": 2, "per_gpu": 32, **shape})})


def test_an_elastic_job_may_be_given_any_shape_that_it_allows_and_its_turn_counts_that() -> None:
    jobs = [job(1, 2, elastic=ELASTIC), job(2, 1)]
    check(ask(*jobs), shaped(plan({1: H, 2: H}, {H: turn(1, 2)}), gpus=3), SHAPING)
    check(ask(*jobs), shaped(plan({1: H, 2: H}, {H: turn(1, 2)}), gpus=1, per_gpu=16, parts=2), SHAPING)
    with pytest.raises(BrokenError, match="promised twice: its turn needs 5, it has 4"):
        check(ask(*jobs), shaped(plan({1: H, 2: H}, {H: turn(1, 2)}), gpus=4), SHAPING)


@pytest.mark.parametrize(
    ("facts", "wanted", "said"),
    [
        ({}, shaped(plan({1: H})), "job 1 is given 2 GPUs.* it is not elastic"),
        ({"elastic": ELASTIC}, shaped(plan({})), "job 1 is given .* and no home"),
        ({"elastic": ELASTIC}, shaped(plan({1: K}), gpus=5, per_gpu=16), "it allows Elastic"),
        ({"elastic": ELASTIC}, shaped(plan({1: H}), per_gpu=33), "it allows Elastic"),
        ({"elastic": ELASTIC}, shaped(plan({1: H}), gpus=1, per_gpu=16), "mini-batches of 16 .* it allows"),
        ({"elastic": ELASTIC}, shaped(plan({1: H}), gpus=4, parts=2), "mini-batches of 256 .* it allows"),
        (
            {"elastic": replace(ELASTIC, gpus_max=9)},
            shaped(plan({1: H}), gpus=5, per_gpu=8),
            "needs 5 GPUs and",
        ),
        (
            {"elastic": ELASTIC, "hosts": (H,), "started": True, "movable": True},
            shaped(plan({1: H})),
            "moves from .* without a reason",
        ),
        (
            {"elastic": ELASTIC, "hosts": (H,), "started": True},
            shaped(plan({1: H})),
            "runs on .*; it cannot move",
        ),
    ],
)
def test_a_shape_that_the_job_does_not_allow_or_cannot_take_is_refused(
    facts: dict[str, object], wanted: Plan, said: str
) -> None:
    with pytest.raises(BrokenError, match=said):
        check(ask(job(1, **facts)), wanted, SHAPING)


def test_a_gang_that_cannot_be_suspended_stands_where_gpus_of_one_of_its_servers_were_lost() -> None:
    gang = job(1, 4, nodes=2, hosts=(H, K), started=True, sliceable=False)
    other = job(2, 3, hosts=(H,), started=True, sliceable=False)
    asked, wanted = ask(gang, other), plan({1: (H, K), 2: H}, {H: turn(2), K: turn()})
    check(asked, wanted)
    whole = tuple(replace(each, gpus=8) for each in HOSTS)
    with pytest.raises(BrokenError, match="job 1 cannot be suspended and is not in the turn of"):
        check(ask(gang, other, hosts=whole), wanted)


def test_only_a_policy_that_says_so_gives_shapes_and_a_change_of_shape_takes_from_the_budget() -> None:
    stands = job(1, elastic=ELASTIC, hosts=(H,), started=True, movable=True, shape=Shape(gpus=2, per_gpu=16))
    kept = shaped(plan({1: H}), per_gpu=16)
    check(ask(stands), kept, SHAPING)
    with pytest.raises(BrokenError, match="the policy does not say that it gives shapes"):
        check(ask(stands), kept)
    grown = replace(shaped(plan({1: H}), gpus=4), moves={JobId(1): (MoveReason.SHAPE, "")})
    with pytest.raises(BrokenError, match="1 started jobs move; the budget allows 0"):
        check(ask(stands), grown, SHAPING)
    check(replace(ask(stands), migrations_left=1), grown, SHAPING)

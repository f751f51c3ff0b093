"""What is kept from one decision to the next (who lives where, offers of moves, levels) saves time, and changes nothing."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from random import Random

import pytest

from hs_core.mechanism import level
from hs_core.mechanism.band import _Numbers
from hs_core.names import UserName
from hs_core.policies import find
from hs_core.policy import JobFacts, Memory, Snapshot, Verdict

from .worlds import Strides, after, having, host, job, snapshot  # noqa: TID252 — tests are no package on the path

FAIR = find("gandiva-fair")
RATES = {(f"{user}/x", model): rate for user in "ABC" for model, rate in (("V100", 2.0), ("K80", 1.0))}


def decided_afresh(asked: Snapshot, memory: Memory) -> Verdict:
    level._find.cache_clear()
    return Context().run(FAIR.decide, asked, memory)


def newcomer(dice: Random, at: int) -> JobFacts:
    gang, nodes = dice.choice([(1, 1), (1, 1), (1, 1), (2, 1), (3, 1), (4, 1), (8, 2)])
    user = dice.choice("ABC")
    return job(at, user, gang, nodes=nodes, movable=True, job_class=f"{user}/x")


@pytest.mark.parametrize("seed", range(12))
def test_a_decision_with_what_is_kept_is_the_one_without(seed: int) -> None:
    dice = Random(seed)
    hosts = [host(f"v{at}") for at in range(3)] + [host(f"k{at}", model="K80") for at in range(4)]
    asked = snapshot(
        hosts,
        [newcomer(dice, at) for at in range(1, 20)],
        {"A": 100, "B": 50, "C": 200},
        now_s=1e6,
        migrations_left=20,
        rates=RATES,
    )
    strides, memory, moved = Strides(), {}, 0
    for quantum in range(40):
        verdict = FAIR.decide(asked, memory)
        afresh = decided_afresh(asked, memory)
        assert verdict.plan == afresh.plan
        assert verdict.memory == afresh.memory
        moved += len(verdict.plan.moves)
        memory = json.loads(json.dumps(verdict.memory))
        asked = after(asked, verdict, strides.run(asked, verdict.plan))
        if quantum % 5 == 4:
            stay = [one for one in asked.jobs if dice.random() < 0.8]
            come = [newcomer(dice, 100 * (quantum + 1) + at) for at in range(4)]
            users = {one.user for one in (*stay, *come)}
            tickets = {user: asked.tickets.get(user, 100) for user in users}
            asked = having(asked, jobs=(*stay, *come), tickets=tickets)
    assert moved, "there was something to find"


class Stuck(JobFacts):
    """Who looks up its class stays at that until it is let go, the first time."""

    found, may = threading.Event(), threading.Event()

    def __getattribute__(self, name: str) -> object:
        if name == "job_class" and not Stuck.found.is_set():
            Stuck.found.set()
            assert Stuck.may.wait(60)
        return super().__getattribute__(name)


def test_a_decision_that_stays_half_made_is_no_matter_to_those_that_are_made_on_another_thread() -> None:
    """It was given up, say."""
    known = [job(at, hosts=("v1",), started=True, job_class="A/x") for at in range(1, 9)]
    come = job(9, hosts=("v1",), started=True, job_class="A/x")
    stuck = Stuck(**{name: getattr(come, name) for name in JobFacts.__slots__})
    before, then = (snapshot([host("v1"), host("v2")], jobs, {"A": 100}) for jobs in (known, [*known, stuck]))
    with ThreadPoolExecutor(1) as thread:
        warm = FAIR.decide(before, {})
        assert thread.submit(FAIR.decide, before, {}).result() == warm
        given_up = thread.submit(FAIR.decide, then, {})
        try:
            assert Stuck.found.wait(60)
            assert FAIR.decide(then, {}) == decided_afresh(then, {})
            assert FAIR.decide(before, {}) == warm
        finally:
            Stuck.may.set()
        assert given_up.result() == FAIR.decide(then, {})


def test_what_was_decided_on_one_thread_is_explained_on_another_one() -> None:
    """Of a decision that is made on a thread of its own people ask while other things go on."""
    hosts = [host("k0", model="K80"), host("k1", model="K80")]
    early = [job(at, f"u{at}") for at in range(1, 100)]
    late = [job(at, f"late-u{at}", hosts=("k0",), started=True) for at in (100, 101)]
    comes, came = ([*late, job(102, "late-u102", hosts=there)] for there in ((), ("k1",)))
    with ThreadPoolExecutor(1) as thread:
        for jobs in (early, comes, came):
            asked = snapshot(hosts, jobs, {one.user: 100 for one in jobs})
            verdict = thread.submit(FAIR.decide, asked, {}).result()
    assert dict(verdict.why) == dict(decided_afresh(asked, {}).why)
    assert list(verdict.why) == [100, 101, 102], "their processes are not up yet"


def test_users_have_one_number_on_all_threads_whoever_gives_it() -> None:
    numbers, meet = _Numbers(), threading.Barrier(4)
    users = [UserName(f"u{at}") for at in range(2_000)]

    def give(_thread: int) -> list[int]:
        meet.wait(60)
        return [numbers[user] for user in users]

    with ThreadPoolExecutor(4) as threads:
        first, *others = threads.map(give, range(4))
    assert others == [first] * 3
    assert [numbers.users()[at] for at in first] == users
    assert max(first) < numbers.end

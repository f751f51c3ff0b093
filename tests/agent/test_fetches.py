"""What is ordered while a checkpoint is fetched: the newest order is what counts, and each is told once."""

import asyncio
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest

from hs_agent import fetches, peers
from hs_agent.fetches import Fetches
from hs_agent.trip import Got, Trip
from hs_core.events.host import Fetch
from hs_core.names import JobId
from hs_core.wanted import NOBODY, Source
from tests.agent.lending import STEP, Two, run


class Ordered:
    """Fetches, each of which ends when it is told to; `order` is what is ordered as the first end is told."""

    def __init__(self, two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
        self.two = two
        self.began: list[int] = []
        self.beginnings = asyncio.Queue[int]()
        self.under_way = self.most = 0
        self.begins = defaultdict[int, asyncio.Event](asyncio.Event)
        self.ends = defaultdict[int, asyncio.Event](asyncio.Event)
        self.told = asyncio.Queue[int]()
        self.order: Fetch | None = None

        async def tries(one: Trip) -> Got:
            source = one.source
            self.began.append(source.generation)
            self.beginnings.put_nowait(source.generation)
            self.begins[source.generation].set()
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            await self.ends[source.generation].wait()
            self.under_way -= 1
            return Got(source.generation, source.step, 0)

        monkeypatch.setattr(Trip, "one", tries)
        self.fetches = Fetches(two.launchers[1], peers.PeerDialer(two.configs[1], None), self.post)

    def post(self, event: Any) -> None:
        self.told.put_nowait(event.generation)
        if self.order is not None:
            order, self.order = self.order, None
            self.fetches.start(order)

    def never_heard_of(self, job: JobId) -> Fetch:
        wanted = self.of(0).wanted
        source = Source(peer=NOBODY, epoch=2, generation=0, step=0)
        return Fetch(wanted=replace(wanted, job=job, source=source))

    def of(self, generation: int) -> Fetch:
        self.two.known = (generation, STEP)
        return Fetch(wanted=self.two.wanted("127.0.0.1:1"))


@pytest.fixture
def ordered(two: Two, monkeypatch: pytest.MonkeyPatch) -> Ordered:
    return Ordered(two, monkeypatch)


def test_a_newer_checkpoint_that_is_ordered_takes_the_place_of_the_one_that_is_being_fetched(
    ordered: Ordered,
) -> None:
    async def newer() -> None:
        ordered.fetches.start(ordered.of(4))
        await ordered.begins[4].wait()
        ordered.fetches.start(ordered.of(5))
        ordered.ends[4].set()
        ordered.ends[5].set()
        assert await ordered.told.get() == 5
        await ordered.fetches.close()
        assert ordered.told.empty()

    run(newer())


def test_what_is_ordered_as_the_end_of_a_fetch_is_told_is_fetched(ordered: Ordered) -> None:
    async def then() -> None:
        ordered.fetches.start(ordered.of(4))
        ordered.order = ordered.of(5)
        ordered.ends[4].set()
        ordered.ends[5].set()
        assert [await ordered.told.get(), await ordered.told.get()] == [4, 5]
        await ordered.fetches.close()

    run(then())


def test_what_is_wanted_again_before_its_fetch_has_ended_is_fetched(ordered: Ordered) -> None:
    async def again() -> None:
        ordered.fetches.start(ordered.of(4))
        await ordered.begins[4].wait()
        ordered.fetches.wanted(())
        ordered.fetches.start(ordered.of(4))
        ordered.ends[4].set()
        assert await ordered.told.get() == 4
        await ordered.fetches.close()

    run(again())


def test_who_has_it_may_change_while_it_is_fetched(ordered: Ordered) -> None:
    async def moves() -> None:
        order = ordered.of(4)
        ordered.fetches.start(order)
        await ordered.begins[4].wait()
        ordered.fetches.start(Fetch(wanted=ordered.two.wanted("127.0.0.1:2")))
        ordered.ends[4].set()
        assert await ordered.told.get() == 4
        await ordered.fetches.close()
        assert ordered.began == [4]

    run(moves())


def test_of_thousands_of_jobs_that_were_never_here_it_is_told_at_once_and_without_a_process_for_each(
    ordered: Ordered, two: Two
) -> None:
    """As they come when another server is drained."""
    told = asyncio.Queue[Any]()

    async def all_of_them() -> Any:
        dial = peers.PeerDialer(two.configs[1], None)
        ordered.fetches = Fetches(two.launchers[1], dial, told.put_nowait)
        for number in range(100, 2100):
            ordered.fetches.start(ordered.never_heard_of(JobId(number)))
        event = await told.get()
        await ordered.fetches.close()
        return event

    event = run(all_of_them())
    assert told.empty()
    assert event.jobs == tuple((number, 2) for number in range(100, 2100))
    assert ordered.began == []
    assert list(two.launchers[1].checkpoints.iterdir()) == []


def test_only_so_many_jobs_of_one_account_are_fetched_for_at_once(
    ordered: Ordered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetches, "AT_ONCE", 2)
    numbers = range(1, 41)

    async def all_of_them() -> set[int]:
        for number in numbers:
            order = ordered.of(number)
            ordered.fetches.start(Fetch(wanted=replace(order.wanted, job=JobId(number))))
        done = set()
        while len(done) < len(numbers):
            ordered.ends[await ordered.beginnings.get()].set()
            done.add(await ordered.told.get())
        await ordered.fetches.close()
        return done

    assert run(all_of_them()) == set(numbers)
    assert ordered.most <= 2

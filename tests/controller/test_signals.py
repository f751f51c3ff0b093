"""What stops a daemon is heard, whatever its loop is at."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from hs_daemon import signals

MORE_THAN_A_PIPE_HOLDS = 10_000


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_heard_by_a_loop_for_which_many_threads_have_an_answer(number: signal.Signals) -> None:
    """As on a server with thousands of jobs: each answer leaves a byte in the pipe that wakes the loop, and it is full soon."""

    async def busy() -> bool:
        told = asyncio.Event()
        signals.heed(told)
        loop = asyncio.get_running_loop()
        for _ in range(MORE_THAN_A_PIPE_HOLDS):
            loop.call_soon_threadsafe(int)
        os.kill(os.getpid(), number)
        return await asyncio.wait_for(told.wait(), 20)

    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    assert asyncio.run(busy())


def test_a_hang_up_that_is_ignored_stays_so() -> None:
    async def ignores() -> bool:
        told = asyncio.Event()
        signals.heed(told)
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0)
        return told.is_set()

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert not asyncio.run(ignores())


def test_a_signal_that_comes_once_the_loop_is_closed_ends_in_no_error() -> None:
    async def begins() -> None:
        signals.heed(asyncio.Event())

    asyncio.run(begins())
    os.kill(os.getpid(), signal.SIGTERM)

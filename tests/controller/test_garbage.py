"""Garbage: found soon where it is new, and what lives for long is left alone."""

import asyncio
import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace

import pytest

from hs_controller import garbage
from hs_controller.config import Config
from tests.controller.kit import until
from tests.controller.test_loop import running


class Ring:
    """Refers to itself, so that only a search finds that nobody else does."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _only_ours() -> Iterator[None]:
    """No search but those that are asked for."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def dropped() -> "weakref.ref[Ring]":
    return weakref.ref(Ring())


def test_what_is_new_is_looked_through_when_it_is_time_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(garbage, "YOUNG_S", 3600.0)
    ring, young = dropped(), garbage.Young()
    young.look()
    assert ring() is not None
    monkeypatch.setattr(garbage, "YOUNG_S", 0.0)
    young.look()
    assert ring() is None


def test_what_has_outlived_a_look_costs_the_next_ones_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "YOUNG_S", 0.0)
    ring, young = Ring(), garbage.Young()
    seen = weakref.ref(ring)
    young.look()
    del ring
    young.look()
    assert seen() is not None, "it was looked through again"
    gc.collect()
    assert seen() is None


def test_a_controller_at_work_finds_what_is_new_however_little_it_is(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "YOUNG_S", 0.0)

    async def story() -> None:
        async with running(replace(config, quantum_s=600.0)) as loop:
            ring = dropped()
            await loop.ask(lambda _now_s, _machine: [], lambda _outcomes: b"done", None)
            await until(lambda: ring() is None)

    asyncio.run(story())

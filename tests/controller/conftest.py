"""Fixtures of the controller's tests; what they are made of is in kit.py."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from hs_controller.config import Config
from hs_controller.journal import Journal
from tests.controller.secured import Cluster


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Facts are looked at where they are kept; thousands of log lines would bury a failure."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    yield
    structlog.reset_defaults()


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(
        file=tmp_path / "controller.toml",
        state_dir=tmp_path / "state",
        socket=tmp_path / "c.sock",
        quantum_s=1.0,
        heartbeat_s=0.1,
    )


@pytest.fixture
def lasting(config: Config) -> Config:
    """Long quanta: nothing happens but what the test does."""
    return replace(config, quantum_s=600.0)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One for all: each test has nodes of its own."""
    one = Cluster(tmp_path_factory.mktemp("cluster"))
    one.start()
    yield one
    if one.process is not None and one.process.poll() is None:
        one.kill()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a journal that does not yet exist."""
    return tmp_path / "state"


@pytest.fixture
def journal(folder: Path) -> Iterator[Journal]:
    opened = Journal.open(folder)
    yield opened
    opened.close()

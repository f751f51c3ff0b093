"""Fixtures of the end-to-end tests."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.harness import Cluster


@pytest.fixture(scope="session")
def scripts() -> Path:
    return Path(__file__).parent / "scripts"


@pytest.fixture
def new_cluster() -> Iterator[Callable[..., Cluster]]:
    """Starts clusters and takes them down, jobs and all, whatever happened to the test."""
    with ExitStack() as stack:

        def make(*flags: str) -> Cluster:
            state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hs-e2e-"))) / "state"
            cluster = Cluster(state, "--devices", "emulated", *flags)
            stack.callback(cluster.down)
            cluster.up()
            return cluster

        yield make

"""Fixtures of the end-to-end tests."""

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e import harness
from tests.e2e.harness import UP, Cluster, tell, temporary


@pytest.fixture(scope="session")
def scripts() -> Path:
    return Path(__file__).parent / "scripts"


@pytest.fixture(scope="session", autouse=True)
def _together(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each worker has a folder of its own, in one of the run's."""
    own = tmp_path_factory.getbasetemp()
    harness.TOGETHER = own.parent if os.environ.get("PYTEST_XDIST_WORKER") else own


@pytest.fixture
def new_cluster() -> Iterator[Callable[..., Cluster]]:
    """Starts clusters and takes them down, jobs and all, whatever happened to the test."""
    with ExitStack() as stack:
        yield lambda *flags: stack.enter_context(temporary(*flags))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One for all tests of a module that leave it as they found it, but for jobs that have ended."""
    with temporary("--emulate", "V100:2:16G", "--quantum", "0.5", "--user", "ann", "--user", "bob") as made:
        yield made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,  # noqa: ARG001 - the hook is called so
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails says what its clusters made of it; once they are down nobody can ask them."""
    report = yield
    if report.when == "call" and report.failed:
        report.sections.extend((f"cluster in {state}", tell(state, ask)) for state, ask in UP.items())
    return report

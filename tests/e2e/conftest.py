"""Fixtures of the end-to-end tests."""

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.harness import UP, Cluster, tell, temporary


@pytest.fixture(scope="session")
def scripts() -> Path:
    return Path(__file__).parent / "scripts"


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

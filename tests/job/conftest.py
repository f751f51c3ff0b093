"""Real training processes against a stand-in for the agent."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode leaves it out

from job_stub import StubAgent
from warm import Warm


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    with Warm() as made:
        yield made


@pytest.fixture
def agent(tmp_path: Path, warm: Warm) -> Iterator[StubAgent]:
    with StubAgent(tmp_path, warm) as stub:
        yield stub

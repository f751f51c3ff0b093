"""Real training processes against a stand-in for the agent."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode leaves it out

from job_stub import StubAgent


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[StubAgent]:
    with StubAgent(tmp_path) as stub:
        yield stub

"""Loops and loaders of libraries: what they train is moved like a loop of one's own, bit for bit. With the libraries themselves."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from job_stub import StubAgent
from moving import lines, move
from warm import Warm

SCRIPT = str(Path(__file__).parent / "trainers.py")


@pytest.fixture(scope="module")
def libraries() -> Iterator[Warm]:
    with Warm("accelerate", "lightning", "transformers.trainer") as made:
        yield made


@pytest.fixture
def agent(tmp_path: Path, libraries: Warm) -> Iterator[StubAgent]:
    with StubAgent(tmp_path, libraries) as stub:
        yield stub


def alone(libraries: Warm, *argv: str) -> tuple[str, ...]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HS_")} | {"OMP_NUM_THREADS": "1"}
    job = libraries.run(argv, environment, Path.cwd())
    output, errors = job.communicate()
    assert (job.returncode, errors) == (0, "")
    return lines(output)


@pytest.mark.parametrize(
    ("how", "at_step"),
    [
        (("accelerate",), 15),
        (("accelerate", "seeded", "plain"), 25),
        (("accelerate", "adds-up", "worker"), 8),
        (("accelerate", "stream"), 15),
        (("transformers",), 15),
        (("transformers", "adds-up"), 8),
        (("transformers", "worker"), 11),
        (("lightning",), 15),
        (("lightning", "adds-up"), 8),
        (("lightning", "worker"), 11),
        (("lightning", "stream"), 15),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_a_job_that_trains_through_a_library_is_moved_bit_for_bit(
    agent: StubAgent, libraries: Warm, how: tuple[str, ...], at_step: int
) -> None:
    """Lightning tries its validation out before it trains."""
    moved = lines(move(agent, (SCRIPT, *how), at_step, looks_first=how[0] == "lightning"))
    assert moved == alone(libraries, SCRIPT, *how)

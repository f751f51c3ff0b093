"""Loops and loaders of libraries: what they train is moved like a loop of one's own, bit for bit. With the libraries themselves."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from job_stub import StubAgent
from moving import let_go, lines, move, slow_down
from warm import Warm

from hs_core.events.host import CheckpointFailed, JobCapable
from hs_job import advice

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
    return lines(output_alone(libraries, *argv))


def output_alone(libraries: Warm, *argv: str, **environment: str) -> str:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HS_")} | {"OMP_NUM_THREADS": "1"}
    job = libraries.run(argv, kept | environment, Path.cwd())
    output, errors = job.communicate()
    assert (job.returncode, errors) == (0, "")
    return output


@pytest.mark.parametrize(
    ("how", "at_step"),
    [
        (("accelerate",), 15),
        (("accelerate", "seeded", "plain"), 25),
        (("accelerate", "adds-up", "worker"), 8),
        (("accelerate", "stream"), 15),
        (("fabric",), 25),
        (("fabric", "plain", "worker"), 15),
        (("transformers",), 15),
        (("transformers", "adds-up"), 8),
        (("transformers", "worker"), 11),
        (("transformers", "stream"), 15),
        (("transformers", "worker", "persistent"), 15),
        (("lightning",), 15),
        (("lightning", "adds-up"), 8),
        (("lightning", "worker"), 11),
        (("lightning", "stream"), 15),
        (("lightning", "seeded"), 15),
        (("lightning", "tries"), 15),
        (("lightning", "averages"), 15),
        (("lightning", "own"), 15),
        (("lightning", "own", "asks", "worker"), 15),
        (("lightning", "persistent", "worker"), 15),
        (("lightning", "begins", "worker"), 15),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_a_job_that_trains_through_a_library_is_moved_bit_for_bit(
    agent: StubAgent, libraries: Warm, how: tuple[str, ...], at_step: int
) -> None:
    """Lightning tries its validation out before it trains, and learning rates where it is told to; the script of Fabric looks at a batch."""
    moved = lines(move(agent, (SCRIPT, *how), at_step, looks_first=how[0] in ("fabric", "lightning")))
    assert moved == alone(libraries, SCRIPT, *how)


@pytest.mark.parametrize(
    ("how", "at_step"),
    [
        (("accelerate",), 15),
        (("accelerate", "adds-up", "worker"), 8),
        (("accelerate", "stream"), 15),
        (("transformers",), 15),
        (("transformers", "adds-up", "worker"), 8),
        (("transformers", "persistent", "worker"), 15),
        (("lightning", "untried"), 15),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_a_job_that_is_moved_again_before_it_has_trained_is_moved_bit_for_bit(
    agent: StubAgent, libraries: Warm, how: tuple[str, ...], at_step: int
) -> None:
    """The batch that these loaders fetch ahead is yet to be fetched again when it is saved."""
    assert lines(move(agent, (SCRIPT, *how), at_step, times=3)) == alone(libraries, SCRIPT, *how)


def test_a_job_whose_callback_has_changed_its_schedules_is_held_and_not_saved(agent: StubAgent) -> None:
    """Lightning's own checkpoints go on with those before, too, until the epoch ends."""
    slow_down(agent, 0.1)
    job = agent.run(SCRIPT, "lightning", "swaps", "untried")
    let_go(agent)
    assert job.stdout is not None
    for line in job.stdout:
        if line.startswith("0:13 "):
            break
    since = agent.seen()
    agent.checkpoint()
    assert "a callback has changed the learning rate schedules" in agent.wait(CheckpointFailed, since).why
    assert not agent.wait(JobCapable, since).can_checkpoint
    _, errors = job.communicate()
    assert (job.returncode, errors) == (0, "")


def test_a_job_whose_trainer_makes_its_loader_anew_is_held_and_not_saved(agent: StubAgent) -> None:
    job = agent.run(SCRIPT, "lightning", "reloads", "untried")
    assert not let_go(agent).can_checkpoint
    _, errors = job.communicate()
    assert (job.returncode, errors) == (0, f"heteroshare: the job is held, and not moved: {advice.RELOADS}\n")


@pytest.mark.parametrize(
    ("how", "single"), [("accelerate", False), ("transformers", True), ("lightning", True)]
)
def test_copies_of_what_a_library_counts_by_itself_have_no_average(
    agent: StubAgent, how: str, single: bool
) -> None:
    """Its loop would go on from the steps of one of them, amid an epoch of which others have done the rest."""
    job = agent.run(SCRIPT, how)
    assert let_go(agent).single is single
    job.communicate()


REFUSED = """
import sys
import hs_job
import {library}

class Trainer({library}.Trainer):
    def __init__(self):
        {mend}

try:
    hs_job.attach({what})
except TypeError as error:
    print(error)
"""


unfit = pytest.mark.parametrize(
    ("library", "mend", "what", "said"),
    [
        ("transformers", "pass", "hs_job", "trainer is a module; expected a Trainer of transformers or Lightning"),
        ("transformers", "self.is_deepspeed_enabled = True", "Trainer()", "the trainer uses DeepSpeed; expected"),
        ("transformers", "self.is_fsdp_enabled, self.accelerator = True, None", "Trainer()", "the trainer uses FSDP, version 1; expected fsdp_version 2"),
        ("lightning", "lightning.__version__ = '2.4.1'", "Trainer()", "this is Lightning 2.4.1; expected 2.5 or newer"),
    ],
)  # fmt: skip


@unfit
def test_what_cannot_be_attached_is_refused_by_name(
    agent: StubAgent, library: str, mend: str, what: str, said: str
) -> None:
    script = agent.folder / "refused.py"
    script.write_text(REFUSED.format(library=library, mend=mend, what=what))
    output, errors = agent.run(str(script)).communicate()
    assert (errors, output.startswith(f"hs_job.attach: {said}")) == ("", True), output


@unfit
@pytest.mark.parametrize("hook", ["1", "0"])
def test_what_cannot_be_attached_is_refused_without_an_agent_but_where_the_hook_is_off(
    libraries: Warm, tmp_path: Path, *, library: str, mend: str, what: str, said: str, hook: str
) -> None:
    script = tmp_path / "refused.py"
    script.write_text(REFUSED.format(library=library, mend=mend, what=what))
    output = output_alone(libraries, str(script), HS_HOOK=hook)
    refused = f"hs_job.attach: {said}" if hook == "1" or what == "hs_job" else ""
    assert output.startswith(refused)
    assert bool(output) is bool(refused)


@pytest.mark.parametrize("library", ["transformers", "lightning"])
def test_a_trainer_is_refused_in_an_elastic_job_whose_steps_are_not_all_of_one_size(
    agent: StubAgent, library: str
) -> None:
    """It would take the steps that were done for as many of the new size, and end before its time."""
    script = agent.folder / "refused.py"
    script.write_text(REFUSED.format(library=library, mend="pass", what="Trainer()"))
    output, errors = agent.run(str(script), env={"HS_BATCH_PER_GPU": "8"}).communicate()
    assert (errors, output.startswith("hs_job.attach: this job is elastic")) == ("", True), output


TWICE = """
import logging, torch, transformers, hs_job
logging.disable(logging.CRITICAL)

class Net(torch.nn.Linear):
    def forward(self, x, labels, **_):
        return {"loss": ((super().forward(x) - labels) ** 2).mean()}

data = [{"x": torch.ones(2), "labels": torch.ones(1)}] * 8
args = transformers.TrainingArguments(
    "out", num_train_epochs=1, per_device_train_batch_size=4, save_strategy="no", report_to=[],
    use_cpu=True, disable_tqdm=True, remove_unused_columns=False, logging_strategy="no",
)
trainer = transformers.Trainer(model=Net(2, 1), args=args, train_dataset=data)
trainer.remove_callback(transformers.PrinterCallback)
hs_job.attach(trainer)
trainer.train()
trainer.train()
print(trainer.state.global_step)
"""


def test_a_script_that_trains_twice_runs_to_its_end(agent: StubAgent) -> None:
    (agent.folder / "twice.py").write_text(TWICE)
    job = agent.run(str(agent.folder / "twice.py"))
    let_go(agent)
    output, errors = job.communicate()
    assert (job.returncode, output) == (0, "2\n")
    assert "trains a second time" in errors

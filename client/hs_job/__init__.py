"""Inside a training process: counts mini-batches, stops and goes on when the agent says so, saves and restores what it was handed.

Standard library only; a script that uses it runs the same without an agent. Guide: docs/training-scripts.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Never

    from hs_job.handed import State
    from hs_job.layout import Strategy

__all__ = [
    "accumulation_steps",
    "attach",
    "batch_per_gpu",
    "install",
    "should_yield",
    "state",
    "step",
    "strategy",
]

MOST = 10**15
"""Of anything that is counted: as many steps as a job may say (docs/job-file.md)."""


def state(
    *unnamed: Never,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    loader: Any = None,
    scaler: Any = None,
    **others: Any,
) -> State:
    """Hand over what makes up the training's state, once, after it is built: it is restored here, and saved when the job has to move.

    Everything but `loader` (the training DataLoader) needs `state_dict` and `load_state_dict`. Start loops at
    `.epoch` (of the loader) or `.step`; both are 0 in a fresh run. `.batch` is how many batches of that epoch were done.
    """
    from hs_job import handed

    if unnamed:
        raise TypeError(_nameless(unnamed))
    named = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler, **others}
    return handed.hand_over({name: thing for name, thing in named.items() if thing is not None}, loader)


def attach(trainer: Any) -> None:
    """For a training loop that is a library's (the `Trainer` of transformers or Lightning): hands over what `state` would be given. Call it before the training begins.

    Raises TypeError, with an agent or without, where the trainer cannot be attached.
    """
    from hs_job import trainers

    trainers.attach(trainer)


def _nameless(things: Sequence[object]) -> str:
    kinds = ", ".join(type(thing).__name__ for thing in things)
    return (
        f"hs_job.state: given {kinds} without a name; expected each by its name, "
        "as in hs_job.state(model=model, optimizer=optimizer, loader=loader)"
    )


def step(n: int = 1) -> None:
    """`n` mini-batches are done (in a loop that nothing else counts); the job may be suspended here."""
    from hs_job import runtime

    _check("step", "n", n)
    runtime.current().stepped_by_hand(n)


def accumulation_steps() -> int:
    """Sub-batches that each mini-batch is to be split into, as the scheduler chose when this process was started: 1 unless it shares its GPU.

    For jobs that said how many they can do (`accumulation` of the job file). Split the mini-batch into so many parts, divide each part's loss by
    it, and call the optimizer once: the same gradient in less memory.
    """
    return _told("HS_ACCUMULATION_STEPS", 1)


def batch_per_gpu(own: int) -> int:
    """Examples of each mini-batch that one GPU works through, as the scheduler chose when this process was started; `own` where nobody chose.

    For jobs that are `elastic` in the job file: make the training loader with this `batch_size`, and work through each of its batches in
    `accumulation_steps()` parts. The job may be started again with another number, on other GPUs: `state` then goes on by examples.
    """
    _check("batch_per_gpu", "own", own)
    return _told("HS_BATCH_PER_GPU", own)


def strategy(*, dp: int = 1, tp: int = 1, pp: int = 1, layers: Sequence[int] = ()) -> Strategy:
    """How to lay the model over the GPUs, as the scheduler chose when this process was started; what is given here where nobody chose.

    For jobs that declare `strategies` in the job file. `dp` copies of the model, `tp` slices of each layer, `pp` stages, `layers` of each stage (empty:
    as you cut them); dp * tp * pp are the processes. The job may be started again from its checkpoint in another one: then every rank is given what
    that rank saved, so hand `state` something whose `state_dict` any strategy can load.
    """
    import os

    from hs_job.layout import Strategy

    for name, degree in (("dp", dp), ("tp", tp), ("pp", pp)):
        _check("strategy", name, degree)
    text = os.environ.get("HS_STRATEGY", "")
    return Strategy.read(text) if text else Strategy(dp, tp, pp, tuple(layers))


def _check(call: str, name: str, value: object) -> None:
    if type(value) is not int or not 1 <= value <= MOST:
        raise ValueError(f"hs_job.{call}: {name} is {value!r}; expected a whole number from 1 to {MOST}")


def _told(name: str, default: int) -> int:
    import os

    text = os.environ.get(name, str(default))
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"{name} is {text!r}; expected a whole number of at least 1")
    return int(text)


def should_yield() -> bool:
    """Whether the next suspend point is going to stop: a good moment to finish a log or push results out first."""
    from hs_job import runtime

    return runtime.current().should_yield()


def install(folder: str) -> None:
    """Write the folder that an agent puts on a job's PYTHONPATH: `sitecustomize.py` and a copy of this package."""
    from hs_job import bundle

    bundle.write(folder)

"""What the parts of a modelled incarnation go on from, as the ranks of a real one agree on it."""

from collections.abc import Sequence
from dataclasses import dataclass

from hs_core.names import JobId
from hs_sim.machines.part import Part
from hs_sim.machines.truth import LawBrokenError


@dataclass(frozen=True, slots=True)
class Beginning:
    generation: int  # -1: none, it begins afresh
    step: int
    torn: str = ""  # what it was to go on from, in words; empty: that is whole


def agreed(job: JobId, parts: Sequence[Part], now_s: float) -> Beginning:
    """The newest generation that all of their nodes know of, as `hs_job.checkpoint` has them agree. Raises LawBrokenError: they stand at different steps."""
    asked = min(part.asked for part in parts)
    torn = asked >= 0 and _is_torn(job, parts, asked)
    generation = _whole(job, parts, asked) if torn else asked
    steps = [part.agent.checkpoint_step(job, generation, part.rank) for part in parts]
    if len(set(steps)) > 1:
        raise LawBrokenError(f"at {now_s:.3f}: parts of job {job} go on from steps {steps}")
    return Beginning(generation, steps[0], f"generation {asked}: torn" if torn else "")


def _is_torn(job: JobId, parts: Sequence[Part], asked: int) -> bool:
    found = (part.agent.disk.shelf(job).get((asked, part.rank)) for part in parts)
    return any(saved is not None and saved.torn for saved in found)


def _whole(job: JobId, parts: Sequence[Part], asked: int) -> int:
    """The newest before it that all of them have."""
    having = [
        {
            number
            for (number, rank), saved in part.agent.disk.shelf(job).items()
            if rank == part.rank and number < asked and saved.copy < 0 and not saved.torn
        }
        for part in parts
    ]
    return max(set.intersection(*having), default=-1)

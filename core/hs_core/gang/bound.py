"""Leaving together, over several nodes: what a rank has accepted binds it, whatever becomes of the link over which it was asked.

Two-phase commit (Gray 1978) with node 0's agent as coordinator; one that was started anew decides from what the ranks say.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A stop with a checkpoint, which a rank is to leave with or has written."""

    id: int
    at_step: int
    generation: int
    committed: bool  # it knows that all have accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Ranks, by number."""

    commit: Sequence[int] = ()  # have not heard that all have accepted
    drop: Sequence[int] = ()


def decide(bound: Mapping[int, Bound], world: int, failed: Collection[int]) -> Outcome:
    """Of what is open where all ranks are here: all of them leave or none, as one alone can neither leave nor go on.

    Some have heard that all leave, and others may not have: the link to them was lost, or the agent before us died between two words.
    `failed`: generations that not all will write.
    """
    commit: list[int] = []
    drop: list[int] = []
    for generation in sorted({word.generation for word in bound.values()}):
        open_ = {number: word for number, word in bound.items() if word.generation == generation}
        decided = any(word.committed for word in open_.values())
        if decided and len(open_) == world and generation not in failed:
            commit += [number for number, word in open_.items() if not word.committed]
        else:
            drop += open_
    return Outcome(commit=commit, drop=drop)

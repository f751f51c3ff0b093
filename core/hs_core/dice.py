"""The one door to randomness: seeded, so that the same question gets the same answer."""

from random import Random

__all__ = ["Random", "roll"]


def roll(seed: int, *salt: int | str) -> Random:
    """A generator that depends on nothing but its arguments."""
    return Random(":".join(str(part) for part in (seed, *salt)))  # noqa: S311 — a lottery among jobs, no secret

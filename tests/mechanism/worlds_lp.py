"""Small random questions for allocation programs."""

import numpy as np

from hs_core.mechanism.gavel.question import Allocation, Floats, Question, Sharing

ABLE = 0.85  # chance that a kind can run on a type


def question(seed: int, *, sharing: bool = False) -> Question:
    dice = np.random.default_rng(seed)
    kinds, types = int(dice.integers(1, 4)), int(dice.integers(1, 4))
    gang = dice.choice([1, 1, 2, 4], kinds)
    speed = dice.integers(1, 12, (kinds, types)) * (dice.random((kinds, types)) < ABLE)
    of = dice.integers(0, kinds, int(dice.integers(1, 9)))
    beside = np.zeros((kinds, kinds, types))
    for a in range(kinds):
        for b in range(kinds):
            if gang[a] == gang[b]:
                beside[a, b] = speed[a] * dice.choice([0.3, 0.6, 0.9], types)
    together = (beside > 0) & (beside.transpose(1, 0, 2) > 0)
    return Question(
        speed=speed[of].astype(float),
        gang=gang[of],
        gpus=dice.integers(1, 6, types),
        weight=dice.choice([1.0, 2.0], len(of)),
        sharing=Sharing(kind=of, speed=np.where(together, beside, 0.0)) if sharing else None,
    )


def used_gpus(found: Allocation, question: Question) -> Floats:
    """T: GPUs in use, averaged over time."""
    used: Floats = question.gang @ found.alone
    if len(found.pairs):
        used = used + question.gang[found.pairs[:, 0]] @ found.paired
    return used

"""Which GPUs a job gets when it is started: it keeps them until it exits or is checkpointed.

CUDA_VISIBLE_DEVICES is read once, so the stride works on bound jobs. It gives the shares of free choice as long as
every GPU carries the same tickets; so a start goes where the bound tickets are fewest, in blocks that gangs can share.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction

from hs_core.names import GpuId

ZERO = Fraction(0)


def choose(
    gang: int,
    allowed: Collection[GpuId],
    host: Sequence[GpuId],
    load: Mapping[GpuId, Fraction],
    rank: Mapping[GpuId, int],
    *,
    kin: Mapping[GpuId, int] | None = None,
) -> tuple[GpuId, ...] | None:
    """`gang` of the `allowed` GPUs, None if there are too few.

    Aligned blocks first (gangs of 2 and 4 then share whole pairs), the least loaded first; then those beside loaded
    ones, so that the GPUs of a larger block stay even; then those with most jobs of the same user (`kin`), for these divide one share: whatever
    comes of it, and whoever of them ends, GPUs carry as much as before; then those whose bound jobs come last in the walk (`rank`).
    `host`: all GPUs in the order of their index; `load`: bound tickets per GPU.
    """
    if len(allowed) < gang:
        return None
    kin = kin or {}
    place = {gpu: i for i, gpu in enumerate(host)}

    def beside(gpu: GpuId, size: int) -> Fraction:
        start = place[gpu] // size * size
        return sum((load.get(g, ZERO) for g in host[start : start + size]), ZERO)

    def key(block: Iterable[GpuId]) -> tuple[Fraction, Fraction, Fraction, int, int, int]:
        block = tuple(block)
        first, own = block[0], sum((load.get(g, ZERO) for g in block), ZERO)
        double, quadruple = beside(first, 2 * gang), beside(first, 4 * gang)
        last = min(rank.get(g, len(rank) + 1) for g in block)
        return (own, -double, -quadruple, -sum(kin.get(g, 0) for g in block), -last, place[first])

    allowed_set = frozenset(allowed)
    whole = [block for block in _blocks(gang, host) if allowed_set.issuperset(block)]
    if whole:
        return tuple(min(whole, key=key) if len(whole) > 1 else whole[0])
    singles = sorted(
        allowed, key=lambda g: (load.get(g, ZERO), -kin.get(g, 0), -rank.get(g, len(rank) + 1), place[g])
    )
    return tuple(sorted(singles[:gang], key=place.__getitem__))


def astride(gpus: Collection[GpuId], host: Sequence[GpuId]) -> bool:
    """A gang on parts of several aligned blocks, where these divide the host: of others as wide hardly one can run beside it."""
    return len(host) % len(gpus) == 0 and frozenset(gpus) not in map(frozenset, _blocks(len(gpus), host))


def _blocks(gang: int, host: Sequence[GpuId]) -> list[Sequence[GpuId]]:
    return [host[i : i + gang] for i in range(0, len(host) - gang + 1, gang)]

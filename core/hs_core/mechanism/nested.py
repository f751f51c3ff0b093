"""Homes of gangs over several servers that cannot run side by side: one within the other, or apart.

Two homes cross where they share some servers and each has others. Who has crossing ones waits for both: while one gang runs, the other's own servers are left to whoever else
lives there, and chains of such homes leave GPUs idle that a count of GPUs says are due to the gangs. So of servers that are as good as one another (`loads`)
a gang takes those with which its home crosses least. The paper (Gandiva_fair, Algorithm 2) says nothing of which of these to take.
"""

from collections.abc import Iterator, Mapping, Sequence

LOOKED_AT = 64  # servers, or eight times as many as the gang has: where more are alike the first are no worse


def choose(order: Sequence[int], nodes: int, gangs: Mapping[frozenset[int], int]) -> list[int]:
    """`nodes` of these servers, which are as good as one another, in their order.

    `order`: the best first. `gangs`: homes of others that cannot run beside it, with GPUs that those who have each ask for.
    """
    rank = {at: place for place, at in enumerate(order)}
    found = {frozenset(order[:nodes]), *homes(order, nodes, gangs)}
    best = min(found, key=lambda home: (_crossed(home, gangs), sorted(map(rank.__getitem__, home))))
    return sorted(best, key=rank.__getitem__)


def _crossed(home: frozenset[int], gangs: Mapping[frozenset[int], int]) -> int:
    """GPUs of gangs with which it crosses."""
    return sum([gpus for gang, gpus in gangs.items() if home & gang and not (home <= gang or gang <= home)])


def homes(order: Sequence[int], nodes: int, gangs: Mapping[frozenset[int], int]) -> set[frozenset[int]]:
    """Within each gang's home or around it, and apart from it, of these servers, the best of them first."""
    return {home for home in _homes(order, nodes, gangs) if len(home) == nodes}


def _homes(order: Sequence[int], nodes: int, gangs: Mapping[frozenset[int], int]) -> Iterator[frozenset[int]]:
    shared = frozenset[int]().union(*gangs)
    free = [at for at in order if at not in shared]
    for gang in gangs:
        inside = [at for at in order if at in gang]
        if len(inside) >= nodes:
            yield frozenset(inside[:nodes])
        elif len(inside) == len(gang):
            yield _around(gang, nodes, gangs, [*free, *(at for at in order if at in shared)])
        yield frozenset([at for at in order if at not in gang][:nodes])


def _around(
    gang: frozenset[int], nodes: int, gangs: Mapping[frozenset[int], int], order: Sequence[int]
) -> frozenset[int]:
    """With other whole homes, as far as they fit in, and servers of nobody's."""
    home, there = set(gang), set(order)
    for other in sorted(gangs, key=lambda each: (-len(each), sorted(each))):
        if len(other) <= nodes - len(home) and other <= there and not other & home:
            home |= other
    for at in order:
        if len(home) == nodes:
            break
        home.add(at)
    return frozenset(home)

"""Servers that share gangs have their turns together: which these are."""

from collections.abc import Iterable, Sequence

from hs_core.names import HostName


def together(homes: Iterable[Sequence[HostName]]) -> dict[HostName, HostName]:
    """`homes`: of gangs. Of each of their servers one name, the same for all with which it shares gangs, directly or not."""
    root: dict[HostName, HostName] = {}

    def find(name: HostName) -> HostName:
        while root.setdefault(name, name) != name:
            root[name] = root[root[name]]
            name = root[name]
        return name

    for first, *others in homes:
        at = find(first)
        for name in others:
            root[find(name)] = at
    return {name: find(name) for name in root}

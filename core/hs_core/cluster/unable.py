"""Servers that could not start a job: others would wait there, all or those of the same user."""

from collections.abc import Iterable

from hs_core.cluster.stays import Stays
from hs_core.names import HostName, JobId, UserName


class Unable:
    """By what they said of it."""

    def __init__(self) -> None:
        self.of_all: Stays[HostName] = Stays()
        self.of_one: Stays[tuple[UserName, HostName]] = (
            Stays()
        )  # they have no account of that user, or no memory for its jobs
        self.for_memory: Stays[JobId] = (
            Stays()
        )  # jobs that found none where they were to be started, wherever that is

        self.obeys: dict[HostName, str] = {}  # another controller, and nothing that this one wants: in words
        # Of these, those with jobs of numbers that this controller had not given, and which: they would obey, and are told nothing.
        self.ahead: dict[HostName, frozenset[JobId]] = {}

        self.sent_on: dict[
            JobId, tuple[HostName, ...]
        ] = {}  # jobs that could not be started there, and were tried elsewhere

    def told(self, user: UserName, hosts: Iterable[HostName]) -> dict[HostName, str]:
        """To people, who wait there: those that start nothing for this controller as well."""
        names = list(hosts) or [*self.servers(), *self.obeys]
        return self.why(user, names) | {name: self.obeys[name] for name in names if name in self.obeys}

    def starts_none(self, host: HostName) -> bool:
        """Whoever's job it is."""
        return host in self.of_all or host in self.obeys

    def servers(self) -> set[HostName]:
        return {*self.of_all, *(host for _, host in self.of_one)}

    def barring(self, user: UserName) -> frozenset[HostName]:
        """Those that cannot start this user's jobs, and may start others'."""
        return frozenset([host for of, host in self.of_one if of == user])

    def why(self, user: UserName, hosts: Iterable[HostName]) -> dict[HostName, str]:
        """Those of these that cannot start this user's jobs, and why."""
        found = {}
        for name in hosts:
            if name in self.of_all:
                found[name] = self.of_all.why(name)
            elif (user, name) in self.of_one:
                found[name] = self.of_one.why((user, name))
        return found

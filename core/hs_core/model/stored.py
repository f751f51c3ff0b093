"""A job's checkpoint, and who has it."""

from dataclasses import dataclass

from hs_core.names import HostName


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What one copy of a job did of an epoch, and the checkpoint that holds it."""

    copy: int  # its rank among them
    generation: int
    steps: int  # since its epoch began


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The newest committed checkpoint of a job, and which servers have its files (by node rank, unless `ranks` says otherwise; one may have several parts)."""

    hosts: tuple[
        HostName, ...
    ]  # empty: those that had it are lost, and it is looked for in the folder that the user named
    epoch: int  # of the incarnation that wrote it
    generation: int  # of copies: the number that their average gets
    step: int
    copies: tuple[
        Copied, ...
    ] = ()  # by server: it is the average of these, weighted by their steps; empty: one checkpoint
    ranks: tuple[
        int, ...
    ] = ()  # by server, where other servers of it are lost: the node that wrote what it has …
    of: int = 0  # … of so many
    surpassed: bool = False  # perhaps, by an incarnation that nobody heard, in the folder that the user named, or of which its server has no memory; what lies there goes before this, which may be gone

    also: tuple[
        HostName, ...
    ] = ()  # by server, another of them that has the same part as well, or "" where none has; empty: none has any

    @property
    def in_folder(self) -> bool:
        """Not on a server that is known to have it: it may be where the user has its checkpoints, if other servers see that too."""
        return not self.hosts

    @property
    def is_unknown(self) -> bool:
        """Any that is found in the folder that the user named, if there is one: nobody was heard to have written it."""
        return self.in_folder and (self.generation, self.step) == (0, 0)

    @property
    def where(self) -> str:
        """For people."""
        return f"on {', '.join(self.servers)}" if self.hosts else "in the folder that its user named"

    @property
    def nodes(self) -> int:
        """Over how many it was written."""
        return self.of or len(self.hosts)

    @property
    def servers(self) -> tuple[HostName, ...]:
        """For people: each once."""
        return tuple(dict.fromkeys(self.hosts))

    def rank(self, at: int) -> int:
        """The node that wrote what the server has that comes at this place."""
        return self.ranks[at] if self.ranks else at

    def is_at(self, home: tuple[HostName, ...]) -> bool:
        """All of it, and each part where its node lives."""
        return self.hosts == home and not self.ranks

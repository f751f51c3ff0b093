"""The order book between the two machines: what the controller wants of a host, declared whole."""

from collections.abc import Container
from dataclasses import dataclass

from hs_core.forms import Form, Shape
from hs_core.model import JobSpec, gpus_as, nodes_as, strategy_as
from hs_core.names import GpuId, HostName, JobId, UserName
from hs_core.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another agent, and where it serves its peers."""

    host: HostName
    address: str


NOBODY = Peer(host=HostName(""), address="")
"""Of a checkpoint whose servers are lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePart:
    """The checkpoint of one of the copies of which a source is the average."""

    peer: Peer  # maybe this host
    epoch: int
    generation: int
    copy: int  # its rank among them; -1: the job was not forked
    steps: int  # its weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A checkpoint that lies on another host: fetched, checked and kept before the job is launched."""

    peer: Peer  # maybe this host, which has it as another of its parts; NOBODY: it is looked for in `JobSpec.checkpoint_dir`
    epoch: int
    generation: int
    step: int
    rank: int = 0  # the node that wrote this part of it …
    nodes: int = 1  # … of so many
    parts: tuple[
        SourcePart, ...
    ] = ()  # it is the average of these, made under `generation` by the process that goes on from it
    look: bool = False  # first, for this one or a newer one in the job's folder, here or on all servers; only then it is fetched

    @property
    def is_sought(self) -> bool:
        """In the job's folder. What a host knows of it itself says nothing: others have written there since, perhaps, and let go of that."""
        return self.look or (self.peer == NOBODY and not self.parts)

    @property
    def may_be_none(self) -> bool:
        """Nobody was heard to have written one: where none is found, it begins afresh."""
        return self.peer == NOBODY and not self.parts and (self.generation, self.step) == (0, 0)

    @property
    def text(self) -> str:
        """For people."""
        if self.may_be_none:
            return "any checkpoint in its folder"
        if self.parts:
            return f"checkpoints from {', '.join(part.peer.host for part in self.parts)}"
        if self.peer == NOBODY:
            return f"checkpoint {self.generation} in the folder that its user named"
        if self.look:
            return f"checkpoint {self.generation} or a newer one in its folder, or else from {self.peer.host}"
        return f"checkpoint {self.generation} from {self.peer.host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lend:
    """A checkpoint of a job that has left: kept, and served to who shows the grant, until it is no longer listed; but for a copy's also the one before, which lies beside it."""

    job: JobId
    epoch: int
    generation: int
    grant: str
    copy: int = -1  # the rank of the copy that wrote it; -1: the job was not forked


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedJob:
    """One job whose home (or, of several nodes, one part of it) is this host."""

    job: JobId
    epoch: int
    restarts: int = 0  # incarnations that it had before this one
    user: UserName
    run_as: str  # operating system account
    job_class: str  # for paces and rates
    spec: JobSpec
    tickets: float  # jobTickets (specs: job tickets); > 0
    paused: bool = False
    cancelled: bool = False  # end it; it stays in the list until its exit was reported
    time_limit_s: float = 0.0  # running seconds left to this incarnation, 0: none
    # A job over several servers; all of them are told the same but for the rank.
    node_rank: int = 0
    nodes: tuple[Peer, ...] = ()  # by node rank; empty: this host alone
    rendezvous: str = (
        ""  # "address:port" that node 0 reserved; with several nodes nothing is launched before it is known
    )
    # Moving.
    hold: bool = False  # do not start it: another host may not know yet that it is no longer to
    leave: bool = False  # checkpoint it, let the process go, and keep it so: it is about to move
    source: Source | None = (
        None  # where this part of its state is to be had from (of several nodes: maybe this host); None: here, or nowhere
    )
    carry: float | None = (
        None  # its place among those of the server that it has left, as `StrideQueue.carry` has it; None: it comes as a newcomer
    )
    grant: str = ""  # what peers must show to have to do with this (job, epoch)
    accumulation: int = 1  # sub-batches of each mini-batch, told to its training loop when it is started
    needs_bytes: int = (
        0  # of the memory of each of its GPUs, since others left it too little; 0: that is not so
    )
    # One of several copies that train on their own until they are averaged.
    copy: int = -1  # its rank among them; -1: the job is not forked
    copies: int = 1
    last_step: int = 0  # where its portion ends: it stops there, and waits; 0: it goes on to its end
    shape: Form | None = None  # how it runs, told to its training loop; None: as declared
    # Shown to a controller that does not know it, since a backup was put back that is older.
    arrival_s: float = 0.0  # wall clock, as of `Job`
    seal: str = ""  # by which that controller sees that it was told so (`cluster.seals`)

    @property
    def gpus(self) -> int:
        """Of this host."""
        return gpus_as(self.spec, self.shape)

    @property
    def servers(self) -> int:
        """How many it is over, of which this host is one."""
        return nodes_as(self.spec, self.shape)

    @property
    def spans(self) -> bool:
        """It is over several servers."""
        return self.servers > 1

    @property
    def trains_as(self) -> Shape | None:
        """An elastic job's shape, also where nobody chose one; None: it is not elastic."""
        if self.shape is None and self.spec.elastic is not None:
            return self.spec.elastic.on(self.spec.gang, self.spec.nodes)
        return self.shape if isinstance(self.shape, Shape) else None

    @property
    def strategy(self) -> Strategy | None:
        """Also where nobody chose one; None: it declared none."""
        return strategy_as(self.spec, self.shape)

    @property
    def form(self) -> Form | None:
        """How it runs, also where nobody chose; None: as it asks."""
        return self.shape or self.trains_as or self.strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """A job of a turn that runs on GPUs of others of that turn, beside them: at most two on a GPU."""

    job: JobId
    beside: tuple[JobId, ...]  # whose GPUs of this host, in this order
    gpus: tuple[int, ...]  # how many of each; what its gang needs beyond is its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """GPUs of this host that a job of a turn should have, by index: as many as it has on one server."""

    job: JobId
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Who may run on a host this quantum (split stride).

    `gangs` run whole and are chosen by the controller; `local`: GPUs that they leave free are shared by the host's own
    gang-aware stride over its other jobs. `seats`: where GPUs of one model differ, which ones a gang should have; the host binds it
    to these as far as it can.
    """

    gangs: tuple[JobId, ...] = ()
    local: bool = True
    guests: tuple[Guest, ...] = ()  # of the gangs
    seats: tuple[Seat, ...] = ()  # of the gangs; left out: the host chooses

    def among(self, able: Container[JobId]) -> "Turn":
        """Without others. A guest whose partner is left out has those GPUs for its own."""
        if all(job in able for job in self.gangs):
            return self
        guests = []
        for guest in self.guests:
            pairs = [(job, n) for job, n in zip(guest.beside, guest.gpus, strict=True) if job in able]
            if guest.job in able and pairs:
                beside, gpus = zip(*pairs, strict=True)
                guests.append(Guest(job=guest.job, beside=beside, gpus=gpus))
        gangs = tuple(job for job in self.gangs if job in able)
        seats = tuple(seat for seat in self.seats if seat.job in able)
        return Turn(gangs=gangs, local=self.local, guests=tuple(guests), seats=seats)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """All that a host should be doing. Declarative: the newest replaces all before it."""

    term: int
    seq: int
    quantum_s: float
    turn: Turn  # of the quantum that is now
    jobs: tuple[WantedJob, ...]
    # Where a gang over several servers has a part here, quanta begin when the cluster's do and turns come one ahead.
    quantum: int = 0
    edge_in_s: float | None = (
        None  # from when this was said until quantum + 1 begins; None: the host keeps its own cadence
    )
    next_turn: Turn | None = None  # of quantum + 1; None: as `turn`
    lends: tuple[Lend, ...] = ()
    drained_gpus: frozenset[GpuId] = frozenset()  # of this host: an administrator wants nothing on them
    fence_after_s: float = (
        0.0  # without a word from the controller for so long, jobs that ask for it are ended; 0: never
    )
    lease_s: float = 0.0  # and so much later started elsewhere; 0: not said

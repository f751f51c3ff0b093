"""What happens (past tense) and what is ordered (imperative), for both machines.

`now_s` in host events is a monotonic clock of that host (boottime). In cluster events it is the time of day as it was when the
controller took office, carried on by its boot clock: within one term it never jumps, so deadlines may rest on it; from one term to
the next it may leap ahead, so none may outlast its term.
"""

from collections.abc import Container
from dataclasses import dataclass, field

from hs_core.forms import Form, Shape
from hs_core.model import Gpu, Host, JobSpec, gpus_as, nodes_as, strategy_as
from hs_core.names import GpuId, HostName, JobId, UserName
from hs_core.reports import Exit, JobReport, Tier
from hs_core.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    now_s: float


# --- the order book between the two: what the controller wants of a host, declared whole -------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another agent, and where it serves its peers."""

    host: HostName
    address: str


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

    peer: Peer
    epoch: int
    generation: int
    step: int
    parts: tuple[
        SourcePart, ...
    ] = ()  # it is the average of these, made under `generation` by the process that goes on from it

    @property
    def text(self) -> str:
        """For people."""
        if self.parts:
            return f"checkpoints from {', '.join(part.peer.host for part in self.parts)}"
        return f"checkpoint {self.generation} from {self.peer.host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lend:
    """A checkpoint of a job that has left: kept, and served to who shows the grant, until it is no longer listed."""

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
    grant: str = ""  # what peers must show to have to do with this (job, epoch)
    accumulation: int = 1  # sub-batches of each mini-batch, told to its training loop when it is started
    # One of several copies that train on their own until they are averaged.
    copy: int = -1  # its rank among them; -1: the job is not forked
    copies: int = 1
    last_step: int = 0  # where its portion ends: it stops there, and waits; 0: it goes on to its end
    shape: Form | None = None  # how it runs, told to its training loop; None: as declared

    @property
    def gpus(self) -> int:
        """Of this host."""
        return gpus_as(self.spec, self.shape)

    @property
    def spans(self) -> bool:
        """It is over several servers, of which this host is one."""
        return nodes_as(self.spec, self.shape) > 1

    @property
    def trains_as(self) -> Shape | None:
        """An elastic job's shape, also where nobody chose one; None: it is not elastic."""
        if self.shape is None and self.spec.elastic is not None:
            return self.spec.elastic.on(self.spec.gpus)
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


# --- the controller's mind: what happens --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsSubmitted(At):
    """One request: all of its jobs are accepted, or none."""

    user: UserName
    specs: tuple[JobSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsCancelled(At):
    by: UserName
    jobs: tuple[JobId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsPaused(At):
    by: UserName
    jobs: tuple[JobId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsUnpaused(At):
    by: UserName
    jobs: tuple[JobId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSet(At):
    name: UserName
    by: UserName | None = None  # who said so; None: the configuration
    tickets: float | None = None  # None: leave as it is (or the default for a new user)
    run_as: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySet(At):
    """An administrator puts another policy of the table in office."""

    name: str
    by: UserName


@dataclass(frozen=True, slots=True, kw_only=True)
class HostJoined(At):
    """An agent connected and told everything it has (first start, restart and heal alike)."""

    host: Host
    reports: tuple[JobReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReported(At):
    """What changed on a host since its last report."""

    host: HostName
    reports: tuple[JobReport, ...]
    gpus: tuple[Gpu, ...] = ()  # empty: as before
    heard: tuple[int, int] | None = None
    """(term, seq) of the newest Wanted that it has taken in, with nothing left alive that is not in it; None: not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLeft(At):
    """The connection ended. Jobs go on there; nothing is placed anew."""

    host: HostName


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDrained(At):
    """Again with another deadline or reason: the newest stands."""

    by: UserName
    host: HostName
    reason: str = ""
    deadline_s: float | None = None  # wall clock


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUndrained(At):
    by: UserName
    host: HostName


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRemoved(At):
    """It will not come back: its jobs are queued again from their newest checkpoint that is not lost with it.

    Refused while it is connected, unless it is drained and empty.
    """

    by: UserName
    host: HostName


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusDrained(At):
    """Which GPUs of a host are drained from now on: replaces what was said before."""

    by: UserName
    host: HostName
    gpus: frozenset[GpuId]
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantumEnded(At):
    """The timer that a Wake asked for."""


ClusterEvent = (
    JobsSubmitted
    | JobsCancelled
    | JobsPaused
    | JobsUnpaused
    | UserSet
    | PolicySet
    | HostJoined
    | HostReported
    | HostLeft
    | HostDrained
    | HostUndrained
    | HostRemoved
    | GpusDrained
    | QuantumEnded
)


# --- the controller's mind: what is ordered -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Direct:
    """Send a host what is wanted of it."""

    host: HostName
    wanted: Wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Wake:
    """Wake the machine at this time (the newest Wake replaces all before it)."""

    at_s: float


ClusterCommand = Direct | Wake


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A line of the audit: shown by `hsctl events`, `hsctl show` (story) and the log."""

    now_s: float
    kind: str  # "submitted", "placed", "started", "suspended", "exited", "user-set", …
    text: str  # one sentence for people
    job: JobId | None = None
    user: UserName | None = None
    host: HostName | None = None
    data: dict[str, str | int | float] = field(default_factory=dict)


# --- the agent's mind: what happens -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedChanged(At):
    wanted: Wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Woke(At):
    """The timer that a WakeHost asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _JobAt(At):
    job: JobId
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHooked(_JobAt):
    """A process of the job has loaded the runtime: it will reach a suspend point by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReady(_JobAt):
    """Every rank stands at its first suspend point and waits to be let go."""

    step: int
    can_swap: bool = False
    can_checkpoint: bool = False  # state was handed over with hs_job.state


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCapable(_JobAt):
    """What the job's state allows became known, or changed, while it runs."""

    can_swap: bool
    can_checkpoint: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHeld(_JobAt):
    """Every rank stopped at the same step; its GPUs are free to others (tier says how its state is kept)."""

    step: int
    tier: Tier
    parked_bytes: int = 0  # moved to host memory (swap), all ranks
    generation: int = -1  # of the checkpoint, where tier is CHECKPOINT (the process exits next)
    order: int = -1  # the newest of this host's orders that was known when it stood; -1: nobody says


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWentOn(_JobAt):
    """Every rank is training again after a Resume or Thaw."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgressed(_JobAt):
    step: int
    steps_per_s: float
    device_memory_bytes: int
    noise_scale: float = 0.0  # of its gradients, examples
    noise_samples: int = 0  # from which it was measured; 0: it was not


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCheckpointed(_JobAt):
    """A checkpoint became durable (on an interval, or on the way out)."""

    step: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed(_JobAt):
    """Disk full, say: the job goes on (or stays as it was) without it."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRestored(_JobAt):
    """A new process took up the state of a checkpoint."""

    step: int
    generation: int  # -1: none held, it started afresh
    note: str = ""  # names generations that were torn


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFroze(_JobAt):
    """The cgroup freezer (or SIGSTOP to all of its processes) took hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendFailed(_JobAt):
    why: str
    order: int = -1  # as in JobHeld


@dataclass(frozen=True, slots=True, kw_only=True)
class JobExited(_JobAt):
    """Its last process is gone and its GPUs are free."""

    exit: Exit


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFailed(_JobAt):
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFetched(_JobAt):
    """It lies in this incarnation's folder, whole and checked."""

    generation: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFailed(_JobAt):
    why: str
    hopeless: bool = False  # it is torn, or no longer there: asking again would hardly mend that


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousReserved(_JobAt):
    address: str  # "10.0.0.2:29417"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerHeard(At):
    """A sign of life on the stream from the controller (host clock): what fencing counts from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusSeen(At):
    """The devices' health as it is now (lost GPU, hardware XID, …): replaces what was known."""

    gpus: tuple[Gpu, ...]


HostEvent = (
    WantedChanged
    | Woke
    | JobHooked
    | JobReady
    | JobCapable
    | JobHeld
    | JobWentOn
    | JobProgressed
    | JobCheckpointed
    | CheckpointFailed
    | JobRestored
    | JobFroze
    | SuspendFailed
    | JobExited
    | LaunchFailed
    | CheckpointFetched
    | FetchFailed
    | RendezvousReserved
    | ControllerHeard
    | GpusSeen
)


# --- the agent's mind: what is ordered ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Get the checkpoint that `wanted.source` names; CheckpointFetched or FetchFailed follows (the driver retries by itself
    for a while, going on where it was)."""

    wanted: WantedJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """Reserve a port for the job's rendezvous (RendezvousReserved follows)."""

    job: JobId
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Start the job's process on these GPUs; it goes up to its first suspend point and waits there (JobReady)."""

    wanted: WantedJob
    gpus: tuple[GpuId, ...]
    generation: int = -1  # restore this checkpoint; -1: start afresh


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspend:
    job: JobId
    epoch: int
    tier: Tier  # HOLD, SWAP, CHECKPOINT: through the hook; FREEZE: the freezer
    order: int = 0  # through the hook: number of the order on this host, for this job; answers carry the newest that was heard


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Let the job go on (from hold, swap, frozen or its first suspend point)."""

    job: JobId
    epoch: int
    order: int = 0  # counted with those to suspend


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Write a checkpoint at the next step edge and go on."""

    job: JobId
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """SIGTERM, then after `grace_s` everything of the job at once, however it hid (JobExited follows)."""

    job: JobId
    epoch: int
    grace_s: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """The controller knows of the exit and no longer wants the job: remove what is left of it on this host."""

    job: JobId
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeHost:
    at_s: float


HostCommand = Fetch | Reserve | Launch | Suspend | Resume | Checkpoint | Kill | Forget | WakeHost

"""What a policy sees and says. A policy is a function of a snapshot and its own memory; nobody parses its name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from hs_core.forms import Elastic, Form, Shape, Spread, strategy_of
from hs_core.model import Migrate, MoveReason, split_memory
from hs_core.names import HostName, JobId, UserName
from hs_core.strategy import Strategy
from hs_core.wanted import Turn

if TYPE_CHECKING:  # agents know what policies are, and run none: without it they need a seventh less memory
    import numpy as np
    from numpy.typing import NDArray

Memory = Mapping[str, Any]
"""JSON-able; journalled with the decision. A policy gets back what it returned last, {} at first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Going:
    """Where a job that is leaving its home through a checkpoint will live once that is written."""

    hosts: tuple[HostName, ...]  # by node rank
    gpus: int  # on each of them


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """A job that could run now (not paused, not blocked by another job, not ending)."""

    id: JobId
    user: UserName
    gang: int  # GPUs over all its nodes, in the shape that it has
    arrival_s: float
    nodes: int = 1  # servers it needs at once, gang / nodes GPUs on each
    priority: int = 0
    gpu_types: tuple[str, ...] = ()
    barred: frozenset[HostName] = frozenset()  # servers that cannot start it, whatever else they start
    gpu_memory_bytes: int = 0
    memory_bytes: int = 0  # per GPU, declared or measured, the larger; 0: not known
    fixed_bytes: int = 0  # of these, what does not shrink with the batch
    accumulation_max: int = 1  # sub-batches that its mini-batches can be split into, at most
    accumulation: int = 1  # and are, since it was started
    job_class: str = ""  # as the strategy that it has, where it declared any
    hosts: tuple[HostName, ...] = ()  # home, by node rank; empty: not placed yet
    started: bool = False  # has a process: it stays at home unless it can move
    held_up: bool = False  # has none, and can have none there for now: its checkpoint cannot be fetched, or its server cannot start it
    movable: bool = False  # could go elsewhere now: not started, or it can write a checkpoint; not moving, not about to end
    going: Going | None = None  # it moves, or is restarted in another shape; None: it stays where it is
    rooted: bool = False  # has a process that can never go elsewhere, or not for long, or is to start where it was once more; a started one that is neither this nor movable soon will be
    single: bool = False  # it trains as one: copies of it could not be averaged
    migrate: Migrate = Migrate.AUTO
    settled_s: float = (
        0.0  # when it was placed or last moved, and its checkpoint had come along; inf: that is on its way
    )
    attained_gpu_s: float = 0.0
    state_bytes: int = 0  # that a move would take along: its newest checkpoint, of copies that of one; before there is any, an estimate; 0: not known
    steps: float = 0.0  # mini-batches in all; 0: not said by its user
    steps_done: float = 0.0
    sliceable: bool = True  # False: once started it runs to its end
    gpus: tuple[tuple[int, ...], ...] = ()
    """By node rank, the GPUs (by index) that its process is bound to; (): none, or not said. It is said of who is `rooted`, and to whom `Needs.by_gpu`, `sharing` or `bindings` of all."""
    dataset: str = ""  # that it reads; empty: not said
    elastic: Elastic | None = None  # what it allows that may run on another number of GPUs
    spans: bool = False  # and over any number of servers, in equal parts, each time that it is started
    strategies: tuple[Strategy, ...] = ()  # that its script can do, the user's own choice first
    spreads: tuple[int, ...] = ()
    """Numbers of servers over which it may be laid, the fewest first, as long as it has no home and no checkpoint; (): over `nodes`."""
    shape: Form | None = None  # that it has at its home; None: as declared
    declared: Shape | None = None  # of an elastic one that has another: as its user declared it
    migrations: int = 0  # moves so far, and changes of its shape
    restartable: bool = False  # could be restarted where it is, from a checkpoint, also if that could not be fetched from its server

    @property
    def host(self) -> HostName | None:
        return self.hosts[0] if self.hosts else None

    @property
    def coming(self) -> bool:
        """It has been given a home, and no process has come up there yet, but may at any moment."""
        return bool(self.hosts) and not self.started and not self.held_up

    @property
    def per_node(self) -> int:
        """GPUs on each of its servers."""
        return self.gang // self.nodes

    @property
    def strategy(self) -> Strategy | None:
        """That it has at its home, or would start in; None: it declared none."""
        return strategy_of(self.shape) or (self.strategies[0] if self.strategies else None)

    def memory_at(self, accumulation: int) -> int:
        """Bytes per GPU with its mini-batches in so many parts: what is not fixed shrinks with them. A started job takes what it takes."""
        return (
            self.memory_bytes
            if self.started
            else split_memory(self.memory_bytes, self.fixed_bytes, accumulation)
        )

    @property
    def steps_left(self) -> float | None:
        """None: its user did not say how many there are. Never below 1: it has not ended yet."""
        return max(1.0, self.steps - self.steps_done) if self.steps else None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    name: HostName
    model: str
    gpus: int  # healthy ones
    gpu_memory_bytes: int  # of the smallest
    connected: bool = True
    expected: bool = False  # not connected, for a moment only: it has left, or a controller taken office, less than a lease ago
    accepts: bool = True  # False: drained, takes no new jobs, and those there should leave
    starts: bool = (
        True  # False: it could not start a job lately, and takes no new ones; who has a process there stays
    )
    indices: tuple[int, ...] = ()  # of the healthy GPUs; (): 0, 1, 2, …
    datasets: frozenset[str] = frozenset()  # that lie there: whose jobs start sooner, all else being equal

    @property
    def numbers(self) -> tuple[int, ...]:
        """Of its healthy GPUs, as `Seat.gpus` names them."""
        return self.indices or tuple(range(self.gpus))


LEAST_BATCHES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiling:
    """How much may be spent on finding out how fast classes of jobs are (FFT, 5)."""

    batches: int | None = None  # mini-batches of a run, at least; 0: no such runs; None: `Needs.profiles`
    share: float = (
        0.1  # of all GPU-time, of an hour at most so much at once; and of a pool's GPUs, but for a single run
    )

    def __post_init__(self) -> None:
        if self.batches and not LEAST_BATCHES <= self.batches <= 1_000_000:
            raise ValueError(
                f"profile_batches: {self.batches} is neither 0 nor from {LEAST_BATCHES} to 1000000"
            )
        if not 0 < self.share <= 1:
            raise ValueError(f"profile_share: {self.share} is not above 0 and at most 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A profiling run that is on: the job is at its home there, and runs until its class's rate is known."""

    model: str
    from_step: float  # as it began
    batches: int

    @property
    def until_step(self) -> float:
        return self.from_step + self.batches

    def text(self, step: float) -> str:
        """For people, at that step."""
        done = max(0, min(self.batches, int(step - self.from_step)))
        return f"profiled on {self.model}: {done} of {self.batches} mini-batches"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    now_s: float
    quantum_s: float
    quantum: int  # the one that is planned. A policy may be asked several times about one quantum: it is charged once
    hosts: tuple[HostFacts, ...]
    jobs: tuple[JobFacts, ...]
    tickets: Mapping[UserName, Fraction]
    rates: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """(job class, GPU model) → mini-batches a second, where both were measured well enough."""
    rates_within: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Of these → how far the true one may be from it, as a part of it, by how much reports differ. Left out: they do not."""
    interference: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    """(job class, class beside it on its GPUs, GPU model) → how many times as long its mini-batches take, at least 1; where measured."""
    slowdowns: Mapping[tuple[str, HostName], tuple[float, ...]] = field(default_factory=dict)
    """(job class, server) → how many times as long its mini-batches take on each of `HostFacts.numbers` as on the middling GPU of the model.

    Left out: all are alike. Said to policies that ask for it (`Needs.by_gpu`).
    """
    speeds: Mapping[tuple[str, str], Mapping[Shape, float]] = field(default_factory=dict)
    """(job class, GPU model) → mini-batches a second of elastic jobs in each shape that was measured well enough."""
    running: frozenset[JobId] = frozenset()  # of these jobs, those that are in their turns right now
    migrations_left: int = 0  # moves of started jobs that the cluster's budget allows now
    seed: int = 0
    more_to_come: bool = True  # jobs; False: a simulation has no others
    profiling: Profiling = field(default_factory=Profiling)
    reserved: Mapping[JobId, tuple[HostName, ...]] = field(default_factory=dict)
    """Jobs that have these servers' GPUs whatever else is decided. Said by what is around a policy (`mechanism.profiling`), never by a driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """For one quantum: where every job lives and each server's turn."""

    homes: Mapping[JobId, tuple[HostName, ...]]  # by node rank
    turns: Mapping[HostName, Turn]  # servers that are left out: LOCAL
    tickets: Mapping[JobId, Fraction]  # jobTickets of every job that has a home; > 0
    moves: Mapping[JobId, tuple[MoveReason, str]] = field(default_factory=dict)
    """Why, in a word and for people, of every started job whose home here is not where it is."""
    accumulation: Mapping[JobId, int] = field(default_factory=dict)
    """Sub-batches of each mini-batch, of jobs that are not started yet; left out: as told before."""
    shapes: Mapping[JobId, Form] = field(default_factory=dict)
    """Of jobs that have a home: shapes of elastic ones, strategies of those that declare some. A started one that has another is restarted, as if it moved.
    Left out: what it has, or as declared."""
    copies: Mapping[JobId, tuple[int, ...]] = field(default_factory=dict)
    """Jobs with one node that train on all servers of their home at once, each with its mini-batches, by rank: at least 1, together what is left.

    They begin with the average of the copies that there were, or with the checkpoint of a job that had none. What is left once that is written is divided in this
    proportion. Who has such a home and is left out here goes on with what it has; with one server it becomes one again.
    """

    trials: Mapping[JobId, Trial] = field(default_factory=dict)
    """Profiling runs: the policy is asked again once such a job has done its mini-batches, or its class's rate is known."""

    in_step: frozenset[HostName] = frozenset()
    """Servers whose quanta begin when the cluster's do, and whose turns come one ahead, though no gang over several has a part there."""

    def per_node(self, job: JobFacts) -> int:
        """GPUs that it gets on each of its servers."""
        shape = self.shapes.get(job.id) if self.shapes else None
        if shape is None:
            return job.per_node
        if isinstance(shape, Spread):
            return job.gang // shape.nodes
        return shape.per_node if isinstance(shape, Shape) else job.per_node

    def nodes(self, job: JobFacts) -> int:
        """Servers that it needs at once."""
        shape = self.shapes.get(job.id)
        return shape.nodes if isinstance(shape, Spread | Shape) else job.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Trade:
    """One user gives GPUs of a fast pool and receives `price` times as many of a slow one (3.4)."""

    fast: str  # GPU model
    slow: str
    giver: UserName  # of the fast ones
    taker: UserName
    fast_gpus: Fraction
    slow_gpus: Fraction
    price: float  # slow GPUs for one fast
    giver_speedup: float
    taker_speedup: float
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TradeNews:
    """A trade was made, or (undone) taken back, in this decision."""

    trade: Trade
    undone: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Onward:
    """What is new in a quantum in which nothing changed but time."""

    turns: Mapping[HostName, Turn]  # servers that are left out: LOCAL
    tickets: Mapping[JobId, Fraction] = field(default_factory=dict)  # of jobs that have others than before
    homes: Mapping[JobId, tuple[HostName, ...]] = field(default_factory=dict)  # the same
    entitled: Mapping[tuple[UserName, str], Fraction] | None = None  # None: as before


class JobsNow(Protocol):
    """What has become of jobs since the policy, or what it decided last, was asked."""

    @property
    def came(self) -> bool:
        """There are others."""

    @property
    def gone(self) -> Sequence[JobId]:
        """These have ended."""

    @property
    def on_their_way(self) -> bool:
        """Some job is leaving its home, or has no process there yet."""

    @property
    def migrations_left(self) -> int:
        """As in a snapshot."""

    def running(self, jobs: "NDArray[np.int64]") -> "NDArray[np.bool_]":
        """Of these, by id: in its turn right now."""

    def attained_gpu_s(self, jobs: "NDArray[np.int64]") -> "NDArray[np.float64]":
        """Of these, by id."""


@dataclass(frozen=True, eq=False)
class Had:
    """What was in its turn in one quantum. To be looked at while it is told: what it is made of goes on."""

    place: Mapping[
        tuple[UserName, str], int
    ]  # of every user in every pool, in `gpus`; the same one quantum after quantum
    count: Callable[[], "NDArray[np.float64]"]
    jobs: JobsNow | None = None  # None: nobody says

    @cached_property
    def gpus(self) -> "NDArray[np.float64]":
        """That each user's jobs had in each pool."""
        return self.count()


class Sequel(Protocol):
    """What a policy decides in quanta in which nothing changed but time, at a part of the cost of asking it."""

    turnover: bool
    """It also knows what becomes of it when jobs have come or ended."""

    def edge(self, quantum: int, now_s: float, had: Had) -> Onward | None:
        """About `quantum`, the next one; None: the policy has to be asked. `had`: in the quantum that ends now."""

    def memory(self) -> Memory:
        """What the policy would remember now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    plan: Plan
    memory: Memory = field(default_factory=dict)
    why: Mapping[JobId, str] = field(default_factory=dict)  # one line per job that does not run
    waits: Mapping[JobId, str] = field(default_factory=dict)
    """The same of those whom nothing but the policy keeps from a turn; within a round what keeps them from one until its end."""
    within_a_round: bool = (
        False  # whose beginning had its own decision: what that said of those that wait stands
    )
    ahead: Mapping[JobId, int] = field(
        default_factory=dict
    )  # in how many quanta after the one that is planned they have a turn, if nothing changes; those are left out of whom that is not known
    how: Mapping[JobId, str] = field(
        default_factory=dict
    )  # and, of those that run, why so, where the policy chose: "as tp=2: …"
    entitled: Mapping[tuple[UserName, str], Fraction] = field(
        default_factory=dict
    )  # (user, model) → GPUs, after trades
    base: Mapping[tuple[UserName, str], Fraction] = field(
        default_factory=dict
    )  # the same before trades; {}: there are none
    trades: tuple[Trade, ...] = ()  # all that stand, oldest first
    news: tuple[TradeNews, ...] = ()
    sequel: Sequel | None = field(default=None, compare=False, repr=False)
    """How it goes on while nothing changes but time; None: a policy that needs every quantum is asked at each edge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a policy asks of the system, and what it claims."""

    every_quantum: bool = False  # decide at each quantum, not only when something changed
    work_conserving: bool = True  # no GPU idles beside a job that could use it; with `moves`, wherever that lives, else on its own server
    moves: bool = (
        True  # jobs go where GPUs idle, those that have started, too; False: whoever has a home stays there
    )
    fair: bool = False  # long-run shares follow tickets: the fairness laws apply
    preemptive: bool = True
    lengths: bool = False  # goes by how long jobs are: by `steps`, where users say it
    sharing: bool = False  # puts two jobs on one GPU; is shown who is bound to which
    starts: bool = True  # has to be asked when a process that may go anywhere has come up, or is gone to move
    ends: bool = True  # has to be asked at once when a job has ended; else at the next edge, and servers fill its GPUs by themselves until then, but for gangs over several of them
    progress: bool = True  # goes by what jobs have received and done: that is as of now in the snapshot
    rounds: bool = False  # whom it lets wait it decides about again at the next edge, unless GPUs become idle that nobody before it takes
    mixed: bool = False  # may give a job of several nodes servers of several GPU models
    by_gpu: bool = False  # may say which GPUs of a server a gang should have (`Turn.seats`): is shown how fast each is, and who is bound to it
    bindings: bool = False  # is shown who is bound to which GPUs
    elastic: bool = False  # may give elastic jobs other shapes than they declared
    strategies: bool = False  # may choose among the strategies that jobs declare
    copies: bool = False  # may have copies of a job train at once, which are averaged after each round
    profiles: int | None = None
    """Has jobs of classes that nobody measured run on each GPU model, for so many mini-batches where nobody says how many; 0: only where somebody does; None: never."""

    def profile_batches(self, asked: Profiling) -> int:
        """0: no such runs."""
        if self.profiles is None:
            return 0
        return self.profiles if asked.batches is None else asked.batches


def _no_trades(_memory: Memory) -> tuple[Trade, ...]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    name: str
    needs: Needs
    decide: Callable[[Snapshot, Memory], Verdict]
    trades: Callable[[Memory], tuple[Trade, ...]] = _no_trades
    """Those that stand, by what it remembers: a controller that takes office is told of no others."""

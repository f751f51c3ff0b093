"""What happens to the controller's mind (past tense), and what it orders (imperative).

`now_s` is the time of day as it was when the controller took office, carried on by its boot clock: within one term it never jumps, so deadlines may rest on
it; from one term to the next it may leap ahead, so none may outlast its term.
"""

from dataclasses import dataclass

from hs_core.events.at import At
from hs_core.failures import Failure
from hs_core.model import Gpu, Host, JobSpec
from hs_core.names import GpuId, HostName, JobId, UserName
from hs_core.policy import Verdict
from hs_core.question import Question
from hs_core.reports import JobReport
from hs_core.wanted import Wanted, WantedJob


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsSubmitted(At):
    """One request: all of its jobs are accepted, or none."""

    user: UserName
    specs: tuple[JobSpec, ...]
    by: UserName | None = None  # an administrator, in the user's name


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsCancelled(At):
    by: UserName
    jobs: tuple[JobId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsPaused(At):
    by: UserName
    jobs: tuple[JobId, ...]
    leave_ended: bool = False  # of an array, say: some may have ended since its user looked


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsUnpaused(At):
    by: UserName
    jobs: tuple[JobId, ...]
    leave_ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSet(At):
    name: UserName
    by: UserName | None = None  # who said so; None: the configuration
    tickets: float | None = None  # None: leave as it is (or the default for a new user)
    run_as: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRemoved(At):
    """Who has no live jobs; what they have received stays in the books."""

    name: UserName
    by: UserName


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySet(At):
    """An administrator puts another policy of the table in office, or has the same one give up a decision at which it stays."""

    name: str
    by: UserName


@dataclass(frozen=True, slots=True, kw_only=True)
class HostJoined(At):
    """An agent connected and told everything it has (first start, restart and heal alike)."""

    host: Host
    reports: tuple[JobReport, ...]
    last_words: tuple[JobReport, ...] = ()  # of incarnations that are no longer there, the older ones first
    said_s: float | None = None  # when it said this, by its host's boot clock; None: it did not
    told: tuple[
        WantedJob, ...
    ] = ()  # of jobs that it has and that were submitted since the backup that was put back: as it was told of them


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReported(At):
    """What changed on a host since its last report."""

    host: HostName
    reports: tuple[JobReport, ...]
    gpus: tuple[Gpu, ...] = ()  # empty: as before
    heard: tuple[int, int] | None = None
    """(term, seq) of the newest Wanted that it has taken in, with nothing left alive that is not in it; None: not told."""
    obeys: int | None = (
        None  # the term of another controller, which has said more than this one: it does nothing that this one wants
    )
    said_s: float | None = None  # as of `HostJoined`


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLeft(At):
    """The connection ended. Jobs go on there; nothing is placed anew."""

    host: HostName


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDoubled(At):
    """Another machine, or another agent on the same one, said that it is this host, which is connected: it was refused."""

    host: HostName
    address: str = ""  # where it came from
    same_boot: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDrained(At):
    """Again with another deadline or reason: the newest stands; where none is said, the one before."""

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

    Refused while it is connected, unless it is drained and empty; while it is away and jobs may still run there, which
    would run twice then, or while it may be on its way back to a new controller, unless it is forced.
    """

    by: UserName
    host: HostName
    force: bool = False


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyAnswered(At):
    """What a Consult asked for: how the policy decided, or failed."""

    question: Question
    answer: Verdict | Failure


ClusterEvent = (
    JobsSubmitted
    | JobsCancelled
    | JobsPaused
    | JobsUnpaused
    | UserSet
    | UserRemoved
    | PolicySet
    | HostJoined
    | HostReported
    | HostLeft
    | HostDoubled
    | HostDrained
    | HostUndrained
    | HostRemoved
    | GpusDrained
    | QuantumEnded
    | PolicyAnswered
)


# --- what is ordered ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Direct:
    """Send a host what is wanted of it."""

    host: HostName
    wanted: Wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Wake:
    """Wake the machine at this time (the newest Wake replaces all before it)."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Consult:
    """Answer this beside the machine, and tell it (`Settings.decides_apart`). There is never more than one."""

    question: Question


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """Whatever the policy was asked before, somebody's preview too, is given up, and nothing that comes is to wait for it."""


ClusterCommand = Direct | Wake | Consult | GiveUp

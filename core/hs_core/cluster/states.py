"""A job's life as a table: state and happening → state. What is not in it cannot happen."""

from collections.abc import Mapping
from enum import StrEnum

from hs_core.errors import BrokenError
from hs_core.model import Job, JobState
from hs_core.reports import JobReport, Phase


class Happening(StrEnum):
    PLACED = "placed"  # given a home
    LAUNCHED = "launched"  # its process is coming up
    RAN = "ran"  # it is in its turn
    STOPPED = "stopped"  # it waits for its turn on its host
    PAUSED = "paused"
    UNPAUSED = "unpaused"  # the host's view follows as placed, launched, ran or stopped
    CANCELLED = "cancelled"  # by somebody, while it has a home: its host is to end it
    DROPPED = "dropped"  # cancelled while it had no home: nothing is left to end
    MOVED = (
        "moved"  # to another home: its incarnation here has left its checkpoint and another one starts there
    )
    REQUEUED = "requeued"  # its incarnation is dead and another one may start
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    GONE = "gone"  # what was cancelled has ended


_ON_ITS_HOST = {
    Happening.LAUNCHED: JobState.STARTING,
    Happening.RAN: JobState.RUNNING,
    Happening.STOPPED: JobState.SUSPENDED,
    Happening.PAUSED: JobState.PAUSED,
    Happening.CANCELLED: JobState.CANCELLING,
    Happening.MOVED: JobState.STARTING,
    Happening.REQUEUED: JobState.QUEUED,
    Happening.SUCCEEDED: JobState.SUCCEEDED,
    Happening.FAILED: JobState.FAILED,
}

TRANSITIONS: Mapping[JobState, Mapping[Happening, JobState]] = {
    JobState.QUEUED: {
        Happening.PLACED: JobState.STARTING,
        Happening.PAUSED: JobState.PAUSED,
        Happening.DROPPED: JobState.CANCELLED,
        # Where it was taken for lost.
        Happening.SUCCEEDED: JobState.SUCCEEDED,
        Happening.FAILED: JobState.FAILED,
    },
    JobState.STARTING: _ON_ITS_HOST,
    JobState.RUNNING: _ON_ITS_HOST,
    JobState.SUSPENDED: _ON_ITS_HOST,
    JobState.PAUSED: {
        Happening.UNPAUSED: JobState.QUEUED,
        Happening.PLACED: JobState.PAUSED,
        Happening.LAUNCHED: JobState.PAUSED,
        Happening.RAN: JobState.PAUSED,
        Happening.STOPPED: JobState.PAUSED,
        Happening.CANCELLED: JobState.CANCELLING,
        Happening.DROPPED: JobState.CANCELLED,
        Happening.REQUEUED: JobState.PAUSED,
        Happening.SUCCEEDED: JobState.SUCCEEDED,
        Happening.FAILED: JobState.FAILED,
    },
    JobState.CANCELLING: {
        Happening.LAUNCHED: JobState.CANCELLING,
        Happening.RAN: JobState.CANCELLING,
        Happening.STOPPED: JobState.CANCELLING,
        Happening.GONE: JobState.CANCELLED,
    },
    JobState.SUCCEEDED: {},
    JobState.FAILED: {},
    JobState.CANCELLED: {},
}

HAPPENING_OF_PHASE: Mapping[Phase, Happening | None] = {
    Phase.WAITING: Happening.STOPPED,
    Phase.STARTING: Happening.LAUNCHED,
    Phase.HELD: Happening.STOPPED,
    Phase.SWAPPED: Happening.STOPPED,
    Phase.FROZEN: Happening.STOPPED,
    Phase.RUNNING: Happening.RAN,
    Phase.SUSPENDING: Happening.STOPPED,
    Phase.CHECKPOINTED: Happening.STOPPED,
    Phase.KILLING: None,  # on its way out: as it was until the exit is known
    Phase.EXITED: None,  # its exit decides
}


def after(job: Job, *happenings: Happening) -> JobState:
    state = job.state
    for happening in happenings:
        following = TRANSITIONS[state].get(happening)
        if following is None:
            raise BrokenError(f"job {job.id}, {state}, cannot be {happening}")
        state = following
    return state


def comes_to(report: JobReport) -> Happening | None:
    """None: it changes nothing. In its turn a job runs from the start of its process: whether that will ever stop at a step is not known yet."""
    if report.phase is Phase.STARTING and report.in_turn:
        return Happening.RAN
    return HAPPENING_OF_PHASE[report.phase]


def happening_of(job: Job) -> Happening | None:
    """What its newest report comes to; None: it has none, or it changes nothing."""
    report = job.report
    return comes_to(report) if report else None


def expected(job: Job) -> frozenset[JobState]:
    """The states that the rest of the row allows: a second opinion on the table's."""
    if job.exit is not None:
        return frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})
    if job.cancelled_by:
        return frozenset({JobState.CANCELLING})
    if job.paused:
        return frozenset({JobState.PAUSED})
    if job.host is None:
        return frozenset({JobState.QUEUED})
    report = job.report
    if report is None:
        return frozenset({JobState.STARTING})
    if report.phase is Phase.STARTING and report.in_turn:
        return frozenset({JobState.RUNNING})
    return _OF_PHASE[report.phase]


_OF_PHASE: Mapping[Phase, frozenset[JobState]] = {
    phase: frozenset({JobState.STARTING, JobState.RUNNING, JobState.SUSPENDED})
    if happening is None
    else frozenset({_ON_ITS_HOST[happening]})
    for phase, happening in HAPPENING_OF_PHASE.items()
}


def drawn() -> str:
    """The table as text, for `docs/states.md`."""
    lines = ["| state | what happens | state after |", "|---|---|---|"]
    for state, row in TRANSITIONS.items():
        by_next: dict[JobState, list[str]] = {}
        for happening, following in row.items():
            by_next.setdefault(following, []).append(happening)
        lines += [f"| {state} | {', '.join(names)} | {following} |" for following, names in by_next.items()]
        if not row:
            lines.append(f"| {state} | | (the end) |")
    return "\n".join(lines) + "\n"

"""What agents say of jobs, and what several of them say as if it were one."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from math import fsum
from typing import Any

from hs_core.copier import copier
from hs_core.names import GpuId, JobId


class Tier(StrEnum):
    """How a job's state is kept while it is suspended, cheapest first."""

    HOLD = "hold"  # stopped at a step edge, state stays on the GPU
    SWAP = "swap"  # device memory moved to pinned host memory, process lives
    CHECKPOINT = "checkpoint"  # durable on disk, process gone
    FREEZE = "freeze"  # cgroup freezer: for what cannot be hooked; state stays on the GPU
    NONE = "none"  # cannot be suspended


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a process ended: exactly one of code and signal says so, or `why` where there was no process."""

    code: int = 0
    signal: int = 0
    why: str = ""  # "", "launch failed: …", "time limit", "lost with its host", "ended with its agent", "out of memory: …"
    log_tail: str = ""

    @property
    def ok(self) -> bool:
        return self.code == 0 and self.signal == 0 and not self.why


class Phase(StrEnum):
    """Where a job stands on its host, as the agent sees it."""

    WAITING = "waiting"  # known, not launched yet
    STARTING = "starting"  # process is up, has not reached a step edge
    HELD = "held"  # suspended, tier hold (or: started ahead of its turn and waiting at its first step edge)
    SWAPPED = "swapped"
    FROZEN = "frozen"
    RUNNING = "running"
    SUSPENDING = "suspending"  # told to stop, GPUs not free yet
    CHECKPOINTED = "checkpointed"  # durable, process gone, can be started again anywhere
    KILLING = "killing"
    EXITED = "exited"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """What an agent says of one job. Counters are cumulative over one (job, epoch): repeats change nothing."""

    job: JobId
    epoch: int
    phase: Phase
    gpus: tuple[GpuId, ...] = ()  # bound to the job, whether in its turn or held
    step: int = 0  # mini-batches done
    steps_per_s: float = 0.0  # over the last turn, 0: not known
    gpu_s: float = 0.0  # GPU-seconds charged in this epoch
    run_s: float = 0.0  # seconds in turns in this epoch
    suspends: int = 0
    resumes: int = 0
    suspend_s: float = 0.0  # sum over all suspends, request to GPUs free
    resume_s: float = 0.0  # sum over all resumes, order to first step under way
    lost_gpu_s: float = 0.0  # GPU-seconds of work that had to be done again
    tier: Tier = Tier.NONE  # last used
    sliceable: bool = True
    note: str = ""  # e.g. why it is not sliceable
    device_memory_bytes: int = 0  # per GPU, largest seen
    host_memory_bytes: int = 0  # of one server's, largest seen
    noise_scale: float = 0.0  # of its gradients, as its process measures it, examples
    noise_samples: int = 0  # measurements; 0: none
    beside: tuple[JobId, ...] = ()  # jobs with which it shares GPUs now, by id
    in_turn: bool = False  # its GPUs are its own now, also while its process comes up
    can_checkpoint: bool = False  # its process can write a checkpoint that another one goes on from
    single: bool = False  # but copies could not be averaged: a library's loop counts by itself
    checkpoint_step: int = -1  # newest durable one on this host (made here or fetched), -1: none
    checkpoint_generation: int = -1
    checkpoint_bytes: int = 0  # files here of the newest one that was weighed; 0: none was
    fallbacks: int = (
        0  # times that a process found that one torn or gone, and began from an older one, or afresh …
    )
    fallback_why: str = ""  # … the last time for this reason
    began_step: int = -1  # where its newest process began; -1: it has not said so yet
    checkpoint_fails: int = 0  # in a row, the newest ones
    start_fails: int = 0  # the same of starts that its host had no room for
    carry: float | None = (
        None  # once it has left through a checkpoint: its place among those of its server, as `StrideQueue.carry` has it
    )
    nodes: int = 1  # servers that this incarnation is over …
    rank: int = 0  # … and which of these this one is, by node rank
    in_touch: bool = False  # it has ended, and its agent heard those of its other parts by then: these were not cut off from one another
    rendezvous: str = ""  # node 0 of a job over several servers: the address and port that its agent reserved
    since_s: float = 0.0  # when it came to stand so, or ended, by its host's boot clock; 0: not said
    exit: Exit | None = None

    @property
    def occupies(self) -> bool:
        """Its GPUs are no others' just now: in its turn, or not given back yet."""
        return self.in_turn or self.phase in _OCCUPIES


_OCCUPIES = frozenset({Phase.RUNNING, Phase.SUSPENDING, Phase.KILLING})

report_with = copier(JobReport)


def parting(
    sent: Mapping[JobId, JobReport], now: Mapping[JobId, JobReport], words: Callable[[], Iterable[JobReport]]
) -> list[JobReport]:
    """Of incarnations that are no longer here since a controller was told of them: their last words, where these say more than it was told. What was said when it
    was met may have lain there until it told this host to end them.
    """
    gone = {
        (job, report.epoch): report
        for job, report in sent.items()
        if job not in now or now[job].epoch != report.epoch
    }
    if not gone:
        return []
    return [last for last in words() if (was := gone.get((last.job, last.epoch))) and differs(was, last)]


def differs(was: JobReport | None, now: JobReport) -> bool:
    """From what was said last; of who is in its turn it does by what it has received, so that fields are seldom compared one by one."""
    return was is not now and (was is None or was.gpu_s != now.gpu_s or was != now)


MOST_AT_ONCE = 1000
"""Reports in one message of an agent; it says more in several. Whoever hears them hears others in between."""

CANNOT_FETCH = "cannot fetch"
"""How the reason begins for which a part ended, or waits, whose checkpoint could not be had."""

UNSTOPPED = "does not stop"
"""How the note begins of one that was asked to stop, did not, and could not be frozen."""

UNDYING = "does not die"
"""How the note begins of one that was killed and is still there: nobody else can have its GPUs."""

FOR_MEMORY = "waits for host memory"
"""How the note begins of one that is not started as its server has too little left."""

FOR_GPU_MEMORY = ("needs more memory than", "its GPUs' memory", "the memory of GPU")
"""How the note may begin of one whose turn is not given to it as others hold the memory of its GPUs."""

MEMORY_HELD = "is held by jobs that can't be moved out"
"""In the reason for which one is not started, or its turn not given to it: memory of GPUs, where its host has none for it either, and they write no checkpoints."""

CANNOT_START = "cannot be started on its server"
"""How the note begins of one that its server has no room for on its disk, or no descriptors: it is tried again there."""

NO_ACCOUNT = "there is no account"
"""How the reason begins where the server does not know the user's account: it can start the jobs of others."""

NO_ROOM_FOR = "there is no room for its checkpoint"
"""How the reason begins where that could not be taken in: as large as its user's job has said that it is, and by what a process of that user's has met. Others' jobs may be smaller."""

NOT_AS_BEFORE = "what it began with before is not there"
"""How the reason begins where one that has a checkpoint cannot begin again: its folder, say, on a file system that is not mounted there. Others may have all that they need."""

LAUNCH_FAILED = "launch failed"
"""How the reason of an exit begins where there never was a process: the job, or its account, is to blame."""

LOST = "lost with its host"
"""How the reason of an exit begins for which the job is not to blame."""

OUT_OF_MEMORY = "out of memory: the kernel killed a process of it"
"""How the reason of an exit begins for which there was too little host memory: within its own limit, or …"""

NONE_LEFT = "; the server had none left"
"""… so it ends."""

CROWDED_OUT = "crowded out of"
"""How the reason of an exit begins for which others are to blame, as they held …"""

OF_GPUS = f"{CROWDED_OUT} GPU memory"
"""… memory of its GPUs, into which it would have fitted alone: it is taken up again, known to need more."""

OF_HOST = f"{CROWDED_OUT} host memory"
"""… its server's memory: it is taken up again if it has got farther than the last time."""

TOLD_TO_END = "cancelled"
"""Why a job ended whose host was told to end it, by whomever and for whatever."""

TIME_LIMIT = "time limit"
"""Why a job ended that ran for as long as it may."""

WITH_AGENT = "ended with its agent"
"""Why a job ended whose agent was to take its jobs along when it stopped: that is the end of it, wherever its other parts are."""

TRESPASSED = "computed on a GPU that is not its own"
"""Why a job ended whose processes were on a GPU that was given to others, or to nobody."""

BROKE_AGENT = "what it said broke the agent of its server again and again: an error of HeteroShare, which administrators can report"
"""Why a job ended without which its server's agent serves the others."""

FINAL = frozenset({TIME_LIMIT, WITH_AGENT, TRESPASSED, BROKE_AGENT})
"""Ends after which a job is not tried again."""

FOLLOWED = "ended because another part of it had"
"""Why a part of a job over several servers ended that was not the first to."""


_BEFORE_RUNNING = (Phase.WAITING, Phase.CHECKPOINTED, Phase.STARTING, Phase.SUSPENDING)
"""Of several servers the phase that comes first here is the job's."""


def as_one(reports: tuple[JobReport, ...], nodes: int) -> JobReport | None:
    """What the servers of one job say, as if it were one: sums of what adds up, the least of what all must have."""
    if len(reports) <= 1 and nodes <= 1:
        return reports[0] if reports else None
    if not reports:
        return None
    first = reports[0]
    failed = [r for r in reports if r.phase is Phase.EXITED and r.exit and not r.exit.ok]
    # Whoever stopped an agent with its jobs meant the whole of them.
    with_agent = (r for r in failed if r.exit and r.exit.why == WITH_AGENT)
    # One that is lost takes the others with it, also where they were heard of first.
    lost = (r for r in failed if r.exit and r.exit.why.startswith(LOST))
    # So does its time limit, or a trespass: parts fail as another is ended for it, and may be heard of before.
    final = (r for r in failed if r.exit and r.exit.why in FINAL)
    # The others of its ranks fail as one of them is gone.
    crowded = (r for r in failed if r.exit and r.exit.why.startswith(CROWDED_OUT))
    first_failed = (r for r in failed if r.exit and r.exit.why != FOLLOWED)
    ended = next(chain(with_agent, lost, final, crowded, first_failed, failed), None)
    phases = [r.phase for r in reports]
    sizes = [
        r.checkpoint_bytes for r in reports
    ]  # of what some have not weighed nobody knows how large it is
    if ended is not None:
        gone = len(reports) == nodes and all(p is Phase.EXITED for p in phases)
        phase = Phase.EXITED if gone else Phase.KILLING
    elif len(reports) < nodes:
        phase = next((p for p in _BEFORE_RUNNING if p in phases), Phase.WAITING)
    else:
        odd = [p for p in _BEFORE_RUNNING if p in phases]
        live = [p for p in phases if p is not Phase.EXITED]
        phase = odd[0] if odd else (live[0] if live else Phase.EXITED)
    return report_with(
        first,
        **_together(reports, nodes),
        phase=phase,
        step=min(r.step for r in reports),
        sliceable=all(r.sliceable for r in reports),
        can_checkpoint=len(reports) == nodes and all(r.can_checkpoint for r in reports),
        in_turn=len(reports) == nodes and all(r.in_turn for r in reports),
        checkpoint_step=min(r.checkpoint_step for r in reports),
        checkpoint_bytes=sum(sizes) if len(reports) == nodes and all(sizes) else 0,
        exit=(ended or first).exit if phase is Phase.EXITED else None,
    )


_OF_COPIES = (
    Phase.RUNNING,
    Phase.SUSPENDING,
    Phase.STARTING,
    Phase.FROZEN,
    Phase.HELD,
    Phase.SWAPPED,
    Phase.WAITING,
    Phase.CHECKPOINTED,
    Phase.KILLING,
)
"""Of several copies that have not ended the phase that comes first here is the job's."""


def copies_as_one(reports: tuple[JobReport, ...], copies: int, base_step: int) -> JobReport | None:
    """What the servers of a job's copies say, as if it were one: what each did since they began adds up.

    It has ended when all copies have; well, if one did: then its script was through.
    """
    if not reports:
        return None
    live = [r for r in reports if r.phase is not Phase.EXITED]
    phases = {r.phase for r in live} | ({Phase.WAITING} if len(reports) < copies else set())
    ended = [r.exit for r in reports if r.exit is not None]
    done = next((e for e in ended if e.ok), None)
    why = done or next((e for e in ended if not e.why), ended[0] if ended else None)
    phase = next((p for p in _OF_COPIES if p in phases), Phase.EXITED)
    if done is not None and phases:
        phase = Phase.KILLING
    among = live or reports
    return report_with(
        among[0],
        **_together(reports, copies),
        phase=phase,
        step=base_step + sum(max(0, r.step - base_step) for r in reports),
        steps_per_s=fsum(r.steps_per_s for r in live),
        sliceable=all(r.sliceable for r in among),
        can_checkpoint=all(r.can_checkpoint for r in among),
        in_turn=any(r.in_turn for r in live),
        # Of what they have written since they began each is a part: what all have is where they began.
        checkpoint_step=min(base_step, *(r.checkpoint_step for r in reports)),
        checkpoint_bytes=max(r.checkpoint_bytes for r in reports),  # each has all of its own
        exit=why if phase is Phase.EXITED else None,
    )


def _together(reports: tuple[JobReport, ...], servers: int) -> dict[str, Any]:
    """What is added up alike for parts of a gang and for copies."""
    return {
        "gpus": tuple(gpu for r in reports for gpu in r.gpus),
        "gpu_s": fsum(r.gpu_s for r in reports),
        "run_s": max(r.run_s for r in reports),
        "suspends": max(r.suspends for r in reports),
        "resumes": max(r.resumes for r in reports),
        "suspend_s": max(r.suspend_s for r in reports),
        "resume_s": max(r.resume_s for r in reports),
        "lost_gpu_s": fsum(r.lost_gpu_s for r in reports),
        "note": next((r.note for r in reports if r.note), ""),
        "device_memory_bytes": max(r.device_memory_bytes for r in reports),
        "host_memory_bytes": max(r.host_memory_bytes for r in reports),
        "beside": tuple(sorted({job for r in reports for job in r.beside})),
        "checkpoint_fails": max(r.checkpoint_fails for r in reports),
        "start_fails": max(r.start_fails for r in reports),
        "checkpoint_generation": min(r.checkpoint_generation for r in reports)
        if len(reports) == servers
        else -1,
    }

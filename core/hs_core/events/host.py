"""What happens to the agent's mind (past tense), and what it orders (imperative). `now_s` is a monotonic clock of that host (boottime)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from hs_core.events.at import At
from hs_core.model import Gpu
from hs_core.names import GpuId, JobId
from hs_core.reports import Exit, Tier
from hs_core.wanted import Wanted, WantedJob


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedChanged(At):
    wanted: Wanted
    late_s: float = (
        0.0  # since it was said, beyond the usual: it may have lain somewhere while the agent was stopped
    )


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
    single: bool = False  # which has no average with that of other copies
    order: int = -1  # as `JobHeld` has it


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCapable(_JobAt):
    """What the job's state allows became known, or changed, while it runs."""

    can_swap: bool
    can_checkpoint: bool
    single: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHeld(_JobAt):
    """Every rank stopped at the same step; its GPUs are free to others (tier says how its state is kept)."""

    step: int
    tier: Tier
    parked_bytes: int = 0  # moved to host memory (swap), by all ranks of this host
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
class CheckpointWeighed(_JobAt):
    """How large a durable one is, as far as it lies on this host: looked up beside all else, so it may come late, or never."""

    size_bytes: int


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
    in_touch: bool = False  # as in `JobReport`
    ended_s: float = inf  # when; inf: that is not known, now at the latest
    step: int = -1  # that its processes left word of; -1: none
    needs_bytes: int = 0  # of each of its GPUs, where it ended for want of their memory; 0: it did not


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitFound(_JobAt):
    """Of an incarnation that this host has no memory of: its folder says what it was, and how it ended."""

    wanted: WantedJob
    exit: Exit
    step: int = -1  # as in JobExited


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFailed(_JobAt):
    why: str
    host_fault: bool = False  # there was no room on its disk, say: whatever the job is, it is not to blame


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFetched(_JobAt):
    """It lies in this incarnation's folder, whole and checked."""

    generation: int
    step: int
    size_bytes: int = 0  # of its files; 0: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingFetched(At):
    """Where checkpoints of these incarnations may be, there are none. Thousands may be asked about at once: they are told together."""

    jobs: tuple[tuple[JobId, int], ...]  # with their epochs


class Lack(StrEnum):
    """Why a checkpoint could not be had: what asking again is good for."""

    UNREACHED = "unreached"  # whoever has it did not send it
    GONE = "gone"  # it is not there
    DAMAGED = "damaged"  # it is, and is not what was written


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFailed(_JobAt):
    why: str
    lack: Lack = Lack.UNREACHED
    host_fault: bool = False  # this host has no room for it


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousReserved(_JobAt):
    address: str  # "10.0.0.2:29417"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerHeard(At):
    """A sign of life on the stream from the controller (host clock): what fencing counts from."""

    late_s: float = 0.0  # as in `WantedChanged`


@dataclass(frozen=True, slots=True, kw_only=True)
class CastOut(At):
    """The controller says that this host was removed from the cluster: what runs here is somebody else's to start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusSeen(At):
    """The devices' health as it is now (lost GPU, hardware XID, …): replaces what was known."""

    gpus: tuple[Gpu, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTrespassed(At):
    """A process of it has been for a while on a GPU that is not one of its own, as the driver says."""

    job: JobId
    epoch: int
    gpu: GpuId


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCondemned(_JobAt):
    """What it says breaks this host's mind (`hs_core.host.blame`): it is to end, and is heard no more but for its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemorySeen(At):
    """What could still be taken without anybody being pushed out, and what the processes of each job hold."""

    available_bytes: int
    held_bytes: Mapping[JobId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemorySeen(At):
    """What the processes of jobs hold on each of their GPUs, as the driver says: of several the most. Whoever came, left or stood otherwise while it was looked is not among them."""

    held_bytes: Mapping[JobId, int]


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
    | CheckpointWeighed
    | CheckpointFailed
    | JobRestored
    | JobFroze
    | SuspendFailed
    | JobExited
    | ExitFound
    | LaunchFailed
    | CheckpointFetched
    | NothingFetched
    | FetchFailed
    | RendezvousReserved
    | JobTrespassed
    | JobCondemned
    | ControllerHeard
    | CastOut
    | GpusSeen
    | HostMemorySeen
    | DeviceMemorySeen
)


# --- what is ordered ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Get the checkpoint that `wanted.source` names; CheckpointFetched, NothingFetched or FetchFailed follows (the driver retries by itself
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
    """SIGTERM, then after `grace_s` everything of the job at once, however it hid (JobExited follows).

    `leaves`: it is on its way out with its checkpoint, and is left alone for as long first.
    """

    job: JobId
    epoch: int
    grace_s: float
    why: str
    leaves: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """The controller knows of the exit and no longer wants the job: remove what is left of it on this host."""

    job: JobId
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeHost:
    at_s: float


HostCommand = Fetch | Reserve | Launch | Suspend | Resume | Checkpoint | Kill | Forget | WakeHost

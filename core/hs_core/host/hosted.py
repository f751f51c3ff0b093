"""One job on this host: what is known of it, what was asked of it, what it has been charged."""

from dataclasses import dataclass, replace
from fractions import Fraction

from hs_core.copier import maker
from hs_core.events.host import Lack
from hs_core.model import OnPartition, SuspendMode, split_memory
from hs_core.names import GpuId, JobId
from hs_core.reports import (
    CANNOT_FETCH,
    CANNOT_START,
    UNSTOPPED,
    Exit,
    JobReport,
    Phase,
    Tier,
    report_with,
)
from hs_core.wanted import NOBODY, Source, WantedJob

_says = maker(JobReport)


class _Named:
    """What is asked for more often than anything else, and nowhere kept twice."""

    __slots__ = ("id",)
    id: JobId
    wanted: WantedJob

    def __post_init__(self) -> None:
        self.id = self.wanted.job


@dataclass(slots=True, kw_only=True, eq=False)
class HostedJob(_Named):
    """Mutable, owned by the machine. Times are the host's monotonic clock."""

    wanted: WantedJob
    order: int  # of arrival on this host
    came_s: float = 0.0
    phase: Phase = Phase.WAITING
    since_s: float = 0.0  # it has stood so, as far as was noted …
    noted: Phase | None = None  # … with this phase
    gone_s: float | None = None  # its process, which ended before that was heard
    gpus: tuple[GpuId, ...] = ()  # bound while there is a process; planned while its launch waits for losers
    aim: tuple[GpuId, ...] = ()  # it moves there, if it can …
    left: tuple[GpuId, ...] = ()  # … from these
    in_turn: bool = False  # has, or gets as soon as they are free, its GPUs this quantum
    passed_over: bool = False  # left out of this quantum …
    back_at_s: float | None = None  # … or for no longer than until then
    waited_quanta: int = 0  # missed since its last turn; a part: all that it missed since its start
    next: WantedJob | None = None  # a higher epoch, taken up once this one is gone
    dropped: bool = False  # no longer wanted here
    carry: Fraction | None = None  # its place in the queue, while it is out of it
    takes: float | None = None  # the same, as it left through a checkpoint: to another host, perhaps

    rendezvous: str = ""  # reserved here, where its other nodes meet it
    reserve_at_s: float = 0.0  # ordered (again) then
    fetching: Source | None = None  # ordered, not answered
    fetch_at_s: float = 0.0  # not tried before
    fetch_fails: int = 0
    fetch_why: str = ""  # of the last failure …
    fetch_lack: Lack = Lack.UNREACHED  # … which so many in a row were like
    fetch_alike: int = 0
    older: int = -1  # generation that is fetched in place of the one that was named, which is damaged or gone

    start_why: str = ""  # why its host could not start it; not tried again before …
    start_at_s: float = 0.0
    start_fails: int = 0  # in a row

    launched_s: float | None = None  # there is a process since
    start_deadline_s: float = 0.0  # by which it must load the runtime, then reach a suspend point
    hooked: bool | None = None  # None: not known yet
    ready: bool = False  # this process reached its first suspend point: it can be stopped by the hook
    start_s: float = 0.0  # from launch until then, of the newest process that got there
    resumed: bool = False  # this process was let go at least once
    can_swap: bool = False
    can_checkpoint: bool = False
    single: bool = False  # as its newest process has said
    hold_after_s: float = 0.0  # frozen until then instead: it came to no step to stand at
    hold_fails: int = 0  # in a row
    swap_after_s: float = 0.0  # not tried before: it failed
    checkpoint_after_s: float = 0.0
    checkpoint_fails: int = 0  # in a row
    stuck: str = ""  # why it does not stop (or die), found by trying
    in_touch: bool = False  # as in `JobReport`
    overdue: bool = False  # no suspend point by the deadline: treated as running without steps

    orders: int = 0  # given to its hook: Suspend and Resume
    asked: Tier | None = None  # a Suspend is under way
    asked_s: float = 0.0
    deadline_s: float = 0.0  # of what was asked, or of a kill
    going_s: float | None = None  # a Resume is under way since
    came_up_s: float = 0.0  # and its turn had waited for its process for so long
    resend_s: float = 0.0
    kill_why: str = ""
    exit_why: str = ""  # what its exit says instead
    saves_at_run_s: float = 0.0  # by interval: in turns, as `run_s` counts

    charged_from_s: float | None = None  # its GPUs are its own since
    charged_gpus: float = 0.0  # and it is charged for so many since: of those that it shares, its part
    beside: tuple[JobId, ...] = ()  # those it shares them with
    gpu_s: float = 0.0  # up to then
    run_s: float = 0.0
    suspends: int = 0
    resumes: int = 0
    suspend_s: float = 0.0
    resume_s: float = 0.0
    lost_gpu_s: float = 0.0
    step: int = 0
    first_step: int = 0  # that its GPU-seconds here begin with: what was done before is of earlier epochs
    steps_per_s: float = 0.0
    device_memory_bytes: int = 0
    crowds_s: float | None = None  # when one ended, newest, that had too little memory beside it
    noise_scale: float = 0.0
    noise_samples: int = 0
    parked_bytes: int = 0
    moved_bytes: int = 0  # by this process's last swap: the host memory for it stays its own
    unparked: bool = False  # when it was to leave its GPUs last, host memory had no room for it
    shelved: bool = False  # written out of host memory: not started anew before its turn is near
    stood_from_s: float | None = None  # it stands, or stood last, since then
    stood_s: float | None = None  # before its newest turn
    coming_back: bool = False  # swapped itself, it has others swapped so that there is room for it
    residue_bytes: int = 0  # that this process was last seen to hold on each of its GPUs while it was swapped: its device's context
    host_bytes: int = 0  # host memory that its processes hold, as last seen
    host_peak_bytes: int = 0  # the most that was ever seen
    launched_run_s: float = 0.0  # what it had run before this process
    weighed: bool = False  # this process has been seen since it came up
    refused_quanta: int = (
        0  # in which it was first in line and could not be started for want of host memory …
    )
    idle_quanta: int = 0  # of these, those in which nobody ran here at all
    refused_edge_s: float = -1.0  # … the last of which began then
    tier: Tier = Tier.NONE
    checkpoint_step: int = -1
    checkpoint_generation: int = -1
    looks: bool = False  # it ran before, and its checkpoint is here or nowhere, but this host remembers none: whether there is one in its folder is looked for
    checkpoint_bytes: int = 0  # of the newest that was weighed: what is written next is about as large
    began_step: int = -1  # where this process began; -1: that is not known yet
    fallbacks: int = 0  # a process found that one torn or gone …
    fallback_why: str = ""  # … the last of them for this reason
    exit: Exit | None = None
    trouble: str = ""  # newest failure that was survived
    held_up: str = ""  # why its turn was not given to it

    @property
    def gang(self) -> int:
        """GPUs at once on this host."""
        return self.wanted.gpus

    @property
    def fences(self) -> bool:
        """It is not to go on for long without the controller's word."""
        return self.wanted.spec.on_partition is OnPartition.FENCE and self.phase is not Phase.EXITED

    @property
    def part(self) -> bool:
        """Of a job over several hosts: it runs in the turns that the controller gives it, and no others."""
        return self.wanted.spans

    @property
    def reserves(self) -> bool:
        """Its nodes meet here, and nobody knows where yet."""
        wanted = self.wanted
        return self.part and wanted.node_rank == 0 and not self.rendezvous and not wanted.rendezvous

    @property
    def portion_done(self) -> bool:
        """A copy that has done what it was to do waits until all are averaged."""
        return 0 < self.wanted.last_step <= self.step

    @property
    def source(self) -> Source | None:
        """What it is to go on from, where this host does not know it to be its own."""
        source = self.wanted.source
        if source is None:
            return Source(peer=NOBODY, epoch=self.wanted.epoch, generation=0, step=0) if self.looks else None
        return replace(source, generation=self.older, step=0) if self.takes_older else source

    @property
    def takes_older(self) -> bool:
        """Not what the controller named, but what was written before that."""
        source = self.wanted.source
        return source is not None and 0 <= self.older == source.generation - 1

    @property
    def needs_fetch(self) -> bool:
        """What it goes on from lies elsewhere, and nothing as new lies here."""
        source = self.source
        if source is None or self.alive:
            return False
        if self.takes_older:
            return self.checkpoint_generation < source.generation
        nothing = self.checkpoint_generation < 0 and not source.may_be_none  # which counts as step 0
        return nothing or self.checkpoint_step < source.step

    @property
    def startable(self) -> bool:
        """Nothing but GPUs is missing to start its process."""
        meets = not self.part or bool(self.wanted.rendezvous)
        if self.wanted.copy >= 0 and self.checkpoint_generation < 0:
            return False  # all of them begin alike
        held = self.wanted.leave or self.wanted.hold or self.needs_fetch
        return meets and not held and not self.start_why

    @property
    def waits_for(self) -> str:
        """Why it is not started, GPUs apart."""
        if self.alive or self.ended:
            return "has done its portion, and waits for the other copies" if self.portion_done else ""
        source = self.source
        if source is not None and self.needs_fetch:
            why = self.fetch_why
            return f"{CANNOT_FETCH} {source.text}: {why}" if why else f"waits for {source.text}"
        if self.wanted.hold:
            return "waits until the server that it was on before knows that it is not"
        if self.part and not self.wanted.rendezvous:
            return "waits until its nodes know where to meet"
        return f"{CANNOT_START}: {self.start_why}" if self.start_why else ""

    @property
    def stays_here(self) -> str:
        """Why it cannot be moved though it should."""
        if not self.wanted.leave or not self.alive or self.ended:
            return ""
        if self.mode in (SuspendMode.TRANSPARENT, SuspendMode.NONE) or self.hooked is False:
            return "cannot be moved: it has no step hook"
        if self.ready and not self.can_checkpoint:
            return "cannot be moved: it gave no state that a checkpoint can hold (hs_job.state)"
        return f"cannot be moved: does not stop: {self.stuck}" if self.stuck else ""

    @property
    def mode(self) -> SuspendMode:
        return self.wanted.spec.suspend

    @property
    def hookable(self) -> bool:
        """The runtime is in the process, or may turn out to be."""
        return self.mode in (SuspendMode.AUTO, SuspendMode.HOOK)

    @property
    def memory_bytes(self) -> int:
        """Per GPU: declared, measured, or what it had too little of, the largest; 0: unknown."""
        spec = self.wanted.spec
        declared = spec.gpu_memory_bytes
        if self.wanted.accumulation > 1:
            declared = split_memory(declared, spec.gpu_memory_fixed_bytes, self.wanted.accumulation)
        return max(declared, self.device_memory_bytes, self.wanted.needs_bytes)

    @property
    def untried(self) -> bool:
        """Nobody can know yet what it will hold: it says nothing, and has made no step; of one without steps to hear of: it has had no turn."""
        stepless = self.hooked is False or self.overdue
        return not (self.memory_bytes or self.steps_per_s or (stepless and self.run_s))

    @property
    def alive(self) -> bool:
        return self.launched_s is not None

    @property
    def resident(self) -> bool:
        """Its state lies in device memory."""
        return self.alive and self.phase is not Phase.SWAPPED

    def is_past(self, order: int) -> bool:
        """An answer from before its newest order was heard: how it stood then is no longer so, or soon will not be."""
        return 0 <= order < self.orders

    @property
    def occupying(self) -> bool:
        """Its GPUs can't be given to another: in its turn, on the way out, or unkillable."""
        return self.charged_from_s is not None or (bool(self.stuck) and self.phase is Phase.KILLING)

    @property
    def leaving_memory(self) -> bool:
        """Its device memory will be free without anything more being asked."""
        return (
            self.asked in (Tier.SWAP, Tier.CHECKPOINT)
            or (self.phase is Phase.CHECKPOINTED and self.alive)
            or (self.phase is Phase.KILLING and not self.stuck)
        )

    @property
    def standing(self) -> tuple[object, ...]:
        """What others' turns may depend on."""
        return (
            self.phase,
            self.in_turn,
            self.charged_from_s is None,
            self.asked,
            self.stuck,
            self.memory_bytes,
        )

    @property
    def ended(self) -> bool:
        return self.phase is Phase.EXITED or self.phase is Phase.KILLING

    @property
    def ahead(self) -> bool:
        """Started before its turn and not let go yet."""
        return (
            self.alive
            and not self.resumed
            and not self.in_turn
            and self.phase in (Phase.STARTING, Phase.HELD)
        )

    @property
    def begun_ahead(self) -> bool:
        """Started before its turn, which began while it was on its way to its first step edge."""
        launched_s, charged_from_s = self.launched_s, self.charged_from_s
        if self.phase is not Phase.STARTING or launched_s is None or charged_from_s is None:
            return False
        return charged_from_s > launched_s

    def sliceable(self, can_freeze: bool) -> bool:
        mode = self.wanted.spec.suspend
        if mode is SuspendMode.NONE or (self.stuck and self.phase is not Phase.KILLING):
            return False
        if mode is SuspendMode.TRANSPARENT:
            return can_freeze
        if self.ready or (
            self.phase not in (Phase.RUNNING, Phase.FROZEN) and not self.overdue and self.hooked is not False
        ):
            return True
        return can_freeze and mode is SuspendMode.AUTO

    def immovable(self, can_freeze: bool) -> bool:
        """Whoever else's turn it is: its GPUs stay its own for now."""
        if self.phase is Phase.RUNNING:
            return self.occupying and not self.sliceable(can_freeze)
        return self.occupying

    def seconds_in_turn(self, now_s: float) -> float:
        """Of the present stretch."""
        return 0.0 if self.charged_from_s is None else max(0.0, now_s - self.charged_from_s)

    def begin(self, now_s: float) -> None:
        if self.charged_from_s is None:
            self.charged_from_s, self.charged_gpus = now_s, self.gang

    def note_phase(self, now_s: float) -> None:
        if self.phase is not self.noted:
            self.noted = self.phase
            self.since_s = min(now_s, self.gone_s) if self.ended and self.gone_s is not None else now_s

    def free(self, now_s: float) -> None:
        """Its GPUs are free to others: charge what it had."""
        self._charge(now_s)
        self.charged_from_s, self.beside = None, ()

    def share(self, now_s: float, gpus: float, beside: tuple[JobId, ...]) -> None:
        """From now on it is charged for so many of its GPUs."""
        self._charge(now_s)
        self.charged_gpus, self.beside = gpus, beside

    def _charge(self, now_s: float) -> None:
        seconds = self.seconds_in_turn(now_s)
        self.gpu_s += seconds * self.charged_gpus
        self.run_s += seconds
        self.charged_from_s = now_s

    def charge_start(self, now_s: float) -> None:
        """It was none: what it has had since its launch outside its turns."""
        assert self.launched_s is not None
        if self.charged_from_s is not None:
            self._charge(now_s)
        ahead_s = max(0.0, now_s - self.launched_s - (self.run_s - self.launched_run_s))
        self.gpu_s += ahead_s * self.gang
        self.run_s += ahead_s

    def note(self, can_freeze: bool) -> str:
        mode = self.wanted.spec.suspend
        if self.phase is Phase.EXITED:
            return self.trouble
        parts = (
            [self.waits_for] if self.waits_for else []
        )  # first: how it begins tells programs what it is about
        if self.phase is Phase.KILLING and self.stuck:
            parts.append(self.stuck)
        elif mode is SuspendMode.NONE:
            parts.append("never suspended, as asked: runs unsliced")
        elif self.stuck:
            parts.append(f"{UNSTOPPED}: {self.stuck}")
        elif self.alive and not self.ready and (self.hooked is False or self.overdue):
            what = "no step hook" if self.hooked is False else "no step edge yet"
            parts.append(
                f"{what}: " + ("suspended by the freezer" if self.sliceable(can_freeze) else "runs unsliced")
            )
        elif mode is SuspendMode.TRANSPARENT and not can_freeze:
            parts.append("no freezer on this host: runs unsliced")
        parts += filter(None, (self.stays_here, self.held_up, self.trouble))
        return "; ".join(parts) if parts else ""

    def report(self, now_s: float, can_freeze: bool) -> JobReport:
        seconds = self.seconds_in_turn(now_s)
        return _says(
            job=self.id, epoch=self.wanted.epoch, phase=self.phase, gpus=self.gpus if self.alive else (),
            step=self.step, steps_per_s=self.steps_per_s,
            gpu_s=self.gpu_s + seconds * self.charged_gpus, run_s=self.run_s + seconds,
            suspends=self.suspends, resumes=self.resumes, suspend_s=self.suspend_s, resume_s=self.resume_s,
            lost_gpu_s=self.lost_gpu_s, tier=self.tier, sliceable=self.sliceable(can_freeze), note=self.note(can_freeze),
            device_memory_bytes=self.device_memory_bytes, host_memory_bytes=self.host_peak_bytes, beside=self.beside, in_turn=self.charged_from_s is not None, checkpoint_step=self.checkpoint_step,
            can_checkpoint=self.alive and self.can_checkpoint, single=self.single, checkpoint_generation=self.checkpoint_generation, checkpoint_bytes=self.checkpoint_bytes,
            began_step=self.began_step, fallbacks=self.fallbacks, fallback_why=self.fallback_why,
            checkpoint_fails=self.checkpoint_fails, start_fails=self.start_fails,
            carry=self.takes, nodes=self.wanted.servers, rank=self.wanted.node_rank, in_touch=self.in_touch, rendezvous=self.rendezvous, since_s=self.since_s, exit=self.exit, noise_scale=self.noise_scale, noise_samples=self.noise_samples,
        )  # fmt: skip

    def report_again(self, last: JobReport, now_s: float) -> JobReport:
        """As `last`, since when nothing has happened to it but time, and that it went on: only who has its GPUs does."""
        if self.charged_from_s is None:
            return last
        seconds = self.seconds_in_turn(now_s)
        return report_with(
            last,
            step=self.step,
            steps_per_s=self.steps_per_s,
            gpu_s=self.gpu_s + seconds * self.charged_gpus,
            run_s=self.run_s + seconds,
            resume_s=self.resume_s,
            device_memory_bytes=self.device_memory_bytes,
            noise_scale=self.noise_scale,
            noise_samples=self.noise_samples,
        )

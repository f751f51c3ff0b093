"""A job's process made of numbers: what it does when it is ordered to, how long that takes, and what it says."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from hs_core.events.host import (
    Checkpoint,
    CheckpointFailed,
    HostEvent,
    JobCapable,
    JobCheckpointed,
    JobExited,
    JobFroze,
    JobHeld,
    JobHooked,
    JobProgressed,
    JobReady,
    JobRestored,
    JobWentOn,
    Kill,
    Lack,
    Launch,
    Resume,
    Suspend,
    SuspendFailed,
)
from hs_core.model import SuspendMode
from hs_core.names import JobId
from hs_core.reports import Exit, Tier


@dataclass
class Ways:
    """How a fake job behaves."""

    hooks: bool = True
    hook_s: float = 1.0
    ready_s: float = 2.0
    hold_s: float = 0.1
    swap_s: float = 0.5
    checkpoint_s: float = 1.0
    resume_s: float = 0.05
    freeze_s: float = 0.01
    die_s: float = 0.2
    can_swap: bool = False
    can_checkpoint: bool = False
    single: bool = False
    freezes: bool = True
    disk_full: bool = False
    swap_fails: bool = False
    deaf: bool = False  # never answers the hook's stop
    unkillable: bool = False
    work_s: float = 1e12  # of training, then it ends by itself
    memory_bytes: int = 0  # of a GPU's: what its hook measures when it trains
    context_bytes: int = (
        0  # besides, from its first step edge on and also while it's swapped; only the driver sees that
    )
    host_bytes: int = 0  # of the host's memory, from its first step edge on; half of it before
    step_s: float = 0.1
    fetch_s: float = 2.0
    fetch_fails: int = 0  # so often, then it succeeds
    start_fails: int = 0  # likewise, by no fault of its own
    lack: Lack = Lack.UNREACHED  # why it cannot be fetched
    one_by_one: bool = (
        False  # its ranks come up: where it was let go before, none of them stands at its first step edge
    )
    rotten: bool = False  # what it has written, when a process of it is to begin there
    lose: set[str] = field(default_factory=set)  # answers that get lost once: "held", "went-on", "resume"


class Place(Protocol):
    """The host that it is on."""

    now_s: float
    processes: "dict[tuple[JobId, int], Process]"
    trained_s: defaultdict[JobId, float]
    generations: defaultdict[JobId, int]

    def after(self, seconds: float, action: Callable[[], None]) -> None: ...

    def tell(self, event: HostEvent) -> None: ...


class Process:
    """The truth about one incarnation's process."""

    def __init__(self, place: Place, launch: Launch, ways: Ways) -> None:
        self.place, self.launch, self.ways = place, launch, ways
        self.job = launch.wanted.job
        self.key = (launch.wanted.job, launch.wanted.epoch)
        self.state = "starting"  # starting, waiting, going, running, stopping, held, swapped, gone
        self.frozen = False
        self.saved: tuple[int, int] | None = None  # step and generation of what it wrote on the way, last
        self.heard = -1  # number of the newest order
        self.let_go = False  # before it came to its first step edge
        self.done_s = 0.0
        self.since_s: float | None = None
        self._turn = 0  # grows with every change of state: stale timers do nothing
        self._deferred: list[Callable[[], None]] = []

    @property
    def trains(self) -> bool:
        return self.state in ("running", "stopping") and not self.frozen

    @property
    def host_bytes(self) -> int:
        return self.ways.host_bytes // (2 if self.state == "starting" else 1)

    @property
    def device_bytes(self) -> int:
        """As the driver counts it, on each of its GPUs."""
        ways = self.ways
        if self.state == "starting":
            return 0
        return ways.context_bytes + (0 if self.state == "swapped" else ways.memory_bytes)

    @property
    def needed_bytes(self) -> int:
        """What is really needed of each of its GPUs now: half while its script builds its model, all from its first step on."""
        if self.state == "swapped":
            return 0
        grown = self.launch.wanted.spec.gpu_memory_bytes or self.done_s or self.trains
        return self.ways.memory_bytes // (1 if grown else 2)

    @property
    def step(self) -> int:
        running_s = self.place.now_s - self.since_s if self.since_s is not None else 0.0
        return int((self.done_s + running_s) / self.ways.step_s)

    def _say(self, event: Callable[..., HostEvent], **more: Any) -> None:
        job, epoch = self.key
        self.place.tell(event(now_s=self.place.now_s, job=job, epoch=epoch, **more))

    # --- coming up

    def start(self) -> None:
        generation, ways = self.launch.generation, self.ways
        if generation >= 0:
            assert generation == self.place.generations[self.job], "an old checkpoint is restored"
        if self.launch.wanted.spec.suspend in (SuspendMode.TRANSPARENT, SuspendMode.NONE):
            self._enter("running")
            return
        if not ways.hooks:
            self._later(ways.ready_s, lambda: self._enter("running"))
            return
        if generation >= 0:
            self.done_s = self.place.trained_s[self.job]
        self._later(ways.hook_s, lambda: self._say(JobHooked))
        self._later(ways.ready_s, self._ready)

    def _ready(self) -> None:
        self._enter("waiting")
        if self.launch.generation >= 0 and self.ways.rotten:
            self.done_s = 0.0
            note = f"generation {self.launch.generation}: torn; no valid checkpoint: started afresh"
            self._say(JobRestored, step=0, generation=-1, note=note)
        elif self.launch.generation >= 0:
            self._say(JobRestored, step=self.step, generation=self.launch.generation)
        if self.let_go and self.ways.one_by_one:
            self._say(JobCapable, **self._able)
            self._goes()
        else:
            self._say_ready()

    @property
    def _able(self) -> dict[str, bool]:
        ways = self.ways
        return {"can_swap": ways.can_swap, "can_checkpoint": ways.can_checkpoint, "single": ways.single}

    def _say_ready(self) -> None:
        self._say(JobReady, step=self.step, **self._able)

    def say_again(self) -> None:
        """Ranks dial again and say how they stand, and what they have written meanwhile."""
        if self.saved is not None:
            step, generation = self.saved
            self._say(JobCheckpointed, step=step, generation=generation)
        if self.frozen:
            self._say(JobFroze)
        elif self.state == "waiting":
            self._say_ready()
        elif self.state == "held":
            self._say(JobHeld, step=self.step, tier=Tier.HOLD)
        elif self.state == "swapped":
            self._say(JobHeld, step=self.step, tier=Tier.SWAP)
        elif self.state in ("running", "stopping") and self.ways.hooks:
            self._say(JobWentOn, step=self.step)

    # --- orders

    def obey(self, order: Suspend | Resume | Kill | Checkpoint) -> None:
        match order:
            case Suspend():
                if order.tier is not Tier.FREEZE:
                    self.heard = order.order
                self._suspend(order.tier)
            case Resume():
                if "resume" in self.ways.lose:
                    self.ways.lose.discard("resume")
                    return
                self.heard = order.order
                self._resume()
            case Kill():
                if not self.ways.unkillable:
                    self._later(self.ways.die_s, lambda: self._exit(Exit(signal=15)), always=True)
            case Checkpoint():
                self._later(self.ways.checkpoint_s, self._save)

    def _suspend(self, tier: Tier) -> None:
        ways = self.ways
        if tier is Tier.FREEZE:
            self._later(ways.freeze_s, self._froze, always=True)
            return
        assert ways.hooks, "a job without a hook is told to stop at a step edge"
        if ways.deaf:
            return
        if self.state == "running":
            self._enter("stopping")
        if self.state not in ("stopping", "held", "waiting", "swapped", "going"):
            return
        seconds = {Tier.HOLD: ways.hold_s, Tier.SWAP: ways.swap_s, Tier.CHECKPOINT: ways.checkpoint_s}[tier]
        self._turn += 1
        if self.since_s is not None:  # its work goes on until it stands
            self._ends_after(ways.work_s - self.done_s - (self.place.now_s - self.since_s))
        self._later(seconds, lambda: self.hold(tier))

    def _froze(self) -> None:
        if not self.ways.freezes:
            self._say(SuspendFailed, why="no freezer")
            return
        self._freeze(frozen=True)
        self._say(JobFroze)

    def hold(self, tier: Tier) -> None:
        ways = self.ways
        if tier is Tier.CHECKPOINT and ways.disk_full:
            if self.state == "stopping":
                self._enter("running")
            self._say(CheckpointFailed, why="disk full")
            return
        if tier is Tier.SWAP and ways.swap_fails:
            tier = Tier.HOLD
        if self.state != "swapped" or tier is Tier.SWAP:  # from host memory it is written where it lies
            self._enter("swapped" if tier is Tier.SWAP else "held")
        generation = -1
        if tier is Tier.CHECKPOINT:
            generation = self._next_generation()
            self._later(0.02, lambda: self._exit(Exit(code=75)))
        if "held" in ways.lose:
            ways.lose.discard("held")
            return
        size = ways.memory_bytes * self.launch.wanted.spec.gpus if tier is Tier.SWAP else 0
        self._say(
            JobHeld, step=self.step, tier=tier, parked_bytes=size, generation=generation, order=self.heard
        )

    def _next_generation(self) -> int:
        self.place.generations[self.job] += 1
        return self.place.generations[self.job]

    def _resume(self) -> None:
        self.let_go = self.let_go or self.state == "starting"
        if self.frozen:
            self._freeze(frozen=False)
            deferred, self._deferred = self._deferred, []
            for action in deferred:
                self.place.after(0.0, action)
            if not self.ways.hooks or self.state in ("running", "stopping"):
                if self.state == "stopping":
                    self._enter("running")
                self.place.after(0.0, self._went_on)
                return
        if self.state in ("waiting", "held", "swapped", "stopping"):
            self._enter("going")
            self._later(self.ways.resume_s, self._goes)

    def _goes(self) -> None:
        self._enter("running")
        self._went_on()
        self._later(1.0, self._progress)
        if last := self.launch.wanted.last_step:
            self._later(max(0.0, last * self.ways.step_s - self.done_s), self._portion)

    def _portion(self) -> None:
        """It has done what a copy was to do, and stops of its own accord."""
        self._enter("held")
        self._say(JobHeld, step=self.launch.wanted.last_step, tier=Tier.HOLD, order=self.heard)

    def _went_on(self) -> None:
        if "went-on" in self.ways.lose:
            self.ways.lose.discard("went-on")
        elif self._there:
            self._say(JobWentOn, step=self.step)

    def _progress(self) -> None:
        ways = self.ways
        self._say(
            JobProgressed,
            step=self.step,
            steps_per_s=1 / ways.step_s,
            device_memory_bytes=ways.memory_bytes,
        )

    def _save(self) -> None:
        if self.ways.disk_full:
            self._say(CheckpointFailed, why="disk full")
            return
        self.saved = (self.step, self._next_generation())
        self._say(JobCheckpointed, step=self.saved[0], generation=self.saved[1])

    def starve(self, needs_bytes: int) -> None:
        """It runs out of device memory."""
        self._exit(Exit(code=1), needs_bytes)

    def killed_for_memory(self, why: str) -> None:
        """By the kernel."""
        self._exit(Exit(signal=9, why=why))

    def _exit(self, exit_: Exit, needs_bytes: int = 0) -> None:
        self._freeze(frozen=False)
        self._enter("gone")
        del self.place.processes[self.key]
        self._say(JobExited, exit=exit_, needs_bytes=needs_bytes)

    # --- time

    @property
    def _there(self) -> bool:
        return self.place.processes.get(self.key) is self

    def _later(self, seconds: float, action: Callable[[], None], *, always: bool = False) -> None:
        """Unless something else happened to it meanwhile; what is frozen does it when thawed."""
        turn = self._turn

        def act() -> None:
            if not self._there:
                return
            if always:
                action()
            elif self.frozen:
                self._deferred.append(act)
            elif self._turn == turn:
                action()

        self.place.after(seconds, act)

    def _enter(self, state: str) -> None:
        trained = self.trains
        self.state = state
        self._turn += 1
        self._clock(was=trained)

    def _freeze(self, *, frozen: bool) -> None:
        trained = self.trains
        self.frozen = frozen
        self._clock(was=trained)

    def _clock(self, *, was: bool) -> None:
        now_s = self.place.now_s
        if was and not self.trains and self.since_s is not None:
            self.done_s += now_s - self.since_s
            self.place.trained_s[self.job] += now_s - self.since_s
            self.since_s = None
        elif self.trains and not was:
            self.since_s = now_s
            self._ends_after(self.ways.work_s - self.done_s)

    def _ends_after(self, left_s: float) -> None:
        """Of work; who was frozen as it was to end has none left."""
        self._later(max(0.0, left_s), lambda: self._exit(Exit()))

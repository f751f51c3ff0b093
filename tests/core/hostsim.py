"""A host made of numbers: drives a HostMachine with fake jobs, thousands of quanta a second.

It keeps its own truth (who trains where since when, whose memory lies where) and asserts that nothing impossible was ordered.
"""

import heapq
import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count
from typing import Any

from fakejob import Process, Ways

from hs_core.events.host import (
    CheckpointFetched,
    ControllerHeard,
    DeviceMemorySeen,
    Fetch,
    FetchFailed,
    Forget,
    GpusSeen,
    HostCommand,
    HostEvent,
    HostMemorySeen,
    JobExited,
    Kill,
    Launch,
    LaunchFailed,
    RendezvousReserved,
    Reserve,
    Suspend,
    WakeHost,
    WantedChanged,
    Woke,
)
from hs_core.host import HostConfig, HostMachine
from hs_core.model import Gpu, JobSpec, SuspendMode
from hs_core.names import GpuId, HostName, JobId, UserName
from hs_core.reports import Phase
from hs_core.wanted import Lend, Peer, Source, Turn, Wanted, WantedJob

GIB = 1 << 30
LOOK_S = 2.0  # how often the host's memory is looked at
ENTRY = (
    "time_limit_s",
    "paused",
    "cancelled",
    "rendezvous",
    "node_rank",
    "hold",
    "leave",
    "source",
    "needs_bytes",
)


class HostSim:
    def __init__(
        self,
        gpus: int = 4,
        *,
        memory_bytes: int = 16 * GIB,
        config: HostConfig | None = None,
        quantum_s: float = 60.0,
        ram_bytes: int = 0,
        driver: bool = False,
    ) -> None:
        self.gpus = tuple(
            Gpu(id=GpuId(f"GPU-{i}"), index=i, model="V100", memory_bytes=memory_bytes) for i in range(gpus)
        )
        self.config = config or HostConfig()
        self.now_s = 1000.0
        self.start_s = self.now_s
        self.machine = HostMachine(self.gpus, self.config, now_s=self.now_s)
        self.quantum_s = quantum_s
        self.turn = Turn()
        self.wanted: dict[JobId, WantedJob] = {}
        self.ways: dict[JobId, Ways] = {}
        self.processes: dict[tuple[JobId, int], Process] = {}
        self.trained_s: dict[JobId, float] = defaultdict(float)
        self.generations: dict[JobId, int] = defaultdict(lambda: -1)
        self.log: list[tuple[float, str]] = []
        self.fetches: list[Source | None] = []  # that were ordered: what of
        self.killed_by_s: list[float] = []  # for each order to end a job, when its grace is over
        self.lends: tuple[Lend, ...] = ()
        self.fence_after_s = self.lease_s = 0.0
        self.drained: frozenset[GpuId] = frozenset()
        self.clock: tuple[int, float] | None = None  # the cluster's: a quantum and when it began
        self.pattern: tuple[Turn, ...] = ()  # turns by quantum
        self.pairs: set[frozenset[JobId]] = set()  # that were ever told to share GPUs
        self.overfull: dict[
            GpuId, frozenset[JobId]
        ] = {}  # GPUs that were to hold more than they do, and whose
        self.late_s = 0.0  # of what the controller says of a quantum
        self.away = False  # the controller
        self.seq = 0
        self.down = False
        self._missed: list[HostEvent] = []
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = count()
        self._wake_at_s: float | None = None
        self.watch: Callable[[HostSim], None] | None = None
        self.ram_bytes = ram_bytes  # 0: nobody looks
        self.others_bytes = 0  # that processes hold which are no job's
        self.fullest_bytes = 0  # that was ever held of it
        if ram_bytes:
            self._look()
        if driver:
            self._ask_the_driver()

    # --- what a test orders

    def job(self, number: int, gpus: int = 1, *, user: str = "A", tickets: float = 1.0, epoch: int = 1, mode: SuspendMode = SuspendMode.AUTO,
            memory_bytes: int | None = None, ways: Ways | None = None, **more: Any) -> JobId:  # fmt: skip
        """`memory_bytes`: 0 if nobody knows; where nothing is said of it here, it needs next to nothing, and says so."""
        id_, ways = JobId(number), ways or Ways()
        if memory_bytes is None:
            memory_bytes = 0 if ways.memory_bytes or ways.context_bytes else 1
        entry = {k: more.pop(k) for k in ENTRY if k in more}
        spec = JobSpec(
            name=f"j{number}",
            command=("train",),
            gpus=gpus,
            suspend=mode,
            gpu_memory_bytes=memory_bytes,
            **more,
        )
        self.wanted[id_] = WantedJob(
            job=id_,
            epoch=epoch,
            user=UserName(user),
            run_as=user,
            job_class=user,
            spec=spec,
            tickets=tickets,
            **entry,
        )
        self.ways[id_] = ways
        return id_

    def change(self, id_: JobId, **fields: Any) -> None:
        self.wanted[id_] = replace(self.wanted[id_], **fields)

    def send(self) -> None:
        self.seq += 1
        wanted = Wanted(
            term=1,
            seq=self.seq,
            quantum_s=self.quantum_s,
            jobs=tuple(self.wanted.values()),
            lends=self.lends,
            fence_after_s=self.fence_after_s,
            lease_s=self.lease_s,
            drained_gpus=self.drained,
            **self._quantum(),
        )
        for turn in (wanted.turn, wanted.next_turn or wanted.turn):
            self.pairs |= {frozenset((g.job, other)) for g in turn.guests for other in g.beside}
        self.tell(WantedChanged(now_s=self.now_s, wanted=wanted))

    def _quantum(self) -> dict[str, Any]:
        if self.clock is None:
            return {"turn": self.turn}
        quantum, began_s = self.clock
        return {
            "quantum": quantum,
            "turn": self.turn_of(quantum),
            "next_turn": self.turn_of(quantum + 1),
            "edge_in_s": began_s + self.quantum_s - self.now_s,
        }

    def turn_of(self, quantum: int) -> Turn:
        """What the controller wants, less what has ended."""
        turn = self.pattern[quantum % len(self.pattern)]
        return turn.among(self.wanted)

    def start_clock(self, pattern: Iterable[Turn], first: int = 0) -> None:
        """Quanta begin when the cluster's do, the first one now; turns are said one ahead."""
        self.pattern = tuple(pattern)
        self._clock_ticks(first)

    def _clock_ticks(self, quantum: int) -> None:
        self.clock = (quantum, self.now_s)
        self.after(self.quantum_s, lambda: self._clock_ticks(quantum + 1))
        if self.late_s:
            self.after(self.late_s, lambda: self._say(quantum))
        else:
            self._say(quantum)

    def _say(self, quantum: int) -> None:
        if not self.away and self.clock is not None and self.clock[0] == quantum:
            self.send()

    def hear(self) -> None:
        self.tell(ControllerHeard(now_s=self.now_s))

    def source(self, step: int, generation: int = 0) -> Source:
        peer = Peer(host=HostName("v9"), address="10.0.0.9:7444")
        return Source(peer=peer, epoch=1, generation=generation, step=step)

    def lend(self, job: JobId, epoch: int = 1) -> None:
        self.lends = (*self.lends, Lend(job=job, epoch=epoch, generation=0, grant="g"))

    def see_gpus(self, sick: Iterable[int] = ()) -> None:
        bad = set(sick)
        self.tell(
            GpusSeen(
                now_s=self.now_s,
                gpus=tuple(
                    replace(g, healthy=g.index not in bad, why_unhealthy="XID 79" * (g.index in bad))
                    for g in self.gpus
                ),
            )
        )

    def _look(self) -> None:
        self.after(LOOK_S, self._look)
        held_bytes = {process.job: process.host_bytes for process in self.processes.values()}
        taken_bytes = self.others_bytes + sum(held_bytes.values())
        self.fullest_bytes = max(self.fullest_bytes, taken_bytes)
        self.tell(
            HostMemorySeen(
                now_s=self.now_s, available_bytes=max(0, self.ram_bytes - taken_bytes), held_bytes=held_bytes
            )
        )

    def _ask_the_driver(self) -> None:
        self.after(LOOK_S, self._ask_the_driver)
        held_bytes = {process.job: process.device_bytes for process in self.processes.values()}
        self.tell(DeviceMemorySeen(now_s=self.now_s, held_bytes=held_bytes))

    def bind_to_one_gpu(self, quanta: int = 2) -> None:
        """The jobs so far: they start while the others are sick. Then all are well, and the controller alone lets these jobs run."""
        self.see_gpus(sick=range(1, len(self.gpus)))
        self.send()
        self.quanta(quanta)
        self.see_gpus()
        self.turn = Turn(gangs=tuple(sorted(self.wanted)), local=False)
        self.send()

    def kill_agent(self) -> None:
        """Between two events; its memory goes through JSON."""
        self._saved = json.loads(json.dumps(self.machine.saved()))
        self.down = True

    def start_agent(self) -> None:
        self.down = False
        seen = self.machine
        self.machine = HostMachine(self.gpus, self.config, now_s=self.now_s, saved=self._saved)
        assert {r.job for r in seen.reports()} == {r.job for r in self.machine.reports()}
        missed, self._missed = self._missed, []
        for event in missed:  # it finds who has no process any more
            if isinstance(event, JobExited | LaunchFailed):
                self.tell(replace(event, now_s=self.now_s))
        self.tell(Woke(now_s=self.now_s))
        for process in list(self.processes.values()):
            process.say_again()

    def pause_agent(self, seconds: float) -> None:
        """It sleeps, and hears then what has happened meanwhile."""
        self.down = True
        self.run(seconds)
        self.down = False
        missed, self._missed = self._missed, []
        for event in missed:
            self.tell(replace(event, now_s=self.now_s))
        self.tell(Woke(now_s=self.now_s))

    # --- time

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        at_s, events = self.now_s, 0
        while self._heap and self._heap[0][0] <= end_s:
            self.now_s, _, action = heapq.heappop(self._heap)
            action()
            events = events + 1 if self.now_s == at_s else 0
            at_s = self.now_s
            assert events < 10_000, f"time stands still at {at_s}: {self.log[-6:]}"
        self.now_s = end_s
        if not self.down:
            self.tell(Woke(now_s=end_s))  # reports are as of the last event

    def quanta(self, number: float) -> None:
        self.run(number * self.quantum_s)

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        assert seconds >= 0, f"at {self.now_s}: what is to happen {-seconds} s ago"
        heapq.heappush(self._heap, (self.now_s + seconds, next(self._count), action))

    def tell(self, event: HostEvent) -> None:
        if self.down:
            self._missed.append(event)
            return
        outcome = self.machine.handle(event)
        for command in outcome.commands:
            self._perform(command)
        self.check()
        if self.watch is not None:
            self.watch(self)

    def _woke(self, at_s: float) -> None:
        if self._wake_at_s == at_s and not self.down:
            self._wake_at_s = None
            self.tell(Woke(now_s=self.now_s))

    # --- what the agent would do

    def _perform(self, command: HostCommand) -> None:
        if isinstance(command, WakeHost):
            at_s = max(command.at_s, self.now_s)
            self._wake_at_s = at_s
            heapq.heappush(self._heap, (at_s, next(self._count), lambda: self._woke(at_s)))
            return
        self.log.append((self.now_s - self.start_s, self.words(command)))
        if isinstance(command, Kill):
            left_alone_s = command.grace_s if command.leaves else 0.0
            self.killed_by_s.append(self.now_s - self.start_s + left_alone_s + command.grace_s)
        if isinstance(command, Launch):
            self._launch(command)
            return
        if isinstance(command, Fetch):
            self.fetches.append(command.wanted.source)
            self.after(self.ways[command.wanted.job].fetch_s, lambda: self._fetched(command.wanted))
            return
        if isinstance(command, Reserve):
            self.after(0.1, lambda: self._reserved(command))
            return
        process = self.processes.get((command.job, command.epoch))
        if isinstance(command, Forget):
            assert process is None, f"told to forget job {command.job}, which is alive"
        elif process is not None:
            process.obey(command)

    def _fetched(self, wanted: WantedJob) -> None:
        facts: dict[str, Any] = {"now_s": self.now_s, "job": wanted.job, "epoch": wanted.epoch}
        ways, source = self.ways[wanted.job], wanted.source
        assert source is not None
        if ways.fetch_fails:
            ways.fetch_fails -= 1
            self.tell(FetchFailed(**facts, why="v9 does not answer", lack=ways.lack))
        elif (wanted.job, wanted.epoch) not in self.processes:
            self.generations[wanted.job] = source.generation
            self.tell(CheckpointFetched(**facts, generation=source.generation, step=source.step))

    def _reserved(self, order: Reserve) -> None:
        self.tell(
            RendezvousReserved(now_s=self.now_s, job=order.job, epoch=order.epoch, address="10.0.0.1:29417")
        )

    def words(self, command: HostCommand) -> str:
        """An order as a line of the log."""
        match command:
            case Launch():
                restored = "" if command.generation < 0 else f" from generation {command.generation}"
                return f"launch {command.wanted.job} on {','.join(str(self._index(g)) for g in command.gpus)}{restored}"
            case Suspend():
                return f"suspend {command.job} ({command.tier})"
            case Kill():
                return f"kill {command.job} ({command.why}{', as it leaves' if command.leaves else ''})"
            case WakeHost():
                return f"wake at {command.at_s}"
            case Fetch():
                return f"fetch {command.wanted.job}"
            case _:
                return f"{type(command).__name__.lower()} {command.job}"

    def _index(self, gpu: GpuId) -> int:
        return next(g.index for g in self.gpus if g.id == gpu)

    def _launch(self, command: Launch) -> None:
        id_ = command.wanted.job
        assert not any(job == id_ for job, _ in self.processes), f"job {id_} is launched twice"
        assert all(g.healthy for g in self.machine._board.gpus.values() if g.id in command.gpus)
        if self.ways[id_].start_fails:
            self.ways[id_].start_fails -= 1
            self.after(0.1, lambda: self._start_failed(command))
            return
        if command.wanted.epoch > 1 and command.generation < 0:  # tried again, and begun afresh
            self.generations.pop(id_, None)
            self.trained_s.pop(id_, None)
        process = self.processes[id_, command.wanted.epoch] = Process(self, command, self.ways[id_])
        process.start()

    def _start_failed(self, command: Launch) -> None:
        which: dict[str, Any] = {"job": command.wanted.job, "epoch": command.wanted.epoch}
        self.tell(LaunchFailed(now_s=self.now_s, **which, why="disk full", host_fault=True))

    # --- the truth

    def trained(self, id_: JobId) -> float:
        """Seconds in which the job really trained."""
        now = sum(
            self.now_s - p.since_s
            for (job, _), p in self.processes.items()
            if job == id_ and p.since_s is not None
        )
        return self.trained_s[id_] + now

    def gpu_s(self, id_: JobId) -> float:
        return self.machine.report(id_).gpu_s

    def ordered(self, *kinds: str) -> list[str]:
        """The orders so far that begin with one of these words, in words."""
        return [what for _, what in self.log if what.startswith(kinds)]

    def phases(self) -> dict[int, str]:
        return {int(r.job): r.phase.value for r in self.machine.reports()}

    def running(self) -> set[JobId]:
        return {r.job for r in self.machine.reports() if r.phase is Phase.RUNNING}

    def check(self) -> None:
        """Nobody trains on another's GPU; memory holds what lies in it."""
        trains: dict[GpuId, list[JobId]] = defaultdict(list)
        memory: dict[GpuId, int] = defaultdict(int)
        needed: dict[GpuId, int] = defaultdict(int)
        for process in self.processes.values():
            declared = process.launch.wanted.spec.gpu_memory_bytes
            for gpu in process.launch.gpus:
                # Without the hook it can't be kept from training until that is known and it is frozen.
                known = process.launch.wanted.spec.suspend in (SuspendMode.TRANSPARENT, SuspendMode.NONE)
                if process.trains and (process.ways.hooks or known):
                    trains[gpu].append(process.launch.wanted.job)
                if process.state != "swapped":
                    memory[gpu] += declared
                needed[gpu] += process.needed_bytes
        for gpu, jobs in trains.items():
            alone = len(jobs) <= 1 or (len(jobs) == 2 and frozenset(jobs) in self.pairs)
            assert alone, f"at {self.now_s}: {jobs} train on {gpu} at once"
        for gpu in self.gpus:
            assert memory[gpu.id] <= gpu.memory_bytes, f"at {self.now_s}: {memory[gpu.id]} bytes on {gpu.id}"
            if needed[gpu.id] > gpu.memory_bytes:
                there = [p.job for p in self.processes.values() if gpu.id in p.launch.gpus and p.needed_bytes]
                self.overfull[gpu.id] = frozenset(there)


def told_to_leave(ways: Ways, mode: SuspendMode = SuspendMode.AUTO) -> HostSim:
    """Job 1 alone on a GPU, up for a while."""
    sim = HostSim(1)
    sim.job(1, ways=ways, mode=mode)
    sim.send()
    sim.run(40.0)
    sim.change(JobId(1), leave=True)
    sim.send()
    return sim

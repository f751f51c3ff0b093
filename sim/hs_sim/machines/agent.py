"""An agent's body: bodies for the orders of one HostMachine, as `hs_agent.loop` and `jobs` have them: remembered before it is done."""

import json
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from hs_core.events.host import (
    Checkpoint,
    ControllerHeard,
    Fetch,
    Forget,
    GpusSeen,
    HostCommand,
    HostEvent,
    HostMemorySeen,
    JobExited,
    JobHeld,
    JobReady,
    JobWentOn,
    Kill,
    Launch,
    LaunchFailed,
    Reserve,
    Resume,
    Suspend,
    WakeHost,
    WantedChanged,
    Woke,
)
from hs_core.host import HostConfig, HostMachine, HostOutcome
from hs_core.model import Gpu
from hs_core.names import GpuId, HostName, JobId
from hs_core.reports import LOST, Exit, Tier
from hs_core.wanted import Wanted, WantedJob
from hs_sim.machines.disk import Disk
from hs_sim.machines.leases import Leases
from hs_sim.machines.link import Link
from hs_sim.machines.network import Line
from hs_sim.machines.part import Part, Way

if TYPE_CHECKING:
    from hs_sim.machines.world import World

RESTARTED = f"{LOST}: it was restarted"
RELINK_S = 1.0
PROCESS_BYTES = 1 << 30  # of its host's memory that each process has, where that is limited
LOOK_S = 1.0  # between two looks at it
HOW_IT_STANDS = (JobReady, JobHeld, JobWentOn)

Key = tuple[JobId, int]


class Lacking(Enum):
    """What a server does not have that others have."""

    FOLDER = "folder"  # in which a job is to be started
    LIBRARY = "library"  # that its script imports


class Agent:
    def __init__(self, world: "World", name: HostName, gpus: tuple[Gpu, ...], config: HostConfig) -> None:
        self._world, self._clock = world, world.clock
        self.name = name
        self.config = config
        self.gpus = gpus
        self.model = gpus[0].model
        self.up = False
        self.paused_until_s = 0.0
        self.disk_full = False
        self.without: Lacking | None = None  # what jobs that trained elsewhere need is not there
        self.ram_bytes = 0  # 0: nobody looks
        self.memory_bytes = 0  # that it says its host has; 0: it says nothing
        self.remembers = False  # keeps what it saves, event by event: it may be killed soon
        self.boots = 1
        self.setups = 1  # of its disk
        self.boot_s = 0.0  # when its clock was zero
        self.life = 0
        self.handled = 0  # events
        self.ordered = 0  # of its jobs
        self.machine: HostMachine | None = None
        self.parts: dict[Key, Part] = {}  # processes, and what their shims hold of those that ended
        self.disk = Disk(world.checkpoints.folders, world.experiment.cluster.dataset_cache_bytes)
        self.link = Link(world, self)
        self._leases = Leases(self, self._clock)
        self._saved: str | None = None
        self._saved_in_boot = self.boots
        self._launching: dict[Key, Launch] = {}
        self._saved_launching: tuple[Launch, ...] = ()
        self._events: deque[HostEvent] = deque()
        self._handling = False
        self._wakes = 0
        self._wanted: frozenset[JobId] = frozenset()
        self._lent: frozenset[tuple[JobId, int, int]] = frozenset()  # job, epoch, generation
        self._newest = (-1, -1)  # of what was wanted

    @property
    def setup(self) -> str:
        return f"setup-{self.setups}"

    # --- life -------------------------------------------------------------------------------------------------------

    def now_s(self) -> float:
        return self._clock.now_s - self.boot_s

    def start(self) -> None:
        """Take up what the last agent left, then go."""
        saved = json.loads(self._saved) if self._saved else None
        self.up = True
        self.link.begin()
        rebooted = self._saved_in_boot != self.boots
        self.machine = HostMachine(self.gpus, self.config, now_s=self.now_s(), saved=saved, rebooted=rebooted)
        self._world.made(self)
        self._launching = {(m.wanted.job, m.wanted.epoch): m for m in self._saved_launching}
        self._handling = True
        self._adopt()
        self._handling = False
        self.post(Woke(now_s=self.now_s()))
        for part in list(self.parts.values()):
            if part.way is not Way.GONE:
                part.gang.say_again(part)
        self.link.dial(self.life)

    def _adopt(self) -> None:
        assert self.machine is not None
        known = {(report.job, report.epoch): report for report in self.machine.reports(self.now_s())}
        ended: set[Key] = set()  # while nobody looked; who is launched a second time was not even started
        for key, part in list(self.parts.items()):
            if part.way is Way.GONE:
                del self.parts[key]
                ended.add(key)
                if key in known:
                    self._events.append(part.exited(self.now_s()))
                elif part.exit is None:
                    part.gang.kill(part)
            elif key not in known:
                del self.parts[key]  # nobody remembers it
                # The others of its gang end badly by that, and that it was there nobody may have heard.
                part.gang.job.kills += part.gang.nodes > 1
                part.gang.end(part, Exit(signal=9), silently=True)
        for key, report in known.items():
            if not report.gpus or key in self.parts or key in ended:
                continue
            launch = self._launching.get(key)
            if launch is not None:
                self._launch(launch)
            else:
                why = f"{LOST}: no trace of it was found after the agent's restart"
                self._events.append(_gone(key, self.now_s(), Exit(why=why)))
        self._launching = {}

    def kill(self) -> None:
        """Its jobs go on; their shims hold how they end."""
        self.up = False
        self.life += 1
        self._wakes += 1
        self._events.clear()
        self._handling = False
        self.machine = None
        self._leases.agent_died()
        self.link.hang_up()

    def remember(self) -> None:
        """From now on every save is kept as it was."""
        self.remembers = True
        self._save()

    def reboot(self) -> None:
        if self.up:
            self._save()
            self.kill()
        self.boots += 1
        self.boot_s = self._clock.now_s
        for part in list(self.parts.values()):
            part.gang.end(part, Exit(why=RESTARTED), silently=True)

    def wipe(self) -> None:
        """Another server of its name: nothing of what was there is."""
        self.reboot()
        self._saved, self._saved_launching = None, ()
        self.parts.clear()
        self.disk.wipe()
        self._newest = (-1, -1)
        self.setups += 1

    def forget(self) -> None:
        """What it has saved is damaged, and set aside. Its jobs go on, until the next agent finds them and remembers none."""
        if self.up:
            self.kill()
        self._saved, self._saved_launching = None, ()
        self._newest = (-1, -1)

    @property
    def paused(self) -> bool:
        return self._clock.now_s < self.paused_until_s

    def pause(self, seconds: float) -> None:
        self.paused_until_s = self._clock.now_s + seconds

    def look(self) -> None:
        """How much is left of its host's memory, time after time."""
        held = {
            job: PROCESS_BYTES + part.parked_bytes
            for (job, _), part in self.parts.items()
            if part.way is not Way.GONE
        }
        left = max(0, self.ram_bytes - sum(held.values()))
        self.post(HostMemorySeen(now_s=self.now_s(), available_bytes=left, held_bytes=held))
        self._clock.after(LOOK_S, self.look)

    # --- the machine ------------------------------------------------------------------------------------------------

    def post(self, event: HostEvent) -> None:
        if not self.up:
            return
        self._events.append(event)
        if not self._handling:
            self._drain(self.life)

    def _drain(self, life: int) -> None:
        if life != self.life or self._handling or not self._events:
            return
        if self.paused:
            self._clock.at(self.paused_until_s, self._drain, life)
            return
        self._handling = True
        events = self._events
        while events and life == self.life:
            event = events.popleft()
            if event.now_s < self.now_s():  # it lay in its socket: it is of the moment in which it is read
                event = replace(event, now_s=self.now_s())
            self._handle(event)
        self._handling = False

    def _handle(self, event: HostEvent) -> None:
        machine = self.machine
        assert machine is not None
        self.handled += 1
        outcome = machine.handle(event)
        if outcome.commands:
            self._obey(outcome)
        elif self.remembers and outcome.checkpointed:
            self._save()
        self.link.tell_soon()

    def _obey(self, outcome: HostOutcome) -> None:
        commands = outcome.commands
        for command in commands:
            if isinstance(command, Launch):
                self._launching[command.wanted.job, command.wanted.epoch] = command
        ordered = any(not isinstance(command, WakeHost) for command in commands)
        if self.remembers and (ordered or outcome.checkpointed):
            self._save()
        life = self.life
        for command in commands:
            self._perform(command)
            if life != self.life:
                return
        self._world.ordered(self, commands)

    def _save(self) -> None:
        assert self.machine is not None
        self._saved = json.dumps(self.machine.saved())
        self._saved_in_boot = self.boots
        self._saved_launching = tuple(self._launching.values())

    def _perform(self, command: HostCommand) -> None:
        self.ordered += 1
        match command:
            case WakeHost():
                self.ordered -= 1
                self._wakes += 1
                self._clock.at(command.at_s + self.boot_s, self._woke, self._wakes, command.at_s)
            case Launch():
                self._launch(command)
            case Suspend():
                part = self.parts.get((command.job, command.epoch))
                if part is not None and command.tier is Tier.FREEZE:
                    part.gang.suspend(part, command.tier)
                elif part is not None:
                    self._world.orders.give(part, command.order, part.gang.suspend, command.tier)
            case Resume():
                part = self.parts.get((command.job, command.epoch))
                if part is not None:
                    self._world.orders.give(part, command.order, part.gang.resume)
            case Checkpoint():
                part = self.parts.get((command.job, command.epoch))
                if part is not None:
                    self._world.orders.give(part, None, part.gang.checkpoint)
            case Kill():
                part = self.parts.get((command.job, command.epoch))
                if part is not None:
                    part.gang.kill(part)
            case Forget():
                self._forget((command.job, command.epoch))
            case Fetch():
                self._world.fetches.start(self, command)
            case Reserve():
                self._world.reserve(self, command)

    def _woke(self, wake: int, at_s: float) -> None:
        if wake == self._wakes:
            self.post(Woke(now_s=max(self.now_s(), at_s)))  # timers are late, never early by rounding

    def _launch(self, command: Launch) -> None:
        wanted = command.wanted
        key = (wanted.job, wanted.epoch)
        self._launching.pop(key, None)
        sent = self.without is not None and self._is_sent(command)
        if sent and self.without is Lacking.FOLDER:
            why = "cannot enter the working folder"
            self.post(LaunchFailed(now_s=self.now_s(), job=wanted.job, epoch=wanted.epoch, why=why))
            return
        gang = self._world.gang(wanted, self.model)
        part = Part(gang, self, wanted.node_rank, command.gpus)
        part.lacks = sent
        self.parts[key] = part
        self._leases.write(key)
        costs = self._world.costs
        data_s = self.disk.missing_bytes(wanted.spec) / costs.network_bytes_per_s
        gang.launch(part, command.generation, costs.start_s + data_s)

    def _is_sent(self, command: Launch) -> bool:
        """It has trained elsewhere, and goes on here."""
        wanted, source = command.wanted, command.wanted.source
        if command.generation < 0 or source is None or source.parts or wanted.copy >= 0:
            return False
        held = self.disk.stored(wanted.job, command.generation, wanted.node_rank)
        wrote_it = held is not None and held.epoch == wanted.epoch
        return source.peer.host != self.name and not wrote_it

    def _forget(self, key: Key) -> None:
        part = self.parts.get(key)
        if part is not None and part.way is Way.GONE:
            del self.parts[key]
        self.disk.forget_copies(*key)
        self._forget_checkpoints()

    def _forget_checkpoints(self) -> None:
        """Of jobs that are neither wanted nor here, and that are not lent."""
        assert self.machine is not None
        kept = self._wanted | {job for job, _, _ in self._lent} | {job for job, _ in self.parts}
        kept |= self.machine.jobs
        self.disk.keep_only(kept)

    # --- what processes say -----------------------------------------------------------------------------------------

    def say(self, part: Part, event: Callable[..., HostEvent], **more: Any) -> None:
        """Through node 0's agent, where there are several."""
        if not self.up or self.parts.get(part.key) is not part:
            return
        if event in (JobReady, JobHeld):
            more["order"] = part.heard
        if part.rank == 0:
            self._post_of(part, event, more)
        else:
            self._clock.after(self._world.network.delay_s(), self._said, part, event, more)

    def _said(self, part: Part, event: Callable[..., HostEvent], more: dict[str, Any]) -> None:
        if not part.gang.reachable(part):
            if not part.unsaid:
                self._clock.after(RELINK_S, self._linked, part)
            if event in HOW_IT_STANDS:  # ranks that dial anew say how they stand then
                part.unsaid = [said for said in part.unsaid if said[0] not in HOW_IT_STANDS]
            part.unsaid.append((event, more))
        elif self.up and self.parts.get(part.key) is part:
            part.unsaid.append((event, more))
            self._say_all(part)

    def _linked(self, part: Part) -> None:
        """Is node 0's agent within reach again?"""
        if self.parts.get(part.key) is not part:
            return
        if not self.up or not part.gang.reachable(part):
            self._clock.after(RELINK_S, self._linked, part)
            return
        self._say_all(part)

    def _say_all(self, part: Part) -> None:
        """In order: over the link over which node 0 has a gang stop, what was said before it was up comes first."""
        unsaid, part.unsaid = part.unsaid, []
        for event, more in unsaid:
            self._post_of(part, event, more)

    def _post_of(self, part: Part, event: Callable[..., HostEvent], more: dict[str, Any]) -> None:
        job, epoch = part.key
        self.post(event(now_s=self.now_s(), job=job, epoch=epoch, **more))

    def ended(self, part: Part) -> None:
        if self.up:
            if self.parts.get(part.key) is part:
                del self.parts[part.key]
            self.post(part.exited(self.now_s()))

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def awaits(self, wanted: WantedJob) -> bool:
        """That incarnation is still to be here: for who is not, nothing is fetched any more."""
        assert self.machine is not None
        return any((at.job, at.epoch) == (wanted.job, wanted.epoch) for at in self.machine.reports())

    def lends(self, job: JobId, epoch: int, generation: int) -> bool:
        """To whoever is to go on from it, or from the one before."""
        return not self._lent.isdisjoint([(job, epoch, generation), (job, epoch, generation + 1)])

    def checkpoint_step(self, job: JobId, generation: int, rank: int) -> int:
        if generation < 0:
            return 0
        held = self.disk.stored(job, generation, rank)
        if held is None:
            self._world.broken(
                f"{self.name} is to restore generation {generation} of job {job} as rank {rank}; it has {self.disk.shelf(job)}"
            )
        return held.step

    # --- devices ----------------------------------------------------------------------------------------------------

    def gpu_health(self, gpu: GpuId, *, healthy: bool) -> None:
        self.gpus = tuple(
            replace(g, healthy=healthy, why_unhealthy="" if healthy else "XID 79") if g.id == gpu else g
            for g in self.gpus
        )
        self.link.outdated()
        if self.up:
            self.post(GpusSeen(now_s=self.now_s(), gpus=self.gpus))

    # --- what the controller says -----------------------------------------------------------------------------------

    def wanted(self, line: Line, wanted: Wanted, sent_s: float) -> None:
        if self.paused:
            self._clock.at(self.paused_until_s, self.wanted, line, wanted, sent_s)  # it lies in the socket
            return
        if line is not self.link.line or not self.up:
            return
        late_s = self._late_s(sent_s)
        self._leases.heard(late_s)
        if (wanted.term, wanted.seq) < self._newest:
            return  # said before what is known already
        self._newest = (wanted.term, wanted.seq)
        self._leases.wanted(wanted, late_s)
        if wanted.edge_in_s is not None and late_s:
            wanted = replace(wanted, edge_in_s=wanted.edge_in_s - late_s)
        for turn in (wanted.turn, wanted.next_turn or wanted.turn):
            self._world.truth.told(turn)
        self._wanted = frozenset(job.job for job in wanted.jobs)
        self._lent = frozenset((lend.job, lend.epoch, lend.generation) for lend in wanted.lends)
        self.post(WantedChanged(now_s=self.now_s(), wanted=wanted, late_s=late_s))
        if self.disk.stores and self.up:
            self._forget_checkpoints()

    def keepalive(self, line: Line, sent_s: float) -> None:
        if self.paused:
            self._clock.at(self.paused_until_s, self.keepalive, line, sent_s)
        elif line is self.link.line and self.up:
            late_s = self._late_s(sent_s)
            self._leases.heard(late_s)
            self.post(ControllerHeard(now_s=self.now_s(), late_s=late_s))

    def _late_s(self, sent_s: float) -> float:
        """How much later than usual what was sent then is read."""
        return max(0.0, self._clock.now_s - sent_s - self._world.timing.delay_s)


def _gone(key: Key, now_s: float, exit_: Exit) -> HostEvent:
    return JobExited(now_s=now_s, job=key[0], epoch=key[1], exit=exit_)

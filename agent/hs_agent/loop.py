"""The agent: one loop that turns what happens on the host into events of its HostMachine and performs what that orders."""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, assert_never

import structlog

from hs_agent import cgroup, logs, memory
from hs_agent.adoption import Adoption
from hs_agent.breaks import Breaks
from hs_agent.config import Config
from hs_agent.devices import Devices, Reading
from hs_agent.errands import Errands
from hs_agent.fetches import Fetches
from hs_agent.folder import Key
from hs_agent.forgetting import Forgetting
from hs_agent.jobs import Jobs
from hs_agent.launch import Launcher
from hs_agent.launches import Launches
from hs_agent.leases import Leases
from hs_agent.now_and_then import NowAndThen, reason
from hs_agent.peers import Grants, PeerDialer, PeerDoor
from hs_agent.rendezvous import Rendezvous
from hs_agent.saving import Saving
from hs_agent.secure import Secure
from hs_agent.sending import Sender
from hs_agent.sizes import Sizes
from hs_agent.watch import Watch
from hs_core.errors import RefusedError
from hs_core.events.host import (
    CastOut,
    Checkpoint,
    ControllerHeard,
    Fetch,
    Forget,
    HostCommand,
    HostEvent,
    JobCheckpointed,
    JobCondemned,
    Kill,
    Launch,
    LaunchFailed,
    RendezvousReserved,
    Reserve,
    Resume,
    Suspend,
    WakeHost,
    WantedChanged,
    Woke,
)
from hs_core.host import HostConfig, HostMachine
from hs_core.model import Gpu
from hs_core.names import JobId
from hs_core.reports import CANNOT_FETCH, CANNOT_START, JobReport, Phase
from hs_core.wanted import Wanted, WantedJob
from hs_daemon import boot_s, notify

SAVE_EVERY_S = 1.0
MOST_TROUBLES = 4
STANDS = "the agent stands still, as it breaks again and again"

log = structlog.get_logger("agent")


class Agent:
    """Bodies for the commands of one HostMachine. Everything but `close` runs on the event loop."""

    def __init__(
        self, config: Config, devices: Devices, groups: cgroup.Cgroups, identity: Secure | None = None
    ) -> None:
        self.config, self.devices = config, devices
        self.launcher = Launcher(config, groups)
        self.memory = memory.Memory(config.state_dir)
        self.saving = Saving(self.memory, self._knows)
        self.breaks = Breaks(config.state_dir, boot_s())
        dial = PeerDialer(config, identity)
        self.jobs = Jobs(config, self.launcher, self.post, self._step_of, dial)
        self.watch = Watch(
            config,
            devices,
            self.jobs,
            errands=lambda: self.errands.keepers,
            reports=self.reports,
            post=self.post,
        )
        self.warnings = (*groups.warnings, *devices.warnings)
        self.grants = Grants()
        sender = Sender(self.launcher)
        self.door = PeerDoor(config, self.grants, sender, self.jobs.head, identity, has_ended=self._has_ended)
        self.fetches = Fetches(self.launcher, dial, self.post)
        self.sizes = Sizes(self.launcher, self.post)
        self.errands = Errands(self.launcher, self._why_no_turn)
        self.rendezvous = Rendezvous(config.rendezvous_ports)
        self.leases = Leases(self.launcher)
        self.forgetting = Forgetting(self.launcher, self.jobs, config.keep_logs, self._kept)
        self.launches = Launches(
            self.launcher,
            self.jobs,
            self.rendezvous,
            self.leases,
            gpus=lambda: self.gpus,
            post=self.post,
            changed=self.saving.changed,
        )
        self.machine: HostMachine | None = None
        self.stands = False  # still: jobs go on as they are; it is the next agent that does anything
        self.broken = asyncio.Event()
        self._events: deque[HostEvent] = deque()
        self._handling = False
        self._wanted: frozenset[JobId] = frozenset()
        self._term = -1
        self._wake: asyncio.TimerHandle | None = None
        # The term that was obeyed last, and what it says of hosts that are cut off.
        self._told = (-1, 0.0, 0.0)
        self._looks = NowAndThen()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        if self.stands:  # nobody is to be sent here
            return tuple(replace(gpu, healthy=False, why_unhealthy=STANDS) for gpu in self.watch.gpus)
        return self.watch.gpus

    @property
    def readings(self) -> tuple[Reading, ...]:
        return self.watch.readings

    @property
    def left_bytes(self) -> int | None:
        """Of the host's memory; None: nobody has looked yet, or it cannot be known."""
        return self.watch.left_bytes

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take up what the last agent left, then go."""
        found = self.memory.load()
        self.launcher.install_hook()
        await self.door.start()
        settings = HostConfig(
            preload=self.config.preload,
            host_memory_budget_bytes=self.config.host_memory_budget_bytes,
            host_memory_reserve_bytes=self.config.host_memory_reserve_bytes,
            kill_grace_s=self.config.kill_grace_s,
        )
        self.stands = boot_s() < self.breaks.stands_until_s
        try:
            self._term = int(found.machine["term"]) if found.machine else -1
            self.machine = HostMachine(
                self.watch.gpus,
                settings,
                now_s=boot_s(),
                saved=found.machine,
                rebooted=found.rebooted,
                elsewhere=found.elsewhere,
            )
            if not self.stands:
                if self.breaks.unsolved:
                    self._try(Woke(now_s=boot_s()))  # before anybody's words can be blamed for it
                await self._adopt(found)
                await asyncio.to_thread(self.launcher.sweep_groups)
                self._weigh_what_is_here()
        except (OSError, RefusedError):
            raise
        except Exception as error:
            log.exception("the agent is broken as it begins; jobs go on")
            if not self.stands:
                self.breaks.note(None, error, boot_s())
                self.broken.set()
                return
        if self.stands:
            self._tasks = [asyncio.create_task(self._watchdog()), asyncio.create_task(self._stand())]
            return
        self.post(Woke(now_s=boot_s()))
        self._tasks = [
            asyncio.create_task(self._tick()),
            asyncio.create_task(self._watchdog()),
            asyncio.create_task(self.watch.watch_memory()),
        ]
        self.watch.listen()
        log.info(
            "agent runs",
            host=self.config.name,
            devices=self.devices.description,
            adopted=len(self.jobs.running),
        )

    async def _stand(self) -> None:
        """What was to be done is found out by the agent after this one."""
        log.error("the agent stands still", why=self.breaks.text(boot_s()))
        await asyncio.sleep(self.breaks.stands_until_s - boot_s())
        self.broken.set()

    async def _adopt(self, found: memory.Found) -> None:
        """The machine hears of all of it together, at the end: what it orders before is lost."""
        self.launches.take_up(found.launching)
        self._handling = True
        try:
            for job, epoch in self.breaks.condemned:
                self.post(JobCondemned(now_s=boot_s(), job=job, epoch=epoch))
            await self.watch.look_at_memory()
            known = {Key(report.job, report.epoch): report for report in self.reports()}
            adoption = Adoption(self.launcher, self.jobs, self.launches, self.post)
            kept = (
                {Key(job, epoch) for job, epoch in self.machine.kept} if self.machine is not None else set()
            )
            await adoption.adopt(known, kept, remembers=found.machine is not None)
        finally:
            self._handling = False

    def _weigh_what_is_here(self) -> None:
        """The last agent may have been killed between the word of a checkpoint and a look at it."""
        for report in self.reports():
            if report.checkpoint_generation >= 0 and report.phase is not Phase.EXITED:
                self.sizes.look(Key(report.job, report.epoch), report.checkpoint_generation)

    async def stop(self) -> int:
        """Jobs are left as they are, for the agent after us, unless it was asked to end them and told to stop; how many there are."""
        self.launches.stop()
        if self.config.end_jobs_on_stop and not self.broken.is_set():
            if self.stands:
                self.jobs.end_unwatched()
            await self.launches.settle()  # what comes of these is to end, too
            await self.jobs.end_all(self.config.kill_grace_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        left = len(self.jobs.running)
        if self._wake is not None:
            self._wake.cancel()
        self.watch.close()
        await self.sizes.close()
        await self.fetches.close()
        await self.errands.close()
        await self.door.stop()
        await self.jobs.close()
        self.rendezvous.close()
        if self.machine is not None and not self.broken.is_set() and not self.stands:
            self.saving.save()
        return left

    # --- the machine ------------------------------------------------------------------------------------------------

    def post(self, event: HostEvent) -> None:
        """Events are handled one after the other, also those that performing a command brings about."""
        if self.stands or not self.breaks.hears(event):
            return
        self._events.append(event)
        if self._handling or self.machine is None:
            return
        self._handling = True
        try:
            while self._events and not self.broken.is_set():
                self._handle(self._events.popleft())
        except Exception:
            # The mind is not to be trusted any more: stop, start again from what was saved. Jobs do not notice.
            log.exception("the agent is broken and stops; jobs go on")
            self.broken.set()
        finally:
            self._handling = False

    def _handle(self, event: HostEvent) -> None:
        if self._is_left_out(event):
            return
        try:
            self._take_in(event)
        except Exception as error:
            self.breaks.note(event, error, boot_s())
            raise

    def _is_left_out(self, event: HostEvent) -> bool:
        """It breaks a copy, where breaks have followed one another for which nobody is to be ended."""
        if not self.breaks.tried_first(event):
            return False
        try:
            self._try(event)
        except Exception as error:
            self.breaks.leave_out(event, error)
            return True
        self.breaks.take(event)
        return False

    def _try(self, event: HostEvent) -> None:
        """On a copy."""
        assert self.machine is not None
        copy = deepcopy(self.machine)
        copy.handle(event)
        copy.saved()

    def _take_in(self, event: HostEvent) -> None:
        assert self.machine is not None
        outcome = self.machine.handle(event)
        for fact in outcome.facts:
            log.info(fact.kind, job=fact.job, text=fact.text, **fact.data)
        for command in outcome.commands:
            if isinstance(command, Launch):
                self.launches.ordered(command)
        ordered = any(not isinstance(command, WakeHost) for command in outcome.commands)
        if ordered or outcome.changed:
            self.saving.changed()
        # Remembered before it is done: after a kill between the two, adoption finds out what was done of it. And before the controller
        # is told of a checkpoint: it counts on it, though the job may end while nobody is here to see.
        if ordered or outcome.checkpointed:
            self.saving.save()
        self.errands.look()  # before anybody else has the GPUs
        for command in outcome.commands:
            self._perform(command)
        if isinstance(event, JobCheckpointed):
            self.sizes.look(Key(event.job, event.epoch), event.generation)

    def _perform(self, command: HostCommand) -> None:
        match command:
            case WakeHost():
                self._wake_at(command.at_s)
            case Launch():
                self.launches.begin(command)
            case Forget():
                self.rendezvous.forget(Key(command.job, command.epoch))
                self.forgetting.job(Key(command.job, command.epoch))
            case Suspend() | Resume() | Checkpoint() | Kill():
                self.launches.order(command)
            case Fetch():
                self.fetches.start(command)
            case Reserve():
                self._reserve(Key(command.job, command.epoch))
            case _:
                assert_never(command)

    def _reserve(self, key: Key) -> None:
        try:
            address = self.rendezvous.reserve(key, self.peer_address)
        except RefusedError as error:
            self.post(LaunchFailed(now_s=boot_s(), job=key.job, epoch=key.epoch, why=str(error)))
            return
        self.post(RendezvousReserved(now_s=boot_s(), job=key.job, epoch=key.epoch, address=address))

    def _wake_at(self, at_s: float) -> None:
        if self._wake is not None:
            self._wake.cancel()
        self._wake = asyncio.get_running_loop().call_later(max(at_s - boot_s(), 0.0), self._woke)

    def _woke(self) -> None:
        self.post(Woke(now_s=boot_s()))

    def _knows(self) -> tuple[Mapping[str, Any], Iterable[Launch]]:
        assert self.machine is not None
        return self.machine.saved(), self.launches.unfinished

    def _step_of(self, key: Key) -> int:
        """As far as the machine knows; 0: it does not know the job (any more)."""
        return next((report.step for report in self.reports() if (report.job, report.epoch) == key), 0)

    def reports(self) -> tuple[JobReport, ...]:
        assert self.machine is not None
        return tuple(self.machine.reports())

    def last_words(self) -> tuple[JobReport, ...]:
        assert self.machine is not None
        return self.machine.last_words()

    def told(self) -> tuple[WantedJob, ...]:
        assert self.machine is not None
        return self.machine.told()

    @property
    def troubles(self) -> tuple[str, ...]:
        """Of this host, for people: what an administrator has to do something about before jobs can go on as they should."""
        told = [text] if (text := self.breaks.text(boot_s())) else []
        if self.saving.why_not:  # of jobs there may be many
            told.append(
                f"what the agent knows cannot be written: {self.saving.why_not} (state_dir {self.config.state_dir})"
            )
        held_up = (one for one in self.reports() if one.note.startswith((CANNOT_START, CANNOT_FETCH)))
        told += [f"job {one.job} {one.note}" for one in held_up]
        return tuple(told[:MOST_TROUBLES])

    def heard(self) -> tuple[int, int]:
        assert self.machine is not None
        return self.machine.heard

    # --- what is wanted ---------------------------------------------------------------------------------------------

    def _kept(self) -> frozenset[JobId] | None:
        """Jobs that are wanted, here, or lent, as this agent has heard: the one before did not note all of it."""
        if self.grants.newest[0] < 0:
            return None
        here = {report.job for report in self.reports()} | {key.job for key in self.jobs.running}
        return self._wanted | self.grants.lends() | here

    def term(self) -> int:
        """Of the newest controller that was obeyed."""
        return self._term

    def wanted(self, wanted: Wanted, late_s: float) -> None:
        """`late_s`: since it was said, beyond the usual."""
        if wanted.term < self._term:
            return  # nor does it know which checkpoints others are to fetch from here
        if self.stands:
            self._renew(wanted, late_s)
            return
        lent, is_first = self.grants.lends(), self.grants.newest[0] < 0
        self._term = wanted.term
        if self.grants.newest > (wanted.term, wanted.seq):
            return  # said before what is known already
        self.grants.take(wanted)
        told = wanted.term, wanted.fence_after_s, wanted.lease_s
        if told != self._told:  # remembered without a job, too: for the agent after us, and for its doctor
            self._told = told
            self.saving.changed()
        self._wanted = frozenset(job.job for job in wanted.jobs)
        self.watch.wanted(wanted.jobs)
        self.fetches.wanted(wanted.jobs)
        for job in wanted.jobs:
            self.jobs.meet(Key(job.job, job.epoch), job.nodes)
        self._renew(wanted, late_s)
        self.post(WantedChanged(now_s=boot_s(), wanted=wanted, late_s=late_s))
        if is_first or lent - self.grants.lends():
            self.forgetting.checkpoints()

    def _renew(self, wanted: Wanted, late_s: float) -> None:
        """The leases of jobs that end without the controller's word."""
        now_s = boot_s()
        self.leases.wanted(wanted, now_s - late_s, now_s)

    def heard_controller(self, late_s: float) -> None:
        """What lay unread while this agent was stopped says nothing of the controller now."""
        now_s = boot_s()
        self.leases.heard(now_s - late_s, now_s)
        self.post(ControllerHeard(now_s=now_s, late_s=late_s))

    def cast_out(self) -> None:
        """The controller has removed this host."""
        self.post(CastOut(now_s=boot_s()))

    # --- time ---------------------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        every_s = max(self.config.report_interval_s, SAVE_EVERY_S)
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.watch.look_at_devices()
                self._looks.worked()
                if self.saving.is_due:
                    self.saving.save()
            except Exception as error:
                if self._looks.is_due(reason(error), boot_s()):
                    log.exception("looking at the devices failed")

    # --- for systemd and the link -----------------------------------------------------------------------------------

    async def _watchdog(self) -> None:
        every_s = notify.watchdog_s()
        while every_s is not None:
            notify.notify("WATCHDOG=1")
            await asyncio.sleep(every_s / 2)

    @property
    def described(self) -> str:
        return f"{STANDS}; {self.devices.description}" if self.stands else self.devices.description

    @property
    def setup(self) -> str:
        return self.memory.setup

    @property
    def peer_address(self) -> str:
        return self.door.address

    def log_folder(self, job: JobId, epoch: int | None = None) -> Path | None:
        """Of that incarnation, or the newest."""
        found = logs.found(job, self.launcher.jobs, self.launcher.ended)
        return found.get(max(found, default=0) if epoch is None else epoch)

    def logs_of(self, job: JobId) -> list[int]:
        """Incarnations."""
        return sorted(logs.found(job, self.launcher.jobs, self.launcher.ended))

    def _has_ended(self, key: Key) -> bool:
        return any((each.job, each.epoch) == key and each.phase is Phase.EXITED for each in self.reports())

    def _why_no_turn(self, key: Key) -> str:
        """Of that incarnation, for people; empty: it has its GPUs just now."""
        found = next((each for each in self.reports() if (each.job, each.epoch) == key), None)
        if found is None or found.phase is Phase.EXITED:
            return f"job {key.job} does not run on {self.config.name} (any more)"
        if found.phase is Phase.RUNNING or (found.phase is Phase.STARTING and found.in_turn):
            # What it is started with is known from then on; before, there may be what an earlier start left.
            return "" if key in self.jobs.running else f"job {key.job} is only just being started: try again"
        if found.phase is Phase.KILLING:
            return f"job {key.job} is being ended"
        return f"job {key.job} has not its turn on {self.config.name} just now ({found.phase})"

    def is_running(self, job: JobId, epoch: int | None = None) -> bool:
        """It (or that incarnation) has not ended on this host: more output may come, even where it has not been launched yet."""
        return any(
            report.job == job and epoch in {None, report.epoch} and report.phase is not Phase.EXITED
            for report in self.reports()
        )

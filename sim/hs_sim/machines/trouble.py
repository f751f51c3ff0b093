"""What goes wrong, and when: data, so that the same plan makes the same trouble again."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from hs_core.names import HostName
from hs_core.reports import Exit
from hs_sim.machines.agent import Lacking
from hs_sim.machines.deeds import Deeds
from hs_sim.machines.network import DOWN, UP, Line
from hs_sim.machines.part import Part, Way

if TYPE_CHECKING:
    from hs_sim.machines.world import World


class Kind(StrEnum):
    CONTROLLER_KILLED = "controller-killed"
    CONTROLLER_PAUSED = "controller-paused"
    AGENT_KILLED = "agent-killed"
    AGENT_PAUSED = "agent-paused"
    JOB_KILLED = "job-killed"
    LINE_BROKEN = "line-broken"
    PARTITION = "partition"
    PARTITION_UP = "partition-up"  # what the host says does not arrive
    PARTITION_DOWN = "partition-down"
    REBOOT = "reboot"
    GPU_LOST = "gpu-lost"  # and back after a while
    DISK_FULL = "disk-full"  # for checkpoints
    CLOCK_JUMP = "clock-jump"  # the time of day where the controller is, by `for_s`, forwards or backwards
    SET_UP_ANEW = "set-up-anew"  # a server comes back with an empty disk, and under its name
    AGENT_FORGETS = (
        "agent-forgets"  # it is killed, and the next one finds what it kept damaged; its jobs are there still
    )
    TORN = "torn"  # a bit flips in the newest checkpoint of each job there
    LACKS = "lacks"  # a file system is not mounted there: what jobs that trained elsewhere need is not there
    REPEATS = "repeats"  # messages come again, also after newer ones
    # What people ask for (`machines.deeds`).
    HOST_DRAINED = "host-drained"  # with a deadline, `deadline_s` from then, if there is one
    HOST_REMOVED = (
        "host-removed"  # drained, and taken out once that is allowed; another one comes in its place
    )
    GPU_DRAINED = "gpu-drained"
    JOB_PAUSED = "job-paused"
    JOB_CANCELLED = "job-cancelled"
    TICKETS_SET = "tickets-set"
    POLICY_SET = "policy-set"
    USER_LEFT = "user-left"  # all of its jobs are cancelled, and it is removed; after a while it is back


DEEDS = (
    Kind.HOST_DRAINED,
    Kind.HOST_REMOVED,
    Kind.GPU_DRAINED,
    Kind.JOB_PAUSED,
    Kind.JOB_CANCELLED,
    Kind.TICKETS_SET,
    Kind.POLICY_SET,
)
LOSSES = (Kind.SET_UP_ANEW, Kind.AGENT_FORGETS)
MISHAPS = tuple(kind for kind in Kind if kind not in {*DEEDS, *LOSSES, Kind.USER_LEFT, Kind.TORN, Kind.LACKS})


ON_A_HOST = frozenset(Kind) - {
    Kind.CONTROLLER_KILLED,
    Kind.CONTROLLER_PAUSED,
    Kind.CLOCK_JUMP,
    Kind.REPEATS,
    Kind.JOB_PAUSED,
    Kind.JOB_CANCELLED,
    Kind.TICKETS_SET,
    Kind.POLICY_SET,
    Kind.USER_LEFT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """At a time; or, with `when`, `after_s` behind the `nth` order of that kind ("Suspend", "Launch", "Fetch", …), or trade, from `at_s` on."""

    kind: Kind
    at_s: float = 0.0
    for_s: float = 0.0
    host: HostName | None = None
    when: str = ""
    nth: int = 1
    after_s: float = 0.0
    deadline_s: float | None = None
    policy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    faults: tuple[Fault, ...] = ()

    @property
    def crashes(self) -> bool:
        return bool(self.faults)


TRADE_MOMENT = "Trade"
"""What a fault may wait for besides an order: a trade was made, and is not committed yet."""
_REMEMBER_S = 1.5  # an agent that is about to be killed keeps what it saves


class Trouble:
    """Carries a plan out."""

    def __init__(self, world: "World", plan: FaultPlan) -> None:
        self._world = world
        self._clock = world.clock
        self._deeds = Deeds(world)
        self._waiting: list[list[object]] = []
        self.quiet_from_s = 0.0  # nothing is wrong any more since
        self.active = 0
        self._since_s = 0.0  # something is wrong
        self._lasted_s = 0.0  # until then
        for fault in plan.faults:
            if fault.when:
                self._waiting.append([fault, fault.nth])
            else:
                self._arm(fault, fault.at_s)

    @property
    def over(self) -> bool:
        return self.active == 0

    def lasted_s(self) -> float:
        """Time in which something was wrong, in all."""
        return self._lasted_s + (self._clock.now_s - self._since_s if self.active else 0.0)

    def _arm(self, fault: Fault, at_s: float) -> None:
        if fault.kind is Kind.AGENT_KILLED:
            self._clock.at(max(self._clock.now_s, at_s - _REMEMBER_S), self._remember, fault)
        self._clock.at(at_s, self._strike, fault)

    def _remember(self, fault: Fault) -> None:
        assert fault.host is not None
        agent = self._world.agents[fault.host]
        if agent.up:
            agent.remember()

    def ordered(self, words: tuple[str, ...], host: HostName | None) -> None:
        """Orders went out on a host, or something happened that is about none: is a fault waiting for one of them?"""
        for waiting in list(self._waiting):
            fault, left = waiting
            assert isinstance(fault, Fault)
            assert isinstance(left, int)
            elsewhere = host is not None and fault.host not in (None, host)
            if self._clock.now_s < fault.at_s or elsewhere:
                continue
            seen = sum(word == fault.when for word in words)
            waiting[1] = left - seen
            if seen and left - seen <= 0:
                self._waiting.remove(waiting)
                if fault.kind is Kind.AGENT_KILLED:
                    self._remember(fault)
                self._clock.after(fault.after_s, self._strike, fault)

    def forget(self) -> None:
        """What has not happened by now does not happen any more."""
        self._waiting.clear()

    def _strike(self, fault: Fault) -> None:
        self._world.note(f"{fault.kind} {fault.host or ''} for {fault.for_s:g} s")
        world, kind = self._world, fault.kind
        if kind in ON_A_HOST and fault.host is None:
            raise ValueError(f"a fault of kind {kind} names no host")
        if not self.active:
            self._since_s = self._clock.now_s
        self.active += 1
        match kind:
            case Kind.CONTROLLER_KILLED:
                if world.controller.alive:
                    world.controller.crash()
                    self._clock.after(max(fault.for_s, world.timing.restart_s), self._controller_back)
                else:
                    self._over()
            case Kind.CONTROLLER_PAUSED:
                world.controller.pause(fault.for_s)
                self._clock.after(fault.for_s, self._over)
            case Kind.CLOCK_JUMP:
                world.controller.wall_s += fault.for_s
                self._over()
            case Kind.REPEATS:
                world.network.repeat = 0.5
                self._clock.after(fault.for_s, self._no_repeats)
            case Kind.JOB_PAUSED | Kind.JOB_CANCELLED:
                self._ask_of_a_job(fault)
            case Kind.TICKETS_SET | Kind.USER_LEFT:
                user = world.dice.choice(sorted({job.sim.user for job in world.truth.jobs.values()}))
                if kind is Kind.USER_LEFT:
                    self._deeds.leave(user, fault.for_s, self._over)
                else:
                    self._deeds.set_tickets(user, world.dice.choice([10.0, 100.0, 400.0]), self._over)
            case Kind.POLICY_SET:
                self._deeds.set_policy(fault.policy, self._over)
            case _:
                assert fault.host is not None
                self._strike_host(fault, fault.host)

    def _ask_of_a_job(self, fault: Fault) -> None:
        every = self._world.truth.jobs.values()
        jobs = [job for job in every if job.id is not None and job.ended_s is None and not job.failed]
        if not jobs:
            self._over()
            return
        job = self._world.dice.choice(jobs)
        self._world.note(f"job {job.id} is meant")
        if fault.kind is Kind.JOB_CANCELLED:
            self._deeds.cancel(job, self._over)
        else:
            self._deeds.pause(job, fault.for_s, self._over)

    def _strike_host(self, fault: Fault, host: HostName) -> None:
        world = self._world
        agent = world.agents[host]
        match fault.kind:
            case Kind.AGENT_KILLED:
                if agent.up:
                    agent.kill()
                    self._clock.after(max(fault.for_s, world.timing.restart_s), self._agent_back, host)
                else:
                    self._over()
            case Kind.AGENT_PAUSED:
                agent.pause(fault.for_s)
                self._clock.after(world.controller.settings.lease_s, self._silent, host, agent.link.line)
                self._clock.after(fault.for_s, self._over)
            case Kind.JOB_KILLED:
                alive = [part for part in agent.parts.values() if part.way is not Way.GONE]
                if alive:
                    self._kill_job(alive[world.dice.randrange(len(alive))])
                self._over()
            case Kind.LINE_BROKEN:
                if agent.link.line is not None:
                    line = agent.link.line
                    agent.link.hung_up(line)
                self._over()
            case Kind.PARTITION | Kind.PARTITION_UP | Kind.PARTITION_DOWN:
                ways = {Kind.PARTITION_UP: (UP,), Kind.PARTITION_DOWN: (DOWN,)}.get(fault.kind, (UP, DOWN))
                world.network.cut(host, ways)
                line_ = agent.link.line
                self._clock.after(world.timing.keepalive_s, self._dead_line, host, line_, ways)
                self._clock.after(fault.for_s, self._heal, host, ways)
            case Kind.REBOOT | Kind.SET_UP_ANEW:
                if fault.kind is Kind.REBOOT:
                    agent.reboot()
                else:
                    world.checkpoints.lose(agent)
                self._clock.after(world.timing.reboot_s, self._agent_back, host)
            case Kind.AGENT_FORGETS:
                agent.forget()
                self._clock.after(world.timing.restart_s, self._agent_back, host)
            case Kind.GPU_LOST:
                gpu = agent.gpus[world.dice.randrange(len(agent.gpus))]
                agent.gpu_health(gpu.id, healthy=False)
                self._clock.after(fault.for_s, self._gpu_back, host, gpu.id)
            case Kind.HOST_DRAINED:
                self._deeds.drain_host(host, fault.for_s, fault.deadline_s, self._over)
            case Kind.HOST_REMOVED:
                self._deeds.remove_host(host, fault.for_s, self._over)
            case Kind.GPU_DRAINED:
                self._deeds.drain_gpu(host, world.dice.randrange(len(agent.gpus)), fault.for_s, self._over)
            case Kind.TORN:
                world.checkpoints.tear(agent)
                self._over()
            case Kind.LACKS:
                agent.without = self._world.dice.choice(list(Lacking))
                self._clock.after(fault.for_s, self._has_all, host)
            case Kind.DISK_FULL:
                agent.disk_full = True
                self._clock.after(fault.for_s, self._disk_free, host)
            case _:
                raise AssertionError(fault.kind)

    def _kill_job(self, part: Part) -> None:
        part.gang.job.kills += 1
        part.gang.end(part, Exit(signal=9))

    def _silent(self, host: HostName, line: Line | None) -> None:
        """The controller gives up an agent that says nothing; that one sees its line closed when it goes on."""
        agent, controller = self._world.agents[host], self._world.controller
        if line is None or self._clock.now_s >= agent.paused_until_s:
            return
        side = controller.sides.get(host)
        if side is not None and side.line is line:
            controller.lost(line)
            self._clock.at(agent.paused_until_s, agent.link.hung_up, line)

    def _dead_line(self, host: HostName, line: object, ways: tuple[int, ...]) -> None:
        """Nothing came over it for so long that both ends give it up; each says so to nobody."""
        agent, world = self._world.agents[host], self._world
        if line is None or not any(world.network.is_cut(host, way) for way in ways):
            return
        if agent.link.line is not None and agent.link.line is line:
            agent.link.hung_up(agent.link.line)
        side = world.controller.sides.get(host)
        if side is not None and side.line is line:
            world.controller.lost(side.line)

    def _heal(self, host: HostName, ways: tuple[int, ...]) -> None:
        self._world.network.heal(host, ways)
        self._over()

    def _controller_back(self) -> None:
        self._world.controller.start()
        self._over()

    def _agent_back(self, host: HostName) -> None:
        agent = self._world.agents[host]
        if not agent.up:
            agent.start()
        self._over()

    def _gpu_back(self, host: HostName, gpu: object) -> None:
        agent = self._world.agents[host]
        agent.gpu_health(next(g.id for g in agent.gpus if g.id == gpu), healthy=True)
        self._over()

    def _disk_free(self, host: HostName) -> None:
        self._world.agents[host].disk_full = False
        self._over()

    def _has_all(self, host: HostName) -> None:
        self._world.agents[host].without = None
        self._over()

    def _no_repeats(self) -> None:
        self._world.network.repeat = 0.0
        self._over()

    def _over(self) -> None:
        self._world.note("a fault is over")
        self.active -= 1
        self.quiet_from_s = self._clock.now_s
        if not self.active:
            self._lasted_s += self._clock.now_s - self._since_s

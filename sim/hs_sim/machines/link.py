"""An agent's line to the controller, as `hs_agent.link` keeps it: what changed is told, everything again on connect."""

from typing import TYPE_CHECKING

from hs_core.model import Gpu, Host
from hs_core.names import JobId
from hs_core.reports import JobReport, differs, parting
from hs_sim.machines.controller import Hello
from hs_sim.machines.network import DOWN, UP, Line

if TYPE_CHECKING:
    from hs_sim.machines.agent import Agent
    from hs_sim.machines.world import World


class Link:
    def __init__(self, world: "World", agent: "Agent") -> None:
        self._world, self._agent, self._clock = world, agent, world.clock
        self.line: Line | None = None
        self.connected = False
        self._sent: dict[JobId, JobReport] = {}
        self._sent_gpus: tuple[Gpu, ...] = ()
        self._sent_heard = (-1, -1)
        self._ticking = False
        self._stale = False  # there may be something to tell

    # --- coming and going -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Of a new agent."""
        self._ticking = False

    def dial(self, life: int) -> None:
        """`life`: of the agent who dials; it may have been killed since."""
        world, agent = self._world, self._agent
        if life != agent.life or not agent.up or self.line is not None:
            return
        cut = world.network.is_cut(agent.name, UP) or world.network.is_cut(agent.name, DOWN)
        if cut or not world.controller.alive or agent.paused:
            self._redial()
            return
        machine = agent.machine
        assert machine is not None
        self.line = world.network.line(agent.name)
        reports = machine.reports()
        self._sent = {report.job: report for report in reports}
        self._sent_gpus, self._sent_heard = agent.gpus, (-1, -1)
        host = Host(
            name=agent.name,
            boot_id=f"boot-{agent.boots}",
            setup=agent.setup,
            gpus=agent.gpus,
            peer=f"{agent.name}:7444",
            memory_bytes=agent.memory_bytes,
        )
        hello = Hello(
            host=host,
            reports=reports,
            last_words=machine.last_words(),
            told=machine.told(),
            said_s=agent.now_s(),
        )
        world.network.send(self.line, UP, world.controller.hello, hello)

    def _redial(self) -> None:
        # The dice of one host and life: how often others dialled changes nothing here.
        pause_s = (0.1 + self._world.dice.random() * 0.9) * self._world.timing.redial_s
        self._clock.after(pause_s, self.dial, self._agent.life)

    def welcomed(self, line: Line) -> None:
        if line is self.line:
            self.connected = True
            if self._stale and not self._ticking:
                self._tick_later()

    def hung_up(self, line: Line) -> None:
        if line is self.line:
            self.hang_up()
            if self._agent.up:
                self._redial()

    def hang_up(self) -> None:
        line, self.line = self.line, None
        self.connected = False
        if line is not None:
            line.closed[DOWN] = True
            self._world.network.send(line, UP, self._world.controller.lost)

    # --- what is told -----------------------------------------------------------------------------------------------

    def outdated(self) -> None:
        """What was told may be by now."""
        self._stale = True

    def tell_soon(self) -> None:
        self._stale = True
        if self.connected and not self._ticking:
            self._tick_later()

    def _tick_later(self) -> None:
        self._ticking = True
        self._clock.after(self._world.timing.report_s, self._tick, self._agent.life)

    def _tick(self, life: int) -> None:
        """What differs from what this connection was told."""
        agent = self._agent
        if life != agent.life:
            return
        self._ticking = False
        if not self.connected or self.line is None:
            return
        if agent.paused:
            self._ticking = True
            self._clock.at(agent.paused_until_s, self._tick, life)
            return
        if self.line.full:
            self._tick_later()
            return
        machine = agent.machine
        assert machine is not None
        self._stale = False
        now = {report.job: report for report in machine.reports()}
        sent = self._sent
        changed = tuple([r for job, r in now.items() if differs(sent.get(job), r)])
        changed = (*parting(sent, now, machine.last_words), *changed)
        gpus = () if agent.gpus == self._sent_gpus else agent.gpus
        heard = machine.heard
        news = changed or gpus or heard != self._sent_heard
        self._sent, self._sent_gpus, self._sent_heard = now, agent.gpus, heard
        if news:
            self.line.full = True
            report = self._world.controller.report
            self._world.network.send(self.line, UP, report, changed, gpus, heard, agent.now_s())

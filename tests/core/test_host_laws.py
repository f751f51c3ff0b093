"""Whatever jobs, delays, losses, restarts and sick GPUs: the laws of a host hold after every event."""

import os
from operator import attrgetter

from fakejob import Ways
from hostsim import GIB, HostSim
from hypothesis import HealthCheck, settings
from hypothesis import Phase as Stage
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hs_core.host import HostConfig
from hs_core.host.hosted import HostedJob
from hs_core.host.room import excess_bytes, parked_by, residents
from hs_core.host.sizes import size_bytes
from hs_core.model import OnPartition, SuspendMode
from hs_core.names import JobId
from hs_core.reports import Phase, Tier
from hs_core.wanted import Turn

COUNTERS = ("gpu_s", "run_s", "suspends", "resumes", "suspend_s", "resume_s", "lost_gpu_s")
counted = attrgetter(*COUNTERS)
STARVED_QUANTA = 200
EXAMPLES = int(os.environ.get("HOST_EXAMPLES", "200"))

ways = st.builds(
    Ways,
    hook_s=st.sampled_from([0.1, 3.0]),
    ready_s=st.sampled_from([3.5, 20.0, 90.0]),
    hold_s=st.sampled_from([0.05, 2.0, 25.0, 70.0]),
    swap_s=st.sampled_from([0.1, 10.0]),
    checkpoint_s=st.sampled_from([0.5, 20.0]),
    resume_s=st.sampled_from([0.01, 5.0]),
    freeze_s=st.sampled_from([0.0, 1.0]),
    die_s=st.sampled_from([0.0, 9.0]),
    can_swap=st.booleans(),
    can_checkpoint=st.booleans(),
    hooks=st.sampled_from([True, True, True, True, False]),
    freezes=st.sampled_from([True, True, True, False]),
    disk_full=st.sampled_from([False, False, False, True]),
    swap_fails=st.sampled_from([False, False, False, True]),
    deaf=st.sampled_from([False, False, False, False, True]),
    unkillable=st.sampled_from([False] * 9 + [True]),
    work_s=st.sampled_from([30.0, 300.0, 3000.0, 1e9]),
    lose=st.sets(st.sampled_from(["held", "went-on", "resume"]), max_size=2),
    host_bytes=st.sampled_from([0, 3 * GIB, 10 * GIB]),
    memory_bytes=st.sampled_from([0, 5 * GIB, 12 * GIB]),
    context_bytes=st.sampled_from([0, GIB]),
)
modes = st.sampled_from(
    [SuspendMode.AUTO] * 6 + [SuspendMode.HOOK, SuspendMode.TRANSPARENT, SuspendMode.NONE]
)


class AnyHost(RuleBasedStateMachine):
    """Rough company: everything that can go wrong on a host."""

    gentle = False

    @initialize(
        gpus=st.sampled_from([1, 2, 4, 8]),
        freeze=st.booleans(),
        preload=st.integers(0, 3),
        budget=st.sampled_from([0, 20, 200]),
        clock=st.booleans(),
        fence_after_s=st.sampled_from([0.0, 0.0, 300.0]),
        ram=st.sampled_from([0, 0, 24]),
        driver=st.booleans(),
    )
    def start(  # noqa: PLR0917 — hypothesis passes by name
        self,
        gpus: int,
        freeze: bool,
        preload: int,
        budget: int,
        clock: bool,
        fence_after_s: float,
        ram: int,
        driver: bool,
    ) -> None:
        config = HostConfig(
            can_freeze=freeze or self.gentle,
            preload=preload,
            host_memory_budget_bytes=budget * GIB,
            host_memory_reserve_bytes=2 * GIB,
        )
        self.sim = HostSim(gpus, config=config, ram_bytes=ram * GIB, driver=driver)
        self.sim.watch = self.look
        self.counted: dict[tuple[int, int], tuple[float, ...]] = {}
        self.number = 0
        self.sim.fence_after_s = fence_after_s
        self.sim.turn_of = self.turn_of  # type: ignore[method-assign]
        self.sim.send()
        if clock:
            self.sim.start_clock([Turn()])

    def turn_of(self, quantum: int) -> Turn:
        """Parts of jobs over several hosts one after the other, then a quantum for all others."""
        parts = [w.job for w in self.sim.wanted.values() if w.spec.nodes > 1 and not w.paused]
        return Turn(
            gangs=tuple(parts[at : at + 1]) if (at := quantum % (len(parts) + 1)) < len(parts) else ()
        )

    def look(self, sim: HostSim) -> None:
        """After every event: counters only grow, gangs are whole, what trains is charged."""
        for report in sim.machine.reports():
            key = report.job, report.epoch
            now = counted(report)
            before = self.counted.get(key, (0.0,) * len(COUNTERS))
            if now != before:  # after most events nothing has been counted
                assert all(a >= b - 1e-6 for a, b in zip(now, before, strict=True)), (key, before, now)
                self.counted[key] = now
            wanted = sim.wanted.get(report.job)
            if wanted is not None and wanted.epoch == report.epoch:
                assert len(set(report.gpus)) in (0, wanted.spec.gpus)

    @rule(gang=st.sampled_from([1, 1, 1, 2, 2, 4, 8]), tickets=st.sampled_from([0.1, 2 / 3, 1.0, 4 / 3, 50.0]), memory=st.sampled_from([0, 0, 3, 9, 16]),
          user=st.sampled_from("AB"), how=ways, mode=modes, limit=st.sampled_from([0.0, 0.0, 0.0, 500.0]), interval=st.sampled_from([0.0, 0.0, 45.0]), nodes=st.sampled_from([1, 1, 1, 2]), source=st.sampled_from([None, None, None, 500]), fails=st.integers(0, 2),
          on_partition=st.sampled_from(OnPartition))  # fmt: skip
    def submit(  # noqa: PLR0917 — hypothesis passes by name
        self,
        gang: int,
        tickets: float,
        memory: int,
        user: str,
        how: Ways,
        mode: SuspendMode,
        limit: float,
        interval: float,
        nodes: int,
        source: int | None,
        fails: int,
        on_partition: OnPartition,
    ) -> None:
        if self.number >= 12 or gang > len(self.sim.gpus):
            return
        self.number += 1
        if self.gentle:
            mode = SuspendMode.AUTO
            how.hooks = how.freezes = True
            how.deaf = how.unkillable = how.disk_full = False
            how.lose, memory = set(), min(memory, 1)
            if nodes > 1:
                how.host_bytes = 0  # parts of gangs leave for nobody
            how.can_checkpoint |= self.sim.ram_bytes > 0  # one that cannot leave keeps its memory for good
            how.hold_s, how.checkpoint_s, how.ready_s = min(how.hold_s, 2.0), 0.5, min(how.ready_s, 20.0)
        self.sim.job(
            self.number,
            gang,
            user=user,
            tickets=tickets,
            memory_bytes=memory * GIB,
            mode=mode,
            ways=how,
            time_limit_s=limit,
            checkpoint_interval_s=interval,
            nodes=nodes,
            rendezvous="10.0.0.1:29417" * (self.number % 3 > 0),
            source=None if source is None else self.sim.source(source),
            on_partition=on_partition,
        )
        self.sim.ways[JobId(self.number)].fetch_fails = self.sim.ways[JobId(self.number)].start_fails = fails
        self.sim.send()

    @rule(
        data=st.data(),
        what=st.sampled_from(
            [
                "pause",
                "pause",
                "unpause",
                "cancel",
                "retry",
                "drop",
                "tickets",
                "leave",
                "stay",
                "lend",
                "meet",
            ]
        ),
    )
    def change(self, data: st.DataObject, what: str) -> None:
        if not self.sim.wanted or self.sim.down:
            return
        job = data.draw(st.sampled_from(sorted(self.sim.wanted)))
        match what:
            case "pause" | "unpause":
                self.sim.change(job, paused=what == "pause")
            case "cancel":
                self.sim.change(job, cancelled=True)
            case "retry":
                self.sim.change(job, epoch=self.sim.wanted[job].epoch + 1, cancelled=False)
            case "drop":
                del self.sim.wanted[job]
            case "leave" | "stay":
                self.sim.change(job, leave=what == "leave")
            case "lend":
                self.sim.lend(job, self.sim.wanted[job].epoch)
            case "meet":
                for each in list(self.sim.wanted):
                    self.sim.change(each, rendezvous="10.0.0.1:29417")
            case _:
                self.sim.change(job, tickets=3.0)
        self.sim.send()

    @rule(quanta=st.sampled_from([1, 3, 10]), seconds=st.sampled_from([0.0, 0.3, 17.0]))
    def time_passes(self, quanta: int, seconds: float) -> None:
        self.sim.quanta(quanta)
        self.sim.run(seconds)

    @rule(away=st.booleans(), late_s=st.sampled_from([0.0, 0.5, 30.0, 59.9]))
    def controller(self, away: bool, late_s: float) -> None:
        self.sim.away, self.sim.late_s = away, late_s

    @precondition(lambda self: not self.sim.down)
    @rule(sick=st.sets(st.integers(0, 7), max_size=1))
    def gpus_change(self, sick: set[int]) -> None:
        if len(self.sim.gpus) > 1 and not self.gentle:
            self.sim.see_gpus(sick)

    @rule(others=st.sampled_from([0, 0, 8, 22]))
    def others_take_memory(self, others: int) -> None:
        if not self.gentle:
            self.sim.others_bytes = others * GIB

    @precondition(lambda self: not self.sim.down)
    @rule(away=st.sampled_from([0.0, 1.0, 200.0]))
    def agent_is_killed_and_comes_back(self, away: float) -> None:
        self.sim.kill_agent()
        self.sim.run(away)
        self.sim.start_agent()

    @invariant()
    def charged_is_what_the_truth_says(self) -> None:
        """Training is never free; what is charged beyond it is coming up, stopping, or frozen on the way."""
        for report in self.sim.machine.reports():
            wanted = self.sim.wanted.get(report.job)
            process = self.sim.processes.get((report.job, report.epoch))
            if (
                wanted is None
                or process is None
                or not process.ways.hooks
                or wanted.epoch > 1
                or process.ways.lose
            ):
                continue
            assert report.gpu_s >= self.sim.trained(report.job) * wanted.spec.gpus * 0.999 - 1e-3

    def teardown(self) -> None:
        if not hasattr(self, "sim"):
            return
        self.sim.quanta(20)
        idling = self.idling()
        for _ in range(5):  # a job that has just ended, or is being moved, is not idleness
            if idling:
                self.sim.run(self.sim.machine._board.quantum_s)  # longer where switching is slow
                idling &= self.idling()
        assert not idling

    def idling(self) -> set[tuple[JobId, str]]:
        """Sliceable jobs, or those that can be moved, that would fit GPUs nobody uses."""
        sim, board = self.sim, self.sim.machine._board
        standing = (Phase.WAITING, Phase.HELD, Phase.SWAPPED, Phase.FROZEN, Phase.CHECKPOINTED)
        used = {g for r in sim.machine.reports() if r.phase not in (*standing, Phase.EXITED) for g in r.gpus}
        idle = {g.id for g in board.gpus.values() if g.healthy} - used
        found: set[tuple[JobId, str]] = set()
        if any(job.asked is Tier.CHECKPOINT for job in board.jobs.values()):
            return found  # the GPUs wait for a job that is being moved
        for job in board.jobs.values():
            if job.phase not in standing or job.wanted.paused or job.held_up or job.asked is not None:
                continue
            if job.part or (not job.alive and not job.startable):
                continue
            movable = job.can_checkpoint and job.ready and board.now_s >= job.checkpoint_after_s
            fits = not job.alive or set(job.gpus) <= idle or (movable and job.phase is not Phase.FROZEN)
            if fits and job.gang <= len(idle):
                found.add((job.id, str(sorted(idle))))
        return found


def parks(job: HostedJob) -> bool:
    """Host memory holds its state, or is about to."""
    return job.alive and (job.phase is Phase.SWAPPED or job.asked is Tier.SWAP)


class CivilHost(AnyHost):
    """Jobs that answer: then nobody starves and the shares come out as well."""

    gentle = True

    def teardown(self) -> None:
        super().teardown()
        if not hasattr(self, "sim"):
            return
        waiting = [r for r in self.sim.machine.reports() if r.exit is None and self.shares(r.job)]
        if not waiting or sum(self.sim.wanted[r.job].tickets for r in waiting) > 20:
            return
        before = {r.job: r.run_s for r in waiting}
        shut_out: set[JobId] = set()
        self.sim.away = False
        for _ in range(STARVED_QUANTA):
            shut_out |= {job for job in before if not self.has_room(job)}
            self.sim.quanta(1)
        for report in self.sim.machine.reports():
            if report.exit is None and report.job in before.keys() - shut_out:
                assert report.run_s > before[report.job], (
                    f"job {report.job} got nothing in {STARVED_QUANTA} quanta: {report.note}"
                )

    def has_room(self, id_: JobId) -> bool:
        """It fits beside those whose device memory nothing moves, on its own GPUs or wherever else it could go."""
        board = self.sim.machine._board
        job = board.jobs.get(id_)
        if job is None or job.ended or job.resident:
            return True
        swaps = self.host_takes_all()
        there = {
            gpu: [size_bytes(board, other) for other in jobs if self.stays(other, swaps)]
            for gpu, jobs in residents(board).items()
        }
        fitting = {gpu for gpu in board.gpus if excess_bytes(board, job, gpu, there.get(gpu, ())) <= 0}
        bound = job.alive and not job.can_checkpoint
        return fitting.issuperset(job.gpus) if bound else job.gang <= len(fitting)

    def stays(self, job: HostedJob, swaps: bool) -> bool:
        """It holds device memory until it ends, as its state has nowhere to go."""
        return job.resident and not (self.sim.ways[job.id].can_checkpoint or (swaps and self.may_swap(job)))

    def may_swap(self, job: HostedJob) -> bool:
        ways = self.sim.ways[job.id]
        return ways.can_swap and not ways.swap_fails

    def host_takes_all(self) -> bool:
        """The budget holds at once what lies there and what has nowhere else to go: who is swapped keeps nobody from being swapped."""
        board = self.sim.machine._board
        lies = [job for job in board.jobs.values() if job.alive and (parks(job) or self.may_swap(job))]
        going = [job for job in lies if parks(job) or not self.sim.ways[job.id].can_checkpoint]
        return sum(parked_by(board, job) for job in going) <= board.config.host_memory_budget_bytes

    def shares(self, job: JobId) -> bool:
        """It has a part in what the host gives to its own jobs."""
        wanted = self.sim.wanted.get(job)
        return wanted is not None and not (wanted.paused or wanted.leave or wanted.spec.nodes > 1)


# Not shrunk: that takes minutes here, and a script of 25 steps can be read.
QUICK = {"phases": [Stage.generate], "deadline": None, "suppress_health_check": list(HealthCheck)}
AnyHost.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=25, **QUICK)
CivilHost.TestCase.settings = settings(max_examples=EXAMPLES // 4, stateful_step_count=20, **QUICK)
TestAnyHost = AnyHost.TestCase
TestCivilHost = CivilHost.TestCase


def test_hundreds_of_quanta_with_a_full_host_take_no_time():
    sim = HostSim(8)
    for n in range(1, 41):
        sim.job(n, (1, 2, 4)[n % 3], tickets=1 + n % 5, ways=Ways(hold_s=0.2))
    sim.send()
    sim.quanta(300)
    assert sum(sim.gpu_s(JobId(n)) for n in range(1, 41)) > 0.97 * 8 * 300 * 60

"""Three servers and one job that trains on them as averaged copies, as the controller's machine has it."""

from dataclasses import replace
from fractions import Fraction

from hs_core.cluster import Settings, copies
from hs_core.cluster.harness import EVERYTHING, World, a_host, a_spec
from hs_core.events.cluster import HostJoined, HostLeft, HostReported, JobsSubmitted, QuantumEnded, UserSet
from hs_core.model import Job, MoveReason, OnPartition
from hs_core.names import HostName, JobId, UserName
from hs_core.policy import Memory, Needs, Plan, Policy, Snapshot, Verdict
from hs_core.reports import JobReport, Phase
from hs_core.wanted import Source, Turn, WantedJob

ANN = UserName("ann")
JOB = JobId(1)
A, B, C = (HostName(name) for name in "abc")
MODELS = {A: "V100", B: "K80", C: "K80"}
TOTAL = 1000


class Cluster:
    """Three servers and one job, which a policy has train where it is told to; hosts say what the test has them say."""

    def __init__(self, on_partition: OnPartition = OnPartition.CONTINUE) -> None:
        self.want: tuple[tuple[HostName, ...], tuple[int, ...]] = ((A,), ())
        self.world = World(
            Policy(name="as-told", needs=Needs(every_quantum=True, copies=True), decide=self._decide),
            Settings(quantum_s=60.0, move_deadline_s=30.0, settle_s=0.0, settle_s_per_job=0.0),
        )
        self.happens(UserSet(now_s=0.0, name=ANN))
        for host, model in MODELS.items():
            self.joins(host, model)
        self.happens(
            JobsSubmitted(now_s=0.0, user=ANN, specs=(a_spec(steps=TOTAL, on_partition=on_partition),))
        )

    def _decide(self, snapshot: Snapshot, memory: Memory) -> Verdict:
        homes, tickets, moves, forks = {}, {}, {}, {}
        for job in snapshot.jobs:
            home, portions = self._wanted_of({host.name for host in snapshot.hosts if host.connected})
            if not home:
                home = job.hosts
            if not home:
                continue
            free = not job.started or job.movable
            if portions and not job.started and len(job.hosts) < 2:
                home, portions = home[:1], ()
            home = home if free else job.hosts
            if portions and free:
                home, portions = copies.divided(int(job.steps_left or 0), home, portions)
            anew = memory.get("told") != [snapshot.quantum, *home]
            homes[job.id], tickets[job.id] = home, Fraction(100)
            if job.started and home != job.hosts:
                moves[job.id] = (MoveReason.ROUND, "so told")
            if portions and not anew and len(job.hosts) > 0:
                homes[job.id] = home = job.hosts
                moves.pop(job.id, None)
            elif portions and free:
                forks[job.id] = portions
                memory = {"told": [snapshot.quantum, *home]}
        turns = {
            host.name: Turn(gangs=tuple(j for j in homes if host.name in homes[j]), local=False)
            for host in snapshot.hosts
        }
        return Verdict(
            plan=Plan(homes=homes, turns=turns, tickets=tickets, moves=moves, copies=forks), memory=memory
        )

    def _wanted_of(self, here: set[HostName]) -> tuple[tuple[HostName, ...], tuple[int, ...]]:
        """Without servers that are away."""
        home, portions = self.want
        kept = [at for at, name in enumerate(home) if name in here]
        portions = tuple(portions[at] for at in kept) if len(kept) > 1 and portions else ()
        return tuple(home[at] for at in kept), portions

    def happens(self, event: object) -> None:
        self.world.handle(replace(event, now_s=self.world.now_s))  # type: ignore[type-var]
        self.world.machine.check()

    def joins(self, host: HostName, model: str, *reports: JobReport) -> None:
        self.happens(HostJoined(now_s=0.0, host=a_host(host, model, 1), reports=reports))

    @property
    def row(self) -> Job:
        return self.world.machine.job(JOB)

    def says(
        self, host: HostName, phase: Phase, step: int, generation: int = -1, at: int = -1, **more: object
    ) -> JobReport:
        row = self.row
        told: dict[str, object] = {"can_checkpoint": True, "in_turn": phase is Phase.RUNNING, **more}
        report = JobReport(
            job=JOB, epoch=row.epoch, phase=phase, step=step, checkpoint_generation=generation, checkpoint_step=at, **told,  # type: ignore[arg-type]
        )  # fmt: skip
        self.happens(HostReported(now_s=0.0, host=host, reports=(report,), heard=EVERYTHING))
        return report

    def told(self, host: HostName) -> WantedJob | None:
        return next((job for job in self.world.wanted[host].jobs if job.job == JOB), None)

    def source(self, host: HostName) -> Source:
        told = self.told(host)
        assert told is not None
        assert told.source is not None
        return told.source

    def edge(self) -> None:
        self.world.now_s += 60.0
        self.happens(QuantumEnded(now_s=0.0))

    def cut_off(self, *hosts: HostName) -> None:
        """For so long that what asked to be fenced is given up there."""
        for host in hosts:
            self.happens(HostLeft(now_s=0.0, host=host))
        self.world.now_s += 71.0
        self.happens(QuantumEnded(now_s=0.0))

    def lends(self, host: HostName) -> list[tuple[int, int, int]]:
        return [(lend.epoch, lend.generation, lend.copy) for lend in self.world.wanted[host].lends]

    # --- how far it has come

    def alone(self) -> None:
        """It trains on `a`, at step 10."""
        self.says(A, Phase.RUNNING, 10)

    def forked(self, *portions: int) -> None:
        """It has left `a` at step 100 to train as copies; all of them stand there."""
        self.alone()
        hosts = (A, B, C)[: len(portions)]
        self.want = (hosts, portions)
        self.edge()
        self.says(A, Phase.CHECKPOINTED, 100, 4, 100)
        for host in hosts:
            self.says(host, Phase.HELD, 100, 5, 100)

    def leave(self, **steps: int) -> None:
        """These copies have left with so many steps done since they began."""
        for name, own in steps.items():
            base = self.row.base_step
            self.says(HostName(name), Phase.CHECKPOINTED, base + own, 7, base + own)

"""What must hold of a whole cluster, judged by the truth: looked at at every sample, and at the end.

What must hold at every single event (a GPU used by one, a job trained once, no safe step lost) is refused by `Truth` itself.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from functools import partial
from math import ceil

from hs_core.mechanism.mover import Limits
from hs_core.model import Job, JobState
from hs_core.names import GpuId, HostName, JobId
from hs_core.reports import TIME_LIMIT
from hs_sim.machines.agent import Agent
from hs_sim.machines.part import Part, Way
from hs_sim.machines.truth import JobTruth, LawBrokenError
from hs_sim.machines.world import World

IDLE_SAMPLES = 6  # of half a quantum: two quanta, and what bringing one job of another binding here takes
MOVE_QUANTA = 3.0  # two, and what it takes to be sent
SETTLE_QUANTA = 3.0  # after trouble, before anything is expected
SLACK_S = 3.0  # of one incarnation: a heartbeat, a commit, a word of progress
HALF = 0.5  # of its rate: who has most of the turns where it lives is better off there than on GPUs that are slower still
QUEUE_PER_ONE = 4  # events that wait for the controller, for each job and host


class Laws:
    """`world.watch` of a run that is looked at."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._idle: dict[tuple[HostName, int], int] = {}
        self._elsewhere: dict[JobId, int] = {}  # samples for which it has waited so
        quantum_s, deciding_s = world.experiment.quantum_s, world.timing.decision_s
        # The policy may be at a question about how things were, and then has to be asked again.
        sample_s = world.experiment.sample_s or quantum_s
        self._allowed = IDLE_SAMPLES + ceil(2 * deciding_s / sample_s)
        self._allowed_elsewhere = ceil((MOVE_QUANTA * quantum_s + 2 * deciding_s) / sample_s)
        self._settled_s = SETTLE_QUANTA * quantum_s + 2 * deciding_s

    def __call__(self, world: World) -> None:
        self._queues()
        quiet_s = world.clock.now_s - world.trouble.quiet_from_s
        if not self._in_time() or not world.trouble.over or quiet_s < self._settled_s:
            self._idle.clear()
            self._elsewhere.clear()
            return
        self._work_conserving()
        needs = world.controller.machine.policy.needs
        if needs.moves and needs.work_conserving:
            self._work_conserving_over_servers()

    def _in_time(self) -> bool:
        """Of quanta that are over, or well begun, before it is said who runs in them nothing is expected but safety; of servers that share out their own all is."""
        quantum_s, deciding_s = self._world.experiment.quantum_s, self._world.timing.decision_s
        fair = self._world.controller.machine.policy.needs.fair
        return deciding_s <= quantum_s / 10 or (fair and deciding_s < quantum_s)

    def _queues(self) -> None:
        world = self._world
        most = 64 + QUEUE_PER_ONE * (len(world.truth.jobs) + len(world.agents))
        if world.controller.longest_queue > most:
            world.broken(
                f"{world.controller.longest_queue} events waited for the controller; {most} are allowed"
            )

    # --- idle GPUs beside a job that waits --------------------------------------------------------------------------

    def _work_conserving(self) -> None:
        still: dict[tuple[HostName, int], int] = {}
        for agent in self._world.agents.values():
            idle = len(_idle_gpus(agent))
            for waiting in self._waiting(agent, idle):
                key = (agent.name, waiting.key[0])
                still[key] = self._idle.get(key, 0) + 1
                if still[key] >= self._allowed:
                    raise LawBrokenError(
                        f"at {self._world.clock.now_s:.1f}: {idle} GPUs of {agent.name} idle while job {waiting.key[0]} "
                        f"({waiting.way.value}, {len(waiting.gpus)} GPUs) waits there"
                    )
        self._idle = still

    def _work_conserving_over_servers(self) -> None:
        """Nobody waits for its turn, or for a home, while servers to which it could go have idle GPUs for all of it."""
        unable = self._world.controller.machine.unable
        agents = [agent for agent in self._world.agents.values() if agent.up and agent.link.connected]
        there: dict[int, list[Part]] = {}
        for agent in self._world.agents.values():
            for part in agent.parts.values():
                there.setdefault(part.gang.job.sim.id, []).append(part)
        still: dict[JobId, int] = {}
        for job in self._world.truth.jobs.values():
            row = self._row_of(job)
            if row is None or not self._could_move(row, there.get(job.sim.id, ())):
                continue
            idle = {agent.name: self._with_memory(agent, job, row.id) for agent in agents}
            room = Counter(
                agent.model
                for agent in agents
                if idle[agent.name] >= row.gpus
                and _suits(row, agent.model)
                and self._is_worth_it(job, row, agent.model)
                and agent.name not in unable(row.user) | self._world.controller.machine.failed_at(row.id)
            )
            if max(room.values(), default=0) < row.nodes:
                continue
            still[row.id] = self._elsewhere.get(row.id, 0) + 1
            if still[row.id] >= self._allowed_elsewhere:
                at = ", ".join(f"{free} of {name}" for name, free in idle.items() if free)
                self._world.broken(
                    f"job {row.id} ({row.nodes} x {row.gpus} GPUs) waits at {', '.join(row.hosts) or 'no server'}; idle: {at}"
                )
        self._elsewhere = still

    def _is_worth_it(self, job: JobTruth, row: Job, model: str) -> bool:
        """It is not so slow on that model that waiting now and then costs less."""
        rate = partial(self._world.speeds.rate, job, form=row.shape)
        return all(rate(model) >= HALF * rate(own) for own in row.gpu_models)

    def _waiting(self, agent: Agent, idle: int) -> Iterator[Part]:
        for part in _waiting(agent, idle):
            if len(part.gpus) <= self._with_memory(agent, part.gang.job, part.key[0]):
                yield part

    def _with_memory(self, agent: Agent, job: JobTruth, id_: JobId) -> int:
        """Idle GPUs there on which it has room beside the state of those that cannot be moved out."""
        memory = self._world.device_memory
        return sum(
            memory.free_bytes(gpu, lambda part: part.key[0] != id_ and not _movable(part))
            >= job.room_bytes(memory.capacity_bytes(gpu))
            for gpu in _idle_gpus(agent)
        )

    def _row_of(self, job: JobTruth) -> Job | None:
        """None: it wants nothing."""
        if job.id is None or job.ended_s is not None or job.cancelled:
            return None
        return self._world.controller.machine.find(job.id)

    def _could_move(self, row: Job, parts: Collection[Part]) -> bool:
        """It waits, and nothing is in the way: nor that it has just come to where it is."""
        if row.paused or row.state not in (JobState.QUEUED, JobState.SUSPENDED) or row.move is not None:
            return False
        if row.stored is not None and row.stored.surpassed:  # it is to start where a newer one may be
            return False
        if row.forked or row.spec.elastic is not None:  # the GPUs that they have are as many as were decided
            return False
        stay_s = Limits().cool_down_quanta * self._world.experiment.quantum_s
        if row.hosts and self._world.controller.now_s() - row.settled_s < stay_s:
            return False
        return all(part.way is Way.STANDING and part.occupied_s is None and _movable(part) for part in parts)

    # --- at the end -------------------------------------------------------------------------------------------------

    def at_the_end(self) -> None:
        for job in self._world.truth.jobs.values():
            self._ended_whole(job)
            self._ended_in_time(job)
            self._charged_right(job)
            self._blamed_right(job)

    def _ended_whole(self, job: JobTruth) -> None:
        world = self._world
        assert job.id is not None
        row = world.controller.machine.find(job.id)
        if job.cancelled and row is not None and row.state is JobState.CANCELLED:
            if job.busy:
                world.broken(f"job {job.id} was cancelled and still trains")
            return
        if row is not None and row.state is JobState.FAILED:
            self._failed_rightly(job, row)
            return
        if row is None or row.state is not JobState.SUCCEEDED:
            state = "forgotten" if row is None else f"{row.state} ({row.exit})"
            world.broken(f"job {job.id} did all of its steps and is {state}")
        if job.steps != job.sim.steps:
            world.broken(f"job {job.id} ended after {job.steps} of {job.sim.steps} steps")

    def _failed_rightly(self, job: JobTruth, row: Job) -> None:
        """Ended badly more often than it may, or had all of its time."""
        world, spec = self._world, row.spec
        if job.busy:
            world.broken(f"job {job.id} has failed and still trains")
        assert row.exit is not None
        if row.exit.why != TIME_LIMIT:
            if job.kills <= spec.retry_max:
                world.broken(
                    f"job {job.id} has failed ({row.exit}), having ended badly {job.kills} times; {spec.retry_max} are allowed"
                )
        elif not spec.max_duration_s:
            world.broken(f"job {job.id} was ended as it had run for too long, and may run for ever")
        elif (ran_s := self._ran_s(job)) is not None and ran_s < spec.max_duration_s - self._unsure_s(job):
            world.broken(
                f"job {job.id} was ended after {ran_s:.1f} s; it may run for {spec.max_duration_s:g} s"
            )

    def _ended_in_time(self, job: JobTruth) -> None:
        most_s, ran_s = job.spec.max_duration_s, self._ran_s(job)
        if most_s and ran_s is not None and ran_s > most_s + self._unsure_s(job):
            self._world.broken(f"job {job.id} ran for {ran_s:.1f} s; it may for {most_s:g} s")

    def _ran_s(self, job: JobTruth) -> float | None:
        """None: how long it ran does not follow from what it had of GPUs, as it had more of them at times, or less."""
        assert job.id is not None
        forked = any(copy >= 0 for homes in job.homes.values() for copy in homes)
        if job.sim.elastic is not None or forked or any(self._world.truth.mates_of(job.id)):
            return None
        return sum(job.gpu_s.values()) / job.sim.gang

    def _charged_right(self, job: JobTruth) -> None:
        """The ledger against what was really used, within what an interval or an outage can hide."""
        world = self._world
        assert job.id is not None
        row = world.controller.machine.find(job.id)
        assert row is not None
        really = sum(job.gpu_s.values())
        gang = job.sim.elastic.gpus_max if job.sim.elastic is not None else job.sim.gang
        unsure_s = self._unsure_s(job)
        if abs(row.gpu_s - really) > 0.02 * really + gang * unsure_s:
            world.broken(
                f"job {job.id} received {really:.1f} GPU-seconds and was charged {row.gpu_s:.1f}; "
                f"{gang * unsure_s:.1f} may be unsure"
            )

    def _unsure_s(self, job: JobTruth) -> float:
        """Seconds that it may have had its GPUs for without being charged, or the other way round."""
        assert job.id is not None
        unsure_s = self._world.trouble.lasted_s() + self._starting_s(job) + job.averaging_s
        # Who comes up in its turn beside it is charged its half of the GPU, which nobody has by then.
        return unsure_s + sum(self._starting_s(mate) for mate in self._world.truth.mates_of(job.id)) / 2

    def _starting_s(self, job: JobTruth) -> float:
        """All of its starts together, and what is heard of each later than it was."""
        start_s = self._world.costs.begin_s(job.sim)
        if job.sim.nodes > 1 and job.sim.gpu_memory_bytes:
            start_s += 2 * self._world.experiment.quantum_s  # a part of it waits for memory
        return job.launches * (SLACK_S + start_s)

    def _blamed_right(self, job: JobTruth) -> None:
        """What a server, a link or an agent does is not counted as a failure of the job."""
        world = self._world
        assert job.id is not None
        row = world.controller.machine.find(job.id)
        assert row is not None
        if row.retries > job.kills:
            world.broken(
                f"job {job.id} was taken to have failed {row.retries} times, and did {job.kills} times"
            )


def _suits(row: Job, model: str) -> bool:
    return not row.spec.gpu_types or model in row.spec.gpu_types


def _idle_gpus(agent: Agent) -> list[GpuId]:
    taken = {
        gpu
        for part in agent.parts.values()
        if part.occupied_s is not None or part.way in (Way.COMING, Way.UP)
        for gpu in part.gpus
    }
    return [gpu.id for gpu in agent.gpus if gpu.healthy and gpu.id not in taken]


def _waiting(agent: Agent, idle: int) -> Iterator[Part]:
    """Those that stand beside idle GPUs that they would fit, and could have: they can be moved there, or those on their own GPUs can."""
    healthy = {gpu.id for gpu in agent.gpus if gpu.healthy}
    if not agent.up or not agent.link.connected or idle == 0:
        return
    for part in agent.parts.values():
        stands = part.way is Way.STANDING and part.gang.nodes == 1 and not part.gang.portion_done
        if stands and len(part.gpus) <= idle and (_movable(part) or _has_room(agent, part, healthy)):
            yield part


def _has_room(agent: Agent, part: Part, healthy: Collection[GpuId]) -> bool:
    others = [other for other in agent.parts.values() if other is not part and other.occupied_s is not None]
    holders = [other for other in others if not set(other.gpus).isdisjoint(part.gpus)]
    return set(part.gpus).issubset(healthy) and all(_movable(holder) for holder in holders)


def _movable(part: Part) -> bool:
    return part.gang.world.can_checkpoint(part.gang.job)

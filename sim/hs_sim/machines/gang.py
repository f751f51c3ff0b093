"""A modelled incarnation of a job: one process per node, which all move together or stand.

A stop is told apart from training to the moment: what was begun of a step is kept by who keeps its process, and done again by who goes on
from a checkpoint, so that no step is counted twice and none is lost.
"""

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING

from hs_core.cluster.abroad import MOST_STARTS
from hs_core.events.host import (
    CheckpointFailed,
    CheckpointWeighed,
    JobCheckpointed,
    JobFroze,
    JobHeld,
    JobHooked,
    JobProgressed,
    JobReady,
    JobRestored,
    JobWentOn,
)
from hs_core.model import OnPartition
from hs_core.reports import Exit, Tier
from hs_core.wanted import WantedJob
from hs_sim.machines.beginning import agreed
from hs_sim.machines.gang_memory import GangMemory
from hs_sim.machines.holding import Holding
from hs_sim.machines.part import Part, Way
from hs_sim.machines.progress import Progress
from hs_sim.machines.truth import JobTruth, Saved

if TYPE_CHECKING:
    from hs_sim.machines.world import World

CHECKPOINTED = Exit(code=75)
NO_MEMORY = Exit(code=1)
NO_LIBRARY = Exit(code=2)
HOOK_PART = 0.3  # of the start, until the runtime is loaded
IMPORTED_PART = 0.6  # until the script has imported what it needs
DIE_S = 0.2
LEAVE_S = 0.02  # from being told to
UNTOLD_S = 10.0
COLLECTIVE_S = 5.0  # until the others notice that a part is gone


class Gang:
    def __init__(self, world: "World", wanted: WantedJob, job: JobTruth, rate: float) -> None:
        self.world = world
        self.key = (wanted.job, wanted.epoch)
        self.id = (wanted.job, wanted.epoch, wanted.copy)
        self.fences = wanted.spec.on_partition is OnPartition.FENCE
        self.job = job
        self.shape = wanted.form
        self.memory = GangMemory(world, wanted, job)
        self.holding = Holding(world, self.id, job)
        self.let_go_s = inf  # last
        self.nodes = max(1, len(wanted.nodes))
        self.copy = wanted.copy
        self._progress = Progress(wanted.last_step or job.sim.steps, rate)  # to its end, or its portion's
        self.averaged = len(wanted.source.parts) if wanted.source is not None else 0  # of so many copies
        self.parts: dict[int, Part] = {}
        self.generation = -1
        self.torn = ""  # what it was to go on from, in words
        self.restored: int | None = None
        self.judged = True  # where it goes on from
        self.tier: Tier | None = None  # a stop of this kind is under way
        self.saves = False  # at its next step
        self._turn = 0  # grows with every change: timers of before do nothing

    # --- coming up

    def launch(self, part: Part, generation: int, start_s: float) -> None:
        self.parts[part.rank] = part
        clock = self.world.clock
        part.launched_s = clock.now_s
        if not self.world.device_memory.takes(part, clock.now_s):
            clock.after(start_s * HOOK_PART, self._starve, part)
        part.asked = generation
        if self.whole and not self._broken:
            # Else it waits for the others: one that is gone never comes to agree with it, and its node may keep nothing of the job by now.
            self._agree()
            self.world.launched(self)
        # An average is made of all parts, and written.
        times = self.averaged + 1 if self.averaged else 1
        read_s = self._bytes_s() * times if generation >= 0 else 0.0
        self.job.averaging_s += self._bytes_s() * (times - 1)
        clock.after(start_s * HOOK_PART, self._hook, part)
        if part.lacks:
            clock.after(start_s * IMPORTED_PART, self._fail_abroad, part)
        clock.after(start_s + read_s, self._up, part)

    def _agree(self) -> None:
        world, (job, epoch) = self.world, self.key
        begins = agreed(job, self._in_order(), world.clock.now_s)
        self.generation, self.torn, self.restored = begins.generation, begins.torn, begins.step
        self._progress.goes_on_from(begins.step)
        self.judged = False
        within_reach = world.checkpoints.within_reach(job, self.nodes, world.controller.sides)
        world.truth.restored(self.job, epoch, begins.step, within_reach)

    def _read(self) -> None:
        """As late as a script gets to it: what was there when it was launched may be gone by now."""
        for part in self._in_order():
            if self.averaged == 0:
                part.agent.checkpoint_step(self.key[0], self.generation, part.rank)

    def _bytes_s(self) -> float:
        return self.job.sim.state_bytes / self.nodes / self.world.costs.checkpoint_bytes_per_s

    def _hook(self, part: Part) -> None:
        if part.way is not Way.GONE:
            part.hooked = True
            part.agent.say(part, JobHooked)

    def _up(self, part: Part) -> None:
        if part.way is not Way.COMING:
            return
        part.way = Way.UP
        if self.whole and all(p.way is Way.UP for p in self.parts.values()):
            self._read()
            self.world.checkpoints.claim(*self.key)
            for other in self._in_order():
                other.way, other.up_s = Way.STANDING, self.world.clock.now_s
                if self.generation >= 0 or self.torn:
                    other.agent.say(
                        other, JobRestored, step=self.step, generation=self.generation, note=self.torn
                    )
                self.say_ready(other)

    def say_ready(self, part: Part) -> None:
        can = self.world.can_checkpoint(self.job)
        part.agent.say(part, JobReady, step=self.step, can_swap=self.memory.bytes > 0, can_checkpoint=can)

    def _starve_all(self, parts: Sequence[Part]) -> bool:
        """Whether there are any."""
        for part in parts:
            self._starve(part)
        return bool(parts)

    def _starve(self, part: Part) -> None:
        """Out of memory, says its script, and ends: no failure of its own, as it fits into its GPUs alone."""
        if part.way is not Way.GONE:
            part.needs_bytes = self.memory.bytes
            self.end(part, NO_MEMORY)

    def _fail_abroad(self, part: Part) -> None:
        """What it imports is not there."""
        if part.way is Way.GONE:
            return
        self.job.failed_abroad += 1
        if self.job.failed_abroad > MOST_STARTS:
            self.job.kills += 1
        self.end(part, NO_LIBRARY)

    @property
    def whole(self) -> bool:
        return len(self.parts) == self.nodes

    @property
    def _broken(self) -> bool:
        """Some of it is gone: the others end too, and do nothing more."""
        return any(part.way is Way.GONE for part in self.parts.values())

    def _in_order(self) -> list[Part]:
        parts = self.parts
        return [parts[rank] for rank in sorted(parts)] if len(parts) > 1 else list(parts.values())

    # --- training

    @property
    def rate(self) -> float:
        """Steps a second, while it trains."""
        return self._progress.rate

    @property
    def step(self) -> int:
        """Whole steps done now."""
        return self._progress.step(self.world.clock.now_s)

    @property
    def training_s(self) -> float:
        """In all, up to now."""
        return self._progress.training_s(self.world.clock.now_s)

    def _move(self) -> None:
        """Trains from now on, if nothing is in the way."""
        if self._progress.trains or not all(p.way is Way.GOING and not p.frozen for p in self.parts.values()):
            return
        if self.memory.grows(self.step) and self._starve_all(self.memory.grow(self._in_order(), self.step)):
            return
        clock = self.world.clock
        self._progress.begins(clock.now_s)
        # Cut off: what it does counts for nothing.
        left_behind = self.copy >= 0 and self.key[1] < self.job.epoch
        if not self.judged and self.restored is not None and not left_behind:
            self.world.truth.goes_on(self.job, self.restored, clock.now_s)
            self.judged = True
        self.world.truth.trains(self.job, self.id[1:], clock.now_s)
        self.job.failed_abroad = 0
        if self.job.started_s is None:
            self.job.started_s = clock.now_s
        self._turn += 1
        self._foresee()
        for part in self._in_order():
            part.agent.say(part, JobWentOn, step=self.step)
        if self.saves:
            self.checkpoint(self.parts[0])

    def train_at(self, rate: float) -> None:
        """So fast from now on."""
        progress, now_s = self._progress, self.world.clock.now_s
        trains = progress.trains
        progress.stands(now_s)
        progress.rate = rate
        if trains:
            progress.begins(now_s)
            self._turn += 1
            self._foresee()

    def _foresee(self) -> None:
        self.world.clock.after(self._progress.left_s, self._finish, self._turn)
        if self.world.progress_s:
            self.world.clock.after(self.world.progress_s, self._tell_progress, self._turn)

    def _tell_progress(self, turn: int) -> None:
        if turn != self._turn or not self._progress.trains:
            return
        step, rate = self.step, self.world.speeds.told(self)
        noise_scale, noise_samples = self.world.speeds.told_noise(self)
        for part in self._in_order():
            part.agent.say(
                part,
                JobProgressed,
                step=step,
                steps_per_s=rate,
                device_memory_bytes=self.memory.tell() if self.job.untold else 0,
                noise_scale=noise_scale,
                noise_samples=noise_samples,
            )
        self.world.clock.after(self.world.progress_s, self._tell_progress, turn)

    def _stand(self) -> None:
        """Does not train from now on."""
        self._turn += 1
        if not self._progress.trains:
            return
        self._progress.stands(self.world.clock.now_s)
        self.world.truth.stands(self.job, self.id[1:])

    def _finish(self, turn: int) -> None:
        if turn != self._turn:
            return
        self._stand()
        self._progress.goes_on_from(self._progress.last)
        if self.copy >= 0:
            self._wait_for_the_others()
            return
        self.job.steps = self.job.sim.steps
        for part in self._in_order():
            self.end(part, Exit())

    def _wait_for_the_others(self) -> None:
        """It has done its portion."""
        for part in self._in_order():
            part.way = Way.STANDING
            self.holding.ends(part)
            self._say_held(part)

    def _say_held(self, part: Part) -> None:
        part.agent.say(
            part,
            JobHeld,
            step=self.step,
            tier=Tier.SWAP if self.memory.parked else Tier.HOLD,
            parked_bytes=part.parked_bytes if self.memory.parked else 0,
        )

    @property
    def portion_done(self) -> bool:
        return self.copy >= 0 and self.step >= self._progress.last

    # --- orders

    def reachable(self, part: Part) -> bool:
        """Orders and answers of a gang over several servers go through the agent of its node 0."""
        head = self.parts.get(0)
        if self.nodes == 1 or head is None or head is part:
            return True
        up = head.agent.up and part.agent.up  # a node's ranks speak through their own agent
        return up and self.world.network.through(head.agent.name, part.agent.name)

    @property
    def linked(self) -> bool:
        """Node 0's agent has the ranks of all nodes."""
        return all(map(self.reachable, self.parts.values()))

    def resume(self, part: Part) -> None:
        if part.way is Way.GONE:
            return
        if part.frozen:
            part.frozen = False
            if part.way is Way.GOING:
                self.holding.begins(part)
                self.holding.use(self.parts.values())
                self._move()
                return
        if part.way is Way.STANDING and self.portion_done:
            # Whoever lets it go does not know yet. It goes no further and says so again, and computes nothing in between: its host
            # may have given the GPUs to others by then (docs/job-protocol.md, `portion`).
            part.agent.say(part, JobWentOn, step=self.step)
            self._wait_for_the_others()
            return
        if part.way in (Way.STANDING, Way.STOPPING) and not self._broken:
            part.way = Way.GOING
            self.holding.begins(part)
            if all(p.way is Way.GOING for p in self.parts.values()) and self.whole:
                self.let_go_s = self.world.clock.now_s
                self.holding.use(self.parts.values())
                self.tier = None
                self._turn += 1
                seconds = self.world.costs.resume_s
                if self.memory.parked:
                    seconds += self.memory.swap_s
                    self._starve_all(self.memory.come_back(self._in_order()))
                self.world.clock.after(seconds, self._goes, self._turn)

    def _goes(self, turn: int) -> None:
        if turn == self._turn:
            self._move()

    def suspend(self, part: Part, tier: Tier) -> None:
        if part.way is Way.GONE:
            return
        if self._progress.trains:
            self.job.stopped(*self.id[1:])
        if tier is Tier.FREEZE:
            if self.tier is not None:  # all of it is about to stop: before one part is frozen
                self._stopped(self._turn, True)
                if part.gone:
                    return
            self._stand()
            part.frozen = True
            self.holding.ends(part)
            part.agent.say(part, JobFroze)
            return
        if part.way in (Way.COMING, Way.UP) or self._broken:
            return
        standing = all(p.way is Way.STANDING for p in self.parts.values())
        if standing and (tier is Tier.HOLD or (tier is Tier.SWAP and self.memory.parked)):
            self._say_held(part)
            return
        if standing and tier is Tier.SWAP and self.tier is Tier.SWAP:
            return  # another host has asked for it
        self._stand()
        self.tier = tier
        for other in self.parts.values():
            if other.way is Way.GOING:
                other.way = Way.STOPPING
        seconds = 0.0 if standing else self.world.costs.suspend_s
        if tier is Tier.CHECKPOINT:
            seconds += self._bytes_s()
        elif tier is Tier.SWAP:
            seconds += self.memory.swap_s
        self.world.clock.after(seconds, self._stopped, self._turn, not standing)

    def _stopped(self, turn: int, was_moving: bool) -> None:
        if turn != self._turn or self.tier is None or self._broken:
            return
        tier, self.tier = self.tier, None
        if tier is Tier.CHECKPOINT:
            if why := self._cannot_write():
                self._save_failed(was_moving, why)
                return
            self._write()
        elif tier is Tier.SWAP and not self.memory.parked and self.world.can_swap(self.job):
            self.memory.park(self._in_order())
        for part in self._in_order():
            part.way = Way.STANDING
            self.holding.ends(part)
            if tier is Tier.CHECKPOINT:
                self._leave(part)
            else:
                self._say_held(part)

    def _leave(self, part: Part) -> None:
        """Told to, by node 0 and after the word of its checkpoint; ranks that do not hear that leave by themselves."""
        part.agent.say(part, JobHeld, step=self.step, tier=Tier.CHECKPOINT, generation=self.generation)
        self._weighed(part)
        if part.rank == 0:
            self.end(part, CHECKPOINTED)
        elif self.reachable(part):
            self.world.clock.after(LEAVE_S, self.end, part, CHECKPOINTED)
        else:
            self.world.clock.after(UNTOLD_S, self.end, part, CHECKPOINTED)

    def _weighed(self, part: Part) -> None:
        if self.job.sim.state_bytes:
            size = share_of(self.job.sim.state_bytes, self.nodes, part.rank)
            part.agent.say(part, CheckpointWeighed, size_bytes=size)

    def _cannot_write(self) -> str:
        if any(part.agent.disk_full for part in self.parts.values()):
            return "no space left on device"
        return (
            "" if self.world.checkpoints.may_write(*self.key) else "the job has begun anew on another server"
        )

    def _save_failed(self, was_moving: bool, why: str) -> None:
        for part in self._in_order():
            if was_moving and part.way is Way.STOPPING:
                part.way = Way.GOING
            part.agent.say(part, CheckpointFailed, why=why)
        if was_moving:
            self._move()

    def checkpoint(self, part: Part) -> None:
        if part.way is not Way.GOING:
            return
        if not self._progress.trains:
            self.saves = True  # when it trains
            return
        self.saves = False
        self._stand()
        self.world.clock.after(self._bytes_s(), self._saved, self._turn)

    def _saved(self, turn: int) -> None:
        if turn != self._turn:
            return
        if why := self._cannot_write():
            for part in self._in_order():
                part.agent.say(part, CheckpointFailed, why=why)
        else:
            self._write()
            for part in self._in_order():
                part.agent.say(part, JobCheckpointed, step=self.step, generation=self.generation)
                self._weighed(part)
        self._move()

    def _write(self) -> None:
        self.generation = 1 + max(self.generation, self.world.checkpoints.newest_in_folder(self.key[0]))
        self._progress.goes_on_from(self.step)
        for part in self._in_order():
            part.agent.disk.store(
                self.key[0], self.generation, Saved(self.key[1], self.step, part.rank, self.copy)
            )
            # Where a part cannot be reached nothing would be written, so nothing is lost by it here.
            if self.copy < 0 and self.linked:
                part.agent.disk.prune(self.key[0], self.generation)

    # --- going

    def kill(self, part: Part) -> None:
        if part.way is not Way.GONE:
            self.world.clock.after(DIE_S, self.end, part, Exit(signal=15))

    def end(self, part: Part, exit_: Exit, *, silently: bool = False) -> None:
        """Its last process is gone."""
        if part.way is Way.GONE:
            return
        self._stand()
        self.holding.ends(part)
        self.world.device_memory.leaves(part)
        part.way = Way.GONE
        part.exit, part.in_touch = exit_, self.nodes > 1 and self.linked
        ended_well = exit_.ok or exit_ == CHECKPOINTED
        if not silently:
            part.agent.ended(part)
        if self.job.steps < self.job.sim.steps and not ended_well:
            lost = self.step - max(self.restored or 0, self.job.acknowledged, 0)
            if part.rank == 0 and lost > 0 and self.rate > 0:
                self.job.lost_gpu_s += lost / self.rate * sum(len(part.gpus) for part in self.parts.values())
        if not ended_well:
            for other in self.parts.values():
                if other.way is not Way.GONE:
                    self.world.clock.after(COLLECTIVE_S, self.end, other, Exit(code=1))
        if all(p.way is Way.GONE for p in self.parts.values()) and self.whole:
            self.world.gang_gone(self, exit_)

    def say_again(self, part: Part) -> None:
        """The ranks dial the new agent and say how they stand."""
        if part.frozen:
            part.agent.say(part, JobFroze)
        if part.hooked:
            part.agent.say(part, JobHooked)
        if part.way is Way.STANDING and self.memory.parked:
            self._say_held(part)
        elif part.way is Way.STANDING:
            self.say_ready(part)
        elif part.way in (Way.GOING, Way.STOPPING):
            # One that waits for another that is gone, in the middle of a step, is at no edge.
            if self._progress.trains or self.tier is not None or self._broken:
                part.agent.say(part, JobWentOn, step=self.step)
            else:
                self.say_ready(part)


def share_of(state_bytes: int, nodes: int, rank: int) -> int:
    """What one node has of a checkpoint: together they have all of it, to the byte."""
    return state_bytes // nodes + (rank < state_bytes % nodes)

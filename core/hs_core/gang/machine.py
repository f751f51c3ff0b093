"""The ranks of one job as one: messages of its processes in, host events out, orders turned into messages per rank.

All ranks stop at one step (docs/job-protocol.md): a stop is proposed some steps ahead, agreed by every rank, then committed.
Gandiva_fair suspends each process by itself; ranks of a data-parallel job would then wait for one another inside
a collective, so they agree first.

*Several nodes.* One machine, at node 0's agent, has the ranks of all nodes: `GangMachine(job, epoch, nodes=N)`. How it is driven:

- Whatever a rank says goes to `heard`, wherever the rank is; connections are opaque hashables, say (node rank, number), and never used
  again for another. `Step.tell` names the connections to write to.
- `Step.events` are of the whole gang and go to the HostMachine of every node, each with that host's clock in `now_s`. On the way to
  another node they go before the `tell` of the same step: a process that is told to leave must not be seen to exit before the word of its checkpoint.
- Every node's hook orders go to `order(…, node=its rank)`: a Suspend of any node stops all, at the heaviest tier that any of them asks for;
  they go on when Resume is the last word of every node. The freezer is each node's own affair: Suspend with tier FREEZE never comes here.
- `for_node` says of an event which of a node's orders it answers, before it goes there.
- A node whose link ended: `gone` for each of its connections. It goes on as it is; nobody can be stopped until it is back. Then its
  agent lets its ranks dial anew (closing their sockets suffices), so that they say hello as they stand, and repeats its last order.
  What it has accepted of a stop that all leave with binds it meanwhile: two-phase commit, with node 0 as coordinator.
"""

from dataclasses import dataclass, replace
from types import MappingProxyType

from hs_core.events.host import (
    Checkpoint,
    CheckpointFailed,
    HostEvent,
    JobHeld,
    JobHooked,
    JobProgressed,
    JobReady,
    JobRestored,
    JobWentOn,
    Resume,
    Suspend,
    SuspendFailed,
)
from hs_core.gang.bound import Bound
from hs_core.gang.crew import Process, Rank, Standing, Told
from hs_core.gang.messages import HOOK_TIERS, Connection, MalformedError, Message
from hs_core.gang.said import (
    MAX_TEXT,
    Able,
    Accepted,
    Arrived,
    Blocked,
    Failed,
    Going,
    Held,
    Hello,
    Progress,
    Rejected,
    Restored,
    Said,
    Saved,
    read,
)
from hs_core.gang.stops import Order, Stops
from hs_core.names import JobId
from hs_core.reports import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What to send to which connection, in this order, and what happened to the job."""

    tell: tuple[tuple[Connection, Message], ...] = ()
    events: tuple[HostEvent, ...] = ()


class GangMachine(Stops):
    """Pure; one per (job, epoch) and life of the agent. A new one learns all from the ranks' hellos."""

    def __init__(
        self,
        job: JobId,
        epoch: int,
        *,
        nodes: int = 1,
        pace_s: float = 0.0,
        progress_s: float = 1.0,
        margin: int = 1,
        last_step: int = 0,
    ) -> None:
        """`last_step`: where they stop of their own accord, 0: nowhere."""
        assert nodes >= 1, f"nodes {nodes} of job {job}: expected 1 or more"
        assert pace_s >= 0, f"pace_s {pace_s} of job {job}: expected 0 or more"
        assert progress_s > 0, f"progress_s {progress_s} of job {job}: expected more than 0"
        assert margin >= 1, f"margin {margin} of job {job}: expected 1 or more"
        super().__init__(job, epoch, nodes, margin=margin, last_step=last_step)
        self.malformed = 0  # messages ignored because they made no sense
        self._welcome: Message = MappingProxyType(
            {"type": "welcome", "pace_s": pace_s, "progress_s": progress_s}
        )
        self._orders: dict[int, int] = {}  # number of every node's newest
        self._hooked = False
        self._restored: dict[int, Restored] = {}  # by rank
        self._progress: Progress | None = None  # of the first rank, whose rate is the job's

    # --- what comes in ---------------------------------------------------------------------------------------------

    def order(self, order: Order, now_s: float, *, node: int = 0) -> Step:
        assert (order.job, order.epoch) == (self.job, self.epoch), (
            f"order {order} for job {self.job} epoch {self.epoch}"
        )
        assert 0 <= node < self.nodes, f"node {node} of job {self.job}: expected 0 to {self.nodes - 1}"
        self._crew.now_s = now_s
        if not isinstance(order, Checkpoint):
            self._orders[node] = order.order
        if self._crew.told is Told.LEAVING:
            return self._step()  # nobody is left to obey
        match order:
            case Suspend():
                assert order.tier in HOOK_TIERS, (
                    f"tier {order.tier} of job {self.job} is not done by the job itself"
                )
                self._turns.discard(node)
                self._suspend(order)
            case Resume():
                self._turns.add(node)
                if self._in_turn:
                    self._resume(order)
            case Checkpoint():
                self._save(order)
        return self._step()

    def heard(self, connection: Connection, message: Message, now_s: float) -> Step:
        """Unknown kinds are ignored; what makes no sense is ignored and counted."""
        self._crew.now_s = now_s
        try:
            self._hear(connection, read(message))
        except MalformedError:
            self.malformed += 1
        return self._step()

    def for_node(self, event: HostEvent, node: int) -> HostEvent:
        """An answer names the newest order that was heard of the host that it goes to: later ones it does not answer. Of what was moved to
        host memory it says what lies on that host."""
        if not isinstance(event, JobReady | JobHeld | SuspendFailed):
            return event
        order = self._orders.get(node, -1)
        if isinstance(event, JobHeld) and event.parked_bytes:
            return replace(event, order=order, parked_bytes=self._crew.parked_bytes(node, self.nodes))
        return replace(event, order=order)

    def gone(self, connection: Connection, now_s: float) -> Step:
        self._crew.now_s = now_s
        self._crew.processes.pop(connection, None)
        self._crew.siblings.pop(connection, None)
        rank = self._crew.rank_of(connection)
        if rank is not None:
            self._lost(rank)
        return self._step()

    def check(self) -> None:
        """Every invariant, in one place."""
        ranks = self._crew.ranks
        links = [rank.connection for rank in ranks.values() if rank.connection is not None]
        assert len(links) == len(set(links)), f"one connection is two ranks: {ranks}"
        assert all(0 <= number < self._crew.world for number in ranks), (
            f"ranks {set(ranks)} of {self._crew.world}"
        )
        assert not set(links) & set(self._crew.siblings), f"a rank is its own sibling: {ranks}"
        assert all(0 <= node < self.nodes for node in self._turns), f"turns of nodes {self._turns}"
        if self._agreement is not None:
            self._agreement.check(self._crew)

    def _step(self) -> Step:
        crew = self._crew
        step = Step(tell=tuple(crew.tell), events=tuple(crew.events))
        crew.tell, crew.events = [], []
        return step

    # --- what ranks say --------------------------------------------------------------------------------------------

    def _hear(self, connection: Connection, word: Said | None) -> None:
        match word:
            case Hello():
                self._heard_hello(connection, word)
            case Arrived():
                self._heard_arrived(connection, word)
            case Able():
                self._heard_able(connection, word)
            case Blocked():
                self._heard_blocked(connection, word)
            case Accepted():
                self._heard_accepted(connection, word)
            case Rejected():
                self._heard_rejected(connection, word)
            case Held():
                self._heard_held(connection, word)
            case Saved():
                self._heard_saved(connection, word)
            case Failed():
                self._heard_failed(connection, word)
            case Going():
                self._heard_going(connection, word)
            case Progress():
                self._heard_progress(connection, word)
            case Restored():
                self._heard_restored(connection, word)

    def _heard_hello(self, connection: Connection, word: Hello) -> None:
        crew = self._crew
        process = Process(
            pid=word.pid,
            place=word.place,
            can=word.can,
            generation=word.generation,
            bound=word.bound if self.nodes > 1 else None,
        )
        self._last_id = max(self._last_id, word.id)
        self._generation = max(self._generation, process.generation)
        crew.processes[connection] = process
        crew.tell.append((connection, self._welcome))
        if not self._hooked or (self.nodes > 1 and not crew.whole):  # a node may come after it was first said
            self._hooked = True
            crew.events.append(JobHooked(**crew.at))
        if word.state != "new":
            standing = Standing.HELD if word.state == "held" else Standing.RUNNING
            self._admit(connection, process, standing, word.step, word.tier)

    def _heard_arrived(self, connection: Connection, word: Arrived) -> None:
        process = self._crew.process(connection)
        process.place = word.place or process.place
        process.can = word.can
        known = self._crew.rank_of(connection)
        if known is None or known.standing is Standing.WAITING:
            self._admit(connection, process, Standing.WAITING, word.step, Tier.HOLD)

    def _admit(
        self, connection: Connection, process: Process, standing: Standing, step: int, tier: Tier
    ) -> None:
        crew, number, world = self._crew, process.place.rank, process.place.world
        own = crew.rank_of(connection)
        known = crew.ranks.get(number)
        if own is not None and own is not known:
            raise MalformedError  # a rank does not change its number
        if (
            known is not None
            and known.connection is not None
            and known.connection != connection
            and known.pid != process.pid
        ):
            crew.joins(
                connection,
                Rank(connection=connection, pid=process.pid, standing=standing, step=step, can=process.can),
            )
            return
        if world != crew.world:
            crew.ranks = {n: r for n, r in crew.ranks.items() if n < world}
            crew.world = world
        anew = known is not None and known.connection != connection
        agreed, bound = self._agreement, process.bound
        if agreed is not None and anew and tier is not Tier.CHECKPOINT and not agreed.binds(bound):
            self._fail(f"rank {number} connected anew while all were to stop")
            crew.world = world  # where it was the only one, nobody was left for a moment
        crew.ranks[number] = Rank(
            connection=connection,
            pid=process.pid,
            standing=standing,
            step=step,
            can=process.can,
            tier=tier,
            generation=process.generation,
            bound=bound,
        )
        if bound is not None and agreed is not None and agreed.binds(bound):
            if tier is Tier.CHECKPOINT:
                self._did(number)  # the word of it is lost
            elif not bound.committed:
                self._commit(crew.ranks[number], bound)
        if not self._all_leave() and self._agreement is None:
            self._decide_bound()
            self._settle()
        self._let_come()
        self._ready_in_part()

    def _heard_able(self, connection: Connection, word: Able) -> None:
        process, rank = self._crew.processes.get(connection), self._crew.rank_of(connection)
        if process is not None:
            process.can = word.can
        if rank is None:
            rank = self._crew.siblings.get(connection)
        if rank is not None:
            rank.can = word.can
            self._crew.say_capable()

    def _heard_blocked(self, connection: Connection, word: Blocked) -> None:
        crew, process = self._crew, self._crew.process(connection)
        if crew.rank_of(connection) is not None or connection in crew.siblings:
            raise MalformedError  # it has arrived
        process.place, process.blocked = word.place, word.on
        self._ready_in_part()

    def _heard_accepted(self, connection: Connection, word: Accepted) -> None:
        number, rank = self._crew.ranked(connection)
        rank.step = max(rank.step, word.step)
        agreed = self._agreement
        if agreed is None or agreed.id != word.id:
            self._crew.send(connection, type="drop", id=word.id)
        elif word.at_step == agreed.at_step and not agreed.committed:
            agreed.accept(self._crew, number)

    def _heard_rejected(self, connection: Connection, word: Rejected) -> None:
        _, rank = self._crew.ranked(connection)
        rank.step = max(rank.step, word.step)
        agreed = self._agreement
        if agreed is None or agreed.id != word.id or agreed.committed:
            return
        # A reject of a lower proposal that was raised meanwhile is no longer news.
        if word.at_step == agreed.at_step:
            agreed.propose_later(self._crew, word.step)

    def _heard_held(self, connection: Connection, word: Held) -> None:
        number, rank = self._crew.ranked(connection)
        rank.parked_bytes = word.parked_bytes
        rank.step, rank.tier, rank.standing = word.step, word.tier, Standing.HELD
        rank.done = word.portion
        rank.bound = None
        agreed = self._agreement
        if word.tier is Tier.CHECKPOINT:
            rank.generation = word.generation
            if self.nodes > 1 and agreed is None:
                rank.bound = Bound(id=word.id, at_step=word.step, generation=word.generation, committed=True)
            if rank.generation in self._failed:  # its word and ours crossed
                self._crew.drop(word.id, [rank])
                if agreed is not None and not agreed.committed:
                    agreed.propose(self._crew)
                    return
        if agreed is not None and agreed.committed and agreed.id == word.id:
            self._did(number)
        elif rank.leaves:
            if not self._all_leave() and agreed is None:
                self._decide_bound()
                self._settle()
        elif agreed is None:
            self._settle()  # a stop that an agent before us had ordered
        elif not agreed.committed and rank.done:
            agreed.propose_at(self._crew, word.step)  # where all of them stop by themselves
        elif not agreed.committed and not agreed.was_stopped:
            # Likewise, while we ask for another: it can't answer that, so it goes on and all are asked anew.
            if not rank.going:
                self._crew.let_go([rank])
            agreed.propose_later(self._crew, word.step)

    def _heard_saved(self, connection: Connection, word: Saved) -> None:
        number, rank = self._crew.ranked(connection)
        rank.step = max(rank.step, word.step)
        agreed = self._agreement
        if agreed is not None and agreed.committed and agreed.id == word.id:
            self._did(number)

    def _heard_failed(self, connection: Connection, word: Failed) -> None:
        self._crew.ranked(connection)
        if word.what == "swap":
            return  # it says `held` with the tier it could do
        agreed, crew = self._agreement, self._crew
        if agreed is not None and agreed.id == word.id:
            self._fail(word.why)
            self._take_next()
            return
        crew.events.append(CheckpointFailed(**crew.at, why=word.why))
        crew.send_all(type="drop", id=word.id)
        crew.drop(
            word.id,
            [each for each in crew.ranks.values() if each.bound is not None and each.bound.id == word.id],
        )
        if agreed is None:
            self._settle()
        elif not agreed.committed:
            agreed.propose(crew)  # it has not answered

    def _heard_going(self, connection: Connection, word: Going) -> None:
        sibling = self._crew.siblings.get(connection)
        rank = self._crew.rank_of(connection) if sibling is None else sibling
        if rank is None:
            return  # a process that never counted
        rank.step = word.step
        rank.standing, rank.going, rank.done = Standing.RUNNING, max(0, rank.going - 1), False
        rank.bound = None
        if self._agreement is None and sibling is None:
            self._settle()

    def _heard_progress(self, connection: Connection, word: Progress) -> None:
        crew = self._crew
        sibling = crew.siblings.get(connection)
        if sibling is not None:
            sibling.step = max(sibling.step, word.step)
            return
        number, rank = crew.ranked(connection)
        rank.device_bytes = max(rank.device_bytes, word.device_bytes)
        before, rank.step = crew.step, max(rank.step, word.step)
        first = number == 0 and word.seconds > 0
        if first:
            self._progress = word
        said = self._progress
        if first or crew.step > before:
            crew.events.append(
                JobProgressed(
                    **crew.at,
                    step=crew.step,
                    steps_per_s=said.steps / said.seconds if said is not None else 0.0,
                    device_memory_bytes=max(each.device_bytes for each in crew.ranks.values()),
                    noise_scale=said.noise_scale if said is not None else 0.0,
                    noise_samples=said.noise_samples if said is not None else 0,
                )
            )

    def _heard_restored(self, connection: Connection, word: Restored) -> None:
        crew = self._crew
        process = crew.process(connection)
        place = word.place or process.place
        self._restored[place.rank] = word
        if len(self._restored) >= place.world:
            least = min(self._restored.values(), key=lambda each: (each.step, each.generation))
            notes = "; ".join(sorted({each.note for each in self._restored.values() if each.note}))[:MAX_TEXT]
            self._restored.clear()
            crew.events.append(
                JobRestored(**crew.at, step=least.step, generation=least.generation, note=notes)
            )

    # --- the whole job ---------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """With nothing under way and everyone there: say how the job stands, and mend what stands half."""
        assert self._agreement is None
        crew, ranks = self._crew, self._crew.ranks.values()
        if not crew.whole or crew.is_bound or any(rank.going or rank.leaves for rank in ranks):
            return
        if crew.told is not Told.NOTHING or any(rank.standing is not Standing.WAITING for rank in ranks):
            crew.say_capable()
        stopped = [rank for rank in ranks if rank.stopped]
        if not stopped:
            if crew.told is not Told.RUNNING:
                crew.told = Told.RUNNING
                crew.events.append(JobWentOn(**crew.at, step=crew.step))
        elif len(stopped) < len(ranks) and all(rank.done for rank in stopped):
            pass  # the others get there as well
        elif len(stopped) < len(ranks):
            # An agent before us left off in the middle: whole or not at all.
            crew.let_go(stopped)
        elif all(rank.standing is Standing.WAITING for rank in ranks):
            if crew.told is not Told.READY:
                crew.say_ready()
            if self._in_turn and self._next is None:
                crew.let_go(ranks)  # a new process of a job that is in its turn
        else:
            crew.say_held()
        if self._agreement is None:
            self._take_next()

    def _ready_in_part(self) -> None:
        """They wait for one another: for the host that is as if all had come."""
        crew = self._crew
        waits = self._agreement is None and self._next is None and not crew.is_bound
        if waits and crew.told is not Told.READY and crew.stands_in_part:
            crew.say_ready_in_part()

    def _lost(self, rank: Rank) -> None:
        crew, agreed = self._crew, self._agreement
        number = crew.number_of(rank)
        if agreed is not None and agreed.leaves and number in agreed.done:
            rank.connection = None  # durable and gone ahead: it still counts for this stop
            return
        if agreed is not None and agreed.leaves and agreed.committed and self.nodes > 1:
            # Its agent is away, most likely, and it writes its part all the same: who has written theirs could not go on without it.
            rank.connection = None
            return
        crew.remove(number)
        if agreed is not None:
            self._fail(f"rank {number} left before all had stopped")
        elif crew.ranks:
            self._settle()

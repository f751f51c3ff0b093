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
from typing import Literal

from hs_core.events import (
    Checkpoint,
    CheckpointFailed,
    HostEvent,
    JobCheckpointed,
    JobHeld,
    JobHooked,
    JobProgressed,
    JobRestored,
    JobWentOn,
    Resume,
    Suspend,
    SuspendFailed,
)
from hs_core.gang import bound
from hs_core.gang.agreement import Agreement
from hs_core.gang.bound import Bound
from hs_core.gang.crew import Crew, Process, Rank, Standing, Told
from hs_core.gang.messages import (
    HOOK_TIERS,
    PROTOCOL,
    Connection,
    MalformedError,
    Message,
    abilities,
    amount,
    place,
    tier_of,
    whole_number,
)
from hs_core.names import JobId
from hs_core.reports import Tier

Order = Suspend | Resume | Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What to send to which connection, in this order, and what happened to the job."""

    tell: tuple[tuple[Connection, Message], ...] = ()
    events: tuple[HostEvent, ...] = ()


class GangMachine:
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
        reserve: bool = False,
        last_step: int = 0,
    ) -> None:
        """`reserve` lets the ranks set aside host memory for a swap before the first one is asked for; `last_step`: where they stop of their own accord, 0: nowhere."""
        assert nodes >= 1, f"nodes {nodes} of job {job}: expected 1 or more"
        assert pace_s >= 0, f"pace_s {pace_s} of job {job}: expected 0 or more"
        assert progress_s > 0, f"progress_s {progress_s} of job {job}: expected more than 0"
        assert margin >= 1, f"margin {margin} of job {job}: expected 1 or more"
        self.job = job
        self.epoch = epoch
        self.nodes = nodes
        self.malformed = 0  # messages ignored because they made no sense
        self._welcome: Message = MappingProxyType(
            {"type": "welcome", "pace_s": pace_s, "progress_s": progress_s, "reserve": reserve}
        )
        self._margin = margin
        self._last_step = last_step
        self._crew = Crew(job=job, epoch=epoch)
        self._agreement: Agreement | None = None
        self._next: Order | None = None  # to be taken up when what is under way has ended
        self._turns: set[int] = set()  # nodes whose last word was Resume
        self._orders: dict[int, int] = {}  # number of every node's newest
        self._hooked = False
        self._restored: dict[int, tuple[int, int, str]] = {}
        self._last_id = 0
        self._generation = -1  # highest one known to be used, whatever came of it
        self._whole = -1  # newest one that all have written
        self._failed: set[int] = set()  # those of ours that some have written, perhaps, and not all will

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
            self._hear(connection, message)
        except MalformedError:
            self.malformed += 1
        return self._step()

    def for_node(self, event: HostEvent, node: int) -> HostEvent:
        """An answer names the newest order that was heard of the host that it goes to: later ones it does not answer."""
        if isinstance(event, JobHeld | SuspendFailed):
            return replace(event, order=self._orders.get(node, -1))
        return event

    def gone(self, connection: Connection, now_s: float) -> Step:
        self._crew.now_s = now_s
        self._crew.processes.pop(connection, None)
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
        assert all(0 <= node < self.nodes for node in self._turns), f"turns of nodes {self._turns}"
        if self._agreement is not None:
            self._agreement.check(self._crew)

    def _step(self) -> Step:
        crew = self._crew
        step = Step(tell=tuple(crew.tell), events=tuple(crew.events))
        crew.tell, crew.events = [], []
        return step

    # --- orders ----------------------------------------------------------------------------------------------------

    @property
    def _in_turn(self) -> bool:
        """Resume was the last word of every node."""
        return len(self._turns) == self.nodes

    def _take_next(self) -> None:
        order, self._next = self._next, None
        match order:
            case Suspend():
                self._suspend(order)
            case Resume():
                self._resume(order)
            case Checkpoint():
                self._save(order)

    def _suspend(self, order: Suspend) -> None:
        agreed, crew = self._agreement, self._crew
        if agreed is not None or not crew.whole or crew.is_bound:
            same = agreed is not None and agreed.kind == "stop" and agreed.tier is order.tier
            if not self._outweighed(order):
                self._next = None if same else order
        elif order.tier is Tier.HOLD and crew.stands:
            crew.told = Told.NOTHING
            crew.say_held()
        else:
            self._next = None
            self._propose("stop", order.tier)

    def _outweighed(self, order: Suspend) -> bool:
        """Another node waits for a heavier stop: that serves both."""
        waiting = self._next
        return (
            self.nodes > 1
            and isinstance(waiting, Suspend)
            and HOOK_TIERS.index(waiting.tier) >= HOOK_TIERS.index(order.tier)
        )

    def _resume(self, order: Resume) -> None:
        agreed = self._agreement
        if (
            not self._crew.whole
            or self._crew.is_bound
            or (agreed is not None and not agreed.can_take_back(self._crew.world))
        ):
            self._next = order
            return
        self._next = None
        self._agreement = None
        self._crew.let_go(self._crew.ranks.values())

    def _save(self, order: Checkpoint) -> None:
        if self._agreement is None and self._crew.whole and not self._crew.is_bound:
            self._propose("save", Tier.CHECKPOINT)
        elif self._next is None and (self._agreement is None or self._agreement.kind != "save"):
            self._next = order

    # --- the agreement ---------------------------------------------------------------------------------------------

    def _propose(self, kind: Literal["stop", "save"], tier: Tier) -> None:
        crew = self._crew
        assert crew.whole, f"job {self.job} has {len(crew.ranks)} of {crew.world} ranks"
        self._last_id += 1
        if tier is Tier.CHECKPOINT:
            self._generation += 1
        # A rank alone stops wherever it is next able to; one that stands still is there already.
        ahead = 0 if crew.stands or crew.world == 1 else self._margin
        self._agreement = Agreement(
            id=self._last_id,
            kind=kind,
            tier=tier,
            generation=self._generation if tier is Tier.CHECKPOINT else -1,
            at_step=crew.newest_step + ahead,
            margin=self._margin,
            was_stopped=crew.stands,
            whole=self._whole,
            last_step=self._last_step,
        )
        if not crew.stands:  # whoever stands alone (its `go` is lost) would never get to that step
            crew.let_go(r for r in crew.ranks.values() if r.stopped and not r.going and not r.done)
        self._agreement.propose(crew)

    def _fail(self, why: str) -> None:
        """What was under way will not be; ranks that stood still stay so, the others go on."""
        agreed, crew = self._agreement, self._crew
        assert agreed is not None
        self._agreement = None
        if agreed.tier is Tier.CHECKPOINT:
            self._failed.add(agreed.generation)
            crew.events.append(CheckpointFailed(**crew.at, why=why))
        if agreed.kind == "stop":
            crew.events.append(SuspendFailed(**crew.at, why=why))
            if not agreed.was_stopped:
                self._turns = set(range(self.nodes))
        for number in [number for number, rank in crew.ranks.items() if rank.connection is None]:
            crew.remove(number)  # told when it is here again
        crew.drop(agreed.id, crew.ranks.values())
        if not agreed.was_stopped:
            crew.let_go(r for r in crew.ranks.values() if r.stopped)
        elif self.nodes > 1 and crew.whole and crew.told is Told.NOTHING:
            crew.say_held()  # other nodes had asked for no more than that

    def _finish(self) -> None:
        agreed, crew = self._agreement, self._crew
        assert agreed is not None
        self._agreement = None
        step = min((rank.step for rank in crew.ranks.values()), default=agreed.at_step)
        if agreed.kind == "stop" and agreed.tier is Tier.CHECKPOINT:
            self._leave(step, agreed.generation)
            return
        if agreed.tier is Tier.CHECKPOINT:
            self._whole = agreed.generation
            crew.events.append(JobCheckpointed(**crew.at, step=step, generation=agreed.generation))
        if agreed.kind == "stop":
            crew.told = Told.NOTHING
            if self.nodes == 1 or not isinstance(self._next, Suspend):
                crew.say_held()  # else another node waits for a heavier tier: one word for all, when that is reached
        self._take_next()

    def _leave(self, step: int, generation: int) -> None:
        """Their state is on disk: they exit when all of them have said so, none before."""
        crew = self._crew
        self._next = None
        crew.told = Told.LEAVING
        crew.events.append(JobCheckpointed(**crew.at, step=step, generation=generation))
        crew.events.append(JobHeld(**crew.at, step=step, tier=Tier.CHECKPOINT, generation=generation))
        ranks = {rank.connection for rank in crew.ranks.values()}
        # A launcher before its ranks: it would report them as failed.
        for connection in sorted(crew.processes, key=lambda each: each in ranks):
            crew.send(connection, type="leave")

    def _all_leave(self) -> bool:
        """With the checkpoint that an agent before us had ordered: nothing that is asked of them now will be."""
        crew = self._crew
        ranks = list(crew.ranks.values())
        if not crew.whole or not all(rank.leaves for rank in ranks):
            return False
        if crew.told is not Told.LEAVING and len({rank.generation for rank in ranks}) == 1:
            self._agreement = None
            self._leave(crew.step, ranks[0].generation)
        return True

    def _decide_bound(self) -> None:
        """Once all are here: of what an agent, or a link, left open."""
        crew = self._crew
        if self._agreement is not None or not crew.whole:
            return
        open_ = {number: rank.bound for number, rank in crew.ranks.items() if rank.bound is not None}
        outcome = bound.decide(open_, crew.world, self._failed)
        for number in outcome.commit:
            self._commit(crew.ranks[number], open_[number])
        for number in outcome.drop:
            crew.drop(open_[number].id, [crew.ranks[number]])

    def _commit(self, rank: Rank, word: Bound) -> None:
        """It has not heard that all have accepted."""
        self._crew.send(rank.connection, type="commit", id=word.id, at_step=word.at_step)
        rank.bound = replace(word, committed=True)

    # --- what ranks say --------------------------------------------------------------------------------------------

    def _hear(self, connection: Connection, message: Message) -> None:
        match message.get("type"):
            case "hello":
                self._heard_hello(connection, message)
            case "arrived":
                self._heard_arrived(connection, message)
            case "can":
                self._heard_can(connection, message)
            case "accept":
                self._heard_accept(connection, message)
            case "reject":
                self._heard_reject(connection, message)
            case "held":
                self._heard_held(connection, message)
            case "saved":
                self._heard_saved(connection, message)
            case "failed":
                self._heard_failed(connection, message)
            case "going":
                self._heard_going(connection, message)
            case "progress":
                self._heard_progress(connection, message)
            case "restored":
                self._heard_restored(connection, message)
            case _:
                pass

    def _heard_hello(self, connection: Connection, message: Message) -> None:
        if whole_number(message, "protocol") != PROTOCOL:
            raise MalformedError
        state = message.get("state")
        if state not in {"new", "running", "held"}:
            raise MalformedError
        rank, world = place(message)
        step = whole_number(message, "step")
        process = Process(
            pid=whole_number(message, "pid"),
            rank=rank,
            world=world,
            can=abilities(message),
            generation=whole_number(message, "generation", -1, least=-1),
            bound=bound.said(message) if self.nodes > 1 else None,
        )
        tier = tier_of(message) if state == "held" else Tier.HOLD
        crew = self._crew
        self._last_id = max(self._last_id, whole_number(message, "id", 0))
        self._generation = max(self._generation, process.generation)
        crew.processes[connection] = process
        crew.tell.append((connection, self._welcome))
        if not self._hooked or (self.nodes > 1 and not crew.whole):  # a node may come after it was first said
            self._hooked = True
            crew.events.append(JobHooked(**crew.at))
        if state != "new":
            standing = Standing.HELD if state == "held" else Standing.RUNNING
            self._admit(connection, process, standing, step, tier)

    def _heard_arrived(self, connection: Connection, message: Message) -> None:
        process = self._crew.processes.get(connection)
        if process is None:
            raise MalformedError
        step = whole_number(message, "step")
        if "rank" in message or "world" in message:
            process.rank, process.world = place(message)
        process.can = abilities(message)
        known = self._crew.rank_of(connection)
        if known is None or known.standing is Standing.WAITING:
            self._admit(connection, process, Standing.WAITING, step, Tier.HOLD)

    def _admit(
        self, connection: Connection, process: Process, standing: Standing, step: int, tier: Tier
    ) -> None:
        crew = self._crew
        own = crew.rank_of(connection)
        known = crew.ranks.get(process.rank)
        if own is not None and own is not known:
            raise MalformedError  # a rank does not change its number
        if (
            known is not None
            and known.connection is not None
            and known.connection != connection
            and known.pid != process.pid
        ):
            # A second process with this number (a helper that a rank started): it never counts.
            if standing is not Standing.RUNNING:
                crew.send(connection, type="go")
            return
        if process.world != crew.world:
            crew.ranks = {n: r for n, r in crew.ranks.items() if n < process.world}
            crew.world = process.world
        anew = known is not None and known.connection != connection
        agreed, word = self._agreement, process.bound
        if agreed is not None and anew and tier is not Tier.CHECKPOINT and not agreed.binds(word):
            self._fail(f"rank {process.rank} connected anew while all were to stop")
        crew.ranks[process.rank] = Rank(
            connection=connection,
            pid=process.pid,
            standing=standing,
            step=step,
            can=process.can,
            tier=tier,
            generation=process.generation,
            bound=word,
        )
        if word is not None and agreed is not None and agreed.binds(word):
            if tier is Tier.CHECKPOINT:
                self._did(process.rank)  # the word of it is lost
            elif not word.committed:
                self._commit(crew.ranks[process.rank], word)
        if not self._all_leave() and self._agreement is None:
            self._decide_bound()
            self._settle()

    def _heard_can(self, connection: Connection, message: Message) -> None:
        able = abilities(message)
        process, rank = self._crew.processes.get(connection), self._crew.rank_of(connection)
        if process is not None:
            process.can = able
        if rank is not None:
            rank.can = able
            self._crew.say_capable()

    def _heard_accept(self, connection: Connection, message: Message) -> None:
        number, rank = self._crew.ranked(connection)
        asked, at_step = whole_number(message, "id"), whole_number(message, "at_step")
        rank.step = max(rank.step, whole_number(message, "step"))
        agreed = self._agreement
        if agreed is None or agreed.id != asked:
            self._crew.send(connection, type="drop", id=asked)
        elif at_step == agreed.at_step and not agreed.committed:
            agreed.accept(self._crew, number)

    def _heard_reject(self, connection: Connection, message: Message) -> None:
        _, rank = self._crew.ranked(connection)
        asked, step = whole_number(message, "id"), whole_number(message, "step")
        rank.step = max(rank.step, step)
        agreed = self._agreement
        if agreed is None or agreed.id != asked or agreed.committed:
            return
        # A reject of a lower proposal that was raised meanwhile is no longer news.
        if whole_number(message, "at_step") == agreed.at_step:
            agreed.propose_later(self._crew, step)

    def _heard_held(self, connection: Connection, message: Message) -> None:
        number, rank = self._crew.ranked(connection)
        step, tier = whole_number(message, "step"), tier_of(message)
        rank.parked_bytes = whole_number(message, "bytes", 0)
        rank.step, rank.tier, rank.standing = step, tier, Standing.HELD
        rank.done = message.get("portion") is True
        asked, agreed = whole_number(message, "id"), self._agreement
        rank.bound = None
        if tier is Tier.CHECKPOINT:
            rank.generation = whole_number(message, "generation", -1, least=-1)
            if self.nodes > 1 and agreed is None:
                rank.bound = Bound(id=asked, at_step=step, generation=rank.generation, committed=True)
            if rank.generation in self._failed:  # its word and ours crossed
                self._crew.drop(asked, [rank])
                if agreed is not None and not agreed.committed:
                    agreed.propose(self._crew)
                    return
        if agreed is not None and agreed.committed and agreed.id == asked:
            self._did(number)
        elif rank.leaves:
            if not self._all_leave() and agreed is None:
                self._decide_bound()
                self._settle()
        elif agreed is None:
            self._settle()  # a stop that an agent before us had ordered
        elif not agreed.committed and rank.done:
            agreed.propose_at(self._crew, step)  # where all of them stop by themselves
        elif not agreed.committed and not agreed.was_stopped:
            # Likewise, while we ask for another: it can't answer that, so it goes on and all are asked anew.
            if not rank.going:
                self._crew.let_go([rank])
            agreed.propose_later(self._crew, step)

    def _heard_saved(self, connection: Connection, message: Message) -> None:
        number, rank = self._crew.ranked(connection)
        rank.step = max(rank.step, whole_number(message, "step"))
        agreed = self._agreement
        if agreed is not None and agreed.committed and agreed.id == whole_number(message, "id"):
            self._did(number)

    def _did(self, number: int) -> None:
        agreed = self._agreement
        assert agreed is not None
        agreed.done.add(number)
        if agreed.done == self._crew.everyone:
            self._finish()

    def _heard_failed(self, connection: Connection, message: Message) -> None:
        self._crew.ranked(connection)
        what, why, asked = message.get("what"), message.get("why"), whole_number(message, "id")
        if what not in {"swap", "checkpoint"} or not isinstance(why, str):
            raise MalformedError
        if what == "swap":
            return  # it says `held` with the tier it could do
        agreed, crew = self._agreement, self._crew
        if agreed is not None and agreed.id == asked:
            self._fail(why)
            self._take_next()
            return
        crew.events.append(CheckpointFailed(**crew.at, why=why))
        crew.send_all(type="drop", id=asked)
        crew.drop(
            asked, [each for each in crew.ranks.values() if each.bound is not None and each.bound.id == asked]
        )
        if agreed is None:
            self._settle()
        elif not agreed.committed:
            agreed.propose(crew)  # it has not answered

    def _heard_going(self, connection: Connection, message: Message) -> None:
        rank = self._crew.rank_of(connection)
        if rank is None:
            return  # a process that never counted
        rank.step = whole_number(message, "step")
        rank.standing, rank.going, rank.done = Standing.RUNNING, max(0, rank.going - 1), False
        rank.bound = None
        if self._agreement is None:
            self._settle()

    def _heard_progress(self, connection: Connection, message: Message) -> None:
        crew = self._crew
        number, rank = crew.ranked(connection)
        step, steps = whole_number(message, "step"), whole_number(message, "steps")
        seconds, noise = amount(message, "seconds"), amount(message, "noise_scale", 0.0)
        samples = whole_number(message, "noise_samples", 0)
        rank.device_bytes = max(rank.device_bytes, whole_number(message, "device_bytes", 0))
        rank.step = max(rank.step, step)
        if number == 0 and seconds > 0:
            most = max(each.device_bytes for each in crew.ranks.values())
            crew.events.append(
                JobProgressed(
                    **crew.at,
                    step=crew.step,
                    steps_per_s=steps / seconds,
                    device_memory_bytes=most,
                    noise_scale=noise,
                    noise_samples=samples,
                )
            )

    def _heard_restored(self, connection: Connection, message: Message) -> None:
        crew = self._crew
        process = crew.processes.get(connection)
        note = message.get("note", "")
        if process is None or not isinstance(note, str):
            raise MalformedError
        rank, world = place(message) if "rank" in message else (process.rank, process.world)
        generation = whole_number(message, "generation", least=-1)
        self._restored[rank] = (whole_number(message, "step"), generation, note)
        if len(self._restored) >= world:
            step, generation, _ = min(self._restored.values())
            notes = "; ".join(sorted({n for _, _, n in self._restored.values() if n}))
            self._restored.clear()
            crew.events.append(JobRestored(**crew.at, step=step, generation=generation, note=notes))

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

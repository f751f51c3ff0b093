"""Stops and checkpoints of all ranks of one job, one at a time: what is ordered, agreed on, done, or waits."""

from dataclasses import replace
from typing import Literal

from hs_core.events.host import (
    Checkpoint,
    CheckpointFailed,
    JobCheckpointed,
    JobHeld,
    Resume,
    Suspend,
    SuspendFailed,
)
from hs_core.gang import bound
from hs_core.gang.agreement import Agreement
from hs_core.gang.bound import Bound
from hs_core.gang.crew import Crew, Rank, Standing, Told
from hs_core.gang.messages import HOOK_TIERS
from hs_core.names import JobId
from hs_core.reports import Tier

Order = Suspend | Resume | Checkpoint

_BESIDE = "several of its processes train, and are no ranks of one another: no step is one of all of them"
_TO_COME = "some of its ranks have not come to a step yet: none is one of all of them"


class Stops:
    def __init__(self, job: JobId, epoch: int, nodes: int, *, margin: int, last_step: int) -> None:
        self.job = job
        self.epoch = epoch
        self.nodes = nodes
        self._margin = margin
        self._last_step = last_step
        self._crew = Crew(job=job, epoch=epoch)
        self._agreement: Agreement | None = None
        self._next: Order | None = None  # to be taken up when what is under way has ended
        self._turns: set[int] = set()  # nodes whose last word was Resume
        self._last_id = 0
        self._generation = -1  # highest one known to be used, whatever came of it
        self._whole = -1  # newest one that all have written
        self._failed: set[int] = set()  # those of ours that some have written, perhaps, and not all will

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
        if agreed is None and crew.stands_in_part and order.tier is not Tier.CHECKPOINT:
            self._next = None
            crew.told = Told.NOTHING
            crew.say_held()
        elif agreed is None and crew.trains_in_part and not crew.is_bound:
            self._next = None
            self._turns = set(range(self.nodes))
            crew.events.append(SuspendFailed(**crew.at, why=_TO_COME))
        elif agreed is not None or not crew.whole or crew.is_bound:
            same = agreed is not None and agreed.kind == "stop" and agreed.tier is order.tier
            if not self._outweighed(order):
                self._next = None if same else order
        elif order.tier is not Tier.CHECKPOINT and crew.trains_beside:
            self._next = None
            self._turns = set(range(self.nodes))
            crew.events.append(SuspendFailed(**crew.at, why=_BESIDE))
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
        agreed, crew = self._agreement, self._crew
        if (
            agreed is not None
            and agreed.leaves
            and agreed.committed
            and self.nodes == 1
            and agreed.is_before(crew)
        ):
            # Nobody has a checkpoint before all on this node have written. Who stands may be what the others wait for.
            self._fail("the job was to go on before all ranks had got to that step")
        elif not crew.whole or crew.is_bound or (agreed is not None and not agreed.can_take_back):
            self._next = order
            self._let_come()
            return
        self._next = None
        self._agreement = None
        crew.let_go(crew.ranks.values())

    def _let_come(self) -> None:
        """Some ranks have no step of their own, and never come to a first one: they may be what who waits there is needed for."""
        crew = self._crew
        if (
            isinstance(self._next, Resume)
            and self._agreement is None
            and not crew.whole
            and not crew.is_bound
        ):
            waiting = [r for r in crew.ranks.values() if r.standing is Standing.WAITING and not r.going]
            if waiting:
                crew.let_go(waiting)

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

    def _did(self, number: int) -> None:
        agreed = self._agreement
        assert agreed is not None
        agreed.done.add(number)
        if agreed.done == self._crew.everyone:
            self._finish()

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

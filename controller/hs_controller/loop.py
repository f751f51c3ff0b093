"""The single writer: takes what has happened into one batch, commits it, and only then answers and gives orders.

When a commit fails nothing of it may survive: what is in memory is built again from the journal, in a new term, and the agents'
reports are taken in again, as after a restart. Until the journal can be written, mutating calls are refused.
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

import structlog

from hs_controller import garbage
from hs_controller.clock import Clock
from hs_controller.config import Config
from hs_controller.intake import Intake, Item, Key, Make, Render
from hs_controller.journal import Journal
from hs_controller.meters import Meters
from hs_controller.mind import FLUSH_S, Draft, Mind, refuse_other_body
from hs_controller.onlookers import Onlookers
from hs_controller.pruning import Pruning
from hs_controller.rows import Account, Answered, Kept
from hs_controller.sqlite import StoreUnavailableError
from hs_controller.store import Store
from hs_controller.thinker import Thinker
from hs_core.cluster import ClusterMachine
from hs_core.errors import Kind, RefusedError
from hs_core.events.cluster import ClusterEvent, HostJoined, PolicyAnswered, QuantumEnded, UserSet
from hs_core.failures import Failure
from hs_core.model import Job
from hs_core.names import HostName, UserName
from hs_core.policy import Policy, Verdict
from hs_core.question import Question
from hs_core.wanted import Wanted

log = structlog.get_logger("hs_controller.loop")

RETRY_S = (0.25, 5.0)  # first and longest pause before the store is tried again
CLOCK_BEHIND_S = 60.0  # the journal: a person has to hear of it
PACE_S = 0.01  # from one batch's beginning to the next: what comes meanwhile shares a commit


class Hosts(Protocol):
    """The agents that are connected."""

    def direct(self, host: HostName, wanted: Wanted, said_s: float) -> None: ...

    def names(self) -> Sequence[HostName]: ...

    def joined(self, host: HostName, now_s: float) -> Sequence[HostJoined]:
        """Everything it has said, as if it had just said it; nothing, if it is gone."""


class Loop:
    def __init__(
        self,
        store: Store,
        config: Config,
        policy: Policy,
        clock: Clock,
        mind: Mind,
        *,
        meters: Meters,
        grant_key: str,
    ) -> None:
        self.store = store
        self.config = config
        self.clock = clock
        self.mind = mind
        self.meters = meters
        self.hosts: Hosts | None = None
        self.read_only = ""  # why, while the store cannot be written
        self.onlookers = Onlookers(mind.last_seq)
        self._policy = policy
        self._grant_key = grant_key
        self._intake = Intake()
        self._settled = asyncio.Event()
        self._settled.set()
        self._wake: asyncio.TimerHandle | None = None
        self._flush: asyncio.TimerHandle | None = None
        self._flush_due = False
        self._begun_s = -PACE_S  # the last batch
        self._step_s = 0.0  # that it took
        self._commit_s = 0.0  # and its commit
        self._retry_s = RETRY_S[0]
        self.pruning = Pruning(store, config, clock)
        self._young = garbage.Young()
        self._thinker = Thinker()
        self._closing = False
        self._handling: list[Item] = []
        self._config_users: dict[str, dict[str, float | str | None]] | None = None

    # --- starting ---------------------------------------------------------------------------------------------------

    @classmethod
    async def start(cls, journal: Journal, config: Config, policy: Policy, *, grant_key: str = "") -> "Loop":
        """Takes office: a term above all before it, and everything the journal knows."""
        store = Store(journal)
        await store.begin_term()
        loaded = await store.load()
        clock = Clock(loaded.last_s)
        meters = Meters()
        mind = Mind(loaded, config, policy, clock.now_s(), meters=meters, grant_key=grant_key)
        loop = cls(store, config, policy, clock, mind, meters=meters, grant_key=grant_key)
        loop._put_config_users()
        loop._put_config_policy()
        if clock.off_s() < -CLOCK_BEHIND_S:
            log.warning(
                "clock-behind-journal", by_s=round(-clock.off_s()), why="the journal's time counts on"
            )
        log.info(
            "in-office",
            term=loaded.term,
            jobs=len(loaded.jobs),
            users=len(loaded.users),
            hosts=len(loaded.hosts),
        )
        return loop

    def _put_config_users(self) -> None:
        """Users as the configuration has them, where it says something else than it did last time."""
        said = {
            name: {"tickets": user.tickets, "run_as": user.run_as}
            for name, user in sorted(self.config.users.items())
        }
        if said == self.mind.config_users:
            return
        changed = [name for name in said if said[name] != self.mind.config_users.get(name)]

        def make(now_s: float, _machine: ClusterMachine) -> Sequence[ClusterEvent]:
            return [
                UserSet(
                    now_s=now_s,
                    name=UserName(name),
                    tickets=self.config.users[name].tickets,
                    run_as=self.config.users[name].run_as,
                )
                for name in changed
            ]

        self._config_users = said
        self._intake.ask(Item(make))  # before any request of theirs

    def _put_config_policy(self) -> None:
        """Another one than before, by what the configuration says, is a deed like any other."""
        if not self.mind.replaced:
            return

        def make(now_s: float, _machine: ClusterMachine) -> Sequence[Kept]:
            return [Kept(now_s=now_s, facts=tuple(self.mind.put_in_office(now_s)))]

        self._intake.ask(Item(make))

    # --- what comes in ----------------------------------------------------------------------------------------------

    def tell(self, make: Make) -> asyncio.Future[bytes]:
        """Something happened. The future is done when it is durable (or, a counter, will be); nobody needs to wait for it."""
        return self._intake.tell(Item(make))

    async def ask(self, make: Make, render: Render, key: Key | None, recalled: Sequence[Job] = ()) -> bytes:
        """A request: its answer once it is durable. Raises RefusedError."""
        if self.read_only:
            raise self._refuse_write()
        if self._intake.requests >= self.config.limits.queued_requests:
            raise RefusedError(
                "the controller has too many requests waiting; try again in a second", Kind.UNAVAILABLE
            )
        # Shielded: a caller that goes away must not take away the answer of one that sent the same key.
        return await asyncio.shield(self._intake.ask(Item(make, render, key, recalled)))

    async def settled(self) -> ClusterMachine:
        """The machine as it is in the journal (but for counters): what is being committed is not shown before it is."""
        await self._settled.wait()
        return self.mind.machine

    # --- the writer -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until `close`. Raises what the process must not survive (BrokenError, StoreBrokenError, a bug)."""
        try:
            await self._run()
        except Exception as error:
            for item in self._handling:
                item.settle(error)  # nobody waits for an answer that cannot come
            self._intake.shut(error)
            raise

    async def _run(self) -> None:
        self._quantum_ended()  # whatever waits, is decided about
        while True:
            await self._intake.something.wait()
            if self.read_only:
                await self._recover()
                continue
            if not self._closing and (early_s := self._begun_s + PACE_S - time.perf_counter()) > 0:
                await asyncio.sleep(early_s)
            self._intake.something.clear()
            if self._intake.waiting or self._flush_due:
                self._begun_s = time.perf_counter()
                await self._step()
                self._step_s = time.perf_counter() - self._begun_s
            if self._intake.waiting:
                self._intake.something.set()
            elif self._closing:
                return
            await self.pruning.look(self.mind.machine)
            await asyncio.sleep(0)  # let the readers in
            self._young.look()

    def close(self) -> None:
        """Finish what is queued, then `run` returns. What the policy is at is not waited for: nothing of it has been promised to anybody."""
        self._thinker.close()
        self._closing = True
        self._flush_due = True
        self._intake.something.set()

    async def _step(self) -> None:
        self._settled.clear()
        items = self._handling = list[Item]()
        try:
            draft = Draft()
            answers = []
            for item in self._intake.batch(self._step_s, self._commit_s):
                items.append(item)
                answers.append(await self._item(item, draft))
            if self._config_users is not None:
                draft.meta["config_users"] = self._config_users
                draft.weighty, self._config_users = True, None
            if self.mind.replaced:
                draft.meta |= self.mind.meta()
                self.mind.replaced = ""
            try:
                await self._write(draft)
            except StoreUnavailableError as error:
                await self._lose(error, items)
                return
        finally:
            self._settled.set()
        self._publish(draft)
        for item, answer in zip(items, answers, strict=True):
            item.settle(answer)

    async def _item(self, item: Item, draft: Draft) -> bytes | Exception:
        """The item's answer, to be given once the batch is durable."""
        now_s = self.clock.now_s()
        try:
            if item.key is not None:
                known = await self._known(item.key, draft)
                if known is not None:
                    return known
            if item.recalled:
                self.mind.recall(item.recalled)
            with garbage.later():
                outcomes = [self.mind.handle(event, draft) for event in item.make(now_s, self.mind.machine)]
            if item.recalled:
                # They were read a while ago: what a live job waits for is in the journal with it, whatever was dropped since.
                awaited = self.mind.machine.awaited
                draft.jobs.update({row.id: row for row in item.recalled if row.id in awaited})
        except RefusedError as refused:
            return refused
        if item.render is None:
            return b""
        try:
            answer = item.render(outcomes)
        except Exception as error:  # the change stands; only its picture is missing
            log.exception("answer-failed")
            return error
        if item.key is not None:
            key = item.key
            self.mind.answered(
                Answered(caller=key.caller, key=key.key, digest=key.digest, answer=answer, at_s=now_s), draft
            )
        return answer

    async def _known(self, key: Key, draft: Draft) -> bytes | None:
        known = self.mind.known(key.caller, key.key)
        if known is None:
            return None
        if known.digest != key.digest:
            raise refuse_other_body()
        if known.answer is not None:
            return known.answer
        for answered in draft.answered:
            if (answered.caller, answered.key) == (key.caller, key.key):
                return answered.answer
        return await self.store.read(lambda journal: journal.answer(key.caller, key.key))

    async def _write(self, draft: Draft) -> None:
        if draft.weighty or (self._flush_due and self.mind.unwritten):
            began_s = time.perf_counter()
            await self.store.commit(self.mind.batch(draft, self.clock.now_s(), last=self._closing))
            self._commit_s = time.perf_counter() - began_s
            self.meters.committed(self._commit_s)
            self._retry_s = RETRY_S[0]
        self._flush_due = False
        self._flush_later()

    def _flush_later(self) -> None:
        if self._flush is None and self.mind.unwritten:
            self._flush = asyncio.get_running_loop().call_later(FLUSH_S, self._flush_now)

    def _flush_now(self) -> None:
        self._flush = None
        self._flush_due = True
        self._intake.something.set()

    def _publish(self, draft: Draft) -> None:
        assert self.hosts is not None
        for host, (wanted, said_s) in draft.directs.items():
            self.hosts.direct(host, wanted, said_s)
        if draft.wake_in_s is not None:
            if self._wake is not None:
                self._wake.cancel()
            self._wake = asyncio.get_running_loop().call_later(draft.wake_in_s, self._quantum_ended)
        if draft.gives_up:
            self._thinker.give_up()
        if draft.question is not None:
            self._consult(draft.question)
        self.onlookers.tell(draft.events, draft.touched)
        self.meters.published(draft.events)
        for event in draft.events:
            fact = event.fact
            of = (("job", fact.job), ("user", fact.user), ("host", fact.host))
            log.info(fact.kind, text=fact.text, **{which: name for which, name in of if name is not None})

    def _quantum_ended(self) -> None:
        self._wake = None
        self.tell(lambda now_s, _machine: [QuantumEnded(now_s=now_s)])

    def _consult(self, question: Question) -> None:
        def answered(answer: Verdict | Failure) -> None:
            self.tell(lambda now_s, _machine: [PolicyAnswered(now_s=now_s, question=question, answer=answer)])

        self._thinker.ask(question.answer, answered)

    async def would_entitle(self, tickets: Mapping[UserName, float]) -> Mapping[Account, float]:
        """GPUs by user and model, had these users so many tickets. Raises RefusedError, as `ClusterMachine.what_if`, and where the policy stays at a decision."""
        machine, now_s = await self.settled(), self.clock.now_s()
        question = machine.what_if(tickets, now_s)
        if machine.stays_at_it(now_s):
            text = f"the policy {machine.policy.name} has been deciding for {machine.deciding_s(now_s):.0f} s, and previews wait for it"
            raise RefusedError(text, Kind.UNAVAILABLE)
        if question is None:
            return {}
        verdict = await self._thinker.answer(partial(self.mind.watched.aside, question))
        return {account: float(gpus) for account, gpus in sorted(verdict.entitled.items())}

    @property
    def given_up(self) -> int:
        """Decisions that are still being made, and that nobody waits for any more."""
        return self._thinker.given_up

    # --- when the store cannot be written -----------------------------------------------------------------------------

    def _refuse_write(self) -> RefusedError:
        return RefusedError(
            f"the controller cannot write its journal just now ({self.read_only}): nothing was changed, running jobs go on;"
            " try again when there is room",
            Kind.UNAVAILABLE,
        )

    async def _lose(self, error: StoreUnavailableError, items: Sequence[Item]) -> None:
        """Nothing of the batch is durable, so nothing of it has happened."""
        self.read_only = str(error)
        log.error("read-only", why=self.read_only)
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        await self._rebuild()
        self._look_on()
        for item in items:
            item.settle(self._refuse_write())
        self._intake.something.set()

    def _look_on(self) -> None:
        """What agents say cannot be taken in, but people are told who is there."""
        assert self.hosts is not None
        self.mind.machine.look_on(self.hosts.names())

    async def _rebuild(self) -> None:
        loaded = await self.store.load()
        self.mind = Mind(
            loaded,
            self.config,
            self._policy,
            self.clock.now_s(),
            meters=self.meters,
            grant_key=self._grant_key,
        )
        self._flush_due = False
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        self._put_config_users()
        self._put_config_policy()

    async def _recover(self) -> None:
        """Refuse what is queued, wait a little, try to take office again."""
        await self._pause(self._retry_s)
        self._intake.refuse(self._refuse_write())
        if self._closing:
            self.read_only = ""
            return
        try:
            await self.store.begin_term()
        except StoreUnavailableError as error:
            self.read_only = str(error)
            return
        finally:
            self._retry_s = min(RETRY_S[1], 2 * self._retry_s)  # back to the first once a batch was committed
        await self._rebuild()
        self.read_only = ""
        log.info("writable-again", term=self.mind.machine.term)
        self._quantum_ended()
        assert self.hosts is not None
        for host in self.hosts.names():
            self.tell(partial(_joined, self.hosts, host))

    async def _pause(self, seconds: float) -> None:
        end_s = asyncio.get_running_loop().time() + seconds
        while not self._closing and (left_s := end_s - asyncio.get_running_loop().time()) > 0:
            self._intake.refuse(self._refuse_write())
            self._look_on()  # one of them may have come or gone
            self._intake.something.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._intake.something.wait(), left_s)
        self._intake.something.set()


def _joined(hosts: Hosts, host: HostName, now_s: float, _machine: ClusterMachine) -> Sequence[ClusterEvent]:
    return hosts.joined(host, now_s)

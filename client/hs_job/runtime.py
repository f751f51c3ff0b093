"""One per process: where training stands, and the place where it stands still when the agent says so.

The training thread only ever bumps counters and looks at one flag (`armed`); everything else happens in `_point`, off the
fast path. The flag and `passed` make a Dekker pair: the training thread writes `passed`, then reads `armed`; the
reader writes `armed`, then reads `passed`. So a stop that was accepted is always seen.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import sys
import threading
import time
from enum import Enum
from typing import TYPE_CHECKING, Dict, Iterator, List, NoReturn, Optional

from hs_job import advice, blocked, place, said
from hs_job.advice import Advice
from hs_job.aloud import say
from hs_job.batch import Batch
from hs_job.keeper import Keeper
from hs_job.leaving import EXIT, end_workers, hush, undisturbed, vanish, works_for_a_loader
from hs_job.link import Link, Message
from hs_job.noted import Noted
from hs_job.orders import Orders
from hs_job.pace import Pace
from hs_job.places import Places
from hs_job.stop import Stop
from hs_job.untold import Mark, Untold

if TYPE_CHECKING:
    from hs_job.noise import Meter
    from hs_job.swap import Swapper

_LEAVE_WITHIN_S = 10.0
_LEAVE_WITHIN_S_OF_NODES = 120.0  # the agent of another node may have to be started again first
_TELL_AFTER_S = 10.0
_NOWHERE_S, _NOWHERE_STEPS = 10.0, 20
_LAST_WORD_S = 1.0
_HELPER = "HS_RANK_PID"  # set in a rank's environment: what it starts from then on are helpers, no ranks


class Phase(Enum):
    NEW = "new"  # no suspend point yet
    WAITING = "waiting"  # at the first one
    RUNNING = "running"
    PARKED = "parked"  # at a proposed step, not committed yet
    HELD = "held"


class Runtime:
    def __init__(self, environment: Dict[str, str]) -> None:
        path = environment.get("HS_AGENT_SOCKET", "")
        helper = environment.get(_HELPER, "")
        self.alone = not path or environment.get("HS_HOOK") == "0" or helper not in ("", str(os.getpid()))
        self.live = not self.alone
        self.count = 0  # mini-batches done
        self.passed = -1  # steps at which this rank can no longer stop
        self.armed = self.live  # something to do at the next suspend point
        self.mark: Mark = (0, 0.0)
        self.by_hand = False  # the script counts with hs_job.step
        self.trainer = threading.main_thread().ident
        self.rank, self.world = place.rank_and_world(environment)
        self.swapper: Optional[Swapper] = None  # None: torch is not here
        self.batch = Batch()
        self.meter: Optional[Meter] = None  # of the gradients of an elastic job
        self.advice = Advice()
        self.keeper = Keeper(environment, self.rank, self.world)
        self.last = place.number_of(
            environment.get("HS_LAST_STEP", "")
        )  # a copy's portion ends there; -1: none
        if self.last < 0 or self.alone:
            self.last = sys.maxsize
        self._environment = environment
        self._noted = Noted(environment.get("HS_STEPS_FILE", ""))
        self._nodes = max(1, place.number_of(environment.get("HS_NNODES", "")))
        self._lock = threading.Condition()
        self._phase = Phase.NEW
        self._speaks = 0  # the thread that is at a suspend point, for all that train; 0: none
        self._tier = "hold"
        self._orders = Orders(self._nodes)
        self._before = (Phase.NEW, "hold")  # how it stood until its checkpoint was written
        self._welcomed_s = math.inf  # since when an agent hears it; inf: none does
        self._untold = Untold()
        self._pace = Pace()
        self._told_can: List[str] = []
        self._places = Places()
        self._blocked = blocked.Watch()
        self._link: Optional[Link] = None

    @property
    def is_copy(self) -> bool:
        """It has a portion of the steps."""
        return self.last < sys.maxsize

    def start(self) -> None:
        """Dials the agent, once."""
        if not self.live or self._link is not None:
            return
        self.keeper.look()
        os.register_at_fork(after_in_child=self._in_child)
        self._link = Link(
            self._environment["HS_AGENT_SOCKET"],
            self._lock,
            greet=self._greet,
            hear=self._heard,
            lost=self._lost,
            tick=self._tend,
            apart=self._note,
        )
        self._link.start()
        atexit.register(self._end)
        os._exit = self._exit

    def _exit(self, status: int) -> NoReturn:
        """Scripts of gangs end so: torch may abort in what it does at exit. Watchdogs, too, which nothing may hold up: a lock that is never let go, an agent that does not listen."""
        if self.live:
            with contextlib.suppress(RuntimeError):  # the interpreter is at its end, and starts none
                last = threading.Thread(target=self._end, daemon=True)
                last.start()
                last.join(_LAST_WORD_S)
        EXIT(status)

    def _end(self) -> None:
        """The steps since it was last said how many there are."""
        if not self.live:  # in a forked child: whoever held the lock stayed behind
            return
        handed = self.keeper.handed
        if handed is not None and handed.passes_by and not hasattr(sys, "last_value"):
            self.advice.give(advice.NEVER_THERE)
        with self._lock:
            self._tick(stands=True)
            if self._phase is Phase.RUNNING and self.count > self._untold.told:
                self._tell(self.mark, self.mark)

    def give_up(self) -> None:
        """Something about this torch cannot be hooked: the script runs as if there were no agent."""
        self.alone, self.live, self.armed = True, False, False
        self.last = sys.maxsize

    def _in_child(self) -> None:
        # A forked child (a DataLoader's worker, say) is no rank. It takes no lock: whoever held it stayed behind.
        self.live = self.armed = False
        self.last = sys.maxsize
        self._pace.step_s = 0.0
        if self._link is not None:
            self._link.close_in_child()

    # --- the training thread, fast ---------------------------------------------------------------------------------

    def stepped(self, n: int = 1) -> None:
        """Counts, and keeps an emulated device's pace."""
        now = time.monotonic()
        if self._pace.step_s:
            now = self._pace.keep(now, n)
        self.count += n
        self.mark = (self.count, now)

    def point(self, restorable: bool = False, *, ends: bool = False) -> None:
        """A suspend point: nothing of the batch before is under way. `ends`: the end of an epoch is what comes next, so the next one is a better place to save."""
        self.passed = self.count
        if restorable:
            self._places.came(self.count)
            if self.keeper.astray:
                self.keeper.astray = ""
                self.tell_can()
        if self.is_due:
            self._point(restorable, ends)

    @property
    def is_due(self) -> bool:
        """There is something to do at the next suspend point."""
        return self.armed or self.count >= self.last

    def stepped_by_hand(self, n: int) -> None:
        self.start()
        if not self.by_hand:
            # Until now optimizer steps were counted; from here on the script's word is taken.
            self.by_hand = True
            handed = self.keeper.handed
            self.count = handed.start_step if handed is not None else 0
            self.passed = min(self.passed, self.count)
            self.tell_can()
        self.trainer = threading.get_ident()
        self.stepped(n)
        handed = self.keeper.handed
        if self.live and (handed is None or handed.data is None):
            self.point(restorable=handed is not None)
            self.batch.comes()

    def should_yield(self) -> bool:
        stop = self._orders.stop
        return self.count + 1 >= self.last or (stop is not None and self.count + 1 >= stop.at_step)

    # --- standing still --------------------------------------------------------------------------------------------

    def _point(self, restorable: bool, ends: bool) -> None:
        """One thread speaks for all that train: whoever comes while it stands waits as long."""
        me = threading.get_ident()
        with self._lock:
            if self._speaks not in (0, me):
                while self._speaks:
                    self._lock.wait()
                return
            mine, self._speaks = not self._speaks, me
        try:
            self._speak(restorable, ends)
        finally:
            if mine:
                with self._lock:
                    self._speaks = 0
                    self._lock.notify_all()

    def _speak(self, restorable: bool, ends: bool) -> None:
        if self._phase is Phase.NEW:
            self._arrive(restorable)
        elif not self._has_done_its_portion(restorable):
            self._pass(restorable, ends)
        while self._has_done_its_portion(restorable):  # whoever lets it go does not know yet
            with self._lock:
                self._say_done()
                self._stand(Phase.HELD, restorable)

    def _pass(self, restorable: bool, ends: bool) -> None:
        with self._lock:
            self._untold.passes(self.mark)
            stop = self._orders.stop
            if stop is not None and self._stops_here(stop, restorable and not ends):
                self._stand(Phase.PARKED, restorable)
            else:
                self.armed = stop is not None
                if stop is not None:
                    self._refuse_if_astray(stop)

    def _refuse_if_astray(self, stop: Stop) -> None:
        """It trains on, and comes to no place where it could be saved: who waits for that is told why, and waits no longer; nobody asks again before it has come to one."""
        if self.count - stop.at_step >= _NOWHERE_STEPS:
            self._refuse_if_left_behind(stop, since_s=stop.heard_s)

    def _refuse_if_others_wait(self) -> None:
        """Likewise, where it is past the step at which all were to stop and trains on no more: others stand there, and it is in a call to them."""
        stop = self._orders.stop
        if self.world == 1 or stop is None or self._phase is not Phase.RUNNING:
            return
        if self.passed >= stop.at_step and not self._stops_here(stop, saves=False):
            self._refuse_if_left_behind(stop, since_s=max(stop.heard_s, self.mark[1]))

    def _refuse_if_left_behind(self, stop: Stop, since_s: float) -> None:
        now_s = time.monotonic()
        if now_s - since_s < _NOWHERE_S or not stop.committed or not self._places.are_left_behind(self.count):
            return
        self.advice.came_nowhere(self.count - stop.at_step, now_s - stop.heard_s)
        self.keeper.astray = advice.ASTRAY
        self._orders.stop, self.armed = None, False
        self._send(said.failed(stop, "checkpoint", advice.ASTRAY))
        self.tell_can()

    def _has_done_its_portion(self, restorable: bool) -> bool:
        return self.count >= self.last and (restorable or "checkpoint" not in self.can())

    def _say_done(self) -> None:
        self._tick()
        self._send(said.done(self._orders.last_id, self.count, self._tier))

    def _stops_here(self, stop: Stop, saves: bool) -> bool:
        wants_place = stop.tier == "checkpoint" and "checkpoint" in self.can()
        return self.count >= stop.at_step and (saves or not wants_place)

    def _arrive(self, restorable: bool) -> None:
        self.find_place()
        self.keeper.claim()
        os.environ[_HELPER] = str(os.getpid())
        with self._lock:
            self._phase = Phase.WAITING
            self._send(self._arrived())
            self._stand(Phase.WAITING, restorable)

    def _stand(self, phase: Phase, restorable: bool) -> None:
        """Until told to go on, or until the proposal was raised or dropped. Collectives stay un-entered."""
        self._tick(stands=True)
        self._phase = phase
        self._untold.stands()
        orders = self._orders
        told = phase is not Phase.WAITING or self._link is None or self._link.connected
        gos = 0
        try:
            while True:
                stop = orders.stop
                if orders.gos:
                    gos = orders.gos
                    break
                if self._phase is Phase.PARKED and (stop is None or self.count < stop.at_step):
                    break  # raised: also where it was agreed on before this thread woke up
                if stop is not None and stop.committed:
                    self._perform(stop, restorable)
                elif not self._lock.wait(None if told else _TELL_AFTER_S):
                    told = True
                    self._say_if_alone()
            began = time.monotonic()
            if gos and self._tier == "swap":
                self._come_back()
        finally:
            self._phase, self._tier, orders.gos, self.armed = Phase.RUNNING, "hold", orders.gos - gos, True
            now = time.monotonic()
            self._pace.begin(now)
            self.mark = (self.count, now)
            self._untold.goes_on(None if phase is Phase.WAITING else self.mark)
        for _ in range(gos):
            self._send(said.going(self.count, now - began))

    def find_place(self) -> None:
        """Which rank this is, where the script has said so by now: the environment of one that it has spawned does not."""
        torch = sys.modules.get("torch")
        if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
            self.rank, self.world = torch.distributed.get_rank(), torch.distributed.get_world_size()
            self.keeper.is_of(self.rank, self.world)

    def _say_if_alone(self) -> None:
        if self._link is not None and not self._link.connected:
            say(f"waiting for the agent at {self._environment.get('HS_AGENT_SOCKET')}")

    def _perform(self, stop: Stop, restorable: bool) -> None:
        """Called and left with the lock held; the long parts are done without it, so that the agent is heard meanwhile."""
        self._orders.begin(stop)
        try:
            if stop.tier == "checkpoint":
                self._checkpoint(stop, restorable)
            else:
                began = time.monotonic()
                if stop.tier == "swap" and self._tier != "swap":
                    self._swap_out(stop)
                self._phase = Phase.HELD
                self._say_if_uncounted()
                self._say_held(stop, time.monotonic() - began)
        finally:
            self._orders.doing = None

    def _say_if_uncounted(self) -> None:
        handed = self.keeper.handed
        if self.by_hand or handed is None or handed.data is not None:
            return
        if handed.has_stepped:  # else it may be evaluating before it trains
            self.advice.give(advice.UNCOUNTED)

    def _say_held(self, stop: Stop, seconds: float, digest: str = "") -> None:
        moved = self.swapper.parked_bytes if self.swapper is not None and self._tier == "swap" else 0
        tier = "checkpoint" if digest else self._tier
        self._send(said.held(stop, self.count, tier, moved_bytes=moved, seconds=seconds, digest=digest))

    def _swap_out(self, stop: Stop) -> None:
        swapper = self.swapper
        why = "the process has no torch"
        if swapper is not None:
            with self._unlocked():
                try:
                    swapper.out()
                    why = ""
                except Exception as error:
                    why = f"{type(error).__name__}: {error}"
        if why:
            self._send(said.failed(stop, "swap", why))
        else:
            self._tier = "swap"

    def _come_back(self) -> None:
        swapper = self.swapper
        assert swapper is not None
        with self._unlocked():
            swapper.back(say)

    def _checkpoint(self, stop: Stop, restorable: bool) -> None:
        began = time.monotonic()
        digest, why = "", self.keeper.why_not(self.by_hand)
        if not why and not restorable:
            why = advice.NO_PLACE
        if not why:
            host_of = self.swapper.host_of if self.swapper is not None else None
            with self._unlocked():
                try:
                    digest = self.keeper.write(stop, self.count, host_of, lambda: self._orders.abandoned)
                except Exception as error:
                    why = str(error) or type(error).__name__
        if why:
            self._send(said.failed(stop, "checkpoint", why))
            self.tell_can()
        elif stop.kind == "save":
            self._orders.saved = stop
            self._send(said.saved(stop, self.count, digest))
        else:
            self._before = self._phase, self._tier
            self._phase, self._tier, self._orders.written = Phase.HELD, "checkpoint", stop
            with undisturbed():
                self._say_held(stop, time.monotonic() - began, digest)
                self._leave_with(stop)
            self._clear(stop)
            if self._phase is Phase.HELD and not self._orders.gos:
                self._say_held(stop, 0.0)

    def _clear(self, stop: Stop) -> None:
        with self._unlocked():
            self.keeper.clear(stop)

    @contextlib.contextmanager
    def _unlocked(self) -> Iterator[None]:
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()

    def _leave_with(self, stop: Stop) -> None:
        """Its state is durable: gone without running user code. Ranks leave together, or torchrun ends the slower ones.

        While no agent hears it, it stays: nobody would know of the checkpoint, and torchrun would report a failure. It comes back
        from here where another node could not write its part.
        """
        if self.world > 1 or "TORCHELASTIC_RUN_ID" in self._environment:
            within_s = _LEAVE_WITHIN_S if self._nodes <= 1 else _LEAVE_WITHIN_S_OF_NODES
            began = time.monotonic()
            while not self._orders.leave:
                if self._orders.written is not stop:
                    return
                left_s = max(began, self._welcomed_s) + within_s - time.monotonic()
                if left_s <= 0:
                    break
                self._lock.wait(min(left_s, within_s))
        end_workers()
        vanish()

    # --- the reader's thread ---------------------------------------------------------------------------------------

    def _greet(self) -> List[Message]:
        phase = self._phase
        state = {Phase.NEW: "new", Phase.WAITING: "new", Phase.HELD: "held"}.get(phase, "running")
        self._told_can = self.can()
        self._blocked.forget()
        orders = self._orders
        hello = said.hello(
            (self.rank, self.world),
            self.count,
            state,
            self._tier,
            self._told_can,
            last_id=orders.last_id,
            generation=self.keeper.newest if orders.written is None else orders.written.generation,
            bound=orders.bound,
        )
        return [hello, self._arrived()] if phase is Phase.WAITING else [hello]

    def _arrived(self) -> Message:
        self._told_can = self.can()
        return said.arrived(self.count, self._told_can, self.rank, self.world)

    def _heard(self, message: Message) -> None:
        with self._lock:
            try:
                self._obey(str(message.get("type")), message)
            except (KeyError, TypeError, ValueError):
                say(f"the agent said what makes no sense: {str(message)[:200]}")
            self._lock.notify_all()

    def _obey(self, kind: str, message: Message) -> None:
        if kind == "welcome":
            self._heard_welcome(message)
        elif kind in ("stop", "save"):
            self._heard_stop(message)
        elif kind == "commit":
            self._orders.hear_commit(message["id"], message.get("at_step"))
        elif kind == "go":
            self._heard_go()
        elif kind == "drop":
            self._heard_drop(message["id"])
        elif kind == "leave":
            self._heard_leave()

    def _heard_welcome(self, message: Message) -> None:
        self._welcomed_s = time.monotonic()
        self._pace.step_s = max(0.0, float(message.get("pace_s", 0.0)))
        if self._link is not None:
            self._link.tick_s = max(0.01, float(message.get("progress_s", 1.0)))

    def _heard_stop(self, message: Message) -> None:
        stop, orders = Stop(str(message["type"]), message), self._orders
        self.keeper.newest = max(self.keeper.newest, stop.generation)
        if not orders.hear(stop, self.count if self._phase is Phase.HELD else None):
            return
        self.keeper.whole = max(self.keeper.whole, stop.whole)
        self.armed = True  # before `passed` is read
        standing = self._phase in (Phase.WAITING, Phase.HELD, Phase.PARKED) and not orders.gos
        stop.accepted = standing or self.world == 1 or self.passed < stop.at_step
        if not stop.accepted:
            orders.stop = None
        if self.world == 1:
            return  # not asked: the commit is right behind
        self._send(said.answer(stop, self.count))

    def _heard_go(self) -> None:
        if self._phase is Phase.NEW:
            return
        self._orders.stop = None
        if self._phase is Phase.RUNNING:
            self._send(said.going(self.count, 0.0))
        else:
            self._orders.gos += 1

    def _heard_drop(self, number: int) -> None:
        saved, written = self._orders.hear_drop(number), self._orders.written
        if written is not None and written.id == number:
            self._orders.written = None
            self._phase, self._tier = self._before
        if saved is not None:
            self._clear(saved)

    def _heard_leave(self) -> None:
        self._orders.leave = True
        if self._phase is Phase.NEW and not works_for_a_loader():
            hush()  # torchrun's launcher: it would call its ranks' leaving a failure, also while it looks for what to flush
            vanish()

    def _lost(self) -> None:
        """The agent is gone."""
        with self._lock:
            self._welcomed_s = math.inf
            self._orders.lose_agent()
            self._lock.notify_all()

    def _tend(self) -> None:
        self._tick()
        with self._lock:
            if self._phase is Phase.NEW:
                self._tell_blocked()
            self._refuse_if_others_wait()

    def _tell_blocked(self) -> None:
        """Before its first suspend point: those to whom it is in a call may stand at theirs, until all have got to one."""
        distributed = sys.modules.get("torch.distributed")  # as far as it has been imported
        if not getattr(distributed, "is_initialized", bool)():
            return
        on = self._blocked.news(self.trainer)
        if on is not None:
            self.find_place()
            self._send(said.blocked(self.rank, self.world, on=on))

    def _tick(self, *, stands: bool = False) -> None:
        """Tells of the steps since the last time. `stands`: as `Untold.since` has it."""
        with self._lock:
            self._note()
            base = self._untold.since(self.mark, stands=stands) if self._phase is Phase.RUNNING else None
            if base is not None:
                self._tell(base, self.mark)

    def _note(self) -> None:
        """Whoever hears of it, or nobody."""
        with self._lock:
            if self._phase is not Phase.NEW:
                self._noted.note(self.rank, self.count)

    def _tell(self, base: Mark, mark: Mark) -> None:
        self._untold.tell(mark)
        device_bytes = self.swapper.device_bytes() if self.swapper is not None else 0
        noise = self.meter.told if self.meter is not None else None
        self._send(said.progress(base, mark, device_bytes, noise))

    # --- what it can -----------------------------------------------------------------------------------------------

    def can(self) -> List[str]:
        can = ["hold"]
        if self.swapper is not None and not self.swapper.fixed_why:
            can.append("swap")
        if self.keeper.can(self.by_hand):
            can.append("checkpoint")
        if self.keeper.single:
            can.append("single")
        return can

    def cannot_be_saved(self, why: str) -> None:
        """From now on, for a reason that its user can mend."""
        self.keeper.unsavable = why
        self.advice.not_moved(why)
        self.tell_can()

    def tell_can(self) -> None:
        if not self.live:
            return
        with self._lock:
            if self.can() != self._told_can and self._link is not None and self._link.connected:
                self._told_can = self.can()
                self._send(said.can(self._told_can))

    def tell_restored(self, step: int, generation: int, note: str) -> None:
        self.keeper.whole = generation
        self._send(said.restored(step, generation, note, self.rank, self.world))

    def _send(self, message: Message) -> None:
        with self._lock:
            if self._link is not None:
                self._link.send(message)


_current: Optional[Runtime] = None


def current() -> Runtime:
    global _current
    if _current is None:
        _current = Runtime(dict(os.environ))
    return _current

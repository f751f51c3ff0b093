"""One per process: the place where training stands still when the agent says so.

What happens between two steps is `point`, and all but its first lines is off the fast path: `_point`. Two threads drive the
agreement with the agent, the one that trains and the one that hears the agent, under one lock.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from typing import Dict, List, Optional

from hs_job import advice, blocked, forks, said, starved
from hs_job.advice import Advice
from hs_job.agreement import Agreement, Phase
from hs_job.aloud import say
from hs_job.batch import Batch
from hs_job.ending import Ending
from hs_job.keeper import Keeper
from hs_job.leaving import end_workers, hush, undisturbed, vanish, works_for_a_loader
from hs_job.link import Link, Message
from hs_job.noted import Noted
from hs_job.place import Place, number_of
from hs_job.places import Places
from hs_job.steps import Steps
from hs_job.stop import Stop
from hs_job.telling import Telling
from hs_job.tiers import Tiers

_LEAVE_WITHIN_S = 10.0
_LEAVE_WITHIN_S_OF_NODES = 120.0  # the agent of another node may have to be started again first
_TELL_AFTER_S = 10.0
_HELPER = "HS_RANK_PID"  # set in a rank's environment: what it starts from then on are helpers, no ranks


class Runtime:
    def __init__(self, environment: Dict[str, str]) -> None:
        path = environment.get("HS_AGENT_SOCKET", "")
        helper = environment.get(_HELPER, "")
        self.alone = not path or environment.get("HS_HOOK") == "0" or helper not in ("", str(os.getpid()))
        self.live = not self.alone
        self.steps = Steps(-1 if self.alone else number_of(environment.get("HS_LAST_STEP", "")))
        self.trainer = threading.main_thread().ident
        self.place = Place(environment)
        self.batch = Batch()
        self.advice = Advice()
        self.keeper = Keeper(environment, self.place.rank, self.place.world)
        self._environment = environment
        self._lock = threading.Condition()
        self.tiers = Tiers(self._lock, self.keeper)
        self._agreement = Agreement(self.place.nodes, armed=self.live)
        noted = Noted(environment.get("HS_STEPS_FILE", ""))
        self.telling = Telling(self._lock, self.place, self._agreement, self.steps, self.tiers, noted=noted)
        self._speaks = 0  # the thread that is at a suspend point, for all that train; 0: none
        self._welcomed_s = math.inf  # since when an agent hears it; inf: none does
        self._ending = Ending(self._end)
        self._places = Places()
        self._blocked = blocked.Watch()
        self._only_forks = False

    def start(self) -> None:
        """Dials the agent, once. A fork server does not: it has no turns, and those that it starts do as if each had imported torch itself."""
        if not self.live or self.telling.link is not None or self._only_forks:
            return
        if forks.are_served():
            self._only_forks = True
            os.register_at_fork(after_in_child=self._in_child_of_server)
            return
        self._dial()

    def _in_child_of_server(self) -> None:
        """And in the children of those, which are to do nothing."""
        if self._only_forks:
            self._only_forks = False
            self._dial()

    def _dial(self) -> None:
        self.keeper.look()
        os.register_at_fork(after_in_child=self._in_child)
        self.telling.link = Link(
            self._environment["HS_AGENT_SOCKET"],
            self._lock,
            greet=self._greet,
            hear=self._heard,
            lost=self._lost,
            tick=self._tend,
            apart=self.telling.note,
        )
        self.telling.link.start()
        self._ending.watch()

    def _end(self) -> None:
        """The steps since it was last said how many there are."""
        if not self.live:  # in a forked child: whoever held the lock stayed behind
            return
        handed = self.keeper.handed
        if handed is not None and handed.passes_by and self._ending.error is None:
            self.advice.give(advice.NEVER_THERE)
        self._tell_of_lack()
        self.telling.end()

    def _tell_of_lack(self) -> None:
        """Of device memory, if that is what has ended the script."""
        asked = starved.asked_bytes(self._ending.error)
        if asked:
            self.find_place()
            self.telling.starved(asked)

    def give_up(self) -> None:
        """Something about this torch cannot be hooked: the script runs as if there were no agent."""
        self.alone, self.live, self._agreement.armed = True, False, False
        self.steps.forget_portion()

    def _in_child(self) -> None:
        # A forked child (a DataLoader's worker, say) is no rank. It takes no lock: whoever held it stayed behind.
        self.live = self._agreement.armed = False
        self._ending.forget()
        self.steps.forget_portion()
        self.steps.pace.step_s = 0.0
        if self.telling.link is not None:
            self.telling.link.close_in_child()

    # --- the training thread, fast ---------------------------------------------------------------------------------

    def point(self, restorable: bool = False, *, ends: bool = False) -> None:
        """A suspend point: nothing of the batch before is under way. `ends`: the end of an epoch is what comes next, so the next one is a better place to save."""
        self._agreement.passed = self.steps.count
        if restorable:
            self._places.came(self.steps.count)
            if self.keeper.astray:
                self.keeper.astray = ""
                self.tell_can()
        if self.is_due:
            self._point(restorable, ends)

    @property
    def is_due(self) -> bool:
        """There is something to do at the next suspend point."""
        return self._agreement.armed or self.steps.are_done

    def stepped_by_hand(self, n: int) -> None:
        self.start()
        if not self.steps.by_hand:
            handed = self.keeper.handed
            self.steps.trust(handed.start_step if handed is not None else 0)
            self._agreement.passed = min(self._agreement.passed, self.steps.count)
            self.tell_can()
        self.trainer = threading.get_ident()
        self.steps.take(n)
        self.batch.is_marked = True
        handed = self.keeper.handed
        if self.live and (handed is None or handed.data is None):
            self.point(restorable=handed is not None)
            self.batch.comes()

    def should_yield(self) -> bool:
        stop, then = self._agreement.stop, self.steps.count + 1
        return then >= self.steps.last or (stop is not None and then >= stop.at_step)

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
        if self._agreement.phase is Phase.NEW:
            self._arrive(restorable)
        elif not self._has_done_its_portion(restorable):
            self._pass(restorable, ends)
        while self._has_done_its_portion(restorable):  # whoever lets it go does not know yet
            with self._lock:
                self._say_done()
                self._stand(Phase.HELD, restorable)

    def _pass(self, restorable: bool, ends: bool) -> None:
        agreement, step = self._agreement, self.steps.count
        with self._lock:
            self.telling.untold.passes(self.steps.mark)
            if agreement.stops_at(step, saves=(restorable and not ends) or self._saves_nowhere):
                self._stand(Phase.PARKED, restorable)
            else:
                agreement.passes()
                self._say_given_up(agreement.give_up_astray(self.steps.mark, self._places, time.monotonic()))

    def _give_up_if_others_wait(self) -> None:
        agreement = self._agreement
        if self.place.world > 1 and not agreement.stops_at(self.steps.count, saves=self._saves_nowhere):
            now_s = time.monotonic()
            self._say_given_up(agreement.give_up_waited_for(self.steps.mark, self._places, now_s))

    def _say_given_up(self, stop: Optional[Stop]) -> None:
        """Who waits for it is told why, and nobody asks again before training has come to a place where it can be saved."""
        if stop is None:
            return
        self.advice.came_nowhere(self.steps.count - stop.at_step, time.monotonic() - stop.heard_s)
        self.keeper.astray = advice.ASTRAY
        self.telling.send(said.failed(stop, "checkpoint", advice.ASTRAY))
        self.tell_can()

    @property
    def _saves_nowhere(self) -> bool:
        return "checkpoint" not in self.tiers.can(by_hand=self.steps.by_hand)

    def _has_done_its_portion(self, restorable: bool) -> bool:
        return self.steps.are_done and (restorable or self._saves_nowhere)

    def _say_done(self) -> None:
        self.telling.tick()
        self.telling.send(said.done(self._agreement.last_id, self.steps.count, self._agreement.tier))

    def _arrive(self, restorable: bool) -> None:
        self.find_place()
        self.keeper.claim()
        os.environ[_HELPER] = str(os.getpid())
        with self._lock:
            self._agreement.stand(Phase.WAITING)
            self.telling.arrive()
            self._stand(Phase.WAITING, restorable)

    def _stand(self, phase: Phase, restorable: bool) -> None:
        """Until told to go on, or until the proposal was raised or dropped. Collectives stay un-entered."""
        self.telling.tick(stands=True)
        agreement, steps = self._agreement, self.steps
        agreement.stand(phase)
        self.telling.untold.stands()
        told = phase is not Phase.WAITING or self.telling.link is None or self.telling.link.connected
        gos = 0
        try:
            while not agreement.is_over(steps.count):
                stop = agreement.begin()
                if stop is not None:
                    self._perform(stop, restorable)
                elif not self._lock.wait(None if told else _TELL_AFTER_S):
                    told = True
                    self._say_if_alone()
            gos = agreement.gos
            began = time.monotonic()
            if gos and agreement.tier == "swap":
                self.tiers.swap_back()
        finally:
            agreement.go_on(gos)
            now = steps.go_on()
            self.telling.untold.goes_on(None if phase is Phase.WAITING else steps.mark)
        for _ in range(gos):
            self.telling.send(said.going(steps.count, now - began))

    def find_place(self) -> None:
        """Which rank this is, where its script has said so by now."""
        if self.place.find():
            self.keeper.is_of(self.place.rank, self.place.world)

    def _say_if_alone(self) -> None:
        if self.telling.link is not None and not self.telling.link.connected:
            say(f"waiting for the agent at {self._environment.get('HS_AGENT_SOCKET')}")

    def _perform(self, stop: Stop, restorable: bool) -> None:
        """Called and left with the lock held; the long parts are done without it."""
        try:
            if stop.tier == "checkpoint":
                self._checkpoint(stop, restorable)
            else:
                self._hold(stop)
        finally:
            self._agreement.end()

    def _hold(self, stop: Stop) -> None:
        tier, began = self._agreement.tier, time.monotonic()
        if stop.tier == "swap" and tier != "swap":
            why = self.tiers.swap_out()
            if why:
                self.telling.send(said.failed(stop, "swap", why))
            else:
                tier = "swap"
        self._agreement.hold(tier)
        self._say_if_uncounted()
        self._say_held(stop, time.monotonic() - began)

    def _say_if_uncounted(self) -> None:
        handed = self.keeper.handed
        if self.steps.by_hand or handed is None or handed.data is not None:
            return
        if handed.has_stepped:  # else it may be evaluating before it trains
            self.advice.give(advice.UNCOUNTED)

    def _say_held(self, stop: Stop, seconds: float, digest: str = "") -> None:
        tier = self._agreement.tier
        moved = self.tiers.swapped_bytes if tier == "swap" else 0
        self.telling.send(
            said.held(stop, self.steps.count, tier, moved_bytes=moved, seconds=seconds, digest=digest)
        )

    def _checkpoint(self, stop: Stop, restorable: bool) -> None:
        agreement, steps, began = self._agreement, self.steps, time.monotonic()
        digest, why = self.tiers.write(
            stop, steps.count, lambda: agreement.abandoned, by_hand=steps.by_hand, restorable=restorable
        )
        if why:
            self.telling.send(said.failed(stop, "checkpoint", why))
            self.tell_can()
        elif stop.kind == "save":
            agreement.saved(stop)
            self.telling.send(said.saved(stop, steps.count, digest))
        else:
            agreement.wrote(stop)
            with undisturbed():
                self._say_held(stop, time.monotonic() - began, digest)
                self._leave_with(stop)
            self.tiers.clear(stop)
            if agreement.phase is Phase.HELD and not agreement.gos:
                self._say_held(stop, 0.0)

    def _leave_with(self, stop: Stop) -> None:
        """Its state is durable: gone without running user code. Ranks leave together, or torchrun ends the slower ones.

        While no agent hears it, it stays: nobody would know of the checkpoint, and torchrun would report a failure. It comes back
        from here where another node could not write its part.
        """
        if self.place.world > 1 or "TORCHELASTIC_RUN_ID" in self._environment:
            within_s = _LEAVE_WITHIN_S if self.place.nodes <= 1 else _LEAVE_WITHIN_S_OF_NODES
            began = time.monotonic()
            while not self._agreement.leave:
                if self._agreement.written is not stop:
                    return
                left_s = max(began, self._welcomed_s) + within_s - time.monotonic()
                if left_s <= 0:
                    break
                self._lock.wait(min(left_s, within_s))
        end_workers()
        vanish()

    # --- the reader's thread ---------------------------------------------------------------------------------------

    def _greet(self) -> List[Message]:
        self._blocked.forget()
        return self.telling.greet()

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
            self._agreement.hear_commit(message["id"], message.get("at_step"))
        elif kind == "go":
            self._heard_go()
        elif kind == "drop":
            self._heard_drop(message["id"])
        elif kind == "leave":
            self._heard_leave()

    def _heard_welcome(self, message: Message) -> None:
        self._welcomed_s = time.monotonic()
        self.steps.pace.step_s = max(0.0, float(message.get("pace_s", 0.0)))
        if self.telling.link is not None:
            self.telling.link.tick_s = max(0.01, float(message.get("progress_s", 1.0)))

    def _heard_stop(self, message: Message) -> None:
        stop = Stop(str(message["type"]), message)
        self.keeper.newest = max(self.keeper.newest, stop.generation)
        if not self._agreement.hear_stop(stop, self.steps.count, self.place.world):
            return
        self.keeper.whole = max(self.keeper.whole, stop.whole)
        if self.place.world > 1:  # else not asked: the commit is right behind
            self.telling.send(said.answer(stop, self.steps.count))

    def _heard_go(self) -> None:
        if self._agreement.hear_go():
            self.telling.send(said.going(self.steps.count, 0.0))

    def _heard_drop(self, number: int) -> None:
        saved = self._agreement.hear_drop(number)
        if saved is not None:
            self.tiers.clear(saved)

    def _heard_leave(self) -> None:
        if self._agreement.hear_leave() and not works_for_a_loader():
            hush()  # torchrun's launcher: it would call its ranks' leaving a failure, also while it looks for what to flush
            vanish()

    def _lost(self) -> None:
        """The agent is gone."""
        with self._lock:
            self._welcomed_s = math.inf
            self._agreement.lose_agent()
            self._lock.notify_all()

    def _tend(self) -> None:
        self.telling.tick()
        with self._lock:
            if self._agreement.phase is Phase.NEW:
                self._tell_blocked()
            self._give_up_if_others_wait()

    def _tell_blocked(self) -> None:
        """Before its first suspend point: those to whom it is in a call may stand at theirs, until all have got to one."""
        distributed = sys.modules.get("torch.distributed")  # as far as it has been imported
        if not getattr(distributed, "is_initialized", bool)():
            return
        on = self._blocked.news(self.trainer)
        if on is not None:
            self.find_place()
            self.telling.send(said.blocked(self.place.rank, self.place.world, on=on))

    # --- what it can -----------------------------------------------------------------------------------------------

    def cannot_be_saved(self, why: str) -> None:
        """From now on, for a reason that its user can mend."""
        self.keeper.unsavable = why
        self.advice.not_moved(why)
        self.tell_can()

    def tell_can(self) -> None:
        if self.live:
            self.telling.tell_can()

    def tell_restored(self, generation: int, note: str) -> None:
        self.keeper.whole = generation
        self.telling.send(
            said.restored(self.steps.count, generation, note, self.place.rank, self.place.world)
        )


_current: Optional[Runtime] = None


def current() -> Runtime:
    global _current
    if _current is None:
        _current = Runtime(dict(os.environ))
    return _current

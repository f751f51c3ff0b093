"""A rank's side of the agreement on a stop: from when it is asked for until it is done, refused, dropped or given up. No I/O.

The training thread only ever bumps counters and looks at one flag (`armed`) at a suspend point. The flag and `passed` make a
Dekker pair: the training thread writes `passed`, then reads `armed`; who hears the agent writes `armed`, then reads `passed`. So
a stop that was accepted is always seen.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from hs_job.places import Places
    from hs_job.stop import Stop
    from hs_job.untold import Mark

NOWHERE_S, NOWHERE_STEPS = 10.0, 20


class Phase(Enum):
    NEW = "new"  # no suspend point yet
    WAITING = "waiting"  # at the first one
    RUNNING = "running"
    PARKED = "parked"  # at a proposed step, not committed yet
    HELD = "held"


class Agreement:
    """Its owner's lock is held in every call. `nodes`: of the job. `armed`: there is an agent who may ask."""

    def __init__(self, nodes: int, *, armed: bool) -> None:
        self.armed = armed  # something to do at the next suspend point
        self.passed = -1  # steps at which this rank can no longer stop
        self.phase = Phase.NEW
        self.tier = "hold"  # by which it keeps its state while it stands
        self.stop: Optional[Stop] = None  # the newest, until it is begun
        self.abandoned = False  # what it is doing: another node could not
        self.written: Optional[Stop] = None  # its checkpoint is durable, and with that the rank leaves
        self.leave = False
        self.last_id = 0
        self._doing: Optional[Stop] = None
        self._saved: Optional[Stop] = None  # the newest one that the rank has gone on after
        self._gos = 0  # turns that were begun while it stood
        self._before = (Phase.NEW, "hold")  # how it stood until its checkpoint was written
        self._nodes = nodes

    # --- what the agent says ---------------------------------------------------------------------------------------

    def hear_stop(self, stop: Stop, step: int, world: int) -> bool:
        """Whether it counts; if so, whether it was accepted is in it. `step`: at which the rank is."""
        self.last_id = max(self.last_id, stop.id)
        if self.phase is Phase.HELD and not self._gos and stop.at_step > step:
            return False  # an earlier agent's stop got here first: our `held` tells, and we will be let go
        if self.stop is not None and self.stop.committed and self._is_bound_by(self.stop):
            return False  # likewise, before it has said so
        self.armed = True  # before `passed` is read
        stands = self.phase in (Phase.WAITING, Phase.HELD, Phase.PARKED) and not self._gos
        stop.accepted = stands or world == 1 or self.passed < stop.at_step
        self.stop = stop if stop.accepted else None
        return True

    def hear_commit(self, number: int, at_step: Optional[int]) -> None:
        """`at_step`: None where it is not said which."""
        stop = self.stop
        if stop is not None and stop.id == number and at_step in (None, stop.at_step):
            stop.committed = True

    def hear_go(self) -> bool:
        """Whether it trains already: nothing else will say that it does."""
        if self.phase is Phase.NEW:
            return False
        self.stop = None
        if self.phase is Phase.RUNNING:
            return True
        self._gos += 1
        return False

    def hear_drop(self, number: int) -> Optional[Stop]:
        """The one that was saved, if it was that: it is worth nothing."""
        if self.stop is not None and self.stop.id == number:
            self.stop = None
        if self._doing is not None and self._doing.id == number:
            self.abandoned = True
        if self.written is not None and self.written.id == number:
            self.written = None
            self.phase, self.tier = self._before
        if self._saved is None or self._saved.id != number:
            return None
        saved, self._saved = self._saved, None
        return saved

    def hear_leave(self) -> bool:
        """Whether it does so at once, as nothing of it has begun."""
        self.leave = True
        return self.phase is Phase.NEW

    def lose_agent(self) -> None:
        """What all ranks had not agreed on yet will not be; what they had, will."""
        if self.stop is not None and not self.stop.committed and not self._is_bound_by(self.stop):
            self.stop = None

    # --- what the rank does ----------------------------------------------------------------------------------------

    def stops_at(self, step: int, *, saves: bool) -> bool:
        """`saves`: whoever wants a checkpoint gets one here, or it can be had nowhere."""
        stop = self.stop
        return stop is not None and step >= stop.at_step and (saves or stop.tier != "checkpoint")

    def passes(self) -> None:
        """It does not stop at this suspend point."""
        self.armed = self.stop is not None

    def is_over(self, step: int) -> bool:
        """It stands no longer: a turn was begun, or the proposal was raised or dropped, also where it was agreed on before this was seen."""
        raised = self.phase is Phase.PARKED and (self.stop is None or step < self.stop.at_step)
        return raised or self._gos > 0

    def stand(self, phase: Phase) -> None:
        self.phase = phase

    def begin(self) -> Optional[Stop]:
        """What all have agreed on, and is to be done now that it stands; None: nothing."""
        stop = self.stop
        if stop is None or not stop.committed:
            return None
        self.stop, self._doing, self.abandoned = None, stop, False
        return stop

    def hold(self, tier: str) -> None:
        """Having done so."""
        self.phase, self.tier = Phase.HELD, tier

    def end(self) -> None:
        self._doing = None

    def saved(self, stop: Stop) -> None:
        self._saved = stop

    def wrote(self, stop: Stop) -> None:
        self._before = self.phase, self.tier
        self.phase, self.tier, self.written = Phase.HELD, "checkpoint", stop

    @property
    def gos(self) -> int:
        """Turns that were begun since it stands."""
        return self._gos

    def go_on(self, gos: int) -> None:
        """`gos`: it has seen so many."""
        self.phase, self.tier, self.armed = Phase.RUNNING, "hold", True
        self._gos -= gos

    # --- what it gives up ------------------------------------------------------------------------------------------

    def give_up_astray(self, mark: Mark, places: Places, now_s: float) -> Optional[Stop]:
        """A stop of a rank that trains on and comes to no place where it could be saved: who waits for that waits no longer."""
        stop = self.stop
        if stop is None or mark[0] - stop.at_step < NOWHERE_STEPS:
            return None
        return self._give_up(stop, stop.heard_s, mark, places, now_s)

    def give_up_waited_for(self, mark: Mark, places: Places, now_s: float) -> Optional[Stop]:
        """Likewise, where it is past the step at which all were to stop and trains on no more: others stand there, and it is in a call to them."""
        stop = self.stop
        if stop is None or self.phase is not Phase.RUNNING or self.passed < stop.at_step:
            return None
        return self._give_up(stop, max(stop.heard_s, mark[1]), mark, places, now_s)

    def _give_up(
        self, stop: Stop, since_s: float, mark: Mark, places: Places, now_s: float
    ) -> Optional[Stop]:
        if not stop.committed or now_s - since_s < NOWHERE_S or not places.are_left_behind(mark[0]):
            return None
        self.stop, self.armed = None, False
        return stop

    # --- what binds it ---------------------------------------------------------------------------------------------

    @property
    def bound(self) -> Optional[Stop]:
        """By which the rank will leave, agent or not."""
        bound = self.written or (None if self.abandoned else self._doing) or self.stop
        return bound if bound is not None and self._is_bound_by(bound) else None

    def _is_bound_by(self, stop: Stop) -> bool:
        """Those on other nodes may have heard the commit that is lost here."""
        return self._nodes > 1 and stop.binds

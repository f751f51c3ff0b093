"""What the agent has asked a rank for, from when it is heard to when it is done or dropped."""

from __future__ import annotations

from typing import Optional

from hs_job.stop import Stop


class Orders:
    """Its owner's lock is held in every call. `nodes`: of the job."""

    def __init__(self, nodes: int) -> None:
        self.stop: Optional[Stop] = None  # the newest, until it is begun
        self.doing: Optional[Stop] = None
        self.abandoned = False  # what it is doing: another node could not
        self.written: Optional[Stop] = None  # its checkpoint is durable, and with that the rank leaves
        self.saved: Optional[Stop] = None  # the newest one that the rank has gone on after
        self.gos = 0  # turns that were begun while it stood
        self.leave = False
        self.last_id = 0
        self._nodes = nodes

    def hear(self, stop: Stop, held_at: Optional[int]) -> bool:
        """Whether it counts. `held_at`: the step at which the rank is held, if it is."""
        self.last_id = max(self.last_id, stop.id)
        if held_at is not None and not self.gos and stop.at_step > held_at:
            return False  # an earlier agent's stop got here first: our `held` tells, and we will be let go
        if self.stop is not None and self.stop.committed and self.is_bound_by(self.stop):
            return False  # likewise, before it has said so
        self.stop = stop
        return True

    def hear_commit(self, number: int, at_step: Optional[int]) -> None:
        """`at_step`: None where it is not said which."""
        stop = self.stop
        if stop is not None and stop.id == number and at_step in (None, stop.at_step):
            stop.committed = True

    def hear_drop(self, number: int) -> Optional[Stop]:
        """The one that was saved, if it was that: it is worth nothing."""
        if self.stop is not None and self.stop.id == number:
            self.stop = None
        if self.doing is not None and self.doing.id == number:
            self.abandoned = True
        if self.saved is None or self.saved.id != number:
            return None
        saved, self.saved = self.saved, None
        return saved

    def lose_agent(self) -> None:
        """What all ranks had not agreed on yet will not be; what they had, will."""
        if self.stop is not None and not self.stop.committed and not self.is_bound_by(self.stop):
            self.stop = None

    def begin(self, stop: Stop) -> None:
        self.stop, self.doing, self.abandoned = None, stop, False

    @property
    def bound(self) -> Optional[Stop]:
        """By which the rank will leave, agent or not."""
        bound = self.written or (None if self.abandoned else self.doing) or self.stop
        return bound if bound is not None and self.is_bound_by(bound) else None

    def is_bound_by(self, stop: Stop) -> bool:
        """Those on other nodes may have heard the commit that is lost here."""
        return self._nodes > 1 and stop.binds

"""A job's end, and what it means for those that wait for it."""

from collections import deque
from dataclasses import replace

from hs_core.cluster import admission, states
from hs_core.cluster.contents import Contents
from hs_core.cluster.states import Happening
from hs_core.cluster.why import exit_text
from hs_core.model import After, Job, JobState
from hs_core.names import HostName, JobId
from hs_core.reports import Exit


class Ends:
    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._asking = contents.asking
        self._book = contents.book
        self._fact = contents.fact
        self._put = contents.put
        self._releasing = deque[JobId]()  # have ended in this event; their waiters are yet to be told

    def end(
        self, row: Job, happening: Happening, ended: Exit, now_s: float, at_s: float | None = None
    ) -> None:
        state = states.after(row, happening)
        self._contents.told.over(row, row.hosts)  # the next Wanted says so anyway
        over = replace(
            row,
            state=state,
            exit=ended,
            ended_s=now_s if at_s is None else at_s,
            move=None,
            stored=None,
            given_up=(),
            left_behind=(),
        )
        self._put(over, now_s, at_s=at_s)
        self._asking.stale = (
            self._asking.stale
            or self._contents.policy.needs.ends
            or self._book.makes_room_in_array(row)
            or any(map(self._idles_beside_gangs, row.hosts))
        )
        self._contents.forget_job(row, now_s)
        self._fact(now_s, str(state), f"it {_ENDED_WORDS[state]} ({exit_text(ended)})", job=row.id)
        self._release_waiters(row.id, now_s)
        for gone in self._book.evict(spare=self._contents.event.before):  # the driver is yet to look at these
            self._contents.stories.pop(gone, None)

    def _idles_beside_gangs(self, name: HostName) -> bool:
        """It has parts of gangs over several servers, and GPUs that no other job there asks for: no server's own stride hands them to a gang."""
        if self._book.spanned.get(name, 0) <= 0:
            return False
        rows = [self._book.live[job] for job in self._book.at_host.get(name, ())]
        asked = sum([row.gpus for row in rows if row.nodes == 1 and not row.paused])
        return asked < len(self._book.gpus.get(name, ()))

    def cancel(self, row: Job, by: str, now_s: float, *, why: str = "") -> None:
        if row.state.ended or row.state is JobState.CANCELLING:
            return
        self._asking.stale = True
        if row.hosts:
            state = states.after(row, Happening.CANCELLED)
            self._put(replace(row, state=state, cancelled_by=by, move=None), now_s)
            ends = "ends" if len(row.hosts) == 1 else "end"
            self._fact(now_s, "cancelled", f"{by} cancelled it; {', '.join(row.hosts)} {ends} it", job=row.id)
            return
        ended = Exit(why=why or f"cancelled by {by}")
        self.end(replace(row, cancelled_by=by), Happening.DROPPED, ended, now_s)

    def _release_waiters(self, job: JobId, now_s: float) -> None:
        """Of a chain, which may be of thousands, those that end with it come one after the other, never one within the other."""
        self._releasing.append(job)
        if len(self._releasing) > 1:
            return
        while self._releasing:
            self._released_by(self._releasing[0], now_s)
            self._releasing.popleft()

    def _released_by(self, job: JobId, now_s: float) -> None:
        state = self._book.jobs[job].state
        for waiter, conditions in sorted(self._book.waiters.get(job, {}).items()):
            row = self._book.live.get(waiter)
            if row is None:
                continue
            for condition in conditions:
                if admission.dependency(condition, state) is admission.Dependency.NEVER:
                    why = admission.never_text(After(job=job, condition=condition), state)
                    self.cancel(row, "its dependency", now_s, why=why)
                    break
            else:
                self._asking.stale = True
                self._book.met(waiter)


_ENDED_WORDS = {
    JobState.SUCCEEDED: "succeeded",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "was cancelled",
}

"""A checkpoint, or a part of one, that cannot be had any more from where it lies."""

from dataclasses import replace

from hs_core.cluster import checkpoints, states
from hs_core.cluster.anew import Anew
from hs_core.cluster.contents import Contents
from hs_core.cluster.states import Happening
from hs_core.model import Job, Stored


class Sources:
    def __init__(self, contents: Contents, anew: Anew) -> None:
        self._contents = contents
        self._book = contents.book
        self._fact = contents.fact
        self._put = contents.put
        self._anew = anew

    def gone(self, row: Job, why: str, now_s: float) -> None:
        if row.cancelled_by or checkpoints.taken_up(row):
            # A server that wrote one part of it and took up another has both.
            apart = row.cancelled_by or row.portions or (row.stored is not None and row.stored.copies)
            self._put(replace(row, stored=None, origin=None if apart else row.stored), now_s)
        else:
            self.give_up(row, why, now_s)

    def give_up(self, row: Job, why: str, now_s: float) -> None:
        """Of its checkpoint this cannot be had: what is left will do, or it begins afresh where it is, or wherever it is placed."""
        stored = row.stored
        assert stored is not None
        if row.cancelled_by or checkpoints.taken_up(row):
            return
        rest = checkpoints.within(row, self._anew.keepers(row))
        if stored.copies or row.portions:
            self._give_up_part(row, rest, why, now_s)
            return
        if rest is not None:
            text = f"a part of its checkpoint of step {stored.step} is lost: {why}; what {', '.join(rest.servers)} has will do"
            self._fact(now_s, "part-lost", text, job=row.id)
            self._put(replace(row, stored=rest), now_s)
            return
        if not row.hosts and checkpoints.within(row, self._book.hosts) is not None:
            self._fact(now_s, "source-away", f"{why}; {self._anew.unless_back(row, stored)}", job=row.id)
            self._book.reconsider(row.id)
            self._contents.asking.stale = True
            return
        ending = any(part.exit is not None for part in row.reports.values())  # its end decides what then is
        if ending and self._anew.newest(row) is not None:
            self._put(replace(row, stored=None), now_s)
            return
        if (sought := checkpoints.sought(row, stored)) is not None:
            text = f"{why}; its checkpoint of step {stored.step} is looked for in {row.spec.checkpoint_dir}"
            self._fact(now_s, "source-away", text, job=row.id)
            self._put(replace(row, stored=sought), now_s)
            return
        lost_s = checkpoints.lost_work_gpu_s(row, 0)
        text = f"its checkpoint of step {stored.step} is lost: {why}{'' if ending else '; it starts afresh'}"
        self._fact(now_s, "lost", text, job=row.id, data={"lost_gpu_s": round(lost_s, 3)})
        row = replace(row, past_lost_gpu_s=row.past_lost_gpu_s + lost_s)
        if ending:
            self._put(replace(row, stored=None), now_s)
            return
        again = self._anew.next_epoch(row)
        anew = row.hosts and not row.cancelled_by
        state = states.after(row, Happening.REQUEUED, Happening.PLACED) if anew else row.state
        self._put(replace(again, stored=None, state=state), now_s)

    def _give_up_part(self, row: Job, rest: Stored | None, why: str, now_s: float) -> None:
        """Of what copies begin with, or are to be averaged to, some cannot be had: the rest is all there is. Nobody has begun from it yet, so it is placed anew."""
        assert row.stored is not None
        step = rest.step if rest is not None else 0
        lost_s = 0.0
        if row.stored.step > 0:
            lost_s = max(0.0, row.gpu_s - row.past_lost_gpu_s) * (1.0 - step / row.stored.step)
        gone = f"the average of step {row.stored.step} cannot be made any more"
        if not row.stored.copies:
            gone = f"its checkpoint of step {row.stored.step} is lost"
        then = f"goes on from step {step}" if rest is not None else "starts afresh"
        text = f"{gone}: {why}; it {then}"
        self._fact(now_s, "lost", text, job=row.id, data={"lost_gpu_s": round(lost_s, 3)})
        again = self._anew.next_epoch(replace(row, past_lost_gpu_s=row.past_lost_gpu_s + lost_s))
        hosts = row.hosts if row.cancelled_by else ()
        state = states.after(row, Happening.REQUEUED) if row.hosts and not row.cancelled_by else row.state
        portions = row.portions if hosts else ()
        self._put(replace(again, stored=rest, hosts=hosts, portions=portions, state=state), now_s)

"""What each user received of each GPU model, and was entitled to: totals charged from the jobs' cumulative counters and over time, and samples of them.

Totals are written in the same transaction as the rows they are charged from, so that after any crash both say the same. What users were
entitled to is in no row: a crash takes what has come together since the last sample.
"""

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from operator import itemgetter

from hs_controller.dues import Dues
from hs_controller.rows import Account, Sample, Usage
from hs_controller.tables import COARSE, FINE
from hs_core.model import Job

COARSE_S = 600.0
RING = 720  # fine samples an account has in memory


@dataclass(frozen=True, slots=True)
class _Seen:
    """A job's counters as they were last charged."""

    epoch: int = 0
    gpu_s: Mapping[str, float] | None = None
    lost_gpu_s: float = 0.0
    suspends: int = 0
    model: str = ""  # of its first server; empty: it never had a home


class Ledger:
    """`jobs`: as they are in the journal, whose `totals` they have been charged to."""

    def __init__(
        self,
        totals: Mapping[Account, Usage],
        jobs: Iterable[Job],
        samples: Iterable[Sample],
        *,
        now_s: float,
        every_s: float,
    ) -> None:
        self.totals = dict(totals)
        self._seen = {job.id: _seen(job) for job in jobs}
        self._dirty: set[Account] = set()
        self._grown: set[Account] = set()  # since `sample` was told the time last
        self._grown_s: dict[
            Account, float
        ] = {}  # when they did last: where nothing happens any more nobody takes a sample of it
        self._rings: dict[Account, deque[tuple[float, Usage]]] = {}
        for sample in samples:
            self._ring(sample.account).append((sample.at_s, sample.usage))
        self._every_s = every_s
        self._fine_s: float | None = None  # when samples were last taken
        self._coarse_s = now_s
        self._coarse = dict(totals)  # as of then
        self._coarse_taken: dict[Account, float] = {}  # when each was last written, since this process began
        self._since_s = min((ring[0][0] for ring in self._rings.values()), default=now_s)
        self.newest_s = max((ring[-1][0] for ring in self._rings.values()), default=now_s)
        """When samples were taken last, before this ledger was made."""
        self._began_s = now_s
        self._dues = Dues()

    def _ring(self, account: Account) -> deque[tuple[float, Usage]]:
        return self._rings.setdefault(account, deque(maxlen=RING))

    def charge(self, job: Job) -> Mapping[Account, Usage]:
        """Charges what the counters grew by, and says what that is. Called again with the same row it does nothing."""
        old = self._seen.get(job.id, _Seen())
        new = _seen(job)
        before = old.gpu_s or {}
        after = new.gpu_s or {}
        added: dict[Account, Usage] = {}

        def add(model: str, more: Usage) -> None:
            account = (job.user, model)
            added[account] = added.get(account, Usage()) + more

        for model, gpu_s in after.items():
            grown_s = gpu_s - before.get(model, 0.0)
            if grown_s > 0:
                add(model, Usage(gpu_s=grown_s, jobs=0 if before.get(model) else 1))
        lost_s = max(0.0, new.lost_gpu_s - old.lost_gpu_s)
        # The last one of an incarnation, through a checkpoint, is heard of as the next has its home.
        left = new.suspends if new.epoch == old.epoch else job.past_switches.suspends
        for model, suspends in (
            (old.model or new.model, left - old.suspends),
            (new.model, new.suspends - left),
        ):
            if suspends > 0:
                add(model, Usage(suspends=suspends))
        if lost_s:
            for model, nodes in Counter(job.gpu_models).items():
                add(model, Usage(lost_gpu_s=lost_s * nodes / len(job.gpu_models)))
        if job.state.ended:
            self._seen.pop(job.id, None)  # an ended job's row never changes again
        else:
            self._seen[job.id] = new
        for account, more in added.items():
            self.totals[account] = self.totals.get(account, Usage()) + more
        self._dirty |= added.keys()
        self._grown |= added.keys()
        return added

    def goes_on(self, job: Job) -> bool:
        """Its incarnation is the one that was charged last."""
        return job.id in self._seen and self._seen[job.id].epoch == job.epoch

    def entitle(self, gpus: Mapping[Account, float], now_s: float) -> None:
        """To so many GPUs from now on; the very same mapping says nothing new."""
        self._dues.entitle(gpus, now_s)

    def spread(self, account: Account, gpu_s: float, since_s: float, until_s: float) -> float:
        """So much of what was charged had been received all that time: samples that were taken meanwhile have their part of it. All at once it would be more GPUs than there are.

        What was received while there was no controller counts as what the user was entitled to: nobody decided then, nor
        knows better. The answer is how much that is.
        """
        ring = self._ring(account)
        if self._fine_s is not None and (not ring or ring[-1][0] < self._fine_s):  # as in `sample`
            ring.append((self._fine_s, ring[-1][1] if ring else Usage()))
        per_s = gpu_s / max(until_s - since_s, 1e-9)

        def unled_s(at_s: float) -> float:
            """Of the time until then."""
            return max(0.0, min(at_s, self._began_s) - max(since_s, self.newest_s))

        for at in reversed(range(len(ring))):
            at_s, usage = ring[at]
            if at_s <= since_s:
                break
            received_s = per_s * min(at_s - since_s, until_s - since_s)
            ring[at] = at_s, usage + Usage(gpu_s=received_s, entitled_gpu_s=per_s * unled_s(at_s))
        if due_s := per_s * unled_s(until_s):
            self._add_due(account, due_s)
        return due_s

    def _add_due(self, account: Account, gpu_s: float) -> None:
        self.totals[account] = self.totals.get(account, Usage()) + Usage(entitled_gpu_s=gpu_s)
        self._dirty.add(account)

    def usage(self, now_s: float) -> dict[Account, Usage]:
        """The totals, with what users were entitled to until now."""
        return {
            account: replace(
                self.totals.get(account, Usage()), entitled_gpu_s=self.entitled_gpu_s(account, now_s)
            )
            for account in self.totals.keys() | self._dues.accounts
        }

    def take(self) -> dict[Account, Usage]:
        """The totals that changed since they were last taken."""
        taken = {account: self.totals[account] for account in self._dirty}
        self._dirty.clear()
        return taken

    def sample(self, now_s: float) -> tuple[Sample, ...]:
        """What is to be remembered of this moment, if it is time: only accounts that changed. To be asked for before `take`."""
        self._grown_s |= dict.fromkeys(self._grown, now_s)
        self._grown.clear()
        due = self._fine_s is None or now_s - self._fine_s >= self._every_s
        if not due:
            return ()
        for account, gpu_s in self._dues.take(now_s).items():
            self._add_due(account, gpu_s)
        taken: list[Sample] = []
        for account, usage in sorted(self.totals.items()):
            ring = self._ring(account)
            if ring and ring[-1][1] == usage:
                continue
            # After a pause: it had received nothing until the last moment when we looked.
            if self._fine_s is not None and (not ring or ring[-1][0] < self._fine_s):
                idle = (self._fine_s, ring[-1][1] if ring else Usage())
                ring.append(idle)
                taken.append(Sample(tier=FINE, at_s=idle[0], account=account, usage=idle[1]))
            ring.append((now_s, usage))
            taken.append(Sample(tier=FINE, at_s=now_s, account=account, usage=usage))
        self._fine_s = now_s
        if now_s - self._coarse_s >= COARSE_S:
            taken.extend(self._sample_coarse(now_s))
        return tuple(taken)

    def _sample_coarse(self, now_s: float) -> Iterable[Sample]:
        looked_s, self._coarse_s = self._coarse_s, now_s
        for account, usage in sorted(self.totals.items()):
            old = self._coarse.get(account, Usage())
            if old == usage:
                continue
            if self._coarse_taken.get(account) != looked_s:  # as in `sample`: nothing until then
                yield Sample(tier=COARSE, at_s=looked_s, account=account, usage=old)
            yield Sample(tier=COARSE, at_s=now_s, account=account, usage=usage)
            self._coarse[account], self._coarse_taken[account] = usage, now_s

    def covered_s(self, window_s: float, now_s: float) -> float:
        """How much of the window there are samples for."""
        return max(0.0, min(window_s, now_s - self._since_s, RING / 2 * self._every_s))

    def gpu_s_at(self, account: Account, at_s: float) -> float:
        """GPU-seconds received by then, on a straight line between samples."""
        ring = self._rings.get(account)
        total_s, grown_s = self.totals.get(account, Usage()).gpu_s, self._grown_s.get(account, inf)
        if at_s >= grown_s:
            return total_s
        if not ring:  # nothing was kept: all that it had when this began was long ago
            return self._coarse.get(account, Usage()).gpu_s
        after = bisect_right(ring, at_s, key=itemgetter(0))
        if after == 0:
            return ring[0][1].gpu_s
        if after == len(ring):
            return self._since_sample(account, at_s).gpu_s
        (start_s, start), (end_s, end) = ring[after - 1], ring[after]
        return start.towards(end, (at_s - start_s) / (end_s - start_s)).gpu_s

    def unsampled_at(self, account: Account, at_s: float) -> Usage | None:
        """All that it had received by then, and was entitled to, where its newest sample is older; None: it is not, or there is none."""
        ring = self._rings.get(account)
        if not ring or at_s < ring[-1][0]:
            return None
        entitled_gpu_s = self._entitled_gpu_s_at(account, at_s)
        return replace(self._since_sample(account, at_s), entitled_gpu_s=entitled_gpu_s)

    def _since_sample(self, account: Account, at_s: float) -> Usage:
        start_s, start = self._rings[account][-1]
        total, grown_s = self.totals.get(account, Usage()), self._grown_s.get(account, inf)
        if at_s >= grown_s:
            return total
        if self._fine_s is not None:  # nothing until the last moment when we looked, as in `sample`
            start_s = max(start_s, self._fine_s)
        if grown_s == inf or at_s <= start_s:
            return start
        return start.towards(total, (at_s - start_s) / (grown_s - start_s))

    def entitled_gpu_s(self, account: Account, now_s: float) -> float:
        """Since ever."""
        total = self.totals.get(account, Usage())
        return total.entitled_gpu_s + self._dues.untaken(account, now_s)

    def _entitled_gpu_s_at(self, account: Account, at_s: float) -> float:
        """By then, on a straight line between samples."""
        if at_s >= self._dues.since_s:
            return self.entitled_gpu_s(account, at_s)
        ring = self._rings.get(account)
        if not ring:
            return self._coarse.get(account, Usage()).entitled_gpu_s
        after = bisect_right(ring, at_s, key=itemgetter(0))
        if after == 0:
            return ring[0][1].entitled_gpu_s
        start_s, start = ring[after - 1]
        if after < len(ring):
            end_s, end = ring[after]
            return start.towards(end, (at_s - start_s) / (end_s - start_s)).entitled_gpu_s
        if self._fine_s is not None:  # to nothing until the last moment when we looked, as in `sample`
            start_s = max(start_s, self._fine_s)
        if at_s <= start_s:
            return start.entitled_gpu_s
        end_s = self._dues.since_s
        grown = self.entitled_gpu_s(account, end_s) - start.entitled_gpu_s
        return start.entitled_gpu_s + grown * (at_s - start_s) / (end_s - start_s)

    def due_gpus(self, account: Account, window_s: float, now_s: float) -> float:
        """What it was entitled to: the mean over what is covered of the window."""
        covered_s = self.covered_s(window_s, now_s)
        if covered_s <= 0:
            return 0.0
        before = self._entitled_gpu_s_at(account, now_s - covered_s)
        return max(0.0, self.entitled_gpu_s(account, now_s) - before) / covered_s

    def received_gpus(self, account: Account, window_s: float, now_s: float) -> float:
        """The mean over what is covered of the window."""
        covered_s = self.covered_s(window_s, now_s)
        total_s = self.totals.get(account, Usage()).gpu_s
        if covered_s <= 0:
            return 0.0
        return max(0.0, total_s - self.gpu_s_at(account, now_s - covered_s)) / covered_s


def _seen(job: Job) -> _Seen:
    report = job.report
    return _Seen(
        epoch=job.epoch,
        gpu_s=dict(job.gpu_s_by_model),
        lost_gpu_s=job.past_lost_gpu_s + (report.lost_gpu_s if report else 0.0),
        suspends=job.past_switches.suspends + (report.suspends if report else 0),
        model=job.gpu_models[0] if job.gpu_models else "",
    )

"""Several moves within a pool at once (Gandiva_fair, 3.3), where one alone would gain nothing: small jobs for the GPUs beside a gang, or out of the way of those who wait elsewhere."""

from collections.abc import Iterable, Sequence

from hs_core.mechanism.changes import Change
from hs_core.mechanism.time_load import Weighed
from hs_core.mechanism.timed import Timed, without
from hs_core.names import JobId
from hs_core.policy import JobFacts

TOGETHER = 4  # jobs that are moved together, and servers from which
SLACK = 1e-9


class Groups:
    def __init__(self, timed: Timed) -> None:
        self._timed, self._mover, self._pool = timed, timed.mover, timed.pool
        self._mean, self._limits = timed.mean, timed.limits

    def fill(self, target: int, sources: Sequence[int]) -> Sequence[Change]:
        """Small jobs for the GPUs beside a gang, all at once: one alone would keep the gang from as many. One of each server; before that, more of these as long as each saves enough, if it does so for good."""
        gpus = self._timed.gpus[target]
        room = gpus - sum([width for width, _ in self._timed.weigh(target) if 2 * width <= gpus])
        if room <= 0:
            return ()
        draft = Draft(self._timed, packs=True)
        others = [at for at in sources if at != target]
        for at in sorted(others, key=lambda at: (-self._timed.load(at), at)):
            small = [job for job in self._timed.movable(at) if job.gang <= room and 2 * job.gang <= gpus]
            for job in sorted(small, key=self._mover.cost_of):
                if self._timed.may(job, target):
                    draft.put(job, at, target)
                    room -= job.gang
                    break
            if room == 0:
                break
        return (room and self._with_more(draft, target, room)) or self._worth(draft)

    def _with_more(self, few: "Draft", target: int, room: int) -> Sequence[Change]:
        """Its changes and, of each one's kind from the same server, others for so many GPUs."""
        draft = Draft(self._timed, packs=True)
        for change in few.changes:
            draft.put(change.job, change.source, target)
        for change in few.changes:
            at, kind = change.source, (change.job.gang, change.job.user)
            kin = [
                job for job in draft.jobs(at) if (job.gang, job.user) == kind and self._timed.may(job, target)
            ]
            least = self._timed.least_for([change]) * self._mean**2
            for job in sorted(kin, key=self._mover.cost_of)[: room // change.job.gang]:
                if draft.after(job, at, target) > draft.squares - least:
                    break
                draft.put(job, at, target)
                room -= job.gang
        changes = draft.changes
        if len(changes) == len(few.changes):
            return ()
        return self._worth(draft) if self._timed.lasts(changes) else ()

    def vacate(self, target: int, some: Sequence[int], waits: Sequence[int]) -> Sequence[Change]:
        """A server whose few small jobs leave GPUs idle: they go where they are least in the way, and gangs that wait elsewhere come instead."""
        gpus = self._timed.gpus[target]
        here = [job for job in self._timed.jobs(target) if 2 * job.gang <= gpus]
        return self._worth(self._replaced(target, here, gpus // 2 + 1, some, waits))

    def widen(self, target: int, some: Sequence[int], waits: Sequence[int]) -> Sequence[Change]:
        """A server on which nobody waits and some GPUs idle: its narrowest jobs go where they are least in the way, all or as few as will do, and wider ones that wait elsewhere come instead."""
        here = self._timed.jobs(target)
        if not here:
            return ()
        narrowest = min(job.gang for job in here)
        leave = [job for job in here if job.gang == narrowest]
        for few in dict.fromkeys([len(leave), *range(1, min(len(leave), TOGETHER))]):
            draft = self._replaced(target, leave[:few], narrowest + 1, some, waits, for_wider=True)
            if len(draft.changes) > few and (changes := self._worth(draft)):
                return changes
        return ()

    def _replaced(
        self,
        target: int,
        leave: Sequence[JobFacts],
        least: int,
        some: Sequence[int],
        waits: Sequence[int],
        *,
        for_wider: bool = False,
    ) -> "Draft":
        """These by others of `least` GPUs or more; nobody, if one of them may not go, or nowhere can be. `for_wider`: or if there are no others."""
        draft, tried = Draft(self._timed, packs=True), self._limits.servers_tried
        if not all(self._mover.may_go(job) for job in leave):
            return draft
        others = [at for at in dict.fromkeys([*some, *waits[-tried:]]) if at != target]
        leavers = sorted(leave, key=lambda job: (-job.gang, job.id))
        homes = [
            [at for at in others if self._timed.accepts[at] and fits[at]]
            for fits in map(self._timed.fits, leavers)
        ]
        if not all(homes):
            return draft
        wider = {
            at: [job for job in self._timed.movable(at) if job.gang >= least and self._timed.may(job, target)]
            for at in waits[:tried]
        }
        if for_wider and not any(wider.values()):
            return draft
        for job, there in zip(leavers, homes, strict=True):
            draft.put(job, target, draft.least(job, target, there))
        for at, jobs in wider.items():
            for job in sorted(jobs, key=self._mover.cost_of) if at != target else ():
                if draft.after(job, at, target) < draft.squares:
                    draft.put(job, at, target)
        return draft

    def several(self, source: int, targets: Sequence[int]) -> Sequence[Change]:
        """Small jobs where to be rid of one is no relief: those that need the server for longest, or the narrowest, for each leaves GPUs idle in its turn."""
        if self._timed.load(source) <= (1.0 + self._limits.load_gap) * self._mean:
            return ()
        urgent, weight = self._timed.urgent(source), self._pool.per_gpu
        small = [job for job in self._timed.jobs(source) if 2 * job.gang <= self._timed.gpus[source]]
        if len(small) < 2:
            return ()
        heaviest = max(weight.get(job.user, 0.0) for job in small)
        narrowest = min(job.gang for job in small)
        heavy = [job for job in small if weight.get(job.user, 0.0) == heaviest]
        narrow = [job for job in small if job.gang == narrowest]
        for group in (heavy, narrow) if heavy != narrow else (heavy,):
            if not 1 < len(group) <= TOGETHER or not all(
                self._mover.may_go(job, urgent=urgent) for job in group
            ):
                continue
            draft = Draft(self._timed)
            for job in sorted(group, key=self._mover.cost_of):
                fits = self._timed.fits(job)
                homes = [at for at in targets if at != source and self._timed.accepts[at] and fits[at]]
                if homes:
                    draft.put(job, source, draft.least(job, source, homes))
            if changes := self._worth(draft):
                return changes
        return ()

    def _worth(self, draft: "Draft") -> Sequence[Change]:
        """Its changes, if they save enough for what they move."""
        changes = draft.changes
        if not changes:
            return ()
        squares, least = draft.squares / self._mean**2, self._timed.least_for(changes)
        good = squares <= -least and self._mover.affords([change.job for change in changes])
        holds = good and self._timed.holds(squares, least, [change.step for change in changes])
        return changes if holds else ()


class Draft:
    """Several moves thought of together."""

    def __init__(self, timed: Timed, *, packs: bool = False) -> None:
        self._timed = timed
        self._packs = packs
        self._jobs: dict[int, list[JobFacts]] = {}
        self._weighed: dict[int, Weighed] = {}
        self._load: dict[int, float] = {}
        self._left: dict[tuple[JobId, int], float] = {}  # load without it, until the next is put somewhere
        self.changes: list[Change] = []
        self.squares = 0.0  # times GPUs: more than before

    def put(self, job: JobFacts, source: int, target: int) -> None:
        one = self._one(job)
        self.squares = self.after(job, source, target)
        load = {source: self._left[job.id, source], target: self._time_with(target, one)}
        left, came = without(self.weigh(source), self.jobs(source), job), self.weigh(target) + one
        self._jobs[source] = [other for other in self.jobs(source) if other.id != job.id]
        self._jobs[target] = [*self.jobs(target), job]
        self._weighed[source], self._weighed[target] = left, came
        self._load |= load
        self._left.clear()
        self.changes.append(Change(0.0, self._timed.mover.cost_of(job), target, source, job, self._packs))

    def after(self, job: JobFacts, source: int, target: int) -> float:
        """What `squares` would be with it there."""
        less, more = self._less(job, source), self._more(target, self._time_with(target, self._one(job)))
        return self.squares + (less + more)

    def least(self, job: JobFacts, source: int, targets: Iterable[int]) -> int:
        """Of these the one for which `after` is least; of equals the first by number."""
        one, less = self._one(job), self._less(job, source)
        # It is no less than this; most are more by that alone.
        order = sorted([(self._more(at, self._least_with(at, one)), at) for at in targets])
        best: tuple[float, int] | None = None
        for least, at in order:
            if best is not None and self.squares + (less + least) > best[0] + SLACK:
                break
            found = (self.squares + (less + self._more(at, self._time_with(at, one))), at)
            best = found if best is None else min(best, found)
        assert best is not None, f"nowhere for job {job.id}"
        return best[1]

    def _less(self, job: JobFacts, source: int) -> float:
        """Squares of the server that it leaves."""
        left = self._left.get((job.id, source))
        if left is None:
            rest = without(self.weigh(source), self.jobs(source), job)
            left = self._left[job.id, source] = self._timed.time_of(source, rest)
        return self._more(source, left)

    def _least_with(self, at: int, one: Weighed) -> float:
        return self._time_with(at, one) if at in self._weighed else self._timed.least_with(at, one)

    def _time_with(self, at: int, one: Weighed) -> float:
        if at in self._weighed:
            return self._timed.time_of(at, self._weighed[at] + one)
        return self._timed.time_with(at, one)

    def _more(self, at: int, load: float) -> float:
        """Squares of the server with that load."""
        return (load**2 - self.load(at) ** 2) * self._timed.width(at)

    def _one(self, job: JobFacts) -> Weighed:
        return self._timed.one(job)

    def jobs(self, at: int) -> list[JobFacts]:
        return self._jobs[at] if at in self._jobs else self._timed.jobs(at)

    def weigh(self, at: int) -> Weighed:
        """Its jobs of one node, in the order of `jobs`."""
        return self._weighed[at] if at in self._weighed else self._timed.weigh(at)

    def load(self, at: int) -> float:
        return self._load[at] if at in self._load else self._timed.load(at)

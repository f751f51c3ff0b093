"""Gang-aware stride (Gandiva_fair, 3.1, Algorithm 1; Waldspurger's stride underneath), with a virtual time.

A job's stride is its gang over its tickets, so that GPU-time follows tickets. Every quantum the queue is walked by (pass,
order): a job that fits the GPUs left runs and its pass grows by its stride; one that does not fit keeps its pass.

Departures from the paper, with the reasons:

*Virtual time instead of the minimum pass.* A newcomer at the minimum pass inherits the low pass of a job that was capped by its
demand, and starves the others for hours.

*Virtual time advances by the GPUs handed out, not by all GPUs,* over the sum of tickets: the mean advance of the passes, weighted by
tickets. With all GPUs it would run ahead of everybody where GPUs stay idle (two 3-GPU jobs on 4 GPUs; little demand)
and a newcomer would wait for hours. On a full server both are the same.

*Who cannot run does not bank.* A job that could not have run in a quantum even as the first (too big for the GPUs that forced jobs leave, still
starting) earns credit of one stride at the most, then waits along with the virtual time. A job that is forced to run whatever
its pass (it cannot be suspended) does not move the virtual time, and owes one stride at the most.

*Who gets what nobody else could use is not in debt for it.* A small job that fills the GPUs beside gangs in every quantum may get far more than
its tickets say. Its pass would run ahead for ever, and the virtual time, a mean, ahead of all the others: newcomers would wait for hours, and a change
of tickets throw jobs back or forward. So who runs while nobody who is behind it could have its GPUs is three strides ahead of the last one at most;
what is beyond moves nobody. Debts are forgiven, and no more: nobody falls behind the virtual time by it, however far behind the last one is. That may be one
with next to no tickets, a stride of which are thousands of quanta of those who wait.

*New jobs of one kind are spread over one stride*, not put at one point: jobs of equal gang and tickets (a user's sweep) that enter together would
otherwise run in one clump in every period, for ever: right on average and 20 % off over 30 quanta (the paper's figure 4).
The first of a kind enters at the virtual time, none before it. Who begins amid a quantum beside several of its kind waits for
half a stride, as they do on average, and all are put equally far apart (`mechanism.phases`).

*So they stay*: where some of a kind have come or left, at the next edge those who are there are put equally far apart (`space_out`). None gains by it on average, and what one of them
owes the others, whole strides, it owes still. Jobs come from other servers with what they carry, and leave for others: after some moves a user's jobs would run in clumps again. In the
paper's figure 10 the worst-off user was 6.3 % off its share for that once another had ended, in the mean of 31 runs, and 1.6 % since (benchmarks/findings.md).

Passes are integers over one common scale, the least common multiple of what occurs, at least 2^40 steps to the unit.
Where the multiple would pass 2^64 (odd tickets of many users), or a job ran for a fraction of a quantum that does not divide the scale, they are rounded
to the nearest such step, once at each change, never at a whole quantum: a pass does not drift however long it runs.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from fractions import Fraction
from typing import Any, Generic, TypeVar

from hs_core.errors import BrokenError
from hs_core.mechanism.entries import Entry, kind_of, space_out, spread
from hs_core.mechanism.exact import FINEST, ONE, ZERO, bounded, common, fraction, in_steps, plain, times
from hs_core.mechanism.phases import come, gaps

K = TypeVar("K", bound=Hashable)

COARSEST = 40  # bits: a scale is never coarser than this
SORT_UP_TO = (
    12  # jobs: above, putting the few that ran back in place beats sorting all (benchmarks/stride.py)
)
DEBT = 3  # strides that who fills gaps may be ahead of who was the last


class StrideQueue(Generic[K]):
    """The jobs of one server (or the entities of a split stride) and their passes. Mutable; no I/O, no clock.

    Between changes it is *settled*: a sorted list of integers, pass and rank in one, that a quantum only nudges. A change of
    members or tickets makes it unsettled, exact differences to the virtual time, until the next question.
    """

    def __init__(self) -> None:
        self._entries: dict[K, Entry[K]] = {}
        self._settled = True
        self._scale = 1 << COARSEST
        self._virtual = 0  # in steps of the scale, without …
        self._handed: Fraction | int = 0  # … the GPU-quanta handed out since, over all tickets
        self._total = ZERO  # tickets
        self._ranked: list[Entry[K]] = []
        self._rank: dict[K, int] = {}
        self._gangs: list[int] = []
        self._strides: list[int] = []  # in steps, shifted like keys
        self._keys: list[int] = []  # by rank: pass << bits | rank
        self._sorted: list[int] = []  # the same, ascending
        self._bits = 1
        self._mask = 1
        self._smallest = 1
        self._largest = 0
        # (kin, gang) of those who came or left since `space_out`:
        self._stirred: set[tuple[Hashable, int]] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, job: object) -> bool:
        return job in self._entries

    @property
    def jobs(self) -> AbstractSet[K]:
        return self._entries.keys()

    # --- members ------------------------------------------------------------------------------------------------

    def add(
        self,
        job: K,
        gang: int,
        tickets: Fraction,
        order: tuple[Any, ...],
        carry: Fraction | None = None,
        *,
        kin: Hashable = None,
    ) -> None:
        """A job enters at the virtual time, or with what it carries from elsewhere: (pass - virtual time) in strides.

        Equal passes are walked by `order` (arrival, id), which must be unique. Jobs of equal gang, tickets and `kin` (the user)
        that carry nothing are spread over one stride.
        """
        if job in self._entries:
            raise BrokenError(f"job {job} is in the stride queue already")
        _check(job, gang, tickets)
        entry = Entry(job, gang, fraction(tickets), tuple(order), kin)
        entry.carry = None if carry is None else bounded(Fraction(carry))
        self._unsettle()
        self._entries[job] = entry
        self._stirred.add((kin, gang))

    def remove(self, job: K) -> Fraction:
        """The job leaves; the answer is what it carries."""
        carried = self.carry(job)
        self._unsettle()
        entry = self._entries.pop(job)
        self._stirred.add((entry.kin, entry.gang))
        return carried

    def set_tickets(self, tickets: Mapping[K, Fraction]) -> None:
        """The difference to the virtual time scales with the stride, so that nobody gains or loses by the change."""
        changed = {}
        for job, now in tickets.items():
            was = self._entry(job).tickets
            if now is not was and now != was:
                changed[job] = fraction(now)
        for job, now in changed.items():
            _check(job, self._entries[job].gang, now)
        if not changed:
            return
        self._unsettle()
        for job, now in changed.items():
            entry = self._entries[job]
            if entry.lag is not None:
                entry.lag = times(entry.lag, entry.tickets, now)
            entry.tickets = now
            entry.stride = entry.gang / now

    def begin(self, job: K, credit: Fraction = ZERO, absent: Collection[K] = ()) -> Fraction:
        """A job competes from now on: like a newcomer, but for the `credit` (virtual time) it is given.

        Quanta are charged when they begin, so the virtual time is ahead of the clock by what is left of the present one: that is
        the credit of a job that comes in the middle of it. `absent` jobs of its kind have no place yet. The answer is the credit of the next
        one at the same time: what was handed out is over more tickets now, so the virtual time goes back.
        """
        entry = self._entry(job)
        lags = self.passes()
        own = min(credit, entry.stride)
        alike = [
            other
            for other in self._ranked
            if other is not entry and other.job not in absent and kind_of(other) == kind_of(entry)
        ]
        phases = [(lags[other.job] + own) / other.stride % 1 for other in alike]
        self._unsettle()
        if len(alike) > 1:
            *shifts, phase = come(phases, ONE)
            for other, by in zip(alike, shifts, strict=True):
                assert other.lag is not None
                other.lag += by * other.stride
        else:
            phase = gaps(phases, 1, ONE)[0]
        entry.lag = phase * entry.stride - own
        if not own:
            return credit
        here = [other for other in self._ranked if other is entry or other.job not in absent]
        back = own * entry.tickets / sum(other.tickets for other in here)
        for other in here:
            assert other.lag is not None
            other.lag += back
        return credit - back

    # --- a quantum ----------------------------------------------------------------------------------------------

    def space_out(self, absent: Collection[K] = ()) -> None:
        """A quantum is about to begin: of kinds of which some came or left, those who are there are put equally far apart. `absent` ones have no place yet."""
        if not self._stirred:
            return
        self._settle()
        kinds: dict[Hashable, list[Entry[K]]] = {}
        later: set[tuple[Hashable, int]] = set()
        for entry in self._ranked:
            if (of := (entry.kin, entry.gang)) in self._stirred:
                if entry.job in absent:
                    later.add(of)
                else:
                    kinds.setdefault(kind_of(entry), []).append(entry)
        self._stirred = later
        several = [group for group in kinds.values() if len(group) > 1]
        if several:
            self._unsettle()
        for group in several:
            space_out(group)

    def pick(self, free: int, forced: Sequence[K] = ()) -> list[K]:
        """The jobs of the next quantum, by counting: forced ones first, then the walk. Charges them."""
        self.space_out()
        self._settle()
        if forced or self._largest > free:
            return self._pick_some(free, forced)
        gangs, strides, keys, mask, smallest = (
            self._gangs,
            self._strides,
            self._sorted,
            self._mask,
            self._smallest,
        )
        ran: list[int] = []
        left = free
        for key in keys:
            gang = gangs[key & mask]
            if gang <= left:
                ran.append(key)
                left -= gang
                if left < smallest:
                    break
        last = keys[0] if keys else 0
        moves = [(key, key + strides[key & mask]) for key in ran]
        self._nudge(moves)
        self._handed += free - left
        if ahead := [key & mask for _, key in moves if key - last > DEBT * strides[key & mask]]:
            self._forgive(ahead, last)
        return [self._ranked[key & mask].job for key in ran]

    def charge(
        self,
        jobs: Collection[K],
        quanta: Fraction = ONE,
        *,
        forced: Collection[K] = (),
        able: Collection[K] | None = None,
        absent: Collection[K] = (),
        idle: int | None = None,
    ) -> Fraction:
        """What `pick` does to passes and virtual time, for a caller that chose `jobs` itself.

        `forced` ran whatever their passes; `able` could have run, had they come first (None: every job). `absent` have not
        begun to compete: they move along with the virtual time, which takes no notice of their tickets. `idle` GPUs were left over (None: not
        said, so that nobody's debt is forgiven). The answer is how far the virtual time has come by what was handed out; what is forgiven takes it
        back, which is nothing to those who begin later in the quantum.
        """
        self._settle()
        if quanta <= 0:
            raise BrokenError(f"charged {quanta} quanta; expected more than 0")
        ran = [self._rank_of(job) for job in jobs]
        pressed = [self._rank_of(job) for job in forced]
        if len({*ran, *pressed}) != len(ran) + len(pressed):
            raise BrokenError(f"a job is charged twice in one quantum: {[*jobs, *forced]}")
        handed = sum(self._gangs[rank] for rank in ran) * quanta
        away = {self._rank_of(job) for job in absent}.difference(ran, pressed)
        unable: set[int] = set(away)
        if able is not None:
            unable |= set(range(len(self._ranked))).difference(ran, pressed, map(self._rank_of, able))
        could = () if idle is None else set(range(len(self._ranked))).difference(ran, pressed, unable)
        last = min((self._keys[rank] for rank in (*ran, *could)), default=0)
        steps = {rank: self._keys[rank] + self._step(rank, quanta) for rank in ran}
        before = self.virtual_time()
        if not pressed and not unable:
            self._handed = plain(self._handed + handed)
        else:
            steps |= self._advance(handed, quanta, pressed, unable, away)
        advance = self.virtual_time() - before
        self._nudge([(self._keys[rank], key) for rank, key in steps.items() if key != self._keys[rank]])
        if idle is not None and (ahead := self._fillers(ran, could, last, idle)):
            self._forgive(ahead, last, unable)
        return advance

    def _fillers(self, ran: Collection[int], waiting: Collection[int], last: int, idle: int) -> list[int]:
        """Of those that ran the ones too far ahead of who was the last, none of those that waited behind them could have had their GPUs."""
        found = []
        for rank in ran:
            key, stride, room = self._keys[rank], self._strides[rank], self._gangs[rank] + idle
            if key - last > DEBT * stride and not any(
                self._keys[other] < key - stride and self._gangs[other] <= room for other in waiting
            ):
                found.append(rank)
        return found

    def _forgive(self, ahead: Collection[int], last: int, unable: Collection[int] = ()) -> None:
        """What these are ahead of who was the last (its key) beyond `DEBT`: they come back, and with them their part of the virtual time; along with that who is `unable`."""
        bits, before = self._bits, self._fold()
        most = {rank: max(before, (last + DEBT * self._strides[rank]) >> bits) for rank in ahead}
        now = {rank: at for rank, at in most.items() if at < self._keys[rank] >> bits}
        beyond = sum(self._ranked[rank].tickets * ((self._keys[rank] >> bits) - now[rank]) for rank in now)
        back = round(beyond / (self._total - sum(self._ranked[rank].tickets for rank in unable)))
        self._virtual = before - back
        moves = [(self._keys[rank], at << bits | rank) for rank, at in now.items()]
        moves += [(self._keys[rank], self._keys[rank] - (back << bits)) for rank in unable]
        self._nudge(moves)

    def _pick_some(self, free: int, forced: Sequence[K]) -> list[K]:
        left = free - sum(self._entry(job).gang for job in forced)
        if left < 0:
            raise BrokenError(f"forced jobs {list(forced)} need {free - left} GPUs, the server has {free}")
        pressed = {self._rank[job] for job in forced}
        able = [e.job for e in self._ranked if e.gang <= left and self._rank[e.job] not in pressed]
        chosen: list[K] = []
        for key in self._sorted:
            rank = key & self._mask
            if self._gangs[rank] <= left and rank not in pressed:
                chosen.append(self._ranked[rank].job)
                left -= self._gangs[rank]
        self.charge(chosen, forced=forced, able=able, idle=left)
        return [*forced, *chosen]

    def _advance(
        self, handed: Fraction, quanta: Fraction, pressed: list[int], unable: set[int], away: set[int]
    ) -> dict[int, int]:
        """Virtual time moves by what competitors got over their tickets; new keys of those who did not compete."""
        bits, before = self._bits, self._fold()
        waiting = away | {
            r for r in unable if (self._keys[r] >> bits) - before <= -(self._strides[r] >> bits)
        }
        tickets = self._total - sum(self._ranked[r].tickets for r in (*pressed, *waiting))
        advance = round(handed * self._scale / tickets) if tickets else 0
        self._virtual = after = before + advance
        keys: dict[int, int] = {}
        for rank in unable:
            kept = self._keys[rank] >> bits
            earned = kept + advance if rank in waiting else max(kept, after - (self._strides[rank] >> bits))
            keys[rank] = earned << bits | rank
        for rank in pressed:
            owed = (self._keys[rank] + self._step(rank, quanta)) >> bits
            keys[rank] = min(owed, after + (self._strides[rank] >> bits)) << bits | rank
        return keys

    def _step(self, rank: int, quanta: Fraction) -> int:
        stride = self._strides[rank]
        return stride if quanta == 1 else round((stride >> self._bits) * quanta) << self._bits

    def _nudge(self, moves: list[tuple[int, int]]) -> None:
        keys, mask = self._sorted, self._mask
        for _, new in moves:
            self._keys[new & mask] = new
        if len(keys) <= SORT_UP_TO or 4 * len(moves) > len(keys):
            self._sorted = sorted(self._keys)
            return
        for old, _ in moves:
            del keys[bisect_left(keys, old)]
        for _, new in moves:
            insort(keys, new)

    # --- questions ----------------------------------------------------------------------------------------------

    def order(self) -> list[K]:
        """The jobs as the next quantum walks them."""
        self._settle()
        return [self._ranked[key & self._mask].job for key in self._sorted]

    def carry(self, job: K) -> Fraction:
        """(pass - virtual time) in strides, within [-1, 1]: what the job would take with it."""
        entry = self._entry(job)
        if not self._settled:
            return (entry.carry or ZERO) if entry.lag is None else bounded(entry.lag / entry.stride)
        lag = Fraction(self._keys[self._rank[job]] >> self._bits, self._scale) - self.virtual_time()
        return bounded(lag / entry.stride)

    def passes(self) -> dict[K, Fraction]:
        """Each job's pass less the virtual time, for display: the least runs first."""
        self._settle()
        return {entry.job: lag for entry, lag in zip(self._ranked, self._lags(), strict=True)}

    def virtual_time(self) -> Fraction:
        """Since the last change of members or tickets."""
        self._settle()
        before = Fraction(self._virtual, self._scale)
        return before + Fraction(self._handed) / self._total if self._handed and self._total else before

    # --- across a crash -----------------------------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        """JSON-able, exactly what `load` takes; jobs must be numbers or strings, orders flat tuples of them."""
        self._settle()
        return {
            "scale": self._scale,
            "virtual": self._virtual,
            "handed": str(self._handed),
            "stirred": sorted(([kin, gang] for kin, gang in self._stirred), key=str),
            "jobs": [
                [e.job, e.gang, str(e.tickets), list(e.order), e.kin, key >> self._bits]
                for e, key in zip(self._ranked, self._keys, strict=True)
            ],
        }

    @classmethod
    def load(cls, dumped: Mapping[str, Any]) -> "StrideQueue[K]":
        queue = cls()
        passes: dict[K, int] = {}
        for job, gang, tickets, order, kin, at in dumped["jobs"]:
            queue._entries[job] = Entry(job, gang, Fraction(tickets), tuple(order), kin)
            passes[job] = at
        queue._lay_out(dumped["scale"], passes)
        queue._virtual = dumped["virtual"]
        queue._handed = plain(Fraction(dumped["handed"]))
        queue._stirred = {(kin, gang) for kin, gang in dumped["stirred"]}
        return queue

    # --- settled and unsettled ----------------------------------------------------------------------------------

    def _unsettle(self) -> None:
        if not self._settled:
            return
        for entry, lag in zip(self._ranked, self._lags(), strict=True):
            entry.lag = lag
        self._settled = False

    def _lags(self) -> list[Fraction]:
        """By rank, pass less virtual time: one fraction is made of each, as making them is what this costs."""
        now, scale, bits = self.virtual_time(), self._scale, self._bits
        ahead, of = now.numerator * scale, now.denominator
        return [Fraction((key >> bits) * of - ahead, scale * of) for key in self._keys]

    def _settle(self) -> None:
        if self._settled:
            return
        entries = self._entries.values()
        self._clamp()
        spread(entries)
        lags = {e.job: e.lag for e in entries if e.lag is not None}
        scale = common(1, (e.stride for e in entries)) or 1 << FINEST
        scale = common(scale, lags.values()) or scale
        scale <<= max(0, COARSEST + 1 - scale.bit_length())
        self._lay_out(scale, {job: in_steps(lag, scale) for job, lag in lags.items()})

    def _clamp(self) -> None:
        """Virtual time stays among the passes of those who are here: departures leave no debt to newcomers, nor credit."""
        lags = [e.lag for e in self._entries.values() if e.lag is not None]
        signs = [lag.numerator for lag in lags]
        if not signs or min(signs) <= 0 <= max(signs):
            return
        shift = min(lags) if signs[0] > 0 else max(lags)
        for entry in self._entries.values():
            if entry.lag is not None:
                entry.lag -= shift

    def _lay_out(self, scale: int, passes: Mapping[K, int]) -> None:
        self._ranked = sorted(self._entries.values(), key=lambda e: e.order)
        self._rank = {e.job: rank for rank, e in enumerate(self._ranked)}
        if len({e.order for e in self._ranked}) != len(self._ranked):
            raise BrokenError("two jobs in the stride queue have the same order")
        self._bits = bits = max(1, len(self._ranked).bit_length())
        self._mask = (1 << bits) - 1
        self._gangs = [e.gang for e in self._ranked]
        self._smallest = min(self._gangs, default=1)
        self._largest = max(self._gangs, default=0)
        self._strides = [max(1, in_steps(e.stride, scale)) << bits for e in self._ranked]
        self._keys = [passes[e.job] << bits | rank for rank, e in enumerate(self._ranked)]
        self._sorted = sorted(self._keys)
        self._total = sum((e.tickets for e in self._ranked), ZERO)
        self._scale = scale
        self._virtual = 0
        self._handed = 0
        self._settled = True

    def _fold(self) -> int:
        """Virtual time as one whole number of steps."""
        if self._handed:
            self._virtual += round(self._handed * self._scale / self._total)
            self._handed = 0
        return self._virtual

    def _entry(self, job: K) -> Entry[K]:
        try:
            return self._entries[job]
        except KeyError:
            raise BrokenError(f"job {job} is not in the stride queue") from None

    def _rank_of(self, job: K) -> int:
        self._entry(job)
        return self._rank[job]


def _check(job: object, gang: int, tickets: Fraction) -> None:
    if gang < 1:
        raise BrokenError(f"job {job} has a gang of {gang} GPUs; expected at least 1")
    if tickets <= 0:
        raise BrokenError(f"job {job} has {tickets} tickets; expected more than 0")

"""The gang-aware stride of every server at once: `hs_core.mechanism.stride` over arrays, one row a server, one column a job.

The law is that module's, with one difference: passes are floats. They are compared on a grid of 2^-20 quanta-GPUs per ticket, far
coarser than what rounding adds up to between two changes of a row and far finer than a turn, so that passes that are equal in
exact arithmetic are ties here too, and go by column: the order in which jobs came to the server.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import groupby
from math import floor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hs_core.mechanism.phases import apart, come, gaps
from hs_core.mechanism.stride import DEBT

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
T = TypeVar("T", bound=np.generic)

GRID = float(1 << 20)
COLUMN_BITS = 13
COLUMNS = (1 << COLUMN_BITS) - 1
CLOSED = np.iinfo(np.int64).max  # key of a place where nobody competes
LAST_TICK = float(1 << 49)  # passes farther off count as this far: keys hold no more
FARTHEST = float(1 << 28)  # a pass: beyond it the row is counted from zero again
PHASE = 1e9  # phases are rounded to so many parts of a stride
DIGITS = 9  # of tickets: jobs of one kind have the same so far
ALIKE = 1e-8  # tickets farther apart are not
AT_ONCE = 6  # places of the order by passes
NOBODY = 1e300  # the lag of nobody: more than any, and no infinity, of which there is no difference
LEAST = 1e-300  # tickets where nobody competes: nothing is handed out there, and over these it is nothing
NEVER = 1 << 40  # GPUs of who does not compete: more than there are


class Rows:
    """Mutable. Jobs are small integers, each in one row at most."""

    def __init__(self, servers: int, jobs: int) -> None:
        self._width = 0  # columns in use
        self.job: Ints = np.full((servers, 8), -1, dtype=np.int64)
        self.gang: Ints = np.zeros((servers, 8), dtype=np.int64)
        self._tickets: Floats = np.ones((servers, 8))
        self._stride: Floats = np.ones((servers, 8))
        self._pass: Floats = np.zeros((servers, 8))
        self._open: Bools = np.zeros((servers, 8), dtype=np.bool_)
        self._keys: Ints = np.full((servers, 8), CLOSED, dtype=np.int64)
        self.count: Ints = np.zeros(servers, dtype=np.int64)
        self._virtual: Floats = np.zeros(servers)
        self.handed: Ints = np.zeros(servers, dtype=np.int64)  # GPUs, at the edge of the newest quantum
        self._advance: Floats = np.zeros(servers)  # of the virtual time, in the newest quantum
        self._total: Floats = np.full(servers, LEAST)  # tickets of those who compete
        self._smallest: Ints = np.ones(servers, dtype=np.int64)
        self.row: Ints = np.full(jobs, -1, dtype=np.int64)
        self._column: Ints = np.full(jobs, -1, dtype=np.int64)
        self._kin: dict[int, Hashable] = {}
        self._new: dict[int, list[int]] = {}  # by row: enter at the next settlement
        self._carry: dict[int, float] = {}
        self._dirty: Bools = np.zeros(servers, dtype=np.bool_)
        self._members = False  # of dirty rows somebody came or went
        # (row, kin, gang) of which some came among others, or left, since the last quantum:
        self._stirred: set[tuple[int, Hashable, int]] = set()

    # --- members --------------------------------------------------------------------------------------------------

    def row_of(self, job: int) -> int:
        return int(self.row[job])

    def add(
        self, job: int, row: int, gang: int, tickets: float, *, kin: Hashable, carry: float | None = None
    ) -> None:
        """Comes to the server; competes from `begin` on."""
        column = int(self.count[row])
        if column == self.job.shape[1]:
            self._widen()
        self.count[row] += 1
        self._width = max(self._width, column + 1)
        self.row[job], self._column[job] = row, column
        self.job[row, column] = job
        self.gang[row, column] = gang
        self._tickets[row, column] = tickets
        self._stride[row, column] = gang / tickets
        self._open[row, column] = False
        self._keys[row, column] = CLOSED
        self._kin[job] = kin
        if carry is not None:
            self._carry[job] = carry
        self._dirty[row] = self._members = True

    def begin(self, jobs: Iterable[int], credit: float = 0.0) -> None:
        """These compete from now on, one after the other. `credit`: the part of the present quantum that is left, charged to the others already."""
        for earns, some in groupby(jobs, key=lambda job: self._earns(job, credit)):
            if earns:
                # Rows have nothing to do with one another: one job of each at a time, once nobody waits to be settled from before.
                first, *others = some
                for wave in ([first], *self._waves(others)):
                    self._dirty[self.row[wave]] = True
                    self._settle()
                    for job in wave:
                        self._enter(job, credit)
            else:
                for job in some:
                    self._await(job)

    def _earns(self, job: int, credit: float) -> bool:
        """It has its part of what the others of its server are given in this quantum."""
        row = self.row[job]
        assert row >= 0, f"job {job} is on no server"
        assert not self._open[row, self._column[job]], f"job {job} competes already"
        return bool(credit and self._advance[row] > 0 and job not in self._carry)

    def _waves(self, jobs: Sequence[int]) -> list[list[int]]:
        """The first of each row, the second of each, …"""
        waves: list[list[int]] = []
        seen: Counter[int] = Counter()
        for job, row in zip(jobs, self.row[list(jobs)].tolist(), strict=True):
            if seen[row] == len(waves):
                waves.append([])
            waves[seen[row]].append(job)
            seen[row] += 1
        return waves

    def _enter(self, job: int, credit: float) -> None:
        row, column = self.row[job], self._column[job]
        stride = self._stride[row, column]
        earned = min(credit * self._advance[row], stride)
        alike = self._alike(int(row), int(column))
        phases = self._phases(int(row), alike, earned)
        if len(alike) > 1:
            *shifts, phase = come(phases, 1.0)
            self._pass[row, alike] += np.array(shifts) * self._stride[row, alike]
        else:
            phase = gaps(phases, 1, 1.0)[0]
        self._opens(job, float(self._virtual[row] + phase * stride - earned))
        # What was handed out is over more tickets now.
        tickets = self._tickets[row, column]
        back = earned * tickets / (self._total[row] + tickets)
        self._virtual[row] -= back
        self._advance[row] -= back / credit
        self._dirty[row] = True

    def _opens(self, job: int, pass_: float) -> None:
        """It competes from now on, from there."""
        row, column = int(self.row[job]), int(self._column[job])
        self._open[row, column], self._pass[row, column] = True, pass_

    def _stir(self, job: int) -> None:
        """Those of its kind are not equally far apart any more."""
        row, column = int(self.row[job]), int(self._column[job])
        self._stirred.add((row, self._kin[job], int(self.gang[row, column])))

    def _await(self, job: int) -> None:
        """It enters at the next settlement."""
        row = int(self.row[job])
        self._new.setdefault(row, []).append(job)
        self._dirty[row] = True

    def competes(self, job: int) -> bool:
        row = self.row[job]
        return bool(row >= 0 and (self._open[row, self._column[job]] or job in self._new.get(int(row), ())))

    def remove(self, job: int, *, carries: bool = True) -> float:
        """Leaves; the answer is what it carries: (pass - virtual time) in strides, within [-1, 1]. Or nothing, if nobody asks."""
        row, column = int(self.row[job]), int(self._column[job])
        # Of many that leave at once most are in rows of their own: these are settled together.
        if carries and self._dirty[row]:
            self._settle()
        if row in self._new:
            self._new[row] = [other for other in self._new[row] if other != job]
        carry = 0.0
        if carries and self._open[row, column]:
            lag = (self._pass[row, column] - self._virtual[row]) / self._stride[row, column]
            carry = float(min(1.0, max(-1.0, lag)))
        if self._open[row, column]:
            self._stir(job)
        last = int(self.count[row])
        if column < last - 1:
            for array in self._matrices():
                array[row, column : last - 1] = array[row, column + 1 : last]
            self._column[self.job[row, column : last - 1]] -= 1
        self.job[row, last - 1] = -1
        self._open[row, last - 1] = False
        self._keys[row, last - 1] = CLOSED
        self.count[row] = last - 1
        self.row[job] = self._column[job] = -1
        self._kin.pop(job, None)
        self._carry.pop(job, None)
        self._dirty[row] = self._members = True
        return carry

    def set_tickets(self, jobs: Ints, tickets: Floats) -> None:
        """The difference to the virtual time scales with the stride, so that nobody gains or loses by the change."""
        at = self.row[jobs] * self._places + self._column[jobs]
        before = self._tickets.reshape(-1)[at]
        changed = (np.abs(tickets - before) > 1e-12 * before).nonzero()[0]
        if not changed.size:
            return
        at, tickets, before = at[changed], tickets[changed], before[changed]
        rows, passes = self._rows_of(at), self._pass.reshape(-1)
        virtual = self._virtual[rows]
        passes[at] = virtual + (passes[at] - virtual) * (before / tickets)
        self._tickets.reshape(-1)[at] = tickets
        self._stride.reshape(-1)[at] = self.gang.reshape(-1)[at] / tickets
        self._dirty[rows] = True

    # --- a quantum ------------------------------------------------------------------------------------------------

    def pick(self, free: Ints, held: Ints) -> Ints:
        """The jobs of the next quantum on every server, and charges them. `held` jobs run, or don't, whatever their passes."""
        self._settle()
        self._space_out()
        width = self._width
        if width == 0:
            self.handed = np.zeros_like(free)
            return np.empty(0, dtype=np.int64)
        left = free.copy()
        rows = (left >= self._smallest).nonzero()[0]
        keys = self._keys.take(rows, axis=0)[:, :width]
        here = held[self.row[held] >= 0]  # gangs over several servers are in no row
        if here.size:
            at = np.full(left.size, -1, dtype=np.int64)
            at[rows] = np.arange(rows.size)
            here = here[at[self.row[here]] >= 0]
            keys[at[self.row[here]], self._column[here]] = CLOSED
        keys.sort(axis=1)
        at = self._walk(rows, keys, left)
        self.handed = free - left
        self._advance = self.handed / self._total
        self._virtual += self._advance
        self._charge_picked(at, self._last(rows, keys, free))
        picked: Ints = self.job.reshape(-1)[at]
        return picked

    def _space_out(self) -> None:
        """As `StrideQueue.space_out`."""
        if not self._stirred:
            return
        for row, kin, gang in self._stirred:
            here = slice(int(self.count[row]))
            alike = (self._open[row, here] & (self.gang[row, here] == gang)).tolist()
            kinds: dict[Hashable, list[int]] = {}
            for column, job in enumerate(self.job[row, here].tolist()):
                if alike[column] and self._kin[job] == kin:
                    kinds.setdefault(self._kind(row, column), []).append(column)
            for columns in kinds.values():
                if len(columns) > 1:
                    self._put_apart(row, columns)
        self._stirred.clear()
        self._settle()

    def _put_apart(self, row: int, alike: list[int]) -> None:
        shifts = apart(self._phases(row, alike), 1.0)
        self._pass[row, alike] += np.array(shifts) * self._stride[row, alike]
        self._dirty[row] = True

    def _charge_picked(self, at: Ints, last: Floats) -> None:
        """`last`: of each server the pass of the last one, before this quantum."""
        passes, strides = self._pass.reshape(-1)[at], self._stride.reshape(-1)[at]
        rows, now = self._rows_of(at), passes + strides
        if at.size and np.maximum.reduce(now) > FARTHEST:
            self._dirty[rows] = True
        # Those that will be ahead of the last one of their server beyond `DEBT`.
        lasts = last[rows]
        far = (passes - lasts > (DEBT - 1) * strides).nonzero()[0]
        if far.size:
            now[far] = self._forgiven(at[far], now[far], lasts[far] + DEBT * strides[far])
        self._pass_to(at, now)

    def _walk(self, rows: Ints, keys: Ints, left: Ints) -> Ints:
        """Who runs, by row and column as one number, place by place in the order of `keys`, a sorted row for each of `rows`. Takes its GPUs from `left`."""
        places, gang = self._places, self.gang.reshape(-1)
        # Most servers are full after a few places: so far all of them at once, without asking who is done.
        first = np.ascontiguousarray(keys[:, :AT_ONCE].T)
        at = rows * places + (first & (places - 1))
        gangs = np.where(first == CLOSED, NEVER, gang[at])
        here, fits = left[rows], np.empty(at.shape, dtype=np.bool_)
        for place, wants in enumerate(gangs):
            fit = fits[place]
            np.less_equal(wants, here, out=fit)
            here -= wants * fit
        left[rows] = here
        if keys.shape[1] <= AT_ONCE:
            return at[fits]
        ran = [at[fits]]
        which = (here >= self._smallest[rows]).nonzero()[0]
        more = keys[which, AT_ONCE:]
        of = np.arange(which.size)  # their rows in `more`
        for place in range(more.shape[1]):
            if not which.size:
                break
            key = more[of, place]
            if key.max() == CLOSED:
                still = key != CLOSED
                which, of, key = which[still], of[still], key[still]
            row = rows[which]
            found = row * places + (key & COLUMNS)
            gangs_here = gang[found]
            fits = gangs_here <= left[row]
            ran.append(found[fits])
            left[row] -= gangs_here * fits
            still = left[row] >= self._smallest[row]
            which, of = which[still], of[still]
        return np.concatenate(ran)

    def rest(self) -> None:
        """A quantum in which no server has anything to share out: nobody is picked."""
        self._advance[:] = 0.0

    def fill(self, row: int, free: int, part: float, busy: Bools, waiting: Iterable[int] = ()) -> list[int]:
        """GPUs of one server that became idle: who gets them pays for that part of the quantum. `waiting`: those who do not compete yet,
        and get what nobody else takes."""
        self._settle()
        here = slice(int(self.count[row]))
        jobs, gangs = self.job[row, here].tolist(), self.gang[row, here].tolist()
        narrowest = int(self._smallest[row])
        chosen: list[int] = []
        columns: list[int] = []
        handed = 0
        for key in sorted(self._keys[row, here].tolist()):
            if key == CLOSED or free < narrowest:
                break
            column = key & COLUMNS
            job, gang = jobs[column], gangs[column]
            if gang <= free and not busy[job]:
                chosen.append(job)
                columns.append(column)
                free -= gang
                handed += gang
        if chosen:
            self._charge(row * self._places + np.array(columns, dtype=np.int64), part)
            self._virtual[row] += part * handed / self._total[row]
        late = []
        for job in waiting:
            if self.row[job] == row and not busy[job] and self.gang[row, self._column[job]] <= free:
                free -= int(self.gang[row, self._column[job]])
                late.append(job)
        self.take(late, part)
        return [*chosen, *late]

    def take(self, jobs: Sequence[int], part: float = 1.0) -> None:
        """These run out of turn, on GPUs that nobody else takes, and compete from now on: charged like any other."""
        if not jobs:
            return
        for job in jobs:
            if not self.competes(job):
                self._await(job)
        self._settle()
        rows, columns = self.row[jobs], self._column[jobs]
        self._charge(rows * self._places + columns, part)
        handed = np.bincount(rows, weights=self.gang[rows, columns] * part, minlength=self._virtual.size)
        advance = handed / self._total
        self._virtual += advance
        self._advance += advance

    @property
    def _places(self) -> int:
        """Columns that there is room for: a power of two. With row and column as one number an array is looked up in one step."""
        return int(self.job.shape[1])

    def _rows_of(self, at: Ints) -> Ints:
        """Of row and column as one number. Shifted: to divide takes several times as long."""
        rows: Ints = at >> (self._places.bit_length() - 1)
        return rows

    def _charge(self, at: Ints, part: float) -> None:
        """`at`: row and column as one number, each once."""
        self._charge_to(at, self._pass.reshape(-1)[at] + part * self._stride.reshape(-1)[at])

    def _charge_to(self, at: Ints, now: Floats) -> None:
        self._pass_to(at, now)
        if at.size and np.maximum.reduce(now) > FARTHEST:
            self._dirty[self._rows_of(at)] = True

    def _pass_to(self, at: Ints, now: Floats) -> None:
        self._pass.reshape(-1)[at] = now
        ticks = _ticks(now)
        self._keys.reshape(-1)[at] = (ticks << COLUMN_BITS) | (at & (self._places - 1))

    def _last(self, rows: Ints, keys: Ints, free: Ints) -> Floats:
        """The least pass of those on each server that could run, had they come first. `keys`: a sorted row for each of `rows`."""
        places, gang, passes = self._places, self.gang.reshape(-1), self._pass.reshape(-1)
        here = rows * places + (keys[:, 0] & (places - 1))
        found = np.zeros(free.size)
        found[rows] = passes[here]
        for at in (gang[here] > free[rows]).nonzero()[0].tolist():  # hardly any
            row = int(rows[at])
            columns = row * places + (keys[at][keys[at] < CLOSED] & (places - 1))
            found[row] = passes[columns][gang[columns] <= free[row]].min(initial=NOBODY)
        return found

    def _forgiven(self, at: Ints, now: Floats, most: Floats) -> Floats:
        """What becomes of these passes, which may be no farther: they come back, and with them their part of the virtual time; down to that, and no further."""
        rows = self._rows_of(at)
        most = np.minimum(np.maximum(most, self._virtual[rows]), now)
        beyond = self._tickets.reshape(-1)[at] * (now - most)
        self._virtual -= np.bincount(rows, weights=beyond, minlength=self._total.size) / self._total
        return most

    # --- settling what changed --------------------------------------------------------------------------------------

    def _settle(self) -> None:
        rows = self._dirty.nonzero()[0]
        if not rows.size:
            return
        self._dirty[:] = False
        self._width = int(np.maximum.reduce(self.count, initial=0))
        first, last = int(rows[0]), int(rows[-1])
        # One, or all: where they lie side by side they need not be gathered.
        self._settle_some(slice(first, last + 1) if last - first < rows.size else rows)
        self._members = False

    def _settle_some(self, rows: Ints | slice) -> None:
        width = self._width
        open_ = self._of(self._open, rows)
        lag = self._of(self._pass, rows) - self._virtual[rows][:, None]
        # Virtual time stays among the passes of those who are here: departures leave no debt to newcomers, nor credit.
        least = np.minimum.reduce(np.where(open_, lag, NOBODY), axis=1, initial=NOBODY)
        most = np.maximum.reduce(np.where(open_, lag, -NOBODY), axis=1, initial=-NOBODY)
        shift = np.maximum(0.0, least) + np.minimum(0.0, most)
        passes = np.where(open_, lag - shift[:, None], 0.0)
        self._pass[rows, :width] = passes
        self._virtual[rows] = 0.0
        if self._new:
            for row in sorted(self._new):
                self._spread(row, self._new[row])
            self._new.clear()
            open_, passes = self._of(self._open, rows), self._of(self._pass, rows)
        ticks = _ticks(passes) << COLUMN_BITS
        self._keys[rows, :width] = np.where(open_, ticks | np.arange(width), CLOSED)
        tickets = np.where(open_, self._of(self._tickets, rows), 0.0)
        self._total[rows] = np.maximum(np.add.reduce(tickets, axis=1), LEAST)
        if self._members:
            gangs = np.where(self._of(self.job, rows) >= 0, self._of(self.gang, rows), NEVER)
            self._smallest[rows] = np.minimum.reduce(gangs, axis=1, initial=NEVER)

    def _of(self, matrix: NDArray[T], rows: Ints | slice) -> NDArray[T]:
        """Of these servers, what is in the columns in use."""
        some = matrix[rows] if isinstance(rows, slice) else matrix.take(rows, axis=0)
        return some[:, : self._width]

    def _spread(self, row: int, newcomers: Sequence[int]) -> None:
        """Those of one kind (user, gang, tickets) over one stride; the first of a kind enters at the virtual time."""
        kinds: dict[Hashable, list[int]] = {}
        for job in newcomers:
            column = self._column[job]
            if job in self._carry:
                self._opens(job, float(self._virtual[row] + self._carry.pop(job) * self._stride[row, column]))
                self._stir(job)
            else:
                kinds.setdefault(self._kind(row, int(column)), []).append(job)
        for group in kinds.values():
            group.sort(key=lambda job: int(self._column[job]))
            if alike := self._alike(row, int(self._column[group[0]])):
                self._stir(group[0])
            phases = gaps(self._phases(row, alike), len(group), 1.0)
            for job, phase in zip(group, phases, strict=True):
                self._opens(job, float(self._virtual[row] + phase * self._stride[row, self._column[job]]))

    def _alike(self, row: int, own: int) -> list[int]:
        """Columns of others of its kind that compete."""
        kind, present = self._kind(row, own), slice(int(self.count[row]))
        # Who asks for another gang or has plainly other tickets is of another kind: most are.
        tickets = self._tickets[row, present]
        alike = self._open[row, present] & (self.gang[row, present] == self.gang[row, own])
        alike &= np.abs(tickets - tickets[own]) < ALIKE
        alike[own] = False
        return [column for column in np.flatnonzero(alike).tolist() if self._kind(row, column) == kind]

    def _phases(self, row: int, columns: Sequence[int], credit: float = 0.0) -> list[float]:
        """Where on their stride these are, had all of them that credit."""
        lags = self._pass[row, columns] - self._virtual[row] + credit
        return [_rounded(phase) for phase in (lags / self._stride[row, columns]).tolist()]

    def _kind(self, row: int, column: int) -> Hashable:
        job = int(self.job[row, column])
        return self._kin[job], int(self.gang[row, column]), round(float(self._tickets[row, column]), DIGITS)

    def _matrices(self) -> list[NDArray[Any]]:
        return [self.job, self.gang, self._tickets, self._stride, self._pass, self._open, self._keys]

    def _widen(self) -> None:
        rows, width = self.job.shape
        assert 2 * width <= COLUMNS + 1, f"more than {width} jobs on one server"
        job = np.full((rows, 2 * width), -1, dtype=np.int64)
        job[:, :width] = self.job
        keys = np.full((rows, 2 * width), CLOSED, dtype=np.int64)
        keys[:, :width] = self._keys
        self.job, self._keys = job, keys
        self.gang = np.pad(self.gang, ((0, 0), (0, width)))
        self._tickets = np.pad(self._tickets, ((0, 0), (0, width)), constant_values=1.0)
        self._stride = np.pad(self._stride, ((0, 0), (0, width)), constant_values=1.0)
        self._pass = np.pad(self._pass, ((0, 0), (0, width)))
        self._open = np.pad(self._open, ((0, 0), (0, width)))


def _rounded(phase: float) -> float:
    """On the circle [0, 1)."""
    return round((phase - floor(phase)) * PHASE) % PHASE / PHASE


def _ticks(passes: Floats) -> Ints:
    return np.rint(np.minimum(np.maximum(passes * GRID, -LAST_TICK), LAST_TICK)).astype(np.int64)

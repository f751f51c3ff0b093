"""How many quanta a quantum the jobs of a server need to get what their tickets say (Gandiva_fair, 3.3: balance and packing as one measure).

Gangs of more than half of the server's GPUs run one after the other; smaller jobs together, and beside a gang as far as they fit. With jobs that
fill the server this is ticketLoadPerGPU (eq 2); with jobs that leave GPUs idle in each other's turns it is more, and just so much less do they get.
Who is due all the time needs its own GPUs for as long, not all of the server.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache

from hs_core.names import UserName
from hs_core.policy import JobFacts

ASKED = 1 << 13
"""Questions whose answers are kept: whoever looks for a better server asks most of them again, within a decision and in the next ones."""


Weighed = tuple[tuple[int, float], ...]
"""Of jobs on a server, in their order: GPUs there, and tickets per GPU."""


def weighed(jobs: Iterable[JobFacts], per_gpu: Mapping[UserName, float]) -> Weighed:
    """`per_gpu`: tickets per GPU of each user there."""
    return tuple([
        (job.gang if job.nodes == 1 else job.per_node, per_gpu.get(job.user, 0.0)) for job in jobs
    ])  # fmt: skip


@lru_cache(maxsize=ASKED)
def time_load(gpus: int, jobs: Weighed) -> float:
    """Where all run at once: ticketLoadPerGPU. In the order of jobs, as floats do not add up the same otherwise."""
    gangs = 0.0
    asked = 0
    big: list[tuple[int, float]] = []
    small: list[tuple[int, float]] = []
    beside = False  # some gang leaves GPUs of the server to others
    for job in jobs:
        width, weight = job
        asked += width
        if 2 * width > gpus:
            gangs += weight
            big.append(job)
            beside = beside or width < gpus
        else:
            small.append(job)
    if asked <= gpus:
        return sum([width * weight for width, weight in (*big, *small)]) / max(1, gpus)
    if not small:
        return gangs
    together = sum([width * weight for width, weight in small])
    if len({width for width, _ in small}) == 1 and gpus % small[0][0] == 0:  # they leave no GPU idle
        alone = _alone(together / gpus, small, gpus, gangs=bool(big))
        if not beside:
            return gangs + alone
    else:
        takes = occupied(tuple(sorted([width for width, _ in small], reverse=True)), gpus)
        together += left_over(small, gpus)
        need = max(sum([takes[width] * weight for width, weight in small]), together) / gpus
        alone = _alone(need, small, gpus, gangs=bool(big))
    if big:
        widths = sorted([width for width, _ in small], reverse=True)
        wide = min(sum(widths), gpus)
        alone -= sum([weight * min(1.0, _beside(widths, gpus - width) / wide) for width, weight in big])
    return gangs + max(0.0, alone)


def _alone(need: float, small: Sequence[tuple[int, float]], gpus: int, *, gangs: bool) -> float:
    """Quanta that small jobs need, which together need so many. Nobody runs more than all the time, whatever it lacks.

    Who needs more than they do together keeps `gangs` waiting for as long; where there are none, only its own GPUs: those beside are others'.
    """
    if gangs:
        return max(need, min(1.0, max([weight for _, weight in small])))
    if need >= 1.0:
        return need
    more = [width * (min(1.0, weight) - need) for width, weight in small if weight > need]
    return need + sum(more) / gpus


class Least:
    """What `time_load` of a server is at least, with one job more beside these: sooner known, as it does not go by who leaves GPUs idle in whose turn. A value."""

    def __init__(self, gpus: int, jobs: Weighed) -> None:
        self._gpus = max(1, gpus)
        self._every = self._small = self._gangs = self._heaviest = 0.0
        self._has_gangs = False
        self._whole = True  # they leave none of the GPUs to small jobs
        for width, weight in jobs:
            self._every += width * min(1.0, weight)
            if 2 * width > gpus:
                self._gangs += weight
                self._has_gangs, self._whole = True, self._whole and width == gpus
            else:
                self._small += width * weight
                self._heaviest = max(self._heaviest, weight)

    def beside(self, width: int, weight: float) -> float:
        gpus, is_gang = self._gpus, 2 * width > self._gpus
        least = (self._every + width * min(1.0, weight)) / gpus
        if not (self._whole and (is_gang or self._has_gangs)) or (is_gang and width < gpus):
            return least
        if is_gang:
            return max(least, self._gangs + weight + max(self._small / gpus, min(1.0, self._heaviest)))
        # In turn with gangs that take all GPUs small jobs need them for as long as the heaviest does.
        small = (self._small + width * weight) / gpus
        return max(least, self._gangs + max(small, min(1.0, max(self._heaviest, weight))))


@lru_cache(maxsize=ASKED)
def occupied(widths: tuple[int, ...], gpus: int) -> Mapping[int, float]:
    """GPUs that a job of each of these widths keeps to itself in its turn: its own, and its part of those that nobody can have then.

    One job with one GPU among jobs with two, on four GPUs, takes two: with it and one of the others a GPU is left over.
    """
    count = Counter(widths)
    if sum(width * many for width, many in count.items()) <= gpus:
        return {width: float(width) for width in count}
    left = {width: gpus - width - _most(count, width, gpus - width) for width in count}
    odd = Counter({width: many for width, many in count.items() if left[width]})
    return {
        width: width + rest * width / (width + _most(odd, width, gpus - width)) if rest else float(width)
        for width, rest in left.items()
    }


def left_over(small: Collection[tuple[int, float]], gpus: int) -> float:
    """GPUs that idle on average since all narrow jobs are in their turn at once and the others are too wide for what is left.

    `small`: width, and the part of the time that the job runs. With three jobs of one GPU among jobs of two, on four GPUs, it is one GPU while all three
    run; while one of them does not, it fills the gap.
    """
    count = Counter([width for width, _ in small])
    if len(count) < 2:
        return 0.0
    found, narrow, chance, wasted = 0.0, 0, 1.0, 0
    for width in sorted(count):
        narrow += width * count[width]
        if narrow > gpus:
            break
        before = chance
        for wide, weight in small:
            if wide == width:
                chance *= min(1.0, weight)
        found += (before - chance) * wasted
        wider = Counter({wide: many for wide, many in count.items() if wide > width})
        wasted = gpus - narrow - _most(wider, 0, gpus - narrow) if wider else 0
    else:
        return found
    return found + chance * wasted


def _most(count: Mapping[int, int], but: int, room: int) -> int:
    """GPUs of `room` that these jobs fill, one of width `but` left out."""
    sums = 1  # bit n: n GPUs can be filled
    for width, many in count.items():
        for _ in range(min(many - (width == but), room // width)):
            sums |= sums << width
    return (sums & ((2 << room) - 1)).bit_length() - 1


def _beside(widths: Iterable[int], room: int) -> int:
    """GPUs that small jobs, the largest first, fill of those beside a gang."""
    filled = 0
    for width in widths:
        if filled + width <= room:
            filled += width
    return filled


@lru_cache(maxsize=ASKED)
def may_idle(widths: tuple[int, ...], gpus: int) -> bool:
    """Jobs of these widths may leave GPUs idle in each other's turns; of others it is certain that they do not, so that tickets alone say the load.

    Beside a gang of a part of the server they may. Of the small ones none does where all are multiples of the least, so is the server, and they are all
    alike or those of the least fill it.
    """
    small = [width for width in widths if 2 * width <= gpus]
    if any(width < gpus for width in widths if 2 * width > gpus):
        return True
    if sum(small) <= gpus:
        return False
    least = min(small)
    whole = all(width % least == 0 for width in (gpus, *small))
    return not (whole and (least == max(small) or least * small.count(least) >= gpus))

"""Which hosts of a type a round's jobs get (FFT, section 4.3).

Who stays on the type keeps its hosts. Then gangs that talk inside each layer (data, tensor parallel) are packed into as few hosts as possible,
then those that only pass activations on (pipeline parallel). When jobs came or went, gangs split over hosts are brought together where one host
has the room, those that are cheapest to move first.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hs_core.errors import BrokenError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gangs:
    """The J jobs that run on this type in this round; H hosts."""

    gpus: Ints  # (J,)
    held: Ints  # (J, H) GPUs that they hold there from the last round; a row of zeros: new to the type
    pipeline: Bools  # (J,) parallel between layers only
    move_s: Floats  # (J,) what moving the state to another host takes
    near: Bools  # (J, H) the data set is there already


def place(gangs: Gangs, capacity: Ints, *, churn: bool) -> Ints:
    """(J, H) GPUs of each job; `capacity` (H,) healthy GPUs. Raises BrokenError where the gangs exceed the capacity.

    Of several hosts that hold a gang whole the one with least room left, then one that has its data, then the first. A gang that none holds gets
    those with most room. Who holds GPUs that are no longer there is placed anew.
    """
    if gangs.gpus.sum() > capacity.sum():
        raise BrokenError(f"{gangs.gpus.sum()} GPUs are to be placed; there are {capacity.sum()}")
    found = np.zeros(gangs.held.shape, np.int64)
    free = capacity.copy()
    whole = gangs.held.sum(axis=1) == gangs.gpus
    for job in np.flatnonzero(whole).tolist():
        if (gangs.held[job] <= free).all():
            found[job] = gangs.held[job]
            free -= found[job]
    new = ~found.any(axis=1) & (gangs.gpus > 0)
    for job in np.lexsort((-gangs.gpus, gangs.pipeline)).tolist():
        if new[job]:
            found[job] = _fewest(int(gangs.gpus[job]), free, gangs.near[job])
            free -= found[job]
    if churn:
        _gather(gangs, found, free)
    return found


def _fewest(gpus: int, free: Ints, near: Bools) -> Ints:
    taken = np.zeros_like(free)
    while gpus:
        fits = np.flatnonzero(free - taken >= gpus)
        if len(fits):
            host = fits[np.lexsort((~near[fits], free[fits]))[0]]
        else:
            host = np.lexsort((~near, -(free - taken)))[0]
        part = min(gpus, int(free[host] - taken[host]))
        taken[host] += part
        gpus -= part
    return taken


def _gather(gangs: Gangs, found: Ints, free: Ints) -> None:
    """Split gangs into one host each where that is possible; changes both."""
    split = np.flatnonzero((found > 0).sum(axis=1) > 1)
    for job in split[np.argsort(gangs.move_s[split], kind="stable")].tolist():
        room = free + found[job]
        fits = np.flatnonzero(room >= gangs.gpus[job])
        if len(fits):
            # The fewest of its processes move; then the tightest host.
            host = fits[np.lexsort((room[fits], -found[job, fits]))[0]]
            free += found[job]
            found[job] = 0
            found[job, host] = gangs.gpus[job]
            free[host] -= gangs.gpus[job]

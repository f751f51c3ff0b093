"""What users cannot use of their shares where their jobs are, made good where they are: by those who have it instead.

Entitlements are fractions of every pool, and jobs are whole: whose one job lives in one pool uses nothing of its shares in the others. The stride
hands these to who is there, so that a user of a few jobs would train for a third of the time for which its tickets pay, as long as it lives, and
others for more than theirs. So who has GPUs of others' shares gives as much of its own, worth as much to itself, in pools where those others' jobs
wait. Nobody comes to less than its shares are worth to it by that, as far as rates tell.

Departure: the paper leaves this to users having many jobs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from math import frexp, fsum, inf

from hs_core.mechanism.beside_gangs import most_beside
from hs_core.mechanism.job_weights import Shares
from hs_core.mechanism.level import Level
from hs_core.mechanism.rates import Speeds
from hs_core.mechanism.world import At, World
from hs_core.names import UserName

STEPS = 64  # of a GPU, and finer the less of one it is: shares are multiples of its inverse, so that tickets stay simple fractions
NEAR = 0.01  # of what its shares are worth to a user: so far off is near enough
KEPT = 0.25  # of what it has in a pool stays with whoever gives: its jobs there must not starve
TINY = 1e-9

_Worth = Mapping[str, tuple[float, bool]]
"""By model: a GPU's, and whether all of the user's classes that live there were measured there."""


def amended(
    world: World,
    levels: Mapping[str, Level],
    entitled: Shares,
    shares: Mapping[At, float],
    speeds: Speeds,
) -> Shares:
    """In GPUs, by user and pool: of pools in which somebody gives to others, what everybody is to have there.

    `shares`: what users are entitled to, as floats; `levels`: of these and of the world as it is now.
    """
    asked = world.gpus
    if len(world.models) < 2:
        return entitled
    short = {user for (user, model), share in shares.items() if share > asked.get((user, model), 0)}
    if not short:
        return entitled
    books = _Books(world, levels, shares, speeds)
    books.enter(books.waiting(short))
    touched = books.even_out() if books.lack else set[str]()
    if not touched:
        return entitled
    found = dict(entitled)
    for at, has in books.has.items():
        if at[1] in touched:
            share = _simple(has)
            # Who runs all the time keeps what it could use if more of its jobs came.
            found[at] = max(share, entitled.get(at, share)) if has >= asked[at] - TINY else share
    return found


def _simple(gpus: float) -> Fraction:
    """Nobody is rounded to nothing, however many divide a pool."""
    steps = STEPS << max(0, -frexp(gpus)[1])
    return Fraction(round(gpus * steps), steps)


class _Books:
    """Of users that were entered what they lack of what their shares are worth to them; negative: they have more."""

    def __init__(
        self, world: World, levels: Mapping[str, Level], shares: Mapping[At, float], speeds: Speeds
    ) -> None:
        self._world, self._shares, self._speeds = world, shares, speeds
        self._asked = world.gpus
        parts = {model: level.parts() for model, level in levels.items()}
        # GPUs that users' jobs can expect, where they live.
        self.has = {(user, model): parts[model][user] * gpus for (user, model), gpus in world.gpus.items()}
        self._parts = parts
        self._most: dict[str, Mapping[UserName, float]] = {}  # by pool, of those where somebody waits
        self._worth: dict[UserName, _Worth] = {}
        self._lacks: dict[UserName, float] = {}

    @cached_property
    def _kinds(self) -> dict[UserName, list[tuple[str, str, int]]]:
        """Of users who have jobs somewhere: class, model, and GPUs that they ask for."""
        found: dict[UserName, list[tuple[str, str, int]]] = {}
        for (user, job_class, model), gpus in self._world.kind_gpus.items():
            if gpus > 0:
                found.setdefault(user, []).append((job_class, model, gpus))
        return found

    @property
    def lack(self) -> bool:
        """Somebody lacks something."""
        return any(lacks > 0 for lacks in self._lacks.values())

    def waiting(self, users: Iterable[UserName]) -> set[UserName]:
        """Those of them whose jobs wait somewhere."""
        models = self._world.models
        return {user for user in users if any(self._waits((user, model)) > TINY for model in models)}

    def _waits(self, at: At) -> float:
        """GPUs that are asked for, and not expected though they could be had."""
        (user, model), has = at, self.has.get(at, 0.0)
        waits = self._asked.get(at, 0) - has
        if waits <= TINY:
            return waits
        if model not in self._most:
            self._most[model] = most_beside(self._world, model, self._parts[model])
        return min(waits, self._most[model].get(user, inf) - has)

    def enter(self, users: Iterable[UserName]) -> None:
        wanted = set(users)
        for user, kinds in self._kinds.items() if wanted else ():
            if user not in wanted:
                continue
            worth = _worth(self._world.models, self._speeds, kinds)
            pairs = [
                (one, is_known, self._shares.get((user, model), 0.0), self.has.get((user, model), 0.0))
                for model, (one, is_known) in worth.items()
            ]
            due = fsum([one * share for one, _, share, _ in pairs])
            had = fsum([one * (has if is_known else min(has, share)) for one, is_known, share, has in pairs])
            self._worth[user] = worth
            self._lacks[user] = due - had if abs(due - had) > NEAR * due else 0.0

    def even_out(self) -> set[str]:
        """Pool by pool those who have more than their shares are worth give to those who have less and whose jobs wait there. Where somebody could."""
        some = [model for model in self._world.models if any(True for _ in self._could_get(model))]
        self.enter({user for user, model in self._asked if model in some and user not in self._worth})
        return {model for model in some if self._hand_over(model)}

    def _hand_over(self, model: str) -> bool:
        gets, gives = dict(self._could_get(model)), dict(self._could_give(model))
        wanted, offered = fsum(gets.values()), fsum(gives.values())
        amount = min(wanted, offered)
        if amount <= TINY:
            return False
        for parts, whole, sign in ((gets, wanted, 1), (gives, offered, -1)):
            for user, most in parts.items():
                gpus = sign * most * amount / whole
                self.has[user, model] += gpus
                self._lacks[user] -= gpus * self._worth[user][model][0]
        return True

    def _could_get(self, model: str) -> Iterator[tuple[UserName, float]]:
        for user, lacks in self._lacks.items():
            if lacks > 0 and (waits := self._waits((user, model))) > TINY:
                one, _ = self._worth[user][model]
                yield user, min(waits, lacks / one) if one > 0 else waits

    def _could_give(self, model: str) -> Iterator[tuple[UserName, float]]:
        for user, lacks in self._lacks.items():
            has = self.has.get((user, model), 0.0)
            one, is_known = self._worth[user][model]
            if lacks < 0 and has > TINY and is_known and one > 0:
                yield user, min(has * (1 - KEPT), -lacks / one)


def _worth(models: Sequence[str], speeds: Speeds, kinds: Iterable[tuple[str, str, int]]) -> _Worth:
    """Mean over what a user's jobs ask for."""
    classes: dict[str, int] = {}
    untold: set[str] = set()
    for job_class, model, gpus in kinds:
        classes[job_class] = classes.get(job_class, 0) + gpus
        if speeds.get(job_class, model) is None:
            untold.add(model)
    whole, rows = sum(classes.values()), [(gpus, speeds.hoped(one)) for one, gpus in classes.items()]
    return {
        model: (fsum([gpus * row[at] for gpus, row in rows]) / whole, model not in untold)
        for at, model in enumerate(models)
    }

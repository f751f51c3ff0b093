"""What a move to another pool is worth to a job and to its user (Gandiva_fair, 3.5)."""

from collections.abc import Iterator
from math import inf

from hs_core.mechanism.loads import Board
from hs_core.mechanism.rates import HOPE, Speeds
from hs_core.mechanism.world import At
from hs_core.names import UserName
from hs_core.policy import JobFacts

SLACK = 1e-9
SCOUTS = SLACK / 1e3  # what it is worth to find out: something, after all else
MANY = 10.0  # times: more is said of shares of next to nothing
ENOUGH = 2.0  # who goes to find out has one turn in so many quanta there
Offer = tuple[float, UserName, str, str, str]
"""(the less, the better; user, class, from, to)."""


class Worth:
    """Effective rates: rate[g] times the part of the time that jobs run there, in units of the class's slowest pool, and what a move adds
    to their sum. The part is min(1, e[u, g] / demand[u, g]) where everybody uses what they are entitled to (`mechanism.level`).

    Pools on which a class was not measured are as fast as any for it, newer ones a little faster; but of a class that was measured where it
    is, only one job goes where it was not, to find out, and to a pool that is not newer only where it has to take turns. To a newer one of which
    the user has a share that gives it some turns it goes whatever it loses meanwhile (`scouts`): else what came when that was in use, or is wider than the share, would stay on old GPUs for ever.
    """

    def __init__(self, board: Board, speeds: Speeds) -> None:
        self._entitled = board.entitled
        self._world = board.world
        self._speeds = speeds
        self._board = board
        self._parts: dict[At, float] = {}  # as long as nobody moves
        self._sums: dict[At, float] = {}
        self._open: dict[UserName, list[str]] = {}

    def forget(self, user: UserName) -> None:
        """Its jobs live elsewhere now."""
        self._parts.clear()
        self._open.clear()
        for model in self._world.models:
            self._sums.pop((user, model), None)

    def _part(self, user: UserName, model: str) -> float:
        at = (user, model)
        found = self._parts.get(at)
        if found is None:
            found = self._parts[at] = self._board.part(user, model)
        return found

    def content(self, user: UserName) -> bool:
        """Every job of the user gets all it asks for on the newest pool."""
        models, gpus = self._world.models, self._world.gpus
        if self._part(user, models[0]) < 1:
            return False
        return not any(gpus.get((user, model), 0) for model in models[1:])

    def targets(self, user: UserName, job_class: str, source: str) -> Iterator[str]:
        """Pools that the user has a share of, or of which GPUs idle, and where a job of the class might do no worse: a quick no for most."""
        speed = self._speeds.get
        one, part = speed(job_class, source), self._part(user, source)
        for target in self._open_to(user):
            if target == source:
                continue
            other = speed(job_class, target)
            if one is None or other is None:
                scouted = self._world.kind_gpus.get((user, job_class, target), 0) > 0
                if (part < 1 or self._newer(target, source)) and not (one is not None and scouted):
                    yield target
            elif other * self._part(user, target) >= one * part * (1 - SLACK):
                yield target

    def _open_to(self, user: UserName) -> list[str]:
        """Pools that the user has a share of, or of which GPUs idle."""
        found = self._open.get(user)
        if found is None:
            entitled, level = self._entitled, self._board.level
            found = self._open[user] = [
                model
                for model in self._world.models
                if entitled.get((user, model), 0.0) > 0 or level(model).idle
            ]
        return found

    def gain(self, job: JobFacts, source: str, target: str) -> tuple[float, float, float]:
        """The job's effective rate now and then, and what the user's sum grows by; -inf: the job would be worse off."""
        user, gang = job.user, job.gang
        one, other, known = self._pair(job.job_class, source, target)
        before, after = self._part(user, source), self._board.part(user, target, gang)
        now, then = one * before, other * after
        if then < now * (1 - SLACK) or (not known and before > 0 and after < 1 - SLACK):
            return now, then, -inf
        here, there = self._sum(user, source), self._sum(user, target)
        rest = here - gang * one
        more = there + gang * other
        was = here * before + there * self._part(user, target)
        will = rest * self._board.part(user, source, -gang) + more * after
        return now, then, will - was

    def scouts(self, job: JobFacts, source: str, target: str) -> bool:
        """Nobody knows how fast its class is on a newer model of which its user has GPUs for some turns. For each user one at a time goes there to find out."""
        user, speed = job.user, self._speeds.get
        known = speed(job.job_class, source) is not None, speed(job.job_class, target) is not None
        if known != (True, False) or not self._newer(target, source):
            return False
        there = self._world.kind_gpus
        return self._entitled.get((user, target), 0.0) * ENOUGH >= job.gang and not any(
            speed(other, target) is None and there.get((user, other, target), 0)
            for other in self._world.classes(user)
        )

    def explain(self, job: JobFacts, source: str, target: str) -> str:
        """Before the move."""
        one, other, known = self._pair(job.job_class, source, target)
        now, then = one * self._part(job.user, source), other * self._board.part(job.user, target, job.gang)
        if now <= 0:
            return f"{job.user} has no share of the {source} GPUs now, and has one of {target}"
        if not known and self._newer(target, source) and self._speeds.get(job.job_class, source) is not None:
            return f"nobody knows how fast its class is on {target}; it goes there to find out"
        if not known:
            return f"{job.user} has GPUs of {target} to spare, and its jobs take turns on {source}"
        more = then / now
        times = f"{more:.2f} times" if more < MANY else "many times"
        return f"with {job.user}'s shares of both it gets {times} as much done on {target} as on {source}, and {job.user} gains by it"

    def _pair(self, job_class: str, source: str, target: str) -> tuple[float, float, bool]:
        one, other = self._speeds.get(job_class, source), self._speeds.get(job_class, target)
        if one is not None and other is not None:
            return one, other, True
        base = one if one is not None else 1.0
        return base, base * (HOPE if self._newer(target, source) else 1.0), False

    def _newer(self, target: str, source: str) -> bool:
        models = self._world.models
        return models.index(target) < models.index(source)

    def _sum(self, user: UserName, model: str) -> float:
        """Speeds of the user's jobs there, times their GPUs, as if all ran."""
        at = (user, model)
        found = self._sums.get(at)
        if found is None:
            kinds, speed = self._world.kind_gpus, self._speeds.get
            found = self._sums[at] = sum(
                kinds.get((user, job_class, model), 0) * (speed(job_class, model) or 1.0)
                for job_class in self._world.classes(user)
            )
        return found

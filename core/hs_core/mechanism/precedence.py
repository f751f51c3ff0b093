"""Who of those that were chosen has GPUs first, where not all fit together.

The largest gangs do, so that what was chosen fits together; where it does not, who was chosen first.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from hs_core.mechanism.floor import floor
from hs_core.mechanism.placing import Home
from hs_core.mechanism.seating import Seating
from hs_core.mechanism.slots import Slots
from hs_core.names import JobId
from hs_core.policy import JobFacts, Snapshot

PASSES = 4
"""After so many in which those who were passed over go before the largest, all go in the order in which they were chosen."""

Chosen = Mapping[JobId, tuple[JobFacts, str]]
"""Jobs and the GPU model that each was promised, in the order in which they were chosen."""


class _InLine(NamedTuple):
    job: JobFacts
    model: str  # that it was promised
    claimed: Home  # servers where it would stay


class Precedence:
    def __init__(
        self, snapshot: Snapshot, seating: Seating, able: Callable[[JobFacts, str, Slots], tuple[str, ...]]
    ) -> None:
        """`able`: the GPU models on which a job comes before who was chosen later, of what it was promised."""
        self._running = snapshot.running
        self._hosts = floor(snapshot.hosts).hosts
        self._seating = seating
        self._able = able

    def in_order(
        self, slots: Slots, chosen: Chosen, targets: Mapping[JobId, Home]
    ) -> tuple[Slots, set[JobId]]:
        """As `hand_out`, with the slots as they are then; but nobody goes without while who was chosen later has GPUs, unless those before it leave it none."""
        before, passes = slots.copy(), 0
        ahead: dict[JobId, int] = {}
        line = self._line(slots, chosen)
        seated = self._seat(slots, line, targets, ahead)
        while passed := self._passed_over(slots, chosen, seated).difference(ahead):
            passes += 1
            first = [job for job in chosen if passes > PASSES or job in passed or job in ahead]
            ahead = {job: at for at, job in enumerate(first)}
            slots = before.copy()
            seated = self._seat(slots, line, targets, ahead)
        if ahead:
            # Where these fit together by themselves, the largest first, none need leave for who went ahead.
            alone = {job: (chosen[job][0], slots.model_of(chosen[job][0])) for job in seated}
            if self.hand_out(before, alone, targets) == seated:
                slots = before
        return slots, seated

    def hand_out(self, slots: Slots, chosen: Chosen, targets: Mapping[JobId, Home]) -> set[JobId]:
        """Who found GPUs, where the largest go first; of equal ones those that cannot leave, those at home, then by arrival."""
        return self._seat(slots, self._line(slots, chosen), targets, {})

    def _line(self, slots: Slots, chosen: Chosen) -> list[_InLine]:
        """In the order of `hand_out`."""
        hosts = self._hosts
        line = []
        for job, model in chosen.values():
            home, gang, per_node = slots.home(job), job.gang, job.per_node
            stays = bool(home) and hosts[home[0]].model == model
            moves_on = not (stays and job.id in self._running)
            rank = (slots.may_leave(job), -per_node, -gang, moves_on, not stays, job.arrival_s, job.id)
            line.append((rank, _InLine(job, model, home if stays else ())))
        line.sort(key=itemgetter(0))
        return [job for _, job in line]

    def _seat(
        self,
        slots: Slots,
        line: Sequence[_InLine],
        targets: Mapping[JobId, Home],
        ahead: Mapping[JobId, int],
    ) -> set[JobId]:
        """`ahead`: before all others, in that order; not only on the model that was promised, if it matters less than the order."""
        claims = dict.fromkeys(self._hosts, 0)  # GPUs that chosen jobs would stay on
        for job, _, claimed in line:
            for name in claimed:
                claims[name] += job.per_node
        if ahead:
            line = sorted(line, key=lambda entry: ahead.get(entry.job.id, len(ahead)))
        seated = set[JobId]()
        for job, model, claimed in line:
            for name in claimed:
                claims[name] -= job.per_node
            found = slots.runs(job) or self._seating.seat(
                slots, job, (model,), claims, target=targets.get(job.id, ())
            )
            if found or (
                job.id in ahead and self._seating.seat(slots, job, self._able(job, model, slots), claims)
            ):
                seated.add(job.id)
        return seated

    def _passed_over(self, slots: Slots, chosen: Chosen, seated: Collection[JobId]) -> set[JobId]:
        """Who found no GPUs though who was chosen later has some on which it could run."""
        passed, later = set[JobId](), set[str]()
        if len(seated) < len(chosen):
            for job, model in reversed([*chosen.values()]):
                if job.id in seated:
                    later.add(slots.model_of(job))
                elif not later.isdisjoint(self._able(job, model, slots)):
                    passed.add(job.id)
        return passed

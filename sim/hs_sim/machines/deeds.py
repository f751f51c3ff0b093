"""What people ask for while things go wrong: servers and GPUs drained, jobs paused or cancelled, other tickets, another policy.

Whoever asks does so until it is answered, as a client does; what is taken for a while is given back.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from hs_core.events import (
    ClusterEvent,
    GpusDrained,
    HostDrained,
    HostUndrained,
    JobsCancelled,
    JobsPaused,
    JobsUnpaused,
    PolicySet,
    UserSet,
)
from hs_core.names import HostName, JobId, UserName
from hs_sim.machines.truth import JobTruth

if TYPE_CHECKING:
    from hs_sim.machines.world import World

WHO = UserName("root")
RETRY_S = 2.0  # who was not answered asks again

Done = Callable[[], None]
Make = Callable[[float], ClusterEvent]


class Deeds:
    def __init__(self, world: "World") -> None:
        self._world = world
        self._clock = world.clock

    def drain_host(self, host: HostName, for_s: float, deadline_s: float | None, done: Done) -> None:
        """`deadline_s`: from now; None: jobs there may take their time."""

        def drain(now_s: float) -> HostDrained:
            by_s = None if deadline_s is None else now_s + deadline_s
            return HostDrained(now_s=now_s, by=WHO, host=host, reason="a disk", deadline_s=by_s)

        def undrain(now_s: float) -> HostUndrained:
            return HostUndrained(now_s=now_s, by=WHO, host=host)

        self._for_a_while(drain, undrain, for_s, done)

    def drain_gpu(self, host: HostName, at: int, for_s: float, done: Done) -> None:
        gpu = self._world.agents[host].gpus[at].id

        def drain(now_s: float) -> GpusDrained:
            return GpusDrained(now_s=now_s, by=WHO, host=host, gpus=frozenset({gpu}), reason="a fan")

        def undrain(now_s: float) -> GpusDrained:
            return GpusDrained(now_s=now_s, by=WHO, host=host, gpus=frozenset())

        self._for_a_while(drain, undrain, for_s, done)

    def pause(self, job: JobTruth, for_s: float, done: Done) -> None:
        jobs = _known(job)
        self._for_a_while(
            lambda now_s: JobsPaused(now_s=now_s, by=WHO, jobs=jobs),
            lambda now_s: JobsUnpaused(now_s=now_s, by=WHO, jobs=jobs),
            for_s,
            done,
        )

    def cancel(self, job: JobTruth, done: Done) -> None:
        def cancelled() -> None:
            self._world.cancelled(job)
            done()

        jobs = _known(job)
        self._ask(lambda now_s: JobsCancelled(now_s=now_s, by=WHO, jobs=jobs), cancelled)

    def set_tickets(self, user: UserName, tickets: float, done: Done) -> None:
        self._ask(lambda now_s: UserSet(now_s=now_s, name=user, by=WHO, tickets=tickets), done)

    def set_policy(self, name: str, done: Done) -> None:
        self._ask(lambda now_s: PolicySet(now_s=now_s, name=name, by=WHO), done)

    def _for_a_while(self, take: Make, give_back: Make, for_s: float, done: Done) -> None:
        self._ask(take, lambda: self._clock.after(for_s, self._ask, give_back, done))

    def _ask(self, make: Make, done: Done) -> None:
        """Until it is answered, be it with a refusal: said twice it changes nothing."""
        answered = False

        def hear(_: object) -> None:
            nonlocal answered
            if not answered:
                answered = True
                done()

        def ask() -> None:
            if not answered:
                self._world.controller.tell(make, answered=hear)
                self._clock.after(RETRY_S, ask)

        ask()


def _known(job: JobTruth) -> tuple[JobId, ...]:
    assert job.id is not None
    return (job.id,)

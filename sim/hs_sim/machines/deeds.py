"""What people ask for while things go wrong: servers and GPUs drained, jobs paused or cancelled, other tickets, another policy.

Whoever asks does so until it is answered, as a client does; what is taken for a while is given back.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from hs_core.events.cluster import (
    ClusterEvent,
    GpusDrained,
    HostDrained,
    HostRemoved,
    HostUndrained,
    JobsCancelled,
    JobsPaused,
    JobsUnpaused,
    PolicySet,
    UserRemoved,
    UserSet,
)
from hs_core.names import HostName, JobId, UserName
from hs_sim.machines.truth import JobTruth

if TYPE_CHECKING:
    from hs_sim.machines.world import World

WHO = UserName("root")
RETRY_S = 10.0  # who was not answered asks again
POLL_S = 2.0  # who was told not yet, too

Done = Callable[[], None]
Answered = Callable[[bool], None]
"""Told whether it was allowed."""
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

    def remove_host(self, host: HostName, for_s: float, done: Done) -> None:
        """Drained, and taken out as soon as that is allowed; who takes it out loses nothing. It comes back as a new server. Not allowed for so long: as it was."""
        world, until_s = self._world, self._clock.now_s + for_s

        def drain(now_s: float) -> HostDrained:
            return HostDrained(now_s=now_s, by=WHO, host=host, reason="goes")

        def remove(now_s: float) -> ClusterEvent:
            if host not in world.controller.machine.connected:
                return drain(now_s)  # of one that is away anybody's work may be lost
            return HostRemoved(now_s=now_s, by=WHO, host=host)

        def undrain(now_s: float) -> HostUndrained:
            return HostUndrained(now_s=now_s, by=WHO, host=host)

        def removed(_: bool) -> None:
            # Whatever the answer: asked again before it came, it was perhaps the first of these that did it.
            if world.controller.machine.host(host) is None:
                world.note(f"{host} is gone")
                world.agents[host].wipe()
                self._clock.after(world.timing.reboot_s, comes)
            elif self._clock.now_s < until_s:
                self._clock.after(POLL_S, self._ask, remove, removed)
            else:
                self._ask(undrain, lambda _: done())

        def comes() -> None:
            agent = world.agents[host]
            if not agent.up:
                agent.start()
            done()

        self._ask(drain, lambda _: self._ask(remove, removed))

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
        def cancelled(_: bool) -> None:
            self._world.cancelled(job)
            done()

        jobs = _known(job)
        self._ask(lambda now_s: JobsCancelled(now_s=now_s, by=WHO, jobs=jobs), cancelled)

    def set_tickets(self, user: UserName, tickets: float, done: Done) -> None:
        self._ask(lambda now_s: UserSet(now_s=now_s, name=user, by=WHO, tickets=tickets), lambda _: done())

    def set_policy(self, name: str, done: Done) -> None:
        self._ask(lambda now_s: PolicySet(now_s=now_s, name=name, by=WHO), lambda _: done())

    def leave(self, user: UserName, for_s: float, done: Done) -> None:
        """All of its jobs are cancelled, until there are none and it can be removed. Whoever submits for it meanwhile asks again once it is back."""
        world, until_s = self._world, self._clock.now_s + for_s

        def back(_: bool) -> None:
            tickets = world.experiment.workload.tickets[user]
            self._clock.at(max(until_s, self._clock.now_s), self.set_tickets, user, tickets, done)

        def removed(allowed: bool) -> None:
            if allowed or world.controller.machine.user(user) is None or self._clock.now_s >= until_s:
                back(allowed)
            else:
                self._clock.after(POLL_S, leave)

        def leave() -> None:
            jobs = [job for job in world.truth.jobs.values() if job.sim.user == user and job.id is not None]
            left = [job for job in jobs if not job.over]
            for job in left:
                self.cancel(job, lambda: None)
            self._ask(lambda now_s: UserRemoved(now_s=now_s, name=user, by=WHO), removed)

        leave()

    def _for_a_while(self, take: Make, give_back: Make, for_s: float, done: Done) -> None:
        self._ask(take, lambda _: self._clock.after(for_s, self._ask, give_back, lambda _: done()))

    def _ask(self, make: Make, done: Answered) -> None:
        """Until it is answered: said twice it changes nothing."""
        answered = False

        def hear(answer: object) -> None:
            nonlocal answered
            if not answered:
                answered = True
                done(answer is not None)

        def ask() -> None:
            if not answered:
                self._world.controller.tell(make, answered=hear)
                self._clock.after(RETRY_S, ask)

        ask()


def _known(job: JobTruth) -> tuple[JobId, ...]:
    assert job.id is not None
    return (job.id,)

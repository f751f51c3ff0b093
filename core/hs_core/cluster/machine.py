"""The controller's mind: `handle(event) -> Outcome`. Pure: what it knows of time comes with the events.

A refused event raises RefusedError and has changed nothing: each handler looks at everything before it changes anything.
Its parts build on one another: `contents`, `views`, `scenes`, `starts`, `ends`, `lives`, `moves`, `hosts`, `admin`, `requests`, `decisions`, `directs`.
"""

from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import assert_never

from hs_core.cluster import invariants
from hs_core.cluster.directs import Directs
from hs_core.cluster.state import Outcome, Settings, State
from hs_core.cluster.underway import Underway
from hs_core.errors import BrokenError
from hs_core.events.cluster import (
    ClusterCommand,
    ClusterEvent,
    Direct,
    GpusDrained,
    HostDoubled,
    HostDrained,
    HostJoined,
    HostLeft,
    HostRemoved,
    HostReported,
    HostUndrained,
    JobsCancelled,
    JobsPaused,
    JobsSubmitted,
    JobsUnpaused,
    PolicyAnswered,
    PolicySet,
    QuantumEnded,
    UserRemoved,
    UserSet,
)
from hs_core.model import Job
from hs_core.names import HostName, JobId
from hs_core.policy import Policy

_SAMPLE = 1024  # rows that are looked at at each edge, one after the other


def as_it_is(policy: Policy) -> Policy:
    return policy


class ClusterMachine(Directs):
    def __init__(
        self,
        policy: Policy,
        settings: Settings,
        state: State | None = None,
        dress: Callable[[Policy], Policy] = as_it_is,
    ) -> None:
        super().__init__(policy, settings, state or State(), dress)
        self.check()

    # --- durable state --------------------------------------------------------------------------------------------

    def begin_term(self, term: int) -> None:
        """Takes office. Terms come from the store and only grow; every host is told anew."""
        if term < self._term:
            raise BrokenError(f"term {term} began after term {self._term}")
        self._term = term
        self._seq = 0
        self._sent.clear()
        self._restless |= self._connected

    def look_on(self, here: Collection[HostName]) -> None:
        """The journal cannot be written: nothing is taken in any more, and another machine comes after this one.

        Until then people ask this one, and it has been told of nobody: `here` are the servers that are connected.
        """
        self._looks_on = True
        for name in (self._connected ^ set(here)) & self._book.hosts.keys():
            self._connected ^= {name}
            self._book.touch(name)

    def recall(self, jobs: Iterable[Job]) -> None:
        """Gives back ended jobs that are no longer held, so that a new one may name them in `after`."""
        for row in jobs:
            if not row.state.ended:
                raise BrokenError(f"job {row.id}, recalled, is {row.state}")
            self._book.recall(row)

    # --- what happens ---------------------------------------------------------------------------------------------

    def handle(self, event: ClusterEvent) -> Outcome:
        self._event = Underway()
        now_s = event.now_s
        self._account(now_s)
        self._watch_away(now_s)
        answer, edge = self._happened(event)
        self._tend_fences(now_s)
        self._tend_drains(now_s)
        self._tend_copies(now_s)
        self._tend_moves(now_s)
        self._tend_backup(now_s)
        if self._decision_due(now_s, edge=edge):
            self._decide(now_s)
            self._tend_moves(now_s)  # what was decided about a job without a process needs nobody's word
        commands: tuple[ClusterCommand, ...] = (*self._directs(now_s), *self._consults(), *self._wakes(now_s))
        outcome = Outcome(
            commands=commands,
            facts=tuple(self._event.facts),
            answer=answer,
            touched=self._event.touched,
        )
        self._check_event(outcome, edge=edge)
        self._weights.clear()
        self._idle.clear()
        self._loads.clear()
        self._unsliced.clear()
        self._closed.clear()
        return outcome

    def _happened(self, event: ClusterEvent) -> tuple[tuple[JobId, ...], bool]:
        """The jobs that it was about, and whether it was a quantum's end."""
        answer: tuple[JobId, ...] = ()
        edge = False
        match event:
            case HostReported():
                self._host_reported(event)
            case JobsSubmitted():
                answer = self._jobs_submitted(event)
            case JobsCancelled():
                answer = self._jobs_cancelled(event)
            case JobsPaused():
                answer = self._jobs_paused(event)
            case JobsUnpaused():
                answer = self._jobs_unpaused(event)
            case UserSet():
                self._user_set(event)
            case UserRemoved():
                self._user_removed(event)
            case PolicyAnswered():
                self._policy_answered(event)
            case PolicySet():
                self._policy_set(event)
            case HostJoined():
                self._host_joined(event)
            case HostLeft():
                self._host_left(event)
            case HostDoubled():
                self._host_doubled(event)
            case HostDrained():
                self._host_drained(event)
            case HostUndrained():
                self._host_undrained(event)
            case HostRemoved():
                self._host_removed(event)
            case GpusDrained():
                self._gpus_drained(event)
            case QuantumEnded():
                edge = self._quantum_ended(event.now_s)
            case _:
                assert_never(event)
        return answer, edge

    # --- laws -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Every invariant, of everything."""
        book = self._book
        invariants.check_rows(book, book.jobs.values(), self._next_job_id)
        invariants.check_homes(book)
        invariants.check_arrays(book)
        invariants.check_bulk(book)
        invariants.check_wanted(self._sent, book, self._term, self._seq)
        invariants.check_gangs(self._sent, book)
        invariants.must(self._connected <= book.hosts.keys(), "a host is connected that is not known")

    def _check_event(self, outcome: Outcome, *, edge: bool) -> None:
        """After each event what it changed; at each edge some of everything: no event may cost what all jobs cost."""
        book = self._book
        if edge:
            self._check_some()
        counted = self._event.counted
        for job, old in self._event.before.items():
            new = book.jobs.get(job)
            if old is not None and job in counted:
                invariants.check_counted(old, book.live[job])
            elif new is not None:  # else it ended and was let go of
                invariants.check_row(book, new, self._next_job_id)
                invariants.check_change(old, new)
        told = {command.host: command.wanted for command in outcome.commands if isinstance(command, Direct)}
        invariants.must(all(w.term == self._term for w in told.values()), "a command of another term")
        invariants.check_wanted(told, book, self._term, self._seq)

    def _check_some(self) -> None:
        book = self._book
        rows = book.live
        if self._sampled >= len(rows):
            self._sampled = 0
        some = islice(rows.values(), self._sampled, self._sampled + _SAMPLE)
        invariants.check_rows(book, some, self._next_job_id)
        self._sampled += _SAMPLE
        invariants.check_gangs(self._sent, book)

"""The controller's mind: `handle(event) -> Outcome`. Pure: what it knows of time comes with the events.

A refused event raises RefusedError and has changed nothing: each handler looks at everything before it changes anything.
`Contents` is what it holds, and the one way in which rows change. Around it are parts, each of which names what it stands on
when it is made; none calls back. Reports and what follows from them: `Lives`, `Exits`, `Anew`, `Ends`, `Starts`. Servers: `Hosts`,
`Fences`, `Returns`, `Sources`, `TakingUp`, `Drains`. What people say: `Requests`, `Admin`. The policy: `Pace`, `Decisions`, `Moves`. What goes out:
`Directs`, `Cadence`, `Wakes`. What can be asked: `Views`, `Scenes`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import assert_never

from hs_core.cluster import invariants
from hs_core.cluster.admin import Admin
from hs_core.cluster.anew import Anew
from hs_core.cluster.cadence import Cadence
from hs_core.cluster.contents import Contents
from hs_core.cluster.decisions import Decisions
from hs_core.cluster.directs import Directs
from hs_core.cluster.drains import Drains
from hs_core.cluster.ends import Ends
from hs_core.cluster.exits import Exits
from hs_core.cluster.fences import Fences
from hs_core.cluster.hosts import Hosts
from hs_core.cluster.lives import Lives
from hs_core.cluster.moves import Moves
from hs_core.cluster.pace import Pace
from hs_core.cluster.requests import Requests
from hs_core.cluster.returns import Returns
from hs_core.cluster.scenes import Scenes
from hs_core.cluster.sources import Sources
from hs_core.cluster.starts import Starts
from hs_core.cluster.state import Outcome, Settings, State
from hs_core.cluster.taking_up import TakingUp
from hs_core.cluster.underway import Underway
from hs_core.cluster.views import Views
from hs_core.cluster.wakes import Wakes
from hs_core.cluster.why import Why
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
from hs_core.model import Job, JobSpec
from hs_core.names import HostName, JobId, UserName
from hs_core.policy import Policy
from hs_core.question import Question

_SAMPLE = 1024  # rows that are looked at at each edge, one after the other


def as_it_is(policy: Policy) -> Policy:
    return policy


class ClusterMachine(Views):
    """It is all that can be asked (`Views`), and the one door by which anything changes."""

    def __init__(
        self,
        policy: Policy,
        settings: Settings,
        state: State | None = None,
        dress: Callable[[Policy], Policy] = as_it_is,
    ) -> None:
        """`dress`: what the driver puts around every policy that takes office, as a stopwatch."""
        contents = Contents(dress(policy), settings, state or State())
        super().__init__(contents)
        self._cadence = cadence = Cadence(contents)
        self._scenes = Scenes(contents, self, cadence)
        starts = Starts(contents)
        ends = Ends(contents)
        anew = Anew(contents, ends)
        exits = Exits(contents, starts, ends, anew)
        lives = Lives(contents, starts, anew, exits)
        sources = Sources(contents, anew)
        self._moves = Moves(contents, starts, anew)
        self._fences = Fences(contents, lives, sources)
        self._hosts = Hosts(
            contents,
            starts=starts,
            anew=anew,
            lives=lives,
            sources=sources,
            returns=Returns(contents, ends, anew, exits),
            fences=self._fences,
            taking_up=TakingUp(contents),
        )
        self._admin = Admin(contents, starts, self._hosts, dress)
        self._drains = Drains(contents)
        self._requests = Requests(contents, starts, ends)
        self._pace = Pace(contents)
        self._decisions = Decisions(contents, self._moves, cadence)
        self._directs = Directs(contents, cadence)
        self._wakes = Wakes(contents, self._moves, self._drains, self._pace)
        self._sampled = 0  # rows that were checked, of all
        self.check()

    # --- what is asked, besides views -----------------------------------------------------------------------------

    def why(self, job: JobId, now_s: float) -> Why:
        """Why it is where it is. Raises RefusedError where it is not known."""
        return self._scenes.why(job, now_s)

    def validate(self, user: UserName, specs: Sequence[JobSpec], *, newcomer: bool = False) -> None:
        """As `Requests.validate`."""
        self._requests.validate(user, specs, newcomer=newcomer)

    def what_if(self, tickets: Mapping[UserName, float], now_s: float) -> Question | None:
        """As `Decisions.what_if`."""
        return self._decisions.what_if(tickets, now_s)

    # --- durable state --------------------------------------------------------------------------------------------

    def begin_term(self, term: int) -> None:
        """Takes office. Terms come from the store and only grow; every host is told anew."""
        if term < self._contents.term:
            raise BrokenError(f"term {term} began after term {self._contents.term}")
        self._contents.term = term
        self._contents.seq = 0
        self._contents.sent.clear()
        self._contents.restless |= self._connected

    def look_on(self, here: Collection[HostName]) -> None:
        """The journal cannot be written: nothing is taken in any more, and another machine comes after this one.

        Until then people ask this one, and it has been told of nobody: `here` are the servers that are connected.
        """
        self._contents.looks_on = True
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
        self._contents.event = Underway()
        now_s = event.now_s
        self._contents.account(now_s)
        self._fences.watch_away(now_s)
        answer, edge = self._happened(event)
        self._fences.tend(now_s)
        self._drains.tend(now_s)
        self._moves.tend_copies(now_s)
        self._moves.tend(now_s)
        self._fences.tend_backup(now_s)
        if self._pace.due(now_s, edge=edge):
            self._decisions.decide(now_s)
            self._moves.tend(now_s)  # what was decided about a job without a process needs nobody's word
        commands: tuple[ClusterCommand, ...] = (
            *self._directs.directs(now_s),
            *self._directs.consults(),
            *self._wakes.due(now_s),
        )
        outcome = Outcome(
            commands=commands,
            facts=tuple(self._contents.event.facts),
            answer=answer,
            touched=self._contents.event.touched,
        )
        self._check_event(outcome, edge=edge)
        self.happened()
        self._scenes.happened()
        return outcome

    def _happened(self, event: ClusterEvent) -> tuple[tuple[JobId, ...], bool]:
        """The jobs that it was about, and whether it was a quantum's end."""
        answer: tuple[JobId, ...] = ()
        edge = False
        match event:
            case HostReported():
                self._hosts.reported(event)
            case JobsSubmitted():
                answer = self._requests.jobs_submitted(event)
            case JobsCancelled():
                answer = self._requests.jobs_cancelled(event)
            case JobsPaused():
                answer = self._requests.jobs_paused(event)
            case JobsUnpaused():
                answer = self._requests.jobs_unpaused(event)
            case UserSet():
                self._requests.user_set(event)
            case UserRemoved():
                self._requests.user_removed(event)
            case PolicyAnswered():
                self._decisions.policy_answered(event)
            case PolicySet():
                self._admin.policy_set(event)
            case HostJoined():
                self._hosts.joined(event)
            case HostLeft():
                self._hosts.left(event)
            case HostDoubled():
                self._hosts.doubled(event)
            case HostDrained():
                self._admin.host_drained(event)
            case HostUndrained():
                self._admin.host_undrained(event)
            case HostRemoved():
                self._admin.host_removed(event)
            case GpusDrained():
                self._admin.gpus_drained(event)
            case QuantumEnded():
                self._wakes.woken()
                edge = self._cadence.quantum_ended(event.now_s)
            case _:
                assert_never(event)
        return answer, edge

    # --- laws -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Every invariant, of everything."""
        book = self._book
        invariants.check_rows(book, book.jobs.values(), self._contents.next_job_id)
        invariants.check_homes(book)
        invariants.check_arrays(book)
        invariants.check_bulk(book)
        invariants.check_wanted(self._contents.sent, book, self._contents.term, self._contents.seq)
        invariants.check_gangs(self._contents.sent, book)
        invariants.must(self._connected <= book.hosts.keys(), "a host is connected that is not known")

    def _check_event(self, outcome: Outcome, *, edge: bool) -> None:
        """After each event what it changed; at each edge some of everything: no event may cost what all jobs cost."""
        book = self._book
        if edge:
            self._check_some()
        counted = self._contents.event.counted
        for job, old in self._contents.event.before.items():
            new = book.jobs.get(job)
            if old is not None and job in counted:
                invariants.check_counted(old, book.live[job])
            elif new is not None:  # else it ended and was let go of
                invariants.check_row(book, new, self._contents.next_job_id)
                invariants.check_change(old, new, taken_up=job in self._contents.backup.taken_up)
        told = {command.host: command.wanted for command in outcome.commands if isinstance(command, Direct)}
        invariants.must(
            all(w.term == self._contents.term for w in told.values()), "a command of another term"
        )
        invariants.check_wanted(told, book, self._contents.term, self._contents.seq)

    def _check_some(self) -> None:
        book = self._book
        rows = book.live
        if self._sampled >= len(rows):
            self._sampled = 0
        some = islice(rows.values(), self._sampled, self._sampled + _SAMPLE)
        invariants.check_rows(book, some, self._contents.next_job_id)
        self._sampled += _SAMPLE
        invariants.check_gangs(self._contents.sent, book)

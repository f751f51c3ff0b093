"""The controller's mind: `handle(event) -> Outcome`. Pure: what it knows of time comes with the events.

A refused event raises RefusedError and has changed nothing: each handler looks at everything before it changes anything.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import assert_never

from hs_core import plan
from hs_core.cluster import admission, invariants, orders, reports, states
from hs_core.cluster.state import Outcome, Settings, State, Touched
from hs_core.cluster.states import Happening
from hs_core.cluster.views import Views, ledger_of
from hs_core.cluster.why import exit_text
from hs_core.errors import BrokenError, Kind, RefusedError
from hs_core.events import (
    ClusterCommand,
    ClusterEvent,
    Direct,
    Fact,
    GpusDrained,
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
    QuantumEnded,
    Turn,
    UserSet,
    Wake,
    Wanted,
    WantedJob,
)
from hs_core.ledger import Ledger
from hs_core.model import (
    Exit,
    Gpu,
    Host,
    HostName,
    Job,
    JobId,
    JobReport,
    JobSpec,
    JobState,
    Phase,
    User,
    UserName,
)
from hs_core.policy import Policy

_SLACK_S = 1e-3  # a timer that fires this much early has fired


class ClusterMachine(Views):
    def __init__(self, policy: Policy, settings: Settings, state: State | None = None) -> None:
        super().__init__(policy, settings, state or State())
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

    def recall(self, jobs: Iterable[Job]) -> None:
        """Gives back ended jobs that are no longer held, so that a new one may name them in `after`."""
        for row in jobs:
            if not row.state.ended:
                raise BrokenError(f"job {row.id}, recalled, is {row.state}")
            self._book.recall(row)

    # --- what happens ---------------------------------------------------------------------------------------------

    def handle(self, event: ClusterEvent) -> Outcome:
        self._forget_event()
        self._account(event.now_s)
        answer: tuple[JobId, ...] = ()
        edge = False
        match event:
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
            case HostJoined():
                self._host_joined(event)
            case HostReported():
                self._host_reported(event)
            case HostLeft():
                self._host_left(event)
            case QuantumEnded():
                edge = self._quantum_ended(event.now_s)
            case HostDrained() | HostUndrained() | HostRemoved() | GpusDrained():
                raise RefusedError("draining is not built yet", Kind.INVALID)
            case _:
                assert_never(event)
        if self._decision_due(event.now_s, edge=edge):
            self._decide(event.now_s)
        commands = (*self._directs(), *self._wakes(event.now_s))
        outcome = Outcome(
            commands=commands,
            facts=tuple(self._facts),
            answer=answer,
            touched=Touched(
                jobs=frozenset(self._before),
                users=frozenset(self._touched_users),
                hosts=frozenset(self._touched_hosts),
                meta=self._touched_meta,
            ),
        )
        self._check_event(outcome, whole=edge)
        return outcome

    def _forget_event(self) -> None:
        self._before = {}
        self._touched_users = set()
        self._touched_hosts = set()
        self._touched_meta = False
        self._facts = []

    # --- requests -------------------------------------------------------------------------------------------------

    def validate(self, user: UserName, specs: Sequence[JobSpec]) -> None:
        """All that would make a submit be refused (`--dry-run` asks only this)."""
        limits = self.settings.limits
        self._known_user(user)
        if not 1 <= len(specs) <= limits.jobs_per_request:
            raise RefusedError(
                f"jobs: {len(specs)} in one request; 1 to {limits.jobs_per_request} were expected"
            )
        for position, spec in enumerate(specs):
            try:
                self._validate_spec(user, spec)
            except RefusedError as refused:
                if len(specs) == 1:
                    raise
                raise RefusedError(f"jobs[{position}]: {refused}", refused.kind) from None
        admission.check_arrays(specs)
        self._validate_room(user, len(specs))

    def _validate_spec(self, user: UserName, spec: JobSpec) -> None:
        admission.check_spec(spec, self.settings.limits)
        admission.check_after(spec, user, self._book.jobs.get)
        if self._book.hosts:
            misfit = admission.misfit(spec, self._book.hosts_sorted())
            if misfit is not None:
                raise RefusedError(f"{misfit.field}: the job {misfit.text}", Kind.IMPOSSIBLE)

    def _validate_room(self, user: UserName, count: int) -> None:
        settings = self.settings
        live, own = len(self._book.live), len(self._book.of_user.get(user, ()))
        if live + count > settings.max_jobs:
            raise RefusedError(
                f"jobs: {live} are under way and {count} more were asked for; the cluster takes {settings.max_jobs}",
                Kind.UNAVAILABLE,
            )
        if own + count > settings.max_jobs_per_user:
            most = settings.max_jobs_per_user
            raise RefusedError(
                f"jobs: {own} of {user}'s are under way and {count} more were asked for; one user may have {most}",
                Kind.UNAVAILABLE,
            )

    def _known_user(self, name: UserName) -> User:
        user = self._book.users.get(name)
        if user is None:
            known = sorted(self._book.users)
            shown = ", ".join(known[:10]) + (", …" if len(known) > 10 else "") or "nobody yet"
            raise RefusedError(f"unknown user {name!r}; known: {shown}", Kind.NOT_FOUND)
        return user

    def _jobs_submitted(self, event: JobsSubmitted) -> tuple[JobId, ...]:
        self.validate(event.user, event.specs)
        first = self._next_job_id
        ids = tuple(JobId(first + i) for i in range(len(event.specs)))
        self._next_job_id = JobId(first + len(ids))
        self._touched_meta = True
        members = [job for job, spec in zip(ids, event.specs, strict=True) if spec.array_index is not None]
        array_id = members[0] if members else None
        for job, spec in zip(ids, event.specs, strict=True):
            own = replace(spec, array_id=array_id if spec.array_index is not None else None)
            self._put(Job(id=job, user=event.user, spec=own, arrival_s=event.now_s), event.now_s)
            gang = "1 GPU" if own.gang == 1 else f"{own.gang} GPUs"
            self._fact(event.now_s, "submitted", f"{event.user} submitted {own.name!r} for {gang}", job=job)
        self._stale = True
        return ids

    def _rows(self, jobs: Iterable[JobId]) -> list[Job]:
        """The rows of a request, each once, in its order."""
        rows: list[Job] = []
        for job in dict.fromkeys(jobs):
            row = self._book.jobs.get(job)
            if row is None:
                raise RefusedError(f"there is no job {job}", Kind.NOT_FOUND)
            rows.append(row)
        if not rows:
            raise RefusedError("jobs: none was named")
        return rows

    def _jobs_cancelled(self, event: JobsCancelled) -> tuple[JobId, ...]:
        rows = self._rows(event.jobs)
        for row in rows:
            # An earlier one of the request may have taken this one with it (a dependency).
            self._cancel(self._book.jobs[row.id], event.by, event.now_s)
        return tuple(event.jobs)

    def _cancel(self, row: Job, by: str, now_s: float, *, why: str = "") -> None:
        if row.state.ended or row.state is JobState.CANCELLING:
            return
        self._stale = True
        if row.host is not None:
            state = states.after(row, Happening.CANCELLED)
            self._put(replace(row, state=state, cancelled_by=by), now_s)
            self._fact(now_s, "cancelled", f"{by} cancelled it; {row.host} ends it", job=row.id)
            return
        ended = Exit(why=why or f"cancelled by {by}")
        row = replace(row, cancelled_by=by)
        self._end(row, Happening.DROPPED, ended, now_s)

    def _jobs_paused(self, event: JobsPaused) -> tuple[JobId, ...]:
        rows = self._changeable(event.jobs, "paused")
        for row in rows:
            if row.paused:
                continue
            self._stale = True
            self._put(replace(row, paused=True, state=states.after(row, Happening.PAUSED)), event.now_s)
            self._fact(event.now_s, "paused", f"{event.by} paused it", job=row.id)
        return tuple(event.jobs)

    def _jobs_unpaused(self, event: JobsUnpaused) -> tuple[JobId, ...]:
        rows = self._changeable(event.jobs, "resumed")
        for row in rows:
            if not row.paused:
                continue
            self._stale = True
            happenings = [Happening.UNPAUSED]
            if row.host is not None:
                happenings.append(Happening.PLACED)
                happenings += [h for h in [states.happening_of(row)] if h]
            self._put(replace(row, paused=False, state=states.after(row, *happenings)), event.now_s)
            self._fact(event.now_s, "resumed", f"{event.by} lets it go on", job=row.id)
        return tuple(event.jobs)

    def _changeable(self, jobs: Iterable[JobId], what: str) -> list[Job]:
        rows = self._rows(jobs)
        for row in rows:
            if row.state.ended or row.state is JobState.CANCELLING:
                raise RefusedError(f"job {row.id} is {row.state} and cannot be {what}", Kind.CONFLICT)
        return rows

    def _user_set(self, event: UserSet) -> None:
        admission.check_user(event.name, event.tickets, event.run_as, self.settings.limits)
        old = self._book.users.get(event.name)
        base = old or User(name=event.name, tickets=self.settings.default_tickets)
        new = replace(
            base,
            tickets=base.tickets if event.tickets is None else event.tickets,
            run_as=base.run_as if event.run_as is None else event.run_as,
        )
        if new == old:
            return
        self._book.users[event.name] = new
        self._touched_users.add(event.name)
        jobs = self._book.of_user.get(event.name, set())
        if new.tickets != base.tickets:
            self._stale = True
        self._restless |= {home for job in jobs if (home := self._book.live[job].host) is not None}
        text = f"{event.name} has {new.tickets:g} tickets" + (f", runs as {new.run_as}" if new.run_as else "")
        self._fact(event.now_s, "user-set", text, user=event.name)

    # --- hosts ----------------------------------------------------------------------------------------------------

    def _host_joined(self, event: HostJoined) -> None:
        host, now_s = event.host, event.now_s
        models = sorted({gpu.model for gpu in host.gpus})
        if len(models) != 1:
            raise RefusedError(
                f"host {host.name!r}: it has {models or 'no GPU'}; GPUs of one model were expected"
            )
        old = self._book.hosts.get(host.name)
        if old is not None:
            host = replace(host, drain=old.drain, drained_gpus=old.drained_gpus)  # not the agent's to say
        if host != old:
            self._book.hosts[host.name] = host
            self._touched_hosts.add(host.name)
        self._connected.add(host.name)
        self._sent.pop(host.name, None)
        self._told = {told for told in self._told if told[0] != host.name}
        self._restless.add(host.name)
        self._stale = True
        gpus = f"{len(host.gpus)} {host.model}"
        self._fact(now_s, "host-joined", f"{host.name} is here with {gpus}", host=host.name)
        self._reconcile(
            host, event.reports, rebooted=old is not None and old.boot_id != host.boot_id, now_s=now_s
        )

    def _reconcile(self, host: Host, told: Iterable[JobReport], *, rebooted: bool, now_s: float) -> None:
        """What the host has against what it should have; the rest follows from the Wanted that it is sent."""
        known = {(report.job, report.epoch): report for report in told}
        for row in self._book.at(host.name):
            report = known.get((row.id, row.epoch))
            if report is not None:
                self._job_reported(row, host.name, report, now_s)
            elif row.report is not None:
                why = "was rebooted" if rebooted else "no longer knows of it"
                self._lost(row, f"{host.name} {why}", now_s)
            # else the order to start it never arrived: it is repeated

    def _host_reported(self, event: HostReported) -> None:
        host = self._book.hosts.get(event.host)
        if host is None:
            raise RefusedError(f"host {event.host!r} reports but has not joined", Kind.NOT_FOUND)
        if event.gpus and event.gpus != host.gpus:
            self._gpus_changed(host, event.gpus, event.now_s)
        for report in event.reports:
            row = self._book.live.get(report.job)
            if row is not None and row.epoch == report.epoch and row.host == event.host:
                self._job_reported(row, event.host, report, event.now_s)
            elif (told := (event.host, report.job, report.epoch)) not in self._told:
                self._told.add(told)
                self._sent.pop(event.host, None)  # what is wanted is said again, without it
                self._restless.add(event.host)

    def _gpus_changed(self, host: Host, gpus: tuple[Gpu, ...], now_s: float) -> None:
        if len({gpu.model for gpu in gpus}) != 1:
            raise RefusedError(f"host {host.name!r} reports GPUs of several models; one was expected")
        was = {gpu.id: gpu.healthy for gpu in host.gpus}
        for gpu in gpus:
            if gpu.healthy != was.get(gpu.id, True):
                kind = "gpu-healthy" if gpu.healthy else "gpu-unhealthy"
                text = f"GPU {gpu.index} of {host.name} is {'healthy again' if gpu.healthy else 'unhealthy'}"
                why = f": {gpu.why_unhealthy}" if gpu.why_unhealthy else ""
                self._fact(now_s, kind, text + why, host=host.name)
        self._book.hosts[host.name] = replace(host, gpus=gpus)
        self._touched_hosts.add(host.name)
        self._stale = True

    def _host_left(self, event: HostLeft) -> None:
        if event.host not in self._connected:
            return
        self._connected.discard(event.host)
        self._sent.pop(event.host, None)
        self._stale = True
        jobs = len(self._book.at_host.get(event.host, ()))
        text = f"{event.host} is away; {jobs} jobs go on there" if jobs else f"{event.host} is away"
        self._fact(event.now_s, "host-left", text, host=event.host)

    # --- a job on its host ----------------------------------------------------------------------------------------

    def _job_reported(self, row: Job, host: HostName, report: JobReport, now_s: float) -> None:
        merged = reports.merge(row.report, report)
        if merged == row.report:
            return
        happening = states.HAPPENING_OF_PHASE[merged.phase]
        state = states.after(row, happening) if happening else row.state
        before = row.report
        if merged.phase is Phase.RUNNING and row.first_run_s is None:
            row = replace(row, first_run_s=now_s)
        new = replace(row, reports={host: merged}, state=state)
        if before is None or _weighty(before) != _weighty(merged):
            self._stale = True
        self._tell_state(row, new, now_s)
        self._account(now_s).report(
            row.id, row.epoch, row.user, row.gpu_model, gpu_s=merged.gpu_s, now_s=now_s
        )
        self._put(new, now_s)
        if merged.exit is not None:
            self._exited(new, merged.exit, now_s)

    def _tell_state(self, old: Job, new: Job, now_s: float) -> None:
        if old.state is new.state or new.state not in _STATE_FACTS or new.report is None:
            return
        if new.report.phase is Phase.WAITING:
            return  # never launched: nothing was suspended
        kind, text = _STATE_FACTS[new.state]
        if new.state is JobState.SUSPENDED and new.first_run_s is None:
            kind, text = "ready", "it is up and waits for its first turn"
        self._fact(now_s, kind, f"{text} on {new.host} at step {new.report.step}", job=new.id)

    def _exited(self, row: Job, ended: Exit, now_s: float) -> None:
        if row.cancelled_by:
            self._end(row, Happening.GONE, ended, now_s)
        elif ended.why.startswith(reports.LOST):
            self._lost(row, ended.why, now_s)
        elif ended.ok:
            self._end(row, Happening.SUCCEEDED, ended, now_s)
        elif row.retries < row.spec.retry_max and ended.why != reports.TIME_LIMIT:
            row = replace(row, retries=row.retries + 1)
            text = f"it failed ({exit_text(ended)}) and is tried again, {row.retries} of {row.spec.retry_max}"
            self._fact(now_s, "retried", text, job=row.id)
            self._again(row, ended, now_s)
        else:
            self._end(row, Happening.FAILED, ended, now_s)

    def _lost(self, row: Job, why: str, now_s: float) -> None:
        """Its incarnation is dead, through no fault of its own."""
        ended = Exit(why=reports.LOST)
        if row.cancelled_by:
            self._end(row, Happening.GONE, ended, now_s)
            return
        if row.report is not None:
            lost = reports.lost_work_gpu_s(row.report)
            row = replace(row, past_lost_gpu_s=row.past_lost_gpu_s + lost)
        self._fact(now_s, "lost", f"it was lost: {why}", job=row.id)
        self._again(row, ended, now_s)

    def _again(self, row: Job, ended: Exit, now_s: float) -> None:
        """Queued for another incarnation; where its newest checkpoint is on its host, it keeps that home."""
        report = row.report
        spent_s = row.past_run_s + (report.run_s if report else 0.0)
        if 0 < row.spec.max_duration_s <= spent_s:
            self._end(row, Happening.FAILED, replace(ended, why=reports.TIME_LIMIT), now_s)
            return
        stays = report is not None and report.checkpoint_generation >= 0 and row.host in self._connected
        happenings = (Happening.REQUEUED, Happening.PLACED) if stays else (Happening.REQUEUED,)
        again = replace(
            row,
            state=states.after(row, *happenings),
            epoch=row.epoch + 1,
            hosts=row.hosts if stays else (),
            reports={},
            past_gpu_s=row.gpu_s,
            past_gpu_s_by_model=dict(row.gpu_s_by_model),
            past_run_s=spent_s,
            past_lost_gpu_s=row.past_lost_gpu_s + (report.lost_gpu_s if report else 0.0),
        )
        self._stale = True
        if row.host is not None:
            self._told.add((row.host, row.id, row.epoch))
        self._put(again, now_s)

    def _end(self, row: Job, happening: Happening, ended: Exit, now_s: float) -> None:
        state = states.after(row, happening)
        self._stale = True
        if row.host is not None:
            self._told.add((row.host, row.id, row.epoch))  # the next Wanted says so anyway
        self._put(replace(row, state=state, exit=ended, ended_s=now_s), now_s)
        self._tickets.pop(row.id, None)
        self._since_s.pop(row.id, None)
        self._orders.forget(row.id)
        self._account(now_s).forget(row.id)
        self._fact(now_s, str(state), f"it {_ENDED_WORDS[state]} ({exit_text(ended)})", job=row.id)
        self._release_waiters(row.id, now_s)
        for gone in self._book.evict(spare=self._before):  # the driver is yet to look at these
            self._stories.pop(gone, None)

    def _release_waiters(self, job: JobId, now_s: float) -> None:
        for waiter in sorted(self._book.waiters.get(job, ())):
            row = self._book.live.get(waiter)
            if row is None:
                continue
            for index, after in enumerate(row.spec.after):
                if self._book.dependency(row, index) is admission.Dependency.NEVER:
                    why = admission.never_text(after, self._book.jobs[after.job].state)
                    self._cancel(row, "its dependency", now_s, why=why)
                    break
            else:
                self._book.reconsider(waiter)

    # --- decisions ------------------------------------------------------------------------------------------------

    def _quantum_ended(self, now_s: float) -> bool:
        """Whether an edge was reached; a Wake that only asked for a decision is none."""
        self._wake_s = None
        if self._edge_s is None:
            return False
        # The wall clock may have been set back: no quantum takes longer than a quantum.
        self._edge_s = min(self._edge_s, now_s + self.settings.quantum_s)
        if now_s < self._edge_s - _SLACK_S:
            return False
        self._quantum += 1
        self._touched_meta = True
        following = self._edge_s + self.settings.quantum_s
        self._edge_s = following if following > now_s else now_s + self.settings.quantum_s
        return True

    def _decision_due(self, now_s: float, *, edge: bool) -> bool:
        if edge:
            return True
        if not self._stale:
            return False
        # A clock that was set back must not put decisions off.
        return self._decided_s is None or not 0 <= now_s - self._decided_s < self.settings.settle_s - _SLACK_S

    def _wakes(self, now_s: float) -> Iterator[Wake]:
        times = [] if self._edge_s is None else [self._edge_s]
        if self._stale and self._decided_s is not None:
            times.append(self._decided_s + self.settings.settle_s)
        if not times:
            return
        at_s = max(now_s, min(times))
        if self._wake_s is None or at_s != self._wake_s:
            self._wake_s = at_s
            yield Wake(at_s=at_s)

    def _decide(self, now_s: float) -> None:
        self._stale = False
        self._decided_s = now_s
        snapshot = self._orders.snapshot(
            self._book, self._connected, self.settings, quantum=self._quantum, now_s=now_s
        )
        wants_edges = self.policy.needs.every_quantum and bool(snapshot.jobs)
        if not wants_edges:
            self._edge_s = None
        elif self._edge_s is None:
            self._edge_s = now_s + self.settings.quantum_s
        if not snapshot.jobs:
            # Nobody to decide about: the policy keeps its memory until there is.
            self._turns, self._policy_says, self._entitled, self._planned = {}, {}, {}, frozenset()
            self._restless |= self._connected
            return
        verdict = self.policy.decide(snapshot, self._memory)
        plan.check(snapshot, verdict.plan)
        if verdict.memory != self._memory:
            self._memory = verdict.memory
            self._touched_meta = True
        for facts in snapshot.jobs:
            home = verdict.plan.homes.get(facts.id)
            if facts.host is None and home is not None:
                self._place(self._book.live[facts.id], home[0], now_s)
        self._planned = frozenset(verdict.plan.tickets)
        for job, tickets in verdict.plan.tickets.items():
            self._tickets[job] = float(tickets)
        self._turns = verdict.plan.turns
        self._policy_says = verdict.why
        self._entitled = verdict.entitled
        self._restless |= self._connected

    def _place(self, row: Job, home: HostName, now_s: float) -> None:
        host = self._book.hosts[home]
        state = states.after(row, Happening.PLACED)
        self._put(replace(row, hosts=(home,), gpu_model=host.model, state=state, settled_s=now_s), now_s)
        self._fact(now_s, "placed", f"it lives on {home} ({host.model})", job=row.id, host=home)

    # --- what is ordered ------------------------------------------------------------------------------------------

    def _directs(self) -> Iterator[ClusterCommand]:
        restless = sorted(self._restless & self._connected)
        self._restless = set()
        for name in restless:
            jobs = tuple(self._wanted_job(row) for row in self._book.at(name))
            turn = orders.turn_among(self._turns.get(name, Turn()), jobs)
            last = self._sent.get(name)
            if last is not None and last.jobs == jobs and last.turn == turn:
                continue
            self._seq += 1
            wanted = Wanted(
                term=self._term, seq=self._seq, quantum_s=self.settings.quantum_s, turn=turn, jobs=jobs
            )
            self._sent[name] = wanted
            yield Direct(host=name, wanted=wanted)

    def _wanted_job(self, row: Job) -> WantedJob:
        # 1: it is paused or ending, so nobody compares it
        return self._orders.wanted_job(row, self._book.users[row.user], self._tickets.get(row.id, 1.0))

    # --- rows, facts, accounts ------------------------------------------------------------------------------------

    def _put(self, row: Job, now_s: float) -> None:
        old = self._book.jobs.get(row.id)
        self._before.setdefault(row.id, old)
        if old is None or old.state is not row.state:
            self._since_s[row.id] = now_s
        if old is None or _ordered(old) != _ordered(row):
            self._restless |= {host for host in (old.host if old else None, row.host) if host is not None}
        self._book.put(row)

    def _fact(
        self,
        now_s: float,
        kind: str,
        text: str,
        *,
        job: JobId | None = None,
        user: UserName | None = None,
        host: HostName | None = None,
    ) -> None:
        row = self._book.jobs.get(job) if job is not None else None
        if row is not None:
            user, host = row.user, host or row.host
        fact = Fact(now_s=now_s, kind=kind, text=text, job=job, user=user, host=host)
        self._facts.append(fact)
        if job is not None:
            story = self._stories.get(job)
            if story is None:
                story = self._stories[job] = deque(maxlen=self.settings.story_facts)
            story.append(fact)

    def _account(self, now_s: float) -> Ledger:
        if self._ledger is None:
            self._ledger = ledger_of(self._book.jobs.values(), began_s=now_s)
        return self._ledger

    # --- laws -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Every invariant, of everything."""
        book = self._book
        invariants.check_rows(book, book.jobs.values(), self._next_job_id)
        invariants.check_homes(book)
        invariants.check_arrays(book)
        invariants.check_wanted(self._sent, book, self._term, self._seq)
        invariants.must(self._connected <= book.hosts.keys(), "a host is connected that is not known")

    def _check_event(self, outcome: Outcome, *, whole: bool) -> None:
        """After each event what it changed; after each quantum everything: a submit must not cost what all jobs cost."""
        if whole:
            self.check()
        for job, old in self._before.items():
            new = self._book.jobs.get(job)
            if new is not None:  # else it ended and was let go of
                invariants.check_row(self._book, new, self._next_job_id)
                invariants.check_change(old, new)
        told = [command.wanted for command in outcome.commands if isinstance(command, Direct)]
        invariants.must(all(w.term == self._term for w in told), "a command of another term")


_STATE_FACTS = {
    JobState.STARTING: ("starting", "its process is coming up"),
    JobState.RUNNING: ("running", "it runs"),
    JobState.SUSPENDED: ("suspended", "it is suspended"),
}

_ENDED_WORDS = {
    JobState.SUCCEEDED: "succeeded",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "was cancelled",
}


def _weighty(report: JobReport) -> tuple[bool, bool]:
    """What of a report a policy would decide differently for."""
    return reports.has_process(report), report.sliceable


def _ordered(row: Job) -> tuple[HostName | None, int, bool, bool, bool]:
    """What of a row its host is told."""
    return row.host, row.epoch, row.paused, bool(row.cancelled_by), row.state.ended

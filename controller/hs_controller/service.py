"""What users and admins can ask for (HeteroShare in controller.proto): messages in, events for the loop, views out."""

import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from hs_controller import errands, views
from hs_controller.admin_service import AdminCalls
from hs_controller.backup import Copies
from hs_controller.calls import Context, key_of, reaches_all, seconds
from hs_controller.gate import CALLER, ResyncError
from hs_controller.journal import MOST, Journal
from hs_controller.links import Hub
from hs_controller.loop import Loop
from hs_controller.mind import Mind
from hs_controller.output import Output
from hs_controller.permissions import Caller
from hs_controller.pieces import Pieces
from hs_controller.pki import Authority
from hs_controller.token_service import TokenCalls
from hs_core.cluster import ClusterMachine, Limits, Outcome
from hs_core.cluster.admission import MOST_STRATEGIES, spec_bytes
from hs_core.errors import Kind, RefusedError
from hs_core.events.cluster import (
    ClusterEvent,
    JobsCancelled,
    JobsPaused,
    JobsSubmitted,
    JobsUnpaused,
    UserSet,
)
from hs_core.model import ENDED_STATES, Job, JobSpec, JobState, SuspendMode
from hs_core.names import JobId, UserName
from hs_daemon import boot_s, version
from hs_proto import convert, dialect
from hs_proto.v1 import controller_pb2 as pb

JOBS_PER_REQUEST = 10_000
LIST_DEFAULT, LIST_MOST = 1000, 5000
READ_AT_ONCE = 100  # jobs
STORY = 200
EVENTS_PAGE = 500
EVENTS_TAIL, EVENTS_TAIL_MOST = 1000, 100_000
REFRESH_S = 5.0  # a watched job's waiting time is told again so often
LOG_LINES_MOST = 10_000_000
WORDS_MOST = 16  # by which jobs are looked for


class Service(AdminCalls, TokenCalls):
    def __init__(self, loop: Loop, hub: Hub, authority: Authority | None, secret: str) -> None:
        super().__init__(loop, hub, authority, secret)
        self._copies = Copies(loop.config.state_dir)
        self._watchers = Counter[str]()  # open streams, by whose they are
        self._started_s = boot_s()

    # --- submit -----------------------------------------------------------------------------------------------------

    async def Submit(self, request: pb.SubmitRequest, context: Context) -> pb.SubmitReply:
        caller = CALLER.get()
        user = self._submits_as(caller, request.as_user)
        specs = await _specs(request, self._loop.mind.machine.settings.limits)
        if request.dry_run:
            return await self._dry_run(user, specs)
        key = key_of(caller, "Submit", request)

        def make(now_s: float, machine: ClusterMachine) -> Sequence[ClusterEvent]:
            submitted = JobsSubmitted(now_s=now_s, user=user, specs=specs, by=UserName(caller.name))
            if machine.user(user) is not None:
                return [submitted]
            self._may_be_added(caller, user)
            machine.validate(user, specs, newcomer=True)  # refused: then nobody was added either
            return [UserSet(now_s=now_s, name=user), submitted]

        def render(outcomes: Sequence[Outcome]) -> bytes:
            ids = outcomes[-1].answer
            return pb.SubmitReply(job_ids=ids, notes=self._notes(specs)).SerializeToString()

        answer = await self._loop.ask(make, render, key, await self._waited_for(specs))
        return pb.SubmitReply.FromString(answer)

    async def _dry_run(self, user: UserName, specs: tuple[JobSpec, ...]) -> pb.SubmitReply:
        recalled = await self._waited_for(specs)
        machine = await self._loop.settled()
        if recalled:
            self._loop.mind.recall(recalled)
        newcomer = machine.user(user) is None
        if newcomer:
            self._may_be_added(CALLER.get(), user)
        machine.validate(user, specs, newcomer=newcomer)
        return pb.SubmitReply(notes=self._notes(specs))

    def _submits_as(self, caller: Caller, as_user: str) -> UserName:
        if as_user and as_user != caller.name and not caller.admin:
            raise RefusedError(
                f"as_user: {as_user!r}: only administrators submit for others", Kind.NOT_ALLOWED
            )
        if as_user:
            return UserName(as_user)
        if not caller.account:
            raise RefusedError(
                f"as_user: missing; {caller.name} is no account: say whose job it is", Kind.INVALID
            )
        return UserName(caller.name)

    def _may_be_added(self, caller: Caller, user: UserName) -> None:
        """Whoever comes through the unix socket may become a user by its account's name; others are added by an admin."""
        if self._loop.config.users_from_os and caller.account and user == caller.name:
            return
        raise RefusedError(
            f"unknown user {user!r}; an administrator adds it: hsctl user set {user} --tickets"
            f" {self._loop.config.default_tickets:g}",
            Kind.NOT_FOUND,
        )

    async def _waited_for(self, specs: Sequence[JobSpec]) -> Sequence[Job]:
        """Ended jobs that are named in `after` and are in the journal only."""
        if not any(spec.after for spec in specs):
            return ()
        machine = await self._loop.settled()
        return await self._from_store(machine.missing(specs))

    async def _from_store(self, ids: Sequence[JobId]) -> Sequence[Job]:
        """Those that have ended. A few at a time, as everybody reads on one thread; no more of them than one user's jobs may take in memory."""
        rows, size, most = list[Job](), 0, self._loop.config.limits.spec_bytes_per_user
        for first in range(0, len(ids), READ_AT_ONCE):
            some = ids[first : first + READ_AT_ONCE]
            found = await self._loop.store.read(partial(Journal.ended_among, jobs=some))
            size += sum(spec_bytes(row.spec) for row in found)
            if size > most:
                raise RefusedError(
                    f"jobs: the specs of those named that have ended take more than {most} bytes: name fewer at a time"
                )
            rows += found
        return rows

    def _notes(self, specs: Sequence[JobSpec]) -> list[str]:
        notes = []
        if any(spec.suspend is SuspendMode.NONE for spec in specs):
            notes.append("cannot be suspended: runs unsliced within your share")
        machine = self._loop.mind.machine
        if there := machine.models():
            asked = {model for spec in specs for model in spec.gpu_types}
            notes += [
                f"no server has {model} GPUs: it can only run on the others that it names"
                for model in sorted(asked - there)
            ]
        if not machine.connected:
            away = "every server is away just now: it waits until one is back"
            notes.append(away if there else "no server has joined the cluster yet: it waits until one does")
        return notes

    # --- cancel, pause, unpause --------------------------------------------------------------------------------------

    async def Cancel(self, request: pb.JobsRequest, context: Context) -> pb.JobsReply:
        return await self._change("Cancel", JobsCancelled, request)

    async def Pause(self, request: pb.JobsRequest, context: Context) -> pb.JobsReply:
        return await self._change("Pause", partial(JobsPaused, leave_ended=request.leave_ended), request)

    async def Unpause(self, request: pb.JobsRequest, context: Context) -> pb.JobsReply:
        return await self._change("Unpause", partial(JobsUnpaused, leave_ended=request.leave_ended), request)

    async def _change(
        self,
        method: str,
        event: Callable[..., JobsCancelled | JobsPaused | JobsUnpaused],
        request: pb.JobsRequest,
    ) -> pb.JobsReply:
        caller = CALLER.get()
        key = key_of(caller, method, request)
        if len(request.job_ids) > JOBS_PER_REQUEST:
            raise RefusedError(
                f"job_ids: {len(request.job_ids)} jobs; at most {JOBS_PER_REQUEST} were expected"
            )
        ids = tuple(JobId(job) for job in request.job_ids)

        def make(now_s: float, machine: ClusterMachine) -> Sequence[ClusterEvent]:
            for job in ids:
                _must_be_visible(machine.find(job), job, caller, method)
            return [event(now_s=now_s, by=UserName(caller.name), jobs=ids)]

        machine = await self._loop.settled()
        gone = {job for job in ids if job < machine.next_job_id and machine.find(job) is None}
        old = await self._from_store(sorted(gone))

        def render(outcomes: Sequence[Outcome]) -> bytes:
            """The request says whom it was about, so the jobs themselves are not kept for one that is sent again."""
            changed = set(outcomes[-1].answer)
            return pb.JobsReply(
                unchanged=[job for job in dict.fromkeys(ids) if job not in changed]
            ).SerializeToString()

        reply = pb.JobsReply.FromString(await self._loop.ask(make, render, key, old))
        pieces = Pieces(self._loop.settled)
        for job in dict.fromkeys(ids):
            machine, row = await self._job(job)
            reply.jobs.append(views.job_view(machine, row, self._loop.clock.now_s(), mine=True))
            await pieces.rest()
        return reply

    # --- jobs, looked at ---------------------------------------------------------------------------------------------

    async def Info(self, request: pb.InfoRequest, context: Context) -> pb.InfoReply:
        caller = CALLER.get()
        machine = await self._loop.settled()
        return pb.InfoReply(
            version=version(),
            dialect=dialect.of_clients(),
            term=machine.term,
            policy=machine.policy.name,
            quantum_s=machine.settings.quantum_s,
            uptime_s=boot_s() - self._started_s,
            you=caller.name,
            admin=caller.admin,
            read_only=bool(self._loop.read_only),
            now=self._loop.clock.now_s(),
        )

    async def ListJobs(self, request: pb.ListJobsRequest, context: Context) -> pb.ListJobsReply:
        caller = CALLER.get()
        states = [convert.word(JobState, state, "states") for state in request.states]
        if request.limit > LIST_MOST:
            raise RefusedError(f"limit: {request.limit}: at most {LIST_MOST} was expected")
        limit, words = request.limit or LIST_DEFAULT, tuple(word.lower() for word in request.words)
        ended = [state for state in states if state in ENDED_STATES]
        live = [state for state in states if state not in ENDED_STATES]
        if len(words) > WORDS_MOST:
            raise RefusedError(f"words: {len(words)} of them; at most {WORDS_MOST} were expected")
        if words and (request.all or ended):
            raise RefusedError("words: only jobs that have not ended are looked for by words")
        machine = await self._loop.settled()
        now_s = self._loop.clock.now_s()

        pieces, found, totals = Pieces(self._loop.settled), dict[JobId, pb.JobView](), pb.JobTotals()

        async def show(row: Job) -> None:
            found[row.id] = views.job_view(machine, row, now_s, mine=_mine(row, caller))
            await pieces.rest()

        if live or not states:
            user = UserName(request.user) if request.user else None
            asked = [row for row in machine.jobs(user=user, states=live) if _of_array(row, request.array_id)]
            there = sorted(asked, key=lambda row: row.id, reverse=True)
            for job in [row.id for row in (there if words or request.totals else there[:limit])]:
                row = machine.find(job)  # which may have become of it while others were shown
                if row is None or row.state.ended or (live and row.state not in live):
                    continue
                views.count(totals, row)
                if not words or views.holds(machine, row, words, now_s):
                    totals.found += 1
                    if len(found) < limit:
                        await show(row)
                await pieces.rest()
        # The ended ones after those that go on: one that ends in between is in both; the other way round it would be in neither.
        if ended or (request.all and not states):
            async for row in self._ended(request, ended, limit):
                await show(row)
        newest = sorted(found, reverse=True)[:limit]
        return pb.ListJobsReply(
            jobs=[found[j] for j in (newest if request.limit else reversed(newest))],
            totals=totals if request.totals else None,
        )

    async def _ended(
        self, request: pb.ListJobsRequest, states: Sequence[str], limit: int
    ) -> AsyncIterator[Job]:
        """The newest, a few at a time: their specs, of which nothing is shown, may be large."""
        before = MOST
        while limit > 0:
            read = partial(Journal.ended_jobs, user=request.user, states=states, array=request.array_id)
            most = min(limit, READ_AT_ONCE)
            rows = await self._loop.store.read(partial(read, before=before, limit=most))
            for row in rows:
                yield row
            if len(rows) < most:
                return
            before, limit = rows[-1].id, limit - most

    async def GetJob(self, request: pb.JobRequest, context: Context) -> pb.JobDetail:
        caller = CALLER.get()
        machine, job = await self._job(request.job_id)
        story = await self._loop.store.read(
            lambda journal: journal.events(job=request.job_id, limit=STORY, newest=True)
        )
        return views.job_detail(machine, job, story, self._loop.clock.now_s(), mine=_mine(job, caller))

    async def _job(self, job: int) -> tuple[ClusterMachine, Job]:
        machine = await self._loop.settled()
        row = machine.find(JobId(job))
        if row is None and 0 < job < machine.next_job_id:
            row = await self._loop.store.read(lambda journal: journal.job(JobId(job)))
        if row is None:
            raise _no_job(job)
        return machine, row

    async def WatchJob(self, request: pb.JobRequest, context: Context) -> AsyncIterator[pb.JobView]:
        caller = CALLER.get()
        with self._watcher(), self._loop.onlookers.watching(JobId(request.job_id)) as watch:
            shown = None
            while True:
                machine, job = await self._job(request.job_id)
                view = views.job_view(machine, job, self._loop.clock.now_s(), mine=_mine(job, caller))
                if view != shown:
                    yield view
                    shown = view
                if job.state.ended:
                    return
                await watch.wait(REFRESH_S)

    @contextlib.contextmanager
    def _watcher(self) -> Iterator[None]:
        """Open streams have a limit, of which one user has half at most: nobody is to keep all others out."""
        most, whose = self._loop.config.limits.watchers, CALLER.get().name
        if self._watchers.total() >= most:
            raise RefusedError("too many watchers; try again later", Kind.UNAVAILABLE)
        if self._watchers[whose] >= max(1, most // 2):
            raise RefusedError(f"too many watchers of {whose}; end some first", Kind.UNAVAILABLE)
        self._watchers[whose] += 1
        try:
            yield
        finally:
            self._watchers[whose] -= 1
            if not self._watchers[whose]:
                del self._watchers[whose]

    async def Why(self, request: pb.JobRequest, context: Context) -> pb.WhyReply:
        machine, job = await self._job(request.job_id)
        return views.why_view(job, views.why_of(machine, job, self._loop.clock.now_s()))

    # --- logs, commands beside jobs ---------------------------------------------------------------------------------

    async def Logs(self, request: pb.LogsRequest, context: Context) -> AsyncIterator[pb.LogsChunk]:
        caller = CALLER.get()
        if not -1 <= request.tail_lines <= LOG_LINES_MOST:
            raise RefusedError(f"tail_lines: {request.tail_lines}: -1 (all) to {LOG_LINES_MOST} was expected")
        ago_s = seconds(request.since_s, "since_s")
        _, job = await self._job(request.job_id)
        _must_be_visible(job, JobId(request.job_id), caller, "Logs")
        with self._watcher():
            output = Output(self._loop, self._hub, self._now, caller.name, ago_s=ago_s)
            async for chunk in output.read(job, request):
                yield chunk

    async def Exec(self, request: pb.ExecRequest, context: Context) -> AsyncIterator[pb.ExecChunk]:
        caller = CALLER.get()
        _, job = await self._job(request.job_id)
        _must_be_visible(job, JobId(request.job_id), caller, "Exec")
        with self._watcher():
            async with contextlib.aclosing(
                errands.run(self._loop, self._hub, job, caller, request)
            ) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def _now(self, job: JobId) -> Job:
        return (await self._job(job))[1]

    # --- shares, usage, nodes, events --------------------------------------------------------------------------------

    async def Shares(self, request: pb.SharesRequest, context: Context) -> pb.SharesReply:
        window_s = seconds(request.window_s, "window_s") or 60.0
        await self._loop.settled()
        pieces = Pieces(self._loop.settled)
        return await views.shares(self._loop.mind, window_s, self._loop.clock.now_s(), pieces)

    async def Usage(self, request: pb.UsageRequest, context: Context) -> pb.UsageReply:
        since_s = seconds(request.since_s, "since_s")
        then, at_s = {}, self._loop.clock.now_s() - since_s
        if since_s:
            then = await self._loop.store.read(lambda journal: journal.usage_at(at_s))
        await self._loop.settled()
        ledger = self._loop.mind.ledger
        totals = ledger.usage(self._loop.clock.now_s())
        for account in totals if since_s else ():  # of less than from one sample to the next
            newest = ledger.unsampled_at(account, at_s)
            if newest is not None:
                then[account] = newest
        grown = {
            account: usage - then[account] if account in then else usage for account, usage in totals.items()
        }
        if since_s:
            grown = {
                account: usage
                for account, usage in grown.items()
                if usage.gpu_s > 0 or usage.lost_gpu_s > 0 or usage.entitled_gpu_s > 0
            }
        return views.usage_rows(grown, request.user)

    async def ListNodes(self, request: pb.ListNodesRequest, context: Context) -> pb.ListNodesReply:
        reply = await views.nodes(await self._settled_mind(), self._hub, Pieces(self._loop.settled))
        reply.now, reply.wall_now = self._loop.clock.now_s(), time.time()
        return reply

    async def _settled_mind(self) -> Mind:
        await self._loop.settled()
        return self._loop.mind

    async def Events(self, request: pb.EventsRequest, context: Context) -> AsyncIterator[pb.Event]:
        with self._watcher():
            given = request.after_seq if request.HasField("after_seq") else None
            cursor = _Cursor(await self._before_newest(request) if given is None else given)
            async for view in self._backlog(request, cursor):
                yield view
            if request.follow:
                async for view in self._live(request, cursor):
                    yield view

    async def _before_newest(self, request: pb.EventsRequest) -> int:
        tail = request.tail or EVENTS_TAIL
        if tail > EVENTS_TAIL_MOST:
            raise RefusedError(f"tail: {tail}: at most {EVENTS_TAIL_MOST} was expected")
        return await self._loop.store.read(
            lambda journal: journal.before_newest(
                tail, job=request.job_id, user=request.user, deeds=request.deeds
            )
        )

    async def _backlog(self, request: pb.EventsRequest, cursor: "_Cursor") -> AsyncIterator[pb.Event]:
        """From the journal, a page at a time, until there is no more: a watcher that takes nothing has no more than that in memory."""
        while True:
            upto = self._loop.onlookers.last_seq
            page = await self._loop.store.read(
                lambda journal: journal.events(
                    after_seq=cursor.seen,
                    job=request.job_id,
                    user=request.user,
                    deeds=request.deeds,
                    limit=EVENTS_PAGE,
                )
            )
            for event in page:
                yield views.event_view(event)
            if len(page) < EVENTS_PAGE:
                cursor.seen = max(cursor.seen, upto, page[-1].seq if page else 0)
                return
            cursor.seen = page[-1].seq

    async def _live(self, request: pb.EventsRequest, cursor: "_Cursor") -> AsyncIterator[pb.Event]:
        """From the ring that all watchers share: one that falls out of it is dropped, so nobody's slowness costs memory."""
        ring = self._loop.onlookers
        while True:
            await ring.event_after(cursor.seen)
            if ring.event(cursor.seen + 1) is None:  # one batch larger than the ring: no fault of the watcher
                async for view in self._backlog(request, cursor):
                    yield view
            while cursor.seen < ring.last_seq:
                event = ring.event(cursor.seen + 1)
                if event is None:
                    raise ResyncError(f"events after {cursor.seen} have gone by; ask again from there")
                cursor.seen = event.seq
                fact = event.fact
                asked = request.job_id in {0, fact.job} and (not request.user or fact.concerns(request.user))
                if asked and (fact.deed or not request.deeds):
                    yield views.event_view(event)


@dataclass(slots=True)
class _Cursor:
    """How far a watcher of events has come."""

    seen: int


# --- small parts ------------------------------------------------------------------------------------------------------


async def _specs(request: pb.SubmitRequest, limits: Limits) -> tuple[JobSpec, ...]:
    """In pieces, and no more than may be: a message holds half a million jobs without a word in them."""
    if len(request.jobs) > limits.jobs_per_request:
        raise RefusedError(
            f"jobs: {len(request.jobs)} in one request; 1 to {limits.jobs_per_request} were expected"
        )
    specs, pieces = [], Pieces()
    for position, one in enumerate(request.jobs):
        await pieces.rest()
        for field, most in (("after", limits.after), ("strategies", MOST_STRATEGIES)):
            if (said := len(getattr(one, field))) > most:
                raise RefusedError(f"jobs[{position}]: {field}: {said}; at most {most} were expected")
        try:
            specs.append(convert.to_spec(one))
        except RefusedError as refused:
            raise RefusedError(f"jobs[{position}]: {refused}", refused.kind) from None
    return tuple(specs)


def _of_array(job: Job, array: int) -> bool:
    return not array or job.spec.array_id == array


def _mine(job: Job, caller: Caller) -> bool:
    return caller.admin or (caller.account and job.user == caller.name)


def _must_be_visible(row: Job | None, job: JobId, caller: Caller, method: str) -> None:
    """What is not yours answers like what does not exist."""
    if row is None or not (reaches_all(caller, method) or _mine(row, caller)):
        raise _no_job(job)


def _no_job(job: int) -> RefusedError:
    return RefusedError(f"there is no job {job}", Kind.NOT_FOUND)

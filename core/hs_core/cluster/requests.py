"""What users ask for. Each request is looked at whole before anything is changed."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from hs_core.cluster import admission, states
from hs_core.cluster.contents import Contents
from hs_core.cluster.ends import Ends
from hs_core.cluster.starts import Starts
from hs_core.cluster.states import Happening
from hs_core.errors import Kind, RefusedError
from hs_core.events.cluster import (
    JobsCancelled,
    JobsPaused,
    JobsSubmitted,
    JobsUnpaused,
    UserRemoved,
    UserSet,
)
from hs_core.model import Job, JobSpec, JobState, Topology, User
from hs_core.names import JobId, UserName
from hs_core.words import counted, listed


class Requests:
    def __init__(self, contents: Contents, starts: Starts, ends: Ends) -> None:
        self._contents = contents
        self._asking = contents.asking
        self._book = contents.book
        self._fact = contents.fact
        self._put = contents.put
        self._settings = contents.settings
        self._starts = starts
        self._ends = ends

    def validate(self, user: UserName, specs: Sequence[JobSpec], *, newcomer: bool = False) -> None:
        """All that would make a submit be refused (`--dry-run` asks only this). `newcomer`: a user who would be added with it.

        Raises RefusedError.
        """
        limits = self._settings.limits
        if newcomer:
            admission.check_user(user, None, None, limits)
        else:
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
        self._validate_bulk(user, specs)

    def _validate_spec(self, user: UserName, spec: JobSpec) -> None:
        admission.check_spec(spec, self._settings.limits)
        admission.check_after(spec, user, self._book.jobs.get)
        if self._book.hosts:
            misfit = self._contents.reach.fits.misfit(spec, self._book.hosts, self._book.hosts_version)
            if misfit is not None:
                otherwise = self._fitting_otherwise(spec)
                raise RefusedError(f"{misfit.field}: the job {misfit.text}{otherwise}", Kind.IMPOSSIBLE)

    def _fitting_otherwise(self, spec: JobSpec) -> str:
        """As what it would be taken, if it leaves the number of its servers open. As it asks it has to fit all the same: most policies lay it so, and any may come into office."""
        hosts = self._book.hosts
        if spec.topology is not Topology.ANY:
            return ""
        for nodes in range(1, min(spec.gang, len(hosts)) + 1):
            if spec.gang % nodes:
                continue
            gpus = spec.gang // nodes
            laid = replace(spec, nodes=nodes, gpus=gpus)
            if self._contents.reach.fits.misfit(laid, hosts, self._book.hosts_version) is None:
                return f"; with topology any, too, it has to fit as it asks, and it would with nodes {nodes} and gpus {gpus}"
        return ""

    def _validate_room(self, user: UserName, count: int) -> None:
        settings = self._settings
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

    def _validate_bulk(self, user: UserName, specs: Sequence[JobSpec]) -> None:
        """Their specs are held in memory, and with them those of ended jobs that they are to wait for."""
        bulk, most = self._book.bulk, self._settings.max_spec_bytes_per_user
        named = {after.job for spec in specs for after in spec.after}
        awaited = sum(
            admission.spec_bytes(row.spec)
            for job in named
            if job not in bulk.needed and (row := self._book.jobs.get(job)) is not None
        )
        held, more = bulk.of_user(user), awaited + sum(admission.spec_bytes(spec) for spec in specs)
        if held + more > most:
            raise RefusedError(
                f"jobs: the specs of {user}'s jobs under way take {held} bytes and {more} more were asked for; those of one user"
                f" may take {most}: put what is large in a file, or submit the rest when some have ended",
                Kind.UNAVAILABLE,
            )

    def _known_user(self, name: UserName) -> User:
        user = self._book.users.get(name)
        if user is None:
            known = sorted(self._book.users)
            shown = ", ".join(known[:10]) + (", …" if len(known) > 10 else "") or "nobody yet"
            raise RefusedError(f"unknown user {name!r}; known: {shown}", Kind.NOT_FOUND)
        return user

    def jobs_submitted(self, event: JobsSubmitted) -> tuple[JobId, ...]:
        self.validate(event.user, event.specs)
        first = self._contents.next_job_id
        ids = tuple(JobId(first + i) for i in range(len(event.specs)))
        self._contents.next_job_id = JobId(first + len(ids))
        self._contents.event.meta = True
        by = event.by or event.user
        behalf = "" if by == event.user else f", in the name of {event.user}"
        members = [job for job, spec in zip(ids, event.specs, strict=True) if spec.array_index is not None]
        array_id = members[0] if members else None
        for job, spec in zip(ids, event.specs, strict=True):
            of_array = array_id if spec.array_index is not None else None
            own = replace(
                spec,
                array_id=of_array,
                output=spec.output.replace("%j", str(job)).replace("%A", str(of_array or job)),
                checkpoint_dir=_folder_of(job, spec, event.now_s),
                checkpoint_interval_s=spec.checkpoint_interval_s or self._settings.checkpoint_interval_s,
            )
            self._put(Job(id=job, user=event.user, spec=own, arrival_s=event.now_s), event.now_s)
            gang = "1 GPU" if own.gang == 1 else f"{own.gang} GPUs"
            gang += f" on {own.nodes} servers" if own.nodes > 1 else ""
            text = f"{by} submitted {own.name!r} for {gang}{behalf}"
            self._fact(event.now_s, "submitted", text, job=job, data={"by": by})
        self._asking.stale = True
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

    def jobs_cancelled(self, event: JobsCancelled) -> tuple[JobId, ...]:
        """Those that were not being ended before."""
        rows = self._rows(event.jobs)
        going = [row for row in rows if not (row.state.ended or row.state is JobState.CANCELLING)]
        for row in going:
            # An earlier one of the request may have taken this one with it (a dependency).
            self._ends.cancel(self._book.jobs[row.id], event.by, event.now_s)
        self._done_to_others(event, "jobs-cancelled", "cancels", going)
        return tuple(row.id for row in going)

    def jobs_paused(self, event: JobsPaused) -> tuple[JobId, ...]:
        rows = [row for row in self._changeable(event, "paused") if not row.paused]
        for row in rows:
            self._asking.stale = True
            state = states.after(row, Happening.PAUSED)
            self._put(replace(row, paused=True, state=state), event.now_s)
            self._fact(event.now_s, "paused", f"{event.by} paused it", job=row.id)
        self._done_to_others(event, "jobs-paused", "pauses", rows)
        return tuple(row.id for row in rows)

    def jobs_unpaused(self, event: JobsUnpaused) -> tuple[JobId, ...]:
        rows = [row for row in self._changeable(event, "resumed") if row.paused]
        for row in rows:
            self._asking.stale = True
            happenings = [Happening.UNPAUSED]
            if row.hosts:
                happenings.append(Happening.PLACED)
                happenings += [h for h in [states.happening_of(row)] if h]
            self._put(replace(row, paused=False, state=states.after(row, *happenings)), event.now_s)
            self._fact(event.now_s, "resumed", f"{event.by} lets it go on", job=row.id)
        self._done_to_others(event, "jobs-resumed", "resumes", rows)
        return tuple(row.id for row in rows)

    def _changeable(self, event: JobsPaused | JobsUnpaused, what: str) -> list[Job]:
        rows = self._rows(event.jobs)
        going = [row for row in rows if not (row.state.ended or row.state is JobState.CANCELLING)]
        if event.leave_ended and going:
            return going
        for row in rows:
            if row.state.ended:
                how = f"has ended ({row.state}) and cannot be {what}"
                raise RefusedError(f"job {row.id} {how}", Kind.CONFLICT)
            if row.state is JobState.CANCELLING:
                raise RefusedError(f"job {row.id} is being ended and cannot be {what}", Kind.CONFLICT)
        return rows

    def user_set(self, event: UserSet) -> None:
        admission.check_user(event.name, event.tickets, event.run_as, self._settings.limits)
        old = self._book.users.get(event.name)
        base = old or User(name=event.name, tickets=self._settings.default_tickets)
        new = replace(
            base,
            tickets=base.tickets if event.tickets is None else event.tickets,
            run_as=base.run_as if event.run_as is None else event.run_as,
        )
        if new == old:
            return
        self._book.users[event.name] = new
        self._contents.event.users.add(event.name)
        jobs = self._book.of_user.get(event.name, set())
        if new.tickets != base.tickets:
            self._asking.stale = True
        if new.run_as != base.run_as:
            self._starts.unbar(user=event.name)
        self._contents.restless.update(*(self._book.live[job].hosts for job in jobs))
        text = f"{event.name} has {new.tickets:g} tickets" + (f", runs as {new.run_as}" if new.run_as else "")
        by = f"{event.by} says: " if event.by else ""
        self._contents.deed(
            event.now_s, "user-set", by + text, by=event.by or "the configuration", user=event.name
        )

    def user_removed(self, event: UserRemoved) -> None:
        user = self._known_user(event.name)
        if live := sorted(self._book.of_user.get(user.name, ())):
            raise RefusedError(
                f"user {user.name!r} has {counted(len(live), 'job')} under way ({listed(live)}): cancel"
                f" {'it' if len(live) == 1 else 'them'}, or wait for {'its' if len(live) == 1 else 'their'} end",
                Kind.CONFLICT,
            )
        del self._book.users[user.name]
        self._contents.event.users.add(user.name)
        self._starts.unbar(user=user.name)
        self._asking.stale = True
        text = f"{event.by} removed the user {user.name}"
        self._contents.deed(event.now_s, "user-removed", text, by=event.by, user=user.name)

    def _done_to_others(
        self, event: JobsCancelled | JobsPaused | JobsUnpaused, kind: str, does: str, rows: Iterable[Job]
    ) -> None:
        """A deed for each user whose jobs somebody else changed: what jobs' own stories say is not kept for as long."""
        of: dict[UserName, list[JobId]] = {}
        for row in rows:
            if row.user != event.by:
                of.setdefault(row.user, []).append(row.id)
        for user, jobs in sorted(of.items()):
            text = f"{event.by} {does} {counted(len(jobs), 'job')} of {user}: {listed(jobs)}"
            self._contents.deed(event.now_s, kind, text, by=event.by, user=user)


def _folder_of(job: JobId, spec: JobSpec, now_s: float) -> str:
    """A folder of its own in the one that its user named, as all of a sweep may name one. Nor may it find there what a job of this number wrote for another cluster."""
    return f"{spec.checkpoint_dir.rstrip('/')}/job-{job}-{int(now_s)}" if spec.checkpoint_dir else ""

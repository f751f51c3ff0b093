"""A job's output as people read it: what each incarnation said, on whatever server that was, as if it were one text."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping

from hs_controller.links import Hub, Link
from hs_controller.loop import Loop
from hs_core.errors import Kind, RefusedError
from hs_core.facts import Fact
from hs_core.model import Job
from hs_core.names import HostName, JobId
from hs_core.reports import Phase
from hs_daemon import boot_s
from hs_proto.v1 import controller_pb2 as pb

REFRESH_S = 5.0
ANSWER_S = 5.0  # an agent that says nothing for so long has no logs
AWAY_S = 20.0  # who follows waits so long for an agent that is not here
POLL_S = 0.5
STORY = 1_000  # events of a job, the newest, in which servers are named
HAS_RUN = frozenset({"running", "starting", "ready", "suspended"})  # kinds of events of a process on a server

Look = Callable[[JobId], Awaitable[Job]]
"""The job as it is now."""


class Output:
    def __init__(self, loop: Loop, hub: Hub, look: Look, whose: str, *, ago_s: float = 0.0) -> None:
        """`whose`: who reads it. `ago_s`: only what was written in the last so many seconds; 0: all."""
        self._loop, self._hub, self._look, self._whose = loop, hub, look, whose
        self._from_s = boot_s() - ago_s if ago_s else None

    async def read(self, job: Job, request: pb.LogsRequest) -> AsyncIterator[pb.LogsChunk]:
        """Raises RefusedError where there is none to be had."""
        if request.follow:
            job = await self._started(job, -1)
        if request.rank > 0:
            async for chunk in self._of_part(job, request):
                yield chunk
            return
        tail, since = request.tail_lines, request.from_epoch
        if tail < 0 and since == 0 and (away := await self._away(job)):
            yield pb.LogsChunk(away=away)
        while request.follow and not job.state.ended:
            if tail < 0:
                async for chunk in self._said(job, since, job.epoch):
                    yield chunk
                since = max(since, job.epoch)
            now = await self._with_link(job)
            if now.epoch != job.epoch or now.state.ended:
                job = await self._started(now, job.epoch)
                continue
            async for data in self._of(job, tail, epoch=job.epoch):
                yield pb.LogsChunk(data=data, epoch=job.epoch)
            tail, since = -1, job.epoch + 1
            job = await self._started(job, job.epoch)
        some = False
        if tail < 0:
            async for chunk in self._said(job, since, job.epoch + 1):
                some = True
                yield chunk
        elif job.epoch > 0 and not _has_log(job):  # it has not come up since
            async for chunk in self._end_of_newest(job, tail):
                some = True
                yield chunk
        if not some and since <= job.epoch:
            async for data in _if_any(self._of(job, tail), since):
                yield pb.LogsChunk(data=data, epoch=job.epoch)

    async def _end_of_newest(self, job: Job, tail: int) -> AsyncIterator[pb.LogsChunk]:
        """Of the incarnations whose servers are here and have kept what they said; nothing where there is none."""
        kept = await self._kept(job)
        if not kept:
            return
        if away := await self._away(job):
            yield pb.LogsChunk(away=away)
        newest = max(kept)
        async for data in self._from(kept[newest], job.id, tail, epoch=newest):
            yield pb.LogsChunk(data=data, epoch=newest)

    async def _of_part(self, job: Job, request: pb.LogsRequest) -> AsyncIterator[pb.LogsChunk]:
        """What another part of a gang than its first says, each on its own server. Which server had that part of an earlier incarnation nobody has kept."""
        tail, since, rank = request.tail_lines, request.from_epoch, request.rank
        while request.follow and not job.state.ended:
            now = await self._with_link(job, rank)
            if now.epoch != job.epoch or now.state.ended:
                job = await self._started(now, job.epoch)
                continue
            async for data in self._from(self._part(job, rank), job.id, tail, follow=True, epoch=job.epoch):
                yield pb.LogsChunk(data=data, epoch=job.epoch)
            tail, since = -1, job.epoch + 1
            job = await self._started(job, job.epoch)
        if since <= job.epoch:
            there = self._from(self._part(job, rank), job.id, tail, epoch=job.epoch)
            async for data in _if_any(there, since):
                yield pb.LogsChunk(data=data, epoch=job.epoch)

    def _part(self, job: Job, rank: int) -> Link:
        if not job.hosts:
            raise RefusedError(f"job {job.id} has not started: there is no log yet", Kind.CONFLICT)
        if rank >= len(job.hosts):
            last = len(job.hosts) - 1
            raise RefusedError(
                f"rank = {rank}: job {job.id} is on {', '.join(job.hosts)}; expected 0{f' to {last}' if last else ''}",
                Kind.INVALID,
            )
        link = self._hub.link(job.hosts[rank])
        if link is None:
            raise RefusedError(
                f"{job.hosts[rank]}, where rank {rank} of job {job.id} is, is away: its log is there",
                Kind.UNAVAILABLE,
            )
        return link

    async def _started(self, job: Job, epoch: int) -> Job:
        """Once an incarnation beyond that one has a process, or it ended without one."""
        with self._loop.onlookers.watching(job.id) as watch:
            while not (job.state.ended or (job.epoch > epoch and _has_log(job))):
                await watch.wait(REFRESH_S)
                job = await self._look(job.id)
        return job

    async def _said(self, job: Job, since: int, before: int) -> AsyncIterator[pb.LogsChunk]:
        """What these incarnations have said, as far as their servers are here and have kept it."""
        if since >= before:
            return
        found = await self._kept(job)
        for epoch in sorted(epoch for epoch in found if since <= epoch < before):
            try:
                async for data in self._from(found[epoch], job.id, -1, epoch=epoch):
                    yield pb.LogsChunk(data=data, epoch=epoch)
            except RefusedError as refused:
                if refused.kind is not Kind.NOT_FOUND:  # cleared away, or the server has gone, meanwhile
                    raise

    async def _kept(self, job: Job) -> dict[int, Link]:
        """By incarnation, who is here and has what it said."""
        story = await self._story(job.id)
        homes = _homes(job, story)
        links = [link for name in _places(job, story) if (link := self._hub.link(name)) is not None]
        there = await asyncio.gather(*(_epochs(link, job.id) for link in links))
        found: dict[int, Link] = {}
        for link, epochs in zip(links, there, strict=True):
            for epoch in epochs:
                if not _may_have(homes, link.host.name, epoch):
                    continue
                now = epoch == job.epoch and link.host.name == job.host
                found[epoch] = link if now else found.get(epoch, link)
        return found

    async def _away(self, job: Job) -> list[str]:
        """Servers on which it has been, and that are not here to say what it said there."""
        if job.epoch == 0 and not job.state.ended:
            return []  # where that one server is not here, the answer is a refusal
        been = {fact.host for fact in await self._story(job.id) if fact.host and fact.kind in HAS_RUN}
        return sorted(name for name in been if self._hub.link(name) is None)

    async def _story(self, job: JobId) -> list[Fact]:
        events = await self._loop.store.read(
            lambda journal: journal.events(job=job, limit=STORY, newest=True)
        )
        return [event.fact for event in events]

    async def _of(self, job: Job, tail: int, *, epoch: int | None = None) -> AsyncIterator[bytes]:
        """What its newest incarnation that has a log has said; or this one, also what it will."""
        link = self._link(job)
        if link is None:
            yield self._end_of(job, tail)
            return
        some = False
        try:
            async for data in self._from(link, job.id, tail, follow=epoch is not None, epoch=epoch):
                some = True
                yield data
        except RefusedError:
            job = await self._look(job.id)
            if some or job.exit is None or not job.exit.log_tail:
                raise
            # Its host has cleared it away; the end of it came with the exit.
            yield self._end_of(job, tail)

    def _end_of(self, job: Job, lines: int) -> bytes:
        """When that was written nobody has kept: as late as the job's end, perhaps."""
        text = _end_of(job, lines)
        is_older = job.ended_s is not None and job.ended_s < self._loop.clock.now_s() - self._ago_s()
        return b"" if self._from_s is not None and is_older else text

    def _ago_s(self) -> float:
        """As it is by now: servers are asked one after the other, and those who follow for as long as that takes."""
        return 0.0 if self._from_s is None else boot_s() - self._from_s

    async def _from(
        self, link: Link, job: JobId, tail: int, *, follow: bool = False, epoch: int | None = None
    ) -> AsyncIterator[bytes]:
        window = self._loop.config.limits.log_buffer_bytes
        reader = link.log(
            job,
            whose=self._whose,
            tail_lines=tail,
            follow=follow,
            epoch=epoch,
            window_bytes=window,
            ago_s=self._ago_s(),
        )
        try:
            async for data in reader:
                yield data
        finally:
            link.cancel(reader)

    async def _with_link(self, job: Job, rank: int = 0) -> Job:
        """As soon as its agent is here, or it is known not to come soon: after a controller's restart it takes agents a moment."""
        with contextlib.suppress(TimeoutError), self._loop.onlookers.watching(job.id) as watch:
            async with asyncio.timeout(AWAY_S):
                epoch = job.epoch
                while not job.state.ended and job.epoch == epoch and not self._is_here(job, rank):
                    await watch.wait(POLL_S)
                    job = await self._look(job.id)
        return job

    def _is_here(self, job: Job, rank: int) -> bool:
        """So it is where there is no such part: that is said at once."""
        if not job.hosts:
            return False
        return rank >= len(job.hosts) or self._hub.link(job.hosts[rank]) is not None

    def _link(self, job: Job) -> Link | None:
        """The agent that has its log; None: what came with its exit is all there is."""
        if job.host is None and not job.state.ended:
            raise RefusedError(f"job {job.id} has not started: there is no log yet", Kind.CONFLICT)
        link = self._hub.link(job.host) if job.host is not None else None
        if link is None and not job.state.ended:
            raise RefusedError(
                f"{job.host}, where job {job.id} is, is away: its log is there", Kind.UNAVAILABLE
            )
        return link


async def _if_any(newest: AsyncIterator[bytes], since: int) -> AsyncIterator[bytes]:
    """One that ended before it came up again has no log of its newest incarnation: who has read those before it is at the end."""
    try:
        async for data in newest:
            yield data
    except RefusedError as refused:
        if since == 0 or refused.kind is not Kind.NOT_FOUND:
            raise


def _places(job: Job, story: Iterable[Fact]) -> list[HostName]:
    """Where it has been. Each server of a gang keeps what its own part said: those first that the story names, which are the gangs' first ones."""
    facts = [fact for fact in story if fact.host]
    first = [fact.host for fact in facts if fact.host and fact.kind in HAS_RUN]
    return list(dict.fromkeys([*first, *(fact.host for fact in facts if fact.host), *job.hosts]))


def _homes(job: Job, story: Iterable[Fact]) -> dict[int, set[HostName]]:
    """By incarnation, on which servers it was, as far as that is known."""
    homes: dict[int, set[HostName]] = {}
    for fact in story:
        if fact.host is not None and (epoch := fact.data.get("epoch")) is not None:
            homes.setdefault(int(epoch), set()).add(fact.host)
    return homes | ({job.epoch: set(job.hosts)} if job.hosts else {})


def _may_have(homes: Mapping[int, Collection[HostName]], name: HostName, epoch: int) -> bool:
    """A server that says so is believed of what was on it; of incarnations of which nothing is known, but not of those after it had the job last."""
    if epoch in homes:
        return name in homes[epoch]
    return any(name in there and epoch < later for later, there in homes.items())


async def _epochs(link: Link, job: JobId) -> tuple[int, ...]:
    try:
        async with asyncio.timeout(ANSWER_S):
            return await link.logs_of(job)
    except (TimeoutError, RefusedError):
        return ()


def _has_log(job: Job) -> bool:
    return job.report is not None and job.report.phase is not Phase.WAITING


def _end_of(job: Job, lines: int) -> bytes:
    text = job.exit.log_tail if job.exit else ""
    if not text:
        raise _out_of_reach(job)
    kept = [
        f"{line}\n" for line in text.removesuffix("\n").split("\n")
    ]  # agents leave the last one's end out
    return "".join(kept[-lines:] if lines > 0 else kept if lines < 0 else []).encode()


def _out_of_reach(job: Job) -> RefusedError:
    """Of an ended job whose server is not connected, if it has one."""
    if job.host is not None:
        return RefusedError(
            f"{job.host}, where job {job.id} was, is away: its log is there", Kind.UNAVAILABLE
        )
    if job.first_run_s is None:
        return RefusedError(f"job {job.id} ended before it started: it has no log", Kind.NOT_FOUND)
    return RefusedError(f"job {job.id}: its log is no longer there", Kind.NOT_FOUND)

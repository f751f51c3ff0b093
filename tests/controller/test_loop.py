"""The single writer: one commit for many, nothing said before it is durable, nothing kept that is not."""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from hs_controller import outdated
from hs_controller.config import Config, ConfigUser
from hs_controller.intake import Key
from hs_controller.journal import Journal
from hs_controller.links import Hub
from hs_controller.loop import Loop
from hs_controller.mind import FLUSH_S
from hs_controller.outdated import Kept
from hs_controller.rows import Batch
from hs_controller.sqlite import StoreBrokenError, StoreUnavailableError, told
from hs_core.cluster import ClusterMachine, Outcome
from hs_core.cluster.why import Reason
from hs_core.errors import BrokenError, Kind, RefusedError
from hs_core.events.cluster import (
    ClusterEvent,
    HostJoined,
    HostReported,
    JobsCancelled,
    JobsSubmitted,
    UserSet,
)
from hs_core.model import After, AfterCondition, Gpu, Host, JobSpec
from hs_core.names import GpuId, HostName, JobId, UserName
from hs_core.reports import JobReport, Phase
from hs_core.wanted import Wanted
from tests.controller.kit import PLAIN, until

ANN = UserName("ann")
H1 = HostName("h1")
HOST = Host(
    name=H1,
    boot_id="b",
    gpus=tuple(Gpu(id=GpuId(f"GPU-{i}"), index=i, model="V100", memory_bytes=1 << 34) for i in range(4)),
)


class Told(Hub):
    """A hub that writes down what is ordered."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted: list[Wanted] = []
        self.here: list[HostJoined] = []

    def direct(self, host: HostName, wanted: Wanted, said_s: float) -> None:
        del host, said_s
        self.wanted.append(wanted)

    def names(self) -> Sequence[HostName]:
        return [joined.host.name for joined in self.here]

    def joined(self, host: HostName, now_s: float) -> Sequence[HostJoined]:
        return [
            HostJoined(now_s=now_s, host=one.host, reports=one.reports)
            for one in self.here
            if one.host.name == host
        ]


@contextlib.asynccontextmanager
async def running(config: Config) -> AsyncIterator[Loop]:
    loop = await Loop.start(Journal.open(config.state_dir), config, PLAIN)
    loop.hosts = Told()
    task = asyncio.create_task(loop.run())
    try:
        yield loop
    finally:
        loop.close()
        await asyncio.gather(task, return_exceptions=True)
        await loop.store.close()


@pytest.fixture
def config(config: Config) -> Config:
    users = {"ann": ConfigUser(tickets=100.0, run_as="nobody")}
    return Config(
        file=config.file, state_dir=config.state_dir, socket=config.socket, quantum_s=30.0, users=users
    )


def submits(*names: str):
    specs = tuple(JobSpec(name=name, command=("true",)) for name in names)

    def make(now_s: float, _machine: ClusterMachine) -> Sequence[ClusterEvent]:
        return [JobsSubmitted(now_s=now_s, user=ANN, specs=specs)]

    return make


def ids(outcomes: Sequence[Outcome]) -> bytes:
    return ",".join(str(job) for job in outcomes[-1].answer).encode()


def key(text: str, body: str = "") -> Key:
    return Key(caller="account:ann", key=text, digest=(body or text).encode())


class Commits:
    """Counts the journal's transactions, and makes them fail on demand."""

    def __init__(self, loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[Batch] = []
        self.error: sqlite3.Error | None = None
        journal = loop.store._journal
        commit, begin_term = journal.commit, journal.begin_term

        def counted(batch: Batch) -> None:
            self.fail(lambda: commit(batch))
            self.batches.append(batch)

        monkeypatch.setattr(journal, "commit", counted)
        monkeypatch.setattr(Journal, "begin_term", lambda _journal: self.fail(begin_term))

    def of_jobs(self) -> list[Batch]:
        """Those that say something of jobs: a decision commits what the policy remembers, whenever it comes."""
        return [batch for batch in self.batches if batch.jobs]

    def fail(self, otherwise):
        if self.error is None:
            return otherwise()
        raise told(self.error, "committing")


def disk_error(code: int, text: str) -> sqlite3.Error:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


FULL = disk_error(sqlite3.SQLITE_FULL, "database or disk is full")


def test_requests_that_come_together_share_one_commit(config, monkeypatch) -> None:
    async def story() -> None:
        async with running(config) as loop:
            await loop.ask(submits("first"), ids, key("0"))
            commits = Commits(loop, monkeypatch)
            answers = await asyncio.gather(
                *(loop.ask(submits(f"j{n}"), ids, key(f"k{n}")) for n in range(100))
            )
            assert sorted(int(answer) for answer in answers) == list(range(2, 102))
            assert len(commits.batches) <= 3

    asyncio.run(story())


def test_an_answer_is_not_given_before_its_commit(config, monkeypatch) -> None:
    async def story() -> None:
        async with running(config) as loop:
            await loop.ask(submits("first"), ids, key("0"))
            journal = loop.store._journal
            seen = []
            commit = journal.commit
            monkeypatch.setattr(journal, "commit", lambda batch: (commit(batch), seen.append(batch)))
            await loop.ask(submits("second"), ids, key("1"))
            assert [row.id for batch in seen for row in batch.jobs] == [2]

    asyncio.run(story())


def test_a_refusal_is_told_to_its_caller_alone(config) -> None:
    async def story() -> None:
        async with running(config) as loop:
            bad = submits("")
            good, refused = await asyncio.gather(
                loop.ask(submits("good"), ids, key("a")), loop.ask(bad, ids, key("b")), return_exceptions=True
            )
            assert good == b"1"
            assert isinstance(refused, RefusedError)

    asyncio.run(story())


def test_an_ended_job_that_a_live_one_waits_for_is_kept_beyond_the_limit(config) -> None:
    config = replace(config, ended_limit=1)
    first, second, third = JobId(1), JobId(2), JobId(3)
    either = tuple(After(job=job, condition=AfterCondition.ANY) for job in (first, second))
    waiting = JobSpec(name="waiting", command=("true",), after=either)

    def cancels(*jobs: JobId):
        return lambda now_s, _machine: [JobsCancelled(now_s=now_s, by=ANN, jobs=jobs)]

    async def scenario() -> None:
        async with running(config) as loop:
            await loop.ask(submits("a", "b", "c"), ids, None)
            submit = JobsSubmitted(now_s=loop.clock.now_s(), user=ANN, specs=(waiting,))
            await loop.ask(lambda _now_s, _machine: [submit], ids, None)
            loop.pruning.last_s = 0.0  # a minute ago: with the next batch
            await loop.ask(cancels(first, third), ids, None)
            await until(lambda: loop.pruning.last_s > 0.0)
        async with running(config) as loop:
            assert loop.mind.machine.find(first) is not None
            await loop.ask(cancels(second), ids, None)
            machine = await loop.settled()
            assert machine.why(JobId(4), loop.clock.now_s()).reason is not Reason.DEPENDENCY

    asyncio.run(scenario())


def test_what_is_too_old_goes_as_fast_as_it_comes(config, monkeypatch) -> None:
    monkeypatch.setattr(outdated, "JOBS_AT_ONCE", 5)
    config, names = replace(config, ended_limit=10), [f"j{number}" for number in range(60)]

    async def scenario() -> None:
        async with running(config) as loop:
            jobs = tuple(JobId(number) for number in range(1, 61))
            await loop.ask(submits(*names), ids, None)
            cancel = JobsCancelled(now_s=loop.clock.now_s(), by=ANN, jobs=jobs)
            await loop.ask(lambda _now_s, _machine: [cancel], ids, None)
            loop.pruning.last_s = 0.0  # a minute ago: with the next batch
            async with asyncio.timeout(30):
                while len(await loop.store.read(lambda journal: journal.ended_jobs(limit=99))) > 10:
                    await loop.ask(submits("one-more"), ids, None)

    asyncio.run(scenario())


def test_what_a_new_job_waits_for_is_in_the_journal_though_it_was_dropped_while_that_was_submitted(
    config,
) -> None:
    first = JobId(1)
    waiting = JobSpec(name="w", command=("true",), after=(After(job=first, condition=AfterCondition.ANY),))
    limits = {"events": 100, "deeds": 100, "ended": 0, "awaited": frozenset[JobId](), "requests": 100}
    ages = {"requests_before_s": 0.0, "fine_before_s": 0.0, "coarse_before_s": 0.0}

    async def scenario() -> None:
        async with running(config) as loop:
            await loop.ask(submits("a"), ids, None)
            cancel = JobsCancelled(now_s=loop.clock.now_s(), by=ANN, jobs=(first,))
            await loop.ask(lambda _now_s, _machine: [cancel], ids, None)
            row = await loop.store.read(lambda journal: journal.job(first))
            await loop.store.write(lambda journal: journal.prune(Kept(**limits, **ages)))
            submit = JobsSubmitted(now_s=loop.clock.now_s(), user=ANN, specs=(waiting,))
            await loop.ask(lambda _now_s, _machine: [submit], ids, None, [row])
        async with running(config) as loop:
            assert loop.mind.machine.find(first) == row

    asyncio.run(scenario())


def test_the_same_key_gets_the_same_answer_even_at_the_same_time_and_after_a_restart(config) -> None:
    async def story() -> None:
        async with running(config) as loop:
            both = await asyncio.gather(*(loop.ask(submits("one"), ids, key("same")) for _ in range(5)))
            assert set(both) == {b"1"}
        async with running(config) as loop:
            assert await loop.ask(submits("one"), ids, key("same")) == b"1"
            with pytest.raises(RefusedError) as refused:
                await loop.ask(submits("two"), ids, key("same", "other body"))
            assert refused.value.kind is Kind.CONFLICT
            other = Key(caller="account:bob", key="same", digest=b"x")
            assert await loop.ask(submits("two"), ids, other) == b"2", (
                "keys of different callers are different"
            )

    asyncio.run(story())


def test_large_answers_are_remembered_too(config) -> None:
    async def story() -> None:
        big = b"x" * 100_000
        async with running(config) as loop:
            both = await asyncio.gather(
                *(loop.ask(submits("one"), lambda _outcomes: big, key("same")) for _ in range(2))
            )
            assert both == [big, big]
            assert await loop.ask(submits("one"), lambda _outcomes: b"", key("same")) == big

    asyncio.run(story())


def test_a_full_disk_makes_it_read_only_and_nothing_uncommitted_survives(config, monkeypatch) -> None:
    async def story() -> None:
        async with running(config) as loop:
            assert isinstance(loop.hosts, Told)
            await loop.ask(submits("kept"), ids, key("0"))
            loop.hosts.here.append(HostJoined(now_s=0, host=HOST, reports=()))
            await loop.tell(lambda now_s, _machine: loop.hosts.joined(H1, now_s))
            await until(lambda: any(w.jobs for w in loop.hosts.wanted))
            term = loop.mind.machine.term
            commits = Commits(loop, monkeypatch)
            commits.error = FULL
            with pytest.raises(RefusedError, match="disk is full") as refused:
                await loop.ask(submits("lost"), ids, key("1"))
            assert refused.value.kind is Kind.UNAVAILABLE
            assert loop.read_only
            assert [job.spec.name for job in (await loop.settled()).jobs()] == ["kept"]
            with pytest.raises(RefusedError):
                await loop.ask(submits("lost"), ids, key("2"))
            report = JobReport(job=JobId(1), epoch=0, phase=Phase.RUNNING, gpu_s=5.0)
            loop.hosts.here[0] = HostJoined(now_s=0, host=HOST, reports=(report,))
            with pytest.raises(RefusedError):  # what agents say is not taken in now …
                await loop.tell(
                    lambda now_s, _machine: [HostReported(now_s=now_s, host=H1, reports=(report,))]
                )
            wanted = len(loop.hosts.wanted)
            commits.error = None
            await until(lambda: not loop.read_only)
            await until(lambda: loop.mind.machine.job(JobId(1)).gpu_s == 5.0)  # … but as soon as it can be
            assert loop.mind.machine.term > term, "what was ordered before is overruled, as after a restart"
            await until(lambda: len(loop.hosts.wanted) > wanted)
            assert loop.hosts.wanted[-1].term == loop.mind.machine.term
            assert await loop.ask(submits("lost"), ids, key("1")) == b"2", (
                "the retry is the first one that happened"
            )

    asyncio.run(story())


def test_a_failed_fsync_ends_the_controller(config, monkeypatch) -> None:
    async def story() -> None:
        loop = await Loop.start(Journal.open(config.state_dir), config, PLAIN)
        loop.hosts = Told()
        task = asyncio.create_task(loop.run())
        await loop.ask(submits("kept"), ids, key("0"))
        Commits(loop, monkeypatch).error = disk_error(sqlite3.SQLITE_IOERR_FSYNC, "disk I/O error")
        asking = asyncio.create_task(loop.ask(submits("lost"), ids, key("1")))
        with pytest.raises(StoreBrokenError, match="disk I/O error"):
            await asyncio.wait_for(task, 60)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await loop.store.close()

    asyncio.run(story())


def test_a_broken_machine_ends_the_controller(config, monkeypatch) -> None:
    async def story() -> None:
        loop = await Loop.start(Journal.open(config.state_dir), config, PLAIN)
        loop.hosts = Told()

        def broken(_event: ClusterEvent) -> Outcome:
            raise BrokenError("a GPU was promised twice")

        monkeypatch.setattr(loop.mind.machine, "handle", broken)
        with pytest.raises(BrokenError, match="promised twice"):
            await asyncio.wait_for(loop.run(), 60)
        await loop.store.close()

    asyncio.run(story())


def test_what_comes_soon_after_a_batch_shares_the_next_commit_and_the_first_does_not_wait(
    config, monkeypatch
) -> None:
    async def story() -> None:
        async with running(config) as loop:
            await loop.ask(submits("first"), ids, key("0"))
            monkeypatch.setattr("hs_controller.loop.PACE_S", 2.0)
            commits = Commits(loop, monkeypatch)
            asked = []
            for name in ("one", "two", "three"):
                asked.append(asyncio.create_task(loop.ask(submits(name), ids, key(name))))
                await asyncio.sleep(0.01)
            assert await asyncio.gather(*asked) == [b"2", b"3", b"4"]
            submitted = [batch for batch in commits.batches if batch.answered]
            assert [len(batch.answered) for batch in submitted] == [3]
            monkeypatch.setattr("hs_controller.loop.PACE_S", 0.0)
            await loop.ask(submits("last"), ids, key("last"))

    asyncio.run(story())


def test_counters_wait_for_one_commit_a_second_and_changes_do_not_wait(config, monkeypatch) -> None:
    async def story() -> None:
        async with running(config) as loop:
            await loop.ask(submits("one"), ids, key("0"))
            await loop.tell(lambda now_s, _machine: [HostJoined(now_s=now_s, host=HOST, reports=())])

            def says(gpu_s: float, phase: Phase = Phase.RUNNING):
                report = JobReport(job=JobId(1), epoch=0, phase=phase, gpu_s=gpu_s, sliceable=True)
                return lambda now_s, _machine: [HostReported(now_s=now_s, host=H1, reports=(report,))]

            await until(lambda: loop.mind.machine.job(JobId(1)).host == H1)
            await loop.tell(says(0.0))
            commits = Commits(loop, monkeypatch)
            started_s = time.monotonic()
            for tenth in range(1, 30):
                await loop.tell(says(tenth / 10))
            took_s = time.monotonic() - started_s
            assert len(commits.of_jobs()) <= took_s / FLUSH_S
            assert loop.mind.machine.job(JobId(1)).gpu_s == 2.9, "shown at once"
            await until(lambda: commits.of_jobs() and commits.of_jobs()[-1].jobs[0].gpu_s == 2.9)
            used = [usage.gpu_s for batch in commits.of_jobs() for usage in batch.usage.values()]
            assert sum(used) == pytest.approx(2.9)
            before = len(commits.of_jobs())
            await loop.tell(says(3.0, Phase.HELD))
            assert len(commits.of_jobs()) > before, "a change of state is durable before anything comes of it"

    asyncio.run(story())


def test_usage_and_rows_say_the_same_after_any_crash(config) -> None:
    async def story() -> None:
        async with running(config) as loop:
            await loop.ask(submits("one"), ids, key("0"))
            await loop.tell(lambda now_s, _machine: [HostJoined(now_s=now_s, host=HOST, reports=())])
            await until(lambda: loop.mind.machine.job(JobId(1)).host == H1)
            for second in range(1, 4):
                report = JobReport(job=JobId(1), epoch=0, phase=Phase.RUNNING, gpu_s=float(second))
                await loop.tell(
                    lambda now_s, _m, r=report: [HostReported(now_s=now_s, host=H1, reports=(r,))]
                )
                stored = await loop.store.load()
                rows = sum(row.gpu_s for row in stored.jobs)
                assert sum(usage.gpu_s for usage in stored.usage.values()) == rows
        async with running(config) as loop:
            report = JobReport(job=JobId(1), epoch=0, phase=Phase.RUNNING, gpu_s=3.5)
            await loop.tell(lambda now_s, _machine: [HostJoined(now_s=now_s, host=HOST, reports=(report,))])
            assert loop.mind.ledger.totals[ANN, "V100"].gpu_s == pytest.approx(3.5), "charged once, not again"

    asyncio.run(story())


def test_the_configurations_users_are_set_once_and_not_over_an_administrators_word(config) -> None:
    async def story() -> None:
        async with running(config) as loop:
            await loop.ask(submits("one"), ids, key("0"))
            assert loop.mind.machine.user(ANN).run_as == "nobody"
            await loop.tell(lambda now_s, _machine: [UserSet(now_s=now_s, name=ANN, tickets=7.0)])
        async with running(config) as loop:
            await loop.ask(submits("two"), ids, key("1"))
            assert loop.mind.machine.user(ANN).tickets == 7.0
        changed = Config(
            file=config.file,
            state_dir=config.state_dir,
            socket=config.socket,
            users={"ann": ConfigUser(tickets=300.0, run_as="nobody")},
        )
        async with running(changed) as loop:
            await loop.ask(submits("three"), ids, key("2"))
            assert loop.mind.machine.user(ANN).tickets == 300.0

    asyncio.run(story())


def test_too_many_requests_are_refused_not_queued(config) -> None:
    async def story() -> None:
        async with running(config) as loop:
            most = config.limits.queued_requests
            asks = [loop.ask(submits("j"), ids, key(f"k{n}")) for n in range(most + 10)]
            answers = await asyncio.gather(*asks, return_exceptions=True)
            refused = [answer for answer in answers if isinstance(answer, RefusedError)]
            assert len(refused) >= 10
            assert {answer.kind for answer in refused} == {Kind.UNAVAILABLE}

    asyncio.run(story())


def test_the_log_is_taken_into_the_file_beside_commits_and_where_that_fails_commits_go_on(
    config, monkeypatch
) -> None:
    monkeypatch.setattr("hs_controller.store.CHECKPOINT_S", 0.0)
    tried: list[str] = []
    taken = Journal.checkpoint_rest

    def fails_once(_journal: Journal) -> None:
        tried.append("failed" if not tried else "taken")
        if tried == ["failed"]:
            raise StoreUnavailableError("disk full")

    def rest(journal: Journal) -> None:
        taken(journal)
        tried.append("rest")

    monkeypatch.setattr(Journal, "checkpoint", fails_once)
    monkeypatch.setattr(Journal, "checkpoint_rest", rest)

    async def story() -> None:
        async with running(config) as loop:
            number = 0
            while tried[-1:] != ["rest"]:
                number += 1
                await asyncio.wait_for(loop.ask(submits(f"n{number}"), ids, key(str(number))), 60)
            assert not loop.read_only

    asyncio.run(asyncio.wait_for(story(), 60))
    assert tried[:3] == ["failed", "taken", "rest"]


def test_a_failed_fsync_of_a_checkpoint_ends_the_controller_at_the_next_commit(config, monkeypatch) -> None:
    monkeypatch.setattr("hs_controller.store.CHECKPOINT_S", 0.0)

    def fails(_journal: Journal) -> None:
        raise StoreBrokenError("taking the log into the file: disk I/O error")

    monkeypatch.setattr(Journal, "checkpoint", fails)

    async def story() -> None:
        loop = await Loop.start(Journal.open(config.state_dir), config, PLAIN)
        loop.hosts = Told()
        task = asyncio.create_task(loop.run())
        answers: list[bytes | BaseException] = []
        while not task.done():  # the checkpoint fails beside these
            name = f"n{len(answers) + 1}"
            answers += await asyncio.gather(loop.ask(submits(name), ids, key(name)), return_exceptions=True)
        with pytest.raises(StoreBrokenError, match="disk I/O error"):
            await task
        await loop.store.close()
        journal = Journal.open(config.state_dir)
        kept = [answer for answer in answers if isinstance(answer, bytes)]
        assert kept == [str(job.id).encode() for job in journal.load().jobs], "nothing was written after it"
        assert all("disk I/O error" in str(refused) for refused in answers[len(kept) :])
        journal.close()

    asyncio.run(asyncio.wait_for(story(), 60))

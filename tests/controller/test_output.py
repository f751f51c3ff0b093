"""A job's output put together from what its servers have kept."""

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import pytest

from hs_controller.output import Output
from hs_controller.rows import Event
from hs_core.errors import Kind, RefusedError
from hs_core.facts import Fact
from hs_core.model import Job, JobSpec, JobState
from hs_core.names import HostName, JobId, UserName
from hs_core.reports import Exit
from hs_proto.v1 import controller_pb2 as pb

GANG = JobSpec(name="gang", command=("true",), nodes=2)
LIMITS = SimpleNamespace(log_buffer_bytes=1 << 20)


class Kept:
    """An agent's link: what each incarnation said on it."""

    def __init__(self, name: str, said: Mapping[int, bytes]) -> None:
        self.host = SimpleNamespace(name=name)
        self.said = said

    async def logs_of(self, _job: JobId) -> tuple[int, ...]:
        return tuple(self.said)

    def log(self, _job: JobId, *, epoch: int | None, **_: object):
        async def chunks():
            if epoch not in self.said:
                raise RefusedError(f"{self.host.name} has no log of job 1", Kind.NOT_FOUND)
            yield self.said[epoch]

        return chunks()

    def cancel(self, _reader: object) -> None:
        pass


def ran(seq: int, host: str, epoch: int | None = None) -> Event:
    """Where nothing else is said, the incarnation that comes next."""
    fact = Fact(
        now_s=float(seq),
        kind="running",
        text="",
        job=JobId(1),
        host=HostName(host),
        data={"epoch": seq - 1 if epoch is None else epoch},
    )
    return Event(seq=seq, fact=fact)


def output(
    links: Mapping[str, Kept],
    story: Sequence[Event],
    *,
    epoch: int,
    hosts: tuple[str, ...],
    rank: int = 0,
    ago_s: float = 0.0,
    ended_s: float | None = None,
    log_tail: str = "",
    state: JobState = JobState.SUCCEEDED,
    tail: int = -1,
    since: int = 0,
) -> bytes:
    """All of it, or its `tail`, of a gang that has ended on these servers; it is 1000 o'clock."""
    job = Job(
        id=JobId(1),
        user=UserName("ann"),
        spec=GANG,
        arrival_s=0.0,
        state=state,
        epoch=epoch,
        hosts=tuple(map(HostName, hosts)),
        exit=Exit(log_tail=log_tail) if state.ended else None,
        ended_s=ended_s,
    )

    async def read(_what: object) -> Sequence[Event]:
        return story

    async def look(_job: JobId) -> Job:
        return job

    async def all_of_it() -> bytes:
        loop = SimpleNamespace(
            store=SimpleNamespace(read=read),
            config=SimpleNamespace(limits=LIMITS),
            clock=SimpleNamespace(now_s=lambda: 1000.0),
        )
        made = Output(loop, SimpleNamespace(link=links.get), look, "ann", ago_s=ago_s)
        return b"".join(
            [
                chunk.data
                async for chunk in made.read(
                    job, pb.LogsRequest(tail_lines=tail, rank=rank, from_epoch=since)
                )
            ]
        )

    return asyncio.run(all_of_it())


def test_of_a_gang_the_first_server_is_heard_of_every_incarnation() -> None:
    said = {"a": {0: b"a0 ", 1: b"a1 "}, "b": {0: b"b0 ", 1: b"b1 ", 2: b"b2 "}, "c": {2: b"c2 "}}
    links = {name: Kept(name, each) for name, each in said.items()}
    assert output(links, [ran(1, "a"), ran(2, "a")], epoch=1, hosts=("a", "b")) == b"a0 a1 "
    assert output(links, [ran(1, "b"), ran(2, "b"), ran(3, "c")], epoch=2, hosts=("c", "b")) == b"b0 b1 c2 "


def test_a_server_is_not_believed_of_what_the_job_said_after_it_had_left_it() -> None:
    said = {"a": {0: b"a0 ", 1: b"false ", 2: b"false ", 3: b"false "}, "b": {1: b"b1 "}, "c": {2: b"c2 "}}
    links = {name: Kept(name, each) for name, each in said.items()}
    story = [ran(1, "a"), ran(2, "b"), ran(3, "c")]
    assert output(links, story, epoch=2, hosts=("c",)) == b"a0 b1 c2 "
    del links["b"]
    assert output(links, story, epoch=2, hosts=("c",)) == b"a0 c2 ", "while who has it is away as well"
    assert output(links, story, epoch=3, hosts=()) == b"a0 c2 ", "and while it has no server"


def test_of_incarnations_before_its_story_begins_a_server_that_it_was_on_later_is_believed() -> None:
    links = {"a": Kept("a", {0: b"a0 ", 2: b"a2 "}), "b": Kept("b", {1: b"b1 "})}
    assert output(links, [ran(3, "b", 1), ran(4, "a", 2)], epoch=2, hosts=("a",)) == b"a0 b1 a2 "
    assert output(links, [ran(4, "a", 2)], epoch=2, hosts=("a",)) == b"a0 a2 "


def test_of_a_gang_each_server_is_heard_of_the_newest_incarnation_by_its_rank() -> None:
    """Else nobody learns why a part failed that is not on the first one."""
    said = {"a": {0: b"a0 ", 1: b"a1 "}, "b": {0: b"b0 ", 1: b"b1 "}}
    links = {name: Kept(name, each) for name, each in said.items()}
    story = [ran(1, "a"), ran(2, "a")]
    assert output(links, story, epoch=1, hosts=("a", "b"), rank=1) == b"b1 "
    assert output(links, story, epoch=1, hosts=("b", "a"), rank=1) == b"a1 "
    with pytest.raises(RefusedError, match=r"rank = 2: job 1 is on a, b; expected 0 to 1"):
        output(links, story, epoch=1, hosts=("a", "b"), rank=2)
    del links["b"]
    with pytest.raises(RefusedError, match=r"b, where rank 1 of job 1 is, is away"):
        output(links, story, epoch=1, hosts=("a", "b"), rank=1)


def test_the_log_of_an_ended_job_is_out_of_reach_while_its_server_is_away() -> None:
    with pytest.raises(RefusedError, match=r"a, where job 1 was, is away: its log is there") as refused:
        output({}, [ran(1, "a")], epoch=0, hosts=("a",))
    assert refused.value.kind is Kind.UNAVAILABLE


def test_a_job_that_ended_before_it_started_has_no_log() -> None:
    with pytest.raises(RefusedError, match=r"job 1 ended before it started: it has no log") as refused:
        output({}, [], epoch=0, hosts=())
    assert refused.value.kind is Kind.NOT_FOUND


def test_each_server_is_asked_for_what_was_written_since_the_same_moment_however_long_that_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, asked = [1000.0], {}
    monkeypatch.setattr("hs_controller.output.boot_s", lambda: now_s[0])

    class Slow(Kept):
        def log(self, _job: JobId, *, epoch: int, **how: object):
            asked[self.host.name, epoch] = how["ago_s"]
            now_s[0] += 40
            return super().log(_job, epoch=epoch)

    links = {"a": Slow("a", {0: b"a0 ", 1: b"a1 "}), "b": Slow("b", {2: b"b2 "})}
    story = [ran(1, "a"), ran(2, "a"), ran(3, "b")]
    assert output(links, story, epoch=2, hosts=("b",), ago_s=90.0) == b"a0 a1 b2 "
    assert asked == {("a", 0): 90, ("a", 1): 130, ("b", 2): 170}
    assert output(links, story, epoch=2, hosts=("b",)) == b"a0 a1 b2 "
    assert set(asked.values()) == {0}


@pytest.mark.parametrize(("ago_s", "said"), [(30.0, b""), (90.0, b"the end\n"), (0.0, b"the end\n")])
def test_what_came_with_the_exit_counts_by_when_that_was(ago_s: float, said: bytes) -> None:
    assert output({}, [], epoch=0, hosts=("a",), ago_s=ago_s, ended_s=940.0, log_tail="the end") == said


def test_what_came_with_the_exit_is_lines_that_have_ends() -> None:
    for text in ("a\nthe end", "a\nthe end\n"):
        assert output({}, [], epoch=0, hosts=("a",), log_tail=text) == b"a\nthe end\n"
        assert output({}, [], epoch=0, hosts=("a",), log_tail=text, tail=1) == b"the end\n"


@pytest.mark.parametrize(
    ("state", "hosts"),
    [
        (JobState.QUEUED, ()),
        (JobState.STARTING, ("b",)),
        (JobState.PAUSED, ()),
        (JobState.CANCELLED, ()),
    ],
)
def test_the_end_of_the_log_of_one_that_has_not_come_up_again_is_of_the_newest_that_said_something(
    state: JobState, hosts: tuple[str, ...]
) -> None:
    links = {"a": Kept("a", {0: b"a0 ", 1: b"a1 "}), "b": Kept("b", {})}
    story = [ran(1, "a"), ran(2, "a")]
    assert output(links, story, epoch=2, hosts=hosts, state=state, tail=10) == b"a1 "


@pytest.mark.parametrize("rank", [0, 1])
def test_who_had_what_was_said_before_is_not_refused_for_an_incarnation_that_never_came_up(rank: int) -> None:
    links = {"a": Kept("a", {0: b"a0 "}), "b": Kept("b", {0: b"b0 "}), "c": Kept("c", {}), "d": Kept("d", {})}
    been = {"epoch": 1, "hosts": ("c", "d"), "state": JobState.CANCELLED, "rank": rank}
    assert output(links, [ran(1, "a")], since=1, **been) == b""
    assert output(links, [ran(1, "a")], since=1, log_tail="the end", **been) == (
        b"" if rank else b"the end\n"
    )
    with pytest.raises(RefusedError, match=f"{'cd'[rank]} has no log of job 1"):
        output({**links, "a": Kept("a", {}), "b": Kept("b", {})}, [ran(1, "a")], **been)


def test_one_that_never_came_up_has_no_end_of_a_log() -> None:
    with pytest.raises(RefusedError, match="job 1 has not started: there is no log yet"):
        output({"a": Kept("a", {})}, [], epoch=1, hosts=(), state=JobState.QUEUED, tail=10)

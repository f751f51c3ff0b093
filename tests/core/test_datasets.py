"""Data sets: where they are remembered to lie, for how long, and who prefers to be there."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hs_core.cluster import ClusterMachine, Settings
from hs_core.cluster.harness import World
from hs_core.datasets import MOST, after_use
from hs_core.model import Dataset
from hs_core.names import HostName, JobId
from hs_core.policies import POLICIES, find

A, B, C = (Dataset(name=name, bytes=40) for name in "ABC")


def test_what_was_read_longest_ago_makes_room() -> None:
    assert after_use((), A) == (A,)
    assert after_use((A, B), C, 100) == (B, C)
    assert after_use(after_use((A, B), A, 100), C, 100) == (A, C), "who is read again is the newest"
    assert after_use((A, B), C) == (A, B, C), "not limited"
    assert after_use((A,), Dataset(name="huge", bytes=101), 100) == (A,), "too large to be kept"
    assert after_use((A,), replace(A, bytes=70), 100) == (replace(A, bytes=70),), "it has grown"


@given(st.lists(st.tuples(st.sampled_from("ABCDEF"), st.integers(0, 60))), st.integers(1, 120))
def test_never_more_than_the_cache_holds_nor_one_twice(reads: list[tuple[str, int]], cache: int) -> None:
    here: tuple[Dataset, ...] = ()
    for name, size in reads:
        here = after_use(here, Dataset(name=name, bytes=size), cache)
        assert sum(one.bytes for one in here) <= cache
        assert len({one.name for one in here}) == len(here)
    for at in range(MOST + 5):
        here = after_use(here, Dataset(name=f"n{at}"))
    assert len(here) == MOST


def datasets(at: World, host: str) -> list[str]:
    return [data.name for data in next(h for h in at.machine.hosts() if h.name == host).datasets]


def test_a_server_has_the_data_once_a_job_has_run_there_and_forgets_it_for_others() -> None:
    at = World(find("fifo"), Settings(quantum_s=20.0, settle_s=0.0, dataset_cache_bytes=100))
    for line in (
        "user alice",
        "host n1 V100:4",
        "submit alice a dataset=A dataset_bytes=60",
        "submit alice b dataset=B dataset_bytes=60",
        "report n1 1:0=starting",
    ):
        at.do(line)
    assert datasets(at, "n1") == [], "it is on its way up"
    at.do("report n1 1:0=running step=1")
    assert datasets(at, "n1") == ["A"]
    assert HostName("n1") in at.outcome.touched.hosts, "it is written down"
    at.do("report n1 1:0=running step=2")
    assert HostName("n1") not in at.outcome.touched.hosts
    at.do("report n1 2:0=running step=1")
    assert datasets(at, "n1") == ["B"]
    for _ in range(2):  # they take turns: what was read is not read again
        at.do("report n1 1:0=held step=3 suspends=1")
        at.do("report n1 1:0=running step=4 suspends=1 resumes=2")
    assert datasets(at, "n1") == ["B"]
    at.do("leave n1")
    at.do("host n1 V100:4")
    assert datasets(at, "n1") == ["B"], "the agent does not say it, and need not"
    again = ClusterMachine(at.policy, at.machine.settings, at.machine.state)
    assert [data.name for data in again.hosts()[0].datasets] == ["B"]


@pytest.mark.parametrize("policy", ["gandiva-fair", "fifo", "las", "gavel-max-min", "pal", "tiresias"])
def test_of_equal_servers_the_one_that_has_the_data_is_taken(policy: str) -> None:
    assert policy in POLICIES
    at = World(find(policy), Settings(quantum_s=20.0, settle_s=0.0))
    for line in (
        "user alice",
        "host n3 V100:4",
        "submit alice first dataset=A",
        "report n3 1:0=running step=1",
        "report n3 1:0=exited code=0",
        "host n1 V100:4",
        "host n2 V100:4",
        "submit alice other",
        "report n1 2:0=running step=1",
        "report n1 2:0=exited code=0",
        "submit alice second dataset=A",
    ):
        at.do(line)
    assert at.machine.job(JobId(2)).hosts == ("n1",), "by name"
    assert at.machine.job(JobId(3)).hosts == ("n3",), "by its data"


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ("starting", "exited code=0 step=30"),  # so short that nobody saw it run
        ("running", "exited code=0"),  # nobody counts its steps
        ("running", "running step=1"),
        ("held step=100", "running step=101"),  # it goes on from a checkpoint
    ],
)
def test_who_has_trained_has_read_its_data_however_little_was_heard_of_it(before: str, words: str) -> None:
    at = World(find("fifo"), Settings(quantum_s=20.0, settle_s=0.0))
    for line in ("user alice", "host n1 V100:4", "submit alice a dataset=A", f"report n1 1:0={before}"):
        at.do(line)
    assert datasets(at, "n1") == []
    at.do(f"report n1 1:0={words}")
    assert datasets(at, "n1") == ["A"]


@pytest.mark.parametrize("words", ["starting step=7", "exited code=1", "held step=0"])
def test_who_has_not_trained_has_not(words: str) -> None:
    at = World(find("fifo"), Settings(quantum_s=20.0, settle_s=0.0))
    for line in ("user alice", "host n1 V100:4", "submit alice a dataset=A", f"report n1 1:0={words}"):
        at.do(line)
    assert datasets(at, "n1") == []

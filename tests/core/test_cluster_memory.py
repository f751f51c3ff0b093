"""Host memory: a job is placed only where there is as much as it may take."""

from dataclasses import replace

import pytest

from hs_core.cluster.fits import Misfit, kinds, misfit
from hs_core.cluster.harness import World
from hs_core.cluster.narrow import Narrow
from hs_core.cluster.plain import GiB, a_host, a_spec
from hs_core.cluster.state import Settings
from hs_core.cluster.why import Reason
from hs_core.model import Host
from hs_core.names import HostName, JobId
from hs_core.policies import POLICIES, find
from hs_core.policy import Memory, Snapshot, Verdict

LARGE = HostName("n2")
TWO = """
    user ann
    host n1 V100:4 memory=64
    host n2 V100:4 memory=512
"""


def world(script: str, policy: str = "fifo") -> World:
    here = World(find(policy), Settings(settle_s=0.0, quantum_s=20.0))
    here.play(script)
    return here


def has(name: str, memory: int, gpus: int = 4, model: str = "V100") -> Host:
    return replace(a_host(name, model, gpus), memory_bytes=memory * GiB)


def homes(here: World, jobs: int) -> list[tuple[str, ...]]:
    return [here.machine.job(JobId(at)).hosts for at in range(1, jobs + 1)]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_places_it_only_where_there_is_so_much(policy: str) -> None:
    here = world(TWO, policy)
    for _ in range(3):
        here.do(f"submit ann wide gpus=2 memory_bytes={100 * GiB} steps=1000 gpu_memory_bytes={GiB}")
    for _ in range(4):
        here.do("tick")
    assert set(homes(here, 3)) <= {(LARGE,), ()}
    assert homes(here, 3)[0] == (LARGE,)


def test_who_says_nothing_of_it_goes_anywhere_and_so_does_everybody_where_an_agent_says_nothing() -> None:
    here = world(TWO)
    for _ in range(4):
        here.do("submit ann plain gpus=2")
    here.do("tick")
    assert sorted(homes(here, 4)) == [("n1",), ("n1",), ("n2",), ("n2",)]
    here = world(f"user ann\nhost n1 V100:4\nsubmit ann wide gpus=2 memory_bytes={100 * GiB}")
    here.do("tick")
    assert homes(here, 1) == [("n1",)]


def test_one_that_asks_for_more_than_any_server_has_is_refused() -> None:
    here = world(TWO)
    for asked, said in ((513, "513"), (90_000, "90,000")):
        assert here.do(f"submit ann wide gpus=2 memory_bytes={asked * GiB}") == [
            f"refused, impossible: memory_bytes: the job asks for {said} GiB of host memory; the largest server has 512 GiB"
        ]


def test_what_stands_in_the_way_is_named_among_servers_that_have_the_memory() -> None:
    servers = [has("a", 64, 8), has("b", 512, 2), has("c", 600, 4, "K80"), has("d", 64, 8)]
    there = kinds(servers, by_memory=True)

    def stands(**wishes: object) -> Misfit | None:
        return misfit(a_spec(memory_bytes=100 * GiB, **wishes), there)

    assert stands(gpus=4) is None
    assert stands(gpus=4, gpu_types=("V100",)) == Misfit(
        field="gpus",
        text="asks for 4 GPUs on one server; the largest of V100 with memory enough has 2",
    )
    assert stands(gpus=2, nodes=2) == Misfit(
        field="nodes",
        text="asks for 2 servers of one GPU model with 2 GPUs and 100 GiB of host memory each; there are at most 1 (V100)",
        of_one_model=True,
    )
    lacks = misfit(a_spec(memory_bytes=700 * GiB, gpus=1, gpu_types=("V100",)), there)
    assert lacks == Misfit(
        field="memory_bytes",
        text="asks for 700 GiB of host memory; the largest server with V100 has 512 GiB",
    )


def test_one_whose_only_large_server_is_away_or_gone_says_so_and_takes_the_next_that_has_it() -> None:
    here = world(f"{TWO}\nleave n2\nsubmit ann wide gpus=2 memory_bytes={100 * GiB}")
    here.do("tick")
    why = here.machine.why(JobId(1), here.now_s)
    assert why.reason is Reason.HOST_AWAY
    assert "n2" in why.text
    assert "n1" not in why.text
    here.do("remove n2")
    why = here.machine.why(JobId(1), here.now_s)
    assert why.reason is Reason.MEMORY_TOO_SMALL
    assert "asks for 100 GiB of host memory; the largest server has 64 GiB" in why.text
    here.do("host n3 V100:4 memory=128")
    here.do("tick")
    assert homes(here, 1) == [("n3",)]


def test_one_stays_where_it_lives_when_there_is_less_there_and_goes_nowhere_smaller() -> None:
    seen: list[Snapshot] = []
    fifo = find("fifo")

    def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
        seen.append(snapshot)
        return fifo.decide(snapshot, memory)

    here = World(replace(fifo, decide=decide), Settings(settle_s=0.0, quantum_s=20.0))
    here.play(f"{TWO}\nsubmit ann wide gpus=2 memory_bytes={100 * GiB}\nsubmit ann plain gpus=2")
    here.do("report n2 1:0=running step=5 can_checkpoint=yes")
    assert [job.barred for job in seen[-1].jobs] == [{"n1"}, frozenset()]
    here.do("host n2 V100:4 memory=32 1:0=running step=6 can_checkpoint=yes")
    here.do("host n3 V100:4 memory=128")
    here.do("tick")
    assert homes(here, 1) == [(LARGE,)]
    assert [job.barred for job in seen[-1].jobs] == [{"n1"}, frozenset()]
    here.do("drain n2")
    here.do("tick")
    assert here.machine.job(JobId(1)).move.to == ("n3",)


def test_servers_with_less_are_told_apart_by_what_is_asked_for() -> None:
    narrow = Narrow()
    assert narrow.see([has("a", 64), has("b", 512), has("c", 0), has("d", 64)])
    assert not narrow.see([has("d", 64), has("c", 0), has("b", 512), has("a", 64)])
    assert narrow.below(0) == narrow.below(64 * GiB) == frozenset()
    assert narrow.below(64 * GiB + 1) == narrow.below(512 * GiB) == {"a", "d"}
    assert narrow.below(65 * GiB) is narrow.below(500 * GiB)
    assert narrow.below(513 * GiB) == {"a", "b", "d"}
    assert narrow.see([has("a", 64)])
    assert narrow.below(513 * GiB) == {"a"}

"""Clusters in which jobs cannot be started, for tests of what becomes of them."""

from hs_core.cluster.harness import World
from hs_core.cluster.state import Settings
from hs_core.names import HostName
from hs_core.policies import find
from hs_core.reports import LAUNCH_FAILED

N1 = HostName("n1")
FAILS = "start_fails={} note=cannot_be_started_on_its_server:_No_space_left"
ON_TWO = """
    user ann
    host n1 V100:2
    submit ann first gpus=1
    @1
    tick
    host n2 V100:2
"""


def world(script: str, policy: str = "fifo") -> World:
    here = World(find(policy), Settings(settle_s=0.0, quantum_s=20.0))
    here.play(script)
    return here


def kinds(here: World) -> list[str]:
    return [fact.kind for fact in here.outcome.facts]


def fails(here: World, times: int, job: str = "1:0", phase: str = "waiting", more: str = "") -> None:
    here.do(f"report n1 {job}={phase} {more} {FAILS.format(times)}")


NO_FOLDER = f"{LAUNCH_FAILED}: cannot enter the working folder /x".replace(" ", "_")

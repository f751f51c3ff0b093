"""Clusters of one controller's machine, for tests of it."""

import pytest

from hs_core.cluster import Settings
from hs_core.cluster.harness import World, plain_policy
from hs_core.errors import RefusedError
from hs_core.events.cluster import JobsSubmitted
from hs_core.model import JobSpec
from hs_core.names import HostName, JobId, UserName
from hs_core.policy import Policy

ALICE = UserName("alice")
N1 = HostName("n1")
SETTINGS = Settings(quantum_s=10.0, settle_s=0.0)


def world(*lines: str, policy: Policy | None = None, settings: Settings = SETTINGS) -> World:
    made = World(policy or plain_policy(), settings)
    for line in ("user alice", "host n1 V100:4", *lines):
        told = made.do(line)
        assert not any(text.startswith("refused") for text in told), told
    return made


def submit(at: World, *specs: JobSpec) -> tuple[JobId, ...]:
    at.handle(JobsSubmitted(now_s=at.now_s, user=ALICE, specs=specs))
    return at.outcome.answer


def refusal(at: World, *specs: JobSpec) -> RefusedError:
    before = at.machine.state
    with pytest.raises(RefusedError) as caught:
        submit(at, *specs)
    assert at.machine.state == before
    return caught.value

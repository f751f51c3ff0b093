"""How large a job's state is, as policies are shown it: what its servers weighed, whatever became of it since."""

import ast
import inspect
import textwrap
from dataclasses import fields, replace

import pytest

from hs_core.cluster import Settings
from hs_core.cluster.harness import World
from hs_core.cluster.plain import GiB, Wishes, plain_policy
from hs_core.cluster.reports import merge
from hs_core.cluster.sight import Sight
from hs_core.names import JobId
from hs_core.policy import JobFacts, Memory, Needs, Policy, Snapshot, Verdict
from hs_core.reports import JobReport, Phase, as_one, copies_as_one

NOT_SHOWN: dict[str, str] = {}
"""Fields of JobFacts that a controller leaves as they are by default, and why."""


class Seen:
    """A cluster, and the facts of job 1 that its policy was shown last."""

    def __init__(self, script: str) -> None:
        self.asked: list[Snapshot] = []
        wishes: Wishes = {}
        inner = plain_policy(wishes=wishes)

        def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
            self.asked.append(snapshot)
            return inner.decide(snapshot, memory)

        policy = Policy(name="seen", needs=Needs(every_quantum=True), decide=decide)
        self.at = World(policy, Settings(quantum_s=10.0, settle_s=0.0), wishes=wishes)
        self.play(script)

    def play(self, script: str) -> None:
        for line in script.strip().splitlines():
            self.at.do(line.strip())

    def facts(self) -> JobFacts:
        """As of the next quantum."""
        self.play(f"@{self.at.now_s + 10}\ntick")
        return self.asked[-1].jobs[0]

    def state_bytes(self) -> int:
        return self.facts().state_bytes


ONE = """
    host n1 V100:4
    host n2 V100:4
    user alice
    submit alice a gpus=2
    report n1 1:0=running can_checkpoint=yes
"""
GANG = """
    host n1 V100:4
    host n2 V100:4
    user alice
    submit alice a nodes=2
    report n1 1:0=starting rendezvous=n1:1
"""


def test_every_fact_of_a_job_is_shown_or_left_out_for_a_reason() -> None:
    tree = ast.parse(textwrap.dedent(inspect.getsource(Sight._job_facts)))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    (made,) = (call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "_facts")
    given = {keyword.arg for keyword in made.keywords}
    assert given | NOT_SHOWN.keys() == {field.name for field in fields(JobFacts)}
    assert given.isdisjoint(NOT_SHOWN)


def test_the_state_is_as_large_as_the_checkpoint_that_was_weighed_and_stays_so_over_a_move() -> None:
    seen = Seen(ONE)
    assert seen.state_bytes() == 0, "nothing is known of it"
    seen.play("report n1 1:0=running can_checkpoint=yes checkpoint_generation=0 checkpoint_bytes=700")
    assert seen.state_bytes() == 700
    there = "checkpoint_generation=1 checkpoint_step=7 step=7 checkpoint_bytes=900"
    seen.play(f"wish 1 n2\nuser alice 90\nreport n1 1:0=checkpointed can_checkpoint=yes {there}")
    seen.play("report n2 1:1=waiting")
    facts = seen.facts()
    assert (facts.hosts, facts.state_bytes) == (("n2",), 900), "who has it says nothing of it yet"
    seen.play("report n2 1:1=held step=7 began_step=7 checkpoint_generation=1 checkpoint_step=7")
    assert seen.state_bytes() == 900
    seen.play("restart\nhost n1 V100:4\nhost n2 V100:4 1:1=running")
    assert seen.state_bytes() == 900, "a controller that takes office knows it as well"


def test_before_any_was_weighed_it_is_as_large_as_what_its_gpus_hold() -> None:
    seen = Seen(ONE)
    seen.play(f"report n1 1:0=running can_checkpoint=yes device_memory_bytes={3 * GiB}")
    assert seen.state_bytes() == 2 * 3 * GiB
    seen.play(
        f"report n1 1:0=running device_memory_bytes={3 * GiB} checkpoint_generation=0 checkpoint_bytes=5"
    )
    assert seen.state_bytes() == 5


def test_of_a_gang_it_is_what_all_servers_have_and_nothing_as_long_as_one_has_not_said() -> None:
    seen = Seen(GANG)
    running = "running can_checkpoint=yes checkpoint_generation=0"
    seen.play(f"report n1 1:0={running} checkpoint_bytes=400\nreport n2 1:0={running}")
    assert seen.state_bytes() == 0
    seen.play(f"report n2 1:0={running} checkpoint_bytes=300")
    assert seen.state_bytes() == 700


def test_facts_are_the_very_same_until_another_checkpoint_is_weighed() -> None:
    seen = Seen(ONE)
    running = "report n1 1:0=running can_checkpoint=yes checkpoint_generation=0"
    seen.play(f"{running} checkpoint_bytes=700")
    first = seen.facts()
    seen.play(f"{running} checkpoint_bytes=700")
    assert seen.facts() is first
    seen.play(f"{running} checkpoint_bytes=701")
    assert seen.facts() == replace(first, state_bytes=701)


@pytest.mark.parametrize(
    ("before", "said", "believed"), [(0, 9, 9), (9, 5, 5), (9, 0, 9), (9, -4, 9), (9, 1 << 60, 9)]
)
def test_a_size_that_makes_no_sense_is_not_believed(before: int, said: int, believed: int) -> None:
    one = JobReport(job=JobId(1), epoch=0, phase=Phase.RUNNING, checkpoint_generation=2)
    old, new = replace(one, checkpoint_bytes=before), replace(one, checkpoint_bytes=said)
    assert merge(old, new, frozenset()).checkpoint_bytes == believed
    nonsense = replace(new, gpu_s=-1.0)  # looked at field by field
    assert merge(old, nonsense, frozenset()).checkpoint_bytes == believed


def test_of_copies_it_is_that_of_one() -> None:
    one = JobReport(job=JobId(1), epoch=0, phase=Phase.RUNNING, checkpoint_bytes=8)
    both = one, replace(one, checkpoint_bytes=9)
    whole, gang = copies_as_one(both, 2, 0), as_one(both, 2)
    assert whole is not None
    assert gang is not None
    assert (whole.checkpoint_bytes, gang.checkpoint_bytes) == (9, 17)

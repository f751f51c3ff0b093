"""ClusterMachine: the state that survives, and how it is bounded."""

import json
from dataclasses import replace
from typing import Any

import pytest
from clusters import ALICE, SETTINGS, refusal, submit, world
from pydantic import TypeAdapter

from hs_core.cluster import ClusterMachine, Settings, State
from hs_core.cluster.admission import spec_bytes
from hs_core.cluster.harness import a_spec
from hs_core.errors import BrokenError, Kind
from hs_core.events.cluster import Direct, JobsSubmitted
from hs_core.model import After, AfterCondition, JobState
from hs_core.names import JobId, UserName


def test_the_whole_state_survives_json() -> None:
    at = world("host n2 K80:2")
    submit(at, a_spec(env={"A": "b"}, gpu_types=("V100",)), a_spec(array_index=3))
    at.do("report n1 1:0=running gpu_s=1.5 checkpoint_step=3 checkpoint_generation=0")
    at.do("report n1 2:0=exited signal=9")
    at.do("submit alice b after=1:fail")
    state = at.machine.state
    adapter = TypeAdapter(State)
    again = adapter.validate_json(adapter.dump_json(state))
    assert again == state
    json.loads(adapter.dump_json(state))
    assert ClusterMachine(at.policy, SETTINGS, again).state == state


def test_ended_jobs_may_be_left_out_and_recalled() -> None:
    at = world("submit alice a", "report n1 1:0=exited code=0")
    state = at.machine.state
    old = state.jobs[JobId(1)]
    at.start(replace(state, jobs={}))
    spec = at.event("submit", ["alice", "b", "after=1"])
    assert isinstance(spec, JobsSubmitted)
    assert at.machine.missing(spec.specs) == (1,)
    assert refusal(at, *spec.specs).kind is Kind.NOT_FOUND
    at.machine.recall([old])
    assert submit(at, *spec.specs) == (2,)


def test_old_ended_jobs_are_let_go_of_but_not_those_waited_for() -> None:
    at = world("submit alice a count=5", settings=replace(SETTINGS, keep_ended=2))
    at.do("submit alice waits after=1:ok,2:ok")
    for job in (1, 3, 4, 5):
        at.do(f"report n1 {job}:0=exited code=0")
        assert at.machine.find(JobId(job)) is not None, "the driver has yet to write it"
    assert sorted(at.machine.state.jobs) == [1, 2, 4, 5, 6]
    at.do("cancel alice 6")
    assert sorted(at.machine.state.jobs) == [1, 2, 6], "needed until now, it is as new as who waited for it"
    at.do("submit alice last")
    at.do("cancel alice 7")
    at.machine.check()


def test_of_ended_jobs_no_more_is_held_than_their_specs_may_take() -> None:
    at = world("submit alice a count=5", settings=replace(SETTINGS, keep_ended_bytes=100))
    [size] = {spec_bytes(row.spec) for row in at.machine.jobs()}
    for job in range(1, 6):
        at.do(f"report n1 {job}:0=exited code=0")
    assert sorted(at.machine.state.jobs) == list(range(6 - 100 // size, 6))
    at.machine.check()


def test_a_users_specs_have_room_together_and_more_is_refused_until_some_have_ended() -> None:
    limit = 10_000
    at = world("user bob", settings=replace(SETTINGS, max_spec_bytes_per_user=limit, keep_ended=0))
    large = a_spec("large", env={"TEXT": "x" * 4000})
    first, _ = submit(at, large, large)
    refused = refusal(at, large)
    assert refused.kind is Kind.UNAVAILABLE
    held = at.machine.spec_bytes(ALICE)
    assert str(refused).startswith(
        f"jobs: the specs of alice's jobs under way take {held} bytes and {held // 2} more were asked for; "
        f"those of one user may take {limit}:"
    )
    assert refusal(at, *[a_spec("small")] * 200).kind is Kind.UNAVAILABLE, "many small ones are large, too"
    at.handle(JobsSubmitted(now_s=at.now_s, user=UserName("bob"), specs=(large,)))
    [waits] = submit(at, a_spec("waits", after=(After(job=first, condition=AfterCondition.ANY),)))
    at.do(f"cancel alice {first}")
    at.do(f"report n1 {first}:0=exited signal=15")
    assert refusal(at, large).kind is Kind.UNAVAILABLE, "one that a live job waited for is held as well"
    at.do(f"cancel alice {waits}")
    at.do(f"report n1 {waits}:0=exited signal=15")
    at.machine.check()
    submit(at, large)
    at.machine.check()


def test_specs_that_ended_jobs_bring_back_count_for_who_waits_for_them() -> None:
    at = world(settings=replace(SETTINGS, max_spec_bytes_per_user=10_000, keep_ended=0))
    large = a_spec("large", env={"TEXT": "x" * 4000})
    ended = []
    for _ in range(3):
        [job] = submit(at, large)
        ended.append(at.machine.job(job))
        at.do(f"report n1 {job}:0=exited code=0")
        ended[-1] = at.machine.job(job)
    after = tuple(After(job=row.id, condition=AfterCondition.ANY) for row in ended)
    at.machine.recall(row for row in ended if at.machine.find(row.id) is None)
    assert refusal(at, a_spec("waits", after=after)).kind is Kind.UNAVAILABLE
    submit(at, a_spec("waits", after=after[:2]))
    at.machine.check()
    at.start(at.machine.state)
    assert at.machine.spec_bytes(ALICE) > 8000, "after a restart, too"
    at.machine.check()


def test_a_chain_of_hundreds_ends_with_its_first_job() -> None:
    at = world("submit alice first")
    for job in range(1, 500):
        at.do(f"submit alice next after={job}:ok")
    at.do("report n1 1:0=exited code=1")
    assert at.machine.job(JobId(500)).state is JobState.CANCELLED
    assert not at.machine.jobs()
    at.machine.check()


def test_a_lower_term_cannot_begin_and_commands_carry_the_term() -> None:
    at = world("submit alice a")
    at.machine.begin_term(7)
    with pytest.raises(BrokenError, match="term 6 began after term 7"):
        at.machine.begin_term(6)
    at.do("submit alice b")
    wanted = [c.wanted for c in at.outcome.commands if isinstance(c, Direct)]
    assert [(w.term, w.seq) for w in wanted] == [(7, 1)]


def test_a_story_is_bounded_and_keeps_the_newest() -> None:
    at = world("submit alice a", settings=replace(SETTINGS, story_facts=5))
    for step in range(10):
        at.do(f"report n1 1:0=running step={step}")
        at.do(f"report n1 1:0=held step={step}")
    story = at.machine.story(JobId(1))
    assert len(story) == 5
    assert story[-1].text == "it is suspended on n1 at step 9"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"quantum_s": 0.0}, "quantum_s"),
        ({"quantum_s": float("inf")}, "quantum_s"),
        ({"settle_s": 99.0}, "settle_s"),
        ({"default_tickets": 0.0}, "default_tickets"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Settings(**wrong)


def test_a_damaged_state_is_not_taken_up() -> None:
    at = world("submit alice a")
    state = at.machine.state
    row = state.jobs[JobId(1)]
    for jobs in ({JobId(1): replace(row, hosts=())}, {JobId(1): replace(row, user=UserName("eve"))}):
        with pytest.raises(BrokenError, match="job 1"):
            ClusterMachine(at.policy, SETTINGS, replace(state, jobs=jobs))
    with pytest.raises(BrokenError, match="next id"):
        ClusterMachine(at.policy, SETTINGS, replace(state, next_job_id=JobId(1)))

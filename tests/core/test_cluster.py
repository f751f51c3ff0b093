"""ClusterMachine, thing by thing; how events follow on one another is in tests/scenarios and test_cluster_laws."""

import json
from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter

from hs_core.cluster import ClusterMachine, Limits, Reason, Settings, State
from hs_core.cluster.admission import spec_bytes
from hs_core.cluster.decisions import BURST
from hs_core.cluster.harness import World, a_spec, plain_policy
from hs_core.cluster.plain import Wishes
from hs_core.errors import BrokenError, Kind, RefusedError
from hs_core.events import Direct, JobsSubmitted, QuantumEnded, UserSet
from hs_core.forms import Elastic, Form
from hs_core.model import After, AfterCondition, JobSpec, JobState, SuspendMode, Topology
from hs_core.names import HostName, JobId, UserName
from hs_core.policies import POLICIES, find
from hs_core.policy import Going, Memory, Needs, Plan, Policy, Snapshot, Verdict
from hs_core.wanted import Turn

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


# --- requests -----------------------------------------------------------------------------------------------------


def elastic(**wishes: float) -> Elastic:
    """On 1 to 4 GPUs, mini-batches of 32 to 256 examples, 32 on a GPU at once."""
    made = Elastic(gpus_min=1, gpus_max=4, batch=32, batch_max=256, batch_per_gpu_max=32)
    return replace(made, **wishes)  # type: ignore[arg-type]  # the tests' own wishes


def test_jobs_that_name_one_folder_for_checkpoints_each_get_their_own_in_it():
    at = world("@1000")
    ids = submit(at, a_spec("a", checkpoint_dir="/ckpt/"), a_spec("b", checkpoint_dir="/ckpt"), a_spec("c"))
    folders = [at.machine.job(job).spec.checkpoint_dir for job in ids]
    assert folders == ["/ckpt/job-1-1000", "/ckpt/job-2-1000", ""]


def test_numbers_are_put_into_the_path_of_the_log_as_they_are_given():
    at = world()
    submit(at, a_spec("first"))
    tasks = [a_spec("t", output=f"/logs/%A_{n}-%j.out", array_index=n) for n in (0, 1)]
    ids = submit(at, *tasks, a_spec("alone", output="/logs/%j-%A.out"), a_spec("silent"))
    outputs = [at.machine.job(job).spec.output for job in ids]
    assert outputs == ["/logs/2_0-2.out", "/logs/2_1-3.out", "/logs/4-4.out", ""]


def test_a_job_of_another_cluster_with_the_same_number_has_another_folder():
    folders = set()
    for at in (world("@1000"), world("@2000")):
        (job,) = submit(at, a_spec("a", checkpoint_dir="/ckpt"))
        folders.add((job, at.machine.job(job).spec.checkpoint_dir))
    assert folders == {(1, "/ckpt/job-1-1000"), (1, "/ckpt/job-1-2000")}


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"command": ()}, "command: missing"),
        ({"command": ("",)}, "command: missing"),
        ({"command": ("a",) * 4097}, "command: 4097 words; at most 4096"),
        ({"command": ("a", "x\0y")}, "command: 'x.x00y' has a NUL"),
        ({"command": ("a", "\ud800")}, "is not valid UTF-8"),
        ({"command": ("a", "x" * (256 << 10))}, "spec: 2621.. bytes; at most 262144"),
        ({"env": {f"A{i}": "" for i in range(513)}}, "env: 513 names; at most 512"),
        ({"env": {"A-B": ""}}, "env: 'A-B' is not a name"),
        ({"env": {"HS_HOOK": "0"}}, "env: 'HS_HOOK' is reserved"),
        ({"env": {"A": "x\0"}}, "env: .* has a NUL"),
        ({"name": " "}, "name: ' ' is empty"),
        ({"name": "x" * 129}, "name: .* has 129 characters"),
        ({"name": "a\nb"}, "name: 'a.nb' has control characters"),
        ({"workdir": ""}, "workdir: '' is not an absolute path"),
        ({"workdir": "data"}, "workdir: 'data' is not an absolute path"),
        ({"checkpoint_dir": "c"}, "checkpoint_dir: 'c' is not an absolute path"),
        ({"output": "x" * 4097}, "output: .* has 4097 characters"),
        ({"gpus": 0}, "gpus: 0 is not between 1 and 1024"),
        ({"gpus": -1}, "gpus: -1 is not"),
        ({"gpus": 10**9}, "gpus: 1000000000 is not"),
        ({"nodes": 0}, "nodes: 0 is not"),
        ({"gpu_memory_bytes": -1}, "gpu_memory_bytes: -1 is not"),
        ({"cpus": 5000}, "cpus: 5000 is not"),
        ({"memory_bytes": 1 << 60}, "memory_bytes: .* is not between"),
        ({"priority": 1001}, "priority: 1001 is not between -1000 and 1000"),
        ({"retry_max": -1}, "retry_max: -1 is not"),
        ({"max_duration_s": float("nan")}, "max_duration_s: nan is not"),
        ({"max_duration_s": 1e300}, "max_duration_s: 1e.300 is not"),
        ({"checkpoint_interval_s": -0.5}, "checkpoint_interval_s: -0.5 is not"),
        ({"gpu_types": ("",)}, "gpu_types: '' is no GPU model"),
        ({"array_limit": 3}, "array_limit: 3 was given for a job that is not of an array"),
        ({"array_index": -1}, "array_index: -1 is not"),
        ({"elastic": elastic(gpus_min=0)}, "gpus_min: 0 is not between 1 and 1024"),
        ({"elastic": elastic(gpus_min=4, gpus_max=2)}, "gpus_max: 2 is not between 4 and 1024"),
        ({"elastic": elastic(gpus_min=2)}, "gpus: 1 is not between 2 and 4"),
        ({"elastic": elastic(batch=0)}, "batch: 0 is not between 1 and"),
        ({"elastic": elastic(batch_max=16)}, "batch_max: 16 is not between 32 and"),
        ({"elastic": elastic(batch_per_gpu_max=0)}, "batch_per_gpu_max: 0 is not between 1 and"),
        ({"elastic": elastic(noise_scale=float("nan"))}, "noise_scale: nan is not a number of examples"),
        ({"elastic": elastic(), "nodes": 2}, "nodes: 2 is not 1: an elastic job is on one server, or, with"),
        ({"elastic": elastic(), "nodes": 5, "topology": Topology.ANY}, "gpus: 5 is not between 1 and 4"),
        ({"dataset": "d", "dataset_bytes": -1}, "dataset_bytes: -1 is not between 0 and"),
        ({"dataset_bytes": 5}, "dataset_bytes: 5 is not between 0 and 0"),
        ({"dataset": "a\tb"}, "has control characters"),
        ({"elastic": elastic(), "accumulation_max": 2}, "accumulation: 2 is not 1: an elastic job"),
        ({"elastic": elastic(), "suspend": SuspendMode.NONE}, "suspend: 'none' gives no checkpoint"),
    ],
)
def test_a_bad_field_is_refused_by_name_value_and_what_was_expected(
    wishes: dict[str, Any], words: str
) -> None:
    refused = refusal(world(), a_spec(**wishes))
    assert refused.kind is Kind.INVALID
    with pytest.raises(RefusedError, match=words):
        raise refused


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"gpus": 9}, "gpus: the job asks for 9 GPUs on one server; the largest has 4"),
        ({"gpu_types": ("H100",)}, "gpu_types: the job asks for H100; the servers have V100"),
        ({"gpu_memory_bytes": 80 << 30}, "asks for 80 GiB of memory per GPU; the largest GPU has 16 GiB"),
        (
            {"nodes": 2},
            "nodes: the job asks for 2 servers of one GPU model with 1 GPU each; there are at most 1 (V100)",
        ),
    ],
)
def test_what_can_never_run_here_is_refused(wishes: dict[str, Any], words: str) -> None:
    refused = refusal(world(), a_spec(**wishes))
    assert refused.kind is Kind.IMPOSSIBLE
    assert words in str(refused)


def test_one_bad_job_refuses_the_request_and_is_named() -> None:
    at = world()
    refused = refusal(at, a_spec(), a_spec(gpus=0), a_spec())
    assert str(refused) == "jobs[1]: gpus: 0 is not between 1 and 1024"
    assert submit(at, a_spec()) == (1,), "a refused request used up an id"


def test_limits_on_how_many_jobs() -> None:
    at = world(settings=replace(SETTINGS, max_jobs=3, max_jobs_per_user=2, limits=Limits(jobs_per_request=3)))
    assert "1 to 3 were expected" in str(refusal(at, *[a_spec()] * 4))
    assert "0 in one request" in str(refusal(at))
    assert refusal(at, *[a_spec()] * 3).kind is Kind.UNAVAILABLE
    submit(at, a_spec(), a_spec())
    assert "one user may have 2" in str(refusal(at, a_spec()))


def test_about_very_many_jobs_of_one_request_is_decided_in_an_event_of_its_own() -> None:
    at = world(settings=replace(SETTINGS, settle_s=0.5))
    at.now_s = 100.0
    [few] = submit(at, a_spec())
    assert at.machine.job(few).hosts == (N1,)
    at.now_s = 200.0
    many = submit(at, *[a_spec()] * (BURST + 1))
    assert (at.machine.job(many[0]).hosts, at.wake_s) == ((), 200.5)
    at.now_s = 200.5
    submit(at, *[a_spec()] * (BURST + 1))
    assert at.machine.job(many[0]).hosts == (N1,), "put off once, not for ever"


def test_an_array_is_one_by_its_first_job() -> None:
    at = world("submit alice single")
    ids = submit(at, *[a_spec(array_index=i, array_limit=2) for i in (5, 6)])
    assert [at.machine.job(i).spec.array_id for i in ids] == [2, 2]
    assert at.machine.job(JobId(1)).spec.array_id is None
    twice = refusal(at, a_spec(array_index=1), a_spec(array_index=1))
    assert str(twice) == "array_index: 1 is given to two jobs of one array"
    differs = refusal(at, a_spec(array_index=1, array_limit=1), a_spec(array_index=2))
    assert "differs between the jobs of one array" in str(differs)


def test_a_dry_run_says_the_same_and_changes_nothing() -> None:
    at = world()
    before = at.machine.state
    at.machine.validate(ALICE, [a_spec()])
    with pytest.raises(RefusedError, match="the largest has 4"):
        at.machine.validate(ALICE, [a_spec(gpus=5)])
    assert at.machine.state == before


def test_requests_about_several_jobs_are_carried_out_whole_or_not_at_all() -> None:
    at = world("submit alice a count=2")
    for verb in ("cancel", "pause", "unpause"):
        before = at.machine.state
        assert at.do(f"{verb} alice 1 2 3") == ["refused, not-found: there is no job 3"]
        assert at.machine.state == before
    at.do("report n1 1:0=exited code=0")
    before = at.machine.state
    assert at.do("pause alice 2 1") == ["refused, conflict: job 1 is succeeded and cannot be paused"]
    assert at.machine.state == before


def test_a_user_is_made_changed_and_told_to_hosts() -> None:
    at = world("submit alice a")
    at.handle(UserSet(now_s=1.0, name=ALICE, run_as="al"))
    assert at.wanted[N1].jobs[0].run_as == "al"
    at.handle(UserSet(now_s=2.0, name=ALICE, tickets=7.0))
    assert at.wanted[N1].jobs[0].tickets == 7.0
    assert at.outcome.touched.users == {"alice"}
    user = at.machine.user(ALICE)
    assert user is not None
    assert (user.tickets, user.run_as) == (7.0, "al")
    at.handle(UserSet(now_s=3.0, name=ALICE, tickets=7.0))
    assert not at.outcome.touched, "nothing was changed"


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_whoever_decides_a_user_may_leave_at_any_moment(name: str) -> None:
    at = world("user bob", "host k1 K80:4", policy=find(name))
    at.do("submit alice a gpus=2 steps=1000")
    at.do("submit bob b gpus=2 steps=1000 count=5")
    for now in range(10, 60, 10):
        at.do(f"@{now}")
        at.do("tick")
    row = at.machine.job(JobId(1))
    at.do("cancel alice 1")
    for home in row.hosts:
        at.do(f"report {home} 1:{row.epoch}=exited signal=15")
    assert at.do("remove-user alice")[0] == "user-removed: root removed the user alice"
    assert at.outcome.touched.users == {"alice"}
    at.do("tick")
    at.start(at.machine.state)
    for now in range(60, 120, 10):
        at.do(f"@{now}")
        at.do("tick")
    at.machine.check()


# --- decisions ----------------------------------------------------------------------------------------------------


def recording(
    turns: dict[HostName, Turn], seen: list[Snapshot], *, every_quantum: bool = False, progress: bool = True
) -> Policy:
    inner = plain_policy()

    def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
        seen.append(snapshot)
        verdict = inner.decide(snapshot, memory)
        return replace(verdict, plan=replace(verdict.plan, turns={**verdict.plan.turns, **turns}))

    needs = Needs(every_quantum=every_quantum, progress=progress)
    return Policy(name="recording", needs=needs, decide=decide)


def test_the_policys_turn_goes_out_without_those_that_cannot_take_it() -> None:
    turn = Turn(gangs=(JobId(1), JobId(2)), local=False)
    told = plain_policy()

    def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
        verdict = told.decide(snapshot, memory)
        return replace(verdict, plan=replace(verdict.plan, turns={N1: turn if snapshot.jobs else Turn()}))

    slow = replace(SETTINGS, settle_s=5.0)
    at = world(policy=Policy(name="gangs", needs=Needs(), decide=decide), settings=slow)
    at.now_s = 10.0
    at.do("submit alice a gpus=2 count=2")
    at.now_s = 11.0  # too early to decide again
    assert at.wanted[N1].turn == turn
    at.do("report n1 1:0=held")
    assert at.machine.why(JobId(1), 0.0).reason is Reason.WAITING_FOR_GPUS
    at.do("pause alice 1")
    assert at.wanted[N1].turn == Turn(gangs=(JobId(2),), local=False)


def test_a_burst_of_submits_costs_few_decisions() -> None:
    seen: list[Snapshot] = []
    at = world(policy=recording({}, seen), settings=replace(SETTINGS, settle_s=0.1))
    for i in range(200):
        at.now_s = 5.0 + i / 200
        submit(at, a_spec())
    at.now_s = at.wake_s or 0.0
    at.handle(QuantumEnded(now_s=at.now_s))
    assert len(seen) <= 12
    assert all(row.host == "n1" for row in at.machine.jobs())


def test_nobody_is_asked_when_nothing_changed() -> None:
    seen: list[Snapshot] = []
    at = world("submit alice a", policy=recording({}, seen))
    at.do("report n1 1:0=held")
    asked = len(seen)
    for line in (
        "report n1 1:0=running gpu_s=3",
        "report n1 1:0=held gpu_s=5 step=9",
        "tick",
        "user alice 100",
    ):
        at.do(line)
    assert len(seen) == asked


def test_a_policy_that_asked_for_it_is_asked_at_every_edge() -> None:
    seen: list[Snapshot] = []
    at = world("submit alice a", policy=recording({}, seen, every_quantum=True))
    quanta = []
    for _ in range(3):
        assert at.wake_s is not None
        at.now_s = at.wake_s
        at.do("tick")
        quanta.append(seen[-1].quantum)
    assert (quanta, at.machine.quantum, at.now_s) == ([2, 3, 4], 3, 30.0)


def test_the_snapshot_shows_who_could_run_and_nobody_else() -> None:
    seen: list[Snapshot] = []
    at = world(policy=recording({}, seen))
    submit(at, a_spec(), a_spec(suspend=SuspendMode.NONE), a_spec(gpus=4))
    at.do("submit alice waits after=1")
    at.do("pause alice 3")
    at.do("report n1 1:0=running gpu_s=4")
    at.do("user alice 50")
    shown = {job.id: job for job in seen[-1].jobs}
    assert set(shown) == {1, 2}
    assert (shown[JobId(1)].started, shown[JobId(1)].attained_gpu_s) == (True, 4.0)
    assert seen[-1].running == {1}
    assert (shown[JobId(1)].sliceable, shown[JobId(2)].sliceable) == (True, False)
    assert seen[-1].tickets == {ALICE: 50}


@pytest.mark.parametrize(("progress", "had_gpu_s"), [(True, 9.0), (False, 4.0)])
def test_a_job_of_which_only_counters_are_new_is_shown_again_to_those_who_go_by_them(
    progress: bool, had_gpu_s: float
) -> None:
    seen: list[Snapshot] = []
    at = world(policy=recording({}, seen, progress=progress))
    at.do("submit alice a")
    at.do("report n1 1:0=running gpu_s=4")
    at.do("user alice 50")
    before = seen[-1].jobs[0]
    at.do("report n1 1:0=running gpu_s=9")
    at.do("user alice 60")
    after = seen[-1].jobs[0]
    assert seen[-1].running == {after.id}
    assert (before.attained_gpu_s, after.attained_gpu_s) == (4.0, had_gpu_s)
    assert (after is before) is not progress
    at.do("report n1 1:0=held gpu_s=9")
    at.do("user alice 70")
    assert not seen[-1].running
    assert seen[-1].jobs[0] is after, "a turn that ended is no news of the job itself"


def test_a_policy_that_places_where_nothing_can_be_placed_stops_the_controller() -> None:
    def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
        homes = {job.id: (HostName("n1"),) for job in snapshot.jobs}
        return Verdict(plan=Plan(homes=homes, turns={}, tickets={}), memory=memory)

    at = world(policy=Policy(name="bad", needs=Needs(), decide=decide))
    with pytest.raises(BrokenError):
        submit(at, a_spec())


def test_shares_follow_tickets_on_a_host() -> None:
    at = world("user bob 300", "submit alice a gpus=4", "submit bob b gpus=4")
    assert at.machine.job_tickets(JobId(1)) == 100.0
    assert (at.machine.job_share_gpus(JobId(1)), at.machine.job_share_gpus(JobId(2))) == (1.0, 3.0)
    at.do("pause bob 2")
    assert (at.machine.job_share_gpus(JobId(1)), at.machine.job_share_gpus(JobId(2))) == (4.0, 0.0)
    assert at.machine.demand() == {("alice", "V100"): 4.0}


def test_who_asks_what_other_tickets_would_come_to_changes_nothing() -> None:
    fair = find("gandiva-fair")

    def counting(snapshot: Snapshot, memory: Memory) -> Verdict:
        verdict = fair.decide(snapshot, memory)
        return replace(verdict, memory={**verdict.memory, "asked": memory.get("asked", 0) + 1})

    policy = replace(fair, decide=counting)
    lines = ("user bob", "host n2 V100:4", "submit alice a gpus=4 nodes=2", "submit bob b gpus=4 nodes=2")
    at, unasked = (world(*lines, policy=policy) for _ in range(2))
    state, shares = at.machine.state, at.machine.job_share_gpus(JobId(1))
    has = []
    for tickets in (1.0, 300.0, 1e6):
        then = at.machine.would_entitle({ALICE: tickets}, at.now_s + 5.0)
        assert then["alice", "V100"] + then["bob", "V100"] == pytest.approx(8.0)
        has.append(then["alice", "V100"])
    assert has == sorted(set(has))
    assert at.machine.state == state
    assert at.machine.job_share_gpus(JobId(1)) == shares
    for then_s in (10.0, 20.0, 30.0):
        at.machine.would_entitle({ALICE: 5.0}, then_s)
        edge = QuantumEnded(now_s=then_s)
        assert at.machine.handle(edge) == unasked.machine.handle(edge)
        assert at.do("submit bob c") == unasked.do("submit bob c")
        assert at.machine.state == unasked.machine.state
    for wrong, words in (({UserName("eve"): 5.0}, "no user 'eve'"), ({ALICE: -1.0}, "tickets")):
        with pytest.raises(RefusedError, match=words):
            at.machine.would_entitle(wrong, at.now_s)


# --- durable state ------------------------------------------------------------------------------------------------


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


# --- where jobs are going -----------------------------------------------------------------------------------------


def test_the_policy_is_told_where_a_job_is_going_until_it_has_left() -> None:
    seen: list[Snapshot] = []
    wishes: Wishes = {}
    shapes: dict[JobId, Form] = {}
    plain = plain_policy(wishes=wishes, shapes=shapes)

    def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
        seen.append(snapshot)
        return plain.decide(snapshot, memory)

    at = World(replace(plain, decide=decide), Settings(settle_s=0.0), wishes=wishes, shapes=shapes)

    def told(lines: str) -> list[Going | None]:
        for line in lines.splitlines():
            at.do(line.strip())
        return [job.going for job in seen[-1].jobs]

    begun = """host n1 V100:4
        host n2 V100:4
        user alice
        submit alice a gpus=2 elastic=1,4,32,256,32
        submit alice b gpus=2
        report n1 1:0=running can_checkpoint=yes
        report n2 2:0=running can_checkpoint=yes"""
    assert told(begun) == [None, None]
    going = """shape 1 4x32x1
        wish 2 n1
        user alice 90
        user alice 91"""
    assert told(going) == [Going(hosts=(N1,), gpus=4), Going(hosts=(N1,), gpus=2)]
    assert not any(job.movable for job in seen[-1].jobs)
    left = "report n2 2:0=checkpointed step=7 checkpoint_step=7 checkpoint_generation=0 can_checkpoint=yes"
    assert told(left) == [Going(hosts=(N1,), gpus=4), None]
    assert (seen[-1].jobs[1].hosts, seen[-1].jobs[1].coming) == ((N1,), True)


# --- when the policy is asked -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", [True, False])
def test_who_ended_is_decided_about_at_once_or_at_the_next_edge_as_the_policy_says(ends: bool) -> None:
    asked: list[tuple[float, tuple[JobId, ...]]] = []
    plain = plain_policy(every_quantum=True)

    def decide(snapshot: Snapshot, memory: Memory) -> Verdict:
        asked.append((snapshot.now_s, tuple(job.id for job in snapshot.jobs)))
        return plain.decide(snapshot, memory)

    at = world(policy=replace(plain, needs=replace(plain.needs, ends=ends), decide=decide))
    at.do("submit alice a gpus=1 count=2")
    at.do("submit alice b gpus=1 after=1")
    for line in ("@1", "report n1 1:0=running 2:0=running", "@23"):
        at.do(line)
    asked.clear()
    at.do("report n1 2:0=exited code=0")
    assert bool(asked) is ends
    at.do("@26")
    at.do("report n1 1:0=exited code=0")
    assert asked[-1] == (26.0, (3,)), "who waited for it is a newcomer"
    at.do("@30")
    at.do("tick")
    assert asked[-1] == (30.0, (3,)), "the edge"

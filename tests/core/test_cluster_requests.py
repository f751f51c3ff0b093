"""ClusterMachine: what it is asked for, and what it refuses; how events follow on one another is in tests/scenarios and test_cluster_laws."""

from dataclasses import replace
from typing import Any

import pytest
from clusters import ALICE, N1, SETTINGS, refusal, submit, world

from hs_core.cluster import Limits
from hs_core.cluster.book import Book
from hs_core.cluster.harness import a_spec
from hs_core.cluster.pace import BURST
from hs_core.errors import Kind, RefusedError
from hs_core.events.cluster import JobsPaused, JobsUnpaused, UserSet
from hs_core.forms import Elastic
from hs_core.model import After, AfterCondition, JobState, SuspendMode, Topology
from hs_core.names import JobId
from hs_core.policies import POLICIES, find


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


def test_jobs_that_say_no_interval_save_as_often_as_an_administrator_has_set():
    at = world(settings=replace(SETTINGS, checkpoint_interval_s=1800.0))
    ids = submit(at, a_spec("silent"), a_spec("own", checkpoint_interval_s=60.0))
    assert [at.machine.job(job).spec.checkpoint_interval_s for job in ids] == [1800.0, 60.0]


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
        (
            {"elastic": elastic(noise_scale=1e99)},
            "noise_scale: 1e.99 is not a number of examples between 0 and 1e15",
        ),
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
        (
            {"gpu_types": ("v100",)},
            "gpu_types: the job asks for v100; the servers have V100: did you mean V100?",
        ),
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


def test_who_leaves_the_number_of_servers_open_is_told_as_what_the_job_would_be_taken() -> None:
    """It has to fit as it asks: policies that do not choose lay it so."""
    at = world("host n2 V100:4")
    anywhere = a_spec(gpus=8, topology=Topology.ANY)
    assert str(refusal(at, anywhere)) == (
        "gpus: the job asks for 8 GPUs on one server; the largest has 4; with topology any, too, it has to fit as it asks, and it would with nodes 2 and gpus 4"
    )
    submit(at, replace(anywhere, nodes=2, gpus=4))
    assert str(refusal(at, replace(anywhere, gpus=7))).endswith("the largest has 4")
    assert str(refusal(at, replace(anywhere, topology=Topology.AUTO))).endswith("the largest has 4")


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
    assert at.do("pause alice 2 1") == ["refused, conflict: job 1 has ended (succeeded) and cannot be paused"]
    assert at.machine.state == before


@pytest.mark.parametrize("event", [JobsPaused, JobsUnpaused])
def test_of_an_array_what_ended_before_the_request_came_is_left_as_it_is(
    event: type[JobsPaused] | type[JobsUnpaused],
) -> None:
    at = world("submit alice a count=3")
    at.do("cancel alice 2")
    if event is JobsUnpaused:
        at.do("pause alice 1")
    at.do("report n1 3:0=exited code=0")
    request = event(now_s=1.0, by=ALICE, jobs=(JobId(1), JobId(2), JobId(3)), leave_ended=True)
    assert at.machine.handle(request).answer == (1,)
    at.do("report n1 1:0=exited code=0")
    with pytest.raises(RefusedError, match=r"job 1 has ended \(succeeded\)"):
        at.machine.handle(request)


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


@pytest.mark.parametrize("ends", [range(1, 11), range(50, 40, -1)], ids=["first", "last"])
def test_of_two_arrays_one_that_waits_for_all_of_the_other_is_not_looked_at_whole_at_each_end(
    monkeypatch: pytest.MonkeyPatch, ends: range
) -> None:
    at = world("submit alice first array=50")
    after = tuple(After(job=JobId(n + 1), condition=AfterCondition.ANY) for n in range(50))
    submit(at, *[a_spec("then", after=after)] * 50)
    looked, dependency = [], Book.dependency
    monkeypatch.setattr(Book, "dependency", lambda *of: looked.append(of) or dependency(*of))
    for job in ends:
        at.do(f"cancel alice {job}")
    assert at.machine.job(JobId(51)).state is JobState.QUEUED
    assert looked == []


@pytest.mark.parametrize(("ended", "state"), [("code=0", JobState.STARTING), ("code=1", JobState.CANCELLED)])
def test_a_job_may_wait_for_another_under_two_conditions(ended: str, state: JobState) -> None:
    at = world("submit alice first", "submit alice then after=1:any,1:ok")
    at.do(f"report n1 1:0=exited {ended}")
    assert at.machine.job(JobId(2)).state is state


def test_an_array_waits_for_the_whole_of_another_and_ends_with_the_first_of_it_that_fails() -> None:
    at = world("submit alice first array=2", "submit alice then array=2 after=1,2")
    at.do("report n1 1:0=exited code=0")
    assert [at.machine.job(JobId(n)).state for n in (3, 4)] == [JobState.QUEUED] * 2
    at.do("report n1 2:0=exited code=1")
    assert [at.machine.why(JobId(n), 0.0).text for n in (3, 4)] == [
        "it was cancelled by its dependency: was to run once job 2 succeeded, but it failed"
    ] * 2

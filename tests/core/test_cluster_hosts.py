"""ClusterMachine and its servers: they come, are told, report, are drained, are lost."""

from dataclasses import replace
from typing import Any

import pytest
from clusters import ALICE, N1, SETTINGS, submit, world

from hs_core.cluster import ClusterMachine, Settings
from hs_core.cluster.harness import World, a_host, a_spec, plain_policy
from hs_core.cluster.reports import merge
from hs_core.cluster.told import MOST
from hs_core.errors import RefusedError
from hs_core.events.cluster import Direct, HostDrained, HostJoined, HostReported
from hs_core.model import Drain, JobState, Switches
from hs_core.names import JobId, UserName
from hs_core.reports import TRESPASSED, Exit, JobReport, Phase


def test_a_host_without_gpus_or_with_two_models_is_refused() -> None:
    at = world()
    mixed = replace(a_host("n2"), gpus=(*a_host("n2").gpus, *a_host("n2b", "K80", 1).gpus))
    for host in (mixed, replace(mixed, gpus=())):
        with pytest.raises(RefusedError, match="GPUs of one model were expected"):
            at.handle(HostJoined(now_s=0.0, host=host, reports=()))


@pytest.mark.parametrize(("run_s", "step"), [(0.0, 40), (90.0, 3)])
def test_an_agent_that_knows_of_a_job_only_how_it_ended_takes_back_none_of_its_steps(
    run_s: float, step: int
) -> None:
    before = JobReport(job=JobId(1), epoch=0, phase=Phase.RUNNING, step=40, run_s=80.0)
    ended = JobReport(job=JobId(1), epoch=0, phase=Phase.EXITED, step=3, run_s=run_s, exit=Exit(code=3))
    assert merge(before, ended, frozenset()).step == step
    assert merge(before, replace(ended, step=50), frozenset()).step == 50


def test_a_host_that_has_what_is_not_wanted_is_told_once_more() -> None:
    at = world("submit alice a")
    first = at.do("report n1 9:0=running")
    assert first == ["→ n1 (1, 3): 1:0 with 100"]
    assert at.do("report n1 9:0=running") == []
    assert at.do("report n1 9:1=running") == ["→ n1 (1, 4): 1:0 with 100"]


def test_each_connection_is_told_everything_even_if_nothing_changed() -> None:
    at = world("submit alice a")
    seq = at.wanted[N1].seq
    at.do("host n1 V100:4 1:0=running")
    assert at.wanted[N1].seq == seq + 1
    assert [job.job for job in at.wanted[N1].jobs] == [1]


def test_an_order_that_never_arrived_is_repeated_under_the_same_epoch() -> None:
    at = world("submit alice a", "leave n1", "host n1 V100:4 boot=b2")
    assert [(job.job, job.epoch) for job in at.wanted[N1].jobs] == [(1, 0)]


def test_an_administrators_drain_survives_the_agents_word() -> None:
    at = world()
    state = at.machine.state
    drained = {N1: replace(state.hosts[N1], drain=Drain(by=ALICE, since_s=0.0))}
    at.start(replace(state, hosts=drained))
    at.do("host n1 V100:4")
    submit(at, a_spec())
    assert at.machine.job(JobId(1)).host is None


def test_work_since_the_checkpoint_counts_as_lost_when_the_host_is() -> None:
    at = world("submit alice a")
    at.do("report n1 1:0=running gpu_s=100 step=200 checkpoint_step=150 checkpoint_generation=1")
    at.do("host n1 V100:4 boot=b2")
    row = at.machine.job(JobId(1))
    assert (row.epoch, row.gpu_s, row.past_lost_gpu_s) == (1, 100.0, 25.0)
    assert row.host == "n1", "its checkpoint is there"


def test_work_counts_as_lost_with_a_checkpoint_that_was_not_gone_on_from_yet() -> None:
    at = world("submit alice a")
    at.do("report n1 1:0=running gpu_s=100 step=200 checkpoint_step=200 checkpoint_generation=1")
    at.do("host n1 V100:4 boot=b2")
    at.do("leave n1")
    at.do("remove n1 force")
    row = at.machine.job(JobId(1))
    assert (row.epoch, row.stored, row.gpu_s, row.past_lost_gpu_s) == (2, None, 100.0, 100.0)
    lost = [fact.text for fact in at.machine.story(JobId(1)) if fact.kind == "lost"]
    assert lost[-1] == "it was lost: n1 was removed; no checkpoint of it is left to be had, it starts afresh"


def test_work_that_is_done_again_as_a_failed_job_is_tried_again_counts_as_lost() -> None:
    at = world("submit alice a retry_max=1")
    at.do("report n1 1:0=running gpu_s=100 step=200 checkpoint_step=150 checkpoint_generation=1")
    at.do("report n1 1:0=exited gpu_s=120 step=240 checkpoint_step=150 checkpoint_generation=1 code=1")
    row = at.machine.job(JobId(1))
    assert (row.epoch, row.retries, row.gpu_s, row.past_lost_gpu_s) == (1, 1, 120.0, 45.0)
    (told,) = [fact for fact in at.machine.story(JobId(1)) if fact.kind == "retried"]
    assert told.data["lost_gpu_s"] == 45.0
    at.do("report n1 1:1=exited gpu_s=50 step=250 code=1")
    row = at.machine.job(JobId(1))
    assert (row.state, row.past_lost_gpu_s) == (JobState.FAILED, 45.0), "nobody does it again"


@pytest.mark.parametrize(("retries", "lost_s"), [(1, 125.0), (0, 25.0)])
def test_work_of_a_job_that_failed_unheard_counts_as_lost_where_it_is_done_again(
    retries: int, lost_s: float
) -> None:
    at = world(f"submit alice a on_partition=fence retry_max={retries}")
    at.do("report n1 1:0=running gpu_s=100 step=200 checkpoint_step=150 checkpoint_generation=1")
    at.do("leave n1")
    at.do("@70")
    at.do("tick")
    assert at.machine.job(JobId(1)).past_lost_gpu_s == 25.0
    told = "1:0=exited gpu_s=200 step=400 checkpoint_step=150 checkpoint_generation=1 code=1"
    at.do(f"host n1 V100:4 {told}")
    row = at.machine.job(JobId(1))
    assert (row.state.ended, row.gpu_s, row.past_lost_gpu_s) == (not retries, 200.0, lost_s)


def test_a_job_that_its_host_lost_is_started_again_and_not_blamed() -> None:
    at = world("submit alice a")
    at.do("report n1 1:0=exited gpu_s=3 why=lost_with_its_host:_it_was_restarted")
    row = at.machine.job(JobId(1))
    assert (row.epoch, row.retries, row.exit, row.gpu_s, row.past_lost_gpu_s) == (1, 0, None, 3.0, 3.0)


def test_gpu_seconds_are_kept_by_model_over_incarnations() -> None:
    at = world("submit alice a retry_max=3")
    at.do("report n1 1:0=exited gpu_s=10 code=1")
    at.do("leave n1")
    at.do("report n1 1:1=exited gpu_s=5 code=1")
    at.do("host n2 K80:4")
    at.do("report n2 1:2=running gpu_s=7")
    row = at.machine.job(JobId(1))
    assert dict(row.gpu_s_by_model) == {"V100": 15.0, "K80": 7.0}
    assert at.machine.usage() == {("alice", "V100"): 15.0, ("alice", "K80"): 7.0}
    at.now_s = 10.0
    at.do("report n2 1:2=running gpu_s=17")
    means, covered_s = at.machine.received_gpus(5.0, 10.0)
    assert (dict(means), covered_s) == ({("alice", "V100"): 0.0, ("alice", "K80"): 1.0}, 5.0)
    again = ClusterMachine(at.policy, SETTINGS, at.machine.state)
    assert again.usage() == at.machine.usage() == {("alice", "V100"): 15.0, ("alice", "K80"): 17.0}


def test_switches_are_kept_over_incarnations() -> None:
    at = world("submit alice a retry_max=1", "host n2 V100:4")
    at.do("report n1 1:0=held suspends=3 resumes=2 suspend_s=0.3 resume_s=0.5")
    at.do("report n1 1:0=exited suspends=3 resumes=2 suspend_s=0.3 resume_s=0.5 code=1")
    assert at.machine.job(JobId(1)).switches == Switches(suspends=3, resumes=2, suspend_s=0.3, resume_s=0.5)
    at.do("report n1 1:1=held suspends=1 resumes=2 suspend_s=0.5 resume_s=1.5")
    assert at.machine.job(JobId(1)).switches == Switches(suspends=4, resumes=4, suspend_s=0.8, resume_s=2.0)


def test_the_suspend_through_the_checkpoint_that_a_job_moves_with_counts() -> None:
    at = world("submit alice a", "host n2 V100:4")
    at.do("report n1 1:0=running step=5 can_checkpoint=yes suspends=1")
    at.do("drain n1")
    at.do(
        "report n1 1:0=checkpointed step=7 checkpoint_step=7 checkpoint_generation=0 suspends=2 suspend_s=4"
    )
    row = at.machine.job(JobId(1))
    assert (row.epoch, row.host, row.switches) == (1, "n2", Switches(suspends=2, suspend_s=4.0))


def test_switches_that_nobody_heard_of_count_when_the_server_is_back() -> None:
    at = world("submit alice a on_partition=fence")
    at.do("report n1 1:0=running suspends=2 resumes=2")
    at.do("leave n1")
    at.do("@70")
    at.do("tick")
    assert at.machine.job(JobId(1)).epoch == 1
    at.do("host n1 V100:4 1:0=held suspends=5 resumes=4")
    assert at.machine.job(JobId(1)).switches == Switches(suspends=5, resumes=4)


def test_what_a_server_is_remembered_to_have_been_told_is_bounded_however_long_it_stays() -> None:
    at = world()
    for _ in range(MOST + 3):
        [job] = submit(at, a_spec())
        at.do(f"report n1 {job}:0=exited code=0")
    assert at.machine.job(job).state is JobState.SUCCEEDED
    assert len(at.machine._contents.told) == MOST
    assert Direct not in map(type, at.handle(said(at, job)).commands), "what it says again needs no answer"
    assert Direct in map(type, at.handle(said(at, JobId(1))).commands)
    assert Direct not in map(type, at.handle(said(at, JobId(1))).commands)


def said(at: World, job: JobId) -> HostReported:
    report = JobReport(job=job, epoch=0, phase=Phase.EXITED, exit=Exit())
    return HostReported(now_s=at.now_s, host=N1, reports=(report,))


def test_a_drain_said_again_keeps_the_reason_and_deadline_that_it_does_not_say() -> None:
    at = world()
    at.handle(HostDrained(now_s=1.0, by=ALICE, host=N1, reason="new fans", deadline_s=600.0))
    drained = at.machine.host(N1)
    at.handle(HostDrained(now_s=2.0, by=UserName("bob"), host=N1))
    assert at.machine.host(N1) is drained
    assert at.outcome.facts == ()
    at.handle(HostDrained(now_s=3.0, by=UserName("bob"), host=N1, deadline_s=900.0))
    drain = at.machine.host(N1).drain
    assert (drain.by, drain.since_s, drain.reason, drain.deadline_s) == ("bob", 1.0, "new fans", 900.0)


def test_a_job_that_ran_unheard_for_longer_than_it_may_is_ended_as_soon_as_it_begins_again() -> None:
    at = world("submit alice a gpus=2 max_duration_s=100 on_partition=fence")
    at.do("report n1 1:0=running run_s=50 gpu_s=100 step=40 checkpoint_step=40 checkpoint_generation=1")
    at.do("leave n1")
    at.do("@70")
    at.do("tick")
    assert at.machine.job(JobId(1)).state is JobState.QUEUED
    told = "1:0=exited run_s=100.2 gpu_s=200.4 step=80 checkpoint_step=80 checkpoint_generation=2"
    at.do(f"host n1 V100:4 {told} signal=15")
    (wanted,) = at.wanted[N1].jobs
    assert (wanted.epoch, wanted.spec.max_duration_s) == (1, 100.0)
    assert 0 < wanted.time_limit_s < 0.1


def test_a_job_that_was_ended_unheard_for_its_time_limit_is_not_begun_again_however_often_it_may_be() -> None:
    at = world("submit alice a gpus=2 max_duration_s=100 on_partition=fence retry_max=2")
    at.do("report n1 1:0=running run_s=50 gpu_s=100 step=40")
    at.do("leave n1")
    at.do("@70")
    at.do("tick")
    at.do("host n1 V100:4 1:0=exited run_s=100.2 gpu_s=200.4 step=80 signal=15 why=time_limit")
    job = at.machine.job(JobId(1))
    assert (job.state, job.exit and job.exit.why, job.retries) == (JobState.FAILED, "time limit", 0)


@pytest.mark.parametrize("order", [("n1", "n2"), ("n2", "n1")])
@pytest.mark.parametrize("second", ["signal=15 why=ended_with_its_agent", "code=1"])
def test_a_gang_that_was_ended_with_its_agents_is_not_begun_anew_as_they_come_back(
    order: tuple[str, str], second: str
) -> None:
    """One after the other they do: of what the first says the others are away still."""
    at = world(
        "host n1 V100:1 peer=n1:1",
        "host n2 V100:1 peer=n2:1",
        "submit alice a nodes=2 retry_max=2",
        "report n1 1:0=running rendezvous=n1:9",
        "report n2 1:0=running",
        "leave n1",
        "leave n2",
        "restart",
    )
    said = {"n1": "signal=15 why=ended_with_its_agent", "n2": second}
    for host in order:
        at.do(f"host {host} V100:1 peer={host}:1 1:0=exited {said[host]}")
    row = at.machine.job(JobId(1))
    assert (row.state, row.retries) == (JobState.FAILED, 0)
    assert row.exit is not None
    assert row.exit.why == "ended with its agent"


@pytest.mark.parametrize("why", ["time limit", TRESPASSED])
@pytest.mark.parametrize("first", ["n1", "n2"])
def test_a_gang_whose_ranks_fail_as_another_part_is_ended_for_good_is_not_tried_again(
    first: str, why: str
) -> None:
    at = world(
        "host n1 V100:1 peer=n1:1",
        "host n2 V100:1 peer=n2:1",
        "submit alice a nodes=2 retry_max=2 max_duration_s=100",
        "report n1 1:0=running rendezvous=n1:9",
        "report n2 1:0=running",
    )
    ends = {
        "n1": f"report n1 1:0=exited run_s=100.02 signal=15 why={why.replace(' ', '_')}",
        "n2": "report n2 1:0=exited run_s=99.99 code=1",
    }
    at.do(ends.pop(first))
    at.do(*ends.values())
    row = at.machine.job(JobId(1))
    assert (row.state, row.retries, row.exit) == (JobState.FAILED, 0, Exit(signal=15, why=why))
    assert "retried" not in [fact.kind for fact in at.machine.story(JobId(1))]


@pytest.mark.parametrize("told", ["", "1:0=checkpointed step=40 checkpoint_step=40 checkpoint_generation=1"])
@pytest.mark.parametrize("before", ["", "1:0=running step=40 checkpoint_step=40 checkpoint_generation=1"])
def test_a_job_leaves_a_server_whose_gpus_were_replaced_by_those_of_another_model(
    before: str, told: str
) -> None:
    at = world("submit alice a gpus=2 gpu_types=V100")
    at.do(f"report n1 {before}")
    at.do("leave n1")
    at.do(f"host n1 A100:4 boot=b2 {told}")
    row = at.machine.job(JobId(1))
    assert (row.state, row.hosts, at.wanted[N1].jobs) == (JobState.QUEUED, (), ())
    at.do("host n2 V100:4")
    assert at.machine.job(JobId(1)).hosts == ("n2",)


def test_a_job_that_stays_on_a_server_with_gpus_of_another_model_is_charged_for_those() -> None:
    at = world("submit alice a gpus=2")
    at.do("report n1 1:0=running gpu_s=10 step=40 checkpoint_step=40 checkpoint_generation=1")
    at.do("host n1 A100:4 boot=b2")
    at.do("report n1 1:1=running gpu_s=5 step=40")
    assert at.machine.job(JobId(1)).gpu_s_by_model == {"V100": 10.0, "A100": 5.0}


def test_one_that_ends_before_anybody_heard_that_it_runs_began_as_long_ago_as_it_ran() -> None:
    at = world("host n1 V100:1", "submit alice a", "tick", "@2", "report n1 1:0=exited code=0 run_s=0.5")
    row = at.machine.job(JobId(1))
    assert row.state is JobState.SUCCEEDED
    assert row.ended_s is not None
    assert row.first_run_s == row.ended_s - 0.5


def back_with(*ends: str, one_was_here: bool = False, boot: str = "b") -> World:
    """A gang on n1 and n2, which were away as it ended, and are back one after the other; n2 with that boot id."""
    at = world("host n1 V100:4 boot=b", "host n2 V100:4 boot=b", "submit alice a nodes=2")
    for name, rank in (("n1", 0), ("n2", 1)):
        at.do(f"report {name} 1:0=running step=5 nodes=2 rank={rank}")
    at.do("leave n2")
    if not one_was_here:
        at.do("leave n1")
    first, second = (f"1:0=exited step=9 nodes=2 {end}" for end in ends)
    at.do(f"report n1 {first}" if one_was_here else f"host n1 V100:4 boot=b {first}")
    at.do(f"host n2 V100:4 boot={boot} {second}")
    return at


def test_a_gang_that_failed_by_itself_while_its_servers_were_cut_off_has_failed_with_its_exit_code() -> None:
    at = back_with("code=3 in_touch=yes", "code=1 in_touch=yes")
    row = at.machine.job(JobId(1))
    assert (row.state, row.exit) == (JobState.FAILED, Exit(code=3))
    assert at.wanted[N1].jobs == ()


@pytest.mark.parametrize(
    ("ends", "how"),
    [
        (("code=3 in_touch=no", "code=1 in_touch=yes"), {}),
        (("code=3 in_touch=yes", "signal=15 in_touch=yes"), {}),
        (("code=3 in_touch=yes", "code=1 in_touch=yes"), {"boot": "c"}),
        (("code=3 in_touch=yes", "code=1 in_touch=yes"), {"one_was_here": True}),
    ],
    ids=["cut off from one another", "ended by somebody", "rebooted", "one was here"],
)
def test_a_gang_whose_servers_may_be_to_blame_for_its_end_begins_once_more(
    ends: tuple[str, str], how: dict[str, Any]
) -> None:
    row = back_with(*ends, **how).machine.job(JobId(1))
    assert (row.state.ended, row.epoch) == (False, 1)


def test_what_is_told_of_lost_work_adds_up_to_all_of_it_where_a_checkpoint_could_not_be_fetched() -> None:
    at = World(plain_policy(), Settings(quantum_s=20.0, settle_s=0.0))
    at.do("host n1 V100:4")
    at.do("user alice")
    at.do("submit alice a checkpoint_dir=/shared/alice")
    at.do("report n1 1:0=running step=10 gpu_s=10 checkpoint_step=9 checkpoint_generation=3")
    at.do("leave n1")
    at.do("host n2 V100:2")
    at.do("remove n1 force")
    at.do(
        "report n2 1:1=exited why=cannot_fetch_checkpoint_3_in_the_folder_that_its_user_named:_No_such_file"
    )
    told = [fact.data["lost_gpu_s"] for fact in at.machine.story(JobId(1)) if fact.kind == "lost"]
    assert told == [1.0, 9.0]
    assert at.machine.job(JobId(1)).past_lost_gpu_s == 10.0


def test_who_tells_where_a_job_is_tells_which_incarnation_it_is() -> None:
    at = world(
        "host n1 V100:1", "user alice", "submit alice j gpus=1", "report n1 1:0=running step=3 gpu_s=1 gpus=GPU-n1-0 can_checkpoint=yes",
        "host n1 V100:1 boot=b2", "report n1 1:1=running step=3 gpu_s=1 gpus=GPU-n1-0 can_checkpoint=yes", "host n2 V100:1", "drain n1",
        "report n1 1:1=checkpointed step=5 gpu_s=9 checkpoint_step=5 checkpoint_generation=0",
        "report n2 1:2=running step=5 gpu_s=1 gpus=GPU-n2-0",
    )  # fmt: skip
    story = at.machine.story(JobId(1))
    told = [(fact.kind, fact.host, fact.data["epoch"]) for fact in story if "epoch" in fact.data]
    assert told == [
        ("placed", "n1", 0),
        ("running", "n1", 0),
        ("placed", "n1", 1),
        ("running", "n1", 1),
        ("suspended", "n1", 1),
        ("left", "n2", 2),
        ("running", "n2", 2),
    ]

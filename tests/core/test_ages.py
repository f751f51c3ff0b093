"""What a job's age is made of."""

import pytest

from hs_core.ages import Ages, Stage
from hs_core.cluster import Settings
from hs_core.cluster.harness import World, plain_policy
from hs_core.model import Job, JobState
from hs_core.names import JobId


def world() -> World:
    at = World(plain_policy(), Settings(quantum_s=10.0, settle_s=0.0))
    at.do("user alice")
    at.do("host n1 V100:4")
    return at


def job(at: World) -> Job:
    return at.machine.job(JobId(1))


def test_waiting_coming_up_running_and_being_paused_add_up_to_a_jobs_age() -> None:
    at = world()
    at.do("submit alice a gpus=4")
    for after_s, said in (
        (3.0, "report n1 1:0=starting"),
        (7.0, "report n1 1:0=running"),
        (17.0, "report n1 1:0=held"),
        (20.0, "pause alice 1"),
        (50.0, "unpause alice 1"),
        (52.0, "report n1 1:0=running"),
    ):
        at.now_s = after_s
        at.do(said)
    ages = job(at).ages_at(60.0)
    assert ages.spent_s == {
        Stage.WAITING: 3.0 + 2.0,
        Stage.STARTING: 7.0,  # from when it has a home
        Stage.RUNNING: 10.0 + 8.0,
        Stage.PAUSED: 30.0,
    }
    assert sum(ages.spent_s.values()) == 60.0 - job(at).arrival_s
    at.now_s = 70.0
    at.do("report n1 1:0=exited exit=0")
    assert job(at).ended_s == 70.0
    ended = job(at).ages_at(1e6)
    assert ended == job(at).ages_at(70.0), "nothing is added after its end"
    assert sum(ended.spent_s.values()) == 70.0
    assert ended.spent_s[Stage.RUNNING] == 28.0


def test_a_job_that_leaves_for_another_server_spends_that_time_leaving() -> None:
    at = world()
    at.do("submit alice a gpus=4")
    at.do("report n1 1:0=running step=5 can_checkpoint=yes")
    at.do("host n2 V100:4")
    at.now_s = 10.0
    at.do("drain n1")
    at.now_s = 12.0
    at.do("report n1 1:0=held step=6 can_checkpoint=yes")
    assert job(at).move is not None
    at.now_s = 15.0
    at.do("report n1 1:0=checkpointed step=6 checkpoint_step=6 checkpoint_generation=0")
    assert job(at).hosts == ("n2",)
    spent_s = job(at).ages_at(20.0).spent_s
    assert (spent_s[Stage.RUNNING], spent_s[Stage.LEAVING]) == (12.0, 3.0)
    assert sum(spent_s.values()) == 20.0


@pytest.mark.parametrize("ahead_s", [0.0, 1e6, -40.0], ids=["alike", "ahead", "behind"])
def test_what_a_server_tells_late_counts_from_when_it_happened_whatever_its_clock_shows(
    ahead_s: float,
) -> None:
    at = world()
    at.ahead_s = ahead_s
    at.do("submit alice a gpus=4")
    at.now_s = 50.0
    at.do(f"report n1 1:0=running since_s={45.0 + ahead_s}")
    assert job(at).first_run_s == 45.0
    at.do("leave n1")
    at.now_s = 700.0
    at.do(f"host n1 V100:4 1:0=exited code=0 since_s={95.0 + ahead_s}")
    assert job(at).ended_s == 95.0
    assert job(at).ages_at(800.0).spent_s == {Stage.STARTING: 45.0, Stage.RUNNING: 50.0}


@pytest.mark.parametrize("since_s", [1e9, 701.0, -5.0, 0.0], ids=["later", "soon", "never", "unsaid"])
def test_what_cannot_be_counts_from_when_it_was_heard(since_s: float) -> None:
    at = world()
    at.do("submit alice a gpus=4")
    at.now_s = 50.0
    at.do("report n1 1:0=running")
    at.now_s = 700.0
    at.do(f"report n1 1:0=exited code=0 since_s={since_s}")
    assert job(at).ended_s == 700.0
    assert job(at).ages_at(800.0).spent_s == {Stage.STARTING: 50.0, Stage.RUNNING: 650.0}


def test_nothing_is_earlier_than_what_was_known_before() -> None:
    at = world()
    at.do("submit alice a gpus=4")
    at.now_s = 50.0
    at.do("report n1 1:0=running")
    at.now_s = 60.0
    at.do("report n1 1:0=exited code=0 since_s=1")
    assert job(at).ended_s == 50.0
    assert job(at).ages_at(60.0).spent_s == {Stage.STARTING: 50.0}


def test_a_clock_that_was_set_back_adds_nothing() -> None:
    ages = Ages(until_s=10.0, spent_s={Stage.WAITING: 10.0})
    assert ages.after(Stage.RUNNING, 5.0) is ages
    assert ages.after(Stage.RUNNING, 12.0).spent_s == {Stage.WAITING: 10.0, Stage.RUNNING: 2.0}


def test_a_job_about_which_nothing_has_changed_has_waited_since_it_came() -> None:
    at = World(plain_policy(), Settings(quantum_s=10.0, settle_s=0.0))
    at.do("user alice")
    at.do("submit alice a gpus=4")
    assert job(at).ages_at(9.0).spent_s == {Stage.WAITING: 9.0}


def test_one_that_ended_well_after_it_was_given_up_ended_no_earlier_than_that() -> None:
    at = world()
    at.do("submit alice a gpus=4 on_partition=fence")
    at.now_s = 20.0
    at.do("report n1 1:0=running step=5 run_s=10 gpu_s=40")
    at.do("leave n1")
    at.now_s = 90.0
    at.do("tick")
    given_up_s = job(at).known_until_s
    assert given_up_s > 20.0
    at.now_s = 300.0
    at.do("host n1 V100:4 1:0=exited code=0 step=40 run_s=40 gpu_s=160 since_s=85")
    assert job(at).state is JobState.SUCCEEDED
    assert job(at).ended_s == given_up_s


def test_one_that_ended_well_unheard_while_it_waited_again_ended_then() -> None:
    at = world()
    at.do("submit alice a gpus=4 on_partition=fence")
    at.now_s = 20.0
    at.do("report n1 1:0=running step=5 run_s=10 gpu_s=40")
    at.do("leave n1")
    at.now_s = 90.0
    at.do("tick")
    at.now_s = 300.0
    at.do("host n1 V100:4 1:0=exited code=0 step=40 run_s=40 gpu_s=160 since_s=120")
    assert job(at).ended_s == 120.0

"""A server that could not start a job is given no others for a while; what waits there goes elsewhere."""

from itertools import pairwise

import pytest
from starts import FAILS, N1, NO_FOLDER, ON_TWO, fails, kinds, world

from hs_core.cluster.harness import World
from hs_core.model import JobState
from hs_core.names import JobId
from hs_core.reports import CANNOT_START, LAUNCH_FAILED, NO_ROOM_FOR, NOT_AS_BEFORE


def test_it_is_said_and_who_waits_there_goes_elsewhere_at_once() -> None:
    here = world(ON_TWO)
    fails(here, 1)
    assert kinds(here) == ["cannot-start", "placed"]
    assert here.outcome.facts[0].text == "n1 cannot start job 1: No space left; for 20 s it is given no jobs"
    assert here.machine.job(JobId(1)).hosts == ("n2",)
    assert (
        here.machine.cannot_start(N1)
        == "could not start a job (No space left): it is given no others for a while"
    )


def test_a_process_that_is_up_there_stays() -> None:
    here = world(ON_TWO)
    here.do("report n1 1:0=running step=5 can_checkpoint=yes")
    here.do("submit ann second gpus=1")
    here.do("tick")
    where = here.machine.job(JobId(2)).hosts
    here.do(f"report {where[0]} 2:0=waiting {FAILS.format(1)}")
    for _ in range(3):
        here.do("tick")
    assert here.machine.job(JobId(1)).hosts == ("n1",)
    assert here.machine.job(JobId(1)).move is None


def test_who_says_that_a_checkpoint_is_larger_than_any_disk_keeps_nobody_else_away() -> None:
    here = world(f"{ON_TWO}user eve")
    why = f"checkpoint cannot be fetched from n2: {NO_ROOM_FOR}: it takes 9 bytes; 8 are free here"
    here.do(f"report n1 1:0=waiting start_fails=1 note={why.replace(' ', '_')}")
    assert here.outcome.facts[0].text.endswith("for 20 s it is given no jobs of ann")
    here.do("submit eve some gpus=2 count=2")
    here.do("tick")
    assert {here.machine.job(JobId(2)).hosts, here.machine.job(JobId(3)).hosts} >= {("n1",)}


def test_who_finds_its_folder_missing_there_goes_elsewhere_with_its_checkpoint_and_keeps_nobody_else_away() -> (
    None
):
    here = world(f"{ON_TWO}user eve")
    here.do("report n1 1:0=running step=5 can_checkpoint=yes")
    why = f"{CANNOT_START}: {NOT_AS_BEFORE}: cannot enter the working folder /x"
    saved = "step=5 checkpoint_step=5 checkpoint_generation=0"
    here.do(f"report n1 1:0=checkpointed {saved} start_fails=1 note={why.replace(' ', '_')}")
    (told,) = (fact.text for fact in here.outcome.facts if fact.kind == "cannot-start")
    assert told.endswith("for 20 s it is given no jobs of ann")
    row = here.machine.job(JobId(1))
    assert (row.hosts, row.step) == (("n2",), 5)
    here.do("submit eve some gpus=2")
    here.do("tick")
    assert here.machine.job(JobId(2)).hosts == ("n1",)


def never_started(more: str = "", host: str = "n2 V100:2") -> World:
    here = world(f"user ann\nhost n1 V100:2\nsubmit ann first gpus=1 {more}\n@1\ntick\nhost {host}")
    here.do(f"report n1 1:0=exited why={NO_FOLDER}")
    return here


def test_whose_folder_is_missing_on_the_first_server_is_tried_on_another_and_its_users_next_ones_go_there() -> (
    None
):
    """Else a server on which a file system is not mounted has all jobs fail, one after the other."""
    here = never_started()
    assert kinds(here) == ["cannot-start", "sent-elsewhere", "placed"]
    row = here.machine.job(JobId(1))
    assert (row.hosts, row.retries) == (("n2",), 0)
    here.do("report n2 1:1=running step=1")
    here.do("user eve")
    here.do("submit eve whole gpus=2")
    here.do("submit ann second gpus=1")
    here.do("tick")
    assert [here.machine.job(JobId(job)).hosts for job in (2, 3)] == [("n1",), ("n2",)]


def test_whose_folder_is_missing_on_two_servers_has_failed_and_neither_is_to_blame() -> None:
    here = never_started()
    here.do("host n3 V100:2")
    here.do(f"report n2 1:1=exited why={NO_FOLDER}")
    row = here.machine.job(JobId(1))
    assert row.state is JobState.FAILED
    assert row.exit is not None
    assert row.exit.why == f"{LAUNCH_FAILED}: cannot enter the working folder /x; so it was on n1"
    here.do("submit ann next gpus=2 count=3")
    here.do("tick")
    assert {here.machine.job(JobId(job)).hosts for job in (2, 3, 4)} == {("n1",), ("n2",), ("n3",)}


@pytest.mark.parametrize(
    ("more", "host"),
    [("gpu_types=V100", "n2 K80:2"), ("gpus=2", "n2 V100:1"), ("", "n1 V100:2")],
)
def test_whose_folder_is_missing_on_the_only_server_that_could_run_it_has_failed(
    more: str, host: str
) -> None:
    row = never_started(more, host).machine.job(JobId(1))
    assert row.state is JobState.FAILED
    assert row.exit is not None
    assert row.exit.why.endswith("/x")


def test_its_trials_come_less_and_less_often() -> None:
    here = world("user ann\nhost n1 V100:2\nsubmit ann first gpus=1\ntick")
    at_s, offered = 1.0, []
    here.now_s = at_s
    for times in range(1, 7):
        fails(here, times)
        assert kinds(here)[0] == "cannot-start"
        while here.machine.cannot_start(N1).endswith("a while"):
            assert here.wake_s is not None
            here.now_s = here.wake_s
            here.do("tick")
        offered.append(here.now_s)
    assert [b - a for a, b in pairwise([at_s, *offered])] == [20.0, 40.0, 80.0, 160.0, 200.0, 200.0]


def test_failures_of_others_meanwhile_do_not_put_the_trial_off() -> None:
    here = world("user ann\nhost n1 V100:2\nsubmit ann some gpus=1 count=2\n@1\ntick")
    fails(here, 1)
    fails(here, 1, job="2:0")
    assert kinds(here) == []


def test_one_start_that_succeeds_ends_it() -> None:
    here = world("user ann\nhost n1 V100:2\nsubmit ann first gpus=1\n@1\ntick")
    fails(here, 1)
    here.do("report n1 1:0=running step=1")
    assert "starts-again" in kinds(here)
    assert here.machine.cannot_start(N1) == ""


def test_a_job_that_ran_before_and_is_resumed_tells_nothing_of_starts() -> None:
    here = world(
        "user ann\nhost n1 V100:2\nsubmit ann some gpus=1 count=2\n@1\ntick\nreport n1 1:0=held step=1"
    )
    fails(here, 1, job="2:0")
    here.do("report n1 1:0=running step=1")
    assert here.machine.cannot_start(N1) != ""


@pytest.mark.parametrize("policy", ["fifo", "gandiva-fair", "las"])
def test_one_whose_checkpoint_is_there_takes_it_along(policy: str) -> None:
    here = world(ON_TWO, policy)
    here.do("report n1 1:0=running step=5 can_checkpoint=yes")
    saved = "step=5 checkpoint_step=5 checkpoint_generation=0"
    fails(here, 1, phase="checkpointed", more=saved)
    row = here.machine.job(JobId(1))
    assert (row.hosts, row.epoch, row.step) == (("n2",), 1, 5)
    assert row.stored is not None
    assert row.stored.hosts == ("n1",)


def test_one_that_is_not_to_migrate_waits_for_its_server() -> None:
    here = world(ON_TWO.replace("gpus=1", "gpus=1 migrate=never"))
    here.do("report n1 1:0=running step=5 can_checkpoint=yes")
    fails(here, 1, phase="checkpointed", more="step=5 checkpoint_step=5 checkpoint_generation=0")
    assert here.machine.job(JobId(1)).hosts == ("n1",)


def test_one_that_waits_with_its_checkpoint_on_its_only_server_leaves_its_turn_to_who_can() -> None:
    here = world("user ann\nuser bob\nhost n1 V100:2\nsubmit ann first gpus=2\n@1\ntick", "las")
    saved = "step=5 gpu_s=40 checkpoint_step=5 checkpoint_generation=0"
    here.play("report n1 1:0=running step=5 gpu_s=40\n@21\nsubmit bob second gpus=2\ntick\n@41\ntick")
    here.play(f"report n1 1:0=checkpointed {saved} 2:0=running step=1 gpu_s=40\n@61\ntick")
    other = "2:0=running step=1 gpu_s=90"
    here.play(f"report n1 1:0=checkpointed {saved} {FAILS.format(1)} {other}\n@81\ntick")
    assert here.wanted[N1].turn.gangs == (JobId(2),)
    here.play(f"report n1 1:0=checkpointed {saved} start_fails=1 {other}\n@101\ntick")
    assert here.wanted[N1].turn.gangs == (JobId(1),), "it is tried again there"


def test_why_says_what_is_wrong_of_those_that_were_not_tried_and_of_those_without_a_home() -> None:
    here = world("user ann\nhost n1 V100:1\nsubmit ann some gpus=1 count=2\n@1\ntick", "gandiva-fair")
    fails(here, 1)
    assert here.do("why 1")[0].startswith("host-trouble: it cannot be started on its server: No space left")
    assert here.do("why 2")[0].startswith(
        "host-trouble: it waits on n1, and n1 cannot start it (No space left)"
    )
    here.do("submit ann late gpus=1")
    assert here.do("why 3")[0].startswith(
        "host-trouble: every server that could hold it is unable to start it: n1 (No space left)"
    )


def test_an_administrator_who_lets_it_have_jobs_again_has_it_tried_at_once() -> None:
    here = world(ON_TWO)
    fails(here, 1)
    here.do("drain n1")
    here.do("undrain n1")
    assert here.machine.cannot_start(N1) == ""

"""Jobs that fail at their start where they were sent: what they need may be missing there, so they go on elsewhere."""

import pytest
from starts import FAILS, N1, NO_FOLDER, ON_TWO, fails, kinds, world

from hs_core.cluster.harness import World
from hs_core.model import JobState
from hs_core.names import HostName, JobId
from hs_core.reports import NOT_AS_BEFORE


def sent_to_another(code: int = 2, step: int = 5) -> World:
    """Job 1 trained on n1, was sent to n2, and has ended there at `step` before any process took its checkpoint up."""
    here = world(ON_TWO)
    here.do("report n1 1:0=running step=5 can_checkpoint=yes")
    fails(here, 1, phase="checkpointed", more="step=5 checkpoint_step=5 checkpoint_generation=0")
    assert here.machine.job(JobId(1)).hosts == ("n2",)
    here.do("host n3 V100:2")
    here.do(f"report n2 1:1=exited step={step} code={code}")
    return here


def test_who_fails_at_its_start_where_it_was_sent_has_not_failed_and_goes_on_elsewhere() -> None:
    """A library, or its script, is missing there: its user did not send it."""
    here = sent_to_another()
    assert kinds(here) == ["cannot-start", "sent-elsewhere", "placed"]
    row = here.machine.job(JobId(1))
    assert (row.hosts, row.epoch, row.step, row.retries) == (("n3",), 2, 5, 0)


def test_who_fails_so_again_and_again_has_failed() -> None:
    here = sent_to_another()
    here.do("drain n1")  # else it would be back where it trained
    for _ in range(2):
        row = here.machine.job(JobId(1))
        assert row.state is not JobState.FAILED
        here.do(f"report {row.hosts[0]} 1:{row.epoch}=exited step=5 code=2")
        here.play("@1000\ntick")
    row = here.machine.job(JobId(1))
    assert row.state is JobState.FAILED
    assert row.exit is not None
    assert row.exit.code == 2


@pytest.mark.parametrize(("code", "step", "state"), [(2, 6, JobState.FAILED), (0, 5, JobState.SUCCEEDED)])
def test_who_has_trained_where_it_was_sent_or_ends_well_there_has_ended(
    code: int, step: int, state: JobState
) -> None:
    assert sent_to_another(code, step).machine.job(JobId(1)).state is state


@pytest.mark.parametrize(("step", "elsewhere"), [(3, True), (2, False)], ids=["trains", "does-not"])
def test_who_found_an_older_checkpoint_where_it_was_sent_and_trained_from_that_may_fail_so_anew(
    step: int, elsewhere: bool
) -> None:
    """It has not come to where it was to go on, and trains all the same."""
    here = sent_to_another()
    here.do("drain n1")
    row = here.machine.job(JobId(1))
    here.do(f"report {row.hosts[0]} 1:{row.epoch}=exited step=5 code=2")  # the second time
    here.play("@1000\ntick")
    row = here.machine.job(JobId(1))
    there = f"report {row.hosts[0]} 1:{row.epoch}"
    fell = "began_step=2 fallbacks=1 fallback_why=torn checkpoint_step=2 checkpoint_generation=0 can_checkpoint=yes"
    here.do(f"{there}=running step={step} {fell}")
    left = f"step={step} checkpoint_step={step} checkpoint_generation=1 began_step=2 fallbacks=1 fallback_why=torn"
    here.do(f"{there}=checkpointed {left} {FAILS.format(1)}")
    here.play("@2000\ntick")
    row = here.machine.job(JobId(1))
    assert row.hosts
    here.do(f"report {row.hosts[0]} 1:{row.epoch}=exited step={step} code=2")
    assert (here.machine.job(JobId(1)).state is not JobState.FAILED) == elsewhere


GANG = """
    user ann
    host n1 V100:2
    host n2 V100:2
    submit ann big gpus=2 nodes=2 {}
    @1
    report n1 1:0=running step=5 can_checkpoint=yes rendezvous=n1:1
    report n2 1:0=running step=5 can_checkpoint=yes
"""
SAVED = "step=5 checkpoint_step=5 checkpoint_generation=0"


def a_gang_sent(*, to: str = "n3 n4", stays: str = "", more: str = "") -> World:
    """Job 1 trained on n1 and n2, and has left a checkpoint of step 5 on them; it is to go on on servers that were not there."""
    here = world(GANG.format(more))
    for name in (n for n in ("n1", "n2") if n not in stays):
        here.do(f"drain {name}")
    for name in to.split():
        here.do(f"host {name} V100:2")
    here.do("tick")
    here.do(f"report n1 1:0=checkpointed {SAVED}")
    here.do(f"report n2 1:0=checkpointed {SAVED}")
    row = here.machine.job(JobId(1))
    assert (row.epoch, {*to.split()} <= {*row.hosts}) == (1, True), row
    return here


def ended(here: World, how: dict[str, str]) -> None:
    row = here.machine.job(JobId(1))
    for name, said in how.items():
        here.do(f"report {name} 1:{row.epoch}=exited {SAVED} {said}")


def test_a_gang_that_fails_at_its_start_where_it_was_sent_goes_on_from_its_checkpoint_elsewhere() -> None:
    """Which of its servers lacks something is told by which part ended first."""
    here = a_gang_sent()
    here.do("host n5 V100:2")
    ended(here, {"n4": "code=2", "n3": "code=1"})
    assert kinds(here) == ["cannot-start", "sent-elsewhere", "placed"]
    assert [fact.text for fact in here.outcome.facts][:2] == [
        f"n4 cannot start job 1: {NOT_AS_BEFORE}: exit code 2; for 20 s it is given no jobs of ann",
        "it failed on n4 where it was sent before it did a step (exit code 2): it goes on from step 5 elsewhere",
    ]
    row = here.machine.job(JobId(1))
    assert ({*row.hosts}, row.epoch, row.step, row.retries) == ({"n3", "n5"}, 2, 5, 0)
    assert row.stored is not None
    assert row.stored.hosts == ("n1", "n2")


def test_of_a_gang_whose_server_is_new_in_part_that_one_lacks_something_whichever_part_ended_first() -> None:
    here = a_gang_sent(to="n3", stays="n1")
    here.do("host n4 V100:2")
    ended(here, {"n1": "code=1", "n3": "code=2"})
    assert here.machine.cannot_start(HostName("n3")) != ""
    assert here.machine.cannot_start(N1) == ""
    assert {*here.machine.job(JobId(1)).hosts} == {"n1", "n4"}


def test_a_gang_that_fails_so_again_and_again_has_failed_and_it_is_said_where() -> None:
    here = a_gang_sent()
    for name in ("n5", "n6", "n7", "n8"):
        here.do(f"host {name} V100:2")
    for _ in range(3):
        row = here.machine.job(JobId(1))
        assert row.state is not JobState.FAILED
        ended(here, dict.fromkeys(row.hosts, "code=2"))
    row = here.machine.job(JobId(1))
    assert (row.state, row.epoch) == (JobState.FAILED, 3)
    assert row.exit is not None
    assert row.exit.code == 2
    assert row.exit.why.startswith("at its start, as on n3, ")


def test_a_gang_that_has_trained_where_it_was_sent_and_ends_badly_has_failed() -> None:
    here = a_gang_sent()
    row = here.machine.job(JobId(1))
    for name in row.hosts:
        here.do(f"report {name} 1:1=running step=6 began_step=5 checkpoint_step=5 checkpoint_generation=0")
    for name in row.hosts:
        here.do(
            f"report {name} 1:1=exited step=6 began_step=5 checkpoint_step=5 checkpoint_generation=0 code=2"
        )
    assert here.machine.job(JobId(1)).state is JobState.FAILED


def test_a_gang_of_which_nothing_could_be_started_on_one_server_is_tried_on_others_once() -> None:
    here = world("user ann\nhost n1 V100:2\nhost n2 V100:2\nsubmit ann big gpus=2 nodes=2\nhost n3 V100:2")
    here.do("report n1 1:0=starting rendezvous=n1:1")
    here.do(f"report n2 1:0=exited why={NO_FOLDER}")
    here.do("report n1 1:0=exited why=cancelled")
    row = here.machine.job(JobId(1))
    assert ({*row.hosts}, row.epoch, row.retries) == ({"n1", "n3"}, 1, 0)
    here.do("host n4 V100:2")
    for name in row.hosts:
        here.do(f"report {name} 1:1=exited why={NO_FOLDER}")
    assert here.machine.job(JobId(1)).state is JobState.FAILED


FENCED = """
    user ann
    host n1 V100:2
    submit ann first gpus=1 on_partition=fence checkpoint_dir=/shared/ann
    @1
    report n1 1:0=running step=9 {}
    @2
    leave n1
    @72
    tick
    host n2 V100:2
    host n3 V100:2
"""


@pytest.mark.parametrize(
    ("known", "found"),
    [
        ("checkpoint_step=5 checkpoint_generation=0", 7),
        ("checkpoint_step=5 checkpoint_generation=0", 5),
        ("", 7),
        ("", 0),
    ],
)
def test_who_goes_on_from_its_folder_and_fails_at_its_start_goes_on_from_there_elsewhere(
    known: str, found: int
) -> None:
    """Also from what nobody was heard to have written."""
    here = world(FENCED.format(known))
    row = here.machine.job(JobId(1))
    (there,) = row.hosts
    has = f"step={found} checkpoint_step={found} checkpoint_generation=1" if found else ""
    here.do(f"report {there} 1:{row.epoch}=starting {has}")
    here.do(f"report {there} 1:{row.epoch}=exited {has} code=2")
    assert "sent-elsewhere" in kinds(here)
    again = here.machine.job(JobId(1))
    assert again.hosts
    assert again.hosts != (there,)
    assert again.stored is not None
    assert again.stored.in_folder, "it is looked for again: what was found is no server's"
    assert (again.epoch, again.stored.step) == (row.epoch + 1, 5 if known else 0)


@pytest.mark.parametrize("newer", [True, False])
def test_of_whom_a_newer_checkpoint_is_found_than_as_it_failed_has_trained_since_and_may_fail_so_anew(
    newer: bool,
) -> None:
    """It trained on a server that was not heard: else so many starts that fail are its own fault."""
    here = world(FENCED.format("checkpoint_step=5 checkpoint_generation=0"))
    here.play("".join(f"host n{n} V100:2\n" for n in range(4, 9)))
    found = [5, 7, 7, 7] if newer else [5, 5, 5]
    for step in found:
        row = here.machine.job(JobId(1))
        assert row.state is not JobState.FAILED
        assert row.hosts
        has = f"step={step} checkpoint_step={step} checkpoint_generation=1"
        here.do(f"report {row.hosts[0]} 1:{row.epoch}=starting {has}")
        here.do(f"report {row.hosts[0]} 1:{row.epoch}=exited {has} code=2")
        here.play(f"@{1000 * (row.epoch + 1)}\ntick")
    assert here.machine.job(JobId(1)).state is JobState.FAILED


def test_who_computes_from_its_launch_on_and_found_a_newer_one_in_its_folder_begins_there() -> None:
    """Before its process has said that it took it up."""
    here = world(FENCED.format("checkpoint_step=5 checkpoint_generation=0"))
    row = here.machine.job(JobId(1))
    has = "step=7 checkpoint_step=7 checkpoint_generation=1"
    here.do(f"report {row.hosts[0]} 1:{row.epoch}=running {has}")
    assert here.machine.job(JobId(1)).stored is None
    here.do(f"report {row.hosts[0]} 1:{row.epoch}=exited {has} code=2")
    assert "sent-elsewhere" in kinds(here)


def test_of_whom_no_checkpoint_was_heard_and_of_whom_nothing_can_be_started_is_looked_for_elsewhere_once() -> (
    None
):
    here = world(FENCED.format(""))
    row = here.machine.job(JobId(1))
    (there,) = row.hosts
    here.do(f"report {there} 1:{row.epoch}=exited why={NO_FOLDER}")
    again = here.machine.job(JobId(1))
    assert again.hosts
    assert again.hosts != (there,)
    assert again.stored is not None
    assert again.stored.is_unknown
    here.do(f"report {again.hosts[0]} 1:{again.epoch}=exited why={NO_FOLDER}")
    assert here.machine.job(JobId(1)).state is JobState.FAILED


def test_who_did_a_step_beyond_what_was_found_in_its_folder_has_failed() -> None:
    here = world(FENCED.format("checkpoint_step=5 checkpoint_generation=0"))
    row = here.machine.job(JobId(1))
    said = f"report {row.hosts[0]} 1:{row.epoch}=exited step=8 checkpoint_step=7 checkpoint_generation=1"
    here.do(f"{said} began_step=7 code=2")
    assert here.machine.job(JobId(1)).state is JobState.FAILED


def test_whose_folder_is_not_seen_where_it_was_sent_is_looked_for_elsewhere_before_it_begins_afresh() -> None:
    here = world(FENCED.format("checkpoint_step=5 checkpoint_generation=0"))
    why = "why=cannot_fetch_checkpoint_0_in_the_folder_that_its_user_named:_No_such_file;_tried_5_times"
    seen = []
    for _ in range(2):
        row = here.machine.job(JobId(1))
        assert row.stored is not None
        assert row.stored.step == 5
        seen += row.hosts
        here.do(f"report {row.hosts[0]} 1:{row.epoch}=exited {why}")
    assert sorted(seen) == ["n2", "n3"]
    row = here.machine.job(JobId(1))
    assert row.stored is not None
    assert row.stored.is_unknown, "neither has seen it"


@pytest.mark.parametrize("restarts", [False, True])
def test_who_came_up_where_it_was_sent_and_fails_in_its_first_step_goes_on_elsewhere(restarts: bool) -> None:
    """GPUs there have less memory, say, or no compiler is installed."""
    here = world(ON_TWO)
    here.do("report n1 1:0=running step=5 can_checkpoint=yes")
    fails(here, 1, phase="checkpointed", more=SAVED)
    here.do("host n3 V100:2")
    at_five = "step=5 began_step=5 checkpoint_step=5 checkpoint_generation=0"
    for phase in ("starting", "held", "running"):
        here.do(f"report n2 1:1={phase} {at_five}")
    assert here.machine.job(JobId(1)).stored is None, "n2 has it now"
    if restarts:
        here.play(f"restart\nhost n2 V100:2 1:1=running {at_five}\nhost n1 V100:2\nhost n3 V100:2\ndrain n1")
    here.do(f"report n2 1:1=exited {at_five} code=1")
    row = here.machine.job(JobId(1))
    assert (row.hosts, row.epoch, row.step) == (("n3",), 2, 5)
    assert row.stored is not None
    assert row.stored.hosts == ("n2",)


@pytest.mark.parametrize("said", ["checkpoint_step=5 checkpoint_generation=1", "run_s=4000"])
def test_who_counts_no_steps_and_has_written_or_run_for_long_where_it_was_sent_has_failed(said: str) -> None:
    here = world(ON_TWO)
    here.do("report n1 1:0=running step=5 can_checkpoint=yes")
    fails(here, 1, phase="checkpointed", more=SAVED)
    here.do("report n2 1:1=running step=5 began_step=5 checkpoint_step=5 checkpoint_generation=0")
    here.do(f"report n2 1:1=exited step=5 began_step=5 {said} code=1")
    assert here.machine.job(JobId(1)).state is JobState.FAILED


def test_who_failed_at_its_start_somewhere_is_not_sent_there_again_as_long_as_others_could_have_it() -> None:
    here = world(ON_TWO)
    here.do("report n1 1:0=running step=5 can_checkpoint=yes")
    fails(here, 1, phase="checkpointed", more=SAVED)
    here.play("user eve\n@30\ntick\nsubmit eve all gpus=2")
    assert here.machine.job(JobId(2)).hosts == ("n1",)
    here.do("report n1 2:0=running step=1")
    here.do(f"report n2 1:1=exited {SAVED} code=2")
    here.play("@500\ntick")
    assert here.machine.job(JobId(1)).hosts == (), "n1 is full, and n2 is idle"
    assert "at its start it failed on n2 (exit code 2)" in here.do("why 1")[0]
    here.play("drain n1\n@520\ntick")
    assert here.machine.job(JobId(1)).hosts == ("n2",), "no other is left"


def test_a_server_on_which_a_job_failed_at_its_start_is_given_it_again_once_it_was_undrained() -> None:
    here = world(ON_TWO)
    here.do("report n1 1:0=running step=5 can_checkpoint=yes")
    fails(here, 1, phase="checkpointed", more=SAVED)
    here.play("user eve\n@30\ntick\nsubmit eve all gpus=2")
    here.do("report n1 2:0=running step=1")
    here.do(f"report n2 1:1=exited {SAVED} code=2")
    here.play("@500\ntick\ndrain n2\n@520\ntick")
    assert here.machine.job(JobId(1)).hosts == ()
    here.play("undrain n2\n@540\ntick")
    assert here.machine.job(JobId(1)).hosts == ("n2",), "what was missing is there now, most likely"


def test_how_often_a_job_was_given_another_home_before_it_had_started_is_no_failure() -> None:
    here = world(ON_TWO)
    here.do("report n1 1:0=running step=5 can_checkpoint=yes")
    fails(here, 1, phase="checkpointed", more=SAVED)
    for number in range(3, 7):
        here.do(f"drain n{number - 1}")
        here.do(f"host n{number} V100:2")
        here.do("tick")
    row = here.machine.job(JobId(1))
    assert row.epoch > 3
    here.do("host n9 V100:2")
    here.do(f"report {row.hosts[0]} 1:{row.epoch}=exited step=5 code=2")
    assert here.machine.job(JobId(1)).state is not JobState.FAILED


def test_whose_server_was_cut_off_as_it_failed_at_its_start_there_has_not_failed_when_that_is_back() -> None:
    here = world(ON_TWO.replace("gpus=1", "gpus=1 on_partition=fence"))
    here.do("report n1 1:0=running step=5 can_checkpoint=yes")
    fails(here, 1, phase="checkpointed", more=SAVED)
    here.play("drain n1\n@20\nleave n2\n@90\ntick")
    assert here.machine.job(JobId(1)).hosts == ()
    here.do(f"host n2 V100:2 1:1=exited {SAVED} code=2")
    row = here.machine.job(JobId(1))
    assert (row.state, row.step) == (JobState.QUEUED, 5)
    assert here.do("why 1")[0].count("exit code 2") >= 1

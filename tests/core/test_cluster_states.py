"""The table of a job's states, and the page that is drawn from it."""

from dataclasses import replace
from pathlib import Path

import pytest

from hs_core.cluster import TRANSITIONS, Happening, states
from hs_core.cluster.harness import a_spec
from hs_core.errors import BrokenError
from hs_core.model import ENDED_STATES, Job, JobState, Stored
from hs_core.names import HostName, JobId, UserName
from hs_core.reports import JobReport, Phase

PAGE = Path(__file__).parents[2] / "docs" / "states.md"
HEAD = """# States of a job

Drawn from `TRANSITIONS` in `core/hs_core/cluster/states.py` (`pytest tests/core/test_cluster_states.py --rewrite`). What is not here
cannot happen.

"""


def test_the_page_shows_the_table(request: pytest.FixtureRequest) -> None:
    drawn = HEAD + states.drawn()
    if request.config.getoption("--rewrite", default=False):
        PAGE.write_text(drawn, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == drawn


def test_every_state_has_a_row_and_can_be_reached() -> None:
    assert set(TRANSITIONS) == set(JobState)
    reached = {JobState.QUEUED} | {after for row in TRANSITIONS.values() for after in row.values()}
    assert reached == set(JobState)


def test_nothing_happens_to_what_has_ended() -> None:
    assert all(not TRANSITIONS[state] for state in ENDED_STATES)


def test_every_job_that_has_not_ended_can_be_ended() -> None:
    for state in set(JobState) - ENDED_STATES:
        seen, todo = {state}, [state]
        while todo:
            following = set(TRANSITIONS[todo.pop()].values()) - seen
            seen |= following
            todo += following
        assert JobState.CANCELLED in seen


def test_every_phase_says_what_it_comes_to() -> None:
    assert set(states.HAPPENING_OF_PHASE) == set(Phase)


def test_what_is_not_in_the_table_cannot_happen() -> None:
    job = Job(id=JobId(1), user=UserName("alice"), spec=a_spec(), arrival_s=0.0)
    with pytest.raises(BrokenError, match="job 1, queued, cannot be ran"):
        states.after(job, Happening.RAN)


def test_a_job_that_has_not_taken_up_its_checkpoint_is_as_far_as_that() -> None:
    """Policies that go by what is left of a job put another before it, or back, with every word of its servers otherwise."""
    home = (HostName("n1"),)
    stored = Stored(hosts=(HostName("n0"),), epoch=0, generation=3, step=282)
    queued = Job(id=JobId(1), user=UserName("alice"), spec=a_spec(), arrival_s=0.0, epoch=1, stored=stored)
    placed = replace(queued, hosts=home, gpu_models=("V100",))

    def said(phase: Phase, step: int) -> Job:
        report = JobReport(job=JobId(1), epoch=1, phase=phase, step=step)
        return replace(placed, reports={home[0]: report})

    assert queued.step == placed.step == 282
    assert said(Phase.WAITING, 0).step == said(Phase.STARTING, 0).step == 282
    # Its turn may come before it has.
    assert said(Phase.RUNNING, 0).step == said(Phase.HELD, 0).step == 282
    assert said(Phase.RUNNING, 290).step == 290
    # One that is torn is dropped.
    assert replace(said(Phase.RUNNING, 40), stored=None).step == 40

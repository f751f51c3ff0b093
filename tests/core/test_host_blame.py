"""Who is ended for what it says, where a host's mind breaks by it."""

import pytest
from fakejob import Ways
from hostsim import HostSim

from hs_core.events.host import GpusSeen, JobCondemned, JobProgressed, Woke
from hs_core.host.blame import (
    FORGOTTEN_S,
    MOST_ENDED,
    MOST_TRIES,
    RETRY_S,
    Break,
    Incarnation,
    LawError,
    is_tried_first,
    stands_until_s,
    suspects,
    to_end,
    unsolved,
)
from hs_core.names import JobId
from hs_core.reports import BROKE_AGENT, FINAL, Phase

A, B = (JobId(1), 1), (JobId(2), 1)


def broke(*who: Incarnation, at_s: float = 0.0) -> Break:
    return Break(at_s=at_s, suspects=who, why="a law")


@pytest.mark.parametrize(
    ("breaks", "ends"),
    [
        ([broke(A)], None),
        ([broke(A), broke(A)], A),
        ([broke(A), broke(B)], None),
        ([broke(A), broke(A), broke()], None),
        ([broke(A, B), broke(B, A)], B),  # the one that was heard of last
        ([broke(A, B), broke(B)], B),
        ([broke(A, at_s=-FORGOTTEN_S), broke(A)], None),
    ],
)
def test_who_is_named_by_two_breaks_in_a_row_is_ended(breaks: list[Break], ends: Incarnation | None) -> None:
    assert to_end(breaks, (), 0.0) == ends


def test_where_ending_one_did_not_help_the_other_that_is_named_is_ended() -> None:
    assert to_end([broke(A, B), broke(A, B)], [A], 0.0) == B
    assert to_end([broke(A), broke(A)], [A], 0.0) is None


def test_where_ending_several_did_not_help_nobody_else_is_ended() -> None:
    ended = [(JobId(10 + n), 1) for n in range(MOST_ENDED)]
    assert to_end([broke(A), broke(A)], ended[1:], 0.0) == A
    assert to_end([broke(A), broke(A)], ended, 0.0) is None


@pytest.mark.parametrize(
    ("breaks", "ended_s", "found"),
    [
        ([broke()], [], False),
        ([broke(), broke()], [], True),
        ([broke(A), broke(B)], [], True),
        ([broke(A, at_s=-9.0), broke(A, at_s=-8.0), broke()], [-7.0], False),
        ([broke(A, at_s=-9.0), broke(A, at_s=-8.0), broke(), broke()], [-7.0], True),
        ([broke(at_s=-FORGOTTEN_S), broke()], [], False),
    ],
)
def test_what_comes_from_elsewhere_is_tried_first_where_breaks_follow_one_another_and_nobody_is_ended(
    breaks: list[Break], ended_s: list[float], found: bool
) -> None:
    fails = unsolved(breaks, ended_s, 0.0)
    word = JobProgressed(now_s=0.0, job=A[0], epoch=A[1], step=1, steps_per_s=1.0, device_memory_bytes=1)
    assert is_tried_first(GpusSeen(now_s=0.0, gpus=()), fails) is found
    assert not is_tried_first(word, fails)
    assert not is_tried_first(Woke(now_s=0.0), fails)


def test_a_mind_that_breaks_by_itself_stands_still_before_each_further_try() -> None:
    fails = unsolved([broke(at_s=float(n)) for n in range(MOST_TRIES)], [], MOST_TRIES)
    assert stands_until_s(fails) == MOST_TRIES - 1 + RETRY_S
    assert stands_until_s(fails[1:]) < 0.0


def test_who_was_heard_of_is_suspected_before_those_of_whom_the_law_does_not_hold() -> None:
    word = JobProgressed(now_s=0.0, job=A[0], epoch=A[1], step=1, steps_per_s=1.0, device_memory_bytes=1)
    assert suspects(word, LawError("x", [B])) == (A, B)
    assert suspects(word, KeyError("x")) == (A,)
    assert suspects(Woke(now_s=0.0), LawError("x", [A, B])) == (B, A)
    assert suspects(Woke(now_s=0.0), KeyError("x")) == ()
    assert suspects(None, KeyError("x")) == ()


def test_a_law_that_does_not_hold_names_its_jobs() -> None:
    sim = HostSim(2)
    ids = [sim.job(n) for n in (1, 2)]
    sim.send()
    sim.quanta(1.5)
    jobs = sim.machine._board.jobs
    jobs[ids[1]].free(sim.now_s)
    with pytest.raises(LawError, match=r"job 2 \(running\) runs uncharged") as told:
        sim.machine.check()
    assert told.value.jobs == (B,)


@pytest.mark.parametrize("at_s", [0.0, 1.0, 30.0, 90.0])
def test_one_that_is_condemned_ends_with_the_reason_and_is_not_tried_again(at_s: float) -> None:
    """Amid its start, in its turn, between two of them."""
    sim = HostSim(1)
    bad, other = sim.job(1), sim.job(2)
    sim.send()
    sim.run(at_s)
    sim.tell(JobCondemned(now_s=sim.now_s, job=bad, epoch=1))
    sim.quanta(2)
    report = sim.machine.report(bad)
    assert report.phase is Phase.EXITED
    assert report.exit is not None
    assert report.exit.why == BROKE_AGENT
    assert report.exit.why in FINAL
    assert sim.machine.report(other).phase is Phase.RUNNING


def test_one_without_a_process_that_is_condemned_has_ended() -> None:
    sim = HostSim(1)
    bad = sim.job(1, ways=Ways(), source=sim.source(3), paused=True)
    sim.send()
    sim.tell(JobCondemned(now_s=sim.now_s, job=bad, epoch=1))
    report = sim.machine.report(bad)
    assert report.exit is not None
    assert report.exit.why == BROKE_AGENT

"""Jobs whose copies fail as they are started: they go on as one, and are forked again ever more seldom."""

from itertools import pairwise

import pytest

from hs_core.cluster import Settings
from hs_core.cluster.harness import EVERYTHING, World, a_host, a_spec
from hs_core.cluster.stays import MOST_QUANTA
from hs_core.events.cluster import (
    HostDrained,
    HostJoined,
    HostLeft,
    HostRemoved,
    HostReported,
    JobsSubmitted,
    PolicySet,
    QuantumEnded,
    UserSet,
)
from hs_core.facts import Fact
from hs_core.model import Job, JobState
from hs_core.names import HostName, JobId, UserName
from hs_core.policies import find
from hs_core.reports import LOST, TOLD_TO_END, Exit, JobReport, Phase

ANN, JOB = UserName("ann"), JobId(1)
SERVERS = tuple(map(HostName, "abc"))
QUANTUM_S = 60.0
STEPS = 50  # in a round


class Rounds:
    """One job under `hadare` on three servers; a copy on a server of `fails` ends as soon as it is started."""

    def __init__(self, fails: str, *, ended: Exit | None = None, works: bool = False) -> None:
        self.fails = set(map(HostName, fails))
        self.ended = ended or Exit(code=1)
        self.as_one = False  # the job also fails where it is one
        self.works = works  # they get to a first step, and fail after it
        self.forks = 0  # copies that were started where they fail
        self.facts: list[Fact] = []
        self.world = World(find("hadare"), Settings(quantum_s=QUANTUM_S, settle_s=0.0))
        self.happens(UserSet(now_s=0.0, name=ANN))
        for name in SERVERS:
            self.happens(HostJoined(now_s=0.0, host=a_host(name, "V100", 1), reports=()))
        self.happens(JobsSubmitted(now_s=0.0, user=ANN, specs=(a_spec(steps=100_000),)))

    @property
    def row(self) -> Job:
        return self.world.machine.job(JOB)

    def happens(self, event: object) -> None:
        self.world.handle(event)  # type: ignore[arg-type]
        self.facts += self.world.outcome.facts
        self.world.machine.check()

    def told(self, kind: str) -> list[Fact]:
        return [fact for fact in self.facts if fact.kind == kind]

    def why(self) -> str:
        return self.world.machine.why(JOB, self.world.now_s).text

    def rounds(self, count: int) -> None:
        for _ in range(count):
            self._answer()
            self.world.now_s += QUANTUM_S
            self.happens(QuantumEnded(now_s=self.world.now_s))
        self._answer()

    def _answer(self) -> None:
        """Servers do as they are told, until nothing is new."""
        for _ in range(12):
            before = self.row
            for name in before.hosts:
                if self.row.epoch != before.epoch or self.row.state.ended:
                    break
                self._answers(name)
            if self.row.epoch == before.epoch and self.row.state is before.state:
                return

    def _answers(self, name: HostName) -> None:
        told = next((job for job in self.world.wanted[name].jobs if job.job == JOB), None)
        known = self.row.reports.get(name)
        if told is None or (known is not None and known.exit is not None):
            return
        base = self.row.base_step if self.row.portions else (self.row.stored.step if self.row.stored else 0)
        step = known.step if known is not None and known.step > base else base
        if told.leave:
            self._says(name, Phase.CHECKPOINTED, step, told.epoch, saved=True)
        elif (self.row.portions or self.as_one) and name in self.fails:
            self.forks += known is None
            step += STEPS if self.works else 0
            self._says(name, Phase.EXITED, step, told.epoch, ended=self.ended)
        else:
            self._says(name, Phase.HELD, step, told.epoch, saved=True)
            self._says(name, Phase.RUNNING, step + STEPS, told.epoch, saved=True, saved_at=step)

    def _says(
        self,
        name: HostName,
        phase: Phase,
        step: int,
        epoch: int,
        *,
        saved: bool = False,
        saved_at: int = -1,
        ended: Exit | None = None,
    ) -> None:
        at = (saved_at if saved_at >= 0 else step) if saved else -1
        report = JobReport(
            job=JOB, epoch=epoch, phase=phase, step=step, can_checkpoint=phase is not Phase.EXITED,
            in_turn=phase is Phase.RUNNING, checkpoint_step=at, checkpoint_generation=at, exit=ended,
        )  # fmt: skip
        self.happens(HostReported(now_s=self.world.now_s, host=name, reports=(report,), heard=EVERYTHING))


def test_copies_that_work_are_forked_in_every_round() -> None:
    at = Rounds("")
    at.rounds(6)
    assert len(at.row.portions) == 3
    assert at.row.state is JobState.RUNNING


def test_where_a_copy_fails_as_it_is_started_none_is_made_for_a_while_and_each_time_for_longer() -> None:
    at = Rounds("c")
    at.rounds(40)
    said = at.told("copy-failed")
    gaps = [(after.now_s - before.now_s) / QUANTUM_S for before, after in pairwise(said)]
    assert gaps[:4] == [1.0, 2.0, 4.0, 8.0], "at edges, once that time is over"
    assert max(gaps) == MOST_QUANTA
    assert said[0].text == "its copy on c failed as it was started (exit code 1): for 60 s none is made there"
    assert len(at.row.portions) == 2, "the others go on"


def test_one_whose_copies_all_fail_but_one_is_one_in_between_and_says_why() -> None:
    at = Rounds("bc")
    at.rounds(20)
    assert at.forks <= 2 * 7
    assert at.row.portions == ()
    assert at.why() == (
        "it runs on a, on 1 GPU; no copy of it is made for a while where one failed as it was started: b, c (exit code 1)"
    )
    assert at.row.step > 20 * STEPS / 2


def test_one_all_of_whose_copies_fail_as_they_are_started_has_not_failed_and_goes_on_as_one() -> None:
    at = Rounds("abc")
    at.rounds(20)
    assert at.row.state is JobState.RUNNING
    assert at.row.retries == 0
    assert at.forks <= 3 * 7
    steps = at.row.step
    at.rounds(5)
    assert at.row.step >= steps + 4 * STEPS


def test_one_whose_only_process_fails_is_given_up_as_any_other() -> None:
    at = Rounds("")
    at.rounds(1)
    at.fails = set(SERVERS)
    at.as_one = True
    at.rounds(2)
    assert at.row.state is JobState.FAILED


def test_copies_that_fail_after_their_first_step_are_made_in_the_next_round_again() -> None:
    at = Rounds("c", works=True)
    at.rounds(8)
    assert not at.told("copy-failed")
    assert at.forks >= 6


@pytest.mark.parametrize("ended", [Exit(why=f"{LOST}: it was rebooted"), Exit(why=TOLD_TO_END)])
def test_copies_that_are_lost_with_their_server_or_were_told_to_end_have_not_failed(ended: Exit) -> None:
    at = Rounds("c", ended=ended)
    at.rounds(8)
    assert not at.told("copy-failed")


def test_a_copy_that_gets_to_a_first_step_where_one_failed_is_made_there_from_then_on() -> None:
    at = Rounds("c")
    at.rounds(20)
    at.fails = set()
    at.rounds(MOST_QUANTA + 2)
    assert len(at.row.portions) == 3
    at.fails = {SERVERS[2]}
    at.rounds(1)
    assert at.told("copy-failed")[-1].text.endswith("for 60 s none is made there"), (
        "it counts from the beginning"
    )


def test_a_job_leaves_a_drained_server_also_for_one_where_a_copy_of_it_failed() -> None:
    at = Rounds("bc")
    at.rounds(20)
    at.happens(HostDrained(now_s=at.world.now_s, host=SERVERS[0], by=ANN))
    at.rounds(2)
    assert at.row.hosts != SERVERS[:1]


def test_under_a_policy_without_copies_a_server_where_one_failed_is_as_any_other() -> None:
    at = Rounds("bc")
    at.rounds(20)
    at.happens(PolicySet(now_s=at.world.now_s, name="las", by=ANN))
    assert "no copy" not in at.why()
    asked = at.world.machine.what_if({}, at.world.now_s)
    assert asked is not None
    assert [job.barred for job in asked.snapshot.jobs] == [frozenset()]


def test_one_that_has_lost_its_server_begins_where_a_copy_of_it_failed_and_is_not_forked_to_another_such() -> (
    None
):
    at = Rounds("bc")
    at.rounds(18)
    assert at.row.hosts == SERVERS[:1]
    at.happens(HostLeft(now_s=at.world.now_s, host=SERVERS[0]))
    at.world.now_s += QUANTUM_S
    at.happens(QuantumEnded(now_s=at.world.now_s))
    at.happens(HostRemoved(now_s=at.world.now_s, host=SERVERS[0], by=ANN, force=True))
    forks = at.forks
    at.rounds(2)
    assert at.row.state is JobState.RUNNING
    assert at.row.hosts[0] in SERVERS[1:]
    assert at.forks == forks

"""A backup is put back in the middle of it: servers have gone on since, jobs have moved."""

from copy import deepcopy
from dataclasses import replace
from random import Random

import pytest

from hs_core.model import Job
from hs_core.names import JobId
from hs_sim import faults
from hs_sim.cases import case_of
from hs_sim.cases.besides import with_losses
from hs_sim.faults import run_seed
from hs_sim.machines.journal import SKIPPED, Journal
from hs_sim.machines.laws import Laws
from hs_sim.machines.trouble import FaultPlan
from hs_sim.machines.truth import Truth
from hs_sim.machines.world import World

SEEDS = range(36)
LATE = (
    *SEEDS,
    137,  # last words of many incarnations
    138,
)  # there a gang has left through a checkpoint, and those of which the backup knows are gone


class Lost:
    """Takes a backup once all jobs have come, kills the controller some time later, and puts the backup back where no job has ended since; `late`: where some have."""

    def __init__(self, seed: int, *, late: bool = False) -> None:
        self._dice, self._late = Random(seed), late
        self.moved = 0  # jobs of which the backup has an older incarnation
        self.ended: dict[JobId, int] = {}  # those that ended well since, and how often they had been launched
        self._copy: Journal | None = None

    def __call__(self, world: World) -> None:
        self.world = world
        began_s = max(job.arrival_s for job in world.experiment.workload.jobs) + self._dice.uniform(3.0, 25.0)
        died_s = began_s + self._dice.uniform(3.0, 400.0 if self._late else 40.0)
        world.clock.at(began_s, self._back_up)
        world.clock.at(died_s, world.controller.crash)
        world.clock.at(died_s + self._dice.uniform(1.0, 20.0), self._put_back)

    def _back_up(self) -> None:
        self._copy = deepcopy(self.world.controller.journal)

    def _put_back(self) -> None:
        journal, truth, copy = self.world.controller.journal, self.world.truth, self._copy
        assert copy is not None
        live = {id_ for id_, row in copy.jobs.items() if not row.state.ended}
        same = live == {id_ for id_, row in journal.jobs.items() if not row.state.ended}
        ended = {id_ for id_, job in truth.by_id.items() if job.ended_s is not None and id_ in live}
        if self._late:
            self.ended = {id_: truth.by_id[id_].launches for id_ in ended}
        if (same and not ended) or self.ended:
            self.moved = sum(journal.jobs[id_].epoch != copy.jobs[id_].epoch for id_ in live)
            journal.put_back(copy)
            for job in truth.jobs.values():
                job.epoch = 0
        self.world.controller.start()


GONE_ON = (9, 45, 49, 75, 81, 85, 124, 129)
"""Where no job has ended before all have come, and each is at home then."""


class Early:
    """Takes a backup before any job has come, kills the controller once all have, and puts the backup back where none has ended yet and each has a home that all servers know of."""

    def __init__(self, seed: int) -> None:
        self._dice = Random(seed)
        self.jobs: set[JobId] = set()
        self.launches: dict[JobId, int] = {}  # of those that trained then

    def __call__(self, world: World) -> None:
        self.world = world
        came_s = max(job.arrival_s for job in world.experiment.workload.jobs)
        died_s = came_s + self._dice.uniform(10.0, 60.0)
        world.clock.at(died_s, world.controller.crash)
        world.clock.at(died_s + self._dice.uniform(1.0, 20.0), self._put_back)

    def _put_back(self) -> None:
        journal, truth = self.world.controller.journal, self.world.truth
        rows = journal.jobs.values()
        if len(rows) == len(truth.jobs) and all(_at_home(row, self.world) for row in rows):
            self.jobs = set(truth.by_id)
            self.launches = {id_: job.launches for id_, job in truth.by_id.items() if job.busy}
            copy = Journal()
            copy.users, copy.hosts = dict(journal.users), dict(journal.hosts)
            journal.put_back(copy)
            for job in truth.jobs.values():
                job.epoch = 0
        self.world.controller.start()


def _at_home(row: Job, world: World) -> bool:
    """It has its home, neither moves nor comes from elsewhere, and its servers know."""
    if row.state.ended or not row.hosts or row.move or row.stored or row.portions or row.unconfirmed:
        return False
    told = [world.agents[name].machine.told() for name in row.hosts]
    return all(any((job.job, job.epoch) == (row.id, row.epoch) for job in jobs) for jobs in told)


@pytest.fixture
def since_the_backup(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was done and received since is lost to the controller: these laws are left out, and the last try of a checkpoint that is gone takes a while."""
    monkeypatch.setattr(Truth, "goes_on", lambda *_: None)
    monkeypatch.setattr(Laws, "_charged_right", lambda *_: None)
    monkeypatch.setattr(faults, "case_of", lambda seed: replace(case_of(seed), plan=FaultPlan()))


@pytest.mark.usefixtures("since_the_backup")
def test_no_job_trains_twice_and_all_end_though_the_controller_knows_an_older_cluster() -> None:
    moved = 0
    for seed in SEEDS:
        lost = Lost(seed)
        assert run_seed(seed, lost) is None
        moved += lost.moved
    assert moved > 5


@pytest.mark.usefixtures("since_the_backup")
def test_no_job_that_ended_well_since_the_backup_is_launched_again() -> None:
    ended = 0
    for seed in LATE:
        lost = Lost(seed, late=True)
        assert run_seed(seed, lost) is None
        again = {id_: lost.world.truth.by_id[id_].launches for id_ in lost.ended}
        assert again == lost.ended, seed
        ended += len(again)
    assert ended > 5


@pytest.mark.usefixtures("since_the_backup")
def test_jobs_that_came_since_the_backup_go_on_where_they_are_and_all_end() -> None:
    unknown = never_left = 0
    for seed in GONE_ON:
        early = Early(seed)
        assert run_seed(seed, early) is None, seed
        controller, truth = early.world.controller, early.world.truth
        assert controller.machine.taken_up == early.jobs, seed
        for id_, launches in early.launches.items():
            if controller.journal.jobs[id_].epoch < SKIPPED:  # of that incarnation
                assert truth.by_id[id_].launches == launches, (seed, id_)
                never_left += 1
        unknown += len(early.jobs)
    assert unknown > 40
    assert never_left > 10


@pytest.mark.usefixtures("since_the_backup")
@pytest.mark.parametrize("seed", [101, 209])
def test_nothing_is_sought_where_the_backup_knows_of_a_disk_that_was_lost_since(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    plain = faults.case_of
    monkeypatch.setattr(faults, "case_of", lambda seed: with_losses(plain(seed)))
    assert run_seed(seed, Lost(seed, late=True), thinks=True) is None

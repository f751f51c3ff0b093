"""A backup is put back in the middle of it: servers have gone on since, jobs have moved."""

from copy import deepcopy
from dataclasses import replace
from random import Random

import pytest

from hs_core.names import JobId
from hs_sim import faults
from hs_sim.cases import case_of
from hs_sim.cases.besides import with_losses
from hs_sim.faults import run_seed
from hs_sim.machines.journal import Journal
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
@pytest.mark.parametrize("seed", [101, 209])
def test_nothing_is_sought_where_the_backup_knows_of_a_disk_that_was_lost_since(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    plain = faults.case_of
    monkeypatch.setattr(faults, "case_of", lambda seed: with_losses(plain(seed)))
    assert run_seed(seed, Lost(seed, late=True), thinks=True) is None

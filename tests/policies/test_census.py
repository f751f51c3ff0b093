"""The census of jobs that live where they can stay: brought up to date, it is the one that would be taken anew."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from random import Random

import pytest

from hs_core.mechanism.band import Band
from hs_core.mechanism.census import Census
from hs_core.mechanism.floor import Floor
from hs_core.mechanism.lags import had_in_turn
from hs_core.mechanism.world import World, look
from hs_core.model import Migrate
from hs_core.names import HostName, JobId, UserName
from hs_core.policy import Going, HostFacts, JobFacts, Snapshot

HOSTS = tuple(
    HostFacts(
        name=HostName(f"n{at}"),
        model=("V100", "K80")[at % 2],
        gpus=4,
        gpu_memory_bytes=16 << 30,
        accepts=at != 5,
        connected=at != 4,
    )
    for at in range(8)
)


def a_job(dice: Random, at: int) -> JobFacts:
    nodes = dice.choice((1, 1, 1, 2))
    homes = dice.sample([host.name for host in HOSTS], nodes)
    return JobFacts(
        id=JobId(at),
        user=UserName(dice.choice("AB")),
        gang=nodes * dice.choice((1, 2)),
        nodes=nodes,
        arrival_s=float(at),
        job_class=dice.choice(("c", "d")),
        hosts=dice.choice((tuple(homes), tuple(homes), ())),
        started=dice.random() < 0.5,
        movable=dice.random() < 0.7,
        rooted=dice.random() < 0.2,
        migrate=dice.choice((Migrate.AUTO, Migrate.AUTO, Migrate.NEVER)),
        gpu_types=dice.choice(((), ("V100",))),
    )


def leaves(dice: Random, job: JobFacts) -> JobFacts:
    """For other servers, or is restarted where it is, as it is or with other GPUs; or it stays after all."""
    if not job.hosts or job.going is not None:
        return replace(job, going=None)
    to = tuple(dice.sample([host.name for host in HOSTS], dice.choice((job.nodes, job.nodes, 1, 2))))
    to = dice.choice((to, to, job.hosts))
    return replace(
        job, started=True, movable=False, going=Going(hosts=to, gpus=dice.choice((job.per_node, 1, 2)))
    )


def shown(bands: Mapping[Hashable, Band]) -> dict[Hashable, tuple[object, ...]]:
    return {
        key: (
            *(b.jobs[:], b.ids, b.gangs, b.users, b.per_node, b.gpus, b.widths, b.waiting, b.stuck),
            *(b.owners, b.roll.tolist()),
        )
        for key, b in bands.items()
    }


def all_of(census: Census) -> tuple[object, ...]:
    shelves = census.single, census.several
    every = [bands for shelf in shelves for bands in (shelf.at, shelf.kinds, shelf.asks)]
    bands = list(map(shown, every))
    # What they know is what their jobs say.
    assert bands == [shown({key: Band(list(band)) for key, band in bands.items()}) for bands in every]
    bands.append(shown(census.both()))
    assert census.of_several() == [job for job in census.jobs if job.nodes > 1]
    roll = [column.tolist() for column in census.roll()]
    return bands, census.odd, census.jobs, census.ids, list(census.homes().items()), roll


@pytest.mark.parametrize("seed", range(30))
def test_a_census_that_was_brought_up_to_date_is_the_one_that_would_be_taken_anew(seed: int) -> None:
    dice = Random(seed)
    floor = Floor(HOSTS)
    jobs = [a_job(dice, at) for at in range(100)]
    census = Census(floor, jobs)
    for first in range(100, 600, 100):
        before = census.single.kinds.copy(), shown(census.single.kinds)
        jobs = [job for job in jobs if dice.random() > 0.05]
        for at in dice.sample(range(len(jobs)), 5):
            jobs[at] = replace(a_job(dice, jobs[at].id), arrival_s=jobs[at].arrival_s)
        for at in dice.sample(range(len(jobs)), 4):  # these are counted where they were
            jobs[at] = replace(
                jobs[at],
                attained_gpu_s=jobs[at].attained_gpu_s + 1.0,
                started=dice.random() < 0.5,
                sliceable=dice.random() < 0.5,
            )
        jobs += [a_job(dice, first + at) for at in range(3)]
        dice.shuffle(jobs)
        jobs = [leaves(dice, job) if dice.random() < 0.03 else job for job in jobs]
        assert census.update(jobs)
        # What a decision before has seen stays as it was.
        assert shown(before[0]) == before[1]
        assert all_of(census) == all_of(Census(floor, jobs))


def one_by_one(floor: Floor, jobs: Sequence[JobFacts]) -> Census:
    """Every job is odd."""
    census = Census(floor, ())
    census.jobs, census.ids = list(jobs), [job.id for job in jobs]
    census._known = census.odd = {job.id: job for job in jobs}
    census._homes = {job.id: job.hosts for job in jobs}
    return census


def where_all_are(world: World) -> tuple[object, ...]:
    bands = [
        {key: band.jobs[:] for key, band in bands.items() if band.jobs}
        for bands in (world.at, world.parts, world.kinds)
    ]
    counts = [
        {key: gpus for key, gpus in of.items() if gpus} for of in (world.gpus, world.kind_gpus, world.demands)
    ]
    moves = world.homes, world.going, world.unable
    assert world.roll is not None
    pools = dict(zip(world.ids, world.pools_of_jobs(world.roll).tolist(), strict=True))
    return world.jobs, moves, world.new, world.leavers, bands, counts, had_in_turn(world), pools


@pytest.mark.parametrize("seed", range(60))
def test_jobs_that_are_counted_together_are_where_each_of_them_is_by_itself(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = Random(seed)
    some = [a_job(dice, at) for at in range(60)]
    jobs = tuple(leaves(dice, job) if dice.random() < 0.2 else job for job in some)
    running = frozenset(job.id for job in jobs if dice.random() < 0.3)
    asked = Snapshot(
        now_s=0.0, quantum_s=60.0, quantum=1, hosts=HOSTS, jobs=jobs, tickets={}, running=running
    )
    together = look(asked, many=True)
    monkeypatch.setattr(
        "hs_core.mechanism.world.census",
        one_by_one,
    )
    by_itself = look(asked, many=True)
    assert where_all_are(together) == where_all_are(by_itself)
    few = look(asked)
    assert had_in_turn(few) == had_in_turn(together)
    pools = [few.models.index(few.model(few.where(job))) if job.id in few.homes else -1 for job in few.jobs]
    assert list(where_all_are(together)[-1].values()) == pools


def test_a_census_is_not_brought_up_to_date_where_most_jobs_are_others() -> None:
    dice = Random(1)
    jobs = [a_job(dice, at) for at in range(40)]
    census = Census(Floor(HOSTS), jobs)
    before = all_of(census)
    assert not census.update([*jobs[:20], *(a_job(dice, 100 + at) for at in range(20))])
    assert all_of(census) == before


def test_what_moves_in_one_decision_is_where_it_was_in_the_next() -> None:
    job = JobFacts(
        id=JobId(1), user=UserName("A"), gang=1, arrival_s=0.0, hosts=(HOSTS[0].name,), movable=True
    )
    asked = Snapshot(now_s=0.0, quantum_s=60.0, quantum=1, hosts=HOSTS, jobs=(job,), tickets={})
    first = look(asked)
    first.unsettle(job, job.hosts)
    first.settle(job, (HOSTS[2].name,))
    second = look(asked)
    assert [list(world.at[HOSTS[0].name]) for world in (first, second)] == [[], [job]]
    assert [list(world.at[HOSTS[2].name]) for world in (first, second)] == [[job], []]
    assert second.gpus == {("A", "V100"): 1}

"""The board of servers' loads: pools are filled when somebody asks."""

from fractions import Fraction
from random import Random

import pytest

from hs_core.mechanism.loads import Board, find_levels
from hs_core.mechanism.time_load import time_load, weighed
from hs_core.mechanism.world import look
from hs_core.names import HostName, UserName

from .worlds import host, job, snapshot  # noqa: TID252 — tests are no package on the path


def board() -> Board:
    hosts = [host(name) for name in ("h1", "h2")] + [host("k1", model="K80")]
    jobs = [
        job(1, "A", 2, host="h1"),
        job(2, "B", 1, host="h1"),
        job(3, "A", 8, nodes=2, hosts=("h1", "h2")),
        job(4, "B", 4, host="k1"),
        job(5, "C", 1),
    ]
    world = look(snapshot(hosts, jobs))
    entitled = {at: Fraction(gpus, 2) for at, gpus in world.gpus.items()}
    return Board(world, entitled, find_levels(world, entitled), {})


def said(board: Board) -> list[tuple[str, list[float], list[int], dict[str, float]]]:
    return [
        (pool.model, pool.tickets.tolist(), pool.asked.tolist(), dict(pool.per_gpu)) for pool in board.pools()
    ]


def test_a_pool_that_is_filled_as_a_job_comes_counts_it_once() -> None:
    early, late = board(), board()
    assert [asked for _, _, asked, _ in said(early)] == [[7, 4], [4]]
    for one in (early, late):
        one.add(next(job for job in one.world.jobs if job.id == 5), (HostName("h2"),))
    assert [asked for _, _, asked, _ in said(late)] == [[7, 5], [4]]
    assert said(late) == said(early)


def test_a_pool_that_is_filled_as_a_job_goes_has_lost_it_once() -> None:
    early, late = board(), board()
    assert [asked for _, _, asked, _ in said(early)] == [[7, 4], [4]]
    for one in (early, late):
        gone = next(job for job in one.world.jobs if job.id == 3)
        one.remove(gone, gone.hosts)
    assert [asked for _, _, asked, _ in said(late)] == [[3, 0], [4]]
    assert said(late) == said(early)


@pytest.mark.parametrize("seed", range(20))
def test_room_beside_gangs_is_what_the_jobs_of_each_server_leave(seed: int) -> None:
    dice = Random(seed)
    names = [f"h{at}" for at in range(12)]
    jobs = [
        job(at, dice.choice("AB"), dice.choice((1, 1, 2, 3, 4)), host=dice.choice(names[:10]))
        for at in range(1, 25)
    ]
    jobs += [job(at, "A", gang, nodes=2, hosts=dice.sample(names, 2)) for at, gang in enumerate((2, 8), 25)]
    world = look(snapshot(list(map(host, names)), jobs))
    shares = dict.fromkeys(world.gpus, Fraction(1))
    board = Board(world, shares, find_levels(world, shares), {})
    (pool,) = board.pools()
    for at, name in enumerate(pool.names):
        gpus, there = int(pool.gpus[at]), [one.gang for one in jobs if one.hosts == (name,)]
        parts = [one.per_node for one in jobs if one.nodes > 1 and name in one.hosts]
        left = gpus - sum(gang for gang in there if 2 * gang <= gpus)
        beside = any(2 * width > gpus for width in (*there, *parts))
        assert pool.room(at) == (left if beside and 0 < left < gpus else 0)
    board.remove(jobs[0], jobs[0].hosts)
    assert pool.room(pool.index[jobs[0].hosts[0]]) is None


@pytest.mark.parametrize("seed", range(20))
def test_loads_found_of_all_servers_at_once_are_those_found_one_by_one(seed: int) -> None:
    dice = Random(seed)
    names = [f"h{at}" for at in range(30)]
    jobs = [
        job(at, dice.choice("ABC"), dice.choice((1, 1, 2, 4)), host=dice.choice(names)) for at in range(1, 90)
    ]
    jobs += [job(at, "A", gang, nodes=2, hosts=dice.sample(names, 2)) for at, gang in enumerate((2, 8), 90)]
    world = look(snapshot(list(map(host, names)), jobs))
    shares = {at: dice.choice((0.0, 0.3, 1.0)) * gpus for at, gpus in world.gpus.items()}
    (pool,) = Board(world, shares, find_levels(world, shares), {}).pools()
    loads, odd = pool.time_loads()
    for at, name in enumerate(pool.names):
        there = [one for one in jobs if name in one.hosts]
        if at not in odd:
            assert loads[at] == pytest.approx(time_load(4, weighed(there, pool.per_gpu)))
    assert len(odd) < len(names) / 2


@pytest.mark.parametrize("more", [0, 1, 3])
def test_levels_that_go_on_being_used_say_what_new_ones_do(more: int) -> None:
    one = board()
    known = {model: one.level(model) for model in one.world.models}
    shares = {**one.entitled, ("A", "V100"): 3.0}
    again, before = find_levels(one.world, one.entitled, known), dict(known)
    assert all(again[model] is level for model, level in before.items())
    one.add(next(job for job in one.world.jobs if job.id == 5), (HostName("h2"),))
    for has in (one.entitled, shares):
        kept, anew = find_levels(one.world, has, known), find_levels(one.world, has)
        assert kept["K80"] is known["K80"]
        for model, level in anew.items():
            assert kept[model].parts() == level.parts()
            assert kept[model].part(UserName("A"), more) == level.part(UserName("A"), more)

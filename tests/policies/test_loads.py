"""The board of servers' loads: pools are filled when somebody asks."""

from fractions import Fraction

from hs_core.mechanism.loads import Board, find_levels
from hs_core.mechanism.world import look
from hs_core.names import HostName

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
    world = look(snapshot(hosts, jobs), {})
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

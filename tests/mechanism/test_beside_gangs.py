"""What gangs over several servers leave to jobs of one server: among few jobs and among very many."""

from random import Random

import pytest

from hs_core.mechanism.beside_gangs import most_beside
from hs_core.mechanism.world import look
from hs_core.names import UserName

from ..policies.worlds import host, job, snapshot  # noqa: TID252 — tests are no package on the path


def parts(**of_users: float) -> dict[UserName, float]:
    return {UserName(user): part for user, part in of_users.items()}


def test_who_finds_too_little_room_beside_a_gang_lacks_its_part_of_the_time() -> None:
    gang = job(1, "ann", 6, nodes=2, hosts=("h1", "h2"))
    # Of four GPUs ann's three are taken: for half of the time they leave two and a half, for all of it one.
    jobs = [gang, job(2, "bob", 2, host="h1"), job(3, "bob", 1, host="h2"), job(4, "ann", 4, host="h2")]
    world = look(snapshot([host("h1"), host("h2")], jobs))
    assert most_beside(world, "V100", parts(ann=0.5)) == {"ann": 10.0, "bob": 3.0}
    assert most_beside(world, "V100", parts(ann=1.0)) == {"ann": 10.0, "bob": pytest.approx(2.0)}


def test_where_no_gang_has_several_servers_nobody_is_beside_one() -> None:
    world = look(snapshot([host("h1")], [job(1, "ann", 4, host="h1"), job(2, "bob", 1, host="h1")]))
    assert most_beside(world, "V100", parts(ann=0.5)) == {}


@pytest.mark.parametrize("seed", range(30))
def test_looked_at_together_very_many_jobs_have_what_they_have_one_by_one(seed: int) -> None:
    dice, users = Random(seed), ("ann", "bob", "eve", "zoe")
    names = [f"h{at}" for at in range(8)]
    hosts = [host(name, model="V100" if at < 6 else "K80") for at, name in enumerate(names)]
    jobs = [
        job(at, dice.choice(users), dice.choice((1, 1, 2, 3, 4)), host=dice.choice(names))
        for at in range(1, 40)
    ]
    jobs += [
        job(at, dice.choice(users), dice.choice((2, 4, 6, 8)), nodes=2, hosts=dice.sample(names[:5], 2))
        for at in range(40, 46)
    ]
    of_users = parts(**{user: dice.random() for user in users[: dice.randint(1, 4)]})
    asked = snapshot(hosts, jobs)
    few, many = look(asked), look(asked, many=True)
    for model in ("V100", "K80"):
        expected = most_beside(few, model, of_users)
        found = most_beside(many, model, of_users)
        assert list(found) == list(expected)
        assert found == {user: pytest.approx(gpus) for user, gpus in expected.items()}

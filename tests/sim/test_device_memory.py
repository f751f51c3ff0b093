"""Depth machines where jobs do not fit beside one another into GPUs: who comes into its turn has others parked, in host memory or through a checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

import pytest

from hs_core.host import HostConfig, room
from hs_core.names import UserName
from hs_sim.faults import run_seed
from hs_sim.machines import run_machines
from hs_sim.machines.truth import LawBrokenError
from hs_sim.machines.world import World
from hs_sim.model import ClusterSpec, Costs, Experiment, Pool, Result, SimJob, Workload

GIB = 1 << 30
QUANTUM_S = 60.0
FIRST, LAST = 40, 120  # quanta that are looked at
RATE = 10.0


@dataclass(frozen=True, slots=True)
class Wish:
    """Of a user: so many jobs alike."""

    jobs: int
    gpus: int
    memory_gib: int
    state_bytes: int = GIB
    tickets: float = 100.0


def crowded(
    wishes: Sequence[Wish], *, gpus: int, host_gib: int = 0, costs: Costs | None = None
) -> Experiment:
    """One server of GPUs with 16 GiB. Users' jobs come in turns."""
    users = {UserName(f"u{at}"): wish for at, wish in enumerate(wishes)}
    turns = [(user, wish) for at in range(24) for user, wish in users.items() if at < wish.jobs]
    jobs = tuple(
        SimJob(id=at, user=user, arrival_s=float(at), steps=10**9, job_class=user, gpus=wish.gpus,
               gpu_memory_bytes=wish.memory_gib * GIB, state_bytes=wish.state_bytes)
        for at, (user, wish) in enumerate(turns, start=1)
    )  # fmt: skip
    pool = Pool(
        model="V100",
        servers=1,
        gpus_per_server=gpus,
        gpu_memory_bytes=16 * GIB,
        memory_bytes=host_gib * GIB,
    )
    return Experiment(
        cluster=ClusterSpec(pools=(pool,)),
        workload=Workload(
            name="crowded",
            jobs=jobs,
            tickets={user: wish.tickets for user, wish in users.items()},
            rates={(user, "V100"): RATE for user in users},
        ),
        costs=costs or Costs(),
        until_s=LAST * QUANTUM_S,
        known_rates=True,
    )


def had(result: Result) -> dict[UserName, float]:
    """GPUs, on average over the quanta that are looked at."""
    samples = result.samples[FIRST:LAST]
    users = result.experiment.workload.tickets
    return {
        user: fsum(gpus for s in samples for (of, _), gpus in s.gpus.items() if of == user) / len(samples)
        for user in users
    }


def trained(result: Result) -> float:
    """Gangs that trained, on average."""
    samples = result.samples[FIRST:LAST]
    return fsum(rate for s in samples for rate in s.steps_per_s.values()) / RATE / len(samples)


ONE_OF_MANY = (Wish(9, 1, 12), Wish(1, 1, 1, GIB // 4))
PAIRS_BESIDE = (Wish(6, 1, 5), Wish(2, 2, 7, tickets=200.0))
WIDE_BESIDE = (Wish(4, 1, 9), Wish(6, 1, 7, GIB // 4), Wish(3, 4, 9, tickets=200.0))


@pytest.mark.parametrize(
    ("wishes", "gpus", "host_gib", "due", "moves"),
    [
        pytest.param(ONE_OF_MANY, 4, 0, (3.0, 1.0), 15, id="one-that-is-due-all-of-a-GPU"),
        pytest.param(PAIRS_BESIDE, 4, 0, (4 / 3, 8 / 3), 25, id="pairs-beside-narrow-jobs"),
        pytest.param(WIDE_BESIDE, 4, 64, (1.0, 1.0, 2.0), 30, id="gangs-that-hold-more-than-a-host"),
    ],
)
def test_jobs_that_fill_gpus_have_their_users_shares_and_stay_where_they_are(
    wishes: Sequence[Wish], gpus: int, host_gib: int, due: Sequence[float], moves: int
) -> None:
    """One that is moved to another GPU is not started ahead of its turn on the one that it left, which alone has room for it; of what a gang holds a swap moves its state alone."""
    world = World(crowded(wishes, gpus=gpus, host_gib=host_gib))
    result = world.run()
    launches = sum(job.launches for job in world.truth.jobs.values())
    assert list(had(result).values()) == pytest.approx(due, rel=0.06)
    assert launches <= moves


def test_a_turn_begins_and_ends_with_what_its_gpu_takes_to_be_emptied_and_filled() -> None:
    """Two jobs on one GPU: of every quantum one swap out and one back are lost, at a gibibyte a second."""
    costs = Costs(suspend_s=0.0, resume_s=0.0, swap_bytes_per_s=float(GIB))
    result = run_machines(crowded([Wish(2, 1, 9)], gpus=1, costs=costs))
    assert trained(result) == pytest.approx(1 - 2 / QUANTUM_S, abs=0.002)
    assert fsum(had(result).values()) == pytest.approx(1.0, abs=0.01)


def test_where_nothing_can_be_parked_a_turn_costs_a_start_and_lasts_the_longer() -> None:
    """Twenty times as long as the switch: of a turn of one quantum a fifth would be lost."""
    costs = Costs(start_s=10.0)
    parked = run_machines(crowded([Wish(2, 1, 9)], gpus=1, costs=costs))
    started = run_machines(crowded([Wish(2, 1, 9)], gpus=1, host_gib=1, costs=costs))
    assert trained(parked) > 0.98
    assert trained(started) == pytest.approx(1 - 1 / HostConfig().switch_ratio, abs=0.02)


def test_a_host_that_forgets_how_much_its_gpus_hold_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "capacity_bytes", lambda *_: 0)
    with pytest.raises(LawBrokenError, match=r"more lies on GPU-v100-0001-\d than it has"):
        run_machines(crowded(ONE_OF_MANY, gpus=4))


HALF_UP = ((1349, {}), (209, {"cuts": True}), (533, {"cuts": True}), (1193, {"deeds": True}))
"""Seeds in which two gangs over two servers each came up on one, and held the memory that the other needed there."""
UNTOLD = ((673, {"cuts": True}), (3445, {}), (6865, {"cuts": True}))
"""In which a job without a process moved while its server, which had not heard of it, started it again and saved until what was to be fetched was gone; in the last one a
part of a gang was to fetch what it found out later to have itself."""
GONE = ((2425, {"deeds": True}),)
"""In which the last server of a pool was removed within a quantum, and a share there had been given for amends at its beginning."""


@pytest.mark.parametrize(("seed", "with_"), [*HALF_UP, *UNTOLD, *GONE])
def test_seeds_in_which_jobs_waited_for_ever_for_memory_or_for_checkpoints_that_were_gone(
    seed: int, with_: Mapping[str, Any]
) -> None:
    assert run_seed(seed, thinks=True, **with_) is None

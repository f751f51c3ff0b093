"""Table 2 and figures 4 and 5: one server's gang-aware stride, and split stride over two."""

from math import sqrt
from pathlib import Path

from hs_core.names import UserName
from hs_sim.figures.common import (
    HOUR_S,
    QUANTUM_S,
    Draw,
    Figure,
    Sweep,
    experiment,
    first_end_s,
    last_end_s,
    mean_gpus,
    near,
    workload,
    worst_window,
)
from hs_sim.model import Costs, Result
from hs_sim.quanta import run_quanta

FREE = Costs(suspend_s=0.0, resume_s=0.0, start_s=0.0)
INTERVALS = 100
LOTTERIES = 20  # seeds, whose mean is compared
FOREVER_S = 1e7
START_S = 5 * QUANTUM_S  # processes come up; the first quantum goes to who is up first


# --- table 2 ----------------------------------------------------------------------------------------------------------

_USERS = (("A", 1), ("B", 2), ("C", 4))
_PAPER = {
    "gandiva-fair": {"A": (66.7, 66.7), "B": (33.3, 33.3), "C": (16.7, 16.7)},
    "lottery": {"A": (71.8, 71.8), "B": (36.7, 36.7), "C": (12.4, 11.4)},
    "gang-lottery": {"A": (66.0, 66.5), "B": (46.0, 24.0), "C": (20.0, 12.0)},
}


def table2() -> Figure:
    shares = {
        policy: _part_of_quanta(policy, seeds=1 if policy == "gandiva-fair" else LOTTERIES)
        for policy in _PAPER
    }
    rows = [
        near("table2", f"stride: {user}'s {gang}-GPU jobs, farthest of any window of 6 quanta, % of quanta",
             100 * due, 100 * worst, 1e-6)
        for (user, gang), due in zip(_USERS, (2 / 3, 1 / 3, 1 / 6), strict=True)
        for worst in [_worst_of_windows(user, due)]
    ]  # fmt: skip
    for policy in ("lottery", "gang-lottery"):
        for user, gang in _USERS:
            paper = sum(_PAPER[policy][user]) / 2
            rows.append(
                near("table2", f"{policy}: {user}'s {gang}-GPU jobs, % of quanta", paper, 100 * shares[policy][user],
                     100 * _sampling_error(paper / 100))
            )  # fmt: skip

    def draw(path: Path) -> None:
        from hs_sim import pictures  # noqa: PLC0415 — matplotlib only where a picture is wanted

        groups = {
            "lottery with backfilling": "lottery",
            "gang-aware lottery": "gang-lottery",
            "gang-aware stride": "gandiva-fair",
        }
        bars = {
            label: {f"{user} ({gang} GPU)": 100 * shares[policy][user] for user, gang in _USERS}
            for label, policy in groups.items()
        }
        paper = {
            label: {f"{user} ({gang} GPU)": sum(_PAPER[policy][user]) / 2 for user, gang in _USERS}
            for label, policy in groups.items()
        }
        pictures.bars(path, "Table 2: part of the quanta that a job ran", bars, paper, "% of quanta")

    return Figure(
        name="table2",
        title="Shares of 1-, 2- and 4-GPU jobs on a 4-GPU server",
        rows=tuple(rows),
        draw=draw,
        notes=(
            f"The lotteries: means of {LOTTERIES} seeds over {INTERVALS} intervals each.",
            "The paper ran each lottery once; the tolerance is three standard errors of such a run.",
        ),
    )


def _sampling_error(part: float) -> float:
    """Three standard errors of the mean of a user's two jobs over the paper's 100 intervals."""
    return 3 * sqrt(part * (1 - part) / INTERVALS / 2)


def _table2_result(policy: str, quanta: int, seed: int) -> Result:
    sweeps = [
        Sweep(user=user, count=2, gang=gang, job_class="resnet50", seconds=FOREVER_S, on="V100")
        for user, gang in _USERS
    ]
    load = workload("table 2", sweeps)
    return run_quanta(
        experiment(load, {"V100": 4}, until_s=quanta * QUANTUM_S, policy=policy, seed=seed, costs=FREE)
    )


def _part_of_quanta(policy: str, seeds: int) -> dict[str, float]:
    found = dict.fromkeys((user for user, _ in _USERS), 0.0)
    for seed in range(seeds):
        result = _table2_result(policy, INTERVALS, seed)
        for job in result.jobs:
            found[job.user] += sum(job.gpu_s.values()) / job.gang / result.ended_s / 2 / seeds
    return found


def _worst_of_windows(user: str, due: float) -> float:
    """Of the mean of the user's two jobs: the sample of a quantum says how many of them ran."""
    gang = dict(_USERS)[user]
    result = _table2_result("gandiva-fair", 60, 0)
    worst = worst_window(result, [user], 0.0, result.ended_s, quanta=6, due=due * 2 * gang)
    return worst / gang / 2


# --- figure 4 ---------------------------------------------------------------------------------------------------------


def figure4() -> Figure:
    sweeps = [
        Sweep(user="user1", count=4, gang=1, job_class="vae", seconds=4 * HOUR_S / 3, on="V100"),
        Sweep(user="user2", count=4, gang=2, job_class="dcgan", seconds=6 * HOUR_S / 3, on="V100"),
        Sweep(user="user3", count=4, gang=4, job_class="resnet50", seconds=4 * HOUR_S / 12, on="V100"),
    ]
    result = run_quanta(experiment(workload("figure 4", sweeps), {"V100": 4}, until_s=6 * HOUR_S))
    users = ["user1", "user2", "user3"]
    shared_s = min(first_end_s(result, [user]) for user in ("user1", "user3"))
    alone_s = max(last_end_s(result, ["user1"]), last_end_s(result, ["user3"])) + QUANTUM_S
    due = 4 / 3
    rows = [
        near("figure4", f"{user}: farthest of any 30 quanta while all share, GPUs", due,
             worst_window(result, [user], START_S, shared_s - QUANTUM_S, quanta=30, due=due), 0.02 * due)
        for user in users
    ]  # fmt: skip
    rows += [
        near("figure4", f"{user}: mean while all share, from the very first quantum, GPUs", due,
             mean_gpus(result, [user], 0.0, shared_s), 0.02 * due)
        for user in users
    ]  # fmt: skip
    rows.append(
        near("figure4", "user2 once the others have ended, GPUs", 4.0,
             mean_gpus(result, ["user2"], alone_s, min(last_end_s(result, ["user2"]), alone_s + HOUR_S / 2)), 0.08)
    )  # fmt: skip
    return Figure(
        name="figure4",
        title="GPUs of three users on one server of 4 V100",
        rows=tuple(rows),
        draw=_series("Figure 4: GPUs of each user on 4 V100", result, users, ideal={"4/3 GPUs": due}),
        notes=(
            "The work of the jobs is not in the paper; it is chosen so that users 1 and 3 end after about four hours.",
        ),
    )


# --- figure 5 ---------------------------------------------------------------------------------------------------------


def figure5() -> Figure:
    sweeps = [
        Sweep(user="user1", count=1, gang=8, job_class="resnet50", seconds=1.5 * HOUR_S / 3, on="P100"),
        Sweep(user="user2", count=2, gang=2, job_class="resnet50", seconds=4 * HOUR_S, on="P100"),
        Sweep(user="user3", count=4, gang=1, job_class="vae", seconds=4 * HOUR_S, on="P100"),
    ]
    result = run_quanta(experiment(workload("figure 5", sweeps), {"P100": 8}, until_s=3 * HOUR_S))
    users = ["user1", "user2", "user3"]
    end_s = last_end_s(result, ["user1"])
    began_s = 10 * QUANTUM_S
    rows = [
        near("figure5", f"{user} while the 8-GPU job lives, GPUs", 8 / 3,
             mean_gpus(result, [user], began_s, _whole_thirds(began_s, end_s)), 0.05 * 8 / 3)
        for user in users
    ]  # fmt: skip
    rows += [
        near("figure5", f"{user} once it has ended, GPUs", 4.0,
             mean_gpus(result, [user], end_s + 5 * QUANTUM_S, result.ended_s), 0.08)
        for user in users[1:]
    ]  # fmt: skip
    rows.append(near("figure5", "the 8-GPU job ends, hours", 1.5, end_s / HOUR_S, 0.075))
    return Figure(
        name="figure5",
        title="Split stride: an 8-GPU job beside small ones on two servers of 4 P100",
        rows=tuple(rows),
        draw=_series("Figure 5: GPUs of each user on 8 P100", result, users, ideal={"8/3": 8 / 3, "4": 4.0}),
        notes=("The first ten minutes are left out: jobs are placed and their processes come up.",),
    )


def _whole_thirds(from_s: float, to_s: float) -> float:
    """The large job has every third quantum: means are taken over whole periods."""
    period_s = 3 * QUANTUM_S
    return from_s + max(1, int((to_s - from_s) / period_s)) * period_s


def _series(title: str, result: Result, users: list[str], ideal: dict[str, float]) -> Draw:
    def draw(path: Path) -> None:
        from hs_sim import pictures  # noqa: PLC0415

        groups = {user: [UserName(user)] for user in users}
        pictures.received(path, title, result, groups, ideal=ideal, total=True)

    return draw

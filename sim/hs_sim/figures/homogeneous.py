"""Figures 6 and 7: many users on 48 P100, three sweeps on 64 K80."""

from pathlib import Path

from hs_core.dice import roll
from hs_core.names import UserName
from hs_sim.figures.common import (
    HOUR_S,
    QUANTUM_S,
    Figure,
    Row,
    Sweep,
    at_least,
    experiment,
    first_end_s,
    last_end_s,
    mean_end_s,
    mean_gpus,
    near,
    workload,
)
from hs_sim.model import Result
from hs_sim.quanta import run_quanta

SETTLED_S = 20 * QUANTUM_S  # after arrivals and departures: jobs move, a few in every quantum

# --- figure 6 ---------------------------------------------------------------------------------------------------------

_CLASSES = ((1, 62), (2, 3), (4, 3), (8, 2))  # GPUs of the one job, users
_ARRIVALS_S = 600.0  # "job arrival is random"


def _users_by_size() -> tuple[dict[int, list[str]], list[Sweep]]:
    """Users by the GPUs of their one job, and these jobs."""
    dice = roll(6, "figure 6")
    sweeps = []
    groups: dict[int, list[str]] = {}
    for gang, users in _CLASSES:
        for number in range(1, users + 1):
            user = f"size{gang}-{number:02d}"
            small = dice.choice(["vae", "superresolution"])
            sweeps.append(
                Sweep(
                    user=user,
                    count=1,
                    gang=gang,
                    job_class=small if gang == 1 else "resnet50",
                    seconds=2 * HOUR_S if gang == 8 else 12 * HOUR_S,
                    on="P100",
                    arrivals_s=[dice.uniform(0.0, _ARRIVALS_S)],
                )
            )
            groups.setdefault(gang, []).append(user)
    return groups, sweeps


def figure6() -> Figure:
    groups, sweeps = _users_by_size()
    tickets = {user: float(gang) for gang, users in groups.items() for user in users}
    result = run_quanta(
        experiment(workload("figure 6", sweeps, tickets=tickets), {"P100": 48}, until_s=8 * HOUR_S)
    )
    left_s, gone_s = first_end_s(result, groups[8]), last_end_s(result, groups[8])
    began_s = _ARRIVALS_S + SETTLED_S
    rows = []
    for gang, users in _CLASSES:
        ideal = 48 * gang * users / 96
        ours = mean_gpus(result, groups[gang], began_s, left_s)
        rows.append(
            near("figure6", f"users of {gang}-GPU jobs while all are there, GPUs", ideal, ours, 0.05 * ideal)
        )
    for gang, users in _CLASSES[:-1]:
        ideal = 48 * gang * users / 80
        ours = mean_gpus(result, groups[gang], gone_s + SETTLED_S, result.ended_s)
        rows.append(
            near(
                "figure6",
                f"users of {gang}-GPU jobs once the 8-GPU jobs have ended, GPUs",
                ideal,
                ours,
                0.05 * ideal,
            )
        )
    everybody = [user for users in groups.values() for user in users]
    total = mean_gpus(result, everybody, began_s, result.ended_s)
    rows.append(at_least("figure6", "all together, GPUs", 48.0, total, 0.05 * 48))

    def draw(path: Path) -> None:
        from hs_sim import pictures  # noqa: PLC0415

        named = {
            f"{len(users)} users, {gang} GPU": list(map(UserName, users)) for gang, users in groups.items()
        }
        ideal = {f"{48 * gang * users / 96:g}": 48 * gang * users / 96 for gang, users in _CLASSES}
        pictures.received(
            path, "Figure 6: GPUs of four classes of users on 48 P100", result, named, ideal=ideal, total=True
        )

    return Figure(
        name="figure6",
        title="70 users of four sizes on 48 P100, tickets by size",
        rows=tuple(rows),
        draw=draw,
        notes=(
            "Ideal: the class's tickets over all tickets. The paper gives neither the times of arrival nor the work: chosen here.",
            f"Left out: {SETTLED_S / 60:g} minutes after the last arrival, and after the departures.",
        ),
    )


# --- figure 7 ---------------------------------------------------------------------------------------------------------

_USERS = (("user1", 1, "superresolution"), ("user2", 4, "resnet50"), ("user3", 2, "dcgan"))


def _received_rows(result: Result, third: float, half: float) -> tuple[Row, ...]:
    """What each received while three shared, two did, and one was alone, and when they ended. `third`, `half`: of the cluster, in GPUs."""
    users = [user for user, _, _ in _USERS]
    first_s, gone_s = first_end_s(result, ["user3"]), last_end_s(result, ["user3"])
    second_s, alone_s = first_end_s(result, ["user1"]), last_end_s(result, ["user1"])
    end_s = first_end_s(result, ["user2"])
    began_s = 10 * QUANTUM_S
    rows = [
        near(
            "figure7",
            f"{user} while all share, GPUs",
            third,
            mean_gpus(result, [user], began_s, first_s),
            0.05 * third,
        )
        for user in users
    ]
    rows += [
        near("figure7", f"{user} once user3 has ended, GPUs", half, mean_gpus(result, [user], gone_s + SETTLED_S, second_s), 0.05 * half)
        for user in users[:2]
    ]  # fmt: skip
    rows.append(
        near("figure7", "user2 once user1 has ended, GPUs", 64.0,
             mean_gpus(result, ["user2"], alone_s + SETTLED_S, max(end_s, alone_s + 2 * SETTLED_S)), 0.05 * 64)
    )  # fmt: skip
    rows.append(
        at_least("figure7", "all together, GPUs", 64.0, mean_gpus(result, users, began_s, end_s), 0.05 * 64)
    )
    rows.append(
        near("figure7", "user3's jobs end, mean, hours", 1.0, mean_end_s(result, "user3") / HOUR_S, 0.1)
    )
    rows.append(near("figure7", "user1's last job ends, hours", 4.0, alone_s / HOUR_S, 0.2))
    return tuple(rows)


def figure7() -> Figure:
    dice = roll(7, "figure 7")
    # GPU-hours until each has ended: a third of the cluster for an hour, then half of it until the fourth, then all of it.
    third, half, whole = 64 / 3, 64 / 2, 64.0
    work_h = {"user1": third + 3 * half, "user2": third + 3 * half + 1.5 * whole, "user3": third}
    sweeps = [
        Sweep(
            user=user,
            count=128,
            gang=gang,
            job_class=job_class,
            seconds=[work_h[user] * HOUR_S / 128 / gang * dice.uniform(0.98, 1.02) for _ in range(128)],
            on="K80",
        )
        for user, gang, job_class in _USERS
    ]
    result = run_quanta(experiment(workload("figure 7", sweeps), {"K80": 64}, until_s=6.5 * HOUR_S))

    def draw(path: Path) -> None:
        from hs_sim import pictures  # noqa: PLC0415

        groups = {user: [UserName(user)] for user, _, _ in _USERS}
        ideal = {"21.3": third, "32": half, "64": whole}
        pictures.received(
            path, "Figure 7: GPUs of three users on 64 K80", result, groups, ideal=ideal, total=True
        )

    return Figure(
        name="figure7",
        title="Three users with 128 jobs of 1, 4 and 2 GPUs on 64 K80",
        rows=_received_rows(result, third, half),
        draw=draw,
        notes=(
            "The work of the jobs is chosen so that user 3 ends after an hour and user 1 after four, as in the paper.",
            "The paper's text then says user 3 has the cluster; it can only be user 2.",
        ),
    )

"""Milliseconds of one trading round; goal: 1,000 users on 4 GPU models in 50."""

import statistics
import time
from fractions import Fraction

from hs_core.dice import roll
from hs_core.mechanism.trade import Market, Needs
from hs_core.names import UserName

MODELS = {"V100": 1.0, "P100": 0.6, "P40": 0.45, "K80": 0.2}
RUNS = 9


def market(users: int) -> tuple[Market, int]:
    dice = roll(1, users)
    names = [UserName(f"user{n:05}") for n in range(users)]
    power = {name: dice.uniform(0.2, 1.2) for name in names}
    base = {(name, model): Fraction(dice.randint(4, 12), 2) for name in names for model in MODELS}

    def speedup(user: UserName, fast: str, slow: str) -> float:
        return (MODELS[fast] / MODELS[slow]) ** power[user]

    return Market(base, (), Needs(), speedup), len(base)


def median_ms(users: int) -> tuple[float, int]:
    took, trades = [], 0
    for _ in range(RUNS):
        made, _ = market(users)
        start = time.process_time_ns()
        trades = len(made.settle(list(MODELS), 0.0).trades)
        took.append((time.process_time_ns() - start) / 1e6)
    return statistics.median(took), trades


def main() -> None:
    print(f"CPU time of all trades from nothing, between all pairs of {len(MODELS)} models, median of {RUNS}")
    for users in (100, 1_000, 4_000):
        ms, trades = median_ms(users)
        print(f"{users:>6} users: {ms:8.2f} ms, {trades:,} trades")


if __name__ == "__main__":
    main()

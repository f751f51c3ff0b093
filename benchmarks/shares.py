"""Milliseconds for entitlements of many users, exact; goal: 100,000 users in 30."""

import statistics
import time
from fractions import Fraction

from hs_core.dice import roll
from hs_core.names import UserName
from hs_core.shares import entitle

RUNS = 9


def median_ms(users: int, kinds_of_tickets: int) -> float:
    dice = roll(1, users)
    names = [UserName(f"user{n}") for n in range(users)]
    kinds = [Fraction(dice.randint(1, 10_000), 100) for _ in range(kinds_of_tickets)]
    demands = {name: dice.randint(1, 256) for name in names}
    tickets = {name: dice.choice(kinds) for name in names}
    took = []
    for _ in range(RUNS):
        start = time.process_time_ns()
        entitle(2 * users, demands, tickets)
        took.append((time.process_time_ns() - start) / 1e6)
    return statistics.median(took)


def main() -> None:
    print(f"CPU time of one entitle over one pool, median of {RUNS}")
    for users in (100, 1_000, 10_000, 100_000):
        print(
            f"{users:>7} users: {median_ms(users, 8):8.2f} ms with 8 kinds of tickets, {median_ms(users, 1_000):8.2f} ms with 1,000"
        )


if __name__ == "__main__":
    main()

"""Jobs that wait go where GPUs idle, also where the measure of a server's load has no use for the move (Gandiva_fair, 3.3: work conservation)."""

from fractions import Fraction

from hs_core.model import Migrate, MoveReason

from .asked import at, decide, moves, run, sweep, where  # noqa: TID252 — tests are no package on the path
from .worlds import host, job  # noqa: TID252 — tests are no package on the path


def test_x() -> None:
    jobs = [
        *at("a+b", job(1, "G", 8, nodes=2)),
        *at("a", job(2, "A")),
        *at("b", *sweep(3, 7, "A"), job(10, "B")),
    ]
    for t in ({"G": Fraction(7,2), "A": Fraction(7,2), "B": Fraction(1)}, {}):
        world = run([host("a"), host("b")], jobs, **({"tickets": t} if t else {}))
        world.go(5)
        verdict = world.go(25)
        print(where(verdict), world.moved, world.by_user())
        world.gpus.clear()
        world.go(100)
        print(where(verdict), world.moved, world.by_user())
    jobs = [
        *at("a", job(1, "G", 4), job(2, "B"), *sweep(3, 3, "A")),
        *at("b", *sweep(10, 2, "C")),
    ]
    for t in ({"G": Fraction(3), "A": Fraction(1), "B": Fraction(2), "C": Fraction(2)}, {}):
        world = run([host("a"), host("b")], jobs, **({"tickets": t} if t else {}))
        world.go(5)
        verdict = world.go(25)
        print(where(verdict), world.moved, world.by_user())
        world.gpus.clear()
        world.go(100)
        print(where(verdict), world.moved, world.by_user())
    assert 0

"""Exact numbers: tickets as the simple fractions that they were, and fractions as whole steps of one common scale."""

from collections.abc import Iterable
from fractions import Fraction
from math import lcm

ONE = Fraction(1)
ZERO = Fraction(0)
FINEST = 64  # bits: a scale beyond this is rounded


def exact(tickets: float) -> Fraction:
    """Tickets that travelled as a float, as the simple fraction they were (0.6666666666666666 → 2/3)."""
    simple = Fraction(tickets).limit_denominator(1_000_000)
    return simple if simple and abs(float(simple) / tickets - 1.0) < 1e-12 else Fraction(tickets)


def fraction(value: Fraction | int) -> Fraction:
    """The very same where it is one, also of who calls a whole number one: what did not change is soon seen."""
    return value if isinstance(value, Fraction) else Fraction(value)


def plain(value: Fraction) -> Fraction | int:
    """Whole numbers as integers: adding those is what a quantum costs."""
    return value.numerator if value.denominator == 1 else value


def bounded(carry: Fraction) -> Fraction:
    return max(-ONE, min(ONE, carry))


def times(value: Fraction, by: Fraction, over: Fraction) -> Fraction:
    return Fraction(
        value.numerator * by.numerator * over.denominator, value.denominator * by.denominator * over.numerator
    )


def in_steps(value: Fraction, scale: int) -> int:
    """The nearest whole number of steps; most values are whole."""
    whole, rest = divmod(scale, value.denominator)
    return round(value * scale) if rest else value.numerator * whole


def common(scale: int, values: Iterable[Fraction]) -> int:
    """The least multiple of `scale` in which all values are whole; 0 if it would be finer than the finest."""
    for value in values:
        scale = lcm(scale, value.denominator)
        if scale.bit_length() > FINEST:
            return 0
    return scale

"""What a verdict must never say of trades."""

from fractions import Fraction

from hs_core.errors import BrokenError
from hs_core.policy import Snapshot, Verdict


def check_trades(verdict: Verdict, snapshot: Snapshot) -> None:
    """Trades only pass on what there is, and nobody gets less of use than they give. Raises BrokenError where that isn't so."""
    for trade in verdict.trades:
        what = f"the trade of {trade.giver} and {trade.taker}"
        _must(
            trade.fast_gpus > 0 and trade.slow_gpus > 0, f"{what}: of {trade.fast_gpus} for {trade.slow_gpus}"
        )
        price = float(trade.slow_gpus / trade.fast_gpus)
        _must(price >= trade.giver_speedup * (1 - 1e-6), f"{what}: {trade.giver} loses at {price}")
        _must(price <= trade.taker_speedup * (1 + 1e-6), f"{what}: {trade.taker} loses at {price}")
    if not verdict.trades or not verdict.base:
        return
    for model in {model for _, model in verdict.base}:
        before = sum(gpus for (_, of), gpus in verdict.base.items() if of == model)
        after = sum(gpus for (_, of), gpus in verdict.entitled.items() if of == model)
        most = max(before, Fraction(sum(host.gpus for host in snapshot.hosts if host.model == model)))
        _must(
            after <= most + Fraction(1, 10**6),
            f"after trades users are entitled to {float(after)} of {model}",
        )
    _must(all(gpus >= 0 for gpus in verdict.entitled.values()), "an entitlement is negative after trades")


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise BrokenError(what)

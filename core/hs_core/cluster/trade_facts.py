"""What is told of trades, made or taken back."""

from collections.abc import Iterable, Iterator

from hs_core.facts import TRADE, TRADE_UNDONE, Fact
from hs_core.policy import Trade, TradeNews


def trade_fact(news: TradeNews, now_s: float) -> Fact:
    trade = news.trade
    fast, slow = float(trade.fast_gpus), float(trade.slow_gpus)
    amounts = f"{fast:.3g} {trade.fast} of {trade.giver} for {slow:.3g} {trade.slow} of {trade.taker}, at {trade.price:.3g} {trade.slow} each"
    if news.undone:
        text = f"undone: {amounts}" + (f": {news.why}" if news.why else "")
    else:
        gains, too = slow - trade.giver_speedup * fast, trade.taker_speedup * fast - slow
        text = (
            f"{amounts}: a {trade.fast} is worth {trade.giver_speedup:.3g} {trade.slow} to {trade.giver}, who gains {gains:.3g} {trade.slow}, "
            f"and {trade.taker_speedup:.3g} to {trade.taker}, who gains {too:.3g}"
        )
    return Fact(
        now_s=now_s,
        kind=TRADE_UNDONE if news.undone else TRADE,
        text=text,
        user=trade.giver,
        data={**trade_data(trade), "why": news.why} if news.undone else trade_data(trade),
    )


def all_taken_back(standing: Iterable[Trade], by: str, policy: str, now_s: float) -> Iterator[Fact]:
    """Another policy, put in office by somebody, knows nothing of them."""
    for trade in standing:
        news = TradeNews(trade=trade, undone=True, why=f"taken back: {by} puts the policy {policy} in office")
        yield trade_fact(news, now_s)


def trade_data(trade: Trade) -> dict[str, str | int | float]:
    speedups = {"giver_speedup": trade.giver_speedup, "taker_speedup": trade.taker_speedup}
    return {"at": trade.since_s, **terms(trade), **speedups}


def terms(trade: Trade) -> dict[str, str | int | float]:
    """Who gives what to whom, at which price: what everybody is told of it."""
    return {
        "fast": trade.fast,
        "slow": trade.slow,
        "gives": trade.giver,
        "receives": trade.taker,
        "fast_gpus": float(trade.fast_gpus),
        "slow_gpus": float(trade.slow_gpus),
        "price": trade.price,
    }

"""Trades as `hsctl trades --json` prints them."""

from hs_core.cluster.trade_facts import terms
from hs_core.policy import TradeNews


def trade_row(news: TradeNews, now_s: float) -> dict[str, object]:
    trade = news.trade
    speedups = [trade.giver_speedup, trade.taker_speedup]
    return {"at": now_s, **terms(trade), "speedups": speedups, "undone": news.undone}

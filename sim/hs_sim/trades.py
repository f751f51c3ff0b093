"""Trades as `hsctl trades --json` prints them."""

from hs_core.policy import TradeNews


def trade_row(news: TradeNews, now_s: float) -> dict[str, object]:
    trade = news.trade
    return {
        "at": now_s,
        "fast": trade.fast,
        "slow": trade.slow,
        "gives": trade.giver,
        "receives": trade.taker,
        "fast_gpus": float(trade.fast_gpus),
        "slow_gpus": float(trade.slow_gpus),
        "price": trade.price,
        "speedups": [trade.giver_speedup, trade.taker_speedup],
        "undone": news.undone,
    }

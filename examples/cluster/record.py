"""What is seen of the cluster while it works: GPU time and entitlements by user and pool, steps, trades, where jobs have been."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from examples.common.curves import Curves
from examples.common.training import ENDED
from hs_proto.v1 import controller_pb2 as wire

STARTING = frozenset({"queued", "starting"})
Account = tuple[str, str]  # user, GPU model


@dataclass(frozen=True, slots=True)
class Visit:
    """A stay of a job on GPUs of one model, from its first step there."""

    model: str
    host: str
    from_step: int
    at_s: float


@dataclass(slots=True)
class Recorder:
    received: Curves[Account] = field(default_factory=Curves)  # GPU-seconds
    entitled: Curves[Account] = field(default_factory=Curves)  # the same, as entitlements would have it
    base: Curves[Account] = field(default_factory=Curves)  # … before trades
    steps: Curves[str] = field(default_factory=Curves)  # by user, of all its jobs
    views: list[wire.JobView] = field(default_factory=list)
    shares: wire.SharesReply = field(default_factory=wire.SharesReply)
    trades: dict[tuple[float, str, str, str, str], wire.TradeView] = field(default_factory=dict)
    visits: dict[int, list[Visit]] = field(default_factory=dict)
    first_trade_s: float | None = None
    first_end_s: float | None = None
    all_started_s: float | None = None
    _seen_steps: dict[int, int] = field(default_factory=dict)

    def take(
        self,
        at_s: float,
        views: Sequence[wire.JobView],
        shares: wire.SharesReply,
        trades: Sequence[wire.TradeView],
    ) -> None:
        self.views, self.shares = list(views), shares
        self.received.take(at_s, {(s.user, s.gpu_model): s.received_gpu_s for s in shares.shares})
        _integrate(self.entitled, at_s, {(s.user, s.gpu_model): s.entitled_gpus for s in shares.shares})
        _integrate(self.base, at_s, {(s.user, s.gpu_model): s.base_gpus for s in shares.shares})
        self._count(at_s)
        for trade in trades:
            self.trades[trade.at, trade.gives, trade.receives, trade.fast, trade.slow] = trade
        if self.first_trade_s is None and self.trades:
            self.first_trade_s = at_s
        if self.all_started_s is None and views and all(self._seen_steps.get(view.id) for view in views):
            self.all_started_s = at_s
        if self.first_end_s is None and any(view.state in ENDED for view in views):
            self.first_end_s = at_s

    def _count(self, at_s: float) -> None:
        by_user: dict[str, float] = {}
        for view in self.views:
            # A new incarnation has not said where it stands until it has taken up its checkpoint.
            seen = self._seen_steps[view.id] = max(self._seen_steps.get(view.id, 0), view.step)
            by_user[view.user] = by_user.get(view.user, 0.0) + seen
            if view.state == "running" and view.gpu_model and view.step:
                stays = self.visits.setdefault(view.id, [])
                if not stays or (stays[-1].model, stays[-1].host) != (view.gpu_model, view.host):
                    stays.append(Visit(view.gpu_model, view.host, view.step, at_s))
        self.steps.take(at_s, by_user)

    def crossed(self, job: int) -> bool:
        """It has trained on GPUs of several models."""
        return len({visit.model for visit in self.visits.get(job, ())}) > 1

    @property
    def settled(self) -> bool:
        """Somebody has traded, and every job is where it is to be: also none that goes on where it was while it is started elsewhere."""
        stand = any(not trade.undone for trade in self.trades.values())
        return stand and not any(view.state in STARTING or view.moving_to for view in self.views)

    @property
    def done(self) -> bool:
        return bool(self.views) and all(view.state in ENDED for view in self.views)


def _integrate(curves: Curves[Account], at_s: float, rate: dict[Account, float]) -> None:
    """A rate, seen now, has held since the sample before."""
    before = curves.samples[-1] if curves.samples else None
    if before is None:
        curves.take(at_s, {})
        return
    width_s = at_s - before.at_s
    keys = before.value.keys() | rate.keys()
    curves.take(at_s, {key: before.value.get(key, 0.0) + width_s * rate.get(key, 0.0) for key in keys})

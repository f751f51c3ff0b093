"""The audit: what is told of what happened."""

from dataclasses import dataclass, field

from hs_core.names import HostName, JobId, UserName

TRADES = TRADE, TRADE_UNDONE = (
    "trade",
    "trade-undone",
)  # kinds of facts: `user` gives the fast GPUs, `data["receives"]` has them


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A line of the audit: shown by `hsctl events`, `hsctl show` (story) and the log."""

    now_s: float
    kind: str  # "submitted", "placed", "started", "suspended", "exited", "user-set", …
    text: str  # one sentence for people
    job: JobId | None = None
    user: UserName | None = None
    host: HostName | None = None
    data: dict[str, str | int | float] = field(default_factory=dict)
    deed: bool = False  # of an administrator, or about who may be whom: kept for longer than what jobs do

    def concerns(self, user: str) -> bool:
        """It is told of that user. Trades are told of both."""
        return user == self.user or (self.kind in TRADES and self.data.get("receives") == user)

"""What users were entitled to and had received, moment after moment: for the page, of the last hours, since the controller runs."""

from collections import deque
from itertools import pairwise
from typing import Any

from hs_controller.mind import Mind
from hs_controller.rows import Account
from hs_core.names import UserName

POINTS = 360
EVERY_S = (2.0, 20.0)  # as long as a quantum, but not shorter or longer


class History:
    def __init__(self, quantum_s: float) -> None:
        self.every_s = min(EVERY_S[1], max(EVERY_S[0], quantum_s))
        self._points: deque[tuple[float, dict[tuple[UserName, str], float], dict[Account, float]]] = deque(
            maxlen=POINTS
        )

    def look(self, mind: Mind, now_s: float) -> None:
        received = {account: usage.gpu_s for account, usage in mind.ledger.totals.items()}
        self._points.append((now_s, dict(mind.machine.entitled()), received))

    def told(self) -> dict[str, Any]:
        """A series for each user and GPU model: GPUs entitled to at each moment, and received on average since the one before."""
        points = list(self._points)
        accounts = sorted({account for _, entitled, received in points for account in (*entitled, *received)})
        series = []
        for account in accounts:
            due = [round(entitled.get(account, 0.0), 4) for _, entitled, _ in points]
            got = [0.0]
            for (then_s, _, before), (now_s, _, after) in pairwise(points):
                grown_s = after.get(account, 0.0) - before.get(account, 0.0)
                got.append(round(max(0.0, grown_s) / max(1e-9, now_s - then_s), 4))
            if any(due) or any(got):
                series.append({"user": account[0], "gpu_model": account[1], "entitled": due, "received": got})
        return {"every_s": self.every_s, "at": [round(at_s, 3) for at_s, _, _ in points], "series": series}

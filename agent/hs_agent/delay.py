"""How much later than usual a message came: the controller's boot clock against this host's, which only drift apart slowly."""

WINDOW_S = 300.0
PARTS = 10


class Delay:
    """Of one connection. The least delay seen in the last minutes counts as none."""

    def __init__(self) -> None:
        self._least: list[
            tuple[float, float]
        ] = []  # (begin of a part of the window, least difference of the clocks in it)

    def excess_s(self, sent_s: float, now_s: float) -> float:
        if sent_s <= 0:
            return 0.0  # not said
        apart_s = now_s - sent_s
        self._least = [part for part in self._least if part[0] > now_s - WINDOW_S]
        if self._least and now_s - self._least[-1][0] < WINDOW_S / PARTS:
            began_s, least_s = self._least[-1]
            self._least[-1] = (began_s, min(least_s, apart_s))
        else:
            self._least.append((now_s, apart_s))
        return apart_s - min(least_s for _, least_s in self._least)

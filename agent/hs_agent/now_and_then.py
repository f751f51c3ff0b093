"""What is tried again every few seconds, perhaps for days, and fails: it is said at once, then now and then."""

EVERY_S = 600.0


class NowAndThen:
    """Of one thing that is tried. Mutable."""

    def __init__(self) -> None:
        self._said: tuple[str, float] | None = None  # why, and when last

    def is_due(self, why: str, now_s: float) -> bool:
        """Whether it is to be said now that it failed (and why); it is taken to have been."""
        due = self._said is None or why != self._said[0] or now_s - self._said[1] >= EVERY_S
        if due:
            self._said = (why, now_s)
        return due

    def worked(self) -> None:
        self._said = None


def reason(error: Exception) -> str:
    """Without the file that it is about: which one came to it is nothing new."""
    return str((error.strerror if isinstance(error, OSError) else "") or error)

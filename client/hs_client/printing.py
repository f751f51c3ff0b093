"""Text that others have written, as a terminal shows it."""

from unicodedata import combining, east_asian_width


def cells(text: str) -> int:
    """Columns of a terminal that it takes: letters of East Asia are two wide, accents that are letters of their own none."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def printable(text: str) -> str:
    """A job's name or reason cannot move the cursor or paint the terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def printed(text: str) -> str:
    """The same of several lines."""
    return "\n".join(map(printable, text.split("\n")))

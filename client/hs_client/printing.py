"""Text that others have written, as a terminal shows it."""

import shlex
from unicodedata import combining, east_asian_width


def cells(text: str) -> int:
    """Columns of a terminal that it takes: letters of East Asia are two wide, accents that are letters of their own none."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def printable(text: str) -> str:
    """A job's name or reason cannot move the cursor or paint the terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def escaped(text: str) -> str:
    """The same of words whose line breaks matter: `\\n` for one, as in `$'…'` of a shell."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shell_word(word: str) -> str:
    """Quoted, to be copied into a shell, and printable."""
    if word.isprintable():
        return shlex.quote(word)
    quoted = word.replace("\\", r"\\").replace("'", r"\'")
    return f"$'{escaped(quoted)}'"


def printed(text: str) -> str:
    """The same of several lines."""
    return "\n".join(map(printable, text.split("\n")))

"""Accounts of this machine."""

import pwd

from hs_core.errors import RefusedError


def name_of(uid: int) -> str | None:
    """None: the operating system has no such account."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def check_account(name: str) -> None:
    try:
        pwd.getpwnam(name)
    except (KeyError, ValueError):  # not there, or no name at all: it has a NUL in it
        raise RefusedError(f"run_as: {name!r}: the operating system has no such account") from None

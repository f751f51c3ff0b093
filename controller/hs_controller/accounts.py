"""Accounts of this machine."""

import pwd

from hs_core.errors import RefusedError


def check_account(name: str) -> None:
    try:
        pwd.getpwnam(name)
    except (KeyError, ValueError):  # not there, or no name at all: it has a NUL in it
        raise RefusedError(f"run_as: {name!r}: the operating system has no such account") from None

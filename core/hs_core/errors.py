"""Who is to blame: the caller (`RefusedError`, carry on) or this program (`BrokenError`, stop).

One table maps kinds of refusal to gRPC codes, exit codes and HTTP (`hs_proto.convert`, `docs/errors.md`).
"""

from enum import StrEnum


class Kind(StrEnum):
    """Why a request was refused; stable words, seen by clients."""

    INVALID = "invalid"  # malformed, out of range: exit code 2
    IMPOSSIBLE = "impossible"  # well formed, can never run on this cluster: exit code 3
    NOT_FOUND = "not-found"  # exit code 4; also the answer for what is not yours
    NOT_ALLOWED = "not-allowed"  # exit code 5
    CONFLICT = "conflict"  # the thing is not in a state that allows this: exit code 1
    UNAVAILABLE = "unavailable"  # try again later (read-only store, overload): exit code 6


class RefusedError(Exception):
    """The caller's request cannot be met; nothing was changed. The message names field, value and what was expected."""

    def __init__(self, message: str, kind: Kind = Kind.INVALID) -> None:
        super().__init__(message)
        self.kind = kind


class BrokenError(Exception):
    """An invariant of this program does not hold; the process stops and recovers from its journal."""

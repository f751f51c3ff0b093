"""What can go wrong for a caller, each with the kind the controller uses and hsctl's exit code (docs/errors.md)."""

from typing import ClassVar

OK = 0
FAILED = 1
BAD_USAGE = 2
IMPOSSIBLE = 3
NOT_FOUND = 4
NOT_ALLOWED = 5
UNREACHABLE = 6
TIMEOUT = 124
INTERRUPTED = 130
BROKEN_PIPE = 141  # what a shell shows for a program ended by SIGPIPE


class HeteroShareError(Exception):
    """Nothing was changed unless the message says otherwise."""

    kind: ClassVar[str] = "failed"
    exit_code: ClassVar[int] = FAILED


class InvalidError(HeteroShareError):
    """Malformed or out of range: the message names field, value and what was expected."""

    kind = "invalid"
    exit_code = BAD_USAGE


class ImpossibleError(HeteroShareError):
    """Well formed, but can never run on this cluster."""

    kind = "impossible"
    exit_code = IMPOSSIBLE


class NotFoundError(HeteroShareError):
    """There is no such thing, or it is not yours."""

    kind = "not-found"
    exit_code = NOT_FOUND


class NotAllowedError(HeteroShareError):
    kind = "not-allowed"
    exit_code = NOT_ALLOWED


class ConflictError(HeteroShareError):
    """The thing is not in a state that allows this."""

    kind = "conflict"
    exit_code = FAILED


class UnavailableError(HeteroShareError):
    """The controller cannot be reached, cannot write just now, or speaks another version."""

    kind = "unavailable"
    exit_code = UNREACHABLE


class WaitTimeoutError(HeteroShareError):
    """What was waited for has not happened yet; the job goes on."""

    kind = "timeout"
    exit_code = TIMEOUT


BY_KIND: dict[str, type[HeteroShareError]] = {
    error.kind: error
    for error in (
        InvalidError,
        ImpossibleError,
        NotFoundError,
        NotAllowedError,
        ConflictError,
        UnavailableError,
    )
}

# For a controller (or something between) that sent no "hs-kind".
BY_STATUS: dict[str, type[HeteroShareError]] = {
    "INVALID_ARGUMENT": InvalidError,
    "OUT_OF_RANGE": InvalidError,
    "NOT_FOUND": NotFoundError,
    "PERMISSION_DENIED": NotAllowedError,
    "UNAUTHENTICATED": NotAllowedError,
    "FAILED_PRECONDITION": ConflictError,
    "ABORTED": ConflictError,
    "ALREADY_EXISTS": ConflictError,
    "UNAVAILABLE": UnavailableError,
    "UNIMPLEMENTED": UnavailableError,
    "DEADLINE_EXCEEDED": UnavailableError,
    "RESOURCE_EXHAUSTED": UnavailableError,
}

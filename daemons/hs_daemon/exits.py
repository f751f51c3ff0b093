"""With which code a program ends that was refused something."""

from hs_core.errors import Kind

EXIT_CODES = {
    Kind.INVALID: 2,
    Kind.IMPOSSIBLE: 3,
    Kind.NOT_FOUND: 4,
    Kind.NOT_ALLOWED: 5,
    Kind.CONFLICT: 1,
    Kind.UNAVAILABLE: 6,
}

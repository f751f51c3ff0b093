"""Who was refused, and why: told in the log, and counted. Anybody who reaches a door can make us write, so lines are few; the counter has them all."""

import time
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from ipaddress import IPv4Address, ip_address

import structlog

from hs_controller.meters import Meters
from hs_controller.permissions import PERMISSIONS
from hs_controller.registry import digest_of

log = structlog.get_logger("hs_controller.refusals")

WITHIN_S, OF_ONE, OF_ALL = 60.0, 5, 60  # lines within so long
TEXT_CHARS = 300  # there may be words of the caller's in it
CONNECTION, PAGE = "connection", "page"
CALLS = frozenset({CONNECTION, PAGE, *(method.rsplit("/", 1)[-1] for method in PERMISSIONS)})
OURS = ("hs_", "hsj_")  # what our tokens begin with: 256 bits, so that a part of a hash gives nothing away


class Why(StrEnum):
    NOBODY = "nobody"  # shows nothing
    TOKEN = "token"  # noqa: S105 — a user's: not known, expired, revoked
    CERTIFICATE = "certificate"  # of a node that was removed, replaced or has ended, or of none
    RIGHTS = "rights"  # is known, and may not
    INVITATION = "invitation"  # a join's token: wrong, used, expired, another node's
    HANDSHAKE = "handshake"  # no TLS came about
    CROWDED = "crowded"  # too many connections


def token_id(token: str) -> str:
    """As `hsctl token list` names it; empty: it is none of ours, but somebody's password perhaps, of which nothing is told."""
    return digest_of(token)[:12] if token.startswith(OURS) else ""


class Refusals:
    def __init__(self, meters: Meters, clock: Callable[[], float] = time.monotonic) -> None:
        self._meters = meters
        self._clock = clock
        self._began_s = float("-inf")
        self._lines: Counter[tuple[str, str, Why]] = Counter()  # with at most OF_ALL keys
        self._quiet = 0

    def tell(
        self, call: str, why: Why, text: str, *, who: str = "", token: str = "", address: str = ""
    ) -> None:
        """`call`: as the table of permissions has it, or CONNECTION or PAGE. `token`: its id."""
        call = call.rsplit("/", 1)[-1]
        call = call if call in CALLS else "other"
        self._meters.refused(call, why)
        if self._told((network(address), call, why)):
            more = {"who": who, "token": token, "address": address}
            log.warning(
                "connection-refused" if call == CONNECTION else "refused",
                **({} if call == CONNECTION else {"call": call}),
                kind=str(why),
                why=text[:TEXT_CHARS],
                **{key: value for key, value in more.items() if value},
            )

    def _told(self, key: tuple[str, str, Why]) -> bool:
        now_s = self._clock()
        if now_s - self._began_s >= WITHIN_S:
            if self._quiet:
                log.warning("refusals-not-told", count=self._quiet, why="hs_refused_total has them all")
            self._began_s, self._quiet = now_s, 0
            self._lines.clear()
        if self._lines[key] >= OF_ONE or self._lines.total() >= OF_ALL:
            self._quiet += 1
            return False
        self._lines[key] += 1
        return True


def network(address: str) -> str:
    """Whose it is: one host has 2^64 addresses of IPv6. One of IPv4 stands for itself, also where IPv6 is listened at."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv4Address):
        return address
    return str(found.ipv4_mapped) if found.ipv4_mapped is not None else found.exploded[:19]

"""Addresses as the daemons' configurations have them."""

import ipaddress

from hs_core.names import HOST_NAME


def is_loopback(host: str) -> bool:
    """`host`: a name or an address, an IPv6 one without brackets. Of names only `localhost` is known to be."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_in(written: str) -> str | None:
    """The host of `host:port` as it stands there, an IPv6 one without its brackets; None: it can be no host's."""
    if written.startswith("[") and written.endswith("]"):
        return written[1:-1] if _is_ipv6(written[1:-1]) else None
    return written if HOST_NAME.fullmatch(written) else None


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True

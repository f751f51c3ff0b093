"""Addresses as the daemons' configurations have them."""

import ipaddress


def is_loopback(host: str) -> bool:
    """`host`: a name or an address, an IPv6 one without brackets. Of names only `localhost` is known to be."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

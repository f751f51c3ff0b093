"""Who is who by certificate: names that the cluster's CA gives to nobody else.

Role and name are the certificate's one URI. gRPC's clients look at DNS names only, so each certificate has one of those as well, made
from the same words, whatever the machine is called.
"""

from collections.abc import Sequence

DOMAIN = "heteroshare"
CONTROLLER_URI = f"spiffe://{DOMAIN}/controller"
CONTROLLER_DNS = f"controller.{DOMAIN}"
_AGENT_URI = f"spiffe://{DOMAIN}/agent/"
RENEW_AFTER = 2 / 3  # of a certificate's life
_REMOVED = "was removed from the cluster"


def removed(node: str) -> str:
    """How the controller begins to say why it refuses a node that an administrator has taken out: its agent ends its jobs at that."""
    return f"{node} {_REMOVED}"


def agent_uri(node: str) -> str:
    return f"{_AGENT_URI}{node}"


def agent_dns(node: str) -> str:
    return f"{node}.agent.{DOMAIN}"


def node_of(uris: Sequence[str]) -> str | None:
    """Whose certificate it is, by its URIs; None: no agent's."""
    if len(uris) != 1 or not uris[0].startswith(_AGENT_URI):
        return None
    return uris[0].removeprefix(_AGENT_URI) or None

"""What gRPC wants of an identity: for channels, for the peers' door, and to ask the controller for a certificate.

TLS 1.3: the controller's door speaks nothing older. gRPC has no switch for it between agents, but takes a list of cipher suites for
TLS 1.2 alone; given one that needs RSA keys, which nobody has here, TLS 1.2 has nothing left to agree on. The package sets that list.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import hs_daemon  # noqa: F401 - before gRPC, whose own lines it stops

import grpc  # isort: skip
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from hs_agent.identity import Identity
from hs_core.errors import Kind, RefusedError
from hs_core.names import HostName
from hs_proto.certified import CONTROLLER_DNS, agent_dns, node_of

ASK_S = 20.0


def channel_credentials(identity: Identity) -> grpc.ChannelCredentials:
    """For channels to the controller and to peers. They do not follow a renewal: build new channels from the new identity."""
    return grpc.ssl_channel_credentials(identity.ca_pem, identity.key_pem, identity.chain_pem)


def expects_controller() -> tuple[str, str]:
    """A channel option: the other end must have the controller's certificate, whatever address was dialled."""
    return "grpc.ssl_target_name_override", CONTROLLER_DNS


def expects_peer(node: HostName) -> tuple[str, str]:
    """A channel option: the other end must have this node's certificate."""
    return "grpc.ssl_target_name_override", agent_dns(node)


def server_credentials(
    identity: Identity, newest: Callable[[], Identity] | None = None
) -> grpc.ServerCredentials:
    """For the peers' door: both sides show a certificate of this cluster. `newest` is asked at each handshake."""

    def configuration(one: Identity) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(one.key_pem, one.chain_pem)], one.ca_pem)

    shown = identity

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal shown
        now = newest() if newest is not None else identity
        if now is shown:
            return None
        shown = now
        return configuration(now)

    return grpc.dynamic_ssl_server_credentials(
        configuration(identity),
        changed,  # type: ignore[arg-type]  # None, "as before", is in gRPC's documentation but not in the stubs
        require_client_authentication=True,
    )


def peer_node(auth_context: Mapping[str, Sequence[bytes]]) -> HostName | None:
    """The node at the other end of a call (`context.auth_context()`); None: it is no agent."""
    node = node_of([uri.decode() for uri in auth_context.get("peer_uri", ())])
    return HostName(node) if node is not None else None


# --- asking for a certificate --------------------------------------------------------------------------------------------


def csr(name: str, key: ec.EllipticCurvePrivateKey) -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64] or "agent")])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)

_KINDS = {
    grpc.StatusCode.PERMISSION_DENIED: Kind.NOT_ALLOWED,
    grpc.StatusCode.UNAUTHENTICATED: Kind.NOT_ALLOWED,
    grpc.StatusCode.INVALID_ARGUMENT: Kind.INVALID,
    grpc.StatusCode.NOT_FOUND: Kind.NOT_FOUND,
    grpc.StatusCode.ABORTED: Kind.CONFLICT,
}


_OF_ANOTHER_CA = ("self signed certificate", "self-signed certificate", "unable to get local issuer")


def of_another_ca(controller: str, node: str, said: str) -> str:
    """What to tell people where the library `said` so of the certificate that was shown; empty: it did not."""
    if not any(words in said for words in _OF_ANOTHER_CA):
        return ""
    return (
        f"{controller} shows a certificate of another CA than this host's: if the cluster's was made anew,"
        f" `hsctl node enroll {node}` where an administrator is, then `hs-agent join --replace` here; else that is another cluster"
    )


def refusal(error: grpc.RpcError, controller: str) -> RefusedError:
    return RefusedError(f"{controller}: {error.details()}", _KINDS.get(error.code(), Kind.UNAVAILABLE))

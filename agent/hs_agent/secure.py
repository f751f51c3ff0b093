"""Who this agent is to the controller and to its peers: its certificate, or nobody where all is on this machine."""

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc

from hs_agent import credentials, identity
from hs_agent.config import Config
from hs_agent.renewal import Keeper
from hs_core.errors import Kind, RefusedError
from hs_core.names import HostName

Options = Sequence[tuple[str, Any]]


class Secure:
    """mTLS with the newest certificate."""

    def __init__(self, own: identity.Identity, controller: str) -> None:
        self.keeper = Keeper(own, controller, self._changed)
        self.renewed = asyncio.Event()  # the link to the controller begins anew, and clears it

    def _changed(self, _: identity.Identity) -> None:
        self.renewed.set()

    def server_credentials(self) -> grpc.ServerCredentials:
        return credentials.server_credentials(self.keeper.identity, lambda: self.keeper.identity)

    def channel(self, address: str, node: HostName | None, options: Options) -> grpc.aio.Channel:
        """Where nobody but this node is talked to; None: nobody but the controller."""
        expected = credentials.expects_controller() if node is None else credentials.expects_peer(node)
        own = credentials.channel_credentials(self.keeper.identity)
        return grpc.aio.secure_channel(address, own, options=[*options, expected])

    def node_of(self, context: Any) -> str:
        """Whose certificate the caller showed; empty: no agent's."""
        return credentials.peer_node(context.auth_context()) or ""


def load(config: Config) -> Secure | None:
    """None: everything stays on this machine."""
    if not config.secure and (config.dev or not config.peer_listen):
        return None
    folder = config.state_dir / identity.FOLDER
    own = identity.load_identity(folder)
    if own is None:
        raise RefusedError(
            f"{folder}: this host has no certificate: `hsctl node enroll {config.name}` where an administrator is, then `hs-agent join` here",
            Kind.NOT_ALLOWED,
        )
    if own.node != config.name:
        raise RefusedError(
            f"{folder}: the certificate is of node {own.node!r}, but name = {config.name!r}: set the name, or join anew",
            Kind.NOT_ALLOWED,
        )
    return Secure(own, config.controller)

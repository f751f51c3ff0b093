"""Who this agent is to the controller and to its peers: its certificate, or nobody where all is on this machine."""

from collections.abc import Sequence
from typing import Any, Protocol

import grpc

from hs_agent.config import Config
from hs_core.errors import Kind, RefusedError

Options = Sequence[tuple[str, Any]]


class Identity(Protocol):
    def server_credentials(self) -> grpc.ServerCredentials: ...

    def channel(self, address: str, role: str, options: Options) -> grpc.aio.Channel:
        """Where nobody but `role` ("agent/NAME", "controller") is talked to."""

    def peer_node(self, context: Any) -> str:
        """The node whose certificate the caller showed; empty: it is no agent."""


def load(config: Config) -> Identity | None:
    """None: everything stays on this machine."""
    if not config.secure and (config.dev or not config.peer_listen):
        return None
    raise RefusedError(f"{config.name} has no certificate: join the cluster first", Kind.NOT_ALLOWED)

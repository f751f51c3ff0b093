"""The way to the controller: over mTLS, or on this machine with a token."""

from collections.abc import Sequence
from typing import Any

import grpc

from hs_agent.config import Config
from hs_agent.secure import Secure


def channel(
    config: Config, identity: Secure | None, options: Sequence[tuple[str, Any]] = ()
) -> grpc.aio.Channel:
    """`identity`: None where everything stays on this machine."""
    # Connections are not shared between clients of one process; a proxy has no business here.
    options = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1), *options]
    if identity is not None:
        return identity.channel(config.controller, None, options)
    # The name in the authority of a unix socket would be its path, percent-encoded; some servers refuse that.
    options = [*options, ("grpc.default_authority", "localhost")]
    return grpc.aio.insecure_channel(config.controller, options=options)


def metadata(config: Config) -> tuple[tuple[str, str], ...]:
    if config.token_file is None:
        return ()
    token = config.token_file.read_text(encoding="ascii").strip()  # each time: it may be renewed
    return (("authorization", f"Bearer {token}"),)

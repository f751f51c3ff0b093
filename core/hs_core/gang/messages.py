"""What passes between ranks and agent (docs/job-protocol.md), as it is sent: JSON objects over connections."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from hs_core.reports import Tier

PROTOCOL = 1
MAX_RANKS = 4096
HOOK_TIERS = (Tier.HOLD, Tier.SWAP, Tier.CHECKPOINT)

Message = Mapping[str, Any]
Connection: TypeAlias = Any
"""An opaque hashable that the driver chose: a number on one host, (node rank, number) on several."""


class MalformedError(Exception):
    """A message that its sender should not have sent; never leaves this package."""

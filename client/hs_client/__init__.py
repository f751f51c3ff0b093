"""hsctl and the Python API: `from hs_client import Client, Job`."""

from __future__ import annotations

import os

# Read when gRPC is loaded, whichever module does that first. Its own lines are not for people; errors come as exceptions.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# Its own resolver goes by one line of /etc/hosts for a name and by none of /etc/nsswitch.conf: a name would be another machine than to all others.
os.environ.setdefault("GRPC_DNS_RESOLVER", "native")

TYPE_CHECKING = False  # typing takes its time, in which hsctl cannot be interrupted in silence yet
if TYPE_CHECKING:
    from typing import Any

    from hs_client.api import Client, Submitted
    from hs_client.ends import exit_code
    from hs_client.errors import (
        ConflictError,
        HeteroShareError,
        ImpossibleError,
        InvalidError,
        NotAllowedError,
        NotFoundError,
        UnavailableError,
        WaitTimeoutError,
    )
    from hs_client.jobfile import Job

_HOME = {
    "Client": "api",
    "Submitted": "api",
    "exit_code": "ends",
    "Job": "jobfile",
    "HeteroShareError": "errors",
    "InvalidError": "errors",
    "ImpossibleError": "errors",
    "NotFoundError": "errors",
    "NotAllowedError": "errors",
    "ConflictError": "errors",
    "UnavailableError": "errors",
    "WaitTimeoutError": "errors",
}

__all__ = [
    "Client",
    "ConflictError",
    "HeteroShareError",
    "ImpossibleError",
    "InvalidError",
    "Job",
    "NotAllowedError",
    "NotFoundError",
    "Submitted",
    "UnavailableError",
    "WaitTimeoutError",
    "exit_code",
]


def __getattr__(name: str) -> Any:
    """Late: hsctl starts through this package and must not pay for grpc and pydantic before it needs them."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"hs_client.{_HOME[name]}"), name)

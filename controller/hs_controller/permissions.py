"""Who may call what: data, default deny. A call that is not in the table is refused to everybody."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from hs_core.errors import Kind, RefusedError


class Role(StrEnum):
    ANONYMOUS = "anonymous"  # came over TLS and showed nothing
    USER = "user"  # an account that came through the unix socket, or who holds a user's token
    ADMIN = "admin"  # root, the controller's own account, `admins`
    AGENT = (
        "agent"  # root or the controller's own account, through the unix socket: whichever node it says it is
    )
    NODE = "node"  # who holds a node's certificate


class Reach(StrEnum):
    """How far a permission goes where a call is about somebody's job, token or node."""

    ALL = "all"  # everybody's
    OWN = "own"  # one's own; somebody else's answers like one that does not exist


_EVERYONE = {Role.USER: Reach.ALL, Role.ADMIN: Reach.ALL}
_ADMINS = {Role.ADMIN: Reach.ALL}
_OWNERS = {Role.USER: Reach.OWN, Role.ADMIN: Reach.ALL}

PERMISSIONS: Mapping[str, Mapping[Role, Reach]] = {
    "/hs.v1.HeteroShare/Info": _EVERYONE,
    "/hs.v1.HeteroShare/Submit": _OWNERS,
    "/hs.v1.HeteroShare/Cancel": _OWNERS,
    "/hs.v1.HeteroShare/Pause": _OWNERS,
    "/hs.v1.HeteroShare/Unpause": _OWNERS,
    "/hs.v1.HeteroShare/ListJobs": _EVERYONE,
    "/hs.v1.HeteroShare/GetJob": _EVERYONE,  # without environment and log to those it does not belong to
    "/hs.v1.HeteroShare/WatchJob": _EVERYONE,
    "/hs.v1.HeteroShare/Why": _EVERYONE,
    "/hs.v1.HeteroShare/Logs": _OWNERS,
    "/hs.v1.HeteroShare/Exec": _OWNERS,  # it is the job's user whom the command runs as
    "/hs.v1.HeteroShare/Shares": _EVERYONE,
    "/hs.v1.HeteroShare/Usage": _EVERYONE,
    "/hs.v1.HeteroShare/ListNodes": _EVERYONE,
    "/hs.v1.HeteroShare/Events": _EVERYONE,
    "/hs.v1.HeteroShare/ListTrades": _EVERYONE,
    "/hs.v1.HeteroShare/GetPolicy": _EVERYONE,
    "/hs.v1.HeteroShare/CreateToken": _OWNERS,
    "/hs.v1.HeteroShare/ListTokens": _OWNERS,
    "/hs.v1.HeteroShare/RevokeToken": _OWNERS,
    "/hs.v1.HeteroShare/ListUsers": _OWNERS,
    "/hs.v1.HeteroShare/SetUser": _ADMINS,
    "/hs.v1.HeteroShare/RemoveUser": _ADMINS,
    "/hs.v1.HeteroShare/SetPolicy": _ADMINS,
    "/hs.v1.HeteroShare/DrainNode": _ADMINS,
    "/hs.v1.HeteroShare/UndrainNode": _ADMINS,
    "/hs.v1.HeteroShare/SetGpuDrain": _ADMINS,
    "/hs.v1.HeteroShare/EnrollNode": _ADMINS,
    "/hs.v1.HeteroShare/RemoveNode": _ADMINS,
    "/hs.v1.HeteroShare/Support": _ADMINS,
    "/hs.v1.HeteroShare/Backup": _ADMINS,
    "/hs.v1.AgentLink/Connect": {Role.AGENT: Reach.ALL, Role.NODE: Reach.OWN},
    "/hs.v1.AgentLink/Clock": {Role.AGENT: Reach.ALL, Role.NODE: Reach.ALL},
    "/hs.v1.Identity/Join": {Role.ANONYMOUS: Reach.ALL},  # with a token that works once
    "/hs.v1.Identity/Renew": {Role.NODE: Reach.OWN},
    "/metrics": _EVERYONE,  # over HTTP
}

VERBS: Mapping[str, str] = {
    "SetUser": "user set",
    "RemoveUser": "user remove",
    "SetPolicy": "policy set",
    "DrainNode": "node drain",
    "UndrainNode": "node undrain",
    "SetGpuDrain": "gpu drain, gpu undrain",
    "EnrollNode": "node enroll",
    "RemoveNode": "node remove",
    "Support": "support-bundle",
    "Backup": "backup",
}
"""What administrators' calls are called where people meet them, in hsctl."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who is on the other end, known from the connection, never from the message."""

    name: str
    roles: frozenset[Role]
    account: bool = True  # the name is a user's
    node: str = ""  # of a node's certificate, as are these
    serial: str = ""
    issued_s: float = 0.0
    until_s: float = float("inf")  # when what it showed ends

    @property
    def admin(self) -> bool:
        return Role.ADMIN in self.roles


def reach(caller: Caller, method: str) -> Reach | None:
    """How far the caller may go with this call; None: not at all."""
    rule = PERMISSIONS.get(method, {})
    reaches = {rule[role] for role in caller.roles if role in rule}
    if Reach.ALL in reaches:
        return Reach.ALL
    return Reach.OWN if reaches else None


def check(caller: Caller, method: str) -> None:
    if reach(caller, method) is None:
        roles = ", ".join(sorted(caller.roles)) or "none"
        call = method.rsplit("/", 1)[-1]
        expected = ": expected an administrator" if call in VERBS else ""
        raise RefusedError(
            f"{VERBS.get(call, call)} is not allowed to {caller.name} (roles: {roles}){expected}",
            Kind.NOT_ALLOWED,
        )


def table() -> str:
    """For docs/security.md: one line a call, one column a role."""
    words = {Reach.ALL: "all", Reach.OWN: "own", None: ""}
    lines = [
        f"| call | {' | '.join(Role)} |",
        f"|---|{'---|' * len(Role)}",
        *(
            f"| {method.removeprefix('/hs.v1.')} | {' | '.join(words[rule.get(role)] for role in Role)} |"
            for method, rule in PERMISSIONS.items()
        ),
    ]
    return "\n".join(lines)

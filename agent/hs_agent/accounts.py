"""The operating system accounts that jobs run as."""

import os
import pwd
from dataclasses import dataclass

from hs_agent.config import Config
from hs_core.errors import Kind, RefusedError
from hs_core.reports import NO_ACCOUNT


@dataclass(frozen=True, slots=True)
class Account:
    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    shell: str


class NoAccountError(RefusedError):
    """The server does not know it: it was forgotten, or whoever knows accounts (LDAP, SSSD) does not answer. Not the job's fault."""

    def __init__(self, name: str, host: str) -> None:
        super().__init__(
            f"{NO_ACCOUNT} {name!r} on {host}: an administrator makes one there, "
            "or names another with `hsctl user set USER --run-as ACCOUNT`",
            Kind.NOT_FOUND,
        )


def account(name: str, config: Config) -> Account:
    """The operating system account a job runs as; refused where it must not or cannot."""
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise NoAccountError(name, config.name) from None
    own = os.geteuid()
    if found.pw_uid < config.min_uid and not (config.allow_root and found.pw_uid == own):
        raise RefusedError(
            f"account {name!r} has uid {found.pw_uid}; jobs run only as uid {config.min_uid} or above here",
            Kind.NOT_ALLOWED,
        )
    if own not in (0, found.pw_uid):
        mine = pwd.getpwuid(own).pw_name
        raise RefusedError(
            f"the agent here runs as {mine!r}, not root: it cannot run jobs as {name!r}", Kind.NOT_ALLOWED
        )
    groups = tuple(os.getgrouplist(found.pw_name, found.pw_gid))
    return Account(
        found.pw_name, found.pw_uid, found.pw_gid, groups, found.pw_dir, found.pw_shell or "/bin/sh"
    )

"""Attributes of this process that only the kernel knows by number, and the way from root to a user."""

import contextlib
import ctypes
import errno
import os
from typing import Any

from hs_agent.bare.files import write_file

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP = 1, 4, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 36, 38, 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
CAPABILITY_VERSION_3 = 0x20080522

KEYCTL_JOIN_SESSION_KEYRING = 1
KEYCTL = {"x86_64": 250, "ppc64le": 271, "s390x": 280}  # the number of the call; of the machines since then:
KEYCTL_SINCE = 219

libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    if (
        libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))
        != 0
    ):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def empty_capabilities() -> None:
    class Header(ctypes.Structure):
        _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))

    class Data(ctypes.Structure):
        _fields_ = (
            ("effective", ctypes.c_uint32),
            ("permitted", ctypes.c_uint32),
            ("inheritable", ctypes.c_uint32),
        )

    header, data = Header(CAPABILITY_VERSION_3, 0), (Data * 2)()
    if libc.capset(ctypes.byref(header), ctypes.byref(data)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def drop_bounding_set() -> None:
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno == errno.EINVAL:  # past the last one this kernel knows
                return
            raise


def leave_keyring() -> None:
    """For one of its own. The agent's is handed down to all that it starts: whoever has it reads the keys in it, and adds some, whosever they are."""
    number = KEYCTL.get(os.uname().machine, KEYCTL_SINCE)
    if libc.syscall(ctypes.c_long(number), ctypes.c_ulong(KEYCTL_JOIN_SESSION_KEYRING), None) == -1:
        code = ctypes.get_errno()
        # A kernel without keys, or a container that does not let at them: then nobody in it gets at any.
        if code not in {errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP}:
            raise OSError(code, os.strerror(code))


def become(identity: dict[str, Any] | None) -> None:
    """Turn into the user for good. Without an identity (the agent is not root) it is that user already."""
    if identity is not None:
        with contextlib.suppress(OSError):
            write_file("/proc/self/oom_score_adj", "0")
        uid, gid = int(identity["uid"]), int(identity["gid"])
        if uid != 0:
            leave_keyring()  # as root still: a user's quota may be used up
        os.setgroups([int(group) for group in identity["groups"]])
        os.setresgid(gid, gid, gid)
        # A job of root (allow_root, one's own machine) keeps root's rights: it would get them back at exec anyhow,
        # and without them root could not read its users' files. It gains nothing it did not have.
        if uid != 0:
            drop_bounding_set()
        with contextlib.suppress(OSError):  # kernels before 4.3 have no ambient set
            if libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0:
                raise OSError(ctypes.get_errno(), "ambient capabilities")
        os.setresuid(uid, uid, uid)
        if uid != 0:
            empty_capabilities()
    prctl(PR_SET_NO_NEW_PRIVS, 1)

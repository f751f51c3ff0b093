"""This host's wall clock: whether somebody keeps it right, and how far it is from the controller's. Decisions go by other clocks; certificates and what people read go by this one."""

import asyncio
import ctypes
import os
import subprocess
import time
from typing import NamedTuple

import grpc

from hs_agent import dialling, secure
from hs_agent.config import Config
from hs_core.errors import RefusedError
from hs_proto.v1 import agent_pb2, agent_pb2_grpc

STA_UNSYNC = 0x40
CALLS, CALL_S, ASK_S = 3, 3.0, 5.0
REFUSED = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
NO_CONTROLLERS = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}  # answers, if there is one


class _Timex(ctypes.Structure):
    """struct timex of <sys/timex.h>, as far as it is read, and room for the rest."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


def is_kept() -> bool | None:
    """Whether it is kept in step with others' (NTP), as the kernel was told; None: nobody can say."""
    found = _Timex()
    if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(found)) >= 0:
        return not found.status & STA_UNSYNC
    return _as_systemd_says()  # within a unit whose clock is protected the kernel is not to be asked


def _as_systemd_says() -> bool | None:
    try:
        said = subprocess.run(
            ["timedatectl", "show", "--property=NTPSynchronized", "--value"],
            capture_output=True, text=True, timeout=ASK_S, check=False, stdin=subprocess.DEVNULL,
            env={"PATH": os.environ.get("PATH", os.defpath)},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return {"yes": True, "no": False}.get(said.stdout.strip())


class Difference(NamedTuple):
    ahead_s: float  # of this host's clock to the controller's
    within_s: float


def against_the_controllers(config: Config) -> Difference | str:
    """Or why they could not be compared."""
    try:
        return asyncio.run(_compared(config))
    except grpc.aio.AioRpcError as error:
        return error.details() or error.code().name
    except (RefusedError, OSError) as error:
        return str(error)


class NotTold(NamedTuple):
    why: str
    refused: bool  # by a controller; else whoever is there is none of this host's cluster, as far as it could be asked


def why_not_told(config: Config) -> NotTold | None:
    """Why the controller tells this host no time, as it does any host that is one of its servers. None: it does, or this host has nothing to show it."""
    try:
        asyncio.run(_compared(config, calls=1))
    except grpc.aio.AioRpcError as error:
        if error.code() in REFUSED | NO_CONTROLLERS:
            return NotTold(error.details() or error.code().name, error.code() in REFUSED)
    except (RefusedError, OSError):
        pass
    return None


async def _compared(config: Config, calls: int = CALLS) -> Difference:
    own = secure.load(config) if config.secure else None
    async with dialling.channel(config, own) as channel:
        stub, metadata = agent_pb2_grpc.AgentLinkStub(channel), dialling.metadata(config)
        return min(
            [await _compared_once(stub, metadata) for _ in range(calls)], key=lambda found: found.within_s
        )


async def _compared_once(
    stub: "agent_pb2_grpc.AgentLinkAsyncStub", metadata: tuple[tuple[str, str], ...]
) -> Difference:
    asked_s = time.time()
    answer = await stub.Clock(agent_pb2.ClockRequest(), timeout=CALL_S, metadata=metadata)
    took_s = max(time.time() - asked_s, 0.0)
    return Difference(asked_s + took_s / 2 - answer.wall_s, took_s / 2)

"""What a rank says to its agent: docs/job-protocol.md."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, List, Optional, Tuple

if TYPE_CHECKING:
    from hs_job.link import Message
    from hs_job.stop import Stop

PROTOCOL = 1
LONGEST_REASON = 500
LONGEST_NOTE = 2_000


def hello(
    place: Tuple[int, int],
    step: int,
    state: str,
    tier: str,
    can: List[str],
    *,
    last_id: int,
    generation: int,
    bound: Optional[Stop],
) -> Message:
    """`place`: its rank, of so many. `last_id`: of the newest stop that it has heard. `bound`: by which it will leave, agent or not."""
    message: Message = {
        "type": "hello",
        "protocol": PROTOCOL,
        "pid": os.getpid(),
        "rank": place[0],
        "world": place[1],
        "step": step,
        "state": state,
        "tier": tier,
        "can": can,
        "id": last_id,
        "generation": generation,
    }
    if bound is not None:
        message["bound"] = bound.said()
    return message


def can(ways: List[str]) -> Message:
    return {"type": "can", "can": ways}


def arrived(step: int, can: List[str], rank: int, world: int) -> Message:
    return {"type": "arrived", "step": step, "can": can, "rank": rank, "world": world}


def blocked(rank: int, world: int, *, on: bool) -> Message:
    return {"type": "blocked", "on": on, "rank": rank, "world": world}


def answer(stop: Stop, step: int) -> Message:
    kind = "accept" if stop.accepted else "reject"
    return {"type": kind, "id": stop.id, "at_step": stop.at_step, "step": step}


def held(stop: Stop, step: int, tier: str, *, moved_bytes: int, seconds: float, digest: str = "") -> Message:
    """`digest`: of its part of a checkpoint, if it wrote one."""
    return {
        "type": "held",
        "id": stop.id,
        "step": step,
        "tier": tier,
        "bytes": moved_bytes,
        "seconds": seconds,
        "generation": stop.generation if digest else -1,
        "digest": digest,
    }


def done(last_id: int, step: int, tier: str) -> Message:
    """It stops of its own accord, once it has done the portion of a copy. `last_id`: of the newest stop that it has heard."""
    return {
        "type": "held",
        "id": last_id,
        "step": step,
        "tier": tier,
        "bytes": 0,
        "seconds": 0.0,
        "generation": -1,
        "digest": "",
        "portion": True,
    }


def saved(stop: Stop, step: int, digest: str) -> Message:
    return {"type": "saved", "id": stop.id, "step": step, "generation": stop.generation, "digest": digest}


def failed(stop: Stop, what: str, why: str) -> Message:
    return {"type": "failed", "id": stop.id, "what": what, "why": why[:LONGEST_REASON]}


def going(step: int, seconds: float) -> Message:
    return {"type": "going", "step": step, "seconds": seconds}


def progress(
    base: Tuple[int, float], mark: Tuple[int, float], device_bytes: int, noise: Optional[Tuple[float, int]]
) -> Message:
    """From one step to a later one. `noise`: scale of the gradients' noise and samples that say so, of an elastic job."""
    message: Message = {
        "type": "progress",
        "step": mark[0],
        "seconds": mark[1] - base[1],
        "steps": mark[0] - base[0],
        "device_bytes": device_bytes,
    }
    if noise is not None:
        message["noise_scale"], message["noise_samples"] = noise
    return message


def restored(step: int, generation: int, note: str, rank: int, world: int) -> Message:
    return {
        "type": "restored",
        "step": step,
        "generation": generation,
        "note": note[:LONGEST_NOTE],
        "rank": rank,
        "world": world,
    }

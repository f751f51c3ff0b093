"""What goes into a support bundle of the controller and its agents. Everything is named here one by one: what is not named is not in it."""

import asyncio
import json
import os
import platform
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hs_controller.config import Config
from hs_controller.links import Hub, Link
from hs_controller.loop import Loop
from hs_controller.metrics import exposition
from hs_controller.pieces import Pieces
from hs_core.errors import RefusedError
from hs_core.names import HostName
from hs_daemon import version
from hs_proto.v1 import controller_pb2 as pb

PIECE_BYTES = 256 << 10
ANSWER_S = 30.0  # of an agent


async def files(loop: Loop, hub: Hub, started_s: float) -> AsyncGenerator[pb.SupportFile]:
    """Large ones in pieces under the same path."""
    asked = asyncio.create_task(_doctors(hub))
    try:
        yield _json("controller/configuration.json", configuration(loop.config))
        yield _json("controller/office.json", await _office(loop, hub, started_s))
        metrics, _ = await exposition(loop, hub, "text/plain")
        for at in range(0, len(metrics), PIECE_BYTES):
            yield pb.SupportFile(name="controller/metrics.txt", data=metrics[at : at + PIECE_BYTES])
        said = await asked
        here = {host.name for host in loop.mind.machine.hosts()} | set(said)
        for name in sorted(here):
            answer = said.get(name) or pb.SupportFile(missing=f"{name} is not connected")
            answer.name = f"servers/{_file_name(name)}/doctor.txt"
            yield answer
    finally:
        asked.cancel()


def configuration(config: Config) -> dict[str, Any]:
    """As it is in force. It holds no secret: where those are, it says at most."""
    return {key: _plain(value) for key, value in asdict(config).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


async def _office(loop: Loop, hub: Hub, started_s: float) -> dict[str, Any]:
    machine, watched, pieces = await loop.settled(), loop.mind.watched, Pieces(loop.settled)
    states = Counter[str]()
    for job in machine.jobs():
        states[job.state.value] += 1
        await pieces.rest()
    return {
        "version": version(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "wall_clock_s": time.time(),
        "controllers_clock_s": loop.clock.now_s(),
        "up_s": time.clock_gettime(time.CLOCK_BOOTTIME) - started_s,
        "term": machine.term,
        "read_only": loop.read_only,
        "committed_seq": loop.onlookers.last_seq,
        "policy": machine.policy.name,
        "policy_fails": machine.failure,
        "decided_at_s": watched.decided_s,
        "decision_s": watched.took_s,
        "deciding_s": machine.deciding_s(loop.clock.now_s()),
        "decisions_given_up": loop.given_up,
        "jobs": dict(sorted(states.items())),
        "servers": len(machine.hosts()),
        "servers_connected": len(hub.names()),
    }


async def _doctors(hub: Hub) -> dict[HostName, pb.SupportFile]:
    links = [link for name in hub.names() if (link := hub.link(name)) is not None]
    said = await asyncio.gather(*map(_doctor, links))
    return {link.host.name: one for link, one in zip(links, said, strict=True)}


async def _doctor(link: Link) -> pb.SupportFile:
    name = link.host.name
    asking, leaving = asyncio.create_task(link.doctor()), asyncio.create_task(link.closed.wait())
    try:
        await asyncio.wait({asking, leaving}, timeout=ANSWER_S, return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            return pb.SupportFile(data=asking.result().encode())
        why = "went away meanwhile" if leaving.done() else f"did not answer within {ANSWER_S:g} s"
        return pb.SupportFile(missing=f"{name} {why}")
    except RefusedError as refused:
        return pb.SupportFile(missing=str(refused))
    finally:
        asking.cancel()
        leaving.cancel()


def _file_name(host: str) -> str:
    """A host's name is what its agent says."""
    return "".join(each if each.isalnum() or each in "._-" else "_" for each in host).lstrip(".") or "_"


def _json(name: str, value: Any) -> pb.SupportFile:
    return pb.SupportFile(name=name, data=json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n")

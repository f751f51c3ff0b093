"""The daemon around the agent: signals, the lock, the link, systemd."""

import asyncio
import contextlib
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import structlog

from hs_agent import cgroup, memory, secure
from hs_agent.config import Config
from hs_agent.devices import open_devices
from hs_agent.link import Link
from hs_agent.loop import Agent
from hs_core.errors import Kind, RefusedError
from hs_daemon import notify
from hs_daemon.signals import heed

BROKEN = 70  # EX_SOFTWARE: systemd starts us again, and the jobs have not noticed

log = structlog.get_logger("agent")


async def serve(config: Config) -> int:
    """The exit status."""
    locks = contextlib.ExitStack()
    with _begun(config):
        locks.callback(os.close, memory.lock(config.state_dir))
    devices = open_devices(config)
    groups = cgroup.probe(config.cgroup, config.state_dir, config.cgroup_root)
    try:
        with _begun(config):
            identity = secure.load(config)
            agent = Agent(config, devices, groups, identity)  # makes the folder
            sockets = memory.lock_sockets(config.run_dir, config.state_dir)
            if sockets is not None:
                locks.callback(os.close, sockets)
        for warning in agent.warnings:
            log.warning("host", warning=warning)
        told_to_stop = asyncio.Event()
        heed(told_to_stop)
        return await _run(agent, identity, told_to_stop)
    finally:
        cgroup.tidy(groups)
        devices.close()
        locks.close()


@contextlib.contextmanager
def _begun(config: Config) -> Iterator[None]:
    """Folders and files that cannot be made or read as it starts are the administrator's to mend. Raises RefusedError."""
    try:
        yield
    except OSError as error:
        path = Path(os.fsdecode(error.filename)) if error.filename else config.state_dir
        fields = {"state_dir": config.state_dir, "run_dir": config.run_dir}
        named = [f"{field}: " for field, folder in fields.items() if path.is_relative_to(folder)]
        why = error.strerror or str(error)
        raise RefusedError(f"{''.join(named[-1:])}{path}: {why}", Kind.CONFLICT) from error


async def _link(agent: Agent, identity: secure.Secure | None) -> None:
    """Of an agent that does not know what is here the controller hears nothing: it would be told that nothing is."""
    if agent.machine is None:
        await agent.broken.wait()
    else:
        await Link(agent.config, agent, identity).run()


async def _run(agent: Agent, identity: secure.Secure | None, told_to_stop: asyncio.Event) -> int:
    with _begun(agent.config):
        await agent.start()
    link = asyncio.create_task(_link(agent, identity))
    stop = asyncio.create_task(told_to_stop.wait())
    broken = asyncio.create_task(agent.broken.wait())
    tasks: list[asyncio.Task[Any]] = [link, stop, broken]
    if identity is not None and agent.config.secure:
        tasks.append(asyncio.create_task(identity.keeper.run()))
    gc.freeze()  # what start-up made stays: collections need not look at it again
    notify.status(agent.described, "READY=1")
    try:
        await asyncio.wait({link, stop, broken}, return_when=asyncio.FIRST_COMPLETED)
        notify.status("stopping", "STOPPING=1")
        if link.done() and isinstance(refused := link.exception(), RefusedError):
            raise refused
        return BROKEN if agent.broken.is_set() or link.done() else 0
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        left = await agent.stop()
        notify.status(f"stopped; jobs that go on without it: {left}" if left else "stopped")
        log.info("agent stops", jobs_left_running=left)

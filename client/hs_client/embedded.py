"""A cluster of one machine: the two daemons that `hsctl up` starts and `hsctl down` stops."""

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from hs_client import process
from hs_client.api import Client
from hs_client.cluster_files import (
    AGENT,
    CONTROLLER,
    MAX_HOSTS,
    Cluster,
    Folders,
    Options,
    agent_toml,
    controller_toml,
    folders,
    locked,
    read_cluster,
    recorded,
    restored,
    unlike,
    write,
    write_cluster,
)
from hs_client.errors import ConflictError, HeteroShareError, InvalidError, UnavailableError
from hs_client.process import Identity

Report = Callable[[str], None]

NEEDS = {CONTROLLER: ("hs_controller", "sqlalchemy", "structlog"), AGENT: ("hs_agent", "pynvml", "structlog")}
SHIMS_END_S = 5.0  # that what is left of jobs may take once their agent has ended them
START_S = 30.0  # that a daemon may take until it can be told to stop
_COUNT_GPUS = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetCount())"


def devices_of(options: Options) -> str:
    """nvml or emulated; auto asks NVML in another process, because its library may hang or crash."""
    models = list(dict.fromkeys(group.model for group in options.emulated))
    if len(models) > 1:
        raise InvalidError(
            f"--emulate: {' and '.join(models)}: expected one model, as a server has one; --host v1={models[0]}:4 --host v2={models[1]}:4 plays a server for each"
        )
    if options.hosts:
        _check_hosts(options)
        return "emulated"
    if options.devices == "emulated" or (options.devices == "auto" and options.emulated):
        if not options.emulated:
            raise InvalidError("--devices emulated: expected --emulate too, e.g. --emulate V100:4")
        return "emulated"
    if options.emulated:
        raise InvalidError("--emulate: expected --devices emulated with it")
    if options.devices == "nvml" or _gpus_here() > 0:
        return "nvml"
    raise InvalidError(
        "no NVIDIA GPU was found on this machine: expected --emulate, e.g. --emulate V100:4:16G"
    )


def _check_hosts(options: Options) -> None:
    if options.emulated or options.devices == "nvml":
        raise InvalidError(
            "--host: expected neither --emulate nor --devices nvml with it: its GPUs are emulated"
        )
    names = [host.name for host in options.hosts]
    if len(set(names)) < len(names) or len(names) > MAX_HOSTS:
        raise InvalidError(f"--host {','.join(names)}: expected at most {MAX_HOSTS}, each name once")


def _gpus_here() -> int:
    try:
        done = subprocess.run(
            [sys.executable, "-c", _COUNT_GPUS], capture_output=True, text=True, timeout=20, check=False
        )
        return int(done.stdout) if done.returncode == 0 else 0
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return 0


def check_installed() -> None:
    missing = [name for names in NEEDS.values() for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise ConflictError(
            f"{', '.join(dict.fromkeys(missing))} missing: a cluster needs more than hsctl: pip install 'heteroshare[controller,agent]'"
        )


# --- up --------------------------------------------------------------------------------------------------------------


def commands(where: Folders, options: Options) -> dict[str, list[str]]:
    modules = {name: "hs_controller" if name == CONTROLLER else "hs_agent" for name in options.daemons}
    return {
        name: [sys.executable, "-m", module, "run", "--config", str(where.config(name))]
        for name, module in modules.items()
    }


def up(
    state: Path, options: Options, *, explicit: bool, deadline_s: float, report: Report
) -> tuple[Folders, bool]:
    """Started and answering. False: it was up already. `explicit`: options were given, so they must be those it runs with."""
    check_installed()
    before = read_cluster(state)
    running = before.running() if before else []
    if before and running and explicit and before.options != recorded(options):
        others = "; ".join(unlike(restored(before.options), options))
        raise ConflictError(
            f"a cluster with other options is up in {state} ({others}): expected `hsctl down` first"
        )
    if before and not explicit:
        options = restored(before.options)
    devices = "" if running else devices_of(options)
    where = folders(state)
    with locked(where.state):
        before = read_cluster(where.state)
        running = before.running() if before else []
        kept = {name: before.daemons[name] for name in running} if before else {}
        if set(running) == set(options.daemons):
            _await_ready(where, options, kept, {}, deadline_s=deadline_s, report=report)
            return where, False
        if running:
            report(
                f"{', '.join(sorted(set(options.daemons) - set(running)))} was not running: starting it again"
            )
        else:
            write(where.config(CONTROLLER), controller_toml(options, where))
            for name in options.agents:
                write(where.config(name), agent_toml(options, where, devices, name))
        _start(where, options, kept, deadline_s, report)
    return where, True


def _start(
    where: Folders, options: Options, kept: Mapping[str, Identity], deadline_s: float, report: Report
) -> None:
    daemons = dict(kept)
    children: dict[str, subprocess.Popen[bytes]] = {}
    ready = False
    try:
        for name, argv in commands(where, options).items():
            if name not in kept:
                children[name], daemons[name] = process.start(argv, where.log(name), where.state)
        write_cluster(where, options, daemons)
        _await_ready(where, options, daemons, children, deadline_s=deadline_s, report=report)
        ready = True
    finally:
        if ready:
            for child in children.values():
                process.let_go(child)
        else:  # nothing half-started stays behind
            _end(where, children, daemons, report)


def _end(
    where: Folders,
    children: Mapping[str, subprocess.Popen[bytes]],
    daemons: Mapping[str, Identity],
    report: Report,
) -> None:
    for name in children:
        # Told to stop an agent would end its jobs, which are of an earlier `up`; killed it leaves them to the next agent.
        left = name != CONTROLLER and process.any_of(jobs_of(where.state, name))
        if left:
            report(
                f"the jobs of {name} go on: the next `hsctl up` takes them up again, `hsctl down` ends them"
            )
        process.send(daemons[name], signal.SIGKILL if left else signal.SIGTERM)
    for name, child in children.items():
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(15)
        if child.poll() is None:
            process.send(daemons[name], signal.SIGKILL)
            child.wait(5)


def _await_ready(
    where: Folders,
    options: Options,
    daemons: Mapping[str, Identity],
    children: Mapping[str, subprocess.Popen[bytes]],
    *,
    deadline_s: float,
    report: Report,
) -> None:
    """Until the controller answers and every host has joined it."""
    deadline = time.monotonic() + deadline_s
    told = ""
    while True:
        for name, child in children.items():
            if child.poll() is not None:
                kind = InvalidError if child.returncode == InvalidError.exit_code else UnavailableError
                raise kind(
                    f"{name} ended at once (exit status {child.returncode}); its log, {where.log(name)}, ends:\n{tail(where.log(name))}"
                )
        for name, who in daemons.items():
            if name not in children and not process.alive(who):
                raise UnavailableError(
                    f"{name} is gone; its log, {where.log(name)}, ends:\n{tail(where.log(name))}"
                )
        state = _readiness(where, options)
        if state == "ready":
            return
        if state != told:
            report(state)
            told = state
        if time.monotonic() > deadline:
            logs = ", ".join(str(where.log(name)) for name in options.daemons)
            raise UnavailableError(f"not ready within {deadline_s:g} s ({state}); see {logs}")
        time.sleep(0.1)


def _readiness(where: Folders, options: Options) -> str:
    if not where.socket.exists():
        return "waiting for the controller"
    try:
        with Client(f"unix:{where.socket}", timeout_s=2.0) as client:
            nodes = client.nodes()
    except HeteroShareError:
        return "waiting for the controller"
    there = {node.name for node in nodes if node.state == "up"}
    if not options.hosts:
        return "ready" if there else "waiting for this machine's agent to join"
    missing = sorted({host.name for host in options.hosts} - there)
    return f"waiting for {', '.join(missing)} to join" if missing else "ready"


def left_behind(where: Folders) -> Mapping[str, int]:
    """Servers that an earlier `up` had and this one has not, with how many jobs they keep."""
    with Client(f"unix:{where.socket}") as client:
        return {node.name: node.jobs for node in client.nodes() if node.state != "up" and node.jobs}


def tail(log: Path, lines: int = 15) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 16_384))
            text = file.read().decode("utf-8", "replace")
    except OSError as error:
        return f"(no log: {error.strerror})"
    return "\n".join(f"  {line}" for line in text.splitlines()[-lines:])


def jobs_of(state: Path, agent: str) -> Path:
    """Where an agent has a folder for each of its jobs."""
    return state / agent / "jobs"


# --- down ------------------------------------------------------------------------------------------------------------


def down(state: Path, *, keep_jobs: bool, deadline_s: float, report: Report) -> bool:
    """Stopped, the agents first. False: nothing was up. Only processes that `up` started are signalled."""
    state = state.expanduser().absolute()
    if not state.is_dir():
        return False
    with locked(state):
        cluster = read_cluster(state)
        if cluster is None:
            return False
        running = cluster.running()
        agents = [cluster.daemons[name] for name in running if name != CONTROLLER]
        if not keep_jobs:
            agents += _agents_again(state, cluster, report)
        if agents:
            _stop_agents(cluster, agents, keep_jobs=keep_jobs, deadline_s=deadline_s, report=report)
        if not keep_jobs:
            _jobs_have_ended(state, cluster)
        if CONTROLLER in running:
            report("stopping the controller")
            _stop(cluster.daemons[CONTROLLER], CONTROLLER, deadline_s)
        if not keep_jobs:
            _remove_run_dir(state, Path(cluster.run_dir))
        # cluster.json stays, so that the next `up` runs with the same options; its daemons are known to be gone.
        return bool(running or agents)


def _agents_again(state: Path, cluster: Cluster, report: Report) -> list[Identity]:
    """Agents that died, or were stopped with `--keep-jobs`, and left jobs running: only they know how to end them."""
    options = restored(cluster.options)
    left = [
        name
        for name in options.agents
        if not process.alive(cluster.daemons[name]) and process.any_of(jobs_of(state, name))
    ]
    if not left:
        return []
    where = folders(state)
    report(f"{', '.join(left)} was not running: starting it again to end the jobs that it left")
    argv = commands(where, options)
    again: dict[str, Identity] = {}
    for name in left:
        child, again[name] = process.start(argv[name], where.log(name), where.state)
        process.let_go(child)
    write_cluster(where, options, {**cluster.daemons, **again})
    for name, who in again.items():
        if not process.awaits(who, signal.SIGTERM, START_S):
            raise UnavailableError(
                f"{name} did not start, so its jobs go on (--keep-jobs leaves them and stops the rest); its log, {where.log(name)}, ends:\n{tail(where.log(name))}"
            )
    return list(again.values())


def _stop_agents(
    cluster: Cluster, agents: list[Identity], *, keep_jobs: bool, deadline_s: float, report: Report
) -> None:
    if keep_jobs:
        # Told to stop they would end the jobs; killed they leave them to the next agents, which take them up.
        for agent in agents:
            process.send(agent, signal.SIGKILL)
        for agent in agents:
            process.wait_gone(agent, 10.0)
        report("the jobs go on; the next `hsctl up` takes them up again")
        return
    report("ending the jobs")
    for agent in agents:
        process.send(agent, signal.SIGTERM)
    deadline, told = time.monotonic() + deadline_s, -1
    for agent in agents:
        while not process.wait_gone(agent, 1.0):
            left = _live_jobs(cluster)
            if left not in {told, -1}:
                report(f"{left} job{'s' * (left != 1)} not ended yet")
                told = left
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"an agent (pid {agent.pid}) has not ended within {deadline_s:g} s; it goes on trying: run `hsctl down` again"
                )


def _jobs_have_ended(state: Path, cluster: Cluster) -> None:
    """An agent may have died before it ended them."""
    where, end_s = folders(state), time.monotonic() + SHIMS_END_S
    for name in restored(cluster.options).agents:
        while process.any_of(jobs_of(state, name)):
            if time.monotonic() > end_s:
                raise UnavailableError(
                    f"{name} ended before its jobs did, and they go on (--keep-jobs leaves them and stops the rest); its log, {where.log(name)}, ends:\n{tail(where.log(name))}"
                )
            time.sleep(0.1)


def _live_jobs(cluster: Cluster) -> int:
    try:
        with Client(f"unix:{cluster.socket}", timeout_s=1.0) as client:
            return len(client.jobs(states=("starting", "running", "suspended", "cancelling")))
    except HeteroShareError:
        return -1


def _stop(who: Identity, name: str, deadline_s: float) -> None:
    process.send(who, signal.SIGTERM)
    if not process.wait_gone(who, deadline_s):
        raise UnavailableError(
            f"the {name} (pid {who.pid}) has not ended within {deadline_s:g} s; run `hsctl down` again"
        )


def _remove_run_dir(state: Path, run: Path) -> None:
    """Sockets only; a folder outside the state folder is ours by its name."""
    if run == state / "run" or run.name.startswith(f"heteroshare-{os.geteuid()}-"):
        shutil.rmtree(run, ignore_errors=True)

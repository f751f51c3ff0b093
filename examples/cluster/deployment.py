"""A cluster as an administrator would set it up: an authority, a controller, servers enrolled and joined one by one, tokens."""

import json
import os
import pwd
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from examples.cluster.network import Network
from examples.cluster.workload import GANG, GANG_STEP_S, MODELS, TEAMS, Server
from hs_client import Client, HeteroShareError
from hs_client.address import Address

REPORT_S = 0.5
READY_S = 40.0


class BrokenDeploymentError(Exception):
    pass


@dataclass(slots=True)
class Deployment:
    state: Path  # everything durable
    run: Path  # sockets: a short path
    network: Network
    quantum_s: float
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    page: int = 0  # port for browsers on this machine; 0: none
    port: int = 0
    ca: str = ""

    @property
    def socket(self) -> str:
        return f"unix:{self.run}/controller.sock"

    @property
    def address(self) -> str:
        return f"{self.network.controller}:{self.port}"

    # --- the controller

    def start_controller(self) -> None:
        self.port = free_port(self.network.controller)
        config = self.state / "controller.toml"
        config.write_text(self._controller_toml())
        self._call([*daemon("hs_controller"), "init", "--config", str(config)])
        self.ca = (self.state / "controller/pki/ca.pem").read_text()
        self._start("controller", [*daemon("hs_controller"), "run", "--config", str(config)])
        self._await("the controller answers", lambda: bool(self._ask()))

    def _controller_toml(self) -> str:
        lines = [
            f'state_dir = "{self.state}/controller"',
            f'socket = "{self.run}/controller.sock"',
            f'listen = "{self.address}"',
            f"quantum_s = {self.quantum_s!r}",
            f"heartbeat_s = {REPORT_S!r}",
            "migrations_per_hour = 7200",  # quanta are 30 times as short as usual
            *([f'web_listen = "127.0.0.1:{self.page}"'] if self.page else []),
        ]
        for team in TEAMS:
            lines += ["", f"[users.{team.user}]", f"tickets = {team.tickets!r}", f'run_as = "{account()}"']
        return "\n".join(lines) + "\n"

    # --- servers

    def join(self, server: Server) -> None:
        """Enrolled by the administrator; joined and started on the server itself."""
        config = self.state / f"{server.name}.toml"
        config.write_text(self._agent_toml(server))
        line = self.hsctl("node", "enroll", server.name).strip()
        words = shlex.split(line)
        assert words[:2] == ["hs-agent", "join"], line
        inside = self.network.inside(server.name)
        self._call([*inside, *daemon("hs_agent"), "join", *words[2:], "--config", str(config)])
        self._start(server.name, [*inside, *daemon("hs_agent"), "run", "--config", str(config)])

    def await_joined(self, servers: Sequence[Server]) -> None:
        names = {server.name for server in servers}
        self._await(
            f"{', '.join(sorted(names))} joined",
            lambda: names <= {node["name"] for node in self._ask() if node["state"] == "up"},
        )

    def _agent_toml(self, server: Server) -> str:
        here = self.network.address(server.name)
        lines = [
            f'controller = "{self.address}"',
            f'name = "{server.name}"',
            f'state_dir = "{self.state}/{server.name}"',
            f'run_dir = "{self.run}/{server.name}"',
            f'peer_listen = "{here}:{7444 if self.network.inside(server.name) else free_port(here)}"',
            'devices = "emulated"',
            f'emulated = ["{server.model}:{server.gpus}"]',
            f"report_interval_s = {REPORT_S!r}",
            "end_jobs_on_stop = true",
            "kill_grace_s = 2",
            f"min_uid = {max(1, min(1000, os.geteuid()))}",
            f"allow_root = {'true' if os.geteuid() == 0 else 'false'}",
        ]
        for team in TEAMS:
            speedup = ", ".join(f"{model} = {team.speedup[model]!r}" for model in MODELS)
            lines += [
                "",
                "[[pace]]",
                f'job_class = "*{team.job_class}*"',
                f"base_s = {team.step_s!r}",
                f"speedup = {{{speedup}}}",
            ]
        lines += ["", "[[pace]]", f'job_class = "*{GANG.name}*"', f"base_s = {GANG_STEP_S!r}"]
        return "\n".join(lines) + "\n"

    # --- people

    def hsctl(self, *words: str, within_s: float = 60.0) -> str:
        """As the administrator, on the controller's machine."""
        return self._call([*daemon("hs_client"), "--controller", self.socket, *words], within_s=within_s)

    def admin(self) -> Client:
        return Client(self.socket)

    def token(self, *words: str) -> str:
        """Of who administers it, or of whom the words are."""
        return self.hsctl("token", "create", "--label", "demo", *words).strip()

    def client(self, user: str) -> Client:
        """As that user, from anywhere: over TLS, with a token of theirs."""
        token = self.token("--for", user)
        return Client(Address(target=self.address, token=token, ca=self.ca, origin="demo"))

    # --- the end

    def stop(self) -> None:
        """Agents first: they end their jobs."""
        agents = [process for name, process in self.daemons.items() if name != "controller"]
        _end(agents)
        _end([process for name, process in self.daemons.items() if name == "controller"])

    # --- how

    def _start(self, name: str, argv: Sequence[str]) -> None:
        with (self.state / f"{name}.log").open("ab") as log:
            self.daemons[name] = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def _call(self, argv: Sequence[str], *, within_s: float = 60.0) -> str:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=within_s)
        if done.returncode != 0:
            raise BrokenDeploymentError(
                f"{shlex.join(argv)}: exit status {done.returncode}\n{done.stderr.strip()}"
            )
        return done.stdout

    def _ask(self) -> list[dict[str, str]]:
        try:
            return list(json.loads(self.hsctl("nodes", "--json"))) or [{"name": "", "state": ""}]
        except (BrokenDeploymentError, HeteroShareError):
            return []

    def _await(self, what: str, look: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_S
        while not look():
            for name, process in self.daemons.items():
                if process.poll() is not None:
                    log = (self.state / f"{name}.log").read_text(errors="replace").splitlines()[-12:]
                    raise BrokenDeploymentError(
                        f"{name} ended: exit status {process.returncode}\n" + "\n".join(log)
                    )
            if time.monotonic() > deadline:
                raise BrokenDeploymentError(f"not within {READY_S:.0f} s: {what}; see {self.state}")
            time.sleep(0.2)


def daemon(module: str) -> list[str]:
    return [sys.executable, "-m", module]


def account() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name


def free_port(host: str) -> int:
    with socket.create_server((host, 0)) as probe:
        return int(probe.getsockname()[1])


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)

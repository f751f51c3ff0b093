"""Several agents as processes on one machine, each with a scripted controller of its own."""

import os
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hs_core.reports import JobReport
from hs_core.wanted import Peer, Turn, WantedJob
from tests.agent.conftest import Daemon, FakeController, wait_for
from tests.lean import LEAN


class Hosts:
    def __init__(self, place: Path, count: int, **changes: Any) -> None:
        self.controllers, self.daemons = [], []
        for number in range(count):
            where = place / "abc"[number]
            where.mkdir()
            where.chmod(0o755)
            self.controllers.append(FakeController(f"unix:{where}/c.sock"))
            settings = {
                "name": f"host-{'abc'[number]}",
                "dev": True,
                "peer_listen": "127.0.0.1:0",
                "preload": 4,
            }
            self.daemons.append(Daemon(where, **settings | changes))

    def start(self) -> None:
        for daemon in self.daemons:
            daemon.start()
        for controller in self.controllers:
            wait_for(lambda controller=controller: controller.hellos, "a hello")

    def peer(self, number: int) -> Peer:
        hello = self.controllers[number].hellos[-1]
        return Peer(host=hello.host, address=hello.peer)

    def over_all(self, job: WantedJob, rendezvous: str) -> list[WantedJob]:
        nodes = tuple(self.peer(number) for number in range(len(self.daemons)))
        return [
            replace(job, node_rank=rank, nodes=nodes, rendezvous=rendezvous, grant="a grant")
            for rank in range(len(nodes))
        ]

    def want(self, jobs: list[WantedJob], quantum_s: float = 60.0) -> None:
        for controller, job in zip(self.controllers, jobs, strict=True):
            turn = Turn(local=False) if job.paused else Turn(gangs=(job.job,))
            controller.want(job, quantum_s=quantum_s, turn=turn)

    def all_report(self, job: int, condition: Callable[[JobReport], Any], what: str) -> list[JobReport]:
        return [each.wait_report(job, condition, what) for each in self.controllers]

    def log(self, number: int, job: int, epoch: int = 1) -> str:
        for folder in ("state/jobs", "state/ended"):
            path = self.daemons[number].place / folder / f"{job}-{epoch}/log"
            if path.exists():
                return path.read_text()
        return ""

    def close(self) -> None:
        for number, daemon in enumerate(self.daemons):
            if (daemon.place / "agent.err").exists():
                sys.stdout.write(f"--- host {number}\n{daemon.said()}")
            daemon.close()
        for controller in self.controllers:
            controller.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


ENV = LEAN | {
    "OMP_NUM_THREADS": "1",
    "TORCH_SHOW_CPP_STACKTRACES": "0",
    "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
}

"""hs-controller as a process."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path


class Daemon:
    """`hs-controller` in a folder of its own."""

    def __init__(self, folder: Path, *, more: str = "") -> None:
        self.folder = folder
        self.socket = folder / "c.sock"
        self.file = folder / "controller.toml"
        self.file.write_text(
            f'state_dir = "{folder}/state"\nsocket = "{self.socket}"\nquantum_s = 1\nheartbeat_s = 0.1\n{more}'
        )
        self.process: subprocess.Popen[str] | None = None
        self.log = folder / "log"

    def argv(self) -> list[str]:
        return [sys.executable, "-m", "hs_controller", "--config", str(self.file)]

    def start(self, **environment: str) -> "Daemon":
        """Ready, as it tells systemd."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
            address = self.folder / "notify"
            address.unlink(missing_ok=True)
            told.bind(str(address))
            told.settimeout(120)
            environment = {**os.environ, "NOTIFY_SOCKET": str(address), **environment}
            with self.log.open("a") as log:
                self.process = subprocess.Popen(self.argv(), env=environment, stderr=log, text=True)
            assert told.recv(100).startswith(b"READY=1"), self.log.read_text()
        return self

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    def end(self) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)

"""Stand-ins for the two daemons: `stand_in.py controller SOCKET NODE…` serves the scripted controller, `stand_in.py agent FILE` waits, and ends
the jobs beside FILE; `stand_in.py deserts FILE` leaves them."""

import contextlib
import importlib.util
import os
import signal
import sys
import threading
from pathlib import Path

from hs_proto.v1 import controller_pb2 as wire


def node(word: str, gpus: list[object]) -> wire.NodeView:
    """`NAME`, or `NAME:JOBS` of one that is away."""
    name, _, jobs = word.partition(":")
    return wire.NodeView(name=name, state="away" if jobs else "up", jobs=int(jobs or 0), gpus=gpus)


def end_jobs(folder: Path) -> None:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                last = (entry / "cmdline").read_bytes().rstrip(b"\0").rpartition(b"\0")[2]
                if Path(os.fsdecode(last)).parent == folder:
                    os.kill(int(entry.name), signal.SIGKILL)


def main() -> None:
    role, path, *rest = sys.argv[1:]
    if role == "fails":  # before it listens to signals, as a daemon does that cannot read its configuration
        sys.exit("stand-in: no such policy")
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    if role == "controller":
        spec = importlib.util.spec_from_file_location("client_fakes", Path(__file__).with_name("fakes.py"))
        fakes = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(fakes)
        fake = fakes.FakeController()
        fake.nodes = [node(word, fakes.GPUS) for word in rest]
        Path(path).unlink(missing_ok=True)
        serving = fakes.Serving(fake, Path(path))
        serving.start()
        told.wait()
        serving.stop()
    else:
        Path(path).write_text("is up")
        told.wait()
        if role == "agent":
            end_jobs(Path(path).with_name("agent") / "jobs")
        Path(path).write_text("told to stop")


if __name__ == "__main__":
    main()

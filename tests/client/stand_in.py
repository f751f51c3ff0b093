"""Stand-ins for the two daemons: `stand_in.py controller SOCKET NODE…` serves the scripted controller, `stand_in.py agent FILE` waits."""

import importlib.util
import signal
import sys
import threading
from pathlib import Path

from hs_proto.v1 import controller_pb2 as wire


def main() -> None:
    role, path, *rest = sys.argv[1:]
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    if role == "fails":
        sys.exit("stand-in: no such policy")
    if role == "controller":
        spec = importlib.util.spec_from_file_location("client_fakes", Path(__file__).with_name("fakes.py"))
        fakes = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(fakes)
        fake = fakes.FakeController()
        fake.nodes = [wire.NodeView(name=name, state="up", gpus=fakes.GPUS) for name in rest]
        Path(path).unlink(missing_ok=True)
        serving = fakes.Serving(fake, Path(path))
        serving.start()
        told.wait()
        serving.stop()
    else:
        Path(path).write_text("is up")
        told.wait()
        Path(path).write_text("told to stop")


if __name__ == "__main__":
    main()

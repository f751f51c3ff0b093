"""What a job's main process leaves behind has a moment to end by itself. That it is killed after that: test_shim."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from hs_agent import shim
from hs_core.reports import Phase
from tests.agent.conftest import PYTHON, Shims

CLEARS_UP = """
import os, sys, time
leaves, file = os.pipe(), sys.argv[1]
if os.fork() == 0:
    os.close(leaves[1])
    os.read(leaves[0], 1)  # returns when the main process is gone
    time.sleep(float(sys.argv[3]))
    open(file, "w").write("cleared")
    os._exit(0)
os._exit(int(sys.argv[2]))
"""


@pytest.mark.parametrize(("status", "takes_s"), [(0, 0.2), (3, 0.2), (75, shim.LEFTOVERS_S + 0.5)])
def test_who_clears_up_after_a_job_that_has_ended_is_not_killed_over_it(
    shims: Shims, tmp_path: Path, status: int, takes_s: float
) -> None:
    """As Python's resource tracker does, which removes shared memory that nobody else would; and ranks whose launcher left before them."""
    file = tmp_path / "cleared"
    record = shims.start(PYTHON, "-c", CLEARS_UP, str(file), str(status), str(takes_s)).wait()
    assert (record["code"], file.read_text()) == (status, "cleared")


KEEPS = """
import os, subprocess, sys, time
leaves, (keeper, file) = os.pipe(), sys.argv[1:]
there, up = os.pipe()
subprocess.Popen([keeper, file], stdin=leaves[0], stdout=up, start_new_session=True)
os.close(leaves[0])
os.read(there, 1)
print("up", flush=True)
time.sleep(600)
"""


def test_torchs_keeper_of_shared_memory_is_not_told_to_end_with_a_job_but_clears_up_after_it(
    shims: Shims, tmp_path: Path
) -> None:
    keeper, file = tmp_path / "torch_shm_manager", tmp_path / "cleared"
    keeper.write_text('#!/bin/sh\necho\nread -r line\necho cleared > "$1"\n')  # and ends at SIGTERM
    keeper.chmod(0o755)
    started = shims.start(PYTHON, "-c", KEEPS, str(keeper), str(file))
    started.says("up")
    assert started.folder.control("term 30")
    assert started.wait()["signal"] == signal.SIGTERM
    assert file.read_text() == "cleared\n"


LEAVES = """
import json, os, signal, socket, struct, sys, time
cleared, go = sys.argv[1:]
agent = socket.socket(socket.AF_UNIX)
agent.connect(os.environ["HS_AGENT_SOCKET"])
leaves = os.pipe()
if os.fork() == 0:  # which SIGTERM ends
    agent.close()
    os.close(leaves[1])
    os.read(leaves[0], 1)
    open(cleared, "w").write("cleared")
    os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)

def say(**word):
    body = json.dumps(word).encode()
    agent.sendall(struct.pack(">I", len(body)) + body)

def hear():
    (size,) = struct.unpack(">I", agent.recv(4, socket.MSG_WAITALL))
    return json.loads(agent.recv(size, socket.MSG_WAITALL))

can = ["hold", "checkpoint"]
say(type="hello", protocol=1, pid=os.getpid(), rank=0, world=1, step=0, state="new", tier="hold", can=can, id=0, generation=-1)
say(type="arrived", step=0, can=can, rank=0, world=1)
while True:
    word = hear()
    if word["type"] == "go":
        say(type="going", step=0, seconds=0.0)
    elif word["type"] == "stop":
        stop = word
    elif word["type"] == "commit":
        said = {"id": stop["id"], "tier": stop["tier"], "generation": stop["generation"]}
        say(type="held", step=0, bytes=0, seconds=0.0, digest="", **said)
    elif word["type"] == "leave":
        while not os.path.exists(go):
            time.sleep(0.02)
        os._exit(75)
"""


def test_one_that_is_wanted_elsewhere_as_it_leaves_is_left_alone_and_so_is_who_clears_up_after_it(
    daemon, controller, job, tmp_path: Path, wait_for
) -> None:
    """torch's keeper of shared memory, say, which SIGTERM ends before it has removed any."""
    cleared, go = tmp_path / "cleared", tmp_path / "go"
    daemon.start()
    leaver = job(1, PYTHON, "-c", LEAVES, str(cleared), str(go))
    controller.want(leaver)
    controller.wait_report(1, lambda r: r.phase is Phase.RUNNING and r.can_checkpoint, "running")
    controller.want(replace(leaver, leave=True))
    controller.wait_report(1, lambda r: r.phase is Phase.CHECKPOINTED, "its checkpoint is written")
    controller.want()
    wait_for(lambda: "no longer wanted here" in daemon.said(), "it is to end")
    go.touch()
    wait_for(lambda: not daemon.folders(), "it is gone")
    assert cleared.read_text() == "cleared"

"""Two agents on loopback: a gang over both, and what moves between them."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from hs_core.reports import Phase
from tests.agent.conftest import wait_for
from tests.agent.hosts import ENV, Hosts, free_port

TRAIN = str(Path(__file__).parent.parent / "job/train.py")


@pytest.fixture
def hosts(place: Path, request: pytest.FixtureRequest) -> Iterator[Hosts]:
    made = Hosts(place, 2, **getattr(request, "param", {}))
    yield made
    made.close()


def uninterrupted(*argv: str) -> list[str]:
    """Of two ranks that nobody launches, as a launcher imports torch once more."""
    world = ENV | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with ExitStack() as stack:
        output = stack.enter_context(tempfile.TemporaryFile("w+"))
        ranks = []
        for rank in "01":
            env = world | {"RANK": rank, "LOCAL_RANK": rank}
            ranks.append(subprocess.Popen([sys.executable, *argv], env=env, stdout=output))
            stack.callback(ranks[-1].wait)
            stack.callback(ranks[-1].kill)
        assert [rank.wait(120) for rank in ranks] == [0, 0]
        output.seek(0)
        return said(output.read())


def said(*logs: str) -> list[str]:
    return sorted(line for log in logs for line in log.splitlines() if line[:2] in ("0:", "1:"))


@pytest.mark.parametrize("hosts", [{"pace": [{"base_s": 0.012}]}], indirect=True)
def test_a_gang_over_two_hosts_stops_at_one_step_and_trains_as_if_it_had_not_been_stopped(
    hosts: Hosts, job
) -> None:
    argv = (TRAIN, "--ddp", "--handed", "epoch", "--epochs", "40")
    hosts.start()
    both = hosts.over_all(
        job(1, sys.executable, *argv, nodes=2, torchrun=True, env=ENV), f"127.0.0.1:{free_port()}"
    )
    hosts.want(both)
    hosts.all_report(1, lambda r: r.phase is Phase.RUNNING and r.step > 0, "training")
    for turn in range(3):
        hosts.want([replace(each, paused=rank == turn % 2 or turn > 1) for rank, each in enumerate(both)])
        stopped = wait_for(lambda turn=turn: _stops(hosts, turn + 1), "both stopped")
        assert stopped[0][-1][0] == stopped[1][-1][0]
        hosts.want(both)
        hosts.all_report(1, lambda r: r.phase is Phase.RUNNING, "on")
    hosts.all_report(1, lambda r: r.exit, "an exit")
    assert [each.reports[1].exit.code for each in hosts.controllers] == [0, 0]
    assert said(hosts.log(0, 1), hosts.log(1, 1)) == uninterrupted(*argv)
    skews_s = [abs(a - b) for (_, a), (_, b) in zip(*_stops(hosts, 3), strict=True)]
    sys.stdout.write(f"skew of the stops in ms: {[round(1000 * each, 1) for each in skews_s]}\n")
    assert max(skews_s) < 0.1


def _stops(hosts: Hosts, count: int) -> list[list[tuple[int, float]]] | None:
    """Step and time of each stop, as each agent's log has them."""
    found = []
    for daemon in hosts.daemons:
        lines = [json.loads(line) for line in daemon.said().splitlines() if line.startswith("{")]
        found.append([
            (int(line["text"].split("step ")[1].split()[0]), datetime.fromisoformat(line["timestamp"]).timestamp())
            for line in lines if line["event"] == "suspended"
        ])  # fmt: skip
    return found if all(len(each) >= count for each in found) else None


FAILS = """
import os, torch
torch.distributed.init_process_group("gloo")
w = torch.nn.Parameter(torch.zeros(1))
o = torch.optim.SGD([w], lr=0.1)
for i in range(10**9):
    w.sum().backward()
    torch.distributed.all_reduce(w.grad)
    o.step()
    if i == 200 and os.environ["RANK"] == "1":
        raise SystemExit(3)
"""


def test_the_parts_of_a_gang_that_fails_by_itself_say_that_their_agents_heard_one_another(
    hosts: Hosts, job, place: Path
) -> None:
    hosts.start()
    script = place / "fails.py"
    script.write_text(FAILS)
    run = job(1, sys.executable, str(script), nodes=2, torchrun=True, env=ENV)
    hosts.want(hosts.over_all(run, f"127.0.0.1:{free_port()}"))
    hosts.all_report(1, lambda r: r.exit, "an exit")
    said_last = [each.reports[1] for each in hosts.controllers]
    assert all(report.exit is not None and report.exit.code for report in said_last)
    assert [report.in_touch for report in said_last] == [True, True]

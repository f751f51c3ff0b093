"""Each .txt here is a script for one host above a line of dashes, and below it the timeline that it must give.

`pytest tests/scenarios --rewrite` writes down what happens now; a person reads the difference.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hs_core.model import OnPartition, SuspendMode
from hs_core.names import JobId
from hs_core.wanted import Turn

sys.path.append(str(Path(__file__).parents[2] / "core"))
from fakejob import Ways
from hostsim import GIB, HostSim

LINE = "-" * 100
HERE = Path(__file__).parent
SCENARIOS = sorted(HERE.glob("*.txt"))
NUMBERS = {"gpus": int, "nodes": int, "node_rank": int, "tickets": float, "epoch": int, "time_limit_s": float,
           "checkpoint_interval_s": float}  # fmt: skip


def value_of(word: str) -> object:
    return {"yes": True, "no": False}.get(word) if word in ("yes", "no") else float(word)


def submit(sim: HostSim, number: int, words: list[str]) -> None:
    ways, fields = Ways(), {}
    for word in words:
        name, _, value = word.partition("=")
        if name in NUMBERS:
            fields[name] = NUMBERS[name](value)
        elif name == "memory":
            fields["memory_bytes"] = int(value) * GIB
        elif name == "suspend":
            fields["mode"] = SuspendMode(value)
        elif name in ("user", "rendezvous"):
            fields[name] = value
        elif name == "on_partition":
            fields[name] = OnPartition(value)
        elif name == "source":
            fields[name] = sim.source(int(value))
        else:
            assert hasattr(ways, name), f"unknown word {word}"
            setattr(ways, name, value_of(value))
    sim.job(number, ways=ways, **fields)


def turn_of(word: str) -> Turn:
    """`1,2`: gangs; `-`: none; the rest is shared."""
    return Turn(gangs=tuple(JobId(int(n)) for n in word.split(",") if n != "-"))


def play(script: str) -> str:
    """The orders as they came, and how every job stands where the script says `show`."""
    lines = [line.split("#")[0].split() for line in script.splitlines()]
    steps = [line for line in lines if line]
    assert steps[0][0] == "host", "a script begins with: host GPUS [MEMORY_GIB]"
    sim = HostSim(int(steps[0][1]), memory_bytes=int(steps[0][2]) * GIB if len(steps[0]) > 2 else 16 * GIB)
    verbs: dict[str, Callable[..., object]] = {
        "pause": lambda n: sim.change(JobId(int(n)), paused=True),
        "unpause": lambda n: sim.change(JobId(int(n)), paused=False),
        "cancel": lambda n: sim.change(JobId(int(n)), cancelled=True),
        "drop": lambda n: sim.wanted.pop(JobId(int(n))),
        "leave": lambda n: sim.change(JobId(int(n)), leave=True),
        "stay": lambda n: sim.change(JobId(int(n)), leave=False),
        "meet": lambda n: sim.change(JobId(int(n)), rendezvous=sim.machine.report(JobId(int(n))).rendezvous),
        "lend": lambda n: sim.lend(JobId(int(n))),
        "lend-no-more": lambda: setattr(sim, "lends", ()),
        "clock": lambda *turns: sim.start_clock(turn_of(turn) for turn in turns),
        "away": lambda: setattr(sim, "away", True),
        "back": lambda: setattr(sim, "away", False),
        "fence-after": lambda seconds: setattr(sim, "fence_after_s", float(seconds)),
        "send": sim.send,
        "run": lambda seconds: sim.run(float(seconds)),
        "sick": lambda *gpus: sim.see_gpus([int(g) for g in gpus]),
        "kill-agent": sim.kill_agent,
        "start-agent": sim.start_agent,
        "show": lambda: sim.log.append((sim.now_s - sim.start_s, show(sim))),
    }
    for verb, *words in steps[1:]:
        if verb == "job":
            submit(sim, int(words[0]), words[1:])
        else:
            verbs[verb](*words)
    return "".join(f"{at:8.2f}  {what}\n" for at, what in sim.log)


def show(sim: HostSim) -> str:
    lines = []
    for r in sim.machine.reports():
        gpus = ",".join(g.removeprefix("GPU-") for g in r.gpus) or "-"
        ending = f" exit {r.exit.why or r.exit.signal or r.exit.code}" if r.exit else ""
        note = f" ({r.note})" if r.note else ""
        lines.append(
            f"job {r.job} {r.phase} on {gpus}, {r.gpu_s:.2f} GPU s, {r.suspends} suspends{ending}{note}"
        )
    return ("\n" + " " * 10).join(["= how they stand", *lines])


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_what_happens_on_a_host_is_what_was_written_down(path: Path, request: pytest.FixtureRequest) -> None:
    script, _, expected = path.read_text(encoding="utf-8").partition(f"{LINE}\n")
    happened = play(script)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(f"{script.rstrip()}\n{LINE}\n{happened}", encoding="utf-8")
        return
    assert happened == expected


def test_there_are_host_scenarios() -> None:
    assert len(SCENARIOS) >= 7

"""The paper's figure 4 on this machine: three users' real training jobs share one 4-GPU server fairly (`make demo`).

Users A, B and C submit four 1-GPU, four 2-GPU and four 4-GPU jobs to an embedded cluster of four emulated V100s. Real processes
train real models on real data; they are suspended and resumed every couple of seconds. At the end: a table, a picture, and exit
status 1 if a user was off its share by more than 10 %, if work was lost, or if a job's result is wrong.
"""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from examples.common.showing import hsctl, save_text, status_of
from examples.common.training import ENDED, result, same_weights, uninterrupted_all
from examples.figure4 import report
from examples.figure4.muster import Muster
from examples.figure4.record import Recorder
from examples.figure4.workload import GPUS, PACE_S, PERIOD, TEAMS
from hs_client import Client

SAMPLE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    out: Path
    quantum_s: float
    limit_s: float


def parse(argv: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="report, picture and logs go here")
    parser.add_argument("--quantum", type=float, default=2.0, metavar="S", help="length of a slice")
    parser.add_argument("--limit", type=float, default=400.0, metavar="S", help="give up after this long")
    got = parser.parse_args(argv)
    return Options(out=got.out.resolve(), quantum_s=got.quantum, limit_s=got.limit)


def up(state: Path, quantum_s: float) -> None:
    users = [word for team in TEAMS for word in ("--user", team.user)]
    hsctl("up", "--state", str(state), "--devices", "emulated", "--emulate", f"V100:{GPUS}:16G", "--pace", str(PACE_S),
          "--quantum", str(quantum_s), "--policy", "gandiva-fair", *users)  # fmt: skip


def submit(client: Client) -> None:
    for team in TEAMS:
        client.user = team.user
        client.submit(*team.jobs())
    client.user = ""


def live_table(recorder: Recorder, client: Client) -> Group:
    shares = Table(title="GPUs by user, mean of the last 24 s", title_justify="left")
    for heading in ("user", "entitled", "received", "jobs training", "suspended", "done"):
        shares.add_column(heading, justify="left" if heading == "user" else "right")
    received = {s.user: s for s in client.shares(window_s=24.0).shares}
    for team in TEAMS:
        states = [v.state for v in recorder.views if v.user == team.user]
        share = received.get(team.user)
        gpus = share.received_gpus if share else 0.0
        shares.add_row(team.user, f"{share.entitled_gpus if share else 0:.2f}", f"{gpus:.2f}  {'█' * round(gpus * 4):<16}",
                       str(states.count("running")), str(states.count("suspended")), str(states.count("succeeded")))  # fmt: skip
    seconds = recorder.received.end_s - recorder.received.start_s
    phase = (
        "starting the twelve jobs; those that are up wait for the others"
        if recorder.all_started_s is None
        else "all twelve share the server"
    )
    if recorder.first_end_s is not None:
        phase = "jobs are ending; those that are left get the rest"
    return Group(f"{seconds:5.0f} s  {phase}", shares)


def watch(client: Client, recorder: Recorder, console: Console, limit_s: float) -> bool:
    """Samples until every job has ended; False: not within the limit."""
    muster = Muster(client)
    started = time.monotonic()
    plain_at = started
    with Live(console=console, refresh_per_second=2, transient=True) as live:
        while not recorder.done:
            now = time.monotonic()
            views = client.jobs(ended=True)
            muster.call(views)
            recorder.take(now, views, all_there=muster.over)
            if now - started > limit_s:
                return False
            shown = live_table(recorder, client)
            if console.is_terminal:
                live.update(shown)
            elif now >= plain_at:
                console.print(shown)
                plain_at = now + 20
            time.sleep(max(0.0, now + SAMPLE_S - time.monotonic()))
    return True


def judged(recorder: Recorder, quantum_s: float) -> report.Window | None:
    """As many whole periods of the schedule as fit before the first end, from one after the last start: until then GPUs may be bound unevenly,
    as jobs that were held back did not count."""
    if recorder.all_started_s is None or recorder.first_end_s is None:
        return None
    period_s = PERIOD * quantum_s
    to_s = recorder.first_end_s - SAMPLE_S
    periods = int((to_s - recorder.all_started_s) / period_s) - 1
    if periods < 1:
        return None
    from_s = to_s - periods * period_s
    return report.Window(from_s=from_s, to_s=to_s, quanta=(to_s - from_s) / quantum_s)


def results(client: Client, recorder: Recorder) -> dict[int, dict[str, object]]:
    ended = [view.id for view in recorder.views if view.state in ENDED]
    return {job: result(b"".join(client.logs(job)).decode(errors="replace")) for job in ended}


def verify(recorder: Recorder, outcome: dict[int, dict[str, object]]) -> dict[str, bool]:
    """One job of each gang size against its uninterrupted twin: the same weights, bit for bit."""
    twins = uninterrupted_all([(team.script(0.005), team.gpus) for team in TEAMS])
    same = {}
    for team, twin in zip(TEAMS, twins, strict=True):
        name = f"{team.user.lower()}-{team.gpus}gpu-lr0.005"
        job = next(v for v in recorder.views if v.name == name)
        same[name] = same_weights(twin, outcome.get(job.id, {}))
    return same


def main(argv: Sequence[str]) -> int:
    options = parse(argv)
    console = Console() if sys.stdout.isatty() else Console(width=100)
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    state = options.out / "state"
    recorder = Recorder([team.user for team in TEAMS])
    up(state, options.quantum_s)
    try:
        os.environ["HS_STATE"] = str(state)
        os.environ.pop("HS_CONTROLLER", None)  # somebody's cluster, which would be asked before this one
        with Client() as client:
            submit(client)
            console.print("12 jobs submitted by A, B and C; each line below is one user")
            in_time = watch(client, recorder, console, options.limit_s)
            outcome = results(client, recorder)
    finally:
        hsctl("down", "--state", str(state))
    console.print("checking one job of each size against the same training without interruption …")
    return conclude(console, options, recorder, outcome, in_time)


def conclude(
    console: Console,
    options: Options,
    recorder: Recorder,
    outcome: dict[int, dict[str, object]],
    in_time: bool,
) -> int:
    window = judged(recorder, options.quantum_s)
    accuracies = {job: float(str(got.get("accuracy", 0.0))) for job, got in outcome.items()}
    found = report.faults(recorder, window, accuracies, verify(recorder, outcome) if in_time else {})
    if not in_time:
        found.insert(0, f"not every job had ended after {options.limit_s:.0f} s")
    tables = [report.share_table(recorder, window)] if window else []
    suspends = recorder.total(lambda v: v.suspends)
    mean_switch_s = recorder.total(lambda v: v.suspend_s + v.resume_s) / max(suspends, 1)
    lines = [
        f"switches: {suspends:.0f}, each {1000 * mean_switch_s:.0f} ms on average ({100 * mean_switch_s / 60:.2f} % of a 60 s quantum)",
        f"lost work: {recorder.total(lambda v: v.lost_gpu_s):.1f} GPU-seconds",
        f"final accuracies: {min(accuracies.values(), default=0):.3f} to {max(accuracies.values(), default=0):.3f}",
        *(f"FAILED: {fault}" for fault in found),
        "OK: everybody got its share, nothing was lost, results are right"
        if not found
        else f"{len(found)} faults",
    ]
    for table in tables:
        console.print(table)
    for line in lines:
        console.print(line)
    save_text(110, tables, lines, options.out / "report.txt")
    report.save_samples(recorder, options.out / "samples.jsonl")
    report.picture(recorder, window, PERIOD * options.quantum_s, options.out / "shares.png")
    console.print(f"picture: {options.out / 'shares.png'}   table: {options.out / 'report.txt'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(status_of(main))

"""The same workload live (real processes, emulated GPUs) and simulated: mean JCT and makespan; goal: 5 % apart at most.

`python -m benchmarks.fidelity [--policy NAME] [--record FILE]`, about two minutes.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from hs_client import Client, Job
from hs_proto.v1.controller_pb2 import JobView
from hs_sim.fidelity import Compared, Live, LiveJob, LivePool, compare, record

QUANTUM_S = 5.0
REPORT_S = 1.0
PACE_S = 0.1  # a step on a K80; a V100 is three times as fast
USERS = ("ann", "bob")
SPEEDUP = {"K80": 1.0, "V100": 3.0}
POOLS = (
    LivePool(model="V100", servers=2, gpus_per_server=2),
    LivePool(model="K80", servers=1, gpus_per_server=2),
)
BETWEEN_S = QUANTUM_S / 2  # from one job to the next
LIMIT_S = 280.0
SCRIPT = """
import sys, time, hs_job
for _ in range(int(sys.argv[1])):
    time.sleep(0.002)
    hs_job.step()
"""


def hosts() -> list[str]:
    return [
        f"{pool.model.lower()}-{number}={pool.model}:{pool.gpus_per_server}"
        for pool in POOLS
        for number in range(1, pool.servers + 1)
    ]


def hsctl(state: Path, *words: str) -> None:
    environment = {**os.environ, "HS_STATE": str(state)}
    subprocess.run(
        [sys.executable, "-m", "hs_client", *words], check=True, env=environment, stdout=subprocess.DEVNULL
    )


def up(state: Path) -> None:
    words = [word for user in USERS for word in ("--user", user)]
    words += [word for host in hosts() for word in ("--host", host)]
    speedups = ",".join(f"{model}={speedup:g}" for model, speedup in SPEEDUP.items())
    hsctl(
        state,
        "up",
        "--state",
        str(state),
        "--quantum",
        str(QUANTUM_S),
        "--pace",
        f"{PACE_S}:{speedups}",
        *words,
    )


def workload() -> list[tuple[float, str, Job]]:
    """(seconds from the beginning, user, job): pinned to a model, so that both runs have the same work; classes and lengths as the simulation knows them, for policies that go by these."""
    jobs = []
    for number in range(14):
        model = "K80" if number % 4 == 3 else "V100"
        steps = int((16 + 3 * (number % 5)) * SPEEDUP[model] / PACE_S)
        jobs.append(
            (
                BETWEEN_S * number,
                USERS[number % 2],
                Job(
                    name=f"job-{number}",
                    resources={"gpus": 2 if number % 3 == 2 else 1, "gpu_type": [model], "gpu_memory": "1G"},
                    job_class=model,
                    steps=steps,
                    run=[sys.executable, "-c", SCRIPT, str(steps)],
                ),
            )
        )
    return jobs


def run(state: Path, policy: str) -> Live:
    up(state)
    try:
        hsctl(state, "policy", "set", policy)
        cluster = json.loads((state / "cluster.json").read_text(encoding="utf-8"))
        with Client(f"unix:{cluster['socket']}", timeout_s=10.0) as client:
            submitted, views, starts = play(client)
            return replace(measured(submitted, views, starts, joined(client)), policy=policy)
    finally:
        hsctl(state, "down", "--state", str(state))


def begin_s(client: Client, now_s: float) -> float:
    """When the first job comes: jobs come at times that are as far from servers' edges as can be, since who is up
    just before one or just after it has another turn, and which of both it was, nobody knows well enough to simulate it."""
    phases = sorted(at_s % BETWEEN_S for at_s in joined(client).values())
    later = [*phases[1:], phases[0] + BETWEEN_S]
    gap_s, phase_s = max((to_s - from_s, from_s) for from_s, to_s in zip(phases, later, strict=True))
    return now_s + (phase_s + gap_s / 2 - now_s) % BETWEEN_S


def play(client: Client) -> tuple[list[tuple[str, Job]], list[JobView], list[float]]:
    now_s = time.time()
    began_s = time.monotonic() + begin_s(client, now_s) - now_s
    submitted, ids = [], []
    for at_s, user, job in workload():
        time.sleep(max(0.0, began_s + at_s - time.monotonic()))
        client.user = user
        ids += client.submit(job).job_ids
        submitted.append((user, job))
    client.user = ""
    while True:
        views = {view.id: view for view in client.jobs(ended=True)}
        if all(views[number].ended_at for number in ids):
            break
        if time.monotonic() > began_s + LIMIT_S:
            sys.exit(f"not all jobs ended within {LIMIT_S:g} s")
        time.sleep(0.5)
    wrong = [view.name for view in views.values() if view.state != "succeeded"]
    if wrong:
        sys.exit(f"{', '.join(wrong)} did not succeed")
    return submitted, [views[number] for number in ids], [_start_s(client, number) for number in ids]


def joined(client: Client) -> dict[str, float]:
    """When the controller heard of each server."""
    return {event.host: event.at for event in client.events() if event.kind == "host-joined"}


def _start_s(client: Client, job: int) -> float:
    """From its place to its first step edge, as its story tells it."""
    at_s: dict[str, float] = {}
    for event in client.job(job).story:
        at_s.setdefault(event.kind, event.at)
    up = [at_s[kind] for kind in ("ready", "running") if kind in at_s]
    if "placed" not in at_s or not up:
        told = "; ".join(f"{e.at:.2f} {e.kind} {e.text}" for e in client.job(job).story)
        sys.exit(f"the story of job {job} tells no start: {told}")
    return min(up) - at_s["placed"]


def measured(
    submitted: list[tuple[str, Job]], views: list[JobView], starts: list[float], servers: dict[str, float]
) -> Live:
    began_s = views[0].submitted_at
    suspends = sum(view.suspends for view in views)
    resumes = sum(view.resumes for view in views)
    rates: dict[str, list[float]] = {}
    for view in views:
        rates.setdefault(f"{view.gpu_model}/{view.gpu_model}", []).append(view.steps_per_s)
    return Live(
        quantum_s=QUANTUM_S,
        report_s=REPORT_S,
        pools=POOLS,
        tickets=dict.fromkeys(USERS, 100.0),
        rates={key: statistics.median(rate for rate in told if rate) for key, told in rates.items()},
        start_s=max(0.0, statistics.median(starts) - REPORT_S / 2),
        suspend_s=sum(view.suspend_s for view in views) / max(1, suspends),
        resume_s=sum(view.resume_s for view in views) / max(1, resumes),
        suspends=suspends,
        exit_s=0.1,
        joined_s=tuple(servers[host.partition("=")[0]] - began_s for host in hosts()),
        movable=False,  # SCRIPT hands over no state
        jobs=tuple(
            LiveJob(
                user=user,
                job_class=view.gpu_model,
                gpus=view.gpus,
                steps=view.step,
                arrival_s=view.submitted_at - began_s,
                ended_s=view.ended_at - began_s,
            )
            for (user, _), view in zip(submitted, views, strict=True)
        ),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, help="keep what was measured live, for `hs-sim fidelity`")
    parser.add_argument("--policy", default="gandiva-fair", help="that decides, live and simulated")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hs-") as folder:
        live = run(Path(folder), options.policy)
    if options.record is not None:
        options.record.write_text(record(live), encoding="utf-8")
    compared: Compared = compare(live)
    print(compared)
    return 0 if compared.holds else 1


if __name__ == "__main__":
    sys.exit(main())

"""Controller, agents and jobs are killed at random while jobs migrate and a gang over two servers takes turns."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from tests.e2e.harness import Cluster, Step, alive, incarnations, learn, learned, uninterrupted, until

NewCluster = Callable[..., Cluster]
TROUBLE_S = 16.0
HOSTS = ("a", "b", "c")


@dataclass(slots=True)
class Chaos:
    cluster: Cluster
    files: dict[int, Path]  # by job
    dice: Random
    drained: str = ""
    done: list[str] = field(default_factory=list)

    def strike(self) -> None:
        what = self.dice.choices(
            [self.kill_controller, self.kill_agent, self.kill_job, self.drain], weights=[2, 3, 2, 4]
        )[0]
        what()

    def kill_controller(self) -> None:
        self._kill("controller")

    def kill_agent(self) -> None:
        self._kill(f"agent-{self.dice.choice(HOSTS)}")

    def _kill(self, daemon: str) -> None:
        self.done.append(f"kill {daemon}")
        self.cluster.kill(daemon)
        time.sleep(self.dice.uniform(0.0, 1.5))  # how long it is away is a part of the trouble
        self.cluster.up()

    def kill_job(self) -> None:
        job = self.dice.choice(sorted(self.files))
        if rows := learned(self.files[job]):
            self.done.append(f"kill job {job}")
            if alive(rows[-1].process):
                os.kill(rows[-1].process, signal.SIGKILL)

    def drain(self) -> None:
        """By which a migration begins, that the next stroke hits."""
        self.rest()
        self.drained = self.dice.choice(HOSTS)
        self.done.append(f"drain {self.drained}")
        self.cluster.hsctl("node", "drain", self.drained)

    def rest(self) -> None:
        if self.drained:
            self.cluster.hsctl("node", "undrain", self.drained)
            self.drained = ""


def never_twice(rows: list[Step]) -> None:
    """One process after another, each going on from where one before it was, none from before the last one's start."""
    lives = incarnations(rows)
    assert len({life[0].process for life in lives}) == len(lives), "two processes took turns"
    for before, life in zip([None, *lives], lives, strict=False):
        steps = [row.step for row in life]
        assert steps == list(range(steps[0], steps[0] + len(steps)))
        if before is not None:
            assert before[-1].at_s <= life[0].at_s
            assert before[0].step <= steps[0] <= before[-1].step + 1


@pytest.mark.parametrize("seed", [2])
def test_whatever_is_killed_no_job_runs_twice_none_is_lost_and_each_learns_what_it_would_have(
    new_cluster: NewCluster, scripts: Path, tmp_path: Path, seed: int
) -> None:
    servers = [
        word
        for host, model in zip(HOSTS, ("V100", "V100", "K80"), strict=True)
        for word in ("--host", f"{host}={model}:1")
    ]
    cluster = new_cluster(*servers, "--quantum", "1", "--user", "ann", "--user", "bob")
    gang = cluster.submit(
        "-N", "2", "-G", "1", "--torchrun", "--retry", "50", *learn(scripts, tmp_path / "gang", 200, 0.02), user="ann"
    )  # fmt: skip
    files = {gang: tmp_path / "gang"}
    for n in range(2):
        file = tmp_path / f"job-{n}"
        files[cluster.submit("--retry", "50", *learn(scripts, file, 500, 0.02), user="bob")] = file
    until(lambda: all(learned(file) for file in files.values()), "all train", 180)

    chaos = Chaos(cluster, files, Random(seed))
    began = time.monotonic()
    seen = dict.fromkeys(files, 0)
    while time.monotonic() - began < TROUBLE_S:
        chaos.strike()
        time.sleep(chaos.dice.uniform(0.1, 1.0))
        for job, view in cluster.views().items():
            assert view.state not in {"failed", "cancelled"}, f"{chaos.done}: job {job}: {view.exit}"
            assert view.epoch >= seen[job], "epochs only grow"
            seen[job] = view.epoch
    chaos.rest()
    for job in files:
        ended = cluster.until_state(job, "succeeded", "failed", within_s=180)
        assert ended.state == "succeeded", f"{chaos.done}: job {job}: {ended.exit}"
    alone = uninterrupted(scripts, 500)
    pair = uninterrupted(scripts, 200, ranks=2)
    for job, file in files.items():
        for rank, same in enumerate(pair if job == gang else alone):
            rows = learned(file, rank)
            never_twice(rows)
            assert {(row.step, row.loss) for row in rows} == {(row.step, row.loss) for row in same}

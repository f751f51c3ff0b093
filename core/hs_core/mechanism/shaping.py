"""Elastic jobs for Pollux' search: what the jobs of one pool declare and measured, as its candidates, and what it finds, as homes and shapes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hs_core.dice import Random
from hs_core.forms import Shape
from hs_core.mechanism.goodput import Elastic, Sample, Speed, fit, goodput
from hs_core.mechanism.placing import Home
from hs_core.mechanism.pollux import Candidate, Search, keeps, optimize
from hs_core.names import HostName, JobId
from hs_core.policy import JobFacts, Snapshot

UNKNOWN = Speed(grad_s=0.0, grad_per_example_s=1.0)
"""Of a class that was never measured: twice the GPUs are twice as fast (paper, 4.1: what was not tried is free)."""
RETUNED = 1.25  # times the goodput a job must gain by another batch alone, restart counted
LONG_GPU_S = 4 * 3600.0  # GPU-time from which a job's weight decays (paper, 4.2)
DECAY = 0.5


@dataclass(frozen=True, slots=True)
class Given:
    """GPUs of a job in this round."""

    home: Home
    gpus: int  # on each server
    shape: Shape | None  # None: it has none, or keeps what it has


class Pool:
    """Servers of one model, `free` GPUs on each by name, and the jobs that could run there."""

    def __init__(
        self, snapshot: Snapshot, model: str, free: Mapping[HostName, int], most: Mapping[JobId, int]
    ) -> None:
        """`most`: the most GPUs that each job ever had."""
        self._snapshot, self._model, self._most = snapshot, model, most
        self._names = sorted(free)
        self._free = np.array([free[name] for name in self._names], dtype=np.int64)
        self._at = {name: at for at, name in enumerate(self._names)}
        self._speeds: dict[str, Speed] = {}

    def share_out(self, jobs: Sequence[JobFacts], dice: Random, search: Search) -> dict[JobId, Given]:
        """Of these, all of which may leave where they are, those that get GPUs."""
        largest = int(self._free.max(initial=0))
        found = [(job, made) for job in jobs if (made := self._candidate(job, largest)) is not None]
        if not found:
            return {}
        best = optimize([made for _, made in found], self._free, dice, search)
        given: dict[JobId, Given] = {}
        for (job, made), gpus, tuned in zip(found, best.gpus.tolist(), best.tuned, strict=True):
            there = [at for at, count in enumerate(gpus) if count]
            if not there:
                continue
            names = [self._names[at] for at in there]
            # Who was there keeps its place among the nodes.
            home = tuple(sorted(names, key=lambda name: _place(name, job.hosts)))
            shape = None
            if job.elastic is not None:
                shape = Shape(
                    gpus=sum(gpus), per_gpu=tuned.per_gpu, parts=tuned.accumulate + 1, nodes=len(home)
                )
                if self._stays(job, made, home, shape, search):
                    shape = None
            given[job.id] = Given(home, gpus[there[0]], shape)
        return given

    def _stays(self, job: JobFacts, made: Candidate, home: Home, shape: Shape, search: Search) -> bool:
        """It has as many GPUs there already, and another batch alone would not pay for the restart."""
        now = job.shape if isinstance(job.shape, Shape) else None
        if not job.started or home != job.hosts or job.gang != shape.gpus:
            return False
        if now is None or now == shape:
            return now == shape or job.elastic is None or job.elastic.on(shape.gpus, shape.nodes) == shape
        before = goodput(made.job, now.gpus, now.nodes, now.per_gpu, now.parts - 1)
        after = goodput(made.job, shape.gpus, shape.nodes, shape.per_gpu, shape.parts - 1)
        return after * keeps(made, search.restart_s) < RETUNED * before

    def _candidate(self, job: JobFacts, largest: int) -> Candidate | None:
        """None: it fits nowhere here now."""
        made, most = self._rigid(job), int(self._free.sum()) if job.spans else largest
        if job.elastic is not None and min(job.elastic.gpus_max, most) >= job.elastic.gpus_min:
            made = self._elastic(job, most)
        if made.least_gpus > (largest * made.servers or most):
            return None
        here = job.started and all(name in self._at for name in job.hosts)
        now = [0] * len(self._names)
        for name in job.hosts if here else ():
            now[self._at[name]] = job.per_node
        return Candidate(
            job=made,
            now=tuple(now) if here else (),
            age_s=max(0.0, self._snapshot.now_s - job.arrival_s),
            restarts=job.migrations,
            held_gpus=self._most.get(job.id, 0),
            weight=min(1.0, LONG_GPU_S / max(job.attained_gpu_s, 1.0)) ** DECAY,
        )

    def _rigid(self, job: JobFacts) -> Elastic:
        """Its gang or nothing: its speed does not matter."""
        return Elastic(
            speed=UNKNOWN,
            batch=job.gang,
            most_batch=job.gang,
            most_per_gpu=1,
            noise=0.0,
            least_gpus=job.gang,
            most_gpus=job.gang,
            servers=job.nodes,
        )

    def _elastic(self, job: JobFacts, most: int) -> Elastic:
        said = job.elastic
        assert said is not None
        return Elastic(
            speed=self._speed(job),
            batch=said.batch,
            most_batch=said.batch_max,
            most_per_gpu=said.batch_per_gpu_max,
            noise=said.noise_scale,
            least_gpus=said.gpus_min,
            most_gpus=min(said.gpus_max, most),
            servers=0 if job.spans else 1,
        )

    def _speed(self, job: JobFacts) -> Speed:
        """From what its class measured here."""
        known = self._speeds.get(job.job_class)
        if known is not None:
            return known
        rates = self._snapshot.speeds.get((job.job_class, self._model), {})
        samples = [
            Sample(
                gpus=shape.gpus,
                servers=shape.nodes,
                per_gpu=shape.per_gpu,
                accumulate=shape.parts - 1,
                seconds=1 / rate,
            )
            for shape, rate in sorted(rates.items(), key=lambda item: _order(item[0]))
            if rate > 0
        ]
        found = self._speeds[job.job_class] = fit(samples) if samples else UNKNOWN
        return found


def _order(shape: Shape) -> tuple[int, int, int, int]:
    return shape.gpus, shape.per_gpu, shape.parts, shape.nodes


def _place(name: HostName, home: Home) -> int:
    return home.index(name) if name in home else len(home)

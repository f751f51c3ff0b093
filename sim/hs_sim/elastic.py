"""How fast elastic jobs really are, in each of their shapes: Pollux' model (OSDI'21, 3) taken for the truth.

A simulated elastic job has done its steps when it has made progress worth so many mini-batches of its user's own size. What it reports, as a real one does,
is mini-batches a second of the size that it was told.
"""

from collections.abc import Mapping

import numpy as np

from hs_core.forms import Elastic, Shape
from hs_core.mechanism.goodput import Elastic as Tunable
from hs_core.mechanism.goodput import Speed, goodput, iteration_s
from hs_sim.model import SimJob

NOISE_EVERY = 10  # mini-batches from one measurement to the next, as `hs_job.noise` makes them


def steps_per_s(elastic: Elastic, speed: Speed, shape: Shape) -> float:
    """Mini-batches of its user's own size that a second of it is worth."""
    job = Tunable(
        speed=speed,
        batch=elastic.batch,
        most_batch=max(elastic.batch_max, shape.batch),
        most_per_gpu=elastic.batch_per_gpu_max,
        noise=elastic.noise_scale,
        least_gpus=elastic.gpus_min,
        most_gpus=elastic.gpus_max,
    )
    return goodput(job, shape.gpus, shape.nodes, shape.per_gpu, shape.parts - 1) / elastic.batch


def noise_samples(speed: Speed, shape: Shape, trained_s: float) -> int:
    """Measurements of its noise scale that a process has made since it was started; of one part on one GPU there are none."""
    if shape.gpus * shape.parts < 2:
        return 0
    return int(trained_s * told_per_s(speed, shape) / NOISE_EVERY + 1e-9)


def told_per_s(speed: Speed, shape: Shape) -> float:
    """Mini-batches of its size a second, as its ranks count them."""
    seconds = iteration_s(
        speed, shape.gpus, shape.nodes, np.array(float(shape.per_gpu)), np.array(float(shape.parts - 1))
    )
    return 1 / float(seconds)


def shapes_to_know(elastic: Elastic, *, spans: bool = False) -> list[Shape]:
    """Enough of them for a policy to know a speed by: what would have been measured before a run where rates are known.

    `spans`: it may be over several servers.
    """
    gpus = sorted({elastic.gpus_min, min(2, elastic.gpus_max), elastic.gpus_max})
    sizes = sorted({max(1, elastic.batch_per_gpu_max // 4), elastic.batch_per_gpu_max})
    known = [Shape(gpus=count, per_gpu=size) for count in gpus for size in sizes]
    if spans:
        even = [count for count in range(max(2, elastic.gpus_min), elastic.gpus_max + 1) if count % 2 == 0]
        several = sorted({*even[:1], *even[-1:]})
        known += [Shape(gpus=count, per_gpu=size, nodes=2) for count in several for size in sizes]
    return known


def declared_rates(
    jobs: Mapping[str, SimJob], speeds: Mapping[tuple[str, str], Speed]
) -> dict[tuple[str, str], float]:
    """(class, model) → steps a second as declared. `jobs`: one of each elastic class."""
    found = {}
    for (class_, model), speed in speeds.items():
        job = jobs.get(class_)
        if job is not None and job.truly is not None:
            found[class_, model] = steps_per_s(job.truly, speed, job.truly.on(job.gang, job.nodes))
    return found

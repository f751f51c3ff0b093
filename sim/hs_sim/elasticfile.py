"""What workload files say of elastic jobs: the limits of a job, the speed of a class."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from hs_core.digits import whole
from hs_core.forms import Elastic
from hs_core.mechanism.goodput import Sample, Speed, fit
from hs_sim.reading import Where, expect, known, number

MEASURED = "measured"
MOST = 10**12  # of anything that is counted here
_SHAPES = "mini-batches a second by shape, `4x32: 1.5` or `8x16x2/4: 1.1`: GPUs, examples on each at once, parts, servers"


def speed_of(where: Where, field: str, parts: Mapping[str, Any]) -> Speed:
    """Its parts, or what was measured of it."""
    if MEASURED in parts:
        return _fitted(where, field, parts)
    names = [part.name for part in fields(Speed)]
    for name in parts:
        known(where, str(name), names, within=field)
    expect("grad_per_example_s" in parts, where, field, "no grad_per_example_s", "seconds above 0")
    least = {"overlap": 1.0}
    told = {
        name: number(where, f"{field}.{name}", value, least=least.get(name, 0.0))
        for name, value in parts.items()
    }
    expect(told["grad_per_example_s"] > 0, where, f"{field}.grad_per_example_s", 0, "seconds above 0")
    return Speed(**{"grad_s": 0.0, **told})


def _fitted(where: Where, field: str, parts: Mapping[str, Any]) -> Speed:
    """`measured: {4x32: 1.5, 8x16x2/4: 1.1}`: by GPUs, examples on each at once, parts of a mini-batch, and servers, how many of them a second."""
    expect(len(parts) == 1, where, field, ", ".join(map(str, parts)), f"its parts or {MEASURED!r}, not both")
    said = parts[MEASURED]
    expect(isinstance(said, Mapping) and bool(said), where, f"{field}.{MEASURED}", said, _SHAPES)
    samples = []
    for text, rate in said.items():
        shape, slash, over = str(text).partition("/")
        words = [*shape.split("x"), over if slash else "1"]
        fine = len(words) in (3, 4) and all(whole(word, MOST) for word in words)
        expect(fine, where, f"{field}.{MEASURED}", text, _SHAPES)
        *numbers, nodes = map(int, words)
        gpus, per_gpu, times = [*numbers, 1][:3]
        expect(gpus % nodes == 0, where, f"{field}.{MEASURED}", text, _SHAPES)
        seconds = 1 / number(where, f"{field}.{MEASURED}.{text}", rate, above=0)
        samples.append(
            Sample(gpus=gpus, servers=nodes, per_gpu=per_gpu, accumulate=times - 1, seconds=seconds)
        )
    return fit(samples)


def elastic_of(where: Where, text: object, gpus: int) -> Elastic | None:
    """`GPUS-GPUS BATCH-BATCH PER_GPU [NOISE_SCALE]`: fewest and most GPUs, its own and its largest batch, examples that fit into a GPU."""
    words = str(text).split()
    if not words:
        return None
    expected = "`1-8 64-512 32 900`: GPUs, examples of a mini-batch, at most on a GPU, and the noise scale if it is known"
    bounds = [word.partition("-") for word in words[:2]]
    parts = [part for low, _, high in bounds for part in (low, high)] + words[2:3]
    fine = len(words) in (3, 4) and len(parts) == 5 and all(whole(part, MOST) for part in parts)
    expect(fine, where, "elastic", text, expected)
    least, most, batch, largest, per_gpu = map(int, parts)
    expect(
        least <= most and batch <= largest, where, "elastic", text, f"{expected}, none above the one after it"
    )
    expect(least <= gpus <= most, where, "gpus", gpus, f"{least} to {most}, as `elastic` says")
    noise = number(where, "elastic, noise scale", words[3], least=0) if len(words) == 4 else 0.0
    return Elastic(
        gpus_min=least,
        gpus_max=most,
        batch=batch,
        batch_max=largest,
        batch_per_gpu_max=per_gpu,
        noise_scale=noise,
    )


def elastic_text(elastic: Elastic) -> str:
    noise = f" {elastic.noise_scale!r}" if elastic.noise_scale else ""
    limits = f"{elastic.gpus_min}-{elastic.gpus_max} {elastic.batch}-{elastic.batch_max}"
    return f"{limits} {elastic.batch_per_gpu_max}{noise}"

"""Jobs whose batch size changes as they train, as in Shockwave's traces (NSDI'23): when, by the rules and measurements that its simulator goes by.

The epochs are facts of uw-mad-dash/shockwave (MIT licence). Accordion takes the largest batch outside of critical regimes; with the
gradient noise scale (gns) the batch doubles at epochs that were measured for each model, batch size and gang.
"""

import re
from collections.abc import Iterator, Mapping

from hs_sim.model import Growth, Stage

SAMPLES = {
    "ResNet-18": 50_000,
    "ResNet-50": 100_000,
    "Transformer": 10_000,
    "LM": 59_675,
    "Recommendation": 117_907,
    "CycleGAN": 6_287,
    "A3C": 4,
}
LARGEST = {"ResNet-18": 256, "ResNet-50": 128, "LM": 80, "Recommendation": 8_192}

DOUBLES: Mapping[tuple[str, int], Mapping[int, tuple[int, ...]]] = {
    ("ResNet-18", 1): {16: (31, 41, 51, 71), 32: (21, 31, 51), 64: (11, 31), 128: (11,)},
    ("ResNet-18", 2): {16: (21, 31, 91, 111), 32: (11, 21, 41), 64: (21, 41), 128: (41,)},
    ("ResNet-18", 4): {16: (11, 21, 81, 91), 32: (21, 31, 61), 64: (11, 61), 128: (11,)},
    ("ResNet-50", 1): {64: (101,)},
    ("ResNet-50", 2): {32: (101, 111), 64: (81,)},
    ("ResNet-50", 4): {32: (131, 221), 64: (191,)},
    ("LM", 1): {5: (31, 41, 61, 71), 10: (11, 21, 41), 20: (11, 41), 40: (11,)},
    ("LM", 2): {5: (31, 51, 61, 71), 10: (11, 31, 41), 20: (31, 41), 40: (11,)},
    ("LM", 4): {5: (11, 31, 71, 91), 10: (11, 31, 61), 20: (11, 61), 40: (61,)},
    ("Recommendation", 1): {512: (21, 41, 71, 91), 1_024: (21, 51, 91), 2_048: (21, 41), 4_096: (41,)},
}
"""gns: (model, gang) → batch size at the beginning → epochs at which it doubles."""

_TYPE = re.compile(r"(?P<model>\S+) \(batch size (?P<batch>[1-9][0-9]{0,9})\)")


def stages(
    mode: str, job_type: str, gang: int, steps: int, speeds: Mapping[tuple[str, str], float]
) -> tuple[tuple[Stage, ...], Growth]:
    """Of a job of that many mini-batches of its first size; () if its batch size stays. Sizes that `speeds` doesn't know are not taken."""
    growth = Growth.CLIMB if mode == "gns" else Growth.JUMP
    kind = _TYPE.fullmatch(job_type)
    if mode == "static" or kind is None or kind["model"] not in SAMPLES:
        return (), growth
    model, batch = kind["model"], int(kind["batch"])
    epochs = -(-steps // _epoch_steps(model, batch))
    sizes = _doubling(model, batch, gang) if mode == "gns" else _outside_regimes(model, batch, epochs)
    classes = {name for name, _ in speeds}
    found: list[Stage] = []
    for epoch, size in sizes:
        name = f"{model} (batch size {size}) x{gang}"
        if name not in classes:
            break
        if epoch <= epochs:
            found.append(Stage(job_class=name, from_epoch=epoch, epoch_steps=_epoch_steps(model, size)))
    return (tuple(found), growth) if len(found) > 1 else ((), growth)


def _epoch_steps(model: str, batch: int) -> int:
    return -(-SAMPLES[model] // batch)


def _doubling(model: str, batch: int, gang: int) -> Iterator[tuple[int, int]]:
    yield 0, batch
    for epoch in DOUBLES.get((model, gang), {}).get(batch, ()):
        batch *= 2
        yield epoch, batch


def _outside_regimes(model: str, batch: int, epochs: int) -> Iterator[tuple[int, int]]:
    """Accordion: the size of the beginning within critical regimes, the largest elsewhere."""
    yield 0, batch
    if batch == LARGEST.get(model, batch):
        return
    for begin, end in _regimes(model, batch, epochs):
        if begin:
            yield begin, batch
        yield end, LARGEST[model]


def _regimes(model: str, batch: int, epochs: int) -> list[tuple[int, int]]:
    """Critical ones: from an epoch, until another."""
    if model == "ResNet-50":
        return [(epoch, epoch + 10) for epoch in range(0, epochs + 1, 30)]
    if model == "ResNet-18":
        return [(0, 10), (150, 160), (250, 260)]
    if model == "Recommendation":
        return [(0, {512: 30, 1_024: 30, 2_048: 40}.get(batch, 10))]
    return [(0, 10)]

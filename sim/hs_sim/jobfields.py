"""One job of a workload file: its fields, what each may be, and how they are told in one word."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from hs_core.errors import RefusedError
from hs_core.forms import Elastic
from hs_core.model import Migrate, Topology
from hs_core.names import UserName
from hs_core.strategy import Strategy, obstacle, parse
from hs_sim.cluster import canonical
from hs_sim.elasticfile import elastic_of, elastic_text
from hs_sim.model import Growth, SimJob, Stage
from hs_sim.reading import Where, expect, number, refuse

COLUMNS = (
    "user", "arrival_s", "steps", "job_class", "gpus", "nodes", "gpu_types", "gpu_memory_bytes", "state_bytes", "migrate",
    "sliceable", "priority", "stages", "growth", "gpu_memory_fixed_bytes", "accumulation_max", "elastic", "noise_scale", "dataset", "dataset_bytes", "strategies",
    "topology",
)  # fmt: skip
NEEDED = ("user", "arrival_s", "steps", "job_class")
_STAGES = "`EPOCH/STEPS_OF_AN_EPOCH CLASS | …`"


def job_of(where: Where, fields: Mapping[str, Any], lines: Mapping[str, int] | None = None) -> SimJob:
    def at(field: str) -> Where:
        return where[0], (lines or {}).get(field, where[1])

    def whole(field: str, default: int, least: int = 0) -> int:
        return int(number(at(field), field, fields.get(field, default), least=least, whole=True))

    for field in NEEDED:
        expect(field in fields, where, field, "nothing", "every job names it")
    types = fields.get("gpu_types", ())
    if isinstance(types, str):
        types = [word for word in types.replace("|", " ").replace(",", " ").split() if word]
    expect(isinstance(types, list | tuple), at("gpu_types"), "gpu_types", types, "a list of GPU models")
    migrate = str(fields.get("migrate", Migrate.AUTO))
    expect(migrate in list(Migrate), at("migrate"), "migrate", migrate, " or ".join(Migrate))
    sliceable = str(fields.get("sliceable", "true")).lower()
    expect(sliceable in ("true", "false"), at("sliceable"), "sliceable", sliceable, "true or false")
    growth = str(fields.get("growth", Growth.JUMP))
    expect(growth in list(Growth), at("growth"), "growth", growth, " or ".join(Growth))
    dataset = str(fields.get("dataset", ""))
    expect(len(dataset) <= 128, at("dataset"), "dataset", dataset, "at most 128 characters")
    dataset_bytes = whole("dataset_bytes", 0)
    expect(
        bool(dataset) or not dataset_bytes,
        at("dataset_bytes"),
        "dataset_bytes",
        dataset_bytes,
        "a dataset to go with it",
    )
    elastic = elastic_of(at("elastic"), fields.get("elastic", ""), whole("gpus", 1, 1))
    noise = number(at("noise_scale"), "noise_scale", fields.get("noise_scale", 0.0), least=0)
    expect(
        elastic is not None or not noise,
        at("noise_scale"),
        "noise_scale",
        noise,
        "an elastic job to go with it",
    )
    nodes = whole("nodes", 1, 1)
    expect(elastic is None or nodes == 1, at("nodes"), "nodes", nodes, "1 for an elastic job")
    stages = _stages(at("stages"), fields.get("stages", ""))
    strategies = _strategies(at("strategies"), fields.get("strategies", ""), whole("gpus", 1, 1) * nodes)
    plain = not strategies or (elastic is None and not stages)
    expect(
        plain,
        at("strategies"),
        "strategies",
        fields.get("strategies"),
        "neither elastic nor stages beside them",
    )
    topology = str(fields.get("topology", Topology.AUTO))
    expect(topology in list(Topology), at("topology"), "topology", topology, " or ".join(Topology))
    alone = topology == Topology.AUTO or elastic is None
    expect(alone, at("topology"), "topology", topology, "auto for an elastic job: it stays on one server")
    user, job_class = str(fields["user"]), str(fields["job_class"])
    expect(0 < len(user) <= 128, at("user"), "user", user, "1 to 128 characters")
    expect(0 < len(job_class) <= 256, at("job_class"), "job_class", job_class, "1 to 256 characters")
    return SimJob(
        id=0,
        user=UserName(user),
        arrival_s=number(at("arrival_s"), "arrival_s", fields["arrival_s"], least=0),
        steps=whole("steps", 0, 1),
        job_class=job_class,
        gpus=whole("gpus", 1, 1),
        nodes=nodes,
        gpu_types=tuple(canonical(str(model)) for model in types),
        gpu_memory_bytes=whole("gpu_memory_bytes", 0),
        state_bytes=whole("state_bytes", 0),
        migrate=Migrate(migrate),
        sliceable=sliceable == "true",
        priority=whole("priority", 0, -1_000_000),
        stages=stages,
        growth=Growth(growth),
        gpu_memory_fixed_bytes=whole("gpu_memory_fixed_bytes", 0),
        accumulation_max=whole("accumulation_max", 1, 1),
        dataset=dataset,
        dataset_bytes=dataset_bytes,
        elastic=elastic,
        noise_scale=noise,
        strategies=strategies,
        topology=Topology(topology),
        line=where[1],
    )


def _strategies(where: Where, said: object, gang: int) -> tuple[Strategy, ...]:
    """`dp=4 | tp=2,pp=2`, or a list."""
    words = said if isinstance(said, list) else str(said).split("|")
    try:
        found = tuple(parse(str(word)) for word in words if str(word).strip())
    except RefusedError as refused:
        refuse(where, "strategies", said, str(refused))
    why = obstacle(found, gang)
    expect(not why, where, "strategies", said, why)
    return found


def _stages(where: Where, text: object) -> tuple[Stage, ...]:
    """`0/1563 CLASS | 31/782 CLASS`: epoch from which on, mini-batches of an epoch, class."""
    expect(isinstance(text, str), where, "stages", text, _STAGES)
    found = []
    for word in filter(None, (word.strip() for word in str(text).split("|"))):
        numbers, _, name = word.partition(" ")
        epoch, slash, steps = numbers.partition("/")
        expect(bool(slash and name.strip()), where, "stages", word, _STAGES)
        found.append(
            Stage(
                job_class=name.strip(),
                from_epoch=int(number(where, "stages, epoch", epoch, least=0, whole=True)),
                epoch_steps=int(number(where, "stages, steps of an epoch", steps, least=1, whole=True)),
            )
        )
    epochs = [stage.from_epoch for stage in found]
    expect(
        not epochs or (epochs[0] == 0 and epochs == sorted(set(epochs))),
        where,
        "stages",
        text,
        "epochs that rise from 0",
    )
    return tuple(found)


def cell(value: object) -> object:
    """A field's value as a table has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return ""
    if isinstance(value, Elastic):
        return elastic_text(value)
    if isinstance(value, tuple):
        return "|".join(map(_word, value))
    if isinstance(value, StrEnum):
        return str(value)
    return repr(value) if isinstance(value, float) else value


def _word(value: object) -> str:
    if isinstance(value, Strategy):
        return value.text
    return (
        f"{value.from_epoch}/{value.epoch_steps} {value.job_class}"
        if isinstance(value, Stage)
        else str(value)
    )

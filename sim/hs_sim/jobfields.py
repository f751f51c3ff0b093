"""One job of a workload file: its fields, what each may be, and how they are told in one word."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from hs_core.cluster.state import Limits
from hs_core.errors import RefusedError
from hs_core.forms import Elastic
from hs_core.model import Migrate, Topology
from hs_core.names import UserName
from hs_core.strategy import Strategy, obstacle, parse
from hs_sim.cluster import canonical
from hs_sim.elasticfile import elastic_of, elastic_text
from hs_sim.model import Growth, SimJob, Stage
from hs_sim.reading import MOST, Where, expect, number, refuse, wording

COLUMNS = (
    "user", "arrival_s", "steps", "job_class", "gpus", "nodes", "gpu_types", "gpu_memory_bytes", "state_bytes", "migrate",
    "sliceable", "priority", "stages", "growth", "gpu_memory_fixed_bytes", "accumulation_max", "elastic", "noise_scale", "dataset", "dataset_bytes", "strategies",
    "topology", "memory_bytes",
)  # fmt: skip
LIVE = Limits()  # of a live job
MOST_STEPS = 10**15  # as of a live job
NEEDED = ("user", "arrival_s", "steps", "job_class")
Word = TypeVar("Word", bound=StrEnum)
_STAGES = "`EPOCH/STEPS_OF_AN_EPOCH CLASS | …`"


@dataclass(frozen=True, slots=True)
class _Fields:
    """What is said of one job, and where."""

    where: Where
    said: Mapping[str, Any]
    lines: Mapping[str, int]

    def at(self, field: str) -> Where:
        return self.where[0], self.lines.get(field, self.where[1])

    def expect(self, good: bool, field: str, value: object, expected: str) -> None:
        expect(good, self.at(field), field, value, expected)

    def number(
        self, field: str, default: float, least: float = 0, most: float = MOST, *, whole: bool = False
    ) -> float:
        return number(
            self.at(field), field, self.said.get(field, default), least=least, most=most, whole=whole
        )

    def whole(self, field: str, default: int, least: int = 0, most: float = MOST) -> int:
        return int(self.number(field, default, least, most, whole=True))

    def text(self, field: str, most: int, *, needed: bool = False) -> str:
        said = self.said.get(field)
        found = wording(self.at(field), field, "" if said is None else said)
        good = bool(found or not needed) and len(found) <= most
        self.expect(good, field, found, f"{'1 to' if needed else 'at most'} {most} characters")
        return found

    def one_of(self, field: str, words: type[Word], default: Word) -> Word:
        found = str(self.said.get(field, default))
        self.expect(found in list(words), field, found, " or ".join(words))
        return words(found)

    def yes(self, field: str) -> bool:
        """Unless it says no."""
        found = str(self.said.get(field, "true")).lower()
        self.expect(found in ("true", "false"), field, found, "true or false")
        return found == "true"

    def models(self, field: str) -> tuple[str, ...]:
        found = self.said.get(field, ())
        if isinstance(found, str):
            found = [word for word in found.replace("|", " ").replace(",", " ").split() if word]
        if found == ["any"]:  # as in a job file
            found = ()
        self.expect(isinstance(found, list | tuple), field, found, "a list of GPU models")
        return tuple(canonical(str(model)) for model in found)


def job_of(where: Where, fields: Mapping[str, Any], lines: Mapping[str, int] | None = None) -> SimJob:
    for field in NEEDED:
        expect(fields.get(field) is not None, where, field, "nothing", "every job names it")
    said = _Fields(where, fields, lines or {})
    gpus, nodes = said.whole("gpus", 1, 1), said.whole("nodes", 1, 1)
    job = SimJob(
        id=0,
        user=UserName(said.text("user", 128, needed=True)),
        arrival_s=said.number("arrival_s", 0),
        steps=said.whole("steps", 0, 1, MOST_STEPS),
        job_class=said.text("job_class", 256, needed=True),
        gpus=gpus,
        nodes=nodes,
        gpu_types=said.models("gpu_types"),
        gpu_memory_bytes=said.whole("gpu_memory_bytes", 0),
        state_bytes=said.whole("state_bytes", 0),
        migrate=said.one_of("migrate", Migrate, Migrate.AUTO),
        sliceable=said.yes("sliceable"),
        priority=said.whole("priority", 0, -LIVE.priority, LIVE.priority),
        stages=_stages(said.at("stages"), fields.get("stages", "")),
        growth=said.one_of("growth", Growth, Growth.JUMP),
        gpu_memory_fixed_bytes=said.whole("gpu_memory_fixed_bytes", 0),
        memory_bytes=said.whole("memory_bytes", 0),
        accumulation_max=said.whole("accumulation_max", 1, 1),
        dataset=said.text("dataset", 128),
        dataset_bytes=said.whole("dataset_bytes", 0),
        elastic=elastic_of(said.at("elastic"), fields.get("elastic", ""), gpus * nodes),
        noise_scale=said.number("noise_scale", 0.0),
        strategies=_strategies(said.at("strategies"), fields.get("strategies", ""), gpus * nodes),
        topology=said.one_of("topology", Topology, Topology.AUTO),
        line=where[1],
    )
    _check(said, job)
    return job


def _check(said: _Fields, job: SimJob) -> None:
    """What no live job may say, and fields that do not go with one another."""
    rigid = job.elastic is None
    said.expect(
        bool(job.dataset) or not job.dataset_bytes,
        "dataset_bytes",
        job.dataset_bytes,
        "a dataset to go with it",
    )
    said.expect(
        job.gpu_memory_fixed_bytes <= job.gpu_memory_bytes,
        "gpu_memory_fixed_bytes",
        job.gpu_memory_fixed_bytes,
        "a part of gpu_memory_bytes",
    )
    said.expect(
        not rigid or not job.noise_scale, "noise_scale", job.noise_scale, "an elastic job to go with it"
    )
    anywhere = rigid or job.nodes == 1 or job.topology is Topology.ANY
    said.expect(anywhere, "nodes", job.nodes, "1 for an elastic job, or topology any with it")
    plain = not job.strategies or (rigid and not job.stages)
    said.expect(plain, "strategies", said.said.get("strategies"), "neither elastic nor stages beside them")


def _strategies(where: Where, said: object, gang: int) -> tuple[Strategy, ...]:
    """`dp=4 | tp=2,pp=2`, or a list."""
    words = said if isinstance(said, list) else str(said).split("|")
    found = tuple(_strategy(where, str(word).strip()) for word in words if str(word).strip())
    if why := obstacle(found, gang):
        text, _, expected = why.partition(": expected ")
        refuse(where, "strategies", text, expected)
    return found


def _strategy(where: Where, text: str) -> Strategy:
    try:
        return parse(text)
    except RefusedError as refused:
        refuse(where, "strategies", text, str(refused).partition("expected ")[2])


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

"""A job as its user writes it: the one model behind job files, flags, #SBATCH lines and the Python API, and its JSON Schema.

Whatever was written becomes a nested dict plus where each value came from (`Origins`); `parse` checks it once and names
place, field, value and what was expected for everything that is wrong.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo
from pydantic.functional_validators import BeforeValidator, field_validator, model_validator
from pydantic.json_schema import WithJsonSchema

from hs_client import jobvalues, quantities
from hs_client.complaints import Complaints, Origins, Path_, raise_each
from hs_client.errors import InvalidError
from hs_client.jobvalues import Models, NonEmpty, Seconds, Size

MAX_NODES = 1024
MAX_WORDS = 4096  # of argv
MAX_ENV = 512
MAX_STRATEGIES = 64
MAX_SPEC_BYTES = 256 * 1024
RESERVED_ENV = ("HS_*", "CUDA_VISIBLE_DEVICES", "MASTER_ADDR", "MASTER_PORT")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME = re.compile(r"[^\x00-\x1f\x7f]+")
_HALF = re.compile(r"[\ud800-\udfff]")


def no_text(value: str) -> str:
    """What was expected of it; "" where it can be sent, and be a word of a command. File names of other encodings come with half characters."""
    if "\0" in value:
        return "expected no NUL character"
    return "" if value.isascii() or not _HALF.search(value) else "expected UTF-8 text"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, hide_input_in_errors=True)


class Resources(_Part):
    gpus: Annotated[
        Annotated[int, Field(strict=True)] | str,
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "integer", "minimum": 1, "maximum": quantities.MAX_GPUS},
                    {"type": "string", "examples": ["H100:4"]},
                ]
            }
        ),
    ] = Field(1, description="GPUs per node, or MODEL:NUMBER")
    gpu_type: Models = Field([], description="models the job may use, e.g. H100,A100; any by default")
    gpu_memory: Size | None = Field(None, description="memory each GPU must have, e.g. 40G")
    gpu_memory_fixed: Size | None = Field(
        None, description="of gpu_memory, what does not shrink with the batch; all of it by default"
    )
    cpus: Annotated[int, Field(strict=True, ge=1, le=4096)] | None = Field(
        None, description="CPU cores; not limited by default"
    )
    memory: Size | None = Field(None, description="host memory; not limited by default")

    @field_validator("gpus")
    @classmethod
    def _count(cls, value: int | str) -> int | str:
        try:
            count = value if isinstance(value, int) else quantities.gpus(value)[1]
        except ValueError as error:
            raise ValueError(str(error)) from None
        if not 1 <= count <= quantities.MAX_GPUS:
            raise ValueError(f"expected 1 to {quantities.MAX_GPUS} GPUs per node")
        return value

    @field_validator("gpu_type")
    @classmethod
    def _names(cls, value: list[str]) -> list[str]:
        return jobvalues.check_models(value)

    @model_validator(mode="after")
    def _one_model(self) -> "Resources":
        if self.model and self.gpu_type and self.gpu_type != [self.model]:
            raise ValueError(
                f"gpus names {self.model} and gpu_type {','.join(self.gpu_type)}: expected one of them"
            )
        return self

    @model_validator(mode="after")
    def _part_of_memory(self) -> "Resources":
        fixed = self.gpu_memory_fixed
        if fixed is not None and (self.gpu_memory is None or fixed > self.gpu_memory):
            whole = "not given" if self.gpu_memory is None else f"{self.gpu_memory} bytes"
            raise ValueError(
                f"gpu_memory_fixed is {fixed} bytes and gpu_memory {whole}: expected a part of gpu_memory"
            )
        return self

    @property
    def model(self) -> str:
        return quantities.gpus(self.gpus)[0] if isinstance(self.gpus, str) else ""

    @property
    def count(self) -> int:
        return quantities.gpus(self.gpus)[1] if isinstance(self.gpus, str) else self.gpus


class Retry(_Part):
    on: list[Literal["failure"]] = Field(["failure"], description="what is tried again")
    max: Annotated[int, Field(strict=True, ge=0, le=100)] = Field(1, description="restarts at most")


class Checkpoint(_Part):
    mode: Literal["auto", "interval"] = Field(
        "auto",
        description="auto: when suspended to disk; interval: also every so often, and the default where interval is given",
    )
    dir: NonEmpty | None = Field(None, description="folder; the agent's state folder by default")
    interval: Seconds | None = Field(None, description="training time between checkpoints")

    @model_validator(mode="after")
    def _interval(self) -> "Checkpoint":
        if self.mode == "interval" and self.interval is None:
            raise ValueError("mode interval needs interval, e.g. interval: 30m")
        if self.mode == "auto" and "mode" in self.model_fields_set and self.interval is not None:
            raise ValueError("mode auto and interval: expected one of them, as auto has no interval")
        return self


class Placement(_Part):
    gpu_type: Models = Field([], description="the same as resources.gpu_type")
    migrate: Literal["auto", "same-type", "never"] = "auto"
    topology: Literal["auto", "any"] = Field(
        "auto",
        description="auto: over `nodes` servers, an elastic job on one; any: in equal parts over as many as its GPUs are free on",
    )

    @field_validator("gpu_type")
    @classmethod
    def _names(cls, value: list[str]) -> list[str]:
        return jobvalues.check_models(value)


Examples = Annotated[int, Field(strict=True, ge=1, le=1 << 30)]
Gpus = Annotated[int, Field(strict=True, ge=1, le=quantities.MAX_GPUS)]


class DataSet(_Part):
    name: NonEmpty = Field(description="as all who read the same data call it")
    size: Size | None = Field(None, description="how much that is, e.g. 150G")


class Elastic(_Part):
    gpus_min: Gpus = Field(1, description="the fewest GPUs that it may run on")
    gpus_max: Gpus = Field(description="the most, over all of its servers")
    batch: Examples = Field(description="examples of a mini-batch, as you would train")
    batch_max: Examples | None = Field(
        None, description="examples of a mini-batch at most; `batch` by default"
    )
    batch_per_gpu_max: Examples | None = Field(
        None, description="examples that fit into a GPU at once; `batch` over the GPUs asked for by default"
    )
    noise_scale: float = Field(
        0.0,
        ge=0,
        le=1e15,
        strict=True,
        allow_inf_nan=False,
        description="gradient noise scale in examples, where you know it: how much larger batches are worth",
    )

    @model_validator(mode="after")
    def _ordered(self) -> "Elastic":
        if self.gpus_max < self.gpus_min:
            raise ValueError(
                f"gpus_max = {self.gpus_max}: expected at least gpus_min, which is {self.gpus_min}"
            )
        if self.batch_max is not None and self.batch_max < self.batch:
            raise ValueError(f"batch_max = {self.batch_max}: expected at least batch, which is {self.batch}")
        return self


class Job(_Part):
    """A job, an array or a sweep of jobs."""

    model_config = ConfigDict(title="HeteroShare job", extra="forbid", frozen=True, populate_by_name=True)

    name: Annotated[str, Field(min_length=1, max_length=128)] | None = Field(
        None, description="made from the command by default"
    )
    resources: Resources = Resources.model_validate({})
    nodes: Annotated[int, Field(strict=True, ge=1, le=MAX_NODES)] = 1
    env: Annotated[dict[str, str | int | float | bool | None], Field(max_length=MAX_ENV)] = Field(
        {}, description="environment of the job; a name without a value is taken from yours"
    )
    workdir: NonEmpty | None = Field(None, description="folder to run in; the one you are in by default")
    setup: str | None = Field(None, description="shell lines run before `run`, in the same shell")
    run: Annotated[
        str | list[str],
        BeforeValidator(jobvalues.words),
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "string"},
                    {"type": "array", "items": {"type": ["string", "number", "boolean"]}},
                ]
            }
        ),
    ] = Field(description="shell lines, or a list that is run as it is")
    output: NonEmpty | None = Field(
        None,
        description="the log is also written here; %x is the job's name, %j its number, %a its task's, %A its array's",
    )
    max_duration: Seconds | None = Field(None, description="of running time; a number is seconds")
    priority: Annotated[int, Field(strict=True, ge=-1000, le=1000)] = Field(
        0, description="among your own jobs"
    )
    after: Annotated[
        list[Annotated[str, BeforeValidator(jobvalues.text_of_number)]],
        BeforeValidator(jobvalues.listed),
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": ["integer", "string"]},
                    {"type": "array", "items": {"type": ["integer", "string"]}},
                ]
            }
        ),
    ] = Field([], description="jobs to wait for: 12, or 12:ok, 12:any, 12:fail")
    array: (
        Annotated[
            str,
            BeforeValidator(jobvalues.text_of_number),
            WithJsonSchema({"type": ["string", "integer"], "examples": ["0-15%4"]}),
        ]
        | None
    ) = Field(None, description="task numbers and how many run at once")
    sweep: dict[str, Annotated[list[str | int | float | bool], Field(min_length=1)]] = Field(
        {}, description="values put in place of {name} in the command: one job for each combination"
    )
    retry: Retry | None = None
    checkpoint: Checkpoint = Checkpoint.model_validate({})
    placement: Placement = Placement.model_validate({})
    torchrun: bool = Field(False, description="start a process per GPU through torchrun")
    suspend: Literal["auto", "hook", "transparent", "none"] = "auto"
    on_partition: Literal["fence", "continue"] = "continue"
    job_class: NonEmpty | None = Field(None, alias="class", description="jobs of one class perform alike")

    steps: Annotated[int, Field(strict=True, ge=0, le=10**15)] = Field(
        0, description="optimizer steps in all, as you expect them; policies that go by length need it"
    )

    accumulation: Annotated[int, Field(strict=True, ge=1, le=1 << 20)] = Field(
        1,
        description="sub-batches that its training loop can split a mini-batch into, at most: it asks hs_job.accumulation_steps()",
    )

    dataset: DataSet | None = Field(
        None, description="the data that it reads: servers on which a job has read it are preferred"
    )
    elastic: Elastic | None = Field(
        None, description="it may be restarted on another number of GPUs: it asks hs_job.batch_per_gpu()"
    )

    strategies: Annotated[
        list[NonEmpty],
        BeforeValidator(jobvalues.alone),
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "string", "examples": ["dp=4", "tp=2,pp=2", "pp=2,layers=10+14"]},
                    {"type": "array", "items": {"type": "string"}, "maxItems": MAX_STRATEGIES},
                ]
            }
        ),
    ] = Field(
        [],
        max_length=MAX_STRATEGIES,
        description="how its script can lay the model over the GPUs, your own choice first: it asks hs_job.strategy()",
    )

    @field_validator("strategies")
    @classmethod
    def _of_its_gang(cls, value: list[str], info: ValidationInfo) -> list[str]:
        """As written in one way; what else is wrong is missing from `info.data`."""
        read = [jobvalues.strategy(text) for text in value]
        if value and info.data.get("elastic") is not None:
            raise ValueError("expected none for an elastic job: they are for a fixed number of GPUs")
        resources, nodes = info.data.get("resources"), info.data.get("nodes", 1)
        for strategy in read:
            if read.count(strategy) > 1:
                raise ValueError(f"{strategy}: expected each strategy once")
            if resources is not None and strategy.gpus != resources.count * nodes:
                raise ValueError(
                    f"{strategy}: expected degrees that multiply to its {resources.count * nodes} GPUs, not to {strategy.gpus}"
                )
        return [str(strategy) for strategy in read]

    @field_validator("elastic")
    @classmethod
    def _beside_elastic(cls, value: Elastic | None, info: ValidationInfo) -> Elastic | None:
        """What else is said must let it be; fields that are wrong by themselves are missing from `info.data`."""
        if value is None:
            return None
        resources, nodes = info.data.get("resources"), info.data.get("nodes", 1)
        placement = info.data.get("placement")
        if nodes != 1 and placement is not None and placement.topology != "any":
            raise ValueError(
                f"expected nodes to be 1, not {nodes}, or placement.topology any: it has its GPUs on one server otherwise"
            )
        if resources is not None and not value.gpus_min <= resources.count * nodes <= value.gpus_max:
            times = f" times {nodes} nodes" if nodes != 1 else ""
            raise ValueError(
                f"expected resources.gpus, which is {resources.count}{times}, among gpus_min to gpus_max, "
                f"{value.gpus_min} to {value.gpus_max}"
            )
        if (parts := info.data.get("accumulation", 1)) != 1:
            raise ValueError(f"expected no accumulation, not {parts}: its parts follow from its batches")
        if (suspend := info.data.get("suspend")) in {"transparent", "none"}:
            raise ValueError(
                f"expected suspend to be auto or hook, not {suspend}: it goes on from a checkpoint"
            )
        return value

    @field_validator("name", "job_class")
    @classmethod
    def _printable(cls, value: str | None) -> str | None:
        if value is not None and (not _NAME.fullmatch(value) or value != value.strip() or len(value) > 128):
            raise ValueError("expected at most 128 printable characters without blanks at the ends")
        return value

    @field_validator("env")
    @classmethod
    def _env_names(cls, value: dict[str, Any]) -> dict[str, Any]:
        wrong = {name: _env_wrong(name, content) for name, content in value.items()}
        raise_each(wrong)
        return value

    @field_validator("run")
    @classmethod
    def _something_to_run(cls, value: str | list[str]) -> str | list[str]:
        if not value or not (value if isinstance(value, str) else value[0]).strip():
            raise ValueError("expected a command")
        if not isinstance(value, str) and len(value) > MAX_WORDS:
            raise ValueError(f"expected at most {MAX_WORDS} words")
        if wrong := no_text("".join(value)):
            raise ValueError(wrong)
        return value

    @field_validator("after")
    @classmethod
    def _after(cls, value: list[str]) -> list[str]:
        raise_each({place: _after_wrong(text) for place, text in enumerate(value)})
        return value

    @field_validator("array")
    @classmethod
    def _array(cls, value: str | None) -> str | None:
        if value is not None:
            quantities.array(value)
        return value

    @field_validator("sweep")
    @classmethod
    def _sweep_names(cls, value: dict[str, list[Any]]) -> dict[str, list[Any]]:
        raise_each(
            {
                name: ""
                if _ENV_NAME.fullmatch(name)
                else f"{name!r}: expected a name of letters, digits and _"
                for name in value
            }
        )
        return value

    @model_validator(mode="after")
    def _together(self) -> "Job":
        if self.array is not None and self.sweep:
            raise ValueError(
                "array and sweep: expected one of them (a sweep makes a job for each combination)"
            )
        ours, theirs = self.resources, self.placement.gpu_type
        if theirs and (ours.gpu_type or ours.model) and theirs != (ours.gpu_type or [ours.model]):
            raise ValueError("placement.gpu_type and resources.gpu_type differ: expected one of them")
        return self

    @property
    def gpu_types(self) -> list[str]:
        return (
            self.resources.gpu_type
            or self.placement.gpu_type
            or ([self.resources.model] if self.resources.model else [])
        )


def _env_wrong(name: str, content: object) -> str:
    """Empty: it may be in a job's environment."""
    if not _ENV_NAME.fullmatch(name):
        return f"{name!r}: expected a name of letters, digits and _"
    if name.startswith("HS_") or name in RESERVED_ENV:
        return f"{name} is set by HeteroShare: expected another name than {', '.join(RESERVED_ENV)}"
    wrong = no_text(str(content))
    return f"{name}: {wrong}" if wrong else ""


def _after_wrong(text: str) -> str:
    try:
        quantities.after(text)
    except ValueError as error:
        return f"{text!r}: {error}"
    return ""


def schema() -> dict[str, Any]:
    """The job file's JSON Schema (docs/job.schema.json)."""
    made = Job.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def parse(
    data: Mapping[str, Any],
    origins: Origins | None = None,
    *,
    source: str = "",
    flags: Mapping[Path_, str] | None = None,
) -> Job:
    """A checked job, or InvalidError with a line for each thing that is wrong. `flags`: what fields are called on the command line."""
    try:
        return Job.model_validate(data)
    except ValidationError as error:
        said = Complaints(
            data=data, origins=origins or {}, source=source, flags=flags or {}, fields_at=fields_at
        )
        raise InvalidError("\n".join(said.of(error))) from None


def fields_at(path: Path_) -> list[str]:
    """Names of the fields below that one; none where it has none, or is none."""
    part: type[BaseModel] | None = Job
    for step in path:
        field = part.model_fields.get(str(step)) if part else None
        kinds = (Resources, Retry, Checkpoint, Placement, DataSet, Elastic)
        part = next((k for k in kinds if field is not None and k.__name__ in str(field.annotation)), None)
    return [f.alias or name for name, f in part.model_fields.items()] if part else []

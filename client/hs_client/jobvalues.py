"""What may be written for the fields of a job: sizes, times, GPU models, words of a command; and what their JSON Schema says."""

import re
from typing import Annotated

from pydantic import Field
from pydantic.functional_validators import BeforeValidator
from pydantic.json_schema import WithJsonSchema

from hs_client import quantities

MODELS_EXPECTED = "names of GPU models, e.g. H100,A100 or any"
_MODEL = re.compile(r"[A-Za-z0-9][\w .+-]*")


def _size(value: object) -> object:
    if isinstance(value, str):
        return quantities.size(value)
    if isinstance(value, int | float) and value < quantities.UNITS["M"]:
        raise ValueError(quantities.SIZE_EXPECTED)  # `memory: 40` is never 40 bytes
    return value


def _seconds(value: object) -> object:
    if isinstance(value, str | bool):  # `max_duration: yes` is never a second
        return quantities.duration(str(value))
    return value


def _models(value: object) -> object:
    if isinstance(value, list | tuple):
        return value
    said = value.split(",") if isinstance(value, str) else []
    named = [word.strip() for word in said if word.strip()]
    if not named:  # an unset variable of a script, most likely
        raise ValueError(f"expected {MODELS_EXPECTED}")
    return [word for word in named if word != "any"]


def alone(value: object) -> object:
    return [value] if isinstance(value, str) else value


def strategy(text: str) -> quantities.Strategy:
    try:
        return quantities.strategy(text)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from None


def words(value: object) -> object:
    """argv may hold numbers, as YAML reads them: `[python, train.py, --epochs, 10]`."""
    if not isinstance(value, list | tuple):
        return value
    return [str(w) if isinstance(w, int | float) and not isinstance(w, bool) else w for w in value]


def listed(value: object) -> object:
    return value.split(",") if isinstance(value, str) else [value] if isinstance(value, int) else value


def text_of_number(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


_SIZE_SCHEMA = {"anyOf": [{"type": "string", "examples": ["40G", "512M"]}, {"type": "integer", "minimum": 1}]}
_TIME_SCHEMA = {
    "anyOf": [
        {"type": "string", "examples": ["90m", "1d12h", "12:00:00"]},
        {"type": "number", "exclusiveMinimum": 0},
    ]
}

Size = Annotated[
    int, Field(gt=0, le=quantities.MAX_BYTES), BeforeValidator(_size), WithJsonSchema(_SIZE_SCHEMA)
]
Seconds = Annotated[
    float, Field(gt=0, le=quantities.MAX_SECONDS), BeforeValidator(_seconds), WithJsonSchema(_TIME_SCHEMA)
]
Models = Annotated[
    list[str],
    BeforeValidator(_models),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "examples": ["H100,A100", "any"]},
                {"type": "array", "items": {"type": "string"}},
            ]
        }
    ),
]
NonEmpty = Annotated[str, Field(min_length=1)]


def check_models(value: list[str]) -> list[str]:
    for name in value:
        if not _MODEL.fullmatch(name) or len(name) > 64:
            raise ValueError(f"{name!r}: expected {MODELS_EXPECTED}")
    return value

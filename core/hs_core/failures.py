"""A policy that fails: what it said last stands, nobody is given a home, and administrators are told, once for each way in which it fails."""

import traceback
from dataclasses import dataclass

TEXT_CHARS = 200


@dataclass(frozen=True, slots=True)
class Failure:
    """Of a decision."""

    error: str
    place: str  # in the code: equal ones are the same fault

    @property
    def text(self) -> str:
        return f"{self.error} ({self.place})"


def failure_of(error: Exception) -> Failure:
    said = f"{type(error).__name__}: {error}"
    if len(said) > TEXT_CHARS:
        said = f"{said[: TEXT_CHARS - 1]}…"
    frames = traceback.extract_tb(error.__traceback__)
    place = "/".join(frames[-1].filename.split("/")[-2:]) + f":{frames[-1].lineno}" if frames else "nowhere"
    return Failure(" ".join(said.split()), place)

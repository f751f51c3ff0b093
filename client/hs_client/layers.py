"""A job's description is laid in layers (script lines, file, KEY=VALUE, flags), each a nested dict that knows where it came from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hs_client import jobfile, yamlfile
from hs_client.complaints import Path_
from hs_client.errors import InvalidError

_NOTHING = ("null", "Null", "NULL", "~")  # YAML's words for it


@dataclass(slots=True)
class Layers:
    """The newest layer wins, field by field; `env` and `sweep` merge name by name."""

    data: dict[str, Any] = field(default_factory=dict)
    origins: dict[Path_, str] = field(default_factory=dict)

    def put(self, path: Path_, value: object, origin: str) -> None:
        if not path:
            raise AssertionError("a value needs a field")
        here = self.data
        for depth, step in enumerate(path[:-1]):
            below = here.setdefault(str(step), {})
            if not isinstance(below, dict):
                name = ".".join(str(s) for s in path[: depth + 1])
                raise InvalidError(
                    f"{origin}: {name} = {below!r} ({self.where(path[: depth + 1])}): expected fields below it"
                )
            here = below
        here[str(path[-1])] = value
        self.origins[path] = origin

    def lay(self, data: Mapping[str, Any], origins: Mapping[Path_, str]) -> None:
        self._lay(data, (), origins)
        self.origins.update(origins)

    def _lay(self, data: Mapping[str, Any], path: Path_, origins: Mapping[Path_, str]) -> None:
        for key, value in data.items():
            here = (*path, key)
            if isinstance(value, Mapping) and value:
                self._lay(value, here, origins)
            else:
                self.put(here, value, origins.get(here, ""))

    def override(self, word: str) -> None:
        """`resources.gpus=2`, read as YAML."""
        key, equals, text = word.partition("=")
        if not equals or not key.strip():
            raise InvalidError(
                f"{word!r}: expected KEY=VALUE after a job file, e.g. resources.gpus=2 or env.LR=0.1"
            )
        path = tuple(key.strip().split("."))
        as_it_is = path[0] == "env" or (path[0] == "sweep" and not text.startswith("["))
        value: object = text if as_it_is else yamlfile.scalar(text, path, repr(word))
        if value is None and text.strip() not in _NOTHING:  # an unset variable of a script, most likely
            raise InvalidError(
                f"{word!r}: expected a value; {key.strip()}=null takes back what the file says"
            )
        if value is None and path[-1] in jobfile.fields_at(path[:-1]):
            self._take_back(path)
        else:
            self.put(path, value, f"{word!r}")

    def _take_back(self, path: Path_) -> None:
        """As if no layer so far had said it, nor anything below it."""
        here: Any = self.data
        for step in path[:-1]:
            here = here.get(step) if isinstance(here, dict) else None
        if isinstance(here, dict):
            here.pop(path[-1], None)
        self.origins = {known: said for known, said in self.origins.items() if known[: len(path)] != path}

    def where(self, path: Path_) -> str:
        return self.origins.get(path, "an earlier layer")

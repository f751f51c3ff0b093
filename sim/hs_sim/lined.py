"""A YAML file whose mappings and lists know their lines, for who says what is wrong in it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hs_core.errors import RefusedError
from hs_sim.reading import kind_of, refuse, unread

DEEPEST = 100  # levels


class Lined(dict[Any, Any]):
    """A mapping of a YAML file that knows its lines."""

    line: int
    lines: dict[Any, int]

    @classmethod
    def parse(cls, path: Path, text: str) -> Any:
        import yaml  # noqa: PLC0415 — only who reads YAML pays for it

        class Loader(yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader):  # type: ignore[misc]
            pass

        def built(loader: Any, node: Any) -> Any:
            try:
                return loader.construct_object(node, deep=True)
            except ValueError as error:  # no such day, or more digits than Python reads
                raise RefusedError(
                    f"{path}:{node.start_mark.line + 1}: {unread(error)}; expected YAML"
                ) from None

        def mapping(loader: Any, node: Any) -> "Lined":
            made = cls()
            made.line = node.start_mark.line + 1
            made.lines = {}
            for key_node, value_node in node.value:
                line = key_node.start_mark.line + 1
                if key_node.tag == "tag:yaml.org,2002:merge":
                    raise RefusedError(f"{path}:{line}: <<: a merge; expected every field by its name")
                key = built(loader, key_node)
                if isinstance(key, bool) or not isinstance(key, str | int | float):
                    raise RefusedError(f"{path}:{line}: a key is {kind_of(key)}; expected a word")
                if key in made:
                    raise RefusedError(f"{path}:{line}: {key}: named twice; expected each field once")
                made[key] = built(loader, value_node)
                made.lines[key] = line
            return made

        def sequence(loader: Any, node: Any) -> "LinedList":
            made = LinedList(built(loader, item) for item in node.value)
            made.lines = [item.start_mark.line + 1 for item in node.value]
            return made

        Loader.add_constructor("tag:yaml.org,2002:map", mapping)
        Loader.add_constructor("tag:yaml.org,2002:seq", sequence)
        try:
            _check_depth(path, text, Loader)
            return yaml.load(text, Loader)  # noqa: S506 — a safe loader
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise RefusedError(f"{path}:{line}: {error.problem}; expected YAML") from None
        except yaml.YAMLError as error:
            raise RefusedError(f"{path}: {error}; expected YAML") from None


def _check_depth(path: Path, text: str, loader: Any) -> None:
    """Before anything is built: libyaml would call itself for every level, until the process's stack is full."""
    import yaml  # noqa: PLC0415 — likewise

    depth = 0
    for event in yaml.parse(text, loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            line = event.start_mark.line + 1 if event.start_mark else 1
            raise RefusedError(f"{path}:{line}: nested too deeply; expected at most {DEEPEST} levels")


class LinedList(list[Any]):
    """A list of a YAML file that knows the lines of its items."""

    lines: list[int]


def mapping_of(path: Path, tree: Any, field: str) -> Mapping[Any, Any]:
    found = tree.get(field)
    if found is None:
        return {}
    if not isinstance(found, dict):
        refuse((path, tree.lines[field]), field, found, "a mapping")
    return found

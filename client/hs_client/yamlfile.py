"""Job files: YAML read as data only, within limits, remembering the line of every field.

What goes into strings anyway keeps the text that was written: `lr: [1e-3]` of a sweep, `DEBUG: on` of `env`, `1.10` among the words of `run`,
and `after: 12_3`, which is 123 to YAML.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from hs_client.complaints import Path_
from hs_client.errors import InvalidError
from hs_client.jobfile import MAX_SPEC_BYTES

MAX_ALIASES = 32
MAX_DEPTH = 12
MAX_NODES = 20_000
MAX_DIGITS = 40
_PLAIN_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_TEXTUAL = ("env", "sweep", "after", "array")


def read(path: Path) -> tuple[dict[str, Any], dict[Path_, str]]:
    """The file's fields and where each of them stands."""
    return parse(_bytes(path), str(path))


def parse(raw: bytes, source: str) -> tuple[dict[str, Any], dict[Path_, str]]:
    with _composed(raw, source) as (root, reader):
        return reader.mapping(root, ()), reader.origins


def scalar(text: str, path: Path_, source: str) -> Any:
    """The value of a KEY=VALUE override: what it would be in that field of a file."""
    with _composed(b"v: " + text.encode(), source) as (root, reader):
        (_, node), *others = root.value
        if others:
            raise InvalidError(f"{source}: expected one value (a text of several lines belongs in a file)")
        return reader.value(node, path)


@contextmanager
def _composed(raw: bytes, source: str) -> "Iterator[tuple[yaml.MappingNode, _Reader]]":
    """The fields, and who reads them; what is wrong with either is InvalidError."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidError(f"{source}: byte {error.start}: expected UTF-8 text") from None
    try:
        _limits(text, source)
        loader = yaml.SafeLoader(text)
        try:
            root = loader.get_single_node()
            if root is None:
                raise InvalidError(f"{source}: empty: expected a job, at least `run:`")
            if not isinstance(root, yaml.MappingNode):
                raise InvalidError(
                    f"{source}: expected fields such as `name:` and `run:`, found {_kind(root)}"
                )
            yield root, _Reader(loader, source)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise InvalidError(_unreadable(error, source)) from None
    except (ValueError, OverflowError, RecursionError) as error:
        raise InvalidError(f"{source}: unreadable: {error}") from None


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:  # or a pipe, as of `-f <(…)`
            raw = file.read(MAX_SPEC_BYTES + 1)
    except OSError as error:
        raise InvalidError(f"{path}: {error.strerror}: expected a job file") from None
    if len(raw) > MAX_SPEC_BYTES:
        raise InvalidError(f"{path}: expected at most {MAX_SPEC_BYTES // 1024} KiB")
    return raw


def _limits(text: str, source: str) -> None:
    """Before anything is built: aliases multiply, depth recurses."""
    aliases = depth = 0
    for count, event in enumerate(yaml.parse(text, yaml.SafeLoader)):
        aliases += isinstance(event, yaml.AliasEvent)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        line = event.start_mark.line + 1 if event.start_mark else 1
        if aliases > MAX_ALIASES:
            raise InvalidError(f"{source}:{line}: expected at most {MAX_ALIASES} aliases")
        if depth > MAX_DEPTH:
            raise InvalidError(f"{source}:{line}: expected at most {MAX_DEPTH} levels")
        if count > MAX_NODES:
            raise InvalidError(f"{source}:{line}: expected at most {MAX_NODES} values")


def _unreadable(error: yaml.YAMLError, source: str) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    if mark is None:
        return f"{source}: unreadable YAML: {problem}"
    return f"{source}:{mark.line + 1}: unreadable YAML at column {mark.column + 1}: {problem}"


def _kind(node: yaml.Node) -> str:
    return (
        "a list"
        if isinstance(node, yaml.SequenceNode)
        else "a group of fields"
        if isinstance(node, yaml.MappingNode)
        else "a single value"
    )


def _keeps_text(path: Path_) -> bool:
    return path[0] in _TEXTUAL or (path[0] == "run" and len(path) > 1)


class _Reader:
    def __init__(self, loader: yaml.SafeLoader, source: str) -> None:
        self.loader = loader
        self.source = source
        self.origins: dict[Path_, str] = {}
        self._left = MAX_NODES  # an alias counts as often as it is used

    def value(self, node: yaml.Node, path: Path_) -> Any:
        self._left -= 1
        if len(path) > MAX_DEPTH or self._left < 0:  # an alias to what it is in, or many times over
            raise InvalidError(f"{self._place(node)}: expected less nesting of aliases")
        if isinstance(node, yaml.CollectionNode) and node.tag not in _PLAIN_TAGS:
            raise InvalidError(f"{self._place(node)}: tag {node.tag!r}: expected plain data")
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, i)) for i, item in enumerate(node.value)]
        if (
            _keeps_text(path)
            and not node.tag.endswith(":null")
            and node.tag in yaml.SafeLoader.yaml_constructors
        ):
            return str(node.value)
        field = f"{self._place(node)}: {'.'.join(map(str, path))}"
        # Of hexadecimal digits, and of minutes of minutes, Python reads any number, which it can show nobody.
        if node.tag.endswith(":int") and len(node.value) > MAX_DIGITS:
            raise InvalidError(
                f"{field}: {len(node.value)} digits: expected a number of at most {MAX_DIGITS}"
            )
        try:
            return self.loader.construct_object(node, deep=True)
        except ValueError as error:  # no such day
            raise InvalidError(f"{field}: {error}") from None

    def mapping(self, node: yaml.MappingNode, path: Path_) -> dict[str, Any]:
        self._refuse_duplicates(node)
        self.loader.flatten_mapping(node)
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            here = (*path, key)
            self.origins[here] = self._place(key_node)
            result[key] = self.value(value_node, here)
        return result

    def _refuse_duplicates(self, node: yaml.MappingNode) -> None:
        seen: dict[str, int] = {}
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise InvalidError(f"{self.source}:{line}: expected a field name, found {_kind(key_node)}")
            if key_node.value in seen:
                first = seen[key_node.value]
                raise InvalidError(
                    f"{self.source}:{line}: {key_node.value!r} is there already on line {first}: expected it once"
                )
            seen[key_node.value] = line

    def _place(self, node: yaml.Node) -> str:
        return f"{self.source}:{node.start_mark.line + 1}"

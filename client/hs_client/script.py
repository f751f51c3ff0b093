"""Batch scripts: `#SBATCH` lines in Slurm's words and `#HS` lines in hsctl's own, up to the first command.

What Slurm means by an option we either mean too, or say that it is ignored; nothing is silently different.
"""

import os
import re
import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hs_client import quantities
from hs_client.complaints import Path_
from hs_client.errors import InvalidError
from hs_client.jobfile import MAX_SPEC_BYTES
from hs_client.there import is_file

_LINE = re.compile(r"#(SBATCH|HS)\s+(\S.*)")
_EACH: Path_ = ("resources", "gpus")
_IN_ALL: Path_ = ("gpus",)  # until the last line is read, which may say over how many nodes
_SCRIPT_ENDINGS = (".sh", ".bash", ".sbatch", ".slurm", ".job")

# Slurm's short options, and the long names they stand for.
_SHORT = {
    "J": "job-name", "G": "gpus", "N": "nodes", "n": "ntasks", "c": "cpus-per-task", "t": "time", "a": "array",
    "d": "dependency", "D": "chdir", "o": "output", "e": "error", "p": "partition", "q": "qos", "A": "account",
    "C": "constraint", "w": "nodelist", "x": "exclude", "H": "hold", "k": "no-kill", "s": "oversubscribe",
}  # fmt: skip
_DEPENDENCY = {"afterok": "ok", "afterany": "any", "afternotok": "fail"}
_IGNORED = {
    "partition": "HeteroShare has no partitions; #HS --gpu-type chooses GPUs",
    "error": "both streams go to one log",
    "qos": "shares follow tickets",
    "account": "shares follow tickets",
    "constraint": "#HS --gpu-type chooses GPUs",
    "exclusive": "two jobs are on a GPU at the same moment only under tesserae-*, sjf-bsbf, sjf-ffs and gavel-*-packed, which leave out nobody who asks",
    "requeue": "#HS --retry N restarts a failed job",
    "ntasks-per-node": "#HS --torchrun starts a process per GPU",
    "hold": "use hsctl pause",
}
_VARIABLE = re.compile(r"\b(SLURM_[A-Z_]+)\b(=?)")
_OURS = {
    "SLURM_JOB_ID": "HS_JOB_ID",
    "SLURM_JOBID": "HS_JOB_ID",
    "SLURM_JOB_NAME": "HS_JOB_NAME",
    "SLURM_ARRAY_TASK_ID": "HS_ARRAY_TASK_ID",
    "SLURM_NNODES": "HS_NNODES",
    "SLURM_JOB_NUM_NODES": "HS_NNODES",
    "SLURM_NODEID": "HS_NODE_RANK",
    "SLURM_GPUS_ON_NODE": "HS_GPUS_PER_NODE",
    "SLURM_SUBMIT_DIR": "PWD",
}
_FLAGS = {
    "exclusive",
    "requeue",
    "no-requeue",
    "hold",
    "no-kill",
    "oversubscribe",
    "verbose",
    "quiet",
    "parsable",
    "wait",
}


@dataclass(slots=True)
class Script:
    """What a script's head asks for."""

    command: list[str]
    data: list[tuple[Path_, Any, str]] = field(default_factory=list)  # field, value, where
    hs_words: list[tuple[list[str], str]] = field(default_factory=list)  # hsctl flags, where
    warnings: list[str] = field(default_factory=list)


def looks_like(word: str, folder: Path) -> Path | None:
    """The batch script that the first word of a command names, if it names one rather than a program on PATH."""
    path = folder / word
    if not is_file(path):
        return None
    named_as_script = word.endswith(_SCRIPT_ENDINGS)
    if "/" not in word and not named_as_script and shutil.which(word):
        return None
    with path.open("rb") as file:
        begins = file.read(2)
    return path if begins == b"#!" or named_as_script else None


def read(path: Path, arguments: list[str]) -> Script:
    raw = path.read_bytes()[: MAX_SPEC_BYTES + 1]
    if len(raw) > MAX_SPEC_BYTES:
        raise InvalidError(f"{path}: expected a script of at most {MAX_SPEC_BYTES // 1024} KiB")
    lines = raw.decode("utf-8", "replace").splitlines()
    script = Script(
        command=[*_interpreter(path, lines[0] if lines else ""), str(path.absolute()), *arguments]
    )
    for number, line in enumerate(lines, 1):
        text = line.strip()
        # As sbatch has it, `# SBATCH` and an indented `#SBATCH` are comments.
        if match := _LINE.fullmatch(line.rstrip()):
            words = _split(match[2], f"{path}:{number}")
            if match[1] == "HS":
                script.hs_words.append((words, f"{path}:{number}"))
            else:
                _sbatch(words, script, f"{path}:{number}")
        elif text and not text.startswith("#"):
            break  # as sbatch: options end at the first command
    _share_out(script)
    script.warnings += _unset(lines, path)
    return script


def _unset(lines: list[str], path: Path) -> list[str]:
    """What Slurm sets for a job, and nobody here does: where the script reads it first."""
    told: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("#"):
            continue
        for name, sets in _VARIABLE.findall(line):
            ours = f"; {_OURS[name]} is" if name in _OURS else ""
            told.setdefault(name, "" if sets else f"{path}:{number}: {name}: not set here{ours}")
    return [each for each in told.values() if each]


def _share_out(script: Script) -> None:
    """Slurm's `--gpus` are those of the whole job, ours those of each node."""
    nodes = next((content for path, content, _ in reversed(script.data) if path == ("nodes",)), 1) or 1
    for place, (path, content, origin) in enumerate(script.data):
        if path == _IN_ALL:
            model, count = content
            if count % nodes:
                raise InvalidError(
                    f"{origin}: expected a multiple of --nodes, which is {nodes}: every node has as many GPUs"
                )
            script.data[place] = (_EACH, _gpus_text(model, count // nodes), origin)


def _interpreter(path: Path, first: str) -> list[str]:
    if not first.startswith("#!"):
        raise InvalidError(
            f"{path}:1: {first[:40]!r}: expected a script to begin with its interpreter, e.g. #!/bin/bash"
        )
    if os.access(path, os.X_OK):
        return []
    words = first[2:].split(None, 1)
    if not words or not shutil.which(words[0]):
        raise InvalidError(f"{path}:1: {first[:60]!r}: expected an interpreter that exists")
    return [word.strip() for word in words]


def _split(text: str, where: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        raise InvalidError(f"{where}: {text!r}: {error}: expected balanced quotes") from None


def _sbatch(words: list[str], script: Script, where: str) -> None:
    pending = list(words)
    while pending:
        name, value = _option(pending, where)
        origin = f"{where}: --{name}={value}" if value else f"{where}: --{name}"
        try:
            made = _meaning(name, value)
        except ValueError as error:
            raise InvalidError(f"{origin}: {error}") from None
        if isinstance(made, str):
            script.warnings.append(f"{origin}: ignored: {made}")
        else:
            script.data += [(path, content, origin) for path, content in made]


def _option(pending: list[str], where: str) -> tuple[str, str]:
    word = pending.pop(0)
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
    elif word.startswith("-") and len(word) > 1:
        name, value = _SHORT.get(word[1], word[1]), word[2:].removeprefix("=")
        equals = "=" if value else ""
    else:
        raise InvalidError(f"{where}: {word!r}: expected an option, e.g. --gpus=2")
    if not equals and name not in _FLAGS and pending and not pending[0].startswith("-"):
        value = pending.pop(0)
    return name, value


def _meaning(name: str, value: str) -> list[tuple[Path_, Any]] | str:
    """The fields an option sets, or why it is ignored."""
    if name == "output":
        if "%" in re.sub("%[xajA]", "", value):
            return "only %x, %j, %a and %A are known in a path here; `hsctl logs JOB` keeps every job's log"
        return [(("output",), value)]
    if name in {"gpus", "gpus-per-node", "gres"}:
        return _gpus(name, value)
    if name == "mem" and value == "0":
        return "a job without it may take what its server has"
    if name == "time" and value in {"0", "UNLIMITED", "INFINITE"}:
        return []
    if name == "mem":
        text = f"{value}M" if value.isdecimal() else value
        return [(("resources", "memory"), quantities.size(text))]
    if name in {"nodes", "cpus-per-task"}:
        path: Path_ = ("nodes",) if name == "nodes" else ("resources", "cpus")
        low, _, high = value.partition("-")
        if not low.isdecimal() or (high and high != low):
            raise ValueError("expected a whole number")
        return [(path, int(low))]
    if name == "ntasks":
        return [] if value == "1" else "#HS --torchrun starts a process per GPU"
    if name == "time":
        return [(("max_duration",), quantities.duration(value))]
    if name == "dependency":
        return [(("after",), _dependencies(value))]
    if name == "export":
        return _exports(value)
    plain: dict[str, Path_] = {"job-name": ("name",), "array": ("array",), "chdir": ("workdir",)}
    if name in plain:
        if not value:
            raise ValueError("expected a value")
        return [(plain[name], value)]
    if name.startswith("mail"):
        return "HeteroShare sends no mail; use `hsctl wait JOB`"
    return _IGNORED.get(name, "hsctl does not know this option")


def _gpus(name: str, value: str) -> list[tuple[Path_, Any]] | str:
    """`--gres=gpu:v100:2`, `--gpus=v100:2`, `--gpus-per-node=2`."""
    if name == "gres":
        kind, _, value = value.partition(":")
        if kind != "gpu":
            return "only gpu resources are known"
    model, count = quantities.gpus(value or "1")
    return [(_IN_ALL, (model, count))] if name == "gpus" else [(_EACH, _gpus_text(model, count))]


def _gpus_text(model: str, count: int) -> str | int:
    return f"{model.upper()}:{count}" if model else count


def _dependencies(value: str) -> list[str]:
    found: list[str] = []
    for clause in value.split(","):
        kind, *jobs = clause.split(":")
        if kind not in _DEPENDENCY or not jobs or not all(job.isdecimal() for job in jobs):
            raise ValueError(f"expected afterok:JOB, afterany:JOB or afternotok:JOB, found {clause!r}")
        found += [f"{job}:{_DEPENDENCY[kind]}" for job in jobs]
    return found


def _exports(value: str) -> list[tuple[Path_, Any]] | str:
    if value in {"ALL", "NONE", ""}:
        return "name what the job needs with #HS --env NAME"
    fields: list[tuple[Path_, Any]] = []
    for word in value.split(","):
        name, equals, content = word.partition("=")
        if name not in {"ALL", "NONE"}:
            fields.append((("env", name), content if equals else None))
    return fields

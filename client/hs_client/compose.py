"""From a checked job to what is sent: environment chosen, command found, arrays and sweeps spelled out, one JobSpec each."""

import hashlib
import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hs_client import quantities
from hs_client.complaints import Origins
from hs_client.errors import InvalidError
from hs_client.jobfile import MAX_ENV, MAX_SPEC_BYTES, Job, no_text
from hs_client.there import is_dir, is_file
from hs_proto.v1 import common_pb2 as common

# What a program needs to be found and to read text as its user does; everything else is named with -e.
# HOME and USER are not here: they are those of the account and machine the job runs on.
DEFAULT_ENV = ("PATH", "LANG", "LC_ALL", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH")
ON_THE_LINE = "command"  # where a command comes from that people typed
JOB_FILES = (".yaml", ".yml")
MAX_NAME, MAX_DIFFERS = 128, 64  # characters
MAX_MESSAGE_BYTES = 1 << 20  # what a controller takes in one request

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=.*", re.DOTALL)
_PLACEHOLDER = re.compile(r"\{\{|\}\}|(?<!\$)\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the user is: what relative paths and bare names are looked up in."""

    folder: Path
    env: Mapping[str, str]
    check: bool = True  # False: the job runs on another machine, whose files we cannot see

    @classmethod
    def here(cls, *, check: bool = True) -> "Place":
        return cls(folder=_here(), env=dict(os.environ), check=check)


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise InvalidError(
            "the folder you are in was removed: expected one that exists (cd, or -C)"
        ) from None


Whom = Callable[[Sequence[str]], Sequence[int]]
"""The numbers of jobs as people name them."""


def specs(job: Job, place: Place, origins: Origins | None, whom: Whom) -> list[common.JobSpec]:
    """Every job of the request, in order."""
    origins = origins or {}
    workdir = _workdir(job, place, origins)
    env = _environment(job, place, origins)
    argv = _argv(job)
    base = _base(job, str(workdir), env)
    base.after.extend(_after(job, whom))
    if job.torchrun and _starts_ranks_itself(argv):
        raise InvalidError(
            f"torchrun: the command is {argv[0]} itself, which would be started once for each GPU: expected one of them"
        )
    made = [_one(job, base, variant, argv) for variant in _variants(job, argv, env)]
    if place.check:
        for spec in made:
            spec.command[0] = _find_program(spec, workdir, origins)
            _check_output(job, spec.output)
    _limits(made)
    return made


def _starts_ranks_itself(argv: Sequence[str]) -> bool:
    return Path(argv[0]).name in {"torchrun", "accelerate", "deepspeed", "mpirun"}


def _after(job: Job, whom: Whom) -> list[common.After]:
    named = [quantities.after(text) for text in job.after]
    return [
        common.After(job_id=number, condition=condition)
        for word, condition in named
        for number in whom([word])
    ]


def _base(job: Job, workdir: str, env: Mapping[str, str]) -> common.JobSpec:
    ours = job.resources
    return common.JobSpec(
        gpus=ours.count,
        nodes=job.nodes,
        gpu_types=job.gpu_types,
        gpu_memory_bytes=ours.gpu_memory or 0,
        cpus=ours.cpus or 0,
        memory_bytes=ours.memory or 0,
        max_duration_s=job.max_duration or 0.0,
        priority=job.priority,
        env=env,
        workdir=workdir,
        torchrun=job.torchrun,
        migrate=job.placement.migrate,
        topology=job.placement.topology,
        suspend=job.suspend,
        on_partition=job.on_partition,
        retry_max=job.retry.max if job.retry else 0,
        checkpoint_dir=_absolute(job.checkpoint.dir, workdir),
        checkpoint_interval_s=job.checkpoint.interval or 0.0,
        job_class=job.job_class or "",
        steps=job.steps,
        gpu_memory_fixed_bytes=ours.gpu_memory_fixed or 0,
        accumulation_max=job.accumulation,
        dataset=job.dataset.name if job.dataset else "",
        dataset_bytes=(job.dataset.size or 0) if job.dataset else 0,
        elastic=_elastic(job),
        strategies=[_strategy(text) for text in job.strategies],
    )


def _strategy(text: str) -> common.Strategy:
    read = quantities.strategy(text)
    dp, tp, pp = read.degrees
    return common.Strategy(data=dp, tensor=tp, pipeline=pp, layers=read.layers)


def _elastic(job: Job) -> common.Elastic | None:
    ours = job.elastic
    if ours is None:
        return None
    return common.Elastic(
        gpus_min=ours.gpus_min,
        gpus_max=ours.gpus_max,
        batch=ours.batch,
        batch_max=ours.batch_max or ours.batch,
        batch_per_gpu_max=ours.batch_per_gpu_max or -(-ours.batch // (job.resources.count * job.nodes)),
        noise_scale=ours.noise_scale,
    )


@dataclass(frozen=True, slots=True)
class _Variant:
    """One job of an array or sweep."""

    values: Mapping[str, str]
    differs: str = ""  # from others of its sweep
    index: int | None = None
    limit: int = 0


def _variants(job: Job, argv: list[str], env: Mapping[str, str]) -> Iterator[_Variant]:
    if job.array is not None:
        indices, limit = quantities.array(job.array)
        yield from (_Variant({}, index=index, limit=limit) for index in indices)
    elif job.sweep:
        _check_placeholders(job, argv, env)
        count = 1
        for values in job.sweep.values():
            count *= len(values)
        if count > quantities.MAX_TASKS:
            raise InvalidError(f"sweep: {count} combinations: expected at most {quantities.MAX_TASKS}")
        for places in itertools.product(*(range(len(each)) for each in job.sweep.values())):
            where = dict(zip(job.sweep, places, strict=True))
            chosen = {name: str(job.sweep[name][place]) for name, place in where.items()}
            yield _Variant(chosen, _differs(job, argv, where))
    else:
        yield _Variant({})


def _differs(job: Job, argv: list[str], where: Mapping[str, int]) -> str:
    """`lr=0.1`; of what is nowhere but in the environment, whose values others are not shown, which of the values it is: `seed=#2`."""
    public = {name for text in argv for name in _PLACEHOLDER.findall(text)}
    words = [
        f"{name}={job.sweep[name][place] if name in public else f'#{place + 1}'}"
        for name, place in where.items()
        if len(job.sweep[name]) > 1
    ]
    text = _on_one_line(" ".join(words))
    # Paths are told apart by their ends.
    return text if len(text) <= MAX_DIFFERS else f"…{text[1 - MAX_DIFFERS :]}"


def _check_placeholders(job: Job, argv: list[str], env: Mapping[str, str]) -> None:
    used = {name for text in [*argv, *env.values()] for name in _PLACEHOLDER.findall(text) if name}
    for name in job.sweep:
        if name not in used:
            raise InvalidError(f"sweep.{name}: expected {{{name}}} somewhere in the command or environment")
    for name in sorted(used - set(job.sweep)):
        hint = quantities.did_you_mean(name, job.sweep)
        raise InvalidError(
            f"{{{name}}} in the command: expected one of the sweep's names{hint} (write {{{{{name}}}}} for the text itself)"
        )


def _one(job: Job, base: common.JobSpec, variant: _Variant, argv: list[str]) -> common.JobSpec:
    spec = common.JobSpec()
    spec.CopyFrom(base)
    name = job.name or _name(job, argv)
    # What tells it apart comes first: narrow terminals cut a name's end.
    spec.name = f"{variant.differs} {name}"[:MAX_NAME].strip() if variant.differs else name
    spec.command[:] = argv
    if job.sweep:
        spec.command[:] = [_fill(word, variant.values) for word in argv]
        for key, value in base.env.items():
            spec.env[key] = _fill(value, variant.values)
        spec.job_class = job.job_class or _class_of(argv)
    if variant.index is not None:
        spec.array_index = variant.index
        spec.array_limit = variant.limit
    spec.output = _output(job, spec, name)
    return spec


def _fill(text: str, values: Mapping[str, str]) -> str:
    def put(match: re.Match[str]) -> str:
        return values[match[1]] if match[1] else match[0][0]

    return _PLACEHOLDER.sub(put, text)


def _class_of(argv: list[str]) -> str:
    """All jobs of a sweep perform alike, whatever is swept: the class is the command before anything was put in."""
    digest = hashlib.sha256("\0".join(argv).encode()).hexdigest()[:8]
    return f"{_on_one_line(' '.join(argv))[:100]} #{digest}"


def _on_one_line(text: str) -> str:
    """As a name may be: shell lines and odd file names hold what would move a cursor."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _argv(job: Job) -> list[str]:
    setup = job.setup.rstrip("\n") + "\n" if job.setup else ""
    if isinstance(job.run, str):
        return ["/bin/sh", "-ec", setup + job.run]
    if setup:
        return ["/bin/sh", "-ec", setup + 'exec "$@"', "sh", *job.run]
    return list(job.run)


def _name(job: Job, argv: list[str]) -> str:
    return "job" if isinstance(job.run, str) else _on_one_line(_called(job, argv))[:MAX_NAME].strip() or "job"


def _called(job: Job, argv: list[str]) -> str:
    """What people call it: the script's name if one is run by an interpreter, else the program's."""
    words = argv[4:] if job.setup else argv
    program = Path(words[0]).name
    if re.fullmatch(r"python[\d.]*|bash|sh|torchrun", program):
        for previous, word in itertools.pairwise(words):
            if previous == "-c":
                break
            if previous == "-m":
                return word
            if not word.startswith("-") and "." in word:
                return Path(word).stem or program
    return program


def _workdir(job: Job, place: Place, origins: Origins) -> Path:
    folder = Path(os.path.normpath(place.folder / Path(job.workdir or ".").expanduser()))
    wrong = no_text(str(folder))
    if not wrong and place.check and not is_dir(folder):
        wrong = "expected a folder that exists"
    if wrong:
        where = origins.get(("workdir",), "")
        raise InvalidError(f"{where + ': ' if where else ''}workdir = {str(folder)!r}: {wrong}")
    return folder


def _environment(job: Job, place: Place, origins: Origins) -> dict[str, str]:
    env = {name: place.env[name] for name in DEFAULT_ENV if name in place.env}
    for name, value in job.env.items():
        if value is None:
            if name not in place.env:
                where = origins.get(("env", name), "env")
                raise InvalidError(
                    f"{where}: {name}: expected a variable of your environment, or {name}=VALUE"
                )
            env[name] = place.env[name]
        else:
            env[name] = str(value)
    for name, content in env.items():
        if wrong := no_text(content):
            raise InvalidError(f"env: {name} = {content!r}: {wrong}")
    if len(env) > MAX_ENV:
        raise InvalidError(f"env: {len(env)} variables: expected at most {MAX_ENV}")
    return env


NUMBERS = ("%j", "%A")
"""In the path of a log: the job's number, and that of its array. The controller puts them in, which gives them."""


def _output(job: Job, spec: common.JobSpec, name: str) -> str:
    if job.output is None:
        return ""
    text = job.output.replace("%x", name.replace("/", "_"))
    if spec.HasField("array_index"):
        if "%a" not in text and "%j" not in text:
            raise InvalidError(
                f"output = {job.output!r}: expected %a or %j in it, so that each task of the array has its own file"
            )
        text = text.replace("%a", str(spec.array_index))
    elif job.sweep and "%j" not in text:
        raise InvalidError(
            f"output = {job.output!r}: expected %j in it, so that each job of the sweep has its own file"
        )
    rest = text
    for number in NUMBERS:
        rest = rest.replace(number, "")
    if "%" in rest:
        raise InvalidError(
            f"output = {job.output!r}: expected no % but %x (the job's name), %j (its number) and, in an array, %a (the task's number) and %A (the array's)"
        )
    path = _absolute(text, spec.workdir)
    for number in NUMBERS:
        if path.count(number) > job.output.count(number):
            raise InvalidError(
                f"output = {job.output!r}: expected no {number} in names that it is made of, where it would become a number: {path}"
            )
    return path


def _check_output(job: Job, output: str) -> None:
    """That its log could be opened there; of a path with a number in it, as far as that."""
    known, _, number = output.partition("%")
    folder = Path(known).parent if not number else Path(known[: known.rfind("/") + 1])
    if output and not is_dir(folder):
        raise InvalidError(
            f"output = {job.output!r}: expected a file in a folder that exists; {folder} does not"
        )
    if output and not number and is_dir(Path(output)):
        raise InvalidError(f"output = {job.output!r}: expected a file; {output} is a folder")


def _absolute(text: str | None, workdir: str) -> str:
    return os.path.normpath(Path(workdir) / Path(text).expanduser()) if text else ""


def _program(word: str, workdir: Path, env: Mapping[str, str]) -> str | None:
    """The program's absolute path, as a shell in the job's folder with the job's PATH would find it."""
    if "/" in word:
        path = Path(os.path.normpath(workdir / word))
        return str(path) if is_file(path) and os.access(path, os.X_OK) else None
    return shutil.which(word, path=env.get("PATH", os.defpath))


def _find_program(spec: common.JobSpec, workdir: Path, origins: Origins) -> str:
    """argv[0] made absolute; refused when there is no such program."""
    word = spec.command[0]
    found = _program(word, workdir, spec.env)
    if found is None and spec.torchrun and word.endswith(".py") and is_file(workdir / word):
        found = os.path.normpath(workdir / word)  # torchrun gives a script its Python
    if found is not None:
        return found
    where = origins.get(("run",), "")
    begin = f"{where}: " if where not in {"", ON_THE_LINE} else ""
    path = Path(workdir / word)
    if path.suffix in JOB_FILES and is_file(path):
        raise InvalidError(
            f"{begin}command {word!r}: expected a program; a job file goes with -f: hsctl submit -f {word}"
        )
    if "/" in word and is_file(path):
        raise InvalidError(
            f"{begin}command {word!r}: expected an executable file (chmod +x {word}, or name its interpreter)"
        )
    if "/" not in word and is_file(path):
        raise InvalidError(
            f"{begin}command {word!r}: expected a program on PATH; for the file in {workdir} write ./{word} or its interpreter"
        )
    if set_here := _ASSIGNMENT.fullmatch(word):
        raise InvalidError(
            f"{begin}command {word!r}: expected a program; a variable is set by hsctl: -e {set_here[1]}=…"
        )
    known = "a file that exists" if "/" in word else "a program on PATH"
    raise InvalidError(
        f"{begin}command {word!r}: expected {known}; nothing is split or run by a shell (use sh -c '…' for that)"
    )


def _limits(made: list[common.JobSpec]) -> None:
    largest = max(spec.ByteSize() for spec in made)
    if largest > MAX_SPEC_BYTES:
        raise InvalidError(
            f"the job takes {largest} bytes: expected at most {MAX_SPEC_BYTES} (a long script belongs in a file)"
        )
    total = sum(spec.ByteSize() + 8 for spec in made)
    if total > MAX_MESSAGE_BYTES - 4096:
        raise InvalidError(
            f"{len(made)} jobs take {total} bytes: expected at most {MAX_MESSAGE_BYTES - 4096} in one request; submit them in parts"
        )

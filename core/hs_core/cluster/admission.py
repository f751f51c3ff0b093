"""Whether a request can be taken in: every field of every spec is looked at before anything is changed."""

import re
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from math import isfinite

from hs_core.cluster.state import Limits
from hs_core.errors import Kind, RefusedError
from hs_core.model import After, AfterCondition, Job, JobSpec, JobState, SuspendMode, Topology
from hs_core.names import JobId, UserName
from hs_core.strategy import obstacle

ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
USER_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.@-]{0,63}")
RESERVED_ENV = "HS_"
MOST_EXAMPLES = 1 << 30  # of a mini-batch
MOST_STRATEGIES = 64


def refuse(field: str, value: object, expected: str, kind: Kind = Kind.INVALID) -> RefusedError:
    shown = repr(value)
    return RefusedError(f"{field}: {shown if len(shown) <= 80 else shown[:77] + '…'} {expected}", kind)


# --- one spec by itself -------------------------------------------------------------------------------------------


def check_spec(spec: JobSpec, limits: Limits) -> None:
    _check_texts(spec, limits)
    _check_numbers(spec, limits)
    _check_elastic(spec, limits)
    _check_strategies(spec)
    _check_topology(spec)
    _check_env(spec, limits)
    if not spec.command or not spec.command[0]:
        raise RefusedError("command: missing; a program and its arguments were expected")
    if len(spec.command) > limits.argv_words:
        raise RefusedError(f"command: {len(spec.command)} words; at most {limits.argv_words} were expected")
    if len(spec.after) > limits.after:
        raise RefusedError(f"after: {len(spec.after)} jobs; at most {limits.after} were expected")
    if len(spec.gpu_types) > limits.gpu_types:
        raise RefusedError(
            f"gpu_types: {len(spec.gpu_types)} models; at most {limits.gpu_types} were expected"
        )
    if spec.array_limit and spec.array_index is None:
        raise refuse("array_limit", spec.array_limit, "was given for a job that is not of an array")
    size = spec_bytes(spec)
    if size > limits.spec_bytes:
        raise RefusedError(f"spec: {size} bytes; at most {limits.spec_bytes} were expected")
    if spec.nodes > 1 and spec.suspend is SuspendMode.TRANSPARENT:
        raise refuse(
            "suspend", "transparent", "is for jobs on one server: a gang over several stops at one step"
        )


def _check_texts(spec: JobSpec, limits: Limits) -> None:
    if not spec.name.strip():
        raise refuse("name", spec.name, "is empty; a name was expected")
    labels = [("name", spec.name), ("job_class", spec.job_class), ("dataset", spec.dataset)]
    labels += [("gpu_types", model) for model in spec.gpu_types]
    for field, text in labels:
        if len(text) > limits.name_chars:
            raise refuse(
                field, text, f"has {len(text)} characters; at most {limits.name_chars} were expected"
            )
        if not text.isprintable():
            raise refuse(field, text, "has control characters; printable ones were expected")
    if "" in spec.gpu_types:
        raise RefusedError("gpu_types: '' is no GPU model")
    for field, text in (
        ("workdir", spec.workdir),
        ("output", spec.output),
        ("checkpoint_dir", spec.checkpoint_dir),
    ):
        if len(text) > limits.path_chars:
            raise refuse(
                field, text, f"has {len(text)} characters; at most {limits.path_chars} were expected"
            )
    if not spec.workdir.startswith("/"):
        raise refuse("workdir", spec.workdir, "is not an absolute path")
    if spec.checkpoint_dir and not spec.checkpoint_dir.startswith("/"):
        raise refuse("checkpoint_dir", spec.checkpoint_dir, "is not an absolute path")
    for field, text in _texts(spec):
        if "\0" in text:
            raise refuse(field, text, "has a NUL character")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise refuse(field, text, "is not valid UTF-8") from None


def _check_numbers(spec: JobSpec, limits: Limits) -> None:
    whole: Sequence[tuple[str, int, int, int]] = (
        ("gpus", spec.gpus, 1, limits.gpus),
        ("nodes", spec.nodes, 1, limits.gpus),
        ("gpu_memory_bytes", spec.gpu_memory_bytes, 0, limits.memory_bytes),
        ("cpus", spec.cpus, 0, limits.cpus),
        ("memory_bytes", spec.memory_bytes, 0, limits.memory_bytes),
        ("priority", spec.priority, -limits.priority, limits.priority),
        ("retry_max", spec.retry_max, 0, limits.retries),
        ("array_limit", spec.array_limit, 0, limits.array_index),
        ("array_index", spec.array_index or 0, 0, limits.array_index),
        ("steps", spec.steps, 0, 10**15),
        ("gpu_memory_fixed_bytes", spec.gpu_memory_fixed_bytes, 0, spec.gpu_memory_bytes),
        ("accumulation_max", spec.accumulation_max, 1, 1 << 20),
        ("dataset_bytes", spec.dataset_bytes, 0, limits.dataset_bytes if spec.dataset else 0),
    )
    for field, value, least, most in whole:
        if not least <= value <= most:
            raise refuse(field, value, f"is not between {least} and {most}")
    for field, seconds in (
        ("max_duration_s", spec.max_duration_s),
        ("checkpoint_interval_s", spec.checkpoint_interval_s),
    ):
        if not (isfinite(seconds) and 0 <= seconds <= limits.duration_s):
            raise refuse(field, seconds, f"is not a number of seconds between 0 and {limits.duration_s:.0f}")


def _check_elastic(spec: JobSpec, limits: Limits) -> None:
    elastic = spec.elastic
    if elastic is None:
        return
    whole: Sequence[tuple[str, int, int, int]] = (
        ("gpus_min", elastic.gpus_min, 1, limits.gpus),
        ("gpus_max", elastic.gpus_max, elastic.gpus_min, limits.gpus),
        ("gpus", spec.gang, elastic.gpus_min, elastic.gpus_max),
        ("batch", elastic.batch, 1, MOST_EXAMPLES),
        ("batch_max", elastic.batch_max, elastic.batch, MOST_EXAMPLES),
        ("batch_per_gpu_max", elastic.batch_per_gpu_max, 1, MOST_EXAMPLES),
    )
    for field, value, least, most in whole:
        if not least <= value <= most:
            raise refuse(field, value, f"is not between {least} and {most}")
    if not (isfinite(elastic.noise_scale) and 0 <= elastic.noise_scale <= 1e15):
        raise refuse("noise_scale", elastic.noise_scale, "is not a number of examples between 0 and 1e15")
    if spec.nodes != 1 and spec.topology is not Topology.ANY:
        raise refuse(
            "nodes",
            spec.nodes,
            "is not 1: an elastic job is on one server, or, with topology `any`, on any number of them",
        )
    if spec.accumulation_max != 1:
        raise refuse(
            "accumulation",
            spec.accumulation_max,
            "is not 1: an elastic job is told its parts by its batch limits",
        )
    if spec.suspend in (SuspendMode.TRANSPARENT, SuspendMode.NONE):
        raise refuse("suspend", str(spec.suspend), "gives no checkpoint that an elastic job could go on from")


def _check_strategies(spec: JobSpec) -> None:
    said = spec.strategies
    if not said:
        return
    if len(said) > MOST_STRATEGIES:
        raise RefusedError(f"strategies: {len(said)}; at most {MOST_STRATEGIES} were expected")
    if why := obstacle(said, spec.gang):
        raise RefusedError(f"strategies: {why}")
    if spec.elastic is not None:
        raise refuse(
            "strategies", said[0].text, "are for jobs on a fixed number of GPUs; this one is elastic"
        )


def _check_topology(spec: JobSpec) -> None:
    if spec.topology is Topology.AUTO:
        return
    if spec.suspend is SuspendMode.TRANSPARENT:
        raise refuse(
            "suspend", "transparent", "is for jobs on one server: a gang over several stops at one step"
        )


def _check_env(spec: JobSpec, limits: Limits) -> None:
    if len(spec.env) > limits.env_names:
        raise RefusedError(f"env: {len(spec.env)} names; at most {limits.env_names} were expected")
    for name in sorted(spec.env):
        if not ENV_NAME.fullmatch(name):
            raise refuse("env", name, "is not a name of letters, digits and underscores")
        if name.startswith(RESERVED_ENV):
            raise refuse(
                "env", name, f"is reserved: names that begin with {RESERVED_ENV} are set by HeteroShare"
            )


def _texts(spec: JobSpec) -> Iterable[tuple[str, str]]:
    yield from (("command", word) for word in spec.command)
    yield from (("env", name) for name in spec.env)
    yield from (("env", value) for value in spec.env.values())
    yield from (("gpu_types", model) for model in spec.gpu_types)
    yield ("name", spec.name)
    yield ("job_class", spec.job_class)
    yield ("workdir", spec.workdir)
    yield ("output", spec.output)
    yield ("checkpoint_dir", spec.checkpoint_dir)


def spec_bytes(spec: JobSpec) -> int:
    texts = (text for _, text in _texts(spec))
    return sum(len(text if text.isascii() else text.encode()) + 1 for text in texts) + 16 * len(spec.after)


# --- one request --------------------------------------------------------------------------------------------------


def check_arrays(specs: Sequence[JobSpec]) -> None:
    """The specs of one request that have an index are one array."""
    members = [spec for spec in specs if spec.array_index is not None]
    indices = [spec.array_index for spec in members]
    if len(set(indices)) != len(indices):
        twice = sorted({i for i in indices if i is not None and indices.count(i) > 1})
        raise refuse("array_index", twice[0], "is given to two jobs of one array")
    limits = sorted({spec.array_limit for spec in members})
    if len(limits) > 1:
        raise refuse("array_limit", limits, "differs between the jobs of one array")


# --- against what is there ----------------------------------------------------------------------------------------


class Dependency(StrEnum):
    """What has become of the condition on another job."""

    MET = "met"
    OPEN = "open"
    NEVER = "never"


_MEETS = {
    AfterCondition.OK: {JobState.SUCCEEDED},
    AfterCondition.ANY: {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED},
    AfterCondition.FAIL: {JobState.FAILED},
}


def dependency(condition: AfterCondition, other: JobState) -> Dependency:
    if not other.ended:
        return Dependency.OPEN
    return Dependency.MET if other in _MEETS[condition] else Dependency.NEVER


CONDITION_WORDS = {
    AfterCondition.OK: "succeeded",
    AfterCondition.ANY: "ended",
    AfterCondition.FAIL: "failed",
}


def never_text(after: After, other: JobState) -> str:
    return f"was to run once job {after.job} {CONDITION_WORDS[after.condition]}, but it {_past(other)}"


def _past(state: JobState) -> str:
    return "was cancelled" if state is JobState.CANCELLED else str(state)


def check_after(spec: JobSpec, user: UserName, find: Callable[[JobId], Job | None]) -> None:
    for after in spec.after:
        other = find(after.job)
        if other is None or other.user != user:  # not yours answers like not found
            raise RefusedError(f"after: you have no job {after.job}", Kind.NOT_FOUND)
        if dependency(after.condition, other.state) is Dependency.NEVER:
            raise RefusedError(f"after: the job {never_text(after, other.state)}", Kind.IMPOSSIBLE)


# --- users ----------------------------------------------------------------------------------------------------------


def check_user(name: str, tickets: float | None, run_as: str | None, limits: Limits) -> None:
    if not USER_NAME.fullmatch(name):
        raise refuse(
            "name", name, "is not a user name (a letter, then up to 63 letters, digits, or any of _.@-)"
        )
    if tickets is not None and not (isfinite(tickets) and 1e-3 <= tickets <= limits.tickets):
        raise refuse("tickets", tickets, f"is not between 0.001 and {limits.tickets:.0f}")
    if run_as and not USER_NAME.fullmatch(run_as):
        raise refuse("run_as", run_as, "is not the name of an operating system account")

"""Options that several verbs take, and what they come to."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from hs_core.digits import whole
from hs_core.errors import RefusedError
from hs_core.policy import Profiling
from hs_sim.cli.outputs import FileName
from hs_sim.model import ClusterSpec, Costs, Experiment, Noise, Workload, gavel_compat

if TYPE_CHECKING:
    from hs_sim.reading import Sieve

F = TypeVar("F", bound=Callable[..., Any])

MOST_SEED = 10**18
MOST_SHOWN = 5  # users, in a line for people
SHORTEST_QUANTUM_S, LONGEST_QUANTUM_S = 0.001, 1e6
LONGEST_COST_S = 86400.0

_INPUT = (
    click.option("--throughputs", type=FileName(), help="Gavel's or Shockwave's throughputs.json, beside a trace of theirs."),
    click.option("--skip-bad", is_flag=True, help="Leave out jobs that are not as they should be, or could never run, and count them."),
    click.option("--first", type=int, default=0, show_default=True, help="Of a file: so many jobs, by arrival; 0: all."),
)  # fmt: skip

_GENERATOR = (
    click.option("--like", type=click.Choice(["philly", "gavel", "shockwave"]), default="philly", show_default=True, help="Generated: sizes and lengths of whose jobs."),
    click.option("--jobs", type=int, default=1000, show_default=True, help="Generated: how many jobs."),
    click.option("--users", type=int, default=10, show_default=True, help="Generated: of how many users."),
    click.option("--users-spread", type=float, default=0.0, show_default=True, help="Generated: 0: all submit as much; 1: the n-th an n-th of what the first does."),
    click.option("--jobs-per-hour", type=float, default=0.0, show_default=True, help="Generated: Poisson arrivals; 0: all at once."),
    click.option("--service-s", type=float, default=3600.0, show_default=True, help="Generated: median time of a job on K80."),
    click.option("--service-spread", type=float, default=1.0, show_default=True, help="Generated: sigma of its logarithm."),
    click.option("--models", default="", help="Generated: training models of table 1, comma-separated; all if left out."),
    click.option("--small", is_flag=True, help="Generated: no jobs over several servers."),
)  # fmt: skip

_GENERATED: tuple[str, ...] = (
    "like",
    "jobs",
    "users",
    "users_spread",
    "jobs_per_hour",
    "service_s",
    "service_spread",
    "models",
    "small",
)
_LIKE_PHILLY: tuple[str, ...] = ("users", "users_spread", "service_s", "service_spread", "models")

_CLUSTER = (
    click.option(
        "--cluster",
        default="v100:12,p100:24,k80:64",
        show_default=True,
        help="GPUs of each model; k80:64@8/12/256: on servers of 8, with 12 GiB each, and 256 GiB of host memory.",
    ),
    click.option("--gpus-per-server", type=int, default=4, show_default=True),
    click.option(
        "--gpu-memory-gib",
        type=float,
        default=32.0,
        show_default=True,
        help="Of every GPU, but where --cluster says it.",
    ),
    click.option(
        "--dataset-cache-gib",
        type=float,
        default=0.0,
        show_default=True,
        help="Of every server, for data sets; 0: not limited.",
    ),
    click.option(
        "--slowdowns",
        type=FileName(),
        help="YAML: how much slower each GPU is than its model's middling one.",
    ),
)

_RUN = (
    click.option("--quantum-s", "--round-s", type=float, default=60.0, show_default=True, help="One slice of time."),
    click.option("--depth", type=click.Choice(["quanta", "machines"]), default="quanta", show_default=True, help="Arrays of plans, or the real machines with messages."),
    click.option("--until", "until_s", type=float, help="Stop after so many simulated seconds."),
    click.option("--noise", type=float, default=0.0, show_default=True, help="Of measured rates: coefficient of variation."),
    click.option("--preset", type=click.Choice(["gavel-compat"]), help="The world as another simulator has it: rounds, no costs, known speeds."),
    click.option("--known-rates", is_flag=True, help="Policies know all speeds from the beginning."),
    click.option("--profile-batches", type=int, help="Mini-batches of a profiling run, of policies that have them; 0: none  [as the policy: 20, tesserae-* 0]"),
    click.option("--profile-share", type=float, default=0.1, show_default=True, help="Part of all GPU-time that these runs may take."),
    click.option("--migrations-per-hour", type=float, default=240.0, show_default=True, help="Of jobs that have started, at most."),
    click.option("--start-s", type=float, help="That a process takes to come up.  [10]"),
    click.option("--suspend-s", type=float, help="That a suspend takes.  [0.1]"),
    click.option("--resume-s", type=float, help="That a resume takes.  [0.05]"),
    click.option("--sample-s", type=float, default=0.0, show_default=True, help="How often series are sampled; 0: every quantum."),
)  # fmt: skip


def _all(options: tuple[Callable[[F], F], ...]) -> Callable[[F], F]:
    def dress(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return dress


input_options = _all(_INPUT)
generator = _all(_GENERATOR)
cluster_options = _all(_CLUSTER)
run_options = _all(_RUN)


def check_policies(option: str, names: Sequence[str]) -> None:
    from hs_core.policies import find

    for name in names:
        try:
            find(name)
        except RefusedError as refused:
            raise RefusedError(f"{option}: {refused}", refused.kind) from None


def check_generator(path: Path | None, given: dict[str, Any]) -> None:
    """Raises RefusedError for what was said and would say nothing: of the generator beside a file, or the other way round."""
    if path is None and given.get("first"):
        raise RefusedError(f"--first: {given['first']} without a file; expected one, or --jobs")
    if path is not None:
        idle, why = (
            _GENERATED,
            f"of generated workloads, beside {str(path)!r}; expected no file, or not this option",
        )
    elif given["like"] != "philly":
        idle, why = (
            _LIKE_PHILLY,
            f"with --like {given['like']}, which does not go by it; expected not this option",
        )
    else:
        return
    context = click.get_current_context()
    for name in idle:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            hint = " (--first: so many jobs of a file)" if name == "jobs" else ""
            raise RefusedError(f"--{name.replace('_', '-')}: {why}{hint}")


def workload_of(path: Path | None, seed: int, given: dict[str, Any], policies: Sequence[str]) -> Workload:
    """What all of these policies can run on the cluster of a file, or of what the generator makes of its options."""
    from hs_core.policies import find
    from hs_sim.cluster import runnable
    from hs_sim.reading import Sieve

    sieve = Sieve(skip_bad=given["skip_bad"])
    found = _read(path, given, sieve) if path is not None else made(seed, given)
    mixed = all(find(name).needs.mixed for name in policies)
    return runnable(found, cluster_of(given), sieve, mixed=mixed, ends=given["until_s"] is None)


def tell_unused(workload: Workload, cluster: ClusterSpec) -> None:
    from hs_sim.cluster import unused_models

    if found := unused_models(workload, cluster):
        click.echo(
            f"hs-sim: no job can run on {', '.join(found)}, for its rates, GPU types or memory", err=True
        )


def tell_unnamed(workload: Workload) -> None:
    """A name that was mistyped would else be one more user, without a word."""
    from hs_sim.files import DEFAULT_TICKETS

    if found := workload.unnamed:
        shown = ", ".join(found[:MOST_SHOWN]) + (" …" if len(found) > MOST_SHOWN else "")
        each = f"{DEFAULT_TICKETS:g} tickets" + (" each" if len(found) > 1 else "")
        click.echo(f"hs-sim: {workload.source} names users, but not {shown}: {each}", err=True)


def _read(path: Path, given: dict[str, Any], sieve: "Sieve") -> Workload:
    from hs_sim.sources import read

    if given["first"] < 0:
        raise RefusedError(f"--first: {given['first']}; expected 0 or more jobs")
    return read(path, given["throughputs"], gpus_per_server_of(given), sieve, given["first"])


def gpus_per_server_of(given: dict[str, Any]) -> int:
    if not 1 <= given["gpus_per_server"] <= 1024:
        raise RefusedError(f"--gpus-per-server: {given['gpus_per_server']}; expected 1 to 1024")
    return int(given["gpus_per_server"])


def made(seed: int, given: dict[str, Any]) -> Workload:
    """By the generator."""
    from hs_sim.generate import PHILLY_SIZES, TABLE_1, Recipe, generate

    if given["like"] != "philly":
        return _like(seed, given)
    if given["throughputs"] is not None:
        raise RefusedError(
            f"--throughputs: {str(given['throughputs'])!r} without a trace; expected both, or --like gavel or shockwave"
        )
    per_server = gpus_per_server_of(given)
    sizes = {size: part for size, part in PHILLY_SIZES.items() if not given["small"] or size <= per_server}
    return generate(
        Recipe(
            jobs=given["jobs"],
            users=given["users"],
            users_spread=given["users_spread"],
            jobs_per_hour=given["jobs_per_hour"],
            service_s=given["service_s"],
            service_spread=given["service_spread"],
            sizes=sizes,
            models=[word.strip() for word in given["models"].split(",") if word.strip()] or tuple(TABLE_1),
            gpus_per_server=per_server,
            seed=seed,
        )
    )


def _like(seed: int, given: dict[str, Any]) -> Workload:
    from hs_sim.colocated import load_interference
    from hs_sim.drawn import gavel_like, shockwave_like
    from hs_sim.gavel import load_throughputs
    from hs_sim.generate import gang_rates

    if not 1 <= given["jobs"] <= 2_000_000:
        raise RefusedError(f"--jobs: {given['jobs']}; expected 1 to 2000000")
    if not 0 <= given["jobs_per_hour"] <= 1e9:
        raise RefusedError(f"--jobs-per-hour: {given['jobs_per_hour']}; expected 0 to 1e9")
    make = gavel_like if given["like"] == "gavel" else shockwave_like
    table: Path | None = given["throughputs"]
    found = make(
        load_throughputs(table) if table else gang_rates(),
        jobs=given["jobs"],
        jobs_per_hour=given["jobs_per_hour"],
        seed=seed,
        gpus_per_server=gpus_per_server_of(given),
        most_gpus=gpus_per_server_of(given) if given["small"] else 0,
    )
    if table is None:
        return found
    return replace(found, interference=load_interference(table, {name for name, _ in found.rates}))


def cluster_of(given: dict[str, Any]) -> ClusterSpec:
    from hs_sim.cluster import parse_cluster
    from hs_sim.slowdowns import slowed

    memory = given["gpu_memory_gib"]
    _positive("gpu-memory-gib", memory, most=1 << 20)
    spec = parse_cluster(given["cluster"], given["gpus_per_server"], memory)
    cache = given["dataset_cache_gib"]
    if not 0 <= cache <= 1 << 30:
        raise RefusedError(f"--dataset-cache-gib: {cache:g}; expected 0 to {1 << 30}")
    made = replace(spec, dataset_cache_bytes=int(cache * 2**30))
    return slowed(made, given["slowdowns"]) if given["slowdowns"] else made


def experiment_of(workload: Workload, policy: str, seed: int, given: dict[str, Any]) -> Experiment:
    from hs_core.policies import find

    if not SHORTEST_QUANTUM_S <= given["quantum_s"] <= LONGEST_QUANTUM_S:
        raise RefusedError(
            f"--quantum-s (--round-s): {given['quantum_s']}; expected {SHORTEST_QUANTUM_S:g} to {LONGEST_QUANTUM_S:g} seconds"
        )
    if given["until_s"] is not None:
        _positive("until", given["until_s"], most=1e12)
    if not 0 <= given["noise"] <= 1:
        raise RefusedError(f"--noise: {given['noise']}; expected 0 to 1")
    if not 0 <= given["sample_s"] <= 1e12:
        raise RefusedError(f"--sample-s: {given['sample_s']}; expected 0 to 1e12 seconds")
    if not 0 <= given["migrations_per_hour"] <= 1e9:
        raise RefusedError(f"--migrations-per-hour: {given['migrations_per_hour']}; expected 0 to 1e9")
    if given["preset"] and given["depth"] != "quanta":
        raise RefusedError(
            f"--preset: {given['preset']} with --depth {given['depth']}; expected depth quanta"
        )
    costs = _costs(given)
    made = Experiment(
        cluster=cluster_of(given),
        workload=workload,
        policy=find(policy).name,
        quantum_s=given["quantum_s"],
        seed=seed,
        noise=Noise(rate_cv=given["noise"]),
        until_s=given["until_s"],
        sample_s=given["sample_s"],
        known_rates=given["known_rates"],
        costs=costs,
        profiling=_profiling(given),
        migrations_per_hour=given["migrations_per_hour"],
    )
    return gavel_compat(made) if given["preset"] else made


def _costs(given: dict[str, Any]) -> Costs:
    """What was said of them, else as usual."""
    said = {name: given[name] for name in ("start_s", "suspend_s", "resume_s") if given[name] is not None}
    for name, value in said.items():
        option = f"--{name.replace('_', '-')}"
        if not 0 <= value <= LONGEST_COST_S:
            raise RefusedError(f"{option}: {value}; expected 0 to {LONGEST_COST_S:g} seconds")
        if given["preset"]:
            raise RefusedError(
                f"{option}: {value:g} with --preset {given['preset']}, where nothing costs time"
            )
    return replace(Costs(), **said)


def _profiling(given: dict[str, Any]) -> Profiling:
    batches, share = given["profile_batches"], given["profile_share"]
    if batches and not 2 <= batches <= 1_000_000:
        raise RefusedError(f"--profile-batches: {batches}; expected 2 to 1000000, or 0 for none")
    if not 0 < share <= 1:
        raise RefusedError(f"--profile-share: {share:g}; expected above 0, at most 1")
    return Profiling(batches=batches, share=share)


def _positive(name: str, value: float, most: float) -> None:
    from hs_sim.reading import exact

    if not 0 < value <= most:
        raise RefusedError(f"--{name}: {exact(value)}; expected more than 0, at most {exact(most)}")


def seed_of(seed: int) -> int:
    if not 0 <= seed <= MOST_SEED:
        raise RefusedError(f"--seed: {seed}; expected 0 to {MOST_SEED:g}")
    return seed


def seeds_of(text: str) -> list[int]:
    """`3`, `1,2,7` or `0-9`."""
    found: list[int] = []
    for word in text.split(","):
        low, dash, high = word.strip().partition("-")
        first, last = whole(low, MOST_SEED), whole(high if dash else low, MOST_SEED)
        if first is None or last is None:
            raise RefusedError(
                f"--seed: {word.strip()!r}; expected a number, several with commas, or a range as 0-9"
            )
        if last - first >= 10_000 or last < first:
            raise RefusedError(
                f"--seed: {word.strip()!r}; expected a range of at most 10000, the lower first"
            )
        found.extend(range(first, last + 1))
    return list(dict.fromkeys(found))

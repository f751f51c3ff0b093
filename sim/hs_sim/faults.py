"""Random clusters in random trouble, one per seed: does what must hold hold? Same seed, same trace.

`explore(range(500))` lists what was broken, each with its seed and what happened last; `main` is `hs-sim faults`.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from rich.console import Console
from rich.progress import Progress

from hs_core.cluster import Settings
from hs_core.dice import roll
from hs_core.errors import RefusedError
from hs_core.host import HostConfig
from hs_core.policy import Policy
from hs_sim.cases import case_of
from hs_sim.cases.besides import (
    with_cuts,
    with_deeds,
    with_growth,
    with_lacks,
    with_limits,
    with_losses,
    with_tears,
    with_untold,
)
from hs_sim.cases.case import QUANTUM_S, TROUBLE_S, Case
from hs_sim.machines.agent import PROCESS_BYTES
from hs_sim.machines.laws import Laws
from hs_sim.machines.restless import restless
from hs_sim.machines.timing import Timing
from hs_sim.machines.trade_laws import TradeLaws
from hs_sim.machines.world import World
from hs_sim.spread import pool_of

UNTIL_S = 3_000.0
TIMING = Timing(progress_s=2.5, keepalive_s=8.0, restart_s=1.0, reboot_s=8.0)
THINKS_S = (0.0, 0.0, 0.02, 0.7, 4.0, 14.0)  # how long decisions take; 0: the controller waits for them
LEASE_S = 3.0
# What may be asked for besides, by its flag, in the order in which it is done.
BESIDES: dict[str, tuple[Callable[[Case], Case], str]] = {
    "untold": (
        with_untold,
        "users don't say what their jobs hold of GPUs, of which not all fit beside one another",
    ),
    "growth": (
        with_growth,
        "the same, and after a while many of them hold more than they had until then",
    ),
    "cuts": (
        with_cuts,
        "what goes wrong are links, again and again, while jobs save often into folders that all servers see; in one seed of four all else besides",
    ),
    "deeds": (
        with_deeds,
        "people drain, pause, cancel and change tickets and the policy in the middle of it",
    ),
    "limits": (
        with_limits,
        "jobs end badly, are tried again only so often, and may run for only so long",
    ),
    "lacks": (
        with_lacks,
        "what jobs need that are moved is missing on some server for a while, and they fail there as they are started",
    ),
    "tears": (with_tears, "bits flip in checkpoints on servers' disks"),
    "losses": (
        with_losses,
        "servers come back with empty disks, and agents that have forgotten all that they knew of their jobs",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    seed: int
    what: str
    trace: tuple[str, ...]  # newest last

    def __str__(self) -> str:
        return "\n".join((f"seed {self.seed}: {self.what}", *(f"    {line}" for line in self.trace)))


def _moved_about(policy: Policy, *, likely: float) -> Policy:
    """Who shares GPUs, or trains as copies, is moved by nobody else."""
    return restless(policy, 0.0 if policy.needs.sharing or policy.needs.copies else likely)


def run_seed(
    seed: int,
    prepare: Callable[[World], None] | None = None,
    *,
    thinks: bool = False,
    **besides: bool,
) -> Failure | None:
    """`prepare` may put something broken into the world before it starts. `besides`: as `BESIDES` has it.

    `thinks`: where the seed says so the controller goes on while its policy decides.
    """
    case = case_of(seed)
    assert besides.keys() <= BESIDES.keys(), besides
    for name, (change, _) in BESIDES.items():
        if besides.get(name):
            case = change(case)
    world = World(
        case.experiment,
        faults=case.plan,
        timing=replace(TIMING, decision_s=roll(seed, "thinks").choice(THINKS_S) if thinks else 0.0),
        specs=lambda job: case.specs[job.id],
        settings=Settings(fence_after_s=case.fence_after_s, lease_s=LEASE_S),
        dress=partial(_moved_about, likely=case.moving),
        watched=True,
        host_config=HostConfig(
            host_memory_reserve_bytes=PROCESS_BYTES, host_memory_budget_bytes=case.parking_bytes
        ),
    )
    world.cannot_swap = case.cannot_swap
    world.grows_at = case.grows_at
    world.cannot_checkpoint = case.cannot_checkpoint
    laws = Laws(world)
    world.watch = laws
    world.trade_laws = TradeLaws(world)
    world.horizon_s = UNTIL_S
    world.clock.at(TROUBLE_S + QUANTUM_S, world.trouble.forget)
    if case.spare_processes is not None:
        for agent in world.agents.values():
            agent.ram_bytes = (1 + len(agent.gpus) + case.spare_processes) * PROCESS_BYTES
            agent.look()
    if prepare is not None:
        prepare(world)
    try:
        world.run()
        laws.at_the_end()
    except Exception as error:
        return Failure(seed=seed, what=f"{type(error).__name__}: {error}", trace=tuple(world.trace))
    return None


def explore(
    seeds: Iterable[int],
    *,
    processes: int = 1,
    prepare: Callable[[World], None] | None = None,
    enough: int | None = None,
    **besides: bool,
) -> list[Failure]:
    """What was broken, by seed; stops once there are `enough`. With several processes `prepare` must be a module's function."""
    each = each_seed(seeds, processes=processes, prepare=prepare, **besides)
    return list(islice((failure for failure in each if failure is not None), enough))


def each_seed(
    seeds: Iterable[int],
    *,
    processes: int = 1,
    prepare: Callable[[World], None] | None = None,
    **besides: bool,
) -> Iterator[Failure | None]:
    """What each came to, one after the other, as soon as it is known."""
    look = partial(run_seed, prepare=prepare, thinks=True, **besides)
    if processes <= 1:
        yield from map(look, seeds)
        return
    with pool_of(processes) as pool:
        yield from pool.map(look, seeds, chunksize=8)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="hs-sim faults", description="Random clusters in random trouble: does what must hold hold?"
    )
    parser.add_argument("--seeds", type=int, default=500, help="how many (500)")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first one (0)")
    parser.add_argument("--processes", type=int, default=1, help="at a time (1)")
    for name, (_, help_) in BESIDES.items():
        parser.add_argument(f"--{name}", action="store_true", help=help_)
    options, strays = parser.parse_known_args(arguments)
    if strays and strays[0].isdecimal():
        parser.error(
            f"unexpected {strays[0]!r}: expected --seeds {strays[0]}, or --from {strays[0]} --seeds 1"
        )
    if strays:
        parser.error(f"unexpected {strays[0]!r}: expected options alone")
    limits = (("seeds", 1, 10**6), ("first", 0, 10**12), ("processes", 1, 1024))
    for name, least, most in limits:
        if not least <= (value := getattr(options, name)) <= most:
            flag = "from" if name == "first" else name
            raise RefusedError(f"--{flag}: {value}; expected {least} to {most}")
    seeds = range(options.first, options.first + options.seeds)
    broken = 0
    besides = {name: getattr(options, name) for name in BESIDES}
    each = each_seed(seeds, processes=options.processes, **besides)
    console = Console(stderr=True)
    with Progress(
        console=console, transient=True, redirect_stdout=False, disable=not console.is_terminal
    ) as progress:
        for failure in progress.track(each, len(seeds), description="seeds"):
            if failure is not None:  # at once: whoever ends a long run knows what it has found
                broken += 1
                sys.stdout.write(f"{failure}\n\n")
                sys.stdout.flush()
    sys.stdout.write(f"{options.seeds} seeds, {broken} of them broken\n")
    return 1 if broken else 0

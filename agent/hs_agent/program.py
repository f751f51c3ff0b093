"""What is started of a job: its command, through torchrun or as it is, and its environment."""

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path

from hs_agent.accounts import Account
from hs_agent.config import Config, DeviceKind, split_address
from hs_agent.rendezvous import bound_everywhere, interface_of
from hs_core.errors import RefusedError
from hs_core.model import Gpu, JobSpec, SuspendMode
from hs_core.wanted import WantedJob

MAX_ARGV, MAX_ENV = 4096, 512
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PYTHON = re.compile(r"python(\d+(\.\d+)*)?t?")
_PYTHON_OPTIONS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def check(wanted: WantedJob) -> None:
    """Limits that hold whatever a controller lets through."""
    spec = wanted.spec
    if not spec.command or not spec.command[0]:
        raise RefusedError("command is empty: expected a program and its arguments")
    if len(spec.command) > MAX_ARGV:
        raise RefusedError(f"command has {len(spec.command)} words: expected at most {MAX_ARGV}")
    if len(spec.env) > MAX_ENV:
        raise RefusedError(f"env has {len(spec.env)} names: expected at most {MAX_ENV}")
    for name, value in spec.env.items():
        if not _ENV_NAME.fullmatch(name):
            raise RefusedError(f"env name {name!r}: expected letters, digits and '_'")
        if "\0" in value:
            raise RefusedError(f"env {name} holds a NUL byte")
    for what, text in (
        ("workdir", spec.workdir),
        ("output", spec.output),
        *(("command", word) for word in spec.command),
    ):
        if "\0" in text:
            raise RefusedError(f"{what} holds a NUL byte")
    if not spec.workdir.startswith("/"):
        raise RefusedError(f"workdir {spec.workdir!r}: expected an absolute path")


def check_launcher(launcher: tuple[str, ...]) -> None:
    """Raises OSError where there is no such program, which is the host's fault and no job's."""
    if not launcher:
        return
    path = Path(launcher[0])
    path.stat()
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise PermissionError(errno.EACCES, "the launcher is no program that can be run", launcher[0])


def free_port() -> int:
    """A port that nobody has at any address, since torch listens at all of them; the next launch draws another, should somebody take it meanwhile."""
    with bound_everywhere(0) as probe:
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Place:
    """Where this host's processes stand among those of the whole job, and where all of them meet."""

    nodes: int
    rank: int
    address: str
    port: int

    @classmethod
    def of(cls, wanted: WantedJob) -> "Place":
        if len(wanted.nodes) <= 1:
            return cls(1, 0, "127.0.0.1", free_port())
        found = split_address(wanted.rendezvous)
        if found is None:
            raise RefusedError(f"rendezvous {wanted.rendezvous!r}: expected address:port")
        return cls(len(wanted.nodes), wanted.node_rank, *found)


def torchrun(command: tuple[str, ...], ranks: int, place: Place, name: str, notes: str = "") -> list[str]:
    """`ranks` processes of the command through torch.distributed.run, with the job's own Python.

    A command that begins with a Python keeps it (and its options); one that begins with a script `*.py` gets `python`;
    anything else is a program that is started as it is by `python`'s launcher.

    Several nodes meet by static rendezvous: a node keeps its ranks for good, as it has only their part of a checkpoint (the c10d
    one numbers nodes as they come), and node 0 is told so instead of guessed from host names, which hosts may share.
    `notes`: the folder in which it notes how its processes failed; "": it makes one in /tmp for each start, which stays there.
    """
    head, rest = command[0], list(command[1:])
    run = ["-m", "torch.distributed.run", f"--nnodes={place.nodes}", f"--nproc-per-node={ranks}",
           f"--master-addr={place.address}", f"--master-port={place.port}"]  # fmt: skip
    if place.nodes > 1:
        run += [f"--node-rank={place.rank}", f"--rdzv-id={name}"]
    if notes:
        run.append(f"--log-dir={notes}")
    if not _PYTHON.fullmatch(Path(head).name):
        return ["python", *run, *([] if head.endswith(".py") else ["--no-python"]), *command]
    options: list[str] = []
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c", "-"):
        options.append(rest.pop(0))
        if options[-1] in _PYTHON_OPTIONS_WITH_VALUE and rest:
            options.append(rest.pop(0))
    if not rest or rest[0] in ("-c", "-") or rest == ["-m"]:
        raise RefusedError(
            "a torchrun job's command must name a script or a module (-m); `-c` and standard input can't be"
        )
    script = ["--module", *rest[1:]] if rest[0] == "-m" else rest
    return [head, *options, *run, *script]


def environment(  # noqa: PLR0917 — one name per source
    wanted: WantedJob,
    gpus: tuple[Gpu, ...],
    who: Account,
    config: Config,
    sock: Path,
    inject: Path,
    checkpoints: str,
    place: Place,
) -> dict[str, str]:
    """What the job sees; clean of everything that is the agent's. Of two that say the same name the later one counts."""
    spec = wanted.spec
    return {
        **_of_its_account(who, config),
        **_of_its_size(wanted),
        **(_network(wanted.nodes[place.rank].address) if place.nodes > 1 else {}),
        # HS_ names are ours to give, but for the one that switches the runtime off.
        **{k: v for k, v in spec.env.items() if not k.startswith("HS_") or k == "HS_HOOK"},
        **_about_it(wanted, gpus, place),
        "HS_CHECKPOINT_DIR": checkpoints,
        "HS_AGENT_SOCKET": str(sock),
        **_how_it_trains(wanted),
        **_hook(spec, inject),
        **_devices(config, gpus),
    }


def _of_its_account(who: Account, config: Config) -> dict[str, str]:
    return {
        "PATH": config.path,
        "HOME": who.home,
        "USER": who.name,
        "LOGNAME": who.name,
        "SHELL": who.shell,
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        # Sets of text have the same order in each process: a vocabulary made of one is to be the same where the job goes on.
        "PYTHONHASHSEED": "0",
    }


def _of_its_size(wanted: WantedJob) -> dict[str, str]:
    """Numeric libraries start a thread for each CPU of the host: of a limit by time they know nothing, and would stand still most of it."""
    spec = wanted.spec
    if not spec.cpus:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, spec.cpus // (wanted.gpus if spec.torchrun else 1)))}


def _network(address: str) -> dict[str, str]:
    """Else gloo takes the address that the host's name resolves to, which may be one that no other host reaches."""
    interface = interface_of(address)
    return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface} if interface else {}


def _about_it(wanted: WantedJob, gpus: tuple[Gpu, ...], place: Place) -> dict[str, str]:
    spec = wanted.spec
    return {
        "HS_JOB_ID": str(wanted.job),
        "HS_JOB_NAME": spec.name,
        "HS_USER": wanted.user,
        "HS_NNODES": str(place.nodes),
        "HS_NODE_RANK": str(place.rank),
        "HS_GPUS_PER_NODE": str(wanted.gpus),
        "HS_GPU_TYPE": gpus[0].model if gpus else "",
        "HS_MASTER_ADDR": place.address,
        "HS_MASTER_PORT": str(place.port),
        "HS_EPOCH": str(wanted.epoch),
        "HS_RESTART_COUNT": str(wanted.restarts),
        "HS_COPY": str(max(wanted.copy, 0)),
        "HS_COPIES": str(wanted.copies),
        "MASTER_ADDR": place.address,
        "MASTER_PORT": str(place.port),
    } | ({} if spec.array_index is None else {"HS_ARRAY_TASK_ID": str(spec.array_index)})


def _how_it_trains(wanted: WantedJob) -> dict[str, str]:
    env = {"HS_ACCUMULATION_STEPS": str(wanted.accumulation)}
    if wanted.last_step:
        env["HS_LAST_STEP"] = str(wanted.last_step)
    if (shape := wanted.trains_as) is not None:
        env["HS_BATCH_PER_GPU"] = str(shape.per_gpu * shape.parts)
        env["HS_ACCUMULATION_STEPS"] = str(shape.parts)
    if wanted.strategy is not None:
        env["HS_STRATEGY"] = wanted.strategy.text
    return env


def _hook(spec: JobSpec, inject: Path) -> dict[str, str]:
    if spec.suspend in (SuspendMode.TRANSPARENT, SuspendMode.NONE):
        return {"HS_HOOK": "0"}
    theirs = spec.env.get("PYTHONPATH", "")
    return {"PYTHONPATH": f"{inject}:{theirs}" if theirs else str(inject)}


def _devices(config: Config, gpus: tuple[Gpu, ...]) -> dict[str, str]:
    if config.devices is not DeviceKind.NVML:
        return {}
    env = {"CUDA_VISIBLE_DEVICES": ",".join(gpu.id for gpu in gpus)}
    if config.mps_pipe_dir:
        env["CUDA_MPS_PIPE_DIRECTORY"] = config.mps_pipe_dir
    return env

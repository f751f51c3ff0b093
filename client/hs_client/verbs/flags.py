"""What flags say of a job: for `submit`, `run` and `#HS` lines one table, each beside the job file's field that it stands for."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from hs_client.complaints import Path_
from hs_client.completing import files, folders, one_of

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    parameter: str  # click's name for it
    shown: str  # as people type it
    field: Path_  # empty: it is no field's alone
    read: Callable[[Any], Any]  # how its text becomes the field's value
    option: Callable[[Any], Any]


def _flag(*names: str, field: str = "", read: Callable[[Any], Any] = lambda said: said, **how: Any) -> Flag:
    (shown,) = (name for name in names if name.startswith("--"))
    return Flag(
        parameter=click.Option(names).name or "",
        shown=shown,
        field=tuple(field.split(".")) if field else (),
        read=read,
        option=click.option(*names, **how),
    )


def _count(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdecimal() and len(text) < 12 else text


def _jobs(words: tuple[str, ...]) -> list[str]:
    return [part for word in words for part in word.split(",")]


FLAGS = (
    _flag(
        "-f",
        "--file",
        metavar="FILE",
        shell_complete=files,
        help="job file (docs/job-file.md); - reads standard input",
    ),
    _flag("-J", "--name", field="name", metavar="NAME", help="made from the command by default"),
    _flag(
        "-G",
        "--gpus",
        field="resources.gpus",
        read=_count,
        metavar="[MODEL:]N",
        help="GPUs per node, e.g. 4 or H100:4  [1]",
    ),
    _flag("-N", "--nodes", field="nodes", type=int, metavar="N", help="nodes  [1]"),
    _flag("--gpu-type", field="resources.gpu_type", metavar="MODELS", help="e.g. H100,A100, or any  [any]"),
    _flag(
        "--gpu-mem", field="resources.gpu_memory", metavar="SIZE", help="memory each GPU must have, e.g. 40G"
    ),
    _flag("-c", "--cpus", field="resources.cpus", type=int, metavar="N", help="CPU cores"),
    _flag(
        "--mem",
        field="resources.memory",
        metavar="SIZE",
        help="host memory that each of its servers must have, and its processes can take, e.g. 64G",
    ),
    _flag(
        "-t",
        "--time",
        field="max_duration",
        metavar="TIME",
        help="running time at most: 90m, 2h, 1d12h, HH:MM:SS; a number is minutes",
    ),
    _flag("-a", "--array", field="array", metavar="TASKS", help="0-15, or 0-15%4 for four at once"),
    _flag(
        "-d",
        "--after",
        field="after",
        read=_jobs,
        metavar="JOB[:ok|any|fail]",
        multiple=True,
        help="wait for that job (12, 12_3, 12_all, 12-15)  [ok]",
    ),
    _flag(
        "-p",
        "--priority",
        field="priority",
        type=int,
        metavar="N",
        help="among your own jobs; higher first  [0]",
    ),
    _flag("-e", "--env", metavar="K=V|K", multiple=True, help="set a variable, or hand yours on"),
    _flag(
        "-C",
        "--chdir",
        field="workdir",
        metavar="DIR",
        shell_complete=folders,
        help="folder to run in  [this one]",
    ),
    _flag(
        "-o",
        "--output",
        field="output",
        metavar="FILE",
        shell_complete=files,
        help="write the log there too; %x: job's name, %j: its number, %a: task's, %A: array's",
    ),
    _flag(
        "--torchrun",
        field="torchrun",
        is_flag=True,
        default=None,
        help="a process per GPU, through torchrun",
    ),
    _flag(
        "--topology",
        field="placement.topology",
        metavar="auto|any",
        shell_complete=one_of("auto", "any"),
        help="any: over as many servers as it fits on  [auto: --nodes]",
    ),
    _flag(
        "--migrate",
        field="placement.migrate",
        metavar="auto|same-type|never",
        shell_complete=one_of("auto", "same-type", "never"),
        help="where the job may be moved  [auto]",
    ),
    _flag(
        "--suspend",
        field="suspend",
        metavar="auto|hook|transparent|none",
        shell_complete=one_of("auto", "hook", "transparent", "none"),
        help="how it may be suspended  [auto]",
    ),
    _flag(
        "--on-partition",
        field="on_partition",
        metavar="fence|continue",
        shell_complete=one_of("fence", "continue"),
        help="when its server is cut off  [continue]",
    ),
    _flag("--retry", field="retry.max", type=int, metavar="N", help="restarts after a failure  [0]"),
    _flag("--sweep", metavar="NAME=V,V…", multiple=True, help="a job for each value, put in place of {NAME}"),
    _flag("--class", "job_class", field="class", metavar="NAME", help="jobs of one class perform alike"),
    _flag("--steps", field="steps", type=int, metavar="N", help="optimizer steps in all, as you expect them"),
    _flag(
        "--gpu-mem-fixed",
        field="resources.gpu_memory_fixed",
        metavar="SIZE",
        help="of --gpu-mem, what does not shrink with the batch  [all]",
    ),
    _flag(
        "--accumulation",
        field="accumulation",
        type=int,
        metavar="N",
        help="sub-batches the script can split a batch into  [1]",
    ),
    _flag(
        "--dataset",
        field="dataset.name",
        metavar="NAME",
        help="the data it reads; servers that have it are preferred",
    ),
    _flag("--dataset-size", field="dataset.size", metavar="SIZE", help="of --dataset, e.g. 150G"),
    _flag(
        "--gpus-max",
        field="elastic.gpus_max",
        type=int,
        metavar="N",
        help="elastic: it may be restarted on up to so many GPUs",
    ),
    _flag("--gpus-min", field="elastic.gpus_min", type=int, metavar="N", help="elastic: and on so few  [1]"),
    _flag("--batch", field="elastic.batch", type=int, metavar="N", help="elastic: examples of a mini-batch"),
    _flag(
        "--batch-max",
        field="elastic.batch_max",
        type=int,
        metavar="N",
        help="elastic: of one at most  [--batch]",
    ),
    _flag(
        "--batch-per-gpu-max",
        field="elastic.batch_per_gpu_max",
        type=int,
        metavar="N",
        help="elastic: that fit into a GPU at once  [--batch over --gpus]",
    ),
    _flag(
        "--noise-scale",
        field="elastic.noise_scale",
        type=float,
        metavar="N",
        help="elastic: gradient noise scale, in examples",
    ),
    _flag(
        "--strategy",
        field="strategies",
        read=list,
        metavar="dp=N,tp=N,pp=N",
        multiple=True,
        help="a parallelism strategy that the script can do; several: the scheduler may choose",
    ),
)


def job_options(function: F) -> F:
    for flag in reversed(FLAGS):
        function = flag.option(function)
    return function

"""Who trains what: three users whose models gain differently from a faster GPU, and servers of three generations."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hs_client import Job

EXAMPLES = Path(__file__).resolve().parents[1]
RATES = (0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    name: str
    model: str
    gpus: int


SERVERS = (
    Server(name="v1", model="V100", gpus=4),
    Server(name="p1", model="P100", gpus=4),
    Server(name="k1", model="K80", gpus=4),
)
LATE = Server(name="k2", model="K80", gpus=2)  # joins while the others work
MODELS = ("V100", "P100", "K80")  # newest first


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """A user with one sweep: jobs of one class."""

    user: str
    tickets: float
    job_class: str
    jobs_count: int
    gpus: int  # of each job; one process, as with DataParallel
    steps: int
    hidden: int  # width of the network: different users train different models
    step_s: float  # on a K80
    speedup: Mapping[str, float]  # against a K80

    def script(self, rate: float) -> list[str]:
        return [str(EXAMPLES / "digits_resumable.py"), "--steps", str(self.steps), "--lr", str(rate), "--seed", "1",
                "--hidden", str(self.hidden)]  # fmt: skip

    def jobs(self) -> list[Job]:
        return [
            Job(
                name=f"{self.job_class}-lr{rate}",
                resources={"gpus": self.gpus, "gpu_memory": "1G"},
                run=[sys.executable, *self.script(rate)],
                env={"OMP_NUM_THREADS": "1"},
                job_class=self.job_class,
            )
            for rate in RATES[: self.jobs_count]
        ]

    def script_of(self, name: str) -> list[str]:
        return self.script(float(name.rpartition("-lr")[2]))

    def steps_per_s(self, model: str) -> float:
        """What a job is paced to on emulated GPUs of that model."""
        return self.speedup[model] / self.step_s


TEAMS = (
    Team(user="ada", tickets=100, job_class="vae", jobs_count=4, gpus=1, steps=2700, hidden=48, step_s=0.06,
         speedup={"V100": 1.15, "P100": 1.1, "K80": 1.0}),
    Team(user="bob", tickets=100, job_class="superres", jobs_count=4, gpus=1, steps=1900, hidden=64, step_s=0.1,
         speedup={"V100": 1.6, "P100": 1.35, "K80": 1.0}),
    Team(user="eve", tickets=200, job_class="resnext", jobs_count=4, gpus=2, steps=2600, hidden=96, step_s=0.16,
         speedup={"V100": 4.0, "P100": 2.2, "K80": 1.0}),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """A job over two servers, one rank on each."""

    user: str = "bob"
    name: str = "two-servers"
    nodes: int = 2
    steps: int = 300

    def script(self) -> list[str]:
        return [str(EXAMPLES / "digits_ddp.py"), "--steps", str(self.steps), "--seed", "1"]

    def job(self) -> Job:
        return Job(
            name=self.name,
            nodes=self.nodes,
            resources={"gpus": "K80:1", "gpu_memory": "1G"},
            torchrun=True,
            run=[sys.executable, *self.script()],
            env={"OMP_NUM_THREADS": "1"},
            job_class=self.name,
        )


GANG = Gang()
GANG_STEP_S = 0.05

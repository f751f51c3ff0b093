"""Who submits what: figure 4 of the paper with scikit-learn's digits in place of its data sets."""

import sys
from dataclasses import dataclass
from pathlib import Path

from hs_client import Job

EXAMPLES = Path(__file__).resolve().parents[1]
PACE_S = 0.04  # what a step takes on the emulated V100, whatever the model and the gang
RATES = (0.003, 0.004, 0.005, 0.01)  # each user tries four learning rates: one sweep, one job class


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """A user with four jobs of one gang size."""

    user: str
    gpus: int
    steps: int  # sized so that A ends first, then B, and C has the server to itself for a while

    def script(self, rate: float) -> list[str]:
        name = "digits_resumable.py" if self.gpus == 1 else "digits_ddp.py"
        return [str(EXAMPLES / name), "--steps", str(self.steps), "--lr", str(rate), "--seed", "1"]

    def jobs(self) -> list[Job]:
        return [
            Job(
                name=f"{self.user.lower()}-{self.gpus}gpu-lr{rate}",
                resources={"gpus": self.gpus, "gpu_memory": "1G"},
                torchrun=self.gpus > 1,
                run=[sys.executable, *self.script(rate)],
                env={"OMP_NUM_THREADS": "1"},
            )
            for rate in RATES
        ]


TEAMS = (
    Team(user="A", gpus=1, steps=1050),
    Team(user="B", gpus=2, steps=600),
    Team(user="C", gpus=4, steps=335),
)
GPUS = 4
PERIOD = 12  # quanta after which the exact schedule of this workload repeats

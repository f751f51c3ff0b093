"""A sweep of thousands of jobs on one server of two GPUs.

Measured is what it costs its host to be told of all of them, and the controller to take, list and cancel them. Four
times the jobs should cost four times as much.
"""

import time
from collections.abc import Callable

from hs_core.cluster import ClusterMachine, Settings
from hs_core.events.cluster import HostJoined, JobsCancelled, JobsSubmitted, QuantumEnded, UserSet
from hs_core.events.host import WantedChanged
from hs_core.host import HostConfig, HostMachine
from hs_core.model import Gpu, Host, JobSpec
from hs_core.names import GpuId, HostName, JobId, UserName
from hs_core.policies import find
from hs_core.wanted import Turn, Wanted, WantedJob

FEW, MANY = 1_000, 4_000
GPUS = tuple(Gpu(id=GpuId(f"GPU-{n}"), index=n, model="V100", memory_bytes=16 << 30) for n in range(2))
SPEC = JobSpec(name="sweep", command=("python", "train.py"), gpus=1)
USER = UserName("ann")


def host(jobs: int) -> dict[str, float]:
    """Seconds of CPU."""
    machine = HostMachine(GPUS, HostConfig(), now_s=0.0)
    entries = tuple(
        WantedJob(job=JobId(n), epoch=0, user=USER, run_as="ann", job_class="sweep", spec=SPEC, tickets=0.01)
        for n in range(1, jobs + 1)
    )
    wanted = Wanted(term=1, seq=1, quantum_s=60.0, turn=Turn(), jobs=entries)
    return {"its host is told of them": took(lambda: machine.handle(WantedChanged(now_s=0.0, wanted=wanted)))}


def controller(jobs: int) -> dict[str, float]:
    machine = ClusterMachine(find("gandiva-fair"), Settings())
    machine.begin_term(1)
    machine.handle(HostJoined(now_s=0.0, host=Host(name=HostName("v1"), gpus=GPUS, boot_id="b"), reports=()))
    machine.handle(UserSet(now_s=0.0, name=USER, by=USER, tickets=100.0))
    submitted = JobsSubmitted(now_s=1.0, user=USER, specs=(SPEC,) * jobs)
    ids = tuple(JobId(n) for n in range(1, jobs + 1))

    def take() -> None:
        machine.handle(submitted)
        machine.handle(QuantumEnded(now_s=70.0))

    def show() -> None:
        for job in ids:
            machine.job_share_gpus(job)
            machine.why(job, 70.0)

    cancelled = JobsCancelled(now_s=71.0, by=USER, jobs=ids[: jobs // 4])
    return {
        "the controller takes them and decides": took(take),
        "hsctl queue lists them": took(show),
        "a quarter of them is cancelled": took(lambda: machine.handle(cancelled)),
    }


def took(what: Callable[[], object]) -> float:
    began_s = time.process_time()
    what()
    return time.process_time() - began_s


def main() -> None:
    few, many = ({**host(jobs), **controller(jobs)} for jobs in (FEW, MANY))
    print(f"{'':40} {FEW:>7,} jobs {MANY:>7,} jobs")
    for name, seconds in few.items():
        print(
            f"{name:40} {1e3 * seconds:>9.0f} ms {1e3 * many[name]:>9.0f} ms   x {many[name] / seconds:.1f}"
        )


if __name__ == "__main__":
    main()

"""What people do while a job runs: a command beside it, and what it has said since."""

import os
import time
from collections.abc import Callable

import pytest

from tests.e2e.harness import Cluster, until

NewCluster = Callable[..., Cluster]
SAYS = "i=0; while true; do i=$((i+1)); echo line $i; sleep 0.1; done"


@pytest.fixture
def shared(new_cluster: NewCluster) -> Cluster:
    """One GPU in turns of two seconds, and jobs that are not root's."""
    cluster = new_cluster("--emulate", "V100:1", "--quantum", "2", "--user", "ann")
    if os.geteuid() == 0:
        cluster.state.parent.chmod(0o711)
        cluster.hsctl("user", "set", "ann", "--run-as", "nobody")
    return cluster


def loop(cluster: Cluster) -> int:
    return cluster.submit(
        "-G", "1", "-C", "/", "--suspend", "transparent", "--", "/bin/sh", "-c", SAYS, user="ann"
    )


def test_a_command_runs_beside_a_job_and_ends_with_its_turn(shared: Cluster) -> None:
    job = loop(shared)
    shared.until_state(job, "running")
    ran = shared.hsctl("exec", str(job), "--", "/bin/sh", "-c", "echo of $HS_JOB_ID; id -u; exit 7", code=7)
    uid = 65534 if os.geteuid() == 0 else os.geteuid()
    assert ran.stdout == f"of {job}\n{uid}\n"
    other = loop(shared)
    shared.until_state(other, "running")
    until(lambda: shared.view(job).state == "running", "its turn comes again")

    def in_its_turn() -> str:
        """It may be over before the command has begun: then that is the answer."""
        ended = shared.hsctl("exec", str(job), "--", "/bin/sh", "-c", "echo begun; sleep 600", code=1)
        return ended.stderr if ended.stdout == "begun\n" else ""

    said = until(in_its_turn, "a command had begun when the turn was over")
    assert f"the command was ended: job {job} has not its turn on" in said
    shared.hsctl("cancel", str(other))
    until(lambda: shared.view(job).state == "running", "it has the GPU alone")
    shared.hsctl("cancel", str(job))
    shared.until_state(job, "cancelled")
    assert f"job {job} has ended" in shared.hsctl("exec", str(job), "true", code=1).stderr
    programs = [event["data"]["program"] for event in shared.json("events") if event["kind"] == "exec"]
    assert set(programs) == {"/bin/sh"}


def test_what_a_job_has_said_since_is_told_apart_from_what_it_said_before(shared: Cluster) -> None:
    job = loop(shared)

    def lines(*since: str) -> list[int]:
        said = shared.hsctl("logs", str(job), *since).stdout.splitlines()
        return [int(line.split()[1]) for line in said]

    def last() -> int:
        """As soon as there is a log at all."""
        said = shared.hsctl("logs", str(job), "--tail", "1", code=None).stdout.split()
        return int(said[1]) if said else 0

    until(lambda: last() > 20, "it has said something")
    before, at_s = last(), time.monotonic()
    until(lambda: last() > before + 50, "it has said more")
    ago_s = time.monotonic() - at_s
    since = lines("--since", f"{ago_s:.2f}s")
    assert since[0] > 1, "not all of it"
    assert since[0] <= before + 1, "nothing is missing"
    assert since == list(range(since[0], since[-1] + 1))
    assert lines()[0] == 1
    shared.hsctl("cancel", str(job))
    shared.until_state(job, "cancelled")
    assert lines("--since", "1h")[0] == 1

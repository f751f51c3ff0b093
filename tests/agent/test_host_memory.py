"""What is left of a host's memory and who holds it, on real processes; and a host on which only one process fits."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hs_agent import config, host_memory, limits, procs
from hs_agent.cgroup import CgroupUse, JobCgroup, create, probe
from hs_agent.config import memory_bytes
from hs_core.names import JobId
from hs_core.reports import Tier
from tests.agent.conftest import NO_CGROUP

MIB = 1 << 20

HOLDS = """
import subprocess, sys
held = bytearray(int(sys.argv[1]))
held[::4096] = b"x" * len(held[::4096])
child = subprocess.Popen([sys.executable, *sys.argv[:1], sys.argv[2], ""], stdin=0) if sys.argv[2] else None
print("holds", flush=True)
sys.stdin.readline()
"""


INSIDE = (
    """
import os, sys
for path in sys.argv[3:]:
    with open(path, "w") as file:
        file.write(str(os.getpid()))
"""
    + HOLDS
)


@pytest.fixture
def holder(place: Path):
    """A process of 64 MiB whose child holds 32."""
    (place / "holds.py").write_text(HOLDS)
    command = [sys.executable, str(place / "holds.py"), str(64 * MIB), str(32 * MIB)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(2):
            assert process.stdout.readline() == b"holds\n"
        yield process.pid
        process.communicate()  # both read the end of their input, and end


def test_a_job_without_a_control_group_holds_what_its_processes_hold(holder: int) -> None:
    left, held = host_memory.look([(JobId(7), holder, NO_CGROUP)])
    assert held.keys() == {JobId(7)}
    assert 96 * MIB <= held[JobId(7)] <= 200 * MIB
    assert left is not None
    assert left > 0


def test_a_process_that_is_gone_holds_nothing() -> None:
    with subprocess.Popen(["/bin/true"]) as process:
        pass
    assert host_memory.resident_bytes(process.pid) == 0
    assert host_memory.look([(JobId(1), process.pid, NO_CGROUP)])[1] == {JobId(1): 0}


def test_a_control_group_says_what_is_held_in_it(place: Path) -> None:
    v2 = place / "v2"
    v2.mkdir()
    (v2 / "memory.stat").write_text("anon 5000\nfile 900000\nshmem 300\n")
    assert JobCgroup(v2=v2, v1={}).memory_bytes() == 5300
    v1 = place / "v1"
    v1.mkdir()
    (v1 / "memory.stat").write_text("cache 900000\nrss 1\ntotal_rss 700\ntotal_shmem 30\n")
    assert JobCgroup(v2=None, v1={"memory": v1}).memory_bytes() == 730
    (v2 / "memory.stat").unlink()
    assert JobCgroup(v2=v2, v1={}).memory_bytes() is None
    assert JobCgroup(v2=v2, v1={"memory": v1}).memory_bytes() == 730


def test_a_control_group_says_that_its_memory_ran_out(place: Path) -> None:
    v2 = place / "v2"
    v2.mkdir()
    assert JobCgroup(v2=v2, v1={}).ran_out() == ""
    (v2 / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 1\noom_kill 0\n")
    (v2 / "memory.max").write_text("max\n")
    assert JobCgroup(v2=v2, v1={}).ran_out() == ""
    (v2 / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 1\noom_kill 1\n")
    assert JobCgroup(v2=v2, v1={}).ran_out().endswith("; the server had none left")
    v1 = place / "v1"
    v1.mkdir()
    (v1 / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    (v1 / "memory.limit_in_bytes").write_text(f"{1 << 30}\n")
    assert JobCgroup(v2=None, v1={"memory": v1}).ran_out().endswith("; its limit is 1024 MiB")


def test_a_real_control_group_counts_the_processes_in_it(place: Path) -> None:
    groups = probe(CgroupUse.AUTO, place)
    if "memory" not in groups.v1 and "memory" not in groups.v2_limits:
        pytest.skip("no control group for memory can be made here")
    group = create(groups, "1-1", cpus=0, memory_bytes=0)
    try:
        (place / "inside.py").write_text(INSIDE)
        with subprocess.Popen(
            [
                sys.executable,
                str(place / "inside.py"),
                str(64 * MIB),
                "",
                *map(str, group.for_shim()["procs"]),
            ],  # type: ignore[call-overload]
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"holds\n"
            counted = group.memory_bytes()
            process.communicate()
        assert counted is not None
        assert 64 * MIB <= counted <= 200 * MIB
    finally:
        group.remove()


def test_a_limit_of_a_group_above_counts_like_the_host_s_own_memory(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    5000 kB\nHugePages_Total:  0\n")
    monkeypatch.setattr(host_memory, "MEMINFO", place / "meminfo")
    monkeypatch.setattr(limits, "V2", place / "cgroup")
    monkeypatch.setattr(limits, "OWN_GROUP", place / "own")
    (place / "own").write_text("3:memory:/other\n0::/unit/agent\n")
    assert host_memory.available_bytes() == 5000 * 1024
    unit = place / "cgroup" / "unit"
    (unit / "agent").mkdir(parents=True)
    for group, limit, used in ((unit, "4096000", "1096000"), (unit / "agent", "max", "500")):
        (group / "memory.max").write_text(limit + "\n")
        (group / "memory.current").write_text(used + "\n")
    (unit / "memory.stat").write_text("anon 900000\ninactive_file 96000\n")
    assert host_memory.available_bytes() == 3_096_000
    assert memory_bytes() == 4_096_000, "what is left is said of that"
    made = config.parse({"controller": "unix:/run/c.sock"})
    assert made.host_memory_reserve_bytes == 4_096_000 // 20, "of the host's memory nobody would be left any"
    # Where jobs' groups are outside of ours, what is allowed to us is not their limit.
    (jobs := place / "cgroup" / "jobs").mkdir()
    assert host_memory.available_bytes("/jobs") == 5000 * 1024
    (jobs / "memory.max").write_text("3000000\n")
    (jobs / "memory.current").write_text("1000000\n")
    assert (memory_bytes("/jobs"), host_memory.available_bytes("/jobs")) == (3_000_000, 2_000_000)
    apart = {"controller": "unix:/run/c.sock", "cgroup_root": "/jobs"}
    assert config.parse(apart).host_memory_reserve_bytes == 3_000_000 // 20
    assert config.parse(apart | {"cgroup": "none"}).host_memory_reserve_bytes == 4_096_000 // 20
    (unit / "memory.max").write_text("1000\n")
    assert host_memory.available_bytes() == 0, "a limit that was lowered below what is used"
    (place / "meminfo").write_text("MemTotal: 9000 kB\n")
    assert host_memory.available_bytes() is None


def test_all_that_came_from_a_process_is_in_its_tree(holder: int) -> None:
    tree = host_memory.trees([holder, os.getpid()])
    assert tree[holder][0] == holder
    assert len(tree[holder]) == 2
    assert set(tree[holder]) < set(tree[os.getpid()])
    assert {found.pid for found in procs.descendants(holder)} == set(tree[holder][1:])


@pytest.mark.slow
@pytest.mark.parametrize(
    "daemon", [{"host_memory_reserve": memory_bytes() - 1, "pace": [{"base_s": 0.02}]}], indirect=True
)
def test_where_only_one_process_fits_jobs_take_turns_through_checkpoints_and_end_exactly(
    daemon, controller, job, place, handed
) -> None:
    daemon.start()
    epochs = {1: 160, 2: 30}  # so long that each is measured while it runs, also where a look takes its time
    both = [job(n, *handed.command(many), env=handed.env) for n, many in epochs.items()]
    controller.want(*both, quantum_s=1.0)
    for number in (1, 2):
        report = controller.wait_report(number, lambda r: r.exit, "an exit", 120)
        assert report.exit.ok, report
        assert report.host_memory_bytes > 30 * MIB
    assert Tier.CHECKPOINT in {report.tier for report in controller.history}
    assert any("waits for host memory" in report.note for report in controller.history)
    told = [json.loads(line) for line in (place / "agent.err").read_text().splitlines() if line[:1] == "{"]
    alive: set[int] = set()
    for line in told:
        if line["event"] == "launched" and "shim" in line:
            assert not alive, "one process at a time"
            alive.add(line["job"])
        elif line["event"] == "exited" and "code" in line:
            alive.remove(line["job"])
    for number, many in epochs.items():
        said = controller.log_of(number, request=number).decode().splitlines()
        assert said[-1] == handed.weights_alone(many)

"""The units under systemd itself, on a machine of their own (`machines`): what `systemctl` does to the daemons, and what of that their jobs notice."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.packaging.machines import NAME, PREFIX, PROJECT, Machine, NoMachineError, booted, install

TALK = PROJECT / "tests/e2e/scripts/talk.py"
COUNTS = "n=0; while true; do n=$((n+1)); echo $n; sleep 0.05; done"
WITHIN_S = 60
HANGS_S = 3  # and less than the jobs' quantum


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    """A controller and an agent that has joined run there."""
    try:
        with booted() as machine:
            install(machine)
            machine.must("useradd", "--create-home", "--shell", "/bin/sh", "ann")
            yield machine
    except NoMachineError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def refused(machine: Machine) -> dict[str, str]:
    """What systemd says of daemons that were started before the machine was a cluster's: by unit."""
    machine.file("/etc/heteroshare/controller.toml").write_text('listen = "0.0.0.0:7443"\nquantum_s = 5\n')
    machine.file("/etc/heteroshare/agent.toml").write_text(
        f'controller = "{NAME}:7443"\ndevices = "emulated"\nemulated = ["V100:1"]\n'
    )
    for unit in ("hs-controller", "hs-agent"):
        assert machine.run("systemctl", "start", unit).returncode != 0
    return {unit: shown(machine, unit) for unit in ("hs-controller", "hs-agent")}


@pytest.fixture(scope="module")
def cluster(machine: Machine, refused: dict[str, str]) -> Machine:
    del refused
    machine.must("hs-controller", "init")
    machine.must("systemctl", "enable", "--now", "hs-controller")
    lines = machine.must("hsctl", "node", "enroll", NAME).splitlines()
    (join,) = (line for line in lines if line.startswith("hs-agent join"))
    machine.must(*join.split())
    machine.must("systemctl", "enable", "--now", "hs-agent")
    return machine


def shown(machine: Machine, unit: str) -> str:
    """As an administrator sees it."""
    return machine.run("systemctl", "status", "--no-pager", unit).stdout


def until(true: Callable[[], Any], what: str) -> Any:
    deadline_s = time.monotonic() + WITHIN_S
    while not (found := true()):
        assert time.monotonic() < deadline_s, f"not within {WITHIN_S} s: {what}"
        time.sleep(0.05)
    return found


def counting(machine: Machine) -> str:
    """The number of a job that counts as long as it runs, once it does."""
    number = submitted(machine, "-G", "1", "--", "sh", "-c", COUNTS)
    until(lambda: phase(machine, number) == "running", f"job {number} runs")
    return number


def submitted(machine: Machine, *words: str) -> str:
    """By ann. What else is said of it (a server may be away for a moment) is not its number."""
    said = machine.must("hsctl", "submit", "--parsable", *words, user="ann")
    return next(line for line in said.splitlines() if line.isdecimal())


def logged(machine: Machine, job: str) -> str:
    """What it has said, of all incarnations; on a busy machine its server may be away for a moment."""
    read: subprocess.CompletedProcess[str] = until(
        lambda: done if (done := machine.run("hsctl", "logs", job)).returncode == 0 else None,
        f"the log of job {job} can be had",
    )
    return read.stdout


def phase(machine: Machine, job: str) -> str:
    return str(of_job(machine, job)["state"])


def of_job(machine: Machine, job: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = json.loads(machine.must("hsctl", "queue", "--all", "--json"))
    return next(row for row in rows if str(row["id"]) == job)


def count(machine: Machine, job: str) -> int:
    """What it has said last."""
    log = machine.file(f"/var/lib/heteroshare/agent/jobs/{job}-0/log").read_text()
    return int(log.split()[-1])


def process(machine: Machine, unit: str) -> str:
    return machine.said(unit, "MainPID")


def cancelled(machine: Machine, *jobs: str) -> None:
    machine.must("hsctl", "cancel", *jobs)
    until(lambda: all(phase(machine, job) == "cancelled" for job in jobs), "they are cancelled")


@pytest.mark.parametrize(
    ("unit", "why"),
    [
        ("hs-controller", 'Status: "listen: 0.0.0.0:7443: this controller has no certificates'),
        ("hs-agent", 'Status: "/var/lib/heteroshare/agent/identity: this host has no certificate'),
    ],
)
def test_a_daemon_that_cannot_start_says_why_in_its_status_and_is_not_tried_again(
    machine: Machine, refused: dict[str, str], unit: str, why: str
) -> None:
    assert why in refused[unit]
    assert "Active: failed" in refused[unit]
    assert machine.said(unit, "NRestarts") == "0"


def test_a_daemon_that_systemctl_has_started_is_ready(cluster: Machine) -> None:
    for unit, says in (("hs-controller", "in office"), ("hs-agent", "1 emulated V100")):
        cluster.must("systemctl", "restart", unit)
        assert f'Status: "{says}' in shown(cluster, unit)
    cluster.must("hsctl", "info")
    until(lambda: "connected to" in shown(cluster, "hs-agent"), "its agent has its controller")


def test_jobs_go_on_while_their_agent_is_stopped_started_again_and_killed(cluster: Machine) -> None:
    job = counting(cluster)
    cluster.must("systemctl", "stop", "hs-agent")
    assert 'Status: "stopped; jobs that go on without it: 1"' in shown(cluster, "hs-agent")
    then = count(cluster, job)
    until(lambda: count(cluster, job) > then, "it goes on without an agent")
    cluster.must("systemctl", "start", "hs-agent")
    cluster.must("systemctl", "restart", "hs-agent", "hs-controller")
    before = process(cluster, "hs-agent")
    cluster.must("kill", "-KILL", before)
    until(lambda: process(cluster, "hs-agent") not in {before, "0"}, "systemd starts the agent again")
    until(lambda: "connected to" in shown(cluster, "hs-agent"), "it is back")
    assert phase(cluster, job) == "running"
    said = logged(cluster, job).split()
    assert [int(line) for line in said] == list(range(1, len(said) + 1)), "one process has said it all"
    cancelled(cluster, job)


def test_a_daemon_that_hangs_is_ended_and_started_again_and_jobs_go_on(cluster: Machine) -> None:
    job = counting(cluster)
    try:
        for unit in ("hs-controller", "hs-agent"):
            folder = cluster.file(f"/run/systemd/system/{unit}.service.d")
            folder.mkdir(parents=True)
            (folder / "sooner.conf").write_text(f"[Service]\nWatchdogSec={HANGS_S}\n")
        cluster.must("systemctl", "daemon-reload")
        cluster.must("systemctl", "restart", "hs-controller", "hs-agent")
        for unit in ("hs-controller", "hs-agent"):
            hung = process(cluster, unit)
            cluster.must("kill", "-STOP", hung)
            until(
                lambda unit=unit, hung=hung: process(cluster, unit) not in {hung, "0"},
                f"{unit} is started again",
            )  # type: ignore[misc]
            assert "Watchdog timeout" in cluster.must("journalctl", "--no-pager", "-u", unit)
        then = count(cluster, job)
        until(lambda: count(cluster, job) > then, "it goes on")
    finally:
        cluster.must(
            "rm", "-r", *(f"/run/systemd/system/{unit}.service.d" for unit in ("hs-controller", "hs-agent"))
        )
        cluster.must("systemctl", "daemon-reload")
        cluster.must("systemctl", "restart", "hs-controller", "hs-agent")
    cancelled(cluster, job)


def test_jobs_are_held_by_the_control_groups_that_the_unit_delegates(cluster: Machine) -> None:
    jobs = [counting(cluster)]
    jobs.append(submitted(cluster, "-G", "1", "--", "sh", "-c", COUNTS))
    until(lambda: phase(cluster, jobs[1]) == "running", "the other has its turn")
    groups = cluster.file("/sys/fs/cgroup/system.slice/hs-agent.service")
    (held,) = groups.glob(f"heteroshare-*/{jobs[0]}-0/cgroup.events")
    until(lambda: "frozen 1" in held.read_text(), "whose turn is over is frozen there")
    cancelled(cluster, *jobs)
    until(lambda: not held.exists(), "nothing of it is left")


def test_a_job_writes_its_checkpoints_as_its_user_and_goes_on_from_them_after_a_crash_of_all(
    cluster: Machine,
) -> None:
    pytest.importorskip("torch")
    cluster.file("/home/ann/job.yaml").write_text(
        f"run: {PREFIX}/bin/python {TALK} 100000 0.05\ncheckpoint: {{mode: interval, interval: 1s}}\nretry: {{max: 1}}\n"
    )
    job = submitted(cluster, "-f", "job.yaml")
    kept = cluster.file(f"/var/lib/heteroshare/agent/checkpoints/{job}")
    until(
        lambda: checkpoint_known(cluster, job) >= 0,
        "it has written a checkpoint, and its agent has heard of it",
    )
    assert list(kept.glob("gen-*/manifest.json"))
    assert kept.stat().st_uid == cluster.file("/home/ann").stat().st_uid
    (group,) = cluster.file("/sys/fs/cgroup/system.slice/hs-agent.service").glob(f"heteroshare-*/{job}-0")
    shim = cluster.file(f"/var/lib/heteroshare/agent/jobs/{job}-0/shim.json")
    cluster.must(
        "kill", "-KILL", str(json.loads(shim.read_text())["shim"]["pid"]), process(cluster, "hs-agent")
    )
    until(lambda: not group.exists(), "nothing is left of that process")
    until(lambda: "connected to" in shown(cluster, "hs-agent"), "the agent is back")
    story = until(
        lambda: (said := steps(cluster, job)) and said.count(0) == 1 and said[-1] > 0 and said, "it trains"
    )
    until(lambda: len(steps(cluster, job)) > len(story) and phase(cluster, job) == "running", "it goes on")
    assert steps(cluster, job).count(0) == 1, "it did not begin afresh"
    cancelled(cluster, job)


def checkpoint_known(machine: Machine, job: str) -> int:
    """Which generation an agent that is started now would know of; -1: none."""
    known = json.loads(machine.file("/var/lib/heteroshare/agent/host.json").read_text())["machine"]["jobs"]
    return next((int(one["checkpoint_generation"]) for one in known if str(one["wanted"]["job"]) == job), -1)


def steps(machine: Machine, job: str) -> list[int]:
    """That it has said."""
    lines = logged(machine, job).splitlines()
    return [int(line.split()[1]) for line in lines if line.startswith("step ")]


def test_a_configuration_that_is_wrong_is_named_in_the_status_and_jobs_go_on(cluster: Machine) -> None:
    job = counting(cluster)
    file = cluster.file("/etc/heteroshare/agent.toml")
    right = file.read_text()
    file.write_text(f"{right}devicez = 1\n")
    assert cluster.run("systemctl", "restart", "hs-agent").returncode != 0
    assert "Status: \"/etc/heteroshare/agent.toml: unknown key 'devicez'" in shown(cluster, "hs-agent")
    assert cluster.said("hs-agent", "NRestarts") == "0"
    file.write_text(right)
    cluster.must("systemctl", "start", "hs-agent")
    then = count(cluster, job)
    until(lambda: count(cluster, job) > then, "it goes on")
    cancelled(cluster, job)


@pytest.mark.parametrize("power_fails", [False, True], ids=["shut down", "the power fails"])
def test_a_machine_that_is_booted_again_has_all_of_its_jobs_and_runs_each_once(
    cluster: Machine, *, power_fails: bool
) -> None:
    job = counting(cluster)
    until(lambda: len(logged(cluster, job).split()) > 1, "it counts")
    before = {
        row["id"]: row["state"] for row in json.loads(cluster.must("hsctl", "queue", "--all", "--json"))
    }
    cluster.reboot(power_fails=power_fails)
    until(
        lambda: of_job(cluster, job)["epoch"] == 1 and phase(cluster, job) == "running", "it has begun again"
    )
    after = {row["id"]: row["state"] for row in json.loads(cluster.must("hsctl", "queue", "--all", "--json"))}
    assert after == before
    said = until(
        lambda: (said := logged(cluster, job).split()).count("1") == 2 and said,
        "it counts anew",
    )
    assert said[:2] == ["1", "2"], "what it said before is kept"
    assert cluster.must("ps", "-eo", "args").count(f"sh -c {COUNTS}") == 1
    groups = cluster.file("/sys/fs/cgroup/system.slice/hs-agent.service").glob("heteroshare-*/*/")
    assert [group.name for group in groups] == [f"{job}-1"]
    cancelled(cluster, job)


def test_the_controller_can_write_in_its_own_folders_alone(cluster: Machine) -> None:
    cluster.must("hsctl", "backup", "/root/backup.db")
    root = cluster.file(f"/proc/{process(cluster, 'hs-controller')}/mountinfo").read_text()
    mounts = {line.split()[4]: line.split()[5].split(",") for line in root.splitlines()}
    assert "ro" in mounts["/"]
    assert "rw" in mounts["/var/lib/heteroshare/controller"]
    assert "rw" in mounts["/run/heteroshare"]


def test_daemons_that_are_taken_away_as_the_manual_says_leave_no_process_and_no_control_group(
    cluster: Machine,
) -> None:
    job = counting(cluster)
    cluster.must("hsctl", "node", "drain", NAME)
    cancelled(cluster, job)
    cluster.must("systemctl", "disable", "--now", "hs-agent")
    cluster.must("hsctl", "node", "remove", NAME)
    cluster.must("systemctl", "disable", "--now", "hs-controller")
    units = [f"/etc/systemd/system/{unit}.service" for unit in ("hs-agent", "hs-controller")]
    cluster.must(
        "rm", "-r", *units, "/etc/heteroshare", "/var/lib/heteroshare", "/run/heteroshare", "/opt/heteroshare"
    )
    cluster.must("systemctl", "daemon-reload")
    assert not list(cluster.file("/sys/fs/cgroup/system.slice").glob("hs-*"))
    assert "heteroshare" not in cluster.must("ps", "-eo", "args")

"""hs-agent beside others, as it starts and stops, and what systemd is told."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hs_agent import procs
from hs_core.reports import Phase
from tests.agent.real_jobs import COUNT, UNSUSPENDED, lines, python


def started_beside(config: Path) -> subprocess.CompletedProcess[str]:
    """Another agent, that is expected to end by itself."""
    words = [sys.executable, "-m", "hs_agent", "--config", str(config)]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


def test_a_second_agent_on_the_same_state_is_refused(daemon, controller, wait_for) -> None:
    daemon.start()
    wait_for(lambda: controller.hellos, "a hello")
    second = started_beside(daemon.config)
    assert second.returncode == 1
    assert f"belongs to another agent that is running (pid {daemon.process.pid})" in second.stderr
    assert "Traceback" not in second.stderr


def test_a_second_agent_on_the_same_sockets_is_refused(daemon, controller, wait_for) -> None:
    """It forgot `run_dir`: of a job over both all ranks would talk to one of them."""
    daemon.start()
    wait_for(lambda: controller.hellos, "a hello")
    beside = daemon.config.with_name("beside.toml")
    state_dir = f'state_dir = "{daemon.place}/state'
    assert state_dir in daemon.config.read_text()
    beside.write_text(daemon.config.read_text().replace(state_dir, f"{state_dir}-2"))
    second = started_beside(beside)
    assert second.returncode == 1
    assert f"run_dir {daemon.place}/run belongs to another agent" in second.stderr
    assert f"(pid {daemon.process.pid})" in second.stderr


def test_the_doctor_of_a_host_whose_agent_runs_has_nothing_against_that(daemon, controller, wait_for) -> None:
    daemon.start()
    wait_for(lambda: controller.hellos, "a hello")
    doctor = subprocess.run(
        [sys.executable, "-m", "hs_agent", "doctor", "--config", str(daemon.config)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    (line,) = (one for one in doctor.stdout.splitlines() if " state folder " in one)
    assert line.startswith("ok "), line
    assert f"used by the agent that runs (pid {daemon.process.pid})" in line


def test_stopping_leaves_jobs_alone_unless_told_otherwise(daemon, controller, job, wait_for) -> None:
    daemon.start()
    controller.want(job(1, *python(COUNT), **UNSUSPENDED))
    controller.wait_report(1, lambda r: r.phase is Phase.RUNNING, "running")
    (folder,) = daemon.folders()
    state = wait_for(lambda: (found := folder.shim_state()) and found.job and found, "the job is up")
    assert daemon.stop() == 0
    counted = lines(daemon, 1)
    wait_for(lambda: lines(daemon, 1) > counted, "it goes on without an agent")
    daemon.start("--end-jobs-on-stop")
    wait_for(lambda: len(controller.hellos) == 2, "the agent is back")
    assert daemon.stop() == 0
    assert not procs.alive(state.shim)
    assert not procs.alive(state.job)


@pytest.mark.parametrize("daemon", [{"emulated": ["V100:8"]}], indirect=True)
def test_whoever_is_being_launched_as_all_jobs_are_to_end_ends_too_or_never_begins(
    daemon, controller, job, wait_for
) -> None:
    daemon.start("--end-jobs-on-stop")
    controller.want(*(job(number, "sleep", "600") for number in range(1, 9)))
    # Of eight launches the first shims are there: they do not listen yet, and others are on their way.
    wait_for(lambda: any(folder.shim_state() for folder in daemon.folders()), "the first shim is there")
    assert daemon.stop() == 0
    left = [
        state for folder in daemon.folders() if (state := folder.shim_state()) and procs.alive(state.shim)
    ]
    assert left == []


def test_systemd_is_told_when_the_agent_is_ready_and_whether_it_has_a_controller(
    daemon, controller, place, monkeypatch
) -> None:
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(place / "notify"))
        manager.settimeout(120)
        monkeypatch.setenv("NOTIFY_SOCKET", str(place / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "400000")
        daemon.start()
        heard: list[str] = []
        while heard.count("WATCHDOG=1") < 2 or not any("; connected to " in word for word in heard):
            heard.append(manager.recv(4096).decode())
        assert any(word.startswith("READY=1\nSTATUS=") for word in heard)
        controller.stop()
        while "; no controller: " not in manager.recv(4096).decode():
            pass
        daemon.process.send_signal(signal.SIGHUP)  # asked to go like by SIGTERM: systemd starts it again
        while "STOPPING=1" not in manager.recv(4096).decode():
            pass
        assert daemon.process.wait(20) == 0


def test_no_controller_elsewhere_is_dialled_without_a_certificate_and_no_gpu_is_a_clear_error(daemon) -> None:
    def run() -> subprocess.CompletedProcess[str]:
        env = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
        return subprocess.run(
            [sys.executable, "-m", "hs_agent", "--config", str(daemon.config)],
            capture_output=True,
            text=True,
            timeout=120,
            env=env,
            check=False,
        )

    good = daemon.config.read_text()
    daemon.config.write_text(good.replace(f"unix:{daemon.place}/c.sock", "10.0.0.1:7443"))
    refused = run()
    assert refused.returncode == 5
    assert "has no certificate" in refused.stderr
    lines = [line for line in good.splitlines() if not line.startswith(("devices", "emulated"))]
    daemon.config.write_text("\n".join(lines))
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this host has an NVIDIA driver")
    none = run()
    assert none.returncode == 3
    assert 'set devices = "emulated"' in none.stderr
    assert "Traceback" not in none.stderr + refused.stderr

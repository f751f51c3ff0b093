"""What `hs-agent doctor` finds out by trying."""

import asyncio
import errno
import json
import os
import re
import socket
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from hs_agent import cgroup, doctor, host_clock, memory
from hs_agent.checkup import told
from hs_agent.config import DeviceKind, load
from hs_agent.devices import GpuProcess, open_devices
from hs_agent.doctor import examine
from hs_proto.v1 import agent_pb2, agent_pb2_grpc


def lines(said: str) -> dict[str, str]:
    return {line[6:21].strip(): line[:5].strip() + " " + line[22:] for line in said.splitlines()}


def test_it_measures_how_long_suspending_takes_and_leaves_no_group_behind(settings, capsys) -> None:
    config = settings()
    examine(config)
    said = lines(capsys.readouterr().out)["suspending"]
    if "no freezer" in said:
        pytest.skip("no control group with a freezer can be made here")
    assert re.search(r"^(ok|warn) a process is frozen in [\d.]+ ms and goes on in [\d.]+ ms", said), said
    assert not cgroup.names(cgroup.probe(config.cgroup, config.state_dir))


def test_it_names_who_computes_on_a_gpu_and_comes_of_no_job(
    settings, shims, place: Path, monkeypatch
) -> None:
    (place / "state/jobs").mkdir(parents=True)
    shims.place = place / "state/jobs"
    of_job = shims.start("/bin/sleep", "600").job()
    config = settings()
    devices: Any = open_devices(config)
    gpu = devices.gpus()[0].id
    with subprocess.Popen(
        ("sleep", "600"), env={"HS_AGENT_SOCKET": f"{config.run_dir}/1-1.sock"}
    ) as stranger:
        on = [GpuProcess(gpu=gpu, pid=pid, memory_bytes=1) for pid in (of_job.pid, stranger.pid)]
        monkeypatch.setattr(devices, "processes", lambda: on)
        found = [each.text for each in doctor._look_at(devices, config) if each.what == "GPU use"]
        stranger.kill()
    assert [text.startswith(f"{gpu}: process {stranger.pid} (sleep") for text in found] == [True]


def test_it_finds_the_configuration_of_an_agent_that_was_given_it_by_its_name_alone(
    place: Path, monkeypatch
) -> None:
    (place / "agent.toml").write_text(
        f'controller = "unix:{place}/c.sock"\nstate_dir = "{place}/state"\nrun_dir = "{place}/run"\nallow_root = true\n'
        'devices = "emulated"\nemulated = ["V100:4"]\ncgroup = "none"\n'
    )
    monkeypatch.chdir(place)
    config = load(Path("agent.toml"))
    assert asyncio.run(told(config)).startswith("ok    python")


def test_it_says_that_no_more_control_groups_can_be_made(settings, monkeypatch) -> None:
    config = settings()
    if not cgroup.probe(config.cgroup, config.state_dir).can_freeze:
        pytest.skip("no control group with a freezer can be made here")

    def no_more(group: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device", str(group))

    monkeypatch.setattr(cgroup, "_made", no_more)
    found = doctor._suspending(config)
    assert (found.verdict, found.text) == (
        doctor.FAIL,
        "no process can be frozen here: No space left on device",
    )


def test_it_says_whether_the_ports_are_free_that_other_servers_need(settings, capsys) -> None:
    examine(settings())
    assert lines(capsys.readouterr().out)["ports"].startswith(
        "warn peer_listen is not set: no checkpoint can leave"
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = {"dev": True, "peer_listen": f"127.0.0.1:{port}", "rendezvous_ports": f"{port}-{port}"}
        assert examine(settings(**said)), "it fails"
        assert lines(capsys.readouterr().out)["ports"] == (
            f"fail peer_listen 127.0.0.1:{port} is taken, or no address of this host; 0 of 1 of rendezvous_ports are free"
        )
    examine(settings(**said))
    assert lines(capsys.readouterr().out)["ports"].startswith(f"ok peer_listen 127.0.0.1:{port}; 1 of 1 of ")


def test_a_name_that_has_an_address_of_ipv6_only_is_tried_at_that(settings, monkeypatch) -> None:
    try:
        taken = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here")
    look = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *how, **more: look("::1" if host == "gpu6" else host, *how, **more),
    )
    config = replace(settings(), peer_listen=f"gpu6:{taken.getsockname()[1]}")
    with taken:
        assert doctor._ports(config).verdict == doctor.FAIL
    assert doctor._ports(config).verdict == doctor.OK


def test_beside_an_agent_it_leaves_the_groups_that_jobs_will_need(settings, capsys) -> None:
    config = settings()
    config.state_dir.mkdir(parents=True)
    groups = cgroup.probe(config.cgroup, config.state_dir, config.cgroup_root)
    folders = [folder for folder in (groups.v2, *groups.v1.values()) if folder is not None]
    if not folders:
        pytest.skip("no control groups can be made here")
    lock = memory.lock(config.state_dir)
    try:
        examine(config)
        assert all(folder.exists() for folder in folders), capsys.readouterr().out
    finally:
        os.close(lock)
    examine(config)
    assert not any(folder.exists() for folder in folders), "no agent is there to use them"


# --- CRIU ----------------------------------------------------------------------------------------------------------------


def criu(place: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> doctor.Finding:
    program = place / "criu"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin")
    return doctor._criu(None)


def test_no_criu_is_no_failure_and_it_is_said_what_that_means(monkeypatch) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda *_, **__: None)
    found = doctor._criu(None)
    assert (found.verdict, found.what) == ("ok", "CRIU")
    assert found.text.startswith(
        "not installed, and not used: jobs without the hook are frozen where they are"
    )


def test_a_criu_that_works_is_named_with_its_version(place, monkeypatch) -> None:
    found = criu(place, monkeypatch, '[ "$1" = --version ] && echo "Version: 3.19"; exit 0')
    assert found.verdict == "ok"
    assert found.text.startswith(
        f"{place}/criu, version: 3.19: `criu check` is content, but nothing here uses it"
    )


def test_a_criu_that_does_not_work_says_why(place, monkeypatch) -> None:
    found = criu(
        place,
        monkeypatch,
        '[ "$1" = check ] && echo "Error: no ns_last_pid" >&2 && exit 1; echo "Version: 3.19"',
    )
    assert found.verdict == "warn"
    assert "`criu check` is not content: Error: no ns_last_pid; nothing here uses it" in found.text


def test_a_criu_that_hangs_is_not_waited_for(place, monkeypatch) -> None:
    monkeypatch.setattr(doctor, "ASK_S", 0.2)
    found = criu(place, monkeypatch, "exec sleep 600")
    assert (found.verdict, "did not come to an end within 0.2 s" in found.text) == ("warn", True)


@pytest.mark.parametrize(("budget_gib", "said"), [(8, True), (16, False), (0, False)])
def test_it_says_that_a_job_which_fills_a_gpu_cannot_be_parked(
    settings, *, budget_gib: int, said: bool
) -> None:
    """Without any budget another line says so."""
    config = settings(emulated=[{"model": "V100", "count": 2, "memory": "16GiB"}])
    devices = open_devices(config)
    real = replace(config, devices=DeviceKind.NVML, host_memory_budget_bytes=budget_gib << 30)
    found = [each for each in doctor._look_at(devices, real) if "cannot be parked" in each.text]
    assert bool(found) == said
    assert all(each.text.startswith("GPUs of 16 GiB") and each.verdict == "warn" for each in found)


# --- the clock -----------------------------------------------------------------------------------------------------------


class Clock(agent_pb2_grpc.AgentLinkServicer):
    """A controller's, which is so far ahead of this host's."""

    def __init__(self, ahead_s: float) -> None:
        self.ahead_s = ahead_s
        self.refuses = ()

    def Clock(self, request, context):  # noqa: N802
        del request
        if self.refuses:
            context.abort(*self.refuses)
        return agent_pb2.ClockReply(wall_s=time.time() + self.ahead_s)


@pytest.fixture
def controllers_clock(place):
    """One that answers where the settings have the controller."""
    from concurrent.futures import ThreadPoolExecutor

    clock = Clock(0.0)
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        agent_pb2_grpc.add_AgentLinkServicer_to_server(clock, server)
        server.add_insecure_port(f"unix:{place}/c.sock")
        server.start()
        yield clock
        server.stop(None).wait()


@pytest.fixture
def kept_right(monkeypatch) -> None:
    monkeypatch.setattr(host_clock, "is_kept", lambda: True)


@pytest.mark.usefixtures("kept_right")
@pytest.mark.parametrize(
    ("ahead_s", "verdict", "says"),
    [
        (
            0.0,
            "ok",
            r"^kept right \(NTP\); 0\.\d{3} s (behind|ahead of) the controller's \(within 0\.\d+ s\)$",
        ),
        (
            -30.0,
            "warn",
            r"; (29\.9|30\.0)\d\d s ahead of the controller's .*: set one of them, times in logs",
        ),
        (30.0, "warn", r"; (29\.9|30\.0)\d\d s behind the controller's .*: set one of them"),
        (
            3600.0,
            "fail",
            r" s behind the controller's .*: set it, certificates that this host is given begin in",
        ),
        (-3600.0, "warn", r" s ahead of the controller's .*: set one of them"),
    ],
)
def test_the_clock_is_compared_with_the_controllers(
    settings, controllers_clock, ahead_s, verdict, says
) -> None:
    controllers_clock.ahead_s = ahead_s
    found = doctor._clock(settings())
    assert found.verdict == verdict
    assert re.search(says, found.text), found.text


@pytest.mark.parametrize(
    ("code", "verdict"),
    [("UNAUTHENTICATED", "fail"), ("PERMISSION_DENIED", "fail"), ("UNAVAILABLE", "warn"), ("OK", "ok")],
)
def test_a_host_that_the_controller_refuses_is_told_so(settings, controllers_clock, code, verdict) -> None:
    if code != "OK":
        controllers_clock.refuses = getattr(grpc.StatusCode, code), "h1 was removed from the cluster"
    found = doctor._controller(settings())
    assert found.verdict == verdict
    assert ("refuses this host: h1 was removed" in found.text) == (verdict == "fail")


def test_who_answers_and_is_not_the_controller_is_told_from_it(settings, place) -> None:
    """Of another port of its, or of another cluster, the agent would say for ever that there is no controller."""
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(f"{place}/c.sock")
        other.listen()
        found = doctor._controller(settings())
    assert found.verdict == "warn"
    assert "does not answer as this cluster's controller: is it that one's `listen`? (" in found.text


@pytest.mark.parametrize("of_tls", ["certificate is not yet valid", "certificate has expired"])
def test_a_controller_whose_certificate_is_not_good_by_this_hosts_clock_is_not_taken_for_another(
    settings, place, monkeypatch: pytest.MonkeyPatch, of_tls: str
) -> None:
    why = f"SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: {of_tls}: OK"
    monkeypatch.setattr(host_clock, "why_not_told", lambda _: host_clock.NotTold(why, refused=False))
    with socket.socket(socket.AF_UNIX) as there:
        there.bind(f"{place}/c.sock")
        there.listen()
        found = doctor._controller(settings())
    assert found.verdict == "fail"
    assert (
        "a certificate that is not good by this host's clock: set that right, here or there (" in found.text
    )
    assert of_tls in found.text


def test_a_clock_that_nobody_keeps_right_is_a_warning_also_without_a_controller(
    settings, monkeypatch
) -> None:
    config = settings()
    for kept, verdict, says in (
        (True, "ok", "kept right (NTP); it could not be compared with the controller's: "),
        (False, "warn", "nobody keeps it right: turn on chrony or systemd-timesyncd (timedatectl set-ntp true); it could"),
        (None, "ok", "whether somebody keeps it right cannot be told here; it could not be compared"),
    ):  # fmt: skip
        monkeypatch.setattr(host_clock, "is_kept", lambda kept=kept: kept)
        found = doctor._clock(config)
        assert (found.verdict, found.text.startswith(says)) == (verdict, True), found.text


@pytest.mark.parametrize(("status", "kept"), [(0x2001, True), (0x2041, False)])
def test_the_kernel_knows_whether_its_clock_is_kept_right(monkeypatch, status, kept) -> None:
    class Kernel:
        def adjtimex(self, about) -> int:
            assert about._obj.modes == 0, "it is read only"
            about._obj.status = status
            return 5 if status & host_clock.STA_UNSYNC else 0

    monkeypatch.setattr(host_clock.ctypes, "CDLL", lambda *_, **__: Kernel())
    assert host_clock.is_kept() is kept


@pytest.mark.parametrize(("said", "kept"), [("yes", True), ("no", False), ("", None)])
def test_where_the_kernel_is_not_to_be_asked_systemd_is(place, monkeypatch, said, kept) -> None:
    program = place / "timedatectl"
    program.write_text(f"#!/bin/sh\necho {said}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin")

    class Refusing:
        def adjtimex(self, _about) -> int:
            return -1

    monkeypatch.setattr(host_clock.ctypes, "CDLL", lambda *_, **__: Refusing())
    assert host_clock.is_kept() is kept


def test_this_hosts_kernel_answers_or_refuses_and_either_is_taken() -> None:
    assert host_clock.is_kept() in {True, False, None}


def test_it_says_how_long_jobs_have_that_are_ended_when_the_host_is_cut_off(settings) -> None:
    config = settings(kill_grace_s=30.0)
    assert doctor._fencing(config).verdict == doctor.OK
    for lease_s, verdict, has in ((60.0, doctor.OK, "30 s"), (20.0, doctor.WARN, "18 s")):
        saved = {"machine": {"fence_after_s": 60.0, "lease_s": lease_s}}
        config.state_dir.mkdir(exist_ok=True)
        (config.state_dir / "host.json").write_text(json.dumps(saved))
        found = doctor._fencing(config)
        assert (found.verdict, f"ended after 60 s, and have {has} for it" in found.text) == (verdict, True), (
            found
        )
    assert "not the 30 s of kill_grace_s" in found.text

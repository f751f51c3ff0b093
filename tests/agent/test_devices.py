"""Devices: emulated ones, and the real pynvml against a library built here."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hs_agent.config import DEFAULT_FILE, EmulatedGpus
from hs_agent.devices.emulated import EmulatedDevices
from hs_agent.devices.names import short_model
from hs_agent.devices.nvml import HARDWARE_XIDS
from hs_core.reports import Phase
from tests.agent.conftest import Daemon, wait_for

JOBS_OWN_XIDS = {13, 31, 43, 45, 68, 109}  # a program's own fault (NVIDIA's list of XID errors)

GIB = 1 << 30


@pytest.mark.parametrize(
    ("product", "short"),
    [
        ("Tesla V100-SXM2-16GB", "V100"),
        ("Tesla P100-PCIE-16GB", "P100"),
        ("Tesla K80", "K80"),
        ("Tesla T4", "T4"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA A100 80GB PCIe", "A100"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 NVL", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA GeForce RTX 3080 Ti", "RTX3080Ti"),
        ("GeForce GTX 1080 Ti", "GTX1080Ti"),
        ("NVIDIA RTX A6000", "A6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX6000Ada"),
        ("Quadro RTX 8000", "RTX8000"),
        ("NVIDIA TITAN Xp", "TITANXp"),
        ("", "GPU"),
    ],
)
def test_product_names_become_the_names_users_write(product, short) -> None:
    assert short_model(product) == short


def test_emulated_devices_keep_their_identities_and_account_memory() -> None:
    declared = (
        EmulatedGpus(model="V100", count=2, memory_bytes=16 * GIB),
        EmulatedGpus(model="K80", count=1, memory_bytes=GIB),
    )
    devices, again = EmulatedDevices("a", declared), EmulatedDevices("a", declared)
    assert devices.gpus() == again.gpus()
    ids = {gpu.id for gpu in devices.gpus()} | {gpu.id for gpu in EmulatedDevices("b", declared).gpus()}
    assert len(ids) == 6
    assert [(gpu.index, gpu.model) for gpu in devices.gpus()] == [(0, "V100"), (1, "V100"), (2, "K80")]
    first, _, third = (gpu.id for gpu in devices.gpus())
    devices.account({first: 3 * GIB, third: 9 * GIB}, {first})
    readings = {reading.gpu: reading for reading in devices.readings()}
    assert (readings[first].memory_used_bytes, readings[first].utilization_percent) == (3 * GIB, 100)
    assert readings[third].memory_used_bytes == GIB


def test_no_xid_is_both_a_jobs_fault_and_the_hardwares() -> None:
    assert not JOBS_OWN_XIDS & HARDWARE_XIDS.keys()
    assert {48, 63, 64, 74, 79, 94, 95} <= HARDWARE_XIDS.keys()


ASK = """
import json, sys
from hs_agent.devices.nvml import NvmlDevices
from hs_core.errors import RefusedError

devices = None
for line in sys.stdin:
    try:
        match line.split():
            case ["open", *how]:
                devices = NvmlDevices(one_name=how == ["one-name"])
                said = [devices.description, list(devices.warnings)]
            case ["gpus"]:
                said = [[g.id, g.index, g.model, g.memory_bytes, g.healthy, g.why_unhealthy] for g in devices.gpus()]
            case ["readings"]:
                said = [[r.utilization_percent, r.memory_used_bytes, r.ecc_errors] for r in devices.readings()]
            case ["processes"]:
                said = [[p.gpu[-1], p.pid, p.memory_bytes] for p in devices.processes()]
            case ["events"]:
                said = [[e.gpu[-1], e.xid, e.hardware] for e in devices.events(5.0)]
    except RefusedError as error:
        said = {"refused": str(error), "kind": error.kind}
    print(json.dumps(said), flush=True)
"""


class Nvml:
    """The real pynvml over the fake library, in a process of its own."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.state = folder / "nvml.txt"
        self.fifo = folder / "nvml.txt.events"
        os.mkfifo(self.fifo)
        self.write()
        env = os.environ | {"LD_LIBRARY_PATH": str(library.parent), "FAKE_NVML": str(self.state)}
        self.env = env
        self.process = subprocess.Popen(
            [sys.executable, "-c", ASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )

    def write(self, *more: str, lost: int = -1, mig: int = -1, count: int = 4) -> None:
        gpus = [
            f"gpu {i} Tesla V100-SXM2-16GB|{16 * GIB}|{i * GIB}|{10 * i}|{i}|{int(i == mig)}|{int(i == lost)}"
            for i in range(count)
        ]
        fresh = self.state.with_suffix(".new")
        fresh.write_text("\n".join([*gpus, *more]) + "\n")
        fresh.rename(self.state)

    def __call__(self, question: str):
        self.process.stdin.write(question + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def xid(self, gpu: int, xid: int) -> None:
        with self.fifo.open("w") as fifo:
            fifo.write(f"{gpu} {xid}\n")

    def close(self) -> None:
        self.process.stdin.close()
        assert self.process.wait(20) == 0
        self.process.stdout.close()


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to build the fake libnvidia-ml.so.1 with")
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("fake_nvml.c")
    subprocess.run(
        ["gcc", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(path), str(source)], check=True
    )
    return path


@pytest.fixture
def nvml(library, tmp_path):
    made = Nvml(library, tmp_path)
    yield made
    made.close()


def test_four_devices_are_read_through_pynvml(nvml) -> None:
    nvml.write("process 2 4242 1073741824", "process 2 4243 5")
    assert nvml("open") == ["4 V100, driver 570.00", []]
    gpus = nvml("gpus")
    assert [gpu[1:] for gpu in gpus] == [[i, "V100", 16 * GIB, True, ""] for i in range(4)]
    assert len({gpu[0] for gpu in gpus}) == 4
    assert nvml("readings") == [[10 * i, i * GIB, i] for i in range(4)]
    assert nvml("processes") == [["2", 4242, GIB], ["2", 4243, 5]]


def test_gpus_of_another_model_than_most_are_left_out_unless_all_are_given_one_name(nvml) -> None:
    """A controller would refuse a server of two pools; the odd one is for a screen, as a rule."""
    nvml.write(f"gpu 4 Tesla T4|{16 * GIB}|0|0|0|0|0", f"gpu 5 Tesla V100-SXM2-16GB|{16 * GIB}|0|0|0|0|0")
    said, [warning] = nvml("open")
    assert said == "5 V100, driver 570.00"
    assert warning.startswith("a server has GPUs of one model, here V100, and GPU 4 (T4) is left out")
    assert [gpu[1] for gpu in nvml("gpus")] == [0, 1, 2, 3, 5]
    assert nvml("open one-name") == ["6 T4, V100, driver 570.00", []]


def test_a_lost_gpu_is_unhealthy_and_the_others_work_on(nvml) -> None:
    nvml("open")
    nvml.write(lost=1)
    assert [gpu[4:] for gpu in nvml("gpus")] == [
        [True, ""],
        [False, "the GPU is lost"],
        [True, ""],
        [True, ""],
    ]
    assert nvml("readings")[1] == [0, 0, 0]
    assert nvml("processes") == []


def test_hardware_xids_drain_their_gpu_and_a_jobs_own_never_do(nvml) -> None:
    nvml("open")
    for xid in sorted(JOBS_OWN_XIDS):
        nvml.xid(0, xid)
        assert nvml("events") == [["0", xid, False]]
    assert all(gpu[4] for gpu in nvml("gpus"))
    nvml.xid(3, 79)
    assert nvml("events") == [["3", 79, True]]
    assert [gpu[4:] for gpu in nvml("gpus")][3] == [False, "XID 79: GPU has fallen off the bus"]
    assert all(gpu[4] for gpu in nvml("gpus")[:3])


def test_a_gpu_in_mig_mode_is_left_out_and_said(nvml) -> None:
    nvml.write(mig=2)
    description, warnings = nvml("open")
    assert description.startswith("3 V100")
    assert "GPU 2 is in MIG mode" in warnings[0]
    assert [gpu[1] for gpu in nvml("gpus")] == [0, 1, 3]


def test_no_gpu_and_no_driver_are_refused_with_what_to_do(nvml) -> None:
    nvml.write(count=0)
    said = nvml("open")
    assert said["kind"] == "impossible"
    assert "NVML finds no usable GPU on this host. See what `nvidia-smi` lists." in said["refused"]
    nvml.write("error 9")
    assert "modprobe nvidia" in nvml("open")["refused"]


def test_detect_shows_the_devices_before_there_is_a_configuration(nvml) -> None:
    if DEFAULT_FILE.exists():
        pytest.skip(f"this host has a {DEFAULT_FILE}")
    detected = subprocess.run(
        [sys.executable, "-m", "hs_agent", "detect"],
        capture_output=True, text=True, env=nvml.env, check=False, timeout=120,
    )  # fmt: skip
    assert detected.returncode == 0, detected.stderr
    assert "V100, driver 570.00" in detected.stdout


def test_detect_and_doctor_show_the_devices(nvml, place) -> None:
    config = place / "agent.toml"
    config.write_text(
        f'controller = "unix:{place}/c.sock"\nstate_dir = "{place}/state"\nrun_dir = "{place}/run"\n'
    )
    nvml.write(lost=3)

    def run(verb: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "hs_agent", verb, "--config", str(config)]
        return subprocess.run(command, capture_output=True, text=True, env=nvml.env, check=False, timeout=120)

    detected = run("detect")
    assert detected.returncode == 0, detected.stderr
    assert "3 V100, driver 570.00" in detected.stdout
    assert "GPU 3 cannot be read and is left out" in detected.stdout
    doctor = run("doctor")
    verdicts = {line.split()[1]: line.split()[0] for line in doctor.stdout.splitlines()}
    assert verdicts["python"] == "ok", doctor.stdout
    assert verdicts["controller"] == "warn"
    assert "fail" not in verdicts.values(), doctor.stdout
    with config.open("a") as more:
        more.write(f'mps_pipe_dir = "{place}/mps"\n')
    without = run("doctor")
    assert without.returncode != 0
    assert f"fail  MPS             mps_pipe_dir {place}/mps holds no pipe" in without.stdout
    (place / "mps").mkdir()
    (place / "mps/control").touch()
    assert "ok    MPS" in run("doctor").stdout


def test_detect_and_doctor_go_by_what_the_configuration_says_of_gpus(place) -> None:
    """Emulated ones, as an agent would have them; where it would not start they say so."""
    config = place / "agent.toml"
    usual = f'controller = "unix:{place}/c.sock"\nstate_dir = "{place}/state"\nrun_dir = "{place}/run"\n'
    usual += 'devices = "emulated"\nemulated = ["V100:2"]\n'

    def run(verb: str, gpus: str) -> subprocess.CompletedProcess[str]:
        config.write_text(f'{usual}[[slowdown]]\njob_class = "*bert*"\ngpus = {gpus}\n')
        command = [sys.executable, "-m", "hs_agent", verb, "--config", str(config)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    right = run("detect", "[1.0, 1.3]")
    assert (right.returncode, "slowdown 1.3 (*bert*)" in right.stdout) == (0, True), right.stdout
    wrong = run("detect", "[1.0, 1.3, 2.0]")
    assert (wrong.returncode, "GPU 1" in wrong.stdout) == (2, True), wrong.stdout
    assert "job_class '*bert*': gpus = [1.0, 1.3, 2.0]: expected 2 numbers" in wrong.stderr
    assert "fail  slowdown        [[slowdown]] of job_class '*bert*'" in run("doctor", "[1.0]").stdout


def test_somebody_elses_process_takes_its_gpu_out_of_use_and_a_jobs_own_does_not(
    nvml, controller, place, job, monkeypatch
) -> None:
    for name in ("LD_LIBRARY_PATH", "FAKE_NVML"):
        monkeypatch.setenv(name, nvml.env[name])
    daemon = Daemon(place, devices="nvml", emulated=[])
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        daemon.start()
        wait_for(lambda: controller.hellos, "a hello")
        controller.want(job(1, "sleep", "600"))
        controller.wait_report(1, lambda report: report.phase is Phase.RUNNING, "it runs")
        (state,) = (folder.shim_state() for folder in daemon.folders())
        nvml.write(f"process 0 {state.job.pid} {GIB}", f"process 3 {stranger.pid} {GIB}")
        wait_for(lambda: [gpu.healthy for gpu in controller.gpus] == [True, True, True, False], "it is seen")
        assert f"process {stranger.pid} (sleep of " in controller.gpus[3].why_unhealthy
        stranger.kill()
        stranger.wait()
        wait_for(lambda: all(gpu.healthy for gpu in controller.gpus), "the GPU is in use again")
    finally:
        stranger.kill()
        stranger.wait()
        daemon.close()

"""Configuration: what is wrong is named with file, key, value and what was expected."""

import contextlib
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hs_agent import config, table
from hs_agent.devices.emulated import EmulatedDevices
from hs_core.errors import RefusedError
from hs_core.shares import pool_rank

GOOD = {"controller": "unix:/run/c.sock", "devices": "emulated", "emulated": ["V100:4"]}


def refused(**changes) -> str:
    with pytest.raises(RefusedError) as caught:
        config.parse(GOOD | changes, "agent.toml")
    return str(caught.value)


def test_one_line_is_enough() -> None:
    made = config.parse({"controller": "unix:/run/heteroshare/controller.sock"})
    assert made.devices is config.DeviceKind.NVML
    assert (made.min_uid, made.allow_root, made.log_limit_bytes) == (1000, False, 64 << 20)
    assert made.pace_s("any", "V100") == 0.0


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"controler": "x"}, "agent.toml: unknown key 'controler'; did you mean 'controller'?"),
        (
            {"controller": "10.1.2.3"},
            'controller = \'10.1.2.3\': expected "unix:/path/to/socket" or "host:port"',
        ),
        ({"controller": "gpu..head:7443"}, "controller = 'gpu..head:7443': expected"),
        ({"controller": f"{'a' * 64}:7443"}, 'expected "unix:/path/to/socket" or "host:port"'),
        ({"controller": "[gpu..head]:7443"}, "controller = '[gpu..head]:7443': expected"),
        ({"controller": "10.1.2.3:7443", "dev": True}, "only loopback with dev = true"),
        ({"controller": "127.0.0.1:99999"}, "expected"),
        ({"controller": "127.0.0.1:7443", "dev": True}, "token_file is not set"),
        ({"peer_listen": "7444"}, "peer_listen = '7444': expected \"address:port\""),
        ({"peer_listen": "v1..cluster:7444"}, "peer_listen = 'v1..cluster:7444': expected"),
        ({"peer_listen": "0.0.0.0:7444", "dev": True}, "only loopback with dev = true"),
        ({"peer_address": "a:7444"}, "peer_listen to be set as well"),
        ({"peer_address": "a:0", "peer_listen": "0.0.0.0:7444"}, "peer_address = 'a:0'"),
        *(
            ({"peer_address": f"{name}:7444", "peer_listen": "0.0.0.0:7444"}, f"peer_address = '{name[:64]}")
            for name in ("gpu..rack", "x" * 64, ".".join(["x" * 63] * 4))
        ),
        ({"rendezvous_ports": "80-90"}, "rendezvous_ports = '80-90': expected"),
        ({"rendezvous_ports": "9000"}, "rendezvous_ports = '9000': expected"),
        ({"controller": "unix:relative"}, "the path must be absolute"),
        ({"controller": "unix:/" + "x" * 120}, "a socket path of at most 107 bytes"),
        ({"run_dir": "/" + "x" * 100}, "run_dir"),
        ({"mps_pipe_dir": "mps"}, "mps_pipe_dir = 'mps': expected the absolute path of a folder"),
        (
            {"launcher": "in-image"},
            "launcher = 'in-image': expected the absolute path of a program, or a list",
        ),
        ({"launcher": []}, "launcher = []: expected the absolute path of a program"),
        (
            {"launcher": ["/bin/env", 3]},
            "launcher = ['/bin/env', 3]: expected the absolute path of a program",
        ),
        ({"state_dir": "state"}, "state_dir = 'state': expected an absolute path"),
        ({"name": "a b"}, "name = 'a b': expected a host name"),
        ({"name": "a" * 5000}, f"name = '{'a' * 76}…: expected a host name"),
        ({"token_file": "token"}, "token_file = 'token': expected the absolute path of a file"),
        ({"log_limit": 10**23}, f"expected a size of at most {1 << 50} bytes"),
        ({"host_memory_reserve": "900T"}, f"expected a size of at most {config.memory_bytes() - 1} bytes"),
        ({"devices": "cuda"}, 'devices = \'cuda\': expected "nvml" or "emulated"'),
        ({"emulated": []}, 'devices = "emulated" needs [[emulated]] tables'),
        ({"devices": "nvml"}, '[[emulated]] is given but devices = "nvml"'),
        (
            {"emulated": [{"model": "V100", "count": 0}]},
            "emulated[0].count = 0: expected a whole number from 1 to 64",
        ),
        ({"emulated": ["V100:x"]}, "emulated[0].count = 'x': expected a whole number"),
        ({"emulated": [{"model": "V 100"}]}, "emulated[0].model = 'V 100'"),
        (
            {"emulated": [{"model": "V100", "memry": "16G"}]},
            "unknown key 'emulated[0].memry'; did you mean 'memory'?",
        ),
        ({"emulated": ["V100:40", "V100:40"]}, "at most 64 devices"),
        ({"emulated": ["V100:4", "K80:4"]}, "emulated: V100, K80; expected devices of one model"),
        ({"gpu_model": "V100-32G"}, 'gpu_model = "V100-32G" is given but devices = "emulated"'),
        ({"gpu_model": "V100 32G"}, "gpu_model = 'V100 32G': expected what the GPUs of this host are called"),
        (
            {"log_limit": "many"},
            "log_limit = 'many': expected a size of at least 65536 bytes such as \"64M\"",
        ),
        ({"log_limit": "1K"}, "log_limit = '1K': expected a size of at least 65536 bytes"),
        ({"min_uid": 0}, "min_uid = 0: expected a whole number from 1"),
        ({"min_uid": True}, "min_uid = True: expected a whole number"),
        ({"allow_root": 1}, "allow_root = 1: expected true or false"),
        ({"kill_grace_s": -1}, "kill_grace_s = -1: expected a number from 0 to 3600"),
        ({"kill_grace_s": float("nan")}, "kill_grace_s = nan: expected a number"),
        ({"pace": [{"job_class": "*"}]}, "pace[0].base_s is not set"),
        (
            {"slowdown": [1.0]},
            'slowdown[0] = 1.0: expected a table such as {job_class = "*", gpus = [1.0, 1.3]}',
        ),
        (
            {"slowdown": [{"job_class": "*"}]},
            "slowdown[0].gpus = None: expected a list of numbers from 0.01 to 100",
        ),
        (
            {"slowdown": [{"gpus": [1, 0]}]},
            "slowdown[0].gpus[1] = 0: expected a list of numbers from 0.01 to 100",
        ),
        ({"slowdown": [{"gpus": [1, -2.0]}]}, "slowdown[0].gpus[1] = -2.0: expected"),
        ({"slowdown": [{"gpus": [float("nan")]}]}, "slowdown[0].gpus[0] = nan: expected"),
        ({"slowdown": [{"gpu": [1]}]}, "slowdown[0].gpus = None"),
        (
            {"pace": [{"base_s": 0.1, "speedup": {"K80": 0}}]},
            "pace[0].speedup.K80 = 0: expected a table of numbers from 1e-6 to 1e6",
        ),
        ({"pace": ["x"]}, "pace[0] = 'x': expected a table"),
        ({"log_limit": "9" * 400 + "G"}, "…: expected a size of at most 1125899906842624 bytes"),
        ({"log_limit": "9e99G"}, "or a number of bytes, at most 1125899906842624"),
        ({"kill_grace_s": 10**400}, "…: expected a number from 0 to 3600"),
        ({"pace": [{"base_s": 10**400}]}, "…: expected a number from 0 to 3600"),
        (
            {"pace": [{"base_s": 0.1, "speedup": {"K80": 10**400}}]},
            "…: expected a table of numbers from 1e-6 to 1e6",
        ),
        ({"slowdown": [{"gpus": [10**400]}]}, "…: expected a list of numbers from 0.01 to 100"),
        ({"rendezvous_ports": "29400-99999999999"}, "from 1024 to 65535"),
        ({"cgroup": "v3"}, 'cgroup = \'v3\': expected "auto" or "none"'),
        ({"cgroup_root": "/a/../b"}, "cgroup_root"),
    ],
)
def test_what_is_wrong_is_named(changes, says) -> None:
    assert says in refused(**changes)


def test_a_number_of_more_digits_than_python_reads_is_refused(tmp_path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(f"min_uid = {'9' * 5000}\n")
    with pytest.raises(RefusedError, match=r"agent.toml: is not TOML: .*4300 digits"):
        config.load(file)


def test_a_mistyped_key_is_named_where_the_one_that_was_meant_is_missed() -> None:
    with pytest.raises(RefusedError, match=r"controller is not set.*unknown key 'controler': did you mean"):
        config.parse({"controler": "gpu-head:7443"})
    with pytest.raises(RefusedError, match=r"controller is not set.*unknown key 'CONTROLLER': did you mean"):
        config.parse({"CONTROLLER": "gpu-head:7443"})
    with pytest.raises(RefusedError, match=r"controller is not set: [^;]*$"):
        config.parse({"name": "v1"})


@pytest.mark.parametrize(("inside", "line"), [({}, r"\[agent\]"), ([], r"\[\[agent\]\]")])
def test_a_key_below_a_section_is_said_to_belong_above_it(inside, line) -> None:
    below = {"controller": "gpu-head:7443"}
    said = {"agent": below if isinstance(inside, dict) else [below]}
    with pytest.raises(RefusedError, match=rf"controller is not set.*it stands below {line}: expected above"):
        config.parse(said)
    with pytest.raises(RefusedError, match=r"unknown key 'agent'; there .*expected 'name' above every"):
        config.parse(GOOD | {"agent": {"name": "v1"}})


def test_paces_go_by_class_and_model_and_the_catch_all_comes_last() -> None:
    made = config.parse(
        GOOD
        | {
            "pace": [
                {"base_s": 1.0},
                {"job_class": "*digits*", "base_s": 0.05, "speedup": {"V100": 1.0, "P100": 0.5}},
            ]
        }
    )
    assert made.pace_s("ada/digits.py/1", "V100") == 0.05
    assert made.pace_s("ada/digits.py/1", "P100") == 0.1
    assert made.pace_s("ada/digits.py/1", "H100") == 0.05
    assert made.pace_s("other", "V100") == 1.0


@pytest.mark.parametrize(
    ("text", "size"),
    [("16G", 16 << 30), ("64MiB", 64 << 20), ("1.5K", 1536), (7, 7), ("0", 0), ("8GB", 8 << 30)],
)
def test_sizes(text, size) -> None:
    assert table.parse_size(text) == size


@given(
    st.dictionaries(
        st.text(max_size=20),
        st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=9), st.lists),
    )
)
def test_no_table_breaks_the_parser(data) -> None:
    with contextlib.suppress(RefusedError):
        config.parse(data)


def test_a_file_that_is_not_there_or_not_toml_is_one_line_and_exit_status_2(place) -> None:
    bad = place / "agent.toml"

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "hs_agent", "--config", str(bad)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    missing = run()
    assert (missing.returncode, missing.stderr) == (
        2,
        f"hs-agent: {bad}: cannot be read: No such file or directory\n",
    )
    bad.write_text("controller = \n")
    torn = run()
    assert torn.returncode == 2
    assert torn.stderr.startswith(f"hs-agent: {bad}: is not TOML: ")
    bad.write_text("emulated = " + "[" * 20_000)
    deep = run()
    assert deep.returncode == 2
    assert deep.stderr == f"hs-agent: {bad}: is not TOML: lists or tables in one another without end\n"


def test_a_gpu_is_as_slow_as_its_first_matching_line_says() -> None:
    lines = [{"gpus": [1, 1, 1, 2]}, {"job_class": "*bert*", "gpus": [1, 1.5, 1, 1]}]
    made = config.parse(GOOD | {"slowdown": lines, "pace": [{"base_s": 0.1}]}, "agent.toml")
    gpus = made.described(EmulatedDevices("h", made.emulated).gpus())
    assert [gpu.slowdown("ann/bert") for gpu in gpus] == [1, 1.5, 1, 1]
    assert [gpu.slowdown("ann/vgg") for gpu in gpus] == [1, 1, 1, 2]
    assert made.pace_s("ann/vgg", "V100", gpus[3].slowdown("ann/vgg")) == pytest.approx(0.2)


def test_gpus_are_called_what_the_administrator_calls_them() -> None:
    gpus = EmulatedDevices("h", config.parse(GOOD, "agent.toml").emulated).gpus()
    real = {key: value for key, value in GOOD.items() if key not in {"devices", "emulated"}}
    named = config.parse(real | {"gpu_model": "V100-32G"}, "agent.toml").described(gpus)
    assert {gpu.model for gpu in named} == {"V100-32G"}
    assert config.parse(real, "agent.toml").described(gpus) == gpus


def test_a_pool_of_a_longer_name_is_of_the_generation_that_is_in_it() -> None:
    assert sorted(["T4", "V100-32G", "A100-80G", "A100-40G", "V100"], key=pool_rank) == [
        "A100-40G",
        "A100-80G",
        "T4",
        "V100",
        "V100-32G",
    ]


def test_slowdowns_of_more_or_fewer_gpus_than_there_are_are_refused() -> None:
    made = config.parse(GOOD | {"slowdown": [{"gpus": [1, 2]}]}, "agent.toml")
    with pytest.raises(RefusedError, match=r"job_class '\*': gpus = \[1.0, 2.0\]: expected 4 numbers"):
        made.described(EmulatedDevices("h", made.emulated).gpus())


@pytest.mark.parametrize(
    ("taken", "field", "why"),
    [
        ("state", "state_dir", "File exists"),
        ("state/jobs", "state_dir", "Not a directory"),
        ("state/lock/", "state_dir", "Is a directory"),
        ("run", "run_dir", "Not a directory"),
    ],
)
def test_folders_that_cannot_be_made_are_named_by_run_and_doctor(place, taken, field, why) -> None:
    path = place / taken
    path.parent.mkdir(exist_ok=True)
    path.mkdir() if taken.endswith("/") else path.touch()
    file = place / "agent.toml"
    file.write_text(
        f'controller = "unix:{place}/c.sock"\nstate_dir = "{place}/state"\nrun_dir = "{place}/run"\nallow_root = true\n'
        'devices = "emulated"\nemulated = ["V100:4"]\n'
    )
    command = [sys.executable, "-m", "hs_agent", "run", "--config", str(file)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.splitlines()[-1] == f"hs-agent: {field}: {path}: {why}"
    assert "Traceback" not in ran.stderr
    doctor = subprocess.run(
        [*command[:3], "doctor", *command[4:]], capture_output=True, text=True, check=False, timeout=120
    )
    assert "Traceback" not in doctor.stderr
    if taken != "state/jobs":
        assert doctor.returncode == 1
        assert "fail" in doctor.stdout

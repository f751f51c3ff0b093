"""What is shipped: the wheel's contents, what hsctl can do without, the development tools' list."""

import configparser
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from hs_controller.__main__ import FULL_S
from hs_daemon.extras import not_installed

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def lines_of(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]


def test_the_requirements_file_for_development_says_what_the_groups_say() -> None:
    groups = PROJECT["dependency-groups"]
    wanted = sorted(word for name in ("test", "lint", "protos") for word in groups[name])
    assert sorted(lines_of(ROOT / "tools" / "requirements-dev.txt")) == wanted


def test_every_dependency_is_pinned_in_the_constraints() -> None:
    def name(word: str) -> str:
        found = re.match(r"[A-Za-z0-9_.-]+", word)
        assert found
        return found[0].lower().replace("_", "-")

    pinned = {name(line) for line in lines_of(ROOT / "constraints.txt") if "==" in line}
    extras = PROJECT["project"]["optional-dependencies"]
    named = PROJECT["project"]["dependencies"] + [word for words in extras.values() for word in words]
    named += [word for words in PROJECT["dependency-groups"].values() for word in words]
    assert {name(word) for word in named} - pinned == set()


def test_the_least_grpc_and_protobuf_that_are_asked_for_are_those_that_the_stubs_were_made_for() -> None:
    """What is older than its stubs refuses them, so whoever had what we ask for could not start hsctl."""
    stubs = ROOT / "proto" / "hs_proto" / "v1"

    def made_for(pattern: str, files: str) -> set[str]:
        return {version for path in stubs.glob(files) for version in re.findall(pattern, path.read_text())}

    assert made_for(r"GRPC_GENERATED_VERSION = '(.+)'", "*_pb2_grpc.py") == least("grpcio")
    assert made_for(r"# Protobuf Python Version: (.+)", "*_pb2.py") == least("protobuf")


def least(distribution: str) -> set[str]:
    wanted = rf"{distribution}>=([0-9.]+)"
    return {found[1] for word in PROJECT["project"]["dependencies"] if (found := re.match(wanted, word))}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT, check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_the_packages_the_units_and_nothing_of_the_tests(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    tops = {name.split("/")[0] for name in names}
    packages = {
        "hs_core",
        "hs_proto",
        "hs_daemon",
        "hs_job",
        "hs_controller",
        "hs_agent",
        "hs_client",
        "hs_sim",
    }
    assert packages <= tops
    assert {top for top in tops if not top.startswith("heteroshare-")} == packages
    assert "hs_proto/v1/controller_pb2.py" in names
    assert all(f"{package}/py.typed" in names for package in packages)
    assert [name for name in names if name.endswith("hs-agent.service")]
    assert [name for name in names if name.endswith("LICENSE")]
    assert "hs_controller/web/pages/page.js" in names
    assert [name for name in names if name.endswith("share/heteroshare/monitoring/grafana/fairness.json")]


def test_what_the_readme_links_to_is_in_the_source_distribution(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)],
        cwd=ROOT, check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        shipped = {name.partition("/")[2] for name in archive.getnames()}
    linked = set(re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / "README.md").read_text()))
    assert "docs/hsctl.md" in linked
    missing = [name for name in linked if not any(there.startswith(name) for there in shipped)]
    assert missing == []


def unit(name: str) -> configparser.ConfigParser:
    read = configparser.ConfigParser(interpolation=None, strict=False)
    read.read(ROOT / "systemd" / f"{name}.service")
    return read


def test_a_controller_that_is_stopped_leaves_the_sockets_of_an_agent_beside_it() -> None:
    controller, agent = unit("hs-controller")["Service"], unit("hs-agent")["Service"]
    assert agent["RuntimeDirectory"].startswith(controller["RuntimeDirectory"] + "/")
    assert controller["RuntimeDirectoryPreserve"] == "yes", "else systemd removes all below its folder"


@pytest.mark.parametrize("name", ["hs-controller", "hs-agent"])
def test_a_daemon_starts_when_the_addresses_that_it_is_to_listen_on_are_there(name: str) -> None:
    assert "network-online.target" in unit(name)["Unit"]["After"].split()
    assert "network-online.target" in unit(name)["Unit"]["Wants"].split()


@pytest.mark.parametrize("name", ["hs-controller", "hs-agent"])
def test_the_journal_has_a_daemon_under_its_own_name_and_whoever_ends_it_it_comes_back(name: str) -> None:
    service = unit(name)["Service"]
    assert service["SyslogIdentifier"] == name, "else that of /usr/bin/env, which starts it"
    assert service["Restart"] == "always", "on-failure takes SIGHUP, SIGINT and SIGTERM of anybody for a stop"


def test_a_host_that_has_not_joined_is_not_tried_again_every_second() -> None:
    assert "5" in unit("hs-agent")["Service"]["RestartPreventExitStatus"].split()


def test_a_controller_that_a_full_disk_keeps_from_starting_is_tried_again() -> None:
    settings = unit("hs-controller")
    assert "75" not in settings["Service"]["RestartPreventExitStatus"].split()
    within_s, times = (float(settings["Unit"][f"StartLimit{what}"]) for what in ("IntervalSec", "Burst"))
    assert times * (FULL_S + float(settings["Service"]["RestartSec"])) > within_s, "it is not given up"


def test_the_agents_unit_leaves_the_gpus_within_reach_of_jobs_and_the_clock_out_of_it() -> None:
    service = unit("hs-agent")["Service"]
    named = [
        key for key in ("PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock") if key in service
    ]
    assert named == [], "systemd 245 to 251 allow no other device where one is named, as ProtectClock does"
    assert not {"CAP_SYS_TIME", "CAP_WAKE_ALARM"} & {*service["CapabilityBoundingSet"].split()}


def test_a_wheel_without_its_sources_beside_it_runs_hsctl(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import hs_client; print(hs_client.__file__); from hs_client.program import run; run(['--help'])"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        timeout=120,
    )
    assert done.stdout.startswith(str(tmp_path))
    assert "submit" in done.stdout


def test_hsctl_needs_nothing_of_the_daemons() -> None:
    """Every verb is imported with the extras' packages made impossible to import."""
    code = """
import sys
for name in ("sqlalchemy", "structlog", "pynvml", "torch", "sklearn", "matplotlib", "numpy", "scipy", "ortools", "hs_core"):
    sys.modules[name] = None
from hs_client.verbs.table import VERBS
from hs_client.program import cli
assert len(VERBS) > 15
for name in VERBS:
    assert cli.get_command(None, name) is not None, name
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


EXTRAS = (
    "sqlalchemy", "structlog", "cryptography", "numpy", "scipy", "ortools", "prometheus_client", "starlette", "uvicorn", "pynvml",
    "matplotlib", "torch", "sklearn",
)  # fmt: skip


def without_extras(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program as after a plain `pip install`: what extras bring cannot be imported."""
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({EXTRAS!r})); sys.argv[1:] = {arguments!r}; "
        f"from {module}.__main__ import main; sys.exit(main())"
    )
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )


IMPORTED_AS = {"nvidia-ml-py": "pynvml", "scikit-learn": "sklearn"}


@pytest.mark.parametrize("extra", ["agent", "controller", "sim"])
def test_a_program_needs_no_package_but_those_that_its_extra_brings(extra: str) -> None:
    """All of its modules, and what they import, load where nothing else is installed."""
    names = [re.split(r"[^\w-]", line)[0] for line in PROJECT["project"]["optional-dependencies"][extra]]
    brought = {IMPORTED_AS.get(name, name.replace("-", "_")) for name in names}
    assert brought <= set(EXTRAS)
    absent = sorted(set(EXTRAS) - brought)
    code = (
        f"import sys, pkgutil, importlib; sys.modules.update(dict.fromkeys({absent!r}))\n"
        f"import hs_{extra} as program\n"
        "for module in pkgutil.walk_packages(program.__path__, program.__name__ + '.'):\n"
        "    module.name.endswith('__main__') or importlib.import_module(module.name)\n"
        "    print(module.name)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) > 20


@pytest.mark.parametrize(
    ("module", "arguments", "said", "status"),
    [
        ("hs_agent", ["run"], "hs-agent: the Python package structlog ", 3),
        ("hs_agent", ["join", "--controller=c:1", "--token=t", "--ca-sha256=ab"], "hs-agent: the Python package cryptography ", 3),
        ("hs_controller", ["run"], "hs-controller: the Python package structlog ", 1),
        ("hs_sim", ["compare"], "hs-sim: the Python package numpy ", 3),
    ],
)  # fmt: skip
def test_a_program_whose_extra_was_not_installed_says_which_one(
    module: str, arguments: list[str], said: str, status: int
) -> None:
    done = without_extras(module, *arguments)
    extra = module.removeprefix("hs_")
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr == f"{said}is not installed: pip install 'heteroshare[{extra}]'\n"


def test_a_controller_without_a_page_does_not_load_what_would_serve_one(tmp_path: Path) -> None:
    file = tmp_path / "controller.toml"
    file.write_text(
        f'state_dir = "{tmp_path}/state"\nsocket = "{tmp_path}/c.sock"\ndev = true\nweb_listen = "127.0.0.1:0"\n'
    )
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('starlette', 'uvicorn')))\n"
        "from hs_controller.__main__ import cli\n"
        "print('loaded', flush=True)\n"
        f"cli(['run', '--config', {str(file)!r}])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout) == (1, "loaded\n")
    assert done.stderr.endswith(" is not installed: pip install 'heteroshare[controller]'\n"), done.stderr


def test_hsctl_without_a_simulator_says_so_before_it_asks_the_controller() -> None:
    done = without_extras("hs_client", "--controller", "unix:/nowhere", "simulate", "--policy", "fifo")
    assert done.returncode == 1
    assert done.stderr == (
        "hsctl: numpy, scipy, ortools missing: the simulator needs more than hsctl: pip install 'heteroshare[sim]'\n"
    )


@pytest.mark.parametrize("name", ["hs_core.no_such_module", "_sqlite3"])
def test_what_no_extra_brings_is_not_blamed_on_one(name: str) -> None:
    missing = ModuleNotFoundError(f"No module named {name!r}", name=name)
    with pytest.raises(ModuleNotFoundError, match=name):
        not_installed(missing, "sim")

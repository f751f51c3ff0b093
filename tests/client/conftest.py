"""A scripted controller on a socket, and hsctl called in this process."""

import importlib.util
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hs_client import program

_SPEC = importlib.util.spec_from_file_location("client_fakes", Path(__file__).with_name("fakes.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
fakes = importlib.util.module_from_spec(_SPEC)
sys.modules["client_fakes"] = fakes
_SPEC.loader.exec_module(fakes)


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


Hsctl = Callable[..., Ran]


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path is short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="hsc", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def serving(short: Path) -> Iterator["fakes.Serving"]:
    made = fakes.Serving(fakes.FakeController(), short / "c.sock")
    made.start()
    yield made
    made.stop()


@pytest.fixture
def fake(serving: "fakes.Serving") -> "fakes.FakeController":
    return serving.fake


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [n for n in os.environ if n.startswith("HS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HS_STATE", str(tmp_path / "no-cluster"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def hsctl(serving: "fakes.Serving", call: Hsctl) -> Hsctl:
    """hsctl, connected to the scripted controller."""
    return lambda *words, stdin="": call("--controller", f"unix:{serving.socket}", *words, stdin=stdin)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Hsctl:
    """hsctl as it is."""

    def run(*words: object, stdin: str = "") -> Ran:
        streams = {
            name: io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
            for name in ("stdout", "stderr")
        }
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8"))
            for name, stream in streams.items():
                patch.setattr(sys, name, stream)
            code = program.run([str(word) for word in words])
        out, err = (stream.buffer.getvalue().decode() for stream in streams.values())
        return Ran(code, out, err)

    return run

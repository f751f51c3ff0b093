"""Whether there is something at a path: daemons and hsctl ask alike, on every Python."""

from pathlib import Path
from types import ModuleType

import pytest

import hs_client.there
import hs_daemon.there
from hs_agent.memory import Memory

TOO_LONG = "n" * 300


@pytest.fixture(params=[hs_client.there, hs_daemon.there], ids=["hsctl", "daemons"])
def there(request: pytest.FixtureRequest) -> ModuleType:
    found: ModuleType = request.param
    return found


def test_what_leads_nowhere_is_not_there(there: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nothing")
    for name in ("nothing", "file/below", "loop", "dangling", "nul\0"):
        path = tmp_path / name
        assert (there.exists(path), there.is_dir(path), there.is_file(path)) == (False, False, False), name


def test_a_link_is_what_it_leads_to(there: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "to-file").symlink_to("file")
    (tmp_path / "to-folder").symlink_to(tmp_path)
    for name, is_dir in (("file", False), ("to-file", False), (".", True), ("to-folder", True)):
        path = tmp_path / name
        assert (there.exists(path), there.is_dir(path), there.is_file(path)) == (True, is_dir, not is_dir)


@pytest.mark.parametrize("asked", ["exists", "is_dir", "is_file"])
def test_where_it_cannot_be_known_the_reason_is_raised(there: ModuleType, tmp_path: Path, asked: str) -> None:
    with pytest.raises(OSError, match="File name too long"):
        getattr(there, asked)(tmp_path / TOO_LONG)


def test_an_agent_that_cannot_look_for_its_memory_does_not_begin_without_one(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="File name too long"):
        Memory(tmp_path / TOO_LONG).load()

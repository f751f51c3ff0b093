"""`hsctl support-bundle`: what is in it, and that it is whole or not there."""

import json
import stat
import tarfile
from pathlib import Path

import pytest

from hs_proto.v1 import common_pb2 as common
from hs_proto.v1 import controller_pb2 as wire


@pytest.fixture
def told(fake):
    fake.supports = [
        wire.SupportFile(name="controller/configuration.json", data=b"{}\n"),
        wire.SupportFile(name="controller/metrics.txt", data=b"hs_info "),
        wire.SupportFile(name="controller/metrics.txt", data=b"1\n"),
        wire.SupportFile(name="servers/n1/doctor.txt", data=b"ok    python\n"),
        wire.SupportFile(name="servers/n2/doctor.txt", missing="n2 is not connected"),
    ]
    fake.add(state="running", exit=common.Exit(why="oops", log_tail="hunter2"))
    fake.nodes = [wire.NodeView(name="n1")]
    fake.events = [wire.Event(seq=1, kind="submitted", text="ann submitted it")]
    return fake


def unpacked(path: Path) -> dict[str, str]:
    with tarfile.open(path) as bundle:
        (folder,) = {member.name.partition("/")[0] for member in bundle}
        assert folder.startswith("heteroshare-support-")
        return {
            member.name.removeprefix(f"{folder}/"): bundle.extractfile(member).read().decode()
            for member in bundle
        }


def test_a_bundle_lists_what_is_in_it_and_what_could_not_be_had(hsctl, told, tmp_path):
    ran = hsctl("support-bundle", "--events", "50", "b.tar.gz")
    assert ran.code == 0, ran.err
    path = tmp_path / "b.tar.gz"
    assert ran.out.startswith(f"{path}: ")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = unpacked(path)
    assert next(iter(found)) == "CONTENTS.txt"
    listed = [line.split()[1] for line in found["CONTENTS.txt"].partition("bytes  file\n")[2].splitlines()]
    assert listed == [name for name in found if name != "CONTENTS.txt"]
    assert found["controller/metrics.txt"] == "hs_info 1\n"
    assert found["servers/n1/doctor.txt"] == "ok    python\n"
    assert found["servers/n2/doctor.txt"] == "missing: n2 is not connected\n"
    assert "(missing: n2 is not connected)" in found["CONTENTS.txt"]
    assert "hsctl: servers/n2/doctor.txt is missing: n2 is not connected" in ran.err
    assert json.loads(found["state/nodes.jsonl"])["name"] == "n1"
    assert json.loads(found["state/events.jsonl"])["kind"] == "submitted"
    assert told.last("Events").tail == 50
    (job,) = map(json.loads, found["state/jobs.jsonl"].splitlines())
    assert job["exit"]["why"] == "oops"
    assert not any("hunter2" in text for text in found.values()), "what a job has said"


def test_a_bundle_replaces_nothing_and_leaves_nothing_behind_where_it_fails(hsctl, told, tmp_path):
    path = tmp_path / "b.tar.gz"
    for make in (lambda: path.write_text("mine"), lambda: path.symlink_to("nowhere"), path.mkdir):
        make()
        ran = hsctl("support-bundle", "b.tar.gz")
        assert ran.code == 2, ran.err
        assert not told.requests["Support"], "nobody is asked for what cannot be kept"
        path.rmdir() if path.is_dir() else path.unlink()
    told.refusals["Support"] = ("not-allowed", "support-bundle is not allowed to ann (roles: user)")
    assert hsctl("support-bundle", "b.tar.gz").code == 5
    told.refusals["Support"] = ("unavailable", "it is stopping")
    assert hsctl("support-bundle", "b.tar.gz").code == 6
    del told.refusals["Support"]
    told.supports.append(wire.SupportFile(name="../../etc/cron.d/x", data=b"x"))
    ran = hsctl("support-bundle", "b.tar.gz")
    assert (ran.code, "outside of the bundle" in ran.err) == (1, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("told")
def test_who_is_there_first_keeps_the_name(hsctl, tmp_path, monkeypatch):
    from hs_client.api import Client

    path, really = tmp_path / "b.tar.gz", Client.support

    def and_meanwhile(client):
        path.write_text("somebody else's")
        return really(client)

    monkeypatch.setattr(Client, "support", and_meanwhile)
    ran = hsctl("support-bundle", "b.tar.gz")
    assert (ran.code, "is there already" in ran.err) == (2, True)
    assert path.read_text() == "somebody else's"
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_had_is_named_and_the_rest_is_there(hsctl, told, tmp_path):
    told.refusals["ListTrades"] = ("unavailable", "later")
    assert hsctl("support-bundle", "b.tar.gz").code == 0
    found = unpacked(tmp_path / "b.tar.gz")
    assert found["state/trades.jsonl"] == "missing: later\n"
    assert json.loads(found["state/nodes.jsonl"])["name"] == "n1"


@pytest.mark.usefixtures("told")
def test_without_a_name_it_is_called_by_the_time(hsctl, tmp_path):
    assert hsctl("support-bundle").code == 0
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("heteroshare-support-2")
    assert path.name.endswith("Z.tar.gz")

"""Control groups: which there are, what they hold jobs to, and that they go."""

import os
from pathlib import Path

import pytest

from hs_agent import cgroup, folder, launch
from hs_agent.config import CgroupUse
from hs_core.names import JobId


def test_groups_whose_job_is_forgotten_are_removed_later_where_they_could_not_be_at_once(
    settings, place, monkeypatch
) -> None:
    groups = place / "groups"
    launcher = launch.Launcher(settings(), cgroup.Cgroups(v2=groups))
    for name in ("1-1", "2-1", "3-1", "systemd"):
        (groups / name).mkdir(parents=True)
    launcher.folder(folder.Key(JobId(2), 1)).make()
    with monkeypatch.context() as busy:
        busy.setattr(cgroup.JobCgroup, "remove", lambda _group: None)  # something in it is on its way out
        launcher.forget(folder.Key(JobId(1), 1))
    assert (groups / "1-1").exists()
    launcher.forget(folder.Key(JobId(3), 1))
    assert sorted(entry.name for entry in groups.iterdir()) == ["2-1", "systemd"]


def test_control_groups_that_cannot_be_used_are_a_warning(place) -> None:
    none = cgroup.probe(CgroupUse.AUTO, place, mounts="")
    assert not none.can_freeze
    assert "no writable control groups" in none.warnings[0]
    fake = f"cgroup2 {place} cgroup2 rw 0 0\n"
    assert not cgroup.probe(CgroupUse.AUTO, place, mounts=fake).can_freeze
    assert "switched off" in cgroup.probe(CgroupUse.NONE, place).warnings[0]


def test_mounts_whose_names_are_no_text_or_hold_odd_spaces_are_others_business(place, monkeypatch) -> None:
    mounts = place / "mounts"
    mounts.write_bytes(
        b"none /home/caf\xe9 fuse rw 0 0\nnone /home/a\x0b\xc2\x85b fuse rw 0 0\ncgroup2 /c cgroup2 rw 0 0\n"
    )
    monkeypatch.setattr(cgroup, "MOUNTS", mounts)
    looked = []
    monkeypatch.setattr(cgroup, "_probe_v2", lambda mount, *_: looked.append(mount) or (None, ()))
    cgroup.probe(CgroupUse.AUTO, place)
    assert looked == [Path("/c")]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_jobs_limits_are_set_where_there_are_controllers(place) -> None:
    found = cgroup.probe(CgroupUse.AUTO, place)
    group = cgroup.create(found, "1-1", cpus=2, memory_bytes=1 << 30)
    try:
        if "cpu" in found.v1:
            assert (group.v1["cpu"] / "cpu.cfs_quota_us").read_text().strip() == "200000"
        if "memory" in found.v1:
            assert (group.v1["memory"] / "memory.limit_in_bytes").read_text().strip() == str(1 << 30)
        if "pids" in found.v1:
            assert (group.v1["pids"] / "pids.max").read_text().strip() == str(cgroup.PIDS_MAX)
        limited = {"cpu", "memory", "pids"} & (set(found.v1) | set(found.v2_limits))
        assert len(limited) + len([w for w in found.warnings if "not limited" in w]) >= 1
    finally:
        group.remove()
        for root in (found.v2, *found.v1.values()):
            if root is not None and root.exists():
                root.rmdir()
    assert cgroup.reopen(found, "1-1") == cgroup.JobCgroup(v2=None, v1={})


def hierarchy(place: Path, own: str, *, busy: bool) -> Path:
    """A pretended version 2 hierarchy: enough files to see what the probe writes where."""
    for group in (place, place / "unit", place / own):
        group.mkdir(exist_ok=True, parents=True)
        (group / "cgroup.subtree_control").touch()
        (group / "cgroup.procs").write_text("1\n" if busy and group.name == "unit" else "")
    return place


@pytest.mark.parametrize(("own", "busy", "handed"), [("unit/agent", False, True), ("unit", True, False)])
def test_controllers_are_handed_down_only_from_a_group_without_processes(
    place, monkeypatch, own, busy, handed
) -> None:
    hierarchy(place, own, busy=busy)
    monkeypatch.setattr(
        cgroup,
        "_usable",
        lambda folder, *_: folder.mkdir() or (folder / "cgroup.subtree_control").touch() or True,
    )
    found, _ = cgroup._probe_v2(place, own, "heteroshare-x")
    assert found == place / "unit/heteroshare-x"
    assert bool((place / "unit/cgroup.subtree_control").read_text()) is handed

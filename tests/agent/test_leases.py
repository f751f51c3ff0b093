"""What jobs' shims read of when the controller was there last."""

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest

from hs_agent import folder
from hs_agent.folder import Folder, Key
from hs_agent.leases import EVERY_S, Leases
from hs_core.model import JobSpec, OnPartition
from hs_core.names import JobId, UserName
from hs_core.wanted import Turn, Wanted, WantedJob


def test_a_lease_runs_from_when_the_controller_said_something_and_never_less_than_before(
    tmp_path: Path,
) -> None:
    written: list[float] = []
    there = SimpleNamespace(path=tmp_path, write_lease=written.append)
    leases = Leases(SimpleNamespace(folder=lambda _: there))  # type: ignore[arg-type]
    spec = JobSpec(name="j", command=("x",), gpus=1, on_partition=OnPartition.FENCE)
    job = WantedJob(
        job=JobId(1), epoch=0, user=UserName("u"), run_as="u", job_class="c", spec=spec, tickets=1.0
    )
    wanted = Wanted(term=1, seq=1, quantum_s=60.0, turn=Turn(), jobs=(job,), fence_after_s=12.0)
    leases.wanted(wanted, 100.0, 100.0)
    leases.heard(103.0, 150.0)  # it lay unread for long
    leases.heard(101.0, 160.0)  # and another for longer
    leases.write(Key(JobId(1), 0))
    assert written == [after + 12.0 + EVERY_S for after in (100.0, 103.0, 103.0, 103.0)]


def test_a_full_disk_ends_no_job_whose_controller_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    job = Folder(tmp_path, Key(JobId(1), 0))
    job.write_lease(float("inf"))
    assert float((tmp_path / "lease").read_text()) == float("inf")
    monkeypatch.setattr(folder, "write_atomically", no_room)
    for until_s in (99.5, 123_456.789):
        job.write_lease(until_s)
        assert float((tmp_path / "lease").read_text()) == until_s

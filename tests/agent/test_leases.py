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
    written = leases_written(tmp_path, lease_s=20.0, kill_grace_s=10.0)
    assert written == [(after + 12.0 + EVERY_S, 10.0) for after in (100.0, 103.0, 103.0, 103.0)]


@pytest.mark.parametrize(
    ("lease_s", "kill_grace_s", "grace_s"), [(8.0, 10.0, 4.0), (3.0, 10.0, 0.0), (0.0, 10.0, 10.0), (60.0, 0.5, 0.5)]
)  # fmt: skip
def test_who_ends_by_a_lease_is_gone_before_the_controller_starts_it_elsewhere(
    tmp_path: Path, lease_s: float, kill_grace_s: float, grace_s: float
) -> None:
    """Its end begins later than where an agent is there. Lease 0: no controller has said."""
    written = leases_written(tmp_path, lease_s=lease_s, kill_grace_s=kill_grace_s)
    assert {grace for _, grace in written} == {grace_s}


def leases_written(place: Path, *, lease_s: float, kill_grace_s: float) -> list[tuple[float, float]]:
    written: list[tuple[float, float]] = []
    there = SimpleNamespace(path=place, write_lease=lambda *lease: written.append(lease))
    config = SimpleNamespace(kill_grace_s=kill_grace_s)
    leases = Leases(SimpleNamespace(folder=lambda _: there, config=config))  # type: ignore[arg-type]
    spec = JobSpec(name="j", command=("x",), gpus=1, on_partition=OnPartition.FENCE)
    job = WantedJob(
        job=JobId(1), epoch=0, user=UserName("u"), run_as="u", job_class="c", spec=spec, tickets=1.0
    )
    wanted = Wanted(
        term=1, seq=1, quantum_s=60.0, turn=Turn(), jobs=(job,), fence_after_s=12.0, lease_s=lease_s
    )
    leases.wanted(wanted, 100.0, 100.0)
    leases.heard(103.0, 150.0)  # it lay unread for long
    leases.heard(101.0, 160.0)  # and another for longer
    leases.write(Key(JobId(1), 0))
    return written


def test_a_full_disk_ends_no_job_whose_controller_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    job = Folder(tmp_path, Key(JobId(1), 0))
    job.write_lease(float("inf"), 10.0)
    assert (tmp_path / "lease").read_text().split() == ["inf", "10.000"]
    monkeypatch.setattr(folder, "write_atomically", no_room)
    for until_s, grace_s in ((99.5, 10.0), (123_456.789, 0.5)):
        job.write_lease(until_s, grace_s)
        assert list(map(float, (tmp_path / "lease").read_text().split())) == [until_s, grace_s]

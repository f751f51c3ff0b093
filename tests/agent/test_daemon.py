"""hs-agent as a process, with real jobs and a scripted controller."""

import os
import pwd
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hs_agent import procs
from hs_core.model import Phase, SuspendMode, Tier

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def test_a_job_runs_and_its_end_is_told(daemon, controller, job) -> None:
    daemon.start()
    controller.want(job(1, "/bin/sh", "-c", "echo hello; exit 3", suspend=SuspendMode.NONE))
    report = controller.wait_report(1, lambda r: r.exit, "an exit")
    assert (report.exit.code, report.exit.signal) == (3, 0)
    assert report.exit.log_tail == "hello"
    hello = controller.hellos[0]
    assert (hello.host, hello.boot_id, len(hello.gpus)) == ("host-a", procs.boot_id(), 1)
    assert controller.log_of(1) == b"hello\n"
    controller.want()
    folder = daemon.place / "state/jobs/1-1"
    from tests.agent.conftest import wait_for

    wait_for(lambda: not folder.exists(), "the folder is removed")
    assert controller.log_of(1, request=2) == b"hello\n"

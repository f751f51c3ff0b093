"""How a process leaves once its state is durable."""

import logging
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from hs_job import leaving

SCRIPT = textwrap.dedent(
    """
    import multiprocessing, signal, time
    from hs_job import leaving

    def raises(*_):
        raise RuntimeError("a worker is killed by signal: Killed")

    if __name__ == "__main__":
        fork = multiprocessing.get_context("fork")
        workers = [fork.Process(target=time.sleep, args=(60.0,)) for _ in range(2)]
        for worker in workers:
            worker.start()
        signal.signal(signal.SIGCHLD, raises)
        leaving.end_workers()
        for worker in workers:
            worker.join()
        leaving.vanish()
    """
)


def test_workers_that_are_ended_on_leaving_do_not_make_it_a_failure() -> None:
    """As torch has it: its handler of SIGCHLD raises in the main thread for a DataLoader's worker that was killed."""
    left = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False
    )
    assert (left.returncode, left.stderr) == (75, "")


WRITES = textwrap.dedent(
    """
    import os, sys
    from hs_job import leaving

    text, raw = open(sys.argv[1], "a"), open(sys.argv[2], "wb")
    text.write("step 7\\n")
    raw.write(b"step 7")
    reading, writing = os.pipe()
    full = os.fdopen(writing, "wb", 1 << 20)
    full.write(bytes(1 << 19))  # more than a pipe takes, and nobody reads
    leaving.vanish()
    """
)


def test_lines_that_a_script_has_written_are_in_its_files_when_it_has_left(tmp_path: Path) -> None:
    """Their batches are not trained on again; and a pipe that nobody reads is waited for by nobody."""
    paths = [tmp_path / "losses.txt", tmp_path / "losses.bin"]
    left = subprocess.run(
        [sys.executable, "-c", WRITES, *paths], capture_output=True, text=True, timeout=60, check=False
    )
    assert (left.returncode, left.stderr) == (75, "")
    assert [path.read_bytes() for path in paths] == [b"step 7\n", b"step 7"]


ENDED = textwrap.dedent(
    """
    import os, signal, sys
    from hs_job import leaving

    def save(*_):
        print("the script's own handler", flush=True)

    signal.signal(signal.SIGTERM, save)
    lines = open(sys.argv[1], "a")
    lines.write("step 7\\n")
    with leaving.undisturbed():
        pass  # what it was to leave with was dropped
    os.kill(os.getpid(), signal.SIGTERM)
    with leaving.undisturbed():
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
        leaving.vanish()
    """
)


def test_who_is_told_to_end_as_it_leaves_runs_nothing_of_its_scripts_and_loses_no_line(
    tmp_path: Path,
) -> None:
    """Its host does so as soon as it is wanted elsewhere, and a parent that has gone before by torch's spawn."""
    file = tmp_path / "losses.txt"
    left = subprocess.run(
        [sys.executable, "-c", ENDED, file], capture_output=True, text=True, timeout=60, check=False
    )
    assert (left.returncode, left.stdout, left.stderr) == (75, "the script's own handler\n", "")
    assert file.read_text() == "step 7\n"


SOCKETS = textwrap.dedent(
    """
    import multiprocessing, os
    from multiprocessing.util import get_temp_dir
    from hs_job import leaving

    if __name__ == "__main__":
        folder = get_temp_dir()
        child = multiprocessing.get_context("fork").Process(target=leaving.vanish)
        child.start()
        child.join()
        print(child.exitcode, os.path.isdir(folder), folder)
        leaving.vanish()
    """
)


def test_the_sockets_of_loaders_workers_are_gone_when_it_has_left_and_not_before(tmp_path: Path) -> None:
    left = subprocess.run(
        [sys.executable, "-c", SOCKETS], capture_output=True, text=True, timeout=60, check=False,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert (left.returncode, left.stderr) == (75, "")
    code, was_there, folder = left.stdout.split()
    assert (code, was_there) == ("75", "True"), "a child leaves its parent's alone"
    assert Path(folder).parent == tmp_path
    assert not list(tmp_path.iterdir())


LOCKS = textwrap.dedent(
    """
    import multiprocessing
    from hs_job import leaving

    lock = multiprocessing.get_context("spawn").Lock()
    print("a lock is there", flush=True)
    leaving.vanish()
    """
)


def test_no_lock_of_spawned_workers_is_said_to_have_leaked() -> None:
    left = subprocess.run(
        [sys.executable, "-c", LOCKS], capture_output=True, text=True, timeout=60, check=False
    )
    assert (left.returncode, left.stdout, left.stderr) == (75, "a lock is there\n", "")


def test_a_launcher_that_is_to_leave_logs_nothing_any_more(caplog: pytest.LogCaptureFixture) -> None:
    """Its ranks leave meanwhile, which it takes for a failure."""
    try:
        leaving.hush()
        logging.getLogger("torch.distributed.elastic").error("failed (exitcode: 75)")
    finally:
        logging.disable(logging.NOTSET)
    assert caplog.records == []

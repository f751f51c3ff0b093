"""How far a job got that ended while nobody was there to be told."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from hs_agent import steps
from hs_core.reports import OF_GPUS
from hs_daemon import boot_s
from hs_job.noted import Noted
from tests.agent.real_jobs import python

BEFORE, AFTER = 5, 7
STEPS = f"""
import os, pathlib, signal, sys, time
import hs_job
def steps(n, then):
    for _ in range(n):
        hs_job.step()
    while not pathlib.Path(then).exists():
        time.sleep(0.01)
steps({BEFORE}, "away")
steps({AFTER}, "end")
if sys.argv[1:] == ["killed"]:
    os.kill(os.getpid(), signal.SIGKILL)
raise SystemExit(3)
"""


@pytest.mark.parametrize("how", ["exits", "killed"])
def test_the_steps_that_a_job_took_while_its_agent_was_down_are_counted_and_its_time_until_its_end(
    daemon, controller, job, wait_for, how: str
) -> None:
    daemon.start()
    came_s = boot_s()
    controller.want(job(1, *python(STEPS), how))
    heard = controller.wait_report(1, lambda r: r.step == BEFORE, "its steps are heard of")
    (folder,) = daemon.folders()
    daemon.kill()
    (daemon.place / "away").touch()
    wait_for(lambda: steps.noted(folder.steps_file).step == BEFORE + AFTER, "it notes them")
    (daemon.place / "end").touch()
    ended = wait_for(folder.ended, "it ended")
    wait_for(lambda: boot_s() > ended.at_s + 2.0, "time passes that is not its own")
    daemon.start()
    report = controller.wait_report(1, lambda r: r.exit, "an exit")
    assert (report.exit.code, report.exit.signal) == ((3, 0) if how == "exits" else (0, signal.SIGKILL))
    assert report.step == BEFORE + AFTER
    assert heard.run_s <= report.run_s <= ended.at_s - came_s


def test_the_steps_of_a_job_that_nobody_remembers_are_told_with_its_end(
    daemon, controller, job, wait_for
) -> None:
    daemon.start()
    controller.want(job(1, *python(STEPS)))
    controller.wait_report(1, lambda r: r.step == BEFORE, "its steps are heard of")
    (folder,) = daemon.folders()
    daemon.kill()
    for name in ("away", "end"):
        (daemon.place / name).touch()
    wait_for(folder.ended, "it ended")
    (daemon.place / "state/host.json").write_text("{")
    controller.want()
    daemon.start()
    wait_for(lambda: len(controller.hellos) == 2, "the agent is back")
    (told,) = controller.hellos[1].last_words
    assert (told.step, told.exit.code) == (BEFORE + AFTER, 3)


GREEDY = """
import pathlib, time
import hs_job
for _ in range(3):
    hs_job.step()
while not pathlib.Path("asks").exists():
    hs_job.step()
    time.sleep(0.01)
raise RuntimeError("CUDA out of memory. Tried to allocate 12.00 GiB. GPU 0 has a total capacity of 16.00 GiB")
"""


@pytest.mark.parametrize("beside", [True, False], ids=["beside-another", "alone"])
def test_a_job_that_runs_out_of_gpu_memory_beside_another_is_not_to_blame(
    daemon, controller, job, beside: bool
) -> None:
    daemon.start()
    jobs = [job(1, *python(GREEDY), gpu_memory_bytes=4 << 30)]
    if beside:
        jobs.append(job(2, *python(GREEDY.replace("asks", "never")), gpu_memory_bytes=4 << 30))
    controller.want(*jobs)
    for one in jobs:
        controller.wait_report(one.job, lambda r: r.step >= 3, "it trains")
    (daemon.place / "asks").touch()
    report = controller.wait_report(1, lambda r: r.exit, "an exit")
    assert report.exit.code == 1
    assert report.exit.why.startswith(OF_GPUS) == beside
    assert report.device_memory_bytes == (12 << 30 if beside else 0)


def test_a_job_that_writes_nonsense_has_the_steps_that_were_heard(daemon, controller, job, wait_for) -> None:
    daemon.start()
    code = f"""
import os, pathlib, time
import hs_job
for _ in range({BEFORE}):
    hs_job.step()
while not pathlib.Path("away").exists():
    time.sleep(0.01)
file = os.environ["HS_STEPS_FILE"]
pathlib.Path(file).write_bytes(b"9" * 20_000)
os.kill(os.getpid(), 9)
"""
    controller.want(job(1, *python(code)))
    controller.wait_report(1, lambda r: r.step == BEFORE, "its steps are heard of")
    (folder,) = daemon.folders()
    memory = daemon.place / "state/host.json"
    wait_for(lambda: json.loads(memory.read_text())["machine"]["jobs"][0]["step"] == BEFORE, "it is kept")
    daemon.kill()
    (daemon.place / "away").touch()
    wait_for(folder.ended, "it ended")
    daemon.start()
    report = controller.wait_report(1, lambda r: r.exit, "an exit")
    assert report.step == BEFORE


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "steps"
    steps.make(path, os.geteuid(), os.getegid())
    return path


def record(step: int, needs_bytes: int = 0) -> bytes:
    return b"%15d %15d\n" % (step, needs_bytes)


def note(path: Path, rank: int, text: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(rank * steps.RECORD_BYTES)
        file.write(text)


def test_what_all_ranks_here_have_done_is_what_the_last_of_them_has(file: Path) -> None:
    assert steps.noted(file).step == -1
    note(file, 3, record(12))
    assert steps.noted(file).step == 12
    note(file, 2, record(11))
    assert steps.noted(file).step == 11


def test_of_what_ranks_lacked_the_most_is_told(file: Path) -> None:
    Noted(str(file)).note(0, 12)
    Noted(str(file)).note(1, 11, 5 << 30)
    Noted(str(file)).note(2, 11, 6 << 30)
    assert steps.noted(file) == steps.Word(11, 6 << 30)


def test_more_than_can_be_noted_is_noted_as_the_most_that_can(file: Path) -> None:
    Noted(str(file)).note(0, 12, 10**20)
    assert steps.noted(file) == steps.Word(12, 10**15 - 1)


@pytest.mark.parametrize(
    "text",
    [
        b"9" * 40 + b"\n",
        b"-1".rjust(15) + b" " * 15 + b"0\n",
        b"1e3".rjust(15) + b" " * 15 + b"0\n",
        b"12".rjust(15) + b"-1".rjust(16) + b"\n",
        b"12".rjust(15) + b"\n",
        b" " * 31 + b"\n",
        "٣".encode().rjust(15) + b" " * 15 + b"0\n",
    ],
)
def test_a_record_that_is_no_number_makes_all_of_it_nonsense(file: Path, text: bytes) -> None:
    note(file, 0, record(12))
    note(file, 1, text)
    assert steps.noted(file).step == -1


def test_what_is_no_file_of_its_own_is_not_read(tmp_path: Path, file: Path) -> None:
    note(file, 0, record(12))
    (tmp_path / "link").symlink_to(file)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    for name in ("link", "fifo", "folder", "none"):
        assert steps.noted(tmp_path / name) == steps.NOTHING, name


def test_of_a_file_without_end_no_more_is_read_than_ranks_may_write(file: Path) -> None:
    note(file, 0, record(12))
    os.truncate(file, 1 << 40)
    assert steps.noted(file).step == 12


OTHER = """
import sys
from hs_job.noted import Noted
noted = Noted(sys.argv[1])
noted.note(0, 30)
print("noted", flush=True)
sys.stdin.read()
"""


def test_of_two_processes_that_say_they_are_one_rank_the_first_is_believed_while_it_lives(file: Path) -> None:
    first = subprocess.Popen((*python(OTHER), str(file)), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert first.stdout is not None
    assert first.stdout.readline() == b"noted\n"
    mine = Noted(str(file))
    mine.note(0, 99)
    assert steps.noted(file).step == 30
    first.communicate()
    mine.note(0, 100)
    assert steps.noted(file).step == 100


def test_where_nothing_can_be_noted_a_script_goes_on(tmp_path: Path) -> None:
    for path in ("", str(tmp_path), str(tmp_path / "none/steps")):
        Noted(path).note(0, 1)
    assert not list(tmp_path.iterdir())

"""`run`, `logs -f` and `wait` across what happens to jobs and controllers meanwhile."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from hs_client import Client, line, output
from hs_client.errors import UnavailableError
from hs_client.follow import follow
from hs_client.verbs import common
from hs_proto.v1 import controller_pb2 as wire


@pytest.fixture
def running(serving):
    """hsctl as a process of its own, which can be interrupted."""
    started = []

    def start(*words):
        command = [sys.executable, "-m", "hs_client", "--controller", f"unix:{serving.socket}", *words]
        encoding = os.environ.get("PYTHONIOENCODING", "utf-8")
        made = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding=encoding
        )
        started.append(made)
        return made

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=120)


def submitted(fake):
    with fake.changed:
        assert fake.changed.wait_for(lambda: fake.jobs, 60)
    return max(fake.jobs)


@pytest.mark.parametrize(("piped", "told"), [("data\n", True), ("", False)])
def test_run_says_that_what_is_piped_into_it_goes_nowhere(fake, serving, piped, told):
    read, write = os.pipe()
    os.write(write, piped.encode())
    command = [sys.executable, "-m", "hs_client", "--controller", f"unix:{serving.socket}", "run", "true"]
    with os.fdopen(read) as stdin:
        made = subprocess.Popen(command, stdin=stdin, stderr=subprocess.PIPE, text=True)
    os.close(write)
    fake.end(submitted(fake), "succeeded")
    _, said = made.communicate(timeout=60)
    assert (made.returncode, "standard input is not handed on" in said) == (0, told)


def test_run_prints_the_output_and_exits_as_the_job_did(hsctl, fake):
    def play():
        job = submitted(fake)
        fake.logs[job] = [b"epoch 1\n", b"epoch 2\n"]
        fake.hold_logs.add(job)
        fake.change(job, state="running", host="n1", started_at=1.7e9)
        fake.end(job, "failed", code=7)

    thread = threading.Thread(target=play)
    thread.start()
    ran = hsctl("run", "-G", "1", "true")
    thread.join(5)
    assert ran.out == "epoch 1\nepoch 2\n", "nothing but the job's output"
    assert ran.code == 7
    assert "failed: exit code 7" in ran.err


def test_run_of_a_job_that_never_started_tells_why(hsctl, fake):
    thread = threading.Thread(
        target=lambda: fake.end(submitted(fake), "failed", why="launch failed: no account")
    )
    thread.start()
    ran = hsctl("run", "true")
    thread.join(5)
    assert (ran.code, ran.out) == (1, "")
    assert "launch failed: no account" in ran.err


def test_a_watch_ends_with_its_job_whatever_becomes_of_the_connection(serving, fake):
    fake.add(state="succeeded")
    client = Client(f"unix:{serving.socket}")
    views = client.watch(1)
    assert next(views).state == "succeeded"
    client.close()
    assert list(views) == []


def test_a_watch_whose_client_is_closed_by_another_thread_says_so(serving, fake):
    fake.add(state="running")
    client = Client(f"unix:{serving.socket}")
    views = client.watch(1)
    assert next(views).state == "running"
    client.close()
    with pytest.raises(UnavailableError, match="the client was closed"):
        next(views)


def test_why_a_job_failed_cannot_paint_the_terminal_of_who_waits_for_it(hsctl, fake):
    fake.add()
    fake.end(1, "failed", why="launch failed: \x1b[2J")
    assert "launch failed: \N{REPLACEMENT CHARACTER}[2J" in hsctl("wait", "1").err


def test_a_job_that_is_retried_is_followed_into_its_next_incarnation(hsctl, fake):
    first_asked = threading.Event()
    fake.hooks["Logs"] = lambda _: first_asked.set()

    def play():
        job = submitted(fake)
        fake.logs[job] = [b"first\n"]
        fake.change(job, state="running", host="n1", started_at=1.7e9, epoch=1)
        assert first_asked.wait(10)
        fake.logs[job] = [b"second\n"]
        fake.change(job, state="running", epoch=2)
        fake.end(job, "succeeded")

    player = threading.Thread(target=play)
    player.start()
    ran = hsctl("run", "-q", "true")
    player.join(5)
    assert ran.code == 0
    assert ran.out.endswith("second\n")
    assert ran.err == ""


def attached(running, fake):
    """hsctl, with a job that is at work; and the job."""
    job = fake.add(state="running", host="n1", started_at=1.7e9).id
    fake.hold_logs.add(job)
    fake.logs[job] = [b"at work\n"]
    hsctl = running("attach", str(job))
    assert hsctl.stdout.readline() == "at work\n"
    return hsctl, job


def leaves_the_job(hsctl, job, fake):
    hsctl.send_signal(signal.SIGINT)
    _, err = hsctl.communicate(timeout=120)
    assert hsctl.returncode == 130
    assert f"job {job} goes on: `hsctl attach {job}` follows it again" in err
    assert "Traceback" not in err
    assert not fake.requests["Cancel"]


def test_an_interrupted_run_is_130_and_the_job_goes_on(running, fake):
    hsctl = running("run", "true")
    job = submitted(fake)
    fake.hold_logs.add(job)
    fake.logs[job] = [b"at work\n"]
    fake.change(job, state="running", host="n1", started_at=1.7e9)
    assert hsctl.stdout.readline() == "at work\n"
    leaves_the_job(hsctl, job, fake)


def test_who_attaches_to_a_job_sees_its_output_to_the_end_and_exits_as_it_did(running, fake):
    hsctl, job = attached(running, fake)
    fake.end(job, "failed", code=3)
    out, err = hsctl.communicate(timeout=120)
    assert (hsctl.returncode, out) == (3, "")
    assert "failed: exit code 3" in err


def test_who_attached_and_is_interrupted_leaves_the_job_as_it_is(running, fake):
    hsctl, job = attached(running, fake)
    leaves_the_job(hsctl, job, fake)


def test_a_terminal_that_has_not_every_character_is_shown_the_rest(running, fake, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    fake.add(name="größe█")
    hsctl = running("queue")
    out, err = hsctl.communicate(timeout=120)
    assert (hsctl.returncode, err) == (0, "")
    assert "größe?" in out


def test_an_interrupted_wait_is_130_and_says_that_the_job_goes_on(running, fake):
    fake.add(state="running")
    hsctl = running("wait", "1")
    while not fake.requests["WatchJob"]:
        assert hsctl.poll() is None
        threading.Event().wait(0.01)
    hsctl.send_signal(signal.SIGINT)
    _, err = hsctl.communicate(timeout=120)
    assert hsctl.returncode == 130
    assert "job 1 goes on" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_exec_leaves_nothing_that_goes_on_being_asked_for(running, fake, number, code):
    fake.add(state="running")
    fake.execs, fake.hold_execs = [wire.ExecChunk(data=b"at work\n")], True
    hsctl = running("exec", "1", "sleep", "600")
    assert hsctl.stdout.readline() == "at work\n"
    hsctl.send_signal(number)
    _, err = hsctl.communicate(timeout=120)
    assert hsctl.returncode == code
    assert "Traceback" not in err
    assert fake.left.wait(60)


def test_an_interrupt_amid_a_call_does_not_wait_for_that_call_to_end(serving, monkeypatch):
    """gRPC's own `close` waits for calls whose end nobody will hear of."""
    over, ends = threading.Event(), []
    client = Client(f"unix:{serving.socket}")
    monkeypatch.setattr(client, "close", lambda: ends.append(over.wait(10)))
    with pytest.raises(KeyboardInterrupt), client:
        raise KeyboardInterrupt
    assert ends == []
    over.set()


@pytest.mark.parametrize("words", [("run", "true"), ("attach", "1"), ("wait", "1")])
def test_who_interrupts_what_follows_a_job_does_not_wait_for_its_calls_to_end(
    hsctl, fake, monkeypatch, words
):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    over, ends = threading.Event(), []
    fake.add(state="running")
    monkeypatch.setattr(Client, "watch", interrupted)
    monkeypatch.setattr(common, "follow", interrupted)
    monkeypatch.setattr(Client, "close", lambda _: ends.append(over.wait(10)))
    ran = hsctl(*words)
    assert (ran.code, ends) == (130, [])
    assert "goes on" in ran.err
    over.set()


def test_run_is_for_one_job(hsctl, fake):
    ran = hsctl("run", "-a", "0-3", "true")
    assert ran.code == 2
    assert not fake.requests["Submit"]


def test_run_detached_is_submit(hsctl):
    assert hsctl("run", "--detach", "true").out == "submitted job 1 (true)\n"


def test_waiting_outlives_a_restart_of_the_controller(serving, fake):
    fake.add(state="running")
    ended = []

    def wait():
        with Client(f"unix:{serving.socket}") as client:
            ended.append(client.wait(1, timeout_s=30).state)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not fake.requests["WatchJob"]:
        waiting.join(0.01)
    serving.stop()
    serving.start()
    fake.end(1)
    waiting.join(20)
    assert ended == ["succeeded"]


def test_followed_logs_are_whole_after_a_restart_of_the_controller(serving, fake):
    fake.add(state="running", host="n1")
    fake.logs[1] = [b"one\n"]
    fake.hold_logs.add(1)
    got = []

    def read():
        with Client(f"unix:{serving.socket}") as client:
            got.extend(client.logs(1, follow=True))

    reading = threading.Thread(target=read)
    reading.start()
    while not got:
        reading.join(0.01)
    serving.stop()
    fake.logs[1].append(b"two\n")
    serving.start()
    while len(fake.requests["Logs"]) < 2:
        reading.join(0.01)
    fake.end(1)
    reading.join(20)
    assert b"".join(got) == b"one\ntwo\n"


@pytest.mark.parametrize("verb", ["attach", "logs -f"])
@pytest.mark.parametrize("how", ["n1 went away: it hung up", ""], ids=["server", "controller"])
def test_followed_output_is_said_once_though_who_tells_it_went_away_meanwhile(hsctl, fake, verb, how):
    job = fake.add(state="running", host="n1", started_at=1.7e9).id
    fake.logs[job] = [b"one\n", b"two\n"]
    fake.cut_off = [how, how]
    fake.end(job)
    done = hsctl(*verb.split(), str(job))
    assert (done.code, done.out) == (0, "one\ntwo\n"), done.err
    assert len(fake.requests["Logs"]) == 3


def test_output_that_was_not_to_be_had_for_a_while_goes_on_where_it_was(hsctl, fake):
    job = fake.add(state="running", host="n1", started_at=1.7e9, epoch=1).id
    fake.logs[job] = [b"one\n", b"two\n"]
    fake.cut_off = ["n1, where job 1 is, is away: its log is there"]
    ends = threading.Timer(1.0, lambda: fake.end(job))
    ends.start()
    done = hsctl("attach", str(job))
    ends.join()
    assert done.code == 0, done.err
    assert done.out == "one\ntwo\n"
    assert "no output of job 1 just now" in done.err


@pytest.mark.parametrize("tail", [0, 1])
def test_who_follows_the_end_of_a_log_misses_nothing_over_a_restart_of_the_controller(serving, fake, tail):
    fake.add(state="running", host="n1")
    fake.logs[1] = [b"zero\n", b"one\n"]
    fake.hold_logs.add(1)
    got = []

    def read():
        with Client(f"unix:{serving.socket}") as client:
            got.extend(client.logs(1, tail_lines=tail, follow=True))

    reading = threading.Thread(target=read)
    reading.start()
    while len(got) < tail or not fake.requests["Logs"]:
        reading.join(0.01)
    serving.stop()
    fake.logs[1] = [b"two\n"]  # this one does not know when what was written
    serving.start()
    while len(fake.requests["Logs"]) < 2:
        reading.join(0.01)
    fake.end(1)
    reading.join(20)
    assert b"".join(got) == b"one\n" * tail + b"two\n"
    again = fake.last("Logs")
    assert (again.tail_lines, again.since_s >= output.AGAIN_S) == (-1, True)


def test_who_takes_the_output_slowly_gets_all_of_it_though_the_job_has_ended(serving, fake, monkeypatch):
    monkeypatch.setattr(line, "QUIET_S", 0.01)
    fake.add(state="succeeded", host="n1")
    fake.logs[1] = [b"%d\n" % number for number in range(100)]
    looks = threading.Semaphore(0)

    class Ended(threading.Event):
        def is_set(self) -> bool:
            looks.release()
            return super().is_set()

    ended = Ended()
    with Client(f"unix:{serving.socket}") as client:
        output = client.logs(1, follow=True, stop=ended)
        got = [next(output)]  # while it has not ended: on a busy machine the first takes longer than a moment
        ended.set()
        while looks.acquire(blocking=False):
            pass
        for _ in range(5):
            assert looks.acquire(timeout=20)
        monkeypatch.setattr(line, "QUIET_S", 60.0)
        got += output
    assert got == fake.logs[1]


def test_who_follows_a_job_that_waits_is_told_a_reason_once_however_often_its_time_is_told_again():
    said = (
        "jobs with less time left run first; the next round begins in about 40 s",
        "jobs with less time left run first; the next round begins in about 35 s",
        "jobs with less time left run first; the next round begins very soon",
        "job 3, whose class is being measured, has GPUs of v1 for a short run",
    )
    waits = [wire.JobView(id=1, state="queued", reason_text=text) for text in said]

    class Told:
        def watch(self, job):
            yield from waits
            yield wire.JobView(id=job, state="cancelled")

    lines = []
    follow(Told(), 1, report=lines.append)
    assert lines[:2] == [f"job 1 queued: {said[0]}", f"job 1 queued: {said[3]}"]


INTERRUPTED_AS_IT_LOADS = """
import os, signal, sys
class Interrupts:
    def find_spec(self, name, *_):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
{before}
from hs_client.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("before", "code", "told"),
    [("", 130, ""), ("signal.signal(signal.SIGINT, signal.SIG_IGN)", 0, "hsctl ")],
    ids=["heard", "ignored"],
)
def test_one_that_is_interrupted_as_it_loads_says_nothing_and_is_130(
    before: str, code: int, told: str
) -> None:
    script = INTERRUPTED_AS_IT_LOADS.format(before=before)
    done = subprocess.run(
        [sys.executable, "-c", script, "--version"], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout.startswith(told)

"""Exit codes and messages: every way in which a request is not met."""

import contextlib
import os
import pty
import shlex
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hs_client import Client, ImpossibleError, UnavailableError
from hs_client import line as line_module
from hs_client.errors import BY_KIND
from hs_client.line import Line
from hs_proto.v1 import common_pb2 as common
from hs_proto.v1 import controller_pb2 as wire


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("invalid", 2),
        ("impossible", 3),
        ("not-found", 4),
        ("not-allowed", 5),
        ("conflict", 1),
        ("unavailable", 6),
    ],
)
def test_a_refusals_kind_is_the_exit_code(hsctl, fake, kind, code):
    fake.add()
    fake.refusals["Pause"] = (kind, "gpus = 9: the largest server has 8")
    ran = hsctl("pause", "1")
    assert (ran.code, ran.out, ran.err) == (code, "", "hsctl: gpus = 9: the largest server has 8\n")
    assert BY_KIND[kind].exit_code == code
    assert len(fake.requests["Pause"]) == 1, "a refusal is an answer: it is not asked again"


def test_the_python_api_raises_what_carries_kind_and_exit_code(serving, fake):
    fake.refusals["Submit"] = ("impossible", "no server has 9 GPUs")
    with (
        Client(f"unix:{serving.socket}") as client,
        pytest.raises(ImpossibleError, match="no server") as caught,
    ):
        client.submit(fake.specs.setdefault(1, _spec()))
    assert (caught.value.kind, caught.value.exit_code) == ("impossible", 3)


def test_who_waited_in_vain_for_an_answer_is_told_that_it_may_have_been_done(serving, fake):
    answered = threading.Event()
    fake.hooks["Submit"] = lambda _: answered.wait(10)
    with Client(f"unix:{serving.socket}", timeout_s=0.2) as client:
        with pytest.raises(UnavailableError, match="may have been made"):
            client.submit(_spec())
        answered.set()


def _spec():
    from hs_proto.v1 import common_pb2

    return common_pb2.JobSpec(name="x", command=["/bin/true"], gpus=9)


HALF = "caf\udce9"  # as Python reads a name in Latin-1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("submit", "--", "/bin/cat", HALF), "run = ['/bin/cat', 'caf\\udce9']: expected UTF-8 text"),
        (("submit", "-e", f"A={HALF}", "--", "/bin/true"), "env: A: expected UTF-8 text"),
        (("submit", "-e", "A=a\0b", "--", "/bin/true"), "env: A: expected no NUL character"),
        (("node", "drain", "host-a", "--reason", HALF), "'caf\\udce9': expected UTF-8 text"),
    ],
)
def test_text_of_another_encoding_is_refused_before_anything_is_sent(hsctl, fake, words, said):
    ran = hsctl(*words)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert not any(fake.requests.values())


def test_a_folder_or_a_path_of_another_encoding_is_named(hsctl, fake, tmp_path, monkeypatch):
    there = tmp_path / HALF
    there.mkdir()
    monkeypatch.chdir(there)
    assert f"workdir = {str(there)!r}: expected UTF-8 text" in hsctl("submit", "--", "/bin/true").err
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"/bin:/{HALF}")
    ran = hsctl("submit", "--", "/bin/true")
    assert (ran.code, fake.requests["Submit"]) == (2, [])
    assert "env: PATH = '/bin:/caf\\udce9': expected UTF-8 text" in ran.err


def test_no_socket_is_told_at_once_with_what_to_do(call, short, monkeypatch):
    monkeypatch.setattr(line_module, "RETRY_DELAYS_S", (3600.0,))  # that is not waited for
    ran = call("--controller", f"unix:{short}/none.sock", "queue")
    assert ran.code == 6
    assert "no such socket" in ran.err
    assert "hsctl up" in ran.err
    assert ran.out == ""


def test_a_dead_socket_is_unreachable(call, serving, monkeypatch):
    monkeypatch.setattr(line_module, "RETRY_DELAYS_S", (0.01,))
    serving.stop()
    serving.socket.unlink(missing_ok=True)
    import socket

    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(serving.socket))
    ran = call("--controller", f"unix:{serving.socket}", "info")
    assert ran.code == 6
    assert "no controller answers at unix:" in ran.err


@pytest.mark.parametrize(
    "words", [("events",), ("events", "-f"), ("wait", "1"), ("logs", "-f", "1")], ids=" ".join
)
def test_what_would_follow_a_controller_does_not_wait_for_one_that_was_never_there(
    call, short, monkeypatch, words
):
    def awaited(*_):
        raise AssertionError("it waits for a controller to come back")

    monkeypatch.setattr(Line, "await_back", awaited)
    ran = call("--controller", f"unix:{short / 'none.sock'}", *words)
    assert ran.code == 6
    assert "there is no such socket" in ran.err


LONG = "a" * 300


@pytest.mark.parametrize(
    "words",
    [
        ("submit", LONG),
        ("submit", "-C", LONG, "--", "true"),
        ("submit", "--", f"./{LONG}"),
        ("run", LONG),
        ("backup", LONG),
    ],
    ids=lambda words: words[0],
)
def test_a_path_that_cannot_be_one_is_named_with_the_reason(hsctl, fake, words):
    ran = hsctl(*words)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("hsctl: ")
    assert ran.err.endswith("File name too long\n")
    assert not any(fake.requests.values())


@pytest.mark.parametrize(
    "word", ["9" * 5000, "²", "1_²", "1_" + "9" * 5000, str(1 << 63), "-1", "1_x"], ids=lambda word: word[:9]
)
def test_what_is_no_jobs_number_is_refused_before_anything_is_sent(hsctl, fake, word):
    ran = hsctl("wait", "--", word)
    assert (ran.code, ran.out) == (2, "")
    assert "expected a job's number" in ran.err
    assert not any(fake.requests.values())


def test_another_version_is_exit_code_6(hsctl, fake):
    fake.hooks["Why"] = _unimplemented
    fake.add()
    ran = hsctl("why", "1")
    assert ran.code == 6
    assert "another version" in ran.err


def _unimplemented(context):
    import grpc

    context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown method")


@pytest.mark.parametrize("stops", [False, True], ids=["lost", "stopped"])
def test_a_lost_answer_is_asked_again_with_the_same_key_and_gives_one_job(hsctl, fake, monkeypatch, stops):
    monkeypatch.setattr(line_module, "RETRY_DELAYS_S", (0.01, 0.01, 0.01))
    fake.stops = stops
    fake.losses["Submit"] = 2
    ran = hsctl("submit", "--parsable", "true")
    assert (ran.code, ran.out) == (0, "1\n")
    assert len(fake.requests["Submit"]) == 3
    assert len({r.key for r in fake.requests["Submit"]}) == 1
    assert len(fake.jobs) == 1


def test_two_invocations_have_two_keys(hsctl, fake):
    hsctl("submit", "true")
    hsctl("submit", "true")
    assert len({r.key for r in fake.requests["Submit"]}) == 2
    assert len(fake.jobs) == 2


def test_a_controller_that_went_away_while_it_was_asked_is_waited_for(hsctl, fake, monkeypatch):
    monkeypatch.setattr(line_module, "RETRY_DELAYS_S", (0.01, 0.01))
    fake.losses["DrainNode"] = 10
    fake.nodes = [wire.NodeView(name="v1", state="up")]
    assert hsctl("node", "drain", "v1").code == 0
    assert len({request.key for request in fake.requests["DrainNode"]}) == 1


def test_who_watches_waits_for_a_controller_that_went_away_in_between(serving, fake, monkeypatch):
    monkeypatch.setattr(line_module, "RETRY_DELAYS_S", (0.01, 0.01))
    where = f"unix:{serving.socket}"
    with Client(where) as asks_once, Client(where, patient=True) as watches:
        assert asks_once.jobs() == []
        assert watches.jobs() == []
        serving.stop()
        with pytest.raises(UnavailableError):
            asks_once.jobs()
        fake.add()
        back = threading.Timer(0.5, serving.start)
        back.start()
        assert [job.id for job in watches.jobs()] == [1]
        back.join()


@pytest.mark.parametrize(
    "words",
    [
        ("queue", "--watch"),
        ("share", "--watch"),
        ("nodes", "--watch", "--jsonl"),
        ("top",),
        ("node", "drain", "v1", "--wait"),
    ],
)
def test_verbs_that_stay_are_patient(hsctl, fake, monkeypatch, words):
    fake.nodes = [wire.NodeView(name="v1", state="up")]
    seen = []

    def looked(client, *_, **__):
        seen.append(client._line.patient)
        raise KeyboardInterrupt

    for method in ("jobs", "newest_jobs", "shares", "nodes", "drain_node"):
        monkeypatch.setattr(Client, method, looked)
    monkeypatch.setattr("hs_client.verbs.top.repaints", lambda: True)
    hsctl(*words)
    assert seen == [True]


def test_who_asks_once_is_told_soon_that_nobody_answers(serving):
    where = f"unix:{serving.socket}.not"
    with Client(where, patient=True) as client, pytest.raises(UnavailableError, match="no such socket"):
        client.info()


def test_waiting_for_it_ends_some_time_and_says_that_the_change_may_have_been_made(
    serving, fake, monkeypatch
):
    monkeypatch.setattr(line_module, "RETRY_DELAYS_S", (0.01, 0.01))
    fake.losses |= {"Info": 10**9, "DrainNode": 10**9}
    with Client(f"unix:{serving.socket}", timeout_s=0.2) as client:
        with pytest.raises(UnavailableError, match="a change that was asked for may have been made"):
            client.drain_node("v1")
        with pytest.raises(UnavailableError) as looked:
            client.info()
        assert "may have been made" not in str(looked.value), "nothing was asked to be changed"


def test_where_no_controller_answers_that_is_given_up_soon_and_nothing_was_asked(serving, monkeypatch):
    monkeypatch.setattr(line_module, "RETRY_DELAYS_S", (0.01, 0.01))
    serving.stop()
    serving.socket.touch()  # as after kill -9
    with Client(f"unix:{serving.socket}", timeout_s=1e9) as client:
        with pytest.raises(UnavailableError) as error:
            client.drain_node("v1")
        assert "may have been made" not in str(error.value)


def test_a_slow_controller_is_unavailable_not_a_hang(serving, fake):
    gate = threading.Event()
    fake.hooks["Info"] = lambda _: gate.wait(5)
    with (
        Client(f"unix:{serving.socket}", timeout_s=0.2) as client,
        pytest.raises(UnavailableError, match=r"within 0\.2 s"),
    ):
        client.info()
    gate.set()


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("gpu01", "expected unix:"),
        ("unix:relative", "absolute path"),
        ("10.1.2.3:7443", "hsctl login 10.1.2.3:7443"),
        ("http://10.1.2.3:7443", "loopback"),
        ("localhost:99999", "expected unix:"),
        ("gpu..head:7443", "expected unix:"),
        (f"{'a' * 64}:7443", "expected unix:"),
        ("[1..2]:7443", "expected unix:"),
    ],
)
def test_addresses_that_cannot_be_are_bad_usage(call, address, text):
    ran = call("--controller", address, "queue")
    assert ran.code == 2
    assert text in ran.err


@pytest.mark.usefixtures("serving")
def test_a_token_goes_along_over_loopback_and_its_file_is_checked(call, fake, tmp_path, monkeypatch):
    import grpc

    token = tmp_path / "token"
    token.write_text("s3cret\n")
    server = grpc.server(__import__("concurrent.futures").futures.ThreadPoolExecutor(2))
    from hs_proto.v1.controller_pb2_grpc import add_HeteroShareServicer_to_server

    add_HeteroShareServicer_to_server(fake, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        monkeypatch.setenv("HS_TOKEN_FILE", str(token))
        assert call("--controller", f"http://127.0.0.1:{port}", "info").code == 0
        assert fake.metadata["Info"]["authorization"] == "Bearer s3cret"
        assert (
            call("--controller", f"http://127.0.0.1:{port}", "--token-file", tmp_path / "none", "info").code
            == 2
        )
    finally:
        server.stop(0).wait(5)


def test_the_controller_is_found_in_the_documented_order(call, serving, tmp_path, monkeypatch):
    state = tmp_path / "state"
    state.mkdir()
    (state / "cluster.json").write_text(f'{{"socket": "{serving.socket}"}}')
    monkeypatch.setenv("HS_STATE", str(state))
    assert call("info").code == 0
    monkeypatch.setenv("HS_CONTROLLER", f"unix:{tmp_path}/other.sock")
    assert "HS_CONTROLLER" in call("info").err
    assert "--controller" in call("--controller", f"unix:{tmp_path}/third.sock", "info").err


def test_a_broken_cluster_file_falls_back_to_the_systems_socket(call, tmp_path, monkeypatch):
    (tmp_path / "cluster.json").write_text("{")
    monkeypatch.setenv("HS_STATE", str(tmp_path))
    assert "/run/heteroshare/controller.sock" in call("info").err


def test_who_names_a_folder_without_a_cluster_is_told_that_another_was_asked(call, tmp_path, monkeypatch):
    monkeypatch.setenv("HS_STATE", str(tmp_path / "mistyped"))
    assert f"as no cluster is up in HS_STATE={tmp_path}/mistyped" in call("info").err


@pytest.mark.parametrize("verb", ["info", "down"])
def test_a_state_folder_that_is_a_file_is_refused(call, tmp_path, monkeypatch, verb):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HS_STATE", str(tmp_path / "file"))
    ran = call(verb)
    assert (ran.code, "expected a folder" in ran.err, "HS_STATE=" in ran.err) == (2, True, True)


@pytest.mark.parametrize("said", ["yes", "true", "2"])
def test_a_word_that_hs_remote_does_not_know_is_refused(hsctl, monkeypatch, said):
    monkeypatch.setenv("HS_REMOTE", said)
    ran = hsctl("submit", "true")
    assert (ran.code, f"HS_REMOTE='{said}': expected 1" in ran.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["qeue"], "did you mean 'queue'?"),
        (["queue", "--jsn"], "--json"),
        (["queue", "--json", "--watch"], "--jsonl"),
        (["events", "--json", "-f"], "--jsonl"),
        (["queue", "--me", "--of", "bob"], "one of them"),
        (["share", "--window", "soon"], "expected a duration"),
        (["user", "set", "ann"], "nothing to set"),
        (["user", "set", "ann", "--tickets", "0"], "tickets from 0.001 to 1e9"),
        (["user", "set", "ann", "--tickets", "nan"], "tickets from 0.001 to 1e9"),
        (["wait"], "JOB"),
        (["cancel"], "--me"),
        (["logs", "--tail", "-3", "1"], "tail"),
    ],
)
def test_bad_usage_is_exit_code_2_with_nothing_on_stdout(hsctl, words, text):
    ran = hsctl(*words)
    assert ran.code == 2
    assert text in ran.err
    assert ran.out == ""


@pytest.mark.parametrize("verb", ["queue", "top"])
def test_a_reader_that_has_had_enough_is_no_traceback(verb, serving, fake):
    for _ in range(300):
        fake.add(name="x" * 100)
    command = [sys.executable, "-m", "hs_client", "--controller", f"unix:{serving.socket}", verb]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as hsctl:
        hsctl.stdout.close()
        err = hsctl.stderr.read()
        assert hsctl.wait(20) == 141
        assert err == b""


@pytest.mark.parametrize("flag", ["controller", "user", "token-file", "ca"])
def test_a_flag_for_everything_that_is_given_and_empty_is_refused(call, flag):
    ran = call(f"--{flag}", "", "queue")
    assert ran.code == 2
    assert f"'--{flag}': expected text that is not empty" in ran.err


@pytest.mark.parametrize(
    "words", [["queue", "--watch", "--interval"], ["top", "--interval"], ["up", "--quantum"]]
)
def test_seconds_that_are_no_number_are_refused(call, words):
    ran = call(*words, "nan")
    assert (ran.code, "'nan' is not a number of seconds" in ran.err) == (2, True)


class AtTerminal:
    """hsctl on a terminal of that kind; killed after a minute. It heeds signals, also where whoever runs the tests does not."""

    def __init__(self, serving, term: str, *words: str) -> None:
        program = (
            "import signal; [signal.signal(n, signal.SIG_DFL) for n in (signal.SIGTERM, signal.SIGHUP)]; "
            "from hs_client.__main__ import main; main()"
        )
        command = [sys.executable, "-c", program, "--controller", f"unix:{serving.socket}", *words]
        env = os.environ | {"TERM": term, "COLUMNS": "160"}
        self._terminal, theirs = pty.openpty()
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
        os.close(theirs)
        self._late = threading.Timer(60.0, self.process.kill)
        self._late.start()
        self.said = b""

    def read(self, until: bytes | None = None) -> None:
        """Up to that, or to its end."""
        with contextlib.suppress(OSError):  # as a terminal's end reads
            while until is None or until not in self.said:
                self.said += os.read(self._terminal, 65536)

    def end(self) -> int:
        self.read()
        code = self.process.wait()
        self._late.cancel()
        os.close(self._terminal)
        return code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_terminal_is_left_as_it_was_by_who_is_told_to_end(serving, fake, number):
    fake.add(name="this-one")
    top = AtTerminal(serving, "xterm", "top")
    top.read(until=b"this-one")
    top.process.send_signal(number)
    assert top.end() == 128 + number
    assert top.said.rindex(b"\x1b[?25h") > top.said.rindex(b"\x1b[?25l"), "the cursor is shown again"
    assert b"\x1b[?1049l" in top.said, "and what was on the screen before"


def test_a_terminal_that_cannot_repaint_is_shown_one_page_and_not_nothing_for_ever(serving, fake):
    fake.add(name="this-one")
    top = AtTerminal(serving, "dumb", "top")
    assert top.end() == 0
    assert b"this-one" in top.said


def test_a_terminal_is_shown_the_beginning_of_a_command_without_end_and_a_pipe_all_of_it(
    serving, fake, hsctl
):
    job = fake.add()
    fake.specs[job.id] = common.JobSpec(command=["sh", "-c", "x" * 50_000], gpus=1, nodes=1)
    assert "x" * 50_000 in hsctl("show", job.id).out
    show = AtTerminal(serving, "xterm", "show", str(job.id))
    assert show.end() == 0
    assert b"x (48006 more characters; --json has all)" in show.said.replace("…".encode(), b"")
    assert len(show.said) < 5000


def test_a_terminal_that_cannot_repaint_is_shown_each_table_that_is_another(serving, fake):
    fake.add(name="this-one")
    queue = AtTerminal(serving, "dumb", "queue", "--watch", "--interval", "0.1")
    queue.read(until=b"this-one")
    fake.add(name="the-next")
    queue.read(until=b"the-next")
    queue.process.send_signal(signal.SIGTERM)
    assert queue.end() == 128 + signal.SIGTERM
    assert b"the-next" in queue.said
    assert b"\x1b" not in queue.said


def test_a_full_disk_under_the_answer_is_told_without_a_traceback(serving, fake):
    fake.add(name="x" * 100)
    command = [sys.executable, "-m", "hs_client", "--controller", f"unix:{serving.socket}", "queue"]
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert ran.returncode == 1
    assert ran.stderr == "hsctl: standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize(("closed", "verb", "code"), [(1, "queue", 0), (2, "show 99", 4)])
def test_what_goes_to_a_closed_stream_goes_nowhere_else(serving, fake, closed, verb, code):
    fake.add()
    program = f"exec {shlex.quote(sys.executable)} -m hs_client --controller unix:{serving.socket} {verb} {closed}>&-"
    ran = subprocess.run(["sh", "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (code, "", "")


@pytest.mark.parametrize("verb", ["show 1", "top --once", "queue"])
def test_what_a_terminal_of_another_encoding_cannot_show_is_a_question_mark(serving, fake, verb):
    fake.add(name="größe ☃")
    command = [sys.executable, "-m", "hs_client", "--controller", f"unix:{serving.socket}", *verb.split()]
    latin = os.environ | {"PYTHONIOENCODING": "iso-8859-1"}
    ran = subprocess.run(command, capture_output=True, env=latin, check=False, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert "größe ?".encode("iso-8859-1") in ran.stdout


def test_that_nobody_listens_is_said_in_plain_words(call, short):
    left = short / "left.sock"
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(left))
    ran = call("--controller", f"unix:{left}", "info")
    assert ran.code == 6
    assert (
        ran.err
        == f"hsctl: no controller answers at unix:{left} (--controller): connection refused: nothing listens there\n"
    )

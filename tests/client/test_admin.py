"""Verbs for admins, trades, and the page."""

import hashlib
import io
import json
import shlex
import signal
import stat
import subprocess
import sys
import threading

import pytest
from client_fakes import GPUS

from hs_controller.__main__ import cli as controller
from hs_proto.v1 import controller_pb2 as wire


@pytest.fixture
def two_nodes(fake):
    fake.nodes = [
        wire.NodeView(name="v1", state="up", gpus=GPUS[:2], jobs=2, certificate_until=2e9),
        wire.NodeView(name="k1", state="up", gpus=GPUS[2:]),
    ]
    fake.add(
        id=7,
        state="running",
        host="v1",
        hosts=["v1"],
        gpu_model="V100",
        moving_to="k1",
        moving_why="v1 is drained",
    )
    fake.add(id=8, user="bob", state="suspended", host="v1", hosts=["v1"])
    return fake


@pytest.fixture
def traded(fake):
    fake.trades = [
        wire.TradeView(at=1.7e9, fast="V100", slow="K80", gives="ann", receives="bob", fast_gpus=1, slow_gpus=5, price=5,
                       giver_speedup=1.25, taker_speedup=6.25),
        wire.TradeView(at=1.6e9, fast="V100", slow="P100", gives="bob", receives="eve", fast_gpus=1, slow_gpus=2, price=2,
                       giver_speedup=1, taker_speedup=3, undone=1.65e9, why_undone="bob left"),
    ]  # fmt: skip
    return fake


@pytest.mark.usefixtures("traded")
def test_trades_have_the_contracts_names_and_say_who_gives_and_receives(hsctl):
    (row,) = json.loads(hsctl("trades", "--json").out)
    names = [
        "at",
        "fast",
        "slow",
        "gives",
        "receives",
        "fast_gpus",
        "slow_gpus",
        "price",
        "speedups",
        "undone",
    ]
    assert list(row)[:10] == names
    assert row["speedups"] == {"ann": 1.25, "bob": 6.25}
    assert row["undone"] is None
    header, line = hsctl("trades").out.splitlines()
    assert header.split()[:4] == ["at", "user", "gives", "receives"]
    assert line.split()[2:8] == ["ann", "1.00", "V100", "5.00", "K80", "bob"]
    assert "5.00 K80 for a V100" in line


def test_trades_all_has_undone_ones_with_the_reason_and_me_only_mine(hsctl, traded):
    assert len(json.loads(hsctl("trades", "--all", "--json").out)) == 2
    assert "bob left" in hsctl("trades", "-a").out
    traded.info.you = "eve"
    (mine,) = json.loads(hsctl("trades", "--all", "--me", "--json").out)
    assert mine["undone"] == 1.65e9
    assert hsctl("trades", "--me", "--jsonl", "-n", "5").out == ""
    assert traded.last("ListTrades").limit == 10_000, "mine are among all"
    hsctl("trades", "-n", "5")
    assert traded.last("ListTrades").limit == 5


def test_the_newest_trades_of_mine_are_listed_though_others_have_traded_since(hsctl, traded):
    traded.trades = [
        wire.TradeView(at=at, fast="V100", slow="K80", gives=gives, receives="dan")
        for at, gives in enumerate(("ann", "ann", "carl", "carl"), 1)
    ]
    (mine,) = json.loads(hsctl("trades", "--me", "-n", "1", "--json").out)
    assert (mine["at"], mine["gives"]) == (2, "ann")


def test_more_trades_than_are_listed_at_once_are_refused_by_the_options_name(hsctl):
    refused = hsctl("trades", "-n", "10001")
    assert refused.code == 2
    assert "-n" in refused.err
    assert "10000" in refused.err


def test_enroll_prints_one_line_to_join_with(hsctl, fake):
    ran = hsctl("node", "enroll", "v1", "--valid", "2h")
    assert (
        ran.out
        == f"hs-agent join --controller head:7443 --name v1 --token one-time --ca-sha256 {'ab' * 32}\n"
    )
    assert (fake.last("EnrollNode").node, fake.last("EnrollNode").valid_s) == ("v1", 7200)
    assert json.loads(hsctl("node", "enroll", "v1", "--json").out)["token"] == "one-time"


def test_a_time_without_its_unit_is_refused(hsctl, two_nodes):
    for flag in ("--deadline", "--timeout"):
        ran = hsctl("node", "drain", "v1", flag, "15")
        said = f"hsctl: {flag} '15': expected a duration with its unit, e.g. 30s, 90m, 2h or 7d\n"
        assert (ran.code, ran.err) == (2, said)
    assert two_nodes.requests["DrainNode"] == []


def test_drain_tells_what_is_left_and_waits_for_it(hsctl, two_nodes):
    ran = hsctl("node", "drain", "v1", "--reason", "new fans", "--deadline", "30m")
    asked = two_nodes.last("DrainNode")
    assert (asked.node, asked.reason, asked.deadline_s, bool(asked.key)) == ("v1", "new fans", 1800, True)
    assert "2 jobs left" in ran.out
    assert "new fans" in ran.out

    def leave():
        two_nodes.nodes[0].jobs = 0

    timer = threading.Timer(0.2, leave)
    timer.start()
    ran = hsctl("node", "drain", "v1", "--wait")
    timer.join()
    assert ran.code == 0
    assert "v1: 2 jobs left: 7 (moving to k1), 8 (suspended)" in ran.err
    assert "0 jobs left" in ran.out


def test_a_drain_is_waited_for_until_what_left_has_fetched_its_checkpoint(hsctl, two_nodes):
    two_nodes.nodes[0].jobs = 0
    two_nodes.nodes[0].needed_by.extend([7, 9])
    two_nodes.add(id=9, state="paused")
    assert "has the only checkpoint of jobs 7, 9" in hsctl("node", "drain", "v1").out
    ran = hsctl("node", "drain", "v1", "--wait", "--timeout", "0.1s")
    assert ran.code == 124
    assert (
        "v1 is not empty: jobs 7 (moving to k1), 9 (paused) yet to fetch a checkpoint that only it has"
        in ran.err
    )
    timer = threading.Timer(0.2, lambda: two_nodes.nodes[0].ClearField("needed_by"))
    timer.start()
    assert hsctl("node", "drain", "v1", "--wait").code == 0
    timer.join()
    assert json.loads(hsctl("nodes", "--json").out)[0]["needed_by"] == []


@pytest.mark.usefixtures("two_nodes")
def test_a_drain_that_takes_too_long_is_a_timeout_and_goes_on(hsctl):
    ran = hsctl("node", "drain", "v1", "--wait", "--timeout", "0.1s")
    assert ran.code == 124
    assert "goes on being drained" in ran.err
    assert hsctl("node", "drain", "v1", "--timeout", "1m").code == 2


def test_who_waits_for_a_drain_is_told_that_the_server_is_away(hsctl, two_nodes):
    two_nodes.nodes[0].state = "away"
    ran = hsctl("node", "drain", "v1", "--wait", "--timeout", "0.1s")
    assert (ran.code, "the server is away, and until it is back nothing leaves it" in ran.err) == (124, True)


def test_a_drain_that_somebody_ends_is_no_longer_waited_for(hsctl, two_nodes):
    two_nodes.hooks["ListNodes"] = lambda _: setattr(two_nodes.nodes[0], "draining", False)
    assert hsctl("node", "drain", "v1", "--wait").code == 1


def test_nodes_show_draining_jobs_and_certificates(hsctl, two_nodes):
    hsctl("node", "drain", "v1", "--reason", "fans")
    ran = hsctl("nodes")
    row = ran.out.splitlines()[1]
    assert row.split()[:5] == ["v1", "draining", "V100", "0/0/2", "2"]
    assert "left" in row
    assert "v1: is drained; 2 jobs left; fans" in ran.err
    node = json.loads(hsctl("nodes", "--me", "--json").out)
    assert [(n["name"], n["draining"], n["jobs"], n["certificate_until"]) for n in node] == [
        ("v1", True, 2, 2e9)
    ]
    assert "takes jobs" in hsctl("node", "undrain", "v1").out
    assert not two_nodes.nodes[0].draining


def test_gpus_are_drained_by_index(hsctl, two_nodes):
    assert "GPU 2,3 drained" in hsctl("gpu", "drain", "k1", "3", "2", "--reason", "ECC").out
    assert (list(two_nodes.last("SetGpuDrain").gpus), two_nodes.last("SetGpuDrain").drain) == ([3, 2], True)
    states = {
        row["index"]: row["state"] for row in json.loads(hsctl("gpus", "--json").out) if row["node"] == "k1"
    }
    assert states == {2: "drained", 3: "unhealthy"}
    busy = two_nodes.nodes[0].gpus[0]
    two_nodes.nodes[0].uses.add(gpu_id=busy.id, running_job=7, user="ann")
    assert "drained" not in hsctl("gpus").out.splitlines()[1]
    hsctl("gpu", "drain", "v1", str(busy.index))
    line = hsctl("gpus").out.splitlines()[1]
    assert "busy" in line
    assert line.endswith("drained"), "also while a job that cannot leave is on it"
    assert "takes jobs" in hsctl("gpu", "undrain", "k1", "2", "3").out
    assert hsctl("gpu", "drain", "k1").code == 2
    assert hsctl("gpu", "drain", "k1", "x").code == 2


def test_remove_says_what_was_queued_again_and_strangers_are_not_found(hsctl, two_nodes):
    assert hsctl("node", "remove", "v1").out == "v1 removed; queued again: 3, 4\n"
    assert hsctl("node", "remove", "--force", "v1").code == 0
    assert [asked.force for asked in two_nodes.requests["RemoveNode"]] == [False, True]
    for words in (["node", "remove", "x"], ["node", "drain", "x"], ["gpu", "drain", "x", "0"]):
        ran = hsctl(*words)
        assert (ran.code, "no such node: x" in ran.err) == (4, True)


@pytest.mark.parametrize(
    "words", [["node", "drain", "v1"], ["backup", "-"], ["node", "enroll", "v1"], ["token", "list"]]
)
def test_what_is_for_admins_is_refused_to_others_with_5(hsctl, fake, words):
    for method in ("DrainNode", "Backup", "EnrollNode", "ListTokens"):
        fake.refusals[method] = ("not-allowed", "for admins")
    assert hsctl(*words).code == 5


def test_how_a_policy_fails_is_shown_and_what_to_do(hsctl, fake):
    assert "it fails" not in hsctl("policy", "show").out
    fake.policy.failure = "KeyError: 'a job' (policies/fifo.py:9)"
    assert "it fails:   KeyError: 'a job' (policies/fifo.py:9)" in hsctl("policy", "show").out
    ran = hsctl("doctor")
    assert (ran.code, "fail  policy: it fails: KeyError" in ran.out) == (1, True)


def test_a_policy_that_is_at_one_decision_for_longer_than_a_quantum_is_shown_so(hsctl, fake):
    fake.policy.quantum_s, fake.policy.deciding_s = 60.0, 59.0
    assert "deciding" not in hsctl("policy", "show").out
    fake.policy.deciding_s = 75.0
    assert "deciding:   for 75 s now" in hsctl("policy", "show").out
    ran = hsctl("doctor")
    assert (ran.code, "fail  policy: it has been deciding for 75 s" in ran.out) == (1, True)
    assert hsctl("policy", "set", "gandiva-fair").out.splitlines() == [
        "gandiva-fair is in office as before",
        "the decision at which gandiva-fair has been for 75 s is given up",
    ]


def test_decisions_that_were_given_up_and_do_not_end_are_counted_and_doctor_warns_of_them(hsctl, fake):
    assert "given up" not in hsctl("policy", "show").out
    fake.policy.given_up = 2
    assert "given up:   2 decisions have not come to their end" in hsctl("policy", "show").out
    assert "warn  policy: 2 of the decisions that were given up" in hsctl("doctor").out


def test_policy_is_shown_checked_and_set(hsctl, fake):
    assert "fair, preemptive" not in hsctl("policy", "show").out
    assert "gandiva-fair: shares" in hsctl("policy", "show").out
    assert json.loads(hsctl("policy", "show", "--json").out)["available"] == ["fifo", "gandiva-fair"]
    assert hsctl("policy", "check", "fifo").out == "fifo: available\n"
    ran = hsctl("policy", "check", "gandiva")
    assert (ran.code, "'gandiva-fair'?" in ran.err) == (2, True)
    ran = hsctl("policy", "set", "fifos")
    assert (ran.code, "'fifo'?" in ran.err, fake.policy.name) == (2, True, "gandiva-fair")
    assert hsctl("policy", "set", "fifo").out == "fifo is in office, in place of gandiva-fair\n"
    assert fake.policy.name == "fifo"
    assert hsctl("policy", "set", "fifo").out == "fifo is in office as before\n"


@pytest.mark.parametrize("verb", ["backup", "support-bundle"])
def test_in_a_folder_that_was_removed_nothing_can_be_written(hsctl, tmp_path, monkeypatch, verb):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    ran = hsctl(verb, "copy")
    assert (ran.code, ran.err) == (
        2,
        "hsctl: the folder you are in was removed: expected one that exists (cd)\n",
    )


def test_a_backup_is_kept_only_when_it_is_whole(hsctl, fake, tmp_path):
    data = [b"half", b"other"]
    digest = hashlib.sha256(b"".join(data)).hexdigest()
    fake.copy = [wire.BackupChunk(data=data[0]), wire.BackupChunk(data=data[1], sha256=digest)]
    ran = hsctl("backup", "copy.db")
    assert (ran.code, digest in ran.out) == (0, True)
    path = tmp_path / "copy.db"
    assert path.read_bytes() == b"halfother"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert hsctl("backup", "copy.db").code == 2
    (tmp_path / "folder").mkdir()
    ran = hsctl("backup", "folder", "--force")
    assert (ran.code, "folder is a folder: expected the name of a file" in ran.err) == (2, True)
    assert hsctl("backup", "copy.db", "--force").code == 0
    assert hsctl("backup", "-").out == "halfother"
    fake.copy.pop()
    ran = hsctl("backup", "torn.db")
    assert (ran.code, "not whole" in ran.err) == (1, True)
    assert [p.name for p in tmp_path.iterdir() if "db" in p.name] == ["copy.db"]


@pytest.mark.parametrize("verb", ["backup", "support-bundle"])
def test_a_file_has_the_longest_name_there_can_be_and_why_it_cannot_be_written_is_said_of_its_own_name(
    hsctl, fake, tmp_path, verb
):
    fake.copy = [wire.BackupChunk(data=b"all", sha256=hashlib.sha256(b"all").hexdigest())]
    longest = "ä" * 126 + ".db"
    assert hsctl(verb, longest).code == 0
    assert [each.name for each in tmp_path.iterdir() if "ä" in each.name] == [longest]
    (tmp_path / "file").touch()
    ran = hsctl(verb, "file/copy")
    assert ran.code == 2
    assert ran.err.endswith("file/copy cannot be written: Not a directory\n"), ran.err


KILLED = """
import os, signal, sys
from hs_client.__main__ import main
from hs_client.api import Client

whole = Client.backup

def cut(client):
    yield next(iter(whole(client)))
    os.kill(os.getpid(), signal.SIGKILL)

Client.backup = cut
main()
"""


@pytest.mark.parametrize("nameless", [True, False])
def test_a_backup_that_is_killed_leaves_what_was_there_and_can_be_said_again(
    serving, fake, hsctl, tmp_path, nameless
):
    data = [b"half", b"other"]
    digest = hashlib.sha256(b"".join(data)).hexdigest()
    fake.copy = [wire.BackupChunk(data=data[0]), wire.BackupChunk(data=data[1], sha256=digest)]
    path = tmp_path / "copy.db"
    path.write_text("the one before")
    program = KILLED if nameless else "import os\ndel os.O_TMPFILE\n" + KILLED
    words = ["--controller", f"unix:{serving.socket}", "backup", "copy.db", "--force"]
    for _ in range(2):
        ran = subprocess.run([sys.executable, "-c", program, *words], check=False, timeout=60)
        assert ran.returncode == -signal.SIGKILL
        assert path.read_text() == "the one before"
    left = [each for each in tmp_path.iterdir() if "copy.db" in each.name and each != path]
    assert not (nameless and left)
    assert all(stat.S_IMODE(each.stat().st_mode) == 0o600 for each in left)
    assert hsctl("backup", "copy.db", "--force").code == 0
    assert path.read_bytes() == b"halfother"


def test_restore_says_where_it_is_done_in_words_that_hs_controller_takes(call, tmp_path):
    copy = tmp_path / "a copy.db"
    copy.touch()
    ran = call("restore", copy)
    assert ran.code == 2
    told = next(shlex.split(line) for line in ran.err.splitlines() if "hs-controller restore" in line)
    taken = controller.commands["restore"].make_context("restore", told[3:])
    assert (taken.params["source"], taken.params["force"]) == (copy, True)


def test_a_jobs_page_has_its_rates_speed_ups_move_and_checkpoint(hsctl, two_nodes):
    two_nodes.change(7, migrations=2, checkpoint_step=40)
    two_nodes.jobs[7].checkpoint_on.append("v1")
    shown = hsctl("show", "7").out
    assert (
        "V100 12.50 steps/s, 5.00 x the slowest (3 samples); K80 2.50 steps/s, 1.00 x the slowest (1 sample)"
        in shown
    )
    assert "k1: v1 is drained" in shown
    assert "migrations:   2" in shown
    assert "at step 40, on v1" in shown
    row = json.loads(hsctl("show", "7", "--json").out)
    assert (row["migrations"], row["nodes"], row["moving_to"]) == (2, ["v1"], "k1")
    assert "moving to k1" in hsctl("queue").out


def test_a_job_over_several_nodes_names_them_by_rank(hsctl, fake):
    fake.add(id=9, state="running", host="v2", hosts=["v2", "v1"], nodes=2, gpus=8)
    (row,) = json.loads(hsctl("queue", "--json").out)
    assert (row["nodes"], row["node_count"], row["gpus"]) == (["v2", "v1"], 2, 8)
    assert "v2,v1" in hsctl("queue").out


def test_share_shows_base_and_what_trades_changed(hsctl, fake):
    fake.shares = wire.SharesReply(
        shares=[
            wire.ShareView(user="ann", gpu_model="V100", entitled_gpus=0.5, base_gpus=1.5, received_gpus=0.5)
        ]
    )
    (row,) = json.loads(hsctl("share", "--json").out)
    assert (row["base"], row["entitled"]) == ({"V100": 1.5}, {"V100": 0.5})
    assert hsctl("share", "--no-header").out.split()[4:8] == ["1.50", "-1.00", "0.50", "0.50"]


@pytest.mark.usefixtures("traded")
def test_top_is_one_page_with_pools_users_servers_jobs_and_why(hsctl, two_nodes):
    two_nodes.shares = wire.SharesReply(
        window_s=3600.0,
        fair=True,
        pools=[wire.Pool(gpu_model="V100", gpus=8, healthy=4, busy=2, away=4)],
        shares=[
            wire.ShareView(
                user="ann",
                gpu_model="V100",
                tickets=100,
                base_gpus=2,
                entitled_gpus=1,
                due_gpus=1,
                received_gpus=1,
            ),
            wire.ShareView(user="bob", gpu_model="V100", entitled_gpus=3, due_gpus=2, received_gpus=1.5),
            wire.ShareView(user="eve", gpu_model="V100", due_gpus=0.2, received_gpus=0.1),
        ],
    )
    two_nodes.add(id=9, user="bob", reason="waiting-for-turn", reason_text="1 quantum of 2 is its")
    two_nodes.nodes[0].uses.add(gpu_id="GPU-0", running_job=7, user="ann")
    two_nodes.nodes[0].gpus[0].utilization_percent = 90
    two_nodes.nodes[0].uses.add(gpu_id="GPU-1", bound_jobs=[8])
    two_nodes.nodes[1].drained_gpus.append(2)
    two_nodes.events = [wire.Event(seq=1, at=1.7e9, kind="trade", text="ann gives 1 V100")]
    shown = hsctl("top").out
    for words in (
        "1.00 → 5.00 K80",
        "■▣",
        "▨☒",
        "22 %",  # the mean of the four
        "furthest below its share: bob, 75 % of it in the last 1h",
        "1 quantum of 2 is its",
        "moving to k1",
        "ann gives 1 V100",
        "lost work 0",
        "4 away",
    ):
        assert words in shown, words
    (asked,) = two_nodes.requests["Shares"]
    assert asked.window_s == 3600.0


def test_the_page_fits_the_terminal_by_showing_fewer_jobs(fake, serving):
    from rich.console import Console

    from hs_client import Client
    from hs_client.page import look, page

    for number in range(1, 60):
        fake.add(id=number)
    with Client(f"unix:{serving.socket}") as client:
        seen = look(client)
    console = Console(width=120, file=io.StringIO())
    with console.capture() as drawn:
        console.print(page(seen, height=40))
    lines = drawn.get().splitlines()
    assert len(lines) <= 40
    assert "more (hsctl queue)" in lines[-1]

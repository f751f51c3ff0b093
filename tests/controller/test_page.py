"""What the page's script makes of what it is told, without a browser: page_alone.js has as much of one as it needs."""

import json
import shutil
import subprocess
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from hs_controller import web
from hs_proto.v1 import controller_pb2 as pb

NODE = shutil.which("node")
PAGES = Path(web.__file__).parent / "pages"

pytestmark = pytest.mark.skipif(NODE is None, reason="needs node, to run the page's script")


def as_told(message: Any) -> Any:
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def answers(**more: Any) -> dict[str, Any]:
    """Of a cluster in which there is nothing but what is said here."""
    told = {
        "Info": pb.InfoReply(version="t", policy="plain", quantum_s=60, uptime_s=5, you="root", admin=True),
        "Shares": pb.SharesReply(window_s=60),
        "ListNodes": pb.ListNodesReply(),
        "ListJobs": pb.ListJobsReply(totals=pb.JobTotals()),
        "ListTrades": pb.ListTradesReply(),
        "Events": [],
        "history": {"every_s": 20, "at": [], "series": []},
    } | more
    return {name: as_told(one) if hasattr(one, "DESCRIPTOR") else one for name, one in told.items()}


def looked(*steps: dict[str, Any]) -> list[dict[str, Any]]:
    """What stands on the page after each of them, by the id of its part, and what was `asked`."""
    assert NODE is not None
    script = Path(__file__).with_name("page_alone.js")
    done = subprocess.run(
        [NODE, str(script), str(PAGES / "page.js"), str(PAGES / "index.html")],
        input=json.dumps(steps),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown: list[dict[str, Any]] = json.loads(done.stdout)
    return shown


def listed(*jobs: pb.JobView, **totals: float) -> pb.ListJobsReply:
    return pb.ListJobsReply(
        jobs=jobs, totals=pb.JobTotals(**{"jobs": len(jobs), "found": len(jobs)} | totals)
    )


def test_an_empty_cluster_is_shown_as_one() -> None:
    [page] = looked({"answers": answers()})
    assert page["banner"] == ""
    assert "Jobs 0 0 without a place" in page["tiles"]
    assert page["jobs"] == "There is no job."
    assert page["who"] == "Nobody has submitted a job yet."
    assert page["servers"].startswith("No server has joined yet")


def test_all_jobs_are_counted_and_found_though_the_newest_alone_are_listed() -> None:
    newest = [pb.JobView(id=5000 - at, name="j", user="ann", state="queued") for at in range(300)]
    many = answers(ListJobs=listed(*newest, jobs=5000, queued=4000, lost_gpu_s=7.0, found=5000))
    old = pb.JobView(id=12, name="needle", user="bob", state="suspended", array_id=10, array_index=2)
    one = {"ListJobs": as_told(listed(old, jobs=5000, queued=4000, found=1))}
    first, typed, found = looked(
        {"answers": many}, {"type": {"filter": "10_2 Bob"}, "only_type": True}, {"answers": one}
    )
    assert "Jobs 5000 4000 without a place" in first["tiles"]
    assert "7 GPU-s must read 0" in first["tiles"]
    assert first["jobs-sum"] == "the newest 300 of 5000"
    assert typed["jobs"] == "No job is like that."
    assert ["ListJobs", {"limit": 300, "words": ["10_2", "bob"], "totals": True}] in found["asked"]
    assert "12 (10_2) needle bob suspended" in found["jobs"]
    assert found["jobs-sum"] == "1 of 5000"


def test_what_was_not_today_is_told_with_its_date() -> None:
    now = datetime.now().astimezone()
    then = now - timedelta(days=3)
    days = [pb.Event(seq=seq, at=at, kind="placed", text=text) for seq, at, text in (
        (1, then.timestamp(), "long ago"), (2, now.timestamp(), "just now"))]  # fmt: skip
    [page] = looked({"answers": answers(Events=[as_told(day) for day in days])})
    today, before = page["events"].removeprefix("at of what").split("just now")
    assert str(now.year) not in today, page["events"]
    assert str(then.year) in before, page["events"]


def job_page(job: int, name: str, story: list[tuple[str, float]], **view: Any) -> dict[str, Any]:
    told = [pb.Event(seq=seq, at=at, kind=kind, job_id=job) for seq, (kind, at) in enumerate(story, 1)]
    shown = pb.JobView(id=job, name=name, user="ann", state="running", submitted_at=1.0, **view)
    return {
        f"GetJob {job}": as_told(pb.JobDetail(view=shown, story=told, now=130.0)),
        f"Why {job}": as_told(pb.WhyReply(job_id=job)),
        f"Logs {job}": [],
    }


@pytest.mark.parametrize(
    ("story", "states"),
    [
        (["submitted", "placed", "running"], ["queued", "starting", "running"]),
        (["submitted", "placed", "paused", "resumed"], ["queued", "starting", "paused", "starting"]),
        (["running", "paused", "resumed", "running"], ["running", "paused", "suspended", "running"]),
        (["submitted", "paused", "resumed", "placed"], ["queued", "paused", "queued", "starting"]),
        (["running", "moving", "move-abandoned"], ["running", "moving", "running"]),
        (["running", "moving", "suspended", "left", "starting", "suspended", "migrated"],
         ["running", "moving", "suspended", "moving", "starting", "suspended", "suspended"]),
        (["lost", "placed", "starting", "running", "restored"], ["queued", "starting", "starting", "running", "running"]),
        (["running", "paused", "left", "migrated", "resumed"], ["running", "paused", "paused", "paused", "suspended"]),
    ],
)  # fmt: skip
def test_a_jobs_timeline_shows_the_states_that_it_had(story: list[str], states: list[str]) -> None:
    told = job_page(7, "j", [(kind, 100.0 + at) for at, kind in enumerate(story)], ended_at=200.0)
    [page] = looked({"answers": answers() | told, "hash": "#job/7"})
    assert page["banner"] == ""
    assert page["timeline"] == states


def test_a_timeline_is_told_to_who_does_not_see_it() -> None:
    story = [
        ("submitted", 100.0),
        ("running", 103.0),
        ("suspended", 110.0),
        ("running", 115.0),
        ("succeeded", 120.0),
    ]
    [page] = looked({"answers": answers() | job_page(7, "j", story, ended_at=120.0), "hash": "#job/7"})
    assert "queued for 3.0 s, running for 12 s, suspended for 5.0 s" in page["spoken"]


def test_the_timeline_of_a_job_that_goes_on_ends_now_by_the_controllers_clock() -> None:
    told = job_page(7, "j", [("submitted", 100.0), ("running", 103.0)])
    [page] = looked({"answers": answers() | told, "hash": "#job/7"})
    assert "queued for 3.0 s, running for 27 s" in page["spoken"]


@pytest.mark.parametrize("admin", [True, False])
def test_a_gpu_is_told_to_who_does_not_see_its_square(admin: bool) -> None:
    nodes = pb.ListNodesReply()
    node = nodes.nodes.add(name="v1", state="up")
    node.gpus.add(index=0, id="GPU-0", model="V100", healthy=True)
    node.uses.add(gpu_id="GPU-0", running_job=7, user="ann")
    info = pb.InfoReply(version="t", policy="plain", quantum_s=60, uptime_s=5, you="ann", admin=admin)
    [page] = looked({"answers": answers(Info=info, ListNodes=nodes)})
    assert [one for one in page["spoken"] if one.startswith("GPU 0 V100, job 7 of ann")]


def test_who_goes_on_to_another_job_while_a_log_is_waited_for_is_not_taken_back() -> None:
    told = (
        answers() | job_page(1, "first", [("submitted", 1.0)]) | job_page(2, "second", [("submitted", 1.0)])
    )
    _, _, second, later = looked(
        {"answers": told},
        {"hold": "Logs 1", "hash": "#job/1"},
        {"hash": "#job/2"},
        {"let": "Logs 1"},
    )
    assert "Job 2: second" in second["job"]
    assert "Job 2: second" in later["job"]


def test_of_another_users_log_it_is_said_whose_it_is_and_nobody_asks_for_it() -> None:
    bob = {"Info": pb.InfoReply(version="t", policy="plain", quantum_s=60, uptime_s=5, you="bob")}
    [page] = looked({"answers": answers(**bob) | job_page(1, "theirs", []), "hash": "#job/1"})
    assert "End of its log (only ann and administrators may read it)" in page["job"]
    assert "Cancel" not in page["job"]
    assert not any(call == "Logs" for call, _ in page["asked"])


def test_a_change_that_no_answer_came_to_is_said_to_be_perhaps_made() -> None:
    nodes = pb.ListNodesReply(nodes=[pb.NodeView(name="v1", state="up")])
    told = answers(ListNodes=nodes)  # and nothing to DrainNode
    _, page = looked({"answers": told}, {"press": {"servers": "Drain"}})
    assert [one[0] for one in page["asked"][:2]] == ["DrainNode", "told"]
    assert "not known whether that was done" in page["asked"][1][1]


def test_while_the_journal_cannot_be_written_nobody_is_said_to_be_entitled_to_nothing() -> None:
    pools = [pb.Pool(gpu_model="V100", gpus=4, healthy=4)]
    row = pb.ShareView(user="ann", gpu_model="V100", received_gpus=1.5)
    [page] = looked({"answers": answers(Shares=pb.SharesReply(pools=pools, shares=[row], read_only=True))})
    assert "1.50 / –" in page["who"]


@pytest.mark.parametrize("fair", [True, False])
def test_nobody_is_said_to_be_below_a_share_that_the_policy_does_not_promise(fair: bool) -> None:
    pools = [pb.Pool(gpu_model="V100", gpus=4, healthy=4)]
    row = pb.ShareView(user="ann", gpu_model="V100", entitled_gpus=3, due_gpus=2, received_gpus=0.5)
    left = pb.ShareView(user="bob", gpu_model="V100", due_gpus=1, received_gpus=0.1)
    shares = pb.SharesReply(window_s=60, pools=pools, shares=[row, left], policy="fifo", fair=fair)
    [page] = looked({"answers": answers(Shares=shares)})
    assert ("Furthest below its share" in page["tiles"]) is fair
    assert ("25 %" in page["tiles"]) is fair, (
        "of what was due; bob, who is entitled to nothing any more, is not looked at"
    )
    assert ("25 %" in page["who"]) is fair
    assert "0.50 / 2.00 now 3.00" in page["who"]
    assert ("which fifo does not hold shares to" in page["window"]) is not fair


def test_a_gpu_that_was_drained_by_itself_is_found_as_trouble() -> None:
    nodes = pb.ListNodesReply()
    for name in ("v1", "v2"):
        node = nodes.nodes.add(name=name, state="up")
        node.gpus.add(index=0, id=f"GPU-{name}", model="V100", healthy=True)
    nodes.nodes[1].drained_gpus.append(0)
    _, page = looked(
        {"answers": answers(ListNodes=nodes)}, {"type": {"server": "trouble"}, "only_type": True}
    )
    assert "v2" in page["servers"]
    assert "v1" not in page["servers"]
    assert page["servers-sum"] == "2 of 2 up, 1 shown"


def test_a_model_that_is_chosen_for_the_curves_and_goes_leaves_all_of_them() -> None:
    def curves(*models: str) -> dict[str, Any]:
        series = [
            {"user": "ann", "gpu_model": model, "entitled": [1, 1], "received": [1, 1]} for model in models
        ]
        return {"every_s": 20, "at": [0, 20], "series": series}

    shares = pb.SharesReply(window_s=60, shares=[pb.ShareView(user="ann", gpu_model="V100", entitled_gpus=1)])
    told = answers(history=curves("K80", "V100"), Shares=shares)
    _, left = looked({"answers": told}, {"choose": {"pool": "K80"}, "answers": {"history": curves("V100")}})
    assert "ann" in left["charts"]

"""What the documents say is what happens."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hs_client.errors import BY_KIND
from hs_client.verbs.table import VERBS
from hs_proto.v1 import controller_pb2 as wire

ROOT = Path(__file__).resolve().parents[2]
HSCTL = (ROOT / "docs/hsctl.md").read_text(encoding="utf-8")
JOB_FILE = (ROOT / "docs/job-file.md").read_text(encoding="utf-8")
EXAMPLES = [
    line.partition(" #")[0].rstrip()
    for line in HSCTL.splitlines()
    if line.startswith(("hsctl submit ", "hsctl run "))
]


@pytest.mark.parametrize("line", EXAMPLES)
def test_examples_of_submit_do_submit(hsctl, fake, tmp_path, monkeypatch, line):
    (tmp_path / "python").write_text("#!/bin/sh\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("WANDB_API_KEY", "here")
    (tmp_path / "train.sh").write_text("#!/bin/sh\n#SBATCH -G 2\ntrue\n")
    (tmp_path / "job.yaml").write_text(re.search(r"```yaml\n(.*?)```", JOB_FILE, re.DOTALL)[1])
    (tmp_path / "work/logs").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    for name in ("train.sh", "job.yaml"):
        (tmp_path / "work" / name).write_text((tmp_path / name).read_text())
    words = shlex.split(line)[1:]
    if words[0] == "run":
        words.insert(1, "--detach")
    ran = hsctl(*words)
    assert ran.code == 0, ran.err
    assert fake.jobs


def test_there_are_examples():
    assert len(EXAMPLES) >= 6


def test_the_table_of_kinds_is_the_one_in_force():
    text = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
    rows = {
        r[0]: (int(r[1]), r[2])
        for r in re.findall(r"^\| `([a-z-]+)` \|.*\| (\d+) \| `(\w+)` \|$", text, re.MULTILINE)
    }
    assert rows == {kind: (error.exit_code, error.__name__) for kind, error in BY_KIND.items()}


def documented(verb: str) -> set[str]:
    (row,) = [line for line in HSCTL.splitlines() if re.match(rf"\| `?{verb}`?[,` |]", line)]
    return set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`([a-z_ ]+)`", row.split("|")[2]))))


@pytest.mark.parametrize("verb", ["queue", "share", "usage", "nodes", "gpus", "events"])
def test_json_fields_are_the_documented_ones(hsctl, fake, verb):
    from client_fakes import GPUS

    from hs_proto.v1 import controller_pb2 as wire

    fake.add()
    fake.shares = wire.SharesReply(shares=[wire.ShareView(user="ann", gpu_model="V100")])
    fake.usage = [wire.UsageRow(user="ann")]
    fake.nodes = [wire.NodeView(name="n1", gpus=GPUS)]
    fake.events = [wire.Event(seq=1)]
    row = json.loads(hsctl(verb, "--json").out)[0]
    assert set(row) <= documented(verb), set(row) - documented(verb)


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_has_help_that_needs_no_controller(call, verb):
    ran = call(verb, "--help")
    assert ran.code == 0
    assert "Usage: hsctl" in ran.out


def test_help_loads_nothing_that_is_slow():
    look = (
        "import sys; from hs_client.program import run; run(['--help']); "
        "print(sorted({'grpc', 'rich', 'pydantic', 'yaml', 'google', 'hs_core'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stderr.strip() == "[]"


def test_completion_is_there_for_every_shell(call):
    for shell in ("bash", "zsh", "fish"):
        assert "_HSCTL_COMPLETE" in call("completion", shell).out


def completed(line: str) -> subprocess.CompletedProcess[str]:
    """What bash is told of a line that ends where its cursor is."""
    at = str(line.count(" "))
    asked = {"_HSCTL_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": at}
    words = [sys.executable, "-c", "from hs_client.__main__ import main; main()"]
    return subprocess.run(
        words, env=os.environ | asked, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("hsctl queue --state su", ["suspended", "succeeded"]),
        ("hsctl queue -s running,qu", ["running,queued"]),
        ("hsctl submit --migrate s", ["same-type"]),
        ("hsctl submit -f job.yaml name=x --dry", ["--dry-run"]),
    ],
)
def test_words_of_which_there_are_few_are_completed(line, words):
    assert completed(line).stdout.split() == [f"plain,{word}" for word in words]


def test_completion_writes_no_error_into_the_line_where_there_is_no_such_verb():
    assert completed("hsctl frob ").stderr == ""


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("hsctl submit -f jo", "file"),
        ("hsctl submit tr", "file"),
        ("hsctl run -- python tr", "file"),
        ("hsctl submit -C da", "dir"),
        ("hsctl --ca c", "file"),
        ("hsctl up --state s", "dir"),
        ("hsctl backup b", "file"),
    ],
)
def test_the_shell_completes_names_of_files_where_they_are_meant(line, kind):
    assert completed(line).stdout.startswith(f"{kind},")


def test_all_that_show_tells_of_a_job_is_named():
    (row,) = [line for line in HSCTL.splitlines() if line.startswith("| `show` |")]
    told = {field.name for field in wire.JobDetail.DESCRIPTOR.fields} - {"view"}
    told |= {field.name for field in wire.Ages.DESCRIPTOR.fields}
    assert told <= set(re.findall(r"\w+", row))


def test_show_tells_scripts_all_that_is_named(hsctl, fake):
    fake.add()
    told = json.loads(hsctl("show", "1", "--json").out)
    assert {field.name for field in wire.JobDetail.DESCRIPTOR.fields} - {"view"} <= told.keys()

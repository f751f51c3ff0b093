"""What flags, scripts, arrays and sweeps come to on the wire."""

import json
import os
import re
import sys
from fnmatch import filter as matching
from pathlib import Path

import pytest

from hs_client.compose import DEFAULT_ENV
from hs_core.policies import POLICIES


@pytest.fixture
def sent(hsctl, fake):
    """Submit, and the specs that arrived."""

    def submit(*words, stdin=""):
        ran = hsctl("submit", *words, stdin=stdin)
        assert ran.code == 0, ran.err
        submit.err = ran.err
        return list(fake.last("Submit").jobs)

    return submit


def test_a_command_is_sent_as_it_is_with_its_program_found(sent, tmp_path):
    (spec,) = sent("--", "sh", "-c", "echo $HOME *", "--flag")
    assert list(spec.command) == [__import__("shutil").which("sh"), "-c", "echo $HOME *", "--flag"]
    assert (spec.gpus, spec.nodes, spec.workdir, spec.migrate, spec.suspend, spec.on_partition) == (
        1,
        1,
        str(tmp_path),
        "auto",
        "auto",
        "continue",
    )
    assert spec.name == "sh"
    assert not spec.HasField("array_index")
    assert spec.job_class == ""


def test_every_flag_arrives(sent, tmp_path):
    (tmp_path / "w/logs").mkdir(parents=True)
    (spec,) = sent(
        "-J", "resnet", "-G", "H100:4", "-N", "2", "--gpu-mem", "40G", "-c", "8", "--mem", "64G", "-t", "1d12h", "-d", "7", "-d", "8:any,9:fail",
        "-p", "-3", "-e", "LR=0.1", "-e", "EMPTY=", "-C", "w", "-o", "logs/%x.txt", "--torchrun", "--migrate", "same-type", "--suspend", "hook",
        "--on-partition", "fence", "--retry", "2", "--class", "big", "env",
    )  # fmt: skip
    assert (spec.name, spec.gpus, spec.nodes, list(spec.gpu_types)) == ("resnet", 4, 2, ["H100"])
    assert (spec.gpu_memory_bytes, spec.cpus, spec.memory_bytes, spec.max_duration_s) == (
        40 << 30,
        8,
        64 << 30,
        129600,
    )
    assert [(a.job_id, a.condition) for a in spec.after] == [(7, "ok"), (8, "any"), (9, "fail")]
    assert (spec.priority, spec.env["LR"], spec.env["EMPTY"]) == (-3, "0.1", "")
    assert (spec.workdir, spec.output) == (str(tmp_path / "w"), str(tmp_path / "w/logs/resnet.txt"))
    assert (spec.torchrun, spec.migrate, spec.suspend, spec.on_partition) == (
        True,
        "same-type",
        "hook",
        "fence",
    )
    assert (spec.retry_max, spec.job_class) == (2, "big")


def test_only_named_variables_and_a_small_set_are_handed_on(sent, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "x")
    monkeypatch.setenv("WANDB_KEY", "y")
    (spec,) = sent("-e", "WANDB_KEY", "true")
    assert spec.env["WANDB_KEY"] == "y"
    assert set(spec.env) <= {*DEFAULT_ENV, "WANDB_KEY"}
    assert spec.env["PATH"] == os.environ["PATH"]


def test_torchrun_of_a_plain_script_needs_no_x_bit(sent, tmp_path):
    (tmp_path / "train.py").write_text("")
    (spec,) = sent("--torchrun", "train.py")
    assert list(spec.command) == [str(tmp_path / "train.py")]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "nothing to run"),
        (["no-such-program"], "hsctl: command 'no-such-program': expected a program on PATH"),
        (["./none"], "command './none': expected a file that exists"),
        (
            ["LR=1", "python3", "x.py"],
            "command 'LR=1': expected a program; a variable is set by hsctl: -e LR=",
        ),
        (["--torchrun", "torchrun", "x.py"], "torchrun: the command is torchrun itself"),
        (["-J", "\udce9", "true"], "--name: name = '\\udce9': expected UTF-8 text"),
        (["echo hi there"], "no such"),
        (["./plain.txt"], "chmod +x"),
        (["plain.txt"], "write ./plain.txt"),
        (["job.yaml"], "a job file goes with -f: hsctl submit -f job.yaml"),
        (["-C", "gone", "true"], "workdir = "),
        (["-G", "0", "true"], "--gpus: resources.gpus = 0: expected 1 to 1024"),
        (["-G", "-2", "true"], "expected 1 to 1024"),
        (["-G", "99999", "true"], "expected 1 to 1024"),
        (["-G", "many", "true"], "expected a number of GPUs or MODEL:NUMBER"),
        (["-G", "V100:0", "true"], "expected 1 to 1024"),
        (["-G", "9" * 20, "true"], "expected 1 to 1024"),
        (["-G", f"V100:{'9' * 5000}", "true"], "expected 1 to 1024"),
        (["-G", "V100:2", "--gpu-type", "H100", "true"], "expected one of them"),
        (["-N", "0", "true"], "--nodes: nodes = 0: expected at least 1"),
        (["-N", "x", "true"], "not a valid integer"),
        (["--mem", "64", "true"], "expected a size with its unit"),
        (["--gpu-mem", "9999999T", "true"], "at most 1024T"),
        (["--mem", "9e99G", "true"], "at most 1024T"),
        (["--mem", f"{'9' * 400}G", "true"], "at most 1024T"),
        (["-t", "0", "true"], "above 0"),
        (["-t", "99999999999d", "true"], "at most 366 days"),
        (["-t", f"{'9' * 5000}m", "true"], "at most 366 days"),
        (["-t", "9999999999", "true"], "at most 366 days"),
        (["-t", "99999-00", "true"], "at most 366 days"),
        (["-a", "0-99999999999", "true"], "expected task numbers up to 1000000"),
        (["-a", "1000001", "true"], "expected task numbers up to 1000000"),
        (["-d", "9" * 30, "true"], "at most 18 digits"),
        (["--strategy", "dp=9999999", "true"], "from 1 to 999999"),
        (
            ["--gpus-max", "4", "--batch", "4", "--noise-scale", "1e99", "true"],
            "expected at most 1000000000000000",
        ),
        (["-t", "tomorrow", "true"], "expected a duration"),
        (["-a", "5-1", "true"], "expected task numbers"),
        (["-a", "0-5000", "true"], "at most 1000 tasks"),
        (["-a", "1,1", "true"], "every task number once"),
        (["-a", "0-3%0", "true"], "expected task numbers"),
        (["-d", "x", "true"], "expected JOB or JOB:CONDITION"),
        (["-d", "3:later", "true"], "ok, any, fail"),
        (["-e", "HS_JOB_ID=3", "true"], "set by HeteroShare"),
        (["-e", "CUDA_VISIBLE_DEVICES=0", "true"], "set by HeteroShare"),
        (["-e", "A-B=3", "true"], "letters, digits and _"),
        (["-e", "NOT_SET_ANYWHERE", "true"], "NOT_SET_ANYWHERE: expected a variable of your environment"),
        (["--migrate", "maybe", "true"], "expected 'auto', 'same-type' or 'never'"),
        (["--suspend", "kill", "true"], "expected 'auto'"),
        (["--retry", "-1", "true"], "expected at least 0"),
        (["-J", "a\nb", "true"], "printable"),
        (["--sweep", "lr", "true"], "expected NAME=VALUE"),
        (["--sweep", "lr=1,2", "true"], "{lr} somewhere in the command"),
        (["--sweep", "lr=1,2", "echo", "{lr}", "{momentun}"], "{momentun} in the command"),
        (["--sweep", "lr=1", "-a", "0-3", "echo", "{lr}"], "array and sweep"),
        (["-o", "%N.out", "true"], "expected no %"),
        (["-o", "%a.out", "true"], "expected no %"),
        (["-a", "0-1", "-o", "all.out", "true"], "expected %a or %j"),
        (["-a", "0-1", "-o", "%A.out", "true"], "expected %a or %j"),
        (["--sweep", "lr=1,2", "-o", "all.out", "echo", "{lr}"], "expected %j"),
        (["-o", ".", "true"], "expected a file; "),
        (["-o", "nowhere/log", "true"], "expected a file in a folder that exists; "),
        (["-a", "0-1", "-o", "nowhere/of-%j", "true"], "expected a file in a folder that exists; "),
        (["--wait", "--detach", "true"], "one of them"),
        (["-f", "none.yaml"], "none.yaml: No such file"),
        (["-f", "/dev/zero"], "/dev/zero: expected at most 256 KiB"),
    ],
)
def test_bad_submissions_are_refused_here_and_nothing_is_sent(hsctl, fake, tmp_path, words, text):
    (tmp_path / "plain.txt").write_text("hello")
    (tmp_path / "job.yaml").write_text("run: true")
    ran = hsctl("submit", *words)
    if text == "no such":
        assert ran.code == 2
        assert "nothing is split" in ran.err
    else:
        assert text in ran.err
        assert ran.code == 2
    assert ran.out == ""
    assert not fake.requests["Submit"]


def test_a_job_file_may_come_through_a_pipe(hsctl, fake):
    reads, writes = os.pipe()
    with os.fdopen(writes, "w") as file:
        file.write("run: echo piped")
    assert hsctl("submit", "-f", f"/dev/fd/{reads}").code == 0
    os.close(reads)
    assert fake.requests["Submit"][0].jobs[0].command[-1] == "echo piped"


def test_too_much_for_one_message_is_refused_before_it_is_sent(hsctl, fake):
    ran = hsctl("submit", "-e", "BIG=" + "x" * 300_000, "true")
    assert ran.code == 2
    assert "expected at most 262144" in ran.err
    ran = hsctl("submit", "-a", "0-999", "-e", "BIG=" + "x" * 5_000, "true")
    assert ran.code == 2
    assert "in parts" in ran.err
    assert not fake.requests["Submit"]


def test_a_job_may_wait_for_a_task_or_all_of_an_array(sent, hsctl, fake):
    for index in range(3):
        fake.add(id=10 + index, array_id=10, array_index=index)
    [spec] = sent("-d", "10_all:any,10_1", "-d", "10:fail", "true")
    waits = [(after.job_id, after.condition) for after in spec.after]
    assert waits == [(10, "any"), (11, "any"), (12, "any"), (11, "ok"), (10, "fail")]
    ran = hsctl("submit", "-d", "10_7", "true")
    assert (ran.code, ran.err) == (4, "hsctl: no such job: 10_7 (array 10 has no task 7)\n")


def test_an_array_is_one_request_with_a_spec_for_each_task(sent):
    specs = sent("-a", "0-15:5%4", "-o", "out-%a.txt", "true")
    assert [spec.array_index for spec in specs] == [0, 5, 10, 15]
    assert {spec.array_limit for spec in specs} == {4}
    assert specs[2].output.endswith("out-10.txt")


def test_a_flag_that_needs_another_names_it(hsctl):
    ran = hsctl("submit", "--batch", "3", "true")
    assert (ran.code, ran.err) == (2, "hsctl: elastic.gpus_max: missing: expected a value (--gpus-max)\n")
    assert "expected a value (--dataset)" in hsctl("submit", "--dataset-size", "3G", "true").err


def test_a_sweep_over_shell_lines_has_a_class_of_one_line(sent, tmp_path):
    (tmp_path / "job.yaml").write_text("sweep: {lr: [1, 2]}\nrun: |\n  echo\tbegin\n  echo {lr}\n")
    specs = sent("-f", "job.yaml")
    assert [spec.command[-1] for spec in specs] == ["echo\tbegin\necho 1\n", "echo\tbegin\necho 2\n"]
    (job_class,) = {spec.job_class for spec in specs}
    assert job_class.startswith("/bin/sh -ec echo begin echo {lr} #")
    assert job_class.isprintable()


def test_a_name_made_from_a_command_can_be_printed(sent, tmp_path):
    for name in ("tr\tain.py", " lead.py"):
        (tmp_path / name).write_text("")
    names = [sent("python3", *words)[0].name for words in (["tr\tain.py"], [" lead.py"], ["-m", "a b\t"])]
    assert names == ["tr ain", "lead", "a b"]


def test_beside_a_job_file_options_may_come_after_its_changed_fields(hsctl, fake, tmp_path):
    (tmp_path / "job.yaml").write_text("run: echo\n")
    ran = hsctl("submit", "-f", "job.yaml", "resources.gpus=2", "-J", "late", "nodes=2", "--dry-run")
    assert (ran.code, ran.out) == (0, "would be accepted: job 'late', 4 GPUs each\n")
    assert fake.last("Submit").dry_run


def test_an_option_of_hsctl_after_the_command_is_said_to_be_the_commands(sent, tmp_path):
    (tmp_path / "s.sh").write_text("#!/bin/sh\n")
    (spec,) = sent("s.sh", "--dry-run")
    assert spec.command[-1] == "--dry-run"
    assert "--dry-run comes after the command, so it is the command's own" in sent.err
    sent("--", "s.sh", "--dry-run")
    assert sent.err == ""


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["submit", "-f", "a.yaml", "-f", "b.yaml"], "--file: is there more than once: expected one job file"),
        (["submit", "-f", "a.yaml", "name=x", "-f", "b.yaml"], "--file: is there more than once"),
        (["submit", "--sweep", "lr=1", "--sweep", "lr=2", "echo", "{lr}"], "--sweep: lr is there more than once"),
        (["submit", "--parsable", "--json", "true"], "--parsable and --json: expected one of them"),
        (["run", "--detach", "-q", "true"], "--detach and --quiet: expected one of them"),
        (["queue", "--interval", "5"], "--interval: expected --watch with it"),
    ],
)  # fmt: skip
def test_what_would_be_left_out_without_a_word_is_refused(hsctl, words, text):
    ran = hsctl(*words)
    assert ran.code == 2
    assert text in ran.err


def test_a_sweep_is_one_job_class_and_a_job_for_each_combination(sent):
    specs = sent(
        "--sweep",
        "lr=1e-3,3e-4",
        "--sweep",
        "wd=0,0.1",
        "-e",
        "RUN=lr{lr}",
        "--",
        "echo",
        "--lr={lr}",
        "--wd",
        "{wd}",
        "${lr}",
        "{{x}}",
    )
    assert [list(spec.command[1:4]) for spec in specs] == [
        ["--lr=1e-3", "--wd", "0"], ["--lr=1e-3", "--wd", "0.1"], ["--lr=3e-4", "--wd", "0"], ["--lr=3e-4", "--wd", "0.1"],
    ]  # fmt: skip
    assert list(specs[0].command[4:]) == ["${lr}", "{x}"]
    assert specs[2].env["RUN"] == "lr3e-4"
    assert len({spec.job_class for spec in specs}) == 1
    assert specs[0].job_class
    assert [spec.name for spec in specs] == [
        "lr=1e-3 wd=0 echo", "lr=1e-3 wd=0.1 echo", "lr=3e-4 wd=0 echo", "lr=3e-4 wd=0.1 echo",
    ]  # fmt: skip
    (other,) = {s.job_class for s in sent("--sweep", "lr=1,2", "--", "echo", "{lr}")}
    assert other != specs[0].job_class


def test_the_name_of_a_sweeps_job_says_what_tells_it_apart_and_nothing_that_others_must_not_see(
    sent, tmp_path
):
    specs = sent(
        *("--sweep", "lr=1,2", "--sweep", "key=hunter2,hunter3", "--sweep", "wd=0", "-J", "mine", "-e", "KEY={key}"),
        *("-o", f"{tmp_path}/%x-%j.log", "--", "echo", "{lr}", "{wd}"),
    )  # fmt: skip
    assert [spec.name for spec in specs] == [f"lr={lr} key=#{n} mine" for lr in (1, 2) for n in (1, 2)]
    assert {spec.output for spec in specs} == {f"{tmp_path}/mine-%j.log"}
    folders = [f"/data/{'x' * 200}/{end}" for end in ("a", "b")]
    names = [
        spec.name
        for spec in sent("--sweep", f"on={','.join(folders)}", "-J", "n" * 128, "--", "echo", "{on}")
    ]
    assert [(len(name), name[:1], name[62:66]) for name in names] == [(128, "…", "/a n"), (128, "…", "/b n")]


@pytest.mark.parametrize(
    ("command", "name"),
    [(["python3", "-u", "train.py", "--lr", "1"], "train"), (["python3", "-m", "pkg.train"], "pkg.train"), (["sleep", "3.5"], "sleep"), (["sh", "-c", "sleep 0.2"], "sh"),
     ([sys.executable, "-c", "print(1)"], Path(sys.executable).name)],
)  # fmt: skip
def test_a_job_without_a_name_is_called_after_what_it_runs(sent, command, name):
    (spec,) = sent("--", *command)
    assert spec.name == name


def test_sbatch_lines_mean_what_slurm_means_and_the_rest_is_said(sent, tmp_path):
    script = tmp_path / "train.sh"
    script.write_text(
        "#!/bin/bash\n"
        "#SBATCH --job-name=bert\n"
        "#SBATCH --gres=gpu:v100:2 -c4\n"
        "#SBATCH -t 1-00:30:00   # a day and a half hour\n"
        "#SBATCH --mem=4000 --nodes 1\n"
        "#SBATCH --array=0-3%2\n"
        "#SBATCH --dependency=afterok:11:12,afterany:13\n"
        "#SBATCH --partition=gpu --output=slurm-%A_%a-%j.out\n"
        "#SBATCH --error=%N.err\n"
        "#SBATCH --export=ALL,SEED=7\n"
        "#SBATCH --frobnicate\n"
        "#HS --suspend hook --retry 1 -e LR=0.1\n"
        "\n"
        "python train.py\n"
        "#SBATCH --gpus=8\n"
    )
    specs = sent(script.name, "--epochs", "3")
    spec = specs[0]
    assert len(specs) == 4
    assert spec.array_limit == 2
    assert (spec.name, spec.gpus, list(spec.gpu_types), spec.cpus) == ("bert", 2, ["V100"], 4)
    assert (spec.max_duration_s, spec.memory_bytes) == (88200, 4000 << 20)
    assert [(a.job_id, a.condition) for a in spec.after] == [(11, "ok"), (12, "ok"), (13, "any")]
    assert (spec.env["SEED"], spec.env["LR"], spec.suspend, spec.retry_max) == ("7", "0.1", "hook", 1)
    assert spec.output == str(tmp_path / "slurm-%A_0-%j.out"), "those numbers are the controller's to give"
    assert list(spec.command) == ["/bin/bash", str(script), "--epochs", "3"]
    for told in (
        "train.sh:8: --partition=gpu: ignored",
        "train.sh:9: --error=%N.err: ignored",
        "train.sh:11: --frobnicate: ignored",
    ):
        assert told in sent.err


@pytest.mark.parametrize("line", ["--mem=0", "--time=0", "-t UNLIMITED"])
def test_where_slurm_has_no_limit_there_is_none(sent, tmp_path, line):
    (tmp_path / "job.sh").write_text(f"#!/bin/sh\n#SBATCH {line}\ntrue\n")
    (spec,) = sent("job.sh")
    assert (spec.memory_bytes, spec.max_duration_s) == (0, 0)


def test_a_script_that_reads_what_slurm_sets_is_told_what_is_set_here(sent, tmp_path):
    (tmp_path / "job.sh").write_text(
        "#!/bin/bash\n"
        "# of SLURM_NTASKS\n"
        "export SLURM_LOCALID=0\n"
        'python train.py --seed "$SLURM_ARRAY_TASK_ID" --rank $SLURM_LOCALID\n'
        "cd ${SLURM_ARRAY_TASK_ID} && echo $SLURM_JOB_NODELIST\n"
    )
    sent("job.sh")
    assert [line.partition("job.sh:")[2] for line in sent.err.splitlines()] == [
        "4: SLURM_ARRAY_TASK_ID: not set here; HS_ARRAY_TASK_ID is",
        "5: SLURM_JOB_NODELIST: not set here",
    ]


def test_who_asks_for_gpus_of_its_own_is_told_under_which_policies_it_may_share_them(sent, tmp_path):
    (tmp_path / "job.sh").write_text("#!/bin/sh\n#SBATCH --exclusive\ntrue\n")
    sent("job.sh")
    (line,) = (line for line in sent.err.splitlines() if "--exclusive" in line)
    named = re.search("only under (.*), which", line)[1].replace(" and ", ", ").split(", ")
    share = {name for name, policy in POLICIES.items() if policy.needs.sharing}
    found = [matching(POLICIES, pattern) for pattern in named]
    assert all(found)
    assert {name for names in found for name in names} == share


def test_a_dependency_of_an_sbatch_line_on_an_array_is_on_all_of_its_tasks(sent, hsctl, fake, tmp_path):
    for index in range(3):
        fake.add(id=10 + index, array_id=10, array_index=index)
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH -d afterok:10:11,afterany:10:13\ntrue\n")
    (spec,) = sent("job.sh")
    every = [10, 11, 12]
    assert [a.job_id for a in spec.after if a.condition == "ok"] == [*every, 11]
    assert [a.job_id for a in spec.after if a.condition == "any"] == [*every, 13]
    script.write_text("#!/bin/sh\n#SBATCH -d afternotok:10\ntrue\n")
    ran = hsctl("submit", "job.sh")
    assert (ran.code, len(fake.requests["Submit"])) == (2, 1)
    assert "job.sh:2: --dependency=afternotok:10: job 10 is an array: expected afterok" in ran.err


@pytest.mark.parametrize(("name", "output"), [("a", "log.txt"), ("50%job", "/tmp/%x.txt")])
def test_no_part_of_a_folder_or_name_becomes_a_number_in_the_path_of_a_log(
    hsctl, fake, tmp_path, name, output
):
    (tmp_path / "50%job").mkdir()
    ran = hsctl("submit", "-J", name, "-C", "50%job", "-o", output, "true")
    assert (ran.code, fake.requests["Submit"]) == (2, [])
    assert ran.err.startswith(f"hsctl: output = {output!r}: expected no %j in names")
    assert hsctl("submit", "-J", name, "-C", "50%job", "-o", "/tmp/%j.txt", "true").code == 0


def test_an_empty_gpu_type_is_not_any(hsctl, fake):
    ran = hsctl("submit", "--gpu-type", "", "true")
    assert (ran.code, fake.requests["Submit"]) == (2, [])
    assert ran.err.startswith("hsctl: --gpu-type: resources.gpu_type = '': expected names of GPU models")


def test_flags_win_over_hs_lines_and_those_over_sbatch_lines(sent, tmp_path):
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH -G 1 -J a -c 1\n#HS -G 2 -J b\ntrue\n")
    script.chmod(0o755)
    (spec,) = sent("-G", "4", "./job.sh")
    assert (spec.gpus, spec.name, spec.cpus, list(spec.command)) == (4, "b", 1, [str(script)])


@pytest.mark.parametrize(
    "line", ["# SBATCH --gpus=3", "##SBATCH --gpus=3", "  #SBATCH --gpus=3", "# HS is what it is for"]
)
def test_a_line_that_slurm_takes_for_a_comment_is_one(sent, tmp_path, line):
    (tmp_path / "job.sh").write_text(f"#!/bin/sh\n{line}\n#SBATCH -c 2\ntrue\n")
    (spec,) = sent("job.sh")
    assert (spec.gpus, spec.cpus, sent.err.count("ignored")) == (1, 2, 0)


@pytest.mark.parametrize(
    ("lines", "each"),
    [("--gpus=8\n#SBATCH --nodes=2", 4), ("-N 2 -G v100:2", 1), ("--gpus-per-node=8 --nodes=2", 8), ("--gres=gpu:4 -N2", 4), ("--gpus=8", 8)],
)  # fmt: skip
def test_gpus_of_an_sbatch_line_are_those_of_all_its_nodes(sent, tmp_path, lines, each):
    (tmp_path / "job.sh").write_text(f"#!/bin/sh\n#SBATCH {lines}\ntrue\n")
    (spec,) = sent("job.sh")
    assert spec.gpus == each


@pytest.mark.parametrize(
    ("line", "text"),
    [("#HS --gpuz 2", "job.sh:2: "), ("#HS --dry-run", "expected only what describes the job"), ("#HS true", "expected only what"),
     ("#SBATCH --mem=lots", "job.sh:2: --mem=lots: expected a size"), ("#SBATCH --gpus='2", "balanced quotes"),
     ("#SBATCH --dependency=singleton", "expected afterok:JOB"), ("#SBATCH --dependency=after:11", "found 'after:11'"), ("#HS -G 0", "job.sh:2: --gpus: resources.gpus = 0"),
     ("#SBATCH --gpus=3 -N2", "job.sh:2: --gpus=3: expected a multiple of --nodes, which is 2"), ("#SBATCH --nodes=0 -G 1", "nodes = 0"),
     ("#HS -h", "job.sh:2: No such option '-h'"), ("#SBATCH oops", "expected an option")],
)  # fmt: skip
def test_a_wrong_line_of_a_script_is_named(hsctl, fake, tmp_path, line, text):
    (tmp_path / "job.sh").write_text(f"#!/bin/sh\n{line}\ntrue\n")
    ran = hsctl("submit", "job.sh")
    assert text in ran.err
    assert ran.code == 2
    assert not fake.requests["Submit"]


def test_a_script_without_its_interpreter_is_refused(hsctl, tmp_path):
    (tmp_path / "job.sh").write_text("echo hi\n")
    assert "#!/bin/bash" in hsctl("submit", "job.sh").err


def test_dry_run_submits_nothing_and_says_what_would_happen(hsctl, fake):
    fake.notes = ["cannot be suspended: runs unsliced within your share"]
    ran = hsctl("submit", "--dry-run", "-G", "2", "true")
    assert ran.code == 0
    assert "would be accepted: job 'true', 2 GPUs each" in ran.out
    assert "unsliced" not in ran.out
    assert fake.last("Submit").dry_run
    assert not fake.jobs
    fake.refusals["Submit"] = ("impossible", "gpus = 9: the largest server has 4")
    assert hsctl("submit", "--dry-run", "-G", "9", "true").code == 3


def test_what_is_printed_is_the_answer(hsctl):
    assert hsctl("submit", "true").out == "submitted job 1 (true)\n"
    assert hsctl("submit", "-a", "0-2", "true").out == "submitted 3 jobs 'true': 2 to 4\n"
    assert hsctl("submit", "--parsable", "-a", "0-1", "true").out == "5\n6\n"
    assert json.loads(hsctl("submit", "--json", "true").out) == {
        "job_ids": [7],
        "notes": [],
        "dry_run": False,
    }


def test_admins_submit_for_others(hsctl, fake):
    assert hsctl("--user", "bob", "submit", "true").code == 0
    assert fake.last("Submit").as_user == "bob"


def test_submit_wait_exits_as_the_job_did(hsctl, fake):
    import threading

    def end():
        with fake.changed:
            assert fake.changed.wait_for(lambda: fake.jobs, 60)
        fake.end(1, "failed", code=4)

    thread = threading.Thread(target=end)
    thread.start()
    ran = hsctl("submit", "--wait", "--parsable", "false")
    thread.join(5)
    assert ran.code == 4
    assert ran.out == "1\n"


def test_files_of_another_machine_are_not_looked_for(sent, monkeypatch):
    monkeypatch.setenv("HS_REMOTE", "1")
    (spec,) = sent("-C", "/data/me", "-o", "log", "no-such-program")
    assert (spec.workdir, spec.output, list(spec.command)) == (
        "/data/me",
        "/data/me/log",
        ["no-such-program"],
    )


def test_what_a_job_file_does_not_say_is_missed_in_that_file(hsctl, tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text("name: x\n")
    ran = hsctl("submit", "-f", str(file))
    assert (ran.code, ran.err.startswith(f"hsctl: {file}: run: missing: expected a command")) == (2, True), (
        ran.err
    )

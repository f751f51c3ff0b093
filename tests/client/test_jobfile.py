"""Job files: what they mean, and that each mistake is named with its line, its value and what was expected."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hs_client import InvalidError, compose, jobfile, yamlfile
from hs_client.jobfile import Job, parse

ROOT = Path(__file__).resolve().parents[2]
WHOLE = """\
name: resnet
resources: {gpus: 'V100:2', gpu_memory: 10G, cpus: 4, memory: 32G}
nodes: 1
env:
  LR: 1e-3
  DEBUG: on
  FROM_ME:
workdir: sub
setup: export A=1
run: |
  python train.py --lr $LR
max_duration: 2h
priority: 5
after: [3, '4:any']
array: 0-3%2
retry: {max: 2}
checkpoint: {mode: interval, dir: ckpt, interval: 30m}
placement: {migrate: same-type}
torchrun: no
suspend: hook
class: resnet
"""


def read(text: str) -> Job:
    return parse(*yamlfile.parse(text.encode(), "job.yaml"))


def specs(text: str, tmp_path: Path, **env: str):
    place = compose.Place(folder=tmp_path, env={"PATH": "/usr/bin:/bin", **env})
    return compose.specs(read(text), place, None, lambda words: list(map(int, words)))


def test_a_whole_file_arrives(tmp_path):
    (tmp_path / "sub").mkdir()
    made = specs(WHOLE, tmp_path, FROM_ME="mine")
    spec = made[3]
    assert len(made) == 4
    assert list(spec.command) == ["/bin/sh", "-ec", "export A=1\npython train.py --lr $LR\n"]
    assert dict(spec.env) == {"PATH": "/usr/bin:/bin", "LR": "1e-3", "DEBUG": "on", "FROM_ME": "mine"}
    assert (spec.gpus, list(spec.gpu_types), spec.gpu_memory_bytes, spec.memory_bytes) == (
        2,
        ["V100"],
        10 << 30,
        32 << 30,
    )
    assert (spec.max_duration_s, spec.priority, spec.retry_max, spec.job_class) == (7200, 5, 2, "resnet")
    assert [(a.job_id, a.condition) for a in spec.after] == [(3, "ok"), (4, "any")]
    assert (spec.array_index, spec.array_limit) == (3, 2)
    assert (spec.checkpoint_dir, spec.checkpoint_interval_s) == (str(tmp_path / "sub/ckpt"), 1800)
    assert (spec.migrate, spec.suspend, spec.torchrun) == ("same-type", "hook", False)


@pytest.mark.parametrize("mode", ["", "mode: interval, "])
def test_an_interval_of_checkpoints_is_theirs_with_and_without_its_mode(tmp_path, mode):
    [spec] = specs(f"run: x\ncheckpoint: {{{mode}interval: 10m}}\n", tmp_path)
    assert spec.checkpoint_interval_s == 600


def test_a_list_runs_as_it_is_and_after_its_setup_in_the_same_shell(tmp_path):
    assert list(specs("run: [echo, 3, 1.5, '*']", tmp_path)[0].command)[1:] == ["3", "1.5", "*"]
    (spec,) = specs("setup: cd /\nrun: [echo, '*']", tmp_path)
    assert list(spec.command) == ["/bin/sh", "-ec", 'cd /\nexec "$@"', "sh", "echo", "*"]


def test_values_of_a_sweep_keep_the_text_that_was_written(tmp_path):
    made = specs("run: [echo, '{lr}', '{on}']\nsweep: {lr: [1e-3, 0.10], on: [yes]}", tmp_path)
    assert [list(spec.command)[1:] for spec in made] == [["1e-3", "yes"], ["0.10", "yes"]]


def test_the_words_of_a_command_keep_the_text_that_was_written(tmp_path):
    (spec,) = specs("run: [echo, 1.10, 12:30, 1_000, 007, 1e-3, yes, 2026-01-01]", tmp_path)
    assert list(spec.command)[1:] == ["1.10", "12:30", "1_000", "007", "1e-3", "yes", "2026-01-01"]


@pytest.mark.parametrize("written", ["12_3", "[12_3]", "'12_3'", "[12_3, 14:any]"])
def test_a_task_of_an_array_is_named_in_a_file_as_anywhere(written):
    assert read(f"run: x\nafter: {written}\n").after[0] == "12_3"


def test_a_tag_on_a_value_that_keeps_its_text_is_refused():
    with pytest.raises(InvalidError, match="could not determine a constructor"):
        read("run: x\nenv: {A: !secret b}\n")


def test_an_elastic_job_may_ask_for_several_servers_where_it_leaves_their_number_open(tmp_path):
    text = "run: x\nresources: {gpus: 2}\nnodes: 2\nplacement: {topology: any}\nelastic: {gpus_max: 8, batch: 32}\n"
    (spec,) = specs(text, tmp_path)
    assert (spec.nodes, spec.topology, spec.elastic.batch_per_gpu_max) == (2, "any", 8)


def test_what_an_elastic_job_does_not_say_follows_from_what_it_does(tmp_path):
    (spec,) = specs("run: x\nresources: {gpus: 3}\nelastic: {gpus_max: 4, batch: 32}\n", tmp_path)
    told = spec.elastic
    assert (told.gpus_min, told.gpus_max, told.batch, told.batch_max, told.batch_per_gpu_max) == (
        1,
        4,
        32,
        32,
        11,
    )
    (plain,) = specs("run: x\n", tmp_path)
    assert not plain.HasField("elastic")


def test_strategies_are_one_or_several_and_written_in_one_way(tmp_path):
    text = "run: x\nresources: {gpus: 4}\nnodes: 2\nstrategies:\n  - pp=2, dp=4\n  - tp=8\n  - pp=8,layers=1+2+1+2+1+2+1+2\n"
    assert read(text).strategies == ["dp=4,pp=2", "tp=8", "pp=8,layers=1+2+1+2+1+2+1+2"]
    (spec,) = specs(text, tmp_path)
    assert [(each.data, each.tensor, each.pipeline, list(each.layers)) for each in spec.strategies] == [
        (4, 1, 2, []),
        (1, 8, 1, []),
        (1, 1, 8, [1, 2] * 4),
    ]
    assert read("run: x\nresources: {gpus: 2}\nstrategies: tp=2\n").strategies == ["tp=2"]


def test_the_number_of_servers_may_be_left_to_the_policy(tmp_path):
    (spec,) = specs("run: x\nresources: {gpus: 4}\nplacement: {topology: any}\n", tmp_path)
    assert (spec.topology, spec.gpus, spec.nodes) == ("any", 4, 1)
    (plain,) = specs("run: x\n", tmp_path)
    assert plain.topology == "auto"


def test_numbers_are_seconds_in_a_file():
    assert read("run: x\nmax_duration: 90").max_duration == 90
    assert read("run: x\nmax_duration: 90m").max_duration == 5400


def test_merged_and_aliased_parts_are_read():
    text = "resources: &r {gpus: 2}\nplacement: {}\nenv: &e {A: '1'}\nrun: ['true', *w]\nname: &w hi\n"
    with pytest.raises(InvalidError, match="undefined alias"):
        read(text)
    assert read("name: &n hi\nenv: {A: *n}\nrun: 'true'").env == {"A": "hi"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("run: x\nresorces: {gpus: 1}\n", "job.yaml:2: unknown field 'resorces'; did you mean 'resources'?"),
        ("run: x\nresources:\n  gpuz: 1\n", "job.yaml:3: unknown field 'resources.gpuz'; did you mean 'resources.gpus'?"),
        ("run: x\nretry: {mx: 1}\n", "job.yaml:2: unknown field 'retry.mx'; did you mean 'retry.max'?"),
        ("run: x\nelastic: {gpus_mx: 8}\n", "unknown field 'elastic.gpus_mx'; did you mean 'elastic.gpus_max'?"),
        ("run: x\ndataset: {path: /data}\n", "unknown field 'dataset.path'; known here: name, size"),
        ("run: x\nzzz: 1\n", "known here: accumulation, after, array"),
        ("run: x\ngpus: 2\n", "job.yaml:2: unknown field 'gpus'; did you mean 'resources.gpus'?"),
        ("run: x\ngpu: 2\n", "unknown field 'gpu'; did you mean 'resources.gpus'?"),
        ("run: x\ngpu_type: K80\n", "did you mean 'resources.gpu_type' or 'placement.gpu_type'?"),
        ("run: x\nResources: {gpus: 2}\n", "unknown field 'Resources'; did you mean 'resources'?"),
        ("run: x\ncommand: y\n", "unknown field 'command'; did you mean 'run'?"),
        ("run: x\nretry: 3\n", "retry = 3: expected fields below it: max, on"),
        ("name: x\n", "run: missing: expected a command"),
        (f"run: x\nname: {'n' * 129}\n", "expected at most 128 characters"),
        ("run: x\nelastic: {batch: 32}\n", "elastic.gpus_max: missing"),
        ("run: x\nplacement: {topology: some}\n", "placement.topology = 'some': expected"),
        ("run: x\nstrategies: dp=2\n", "dp=2: expected degrees that multiply to its 1 GPUs, not to 2"),
        ("run: x\nstrategies: [dp]\n", "'dp': expected degrees from 1 to 999999, each once, e.g. dp=4 or tp=2,pp=2"),
        ("run: x\nresources: {gpus: 2}\nstrategies: ['pp=2,layers=3']\n", "expected the layers of 2 stages"),
        ("run: x\nstrategies: [dp=1, tp=1]\n", "dp=1: expected each strategy once"),
        ("run: x\nelastic: {gpus_max: 2, batch: 8}\nstrategies: dp=1\n", "expected none for an elastic job"),
        ("run: x\nelastic: {gpus_max: 4}\n", "elastic.batch: missing"),
        ("run: x\nelastic: {gpus_max: 0, batch: 32}\n", "elastic.gpus_max = 0: expected"),
        (
            "run: x\nelastic: {gpus_min: 4, gpus_max: 2, batch: 32}\n",
            "gpus_max = 2: expected at least gpus_min, which is 4",
        ),
        (
            "run: x\nelastic: {gpus_max: 2, batch: 32, batch_max: 16}\n",
            "batch_max = 16: expected at least batch, which is 32",
        ),
        ("run: x\nelastic: {gpus_max: 2, batch: 32, noise_scale: .nan}\n", "elastic.noise_scale"),
        (
            "run: x\nresources: {gpus: 8}\nelastic: {gpus_max: 4, batch: 32}\n",
            "expected resources.gpus, which is 8, among gpus_min to gpus_max, 1 to 4",
        ),
        ("run: x\nnodes: 2\nelastic: {gpus_max: 4, batch: 32}\n", "expected nodes to be 1, not 2, or placement.topology any"),
        (
            "run: x\nnodes: 3\nresources: {gpus: 2}\nplacement: {topology: any}\nelastic: {gpus_max: 4, batch: 32}\n",
            "expected resources.gpus, which is 2 times 3 nodes, among gpus_min to gpus_max, 1 to 4",
        ),
        ("run: x\naccumulation: 2\nelastic: {gpus_max: 4, batch: 32}\n", "expected no accumulation, not 2"),
        ("run: x\nsuspend: none\nelastic: {gpus_max: 4, batch: 32}\n", "expected suspend to be auto or hook, not none"),
        ("run:\n", "expected"),
        ("run: ''\n", "expected a command"),
        ("run: []\n", "expected a command"),
        ("run: {a: b}\n", "expected shell lines or a list of words"),
        ("run: [x, [y]]\n", "job.yaml:1: run"),
        ("run: x\nresources:\n  gpus: 0\n", "job.yaml:3: resources.gpus = 0: expected 1 to 1024 GPUs per node"),
        ("run: x\nresources: {gpus: -1}\n", "resources.gpus = -1: expected 1 to 1024"),
        ("run: x\nresources: {gpus: 99999999999}\n", "expected 1 to 1024"),
        ("run: x\nresources: {gpus: true}\n", "resources.gpus = true: expected a whole number"),
        ("run: x\nresources: {gpus: 1.5}\n", "expected a whole number"),
        ("run: x\nresources: {gpus: lots}\n", "expected a number of GPUs or MODEL:NUMBER"),
        ("run: x\nresources: {gpus: 'V100:2', gpu_type: H100}\n", "expected one of them"),
        ("run: x\nresources: {gpu_memory: 40}\n", "resources.gpu_memory = 40: expected a size with its unit"),
        ("run: x\nresources: {gpu_type: ''}\n", "resources.gpu_type = '': expected names of GPU models"),
        ("run: x\nplacement: {gpu_type: ','}\n", "placement.gpu_type = ',': expected names of GPU models"),
        ("run: x\nresources: {gpu_type: 4090}\n", "resources.gpu_type = 4090: expected names of GPU models"),
        ("run: x\nresources: {memory: 1e30}\n", "resources.memory"),
        ("run: x\nresources: 4\n", "resources = 4: expected fields below it: cpus, gpu_memory"),
        ("run: x\nnodes: '2'\n", "nodes = '2': expected a whole number"),
        ("run: x\nname: 12\n", "name = 12: expected text (put it in quotes)"),
        ("run: x\nname: 2026-01-01\n", "expected text"),
        ("run: x\npriority: 1.5\n", "priority = 1.5: expected a whole number"),
        ("run: x\nmax_duration: -3\n", "max_duration = -3: expected more than 0"),
        ("run: x\nmax_duration: .inf\n", "max_duration"),
        ("run: x\nmax_duration: yes\n", "max_duration = true: expected a duration above 0 and at most 366 days"),
        ("run: x\nsteps: yes\n", "steps = true: expected a whole number"),
        ("run: x\naccumulation: yes\n", "accumulation = true: expected a whole number"),
        ("run: x\nelastic: {gpus_max: 2, batch: 4, noise_scale: yes}\n", "elastic.noise_scale = true: expected a number"),
        *(
            (f"run: x\nsteps: {number}\n", "job.yaml:2: steps: 6000 digits: expected a number of at most 40")
            for number in ("9" * 6000, f"0x{'f' * 5998}", f"1{':59' * 1999}:5")
        ),
        ("run: x\nname: 2026-13-45\n", "job.yaml:2: name: month must be in 1..12"),
        (f"run: x\nresources: {{gpus: 'V100:{'9' * 20}'}}\n", f"'V100:{'9' * 20}': expected 1 to 1024 GPUs per node"),
        ("run: x\nmax_duration: .nan\n", "max_duration"),
        ("run: x\nenv: {HS_JOB_ID: 1}\n", "HS_JOB_ID is set by HeteroShare"),
        ("run: x\nenv: {'A B': 1}\n", "'A B': expected a name"),
        ("run: x\nenv: {A: [1]}\n", "env.A"),
        ("run: x\nenv: [A=1]\n", "env = ['A=1']: expected names with values below it"),
        ("run: x\nafter: [soon]\n", "'soon': expected JOB or JOB:CONDITION"),
        ("run: x\narray: 3-1\n", "array = '3-1': expected task numbers"),
        ("run: x\nsweep: {lr: []}\n", "sweep.lr = []: expected at least one value"),
        ("run: x\nsuspend: never\n", "suspend = 'never': expected 'auto', 'hook', 'transparent' or 'none'"),
        ("run: x\ncheckpoint: {mode: interval}\n", "mode interval needs interval"),
        ("run: x\ncheckpoint: {mode: auto, interval: 10m}\n", "mode auto and interval: expected one of them"),
        ("run: x\nretry: {on: [weather]}\n", "expected 'failure'"),
        ("run: x\nrun: y\n", "job.yaml:2: 'run' is there already on line 1"),
        ("run: x\nenv:\n  A: 1\n  A: 2\n", "job.yaml:4: 'A' is there already on line 3"),
        ("run: [x\n", "job.yaml:2: unreadable YAML"),
        ("\trun: x\n", "job.yaml:1: unreadable YAML"),
        ("run: 'a\n", "unreadable YAML"),
        ("run: \x07\n", "unreadable"),
        ("- a\n", "found a list"),
        ("hello\n", "found a single value"),
        ("", "empty"),
        ("# nothing\n", "empty"),
        ("run: a\n---\nrun: b\n", "unreadable YAML"),
        ("run: !!python/object/apply:os.system [id]\n", "apply:os.system': expected plain data"),
        ("run: !!python/name:os.system x\n", "could not determine a constructor"),
        ("? [a]\n: b\n", "expected a field name, found a list"),
        ("env: &e\n  A: *e\nrun: x\n", "less nesting of aliases"),
        ("run: " + "[" * 40 + "]" * 40, "at most 12 levels"),
        ("a: &a [" + ",".join("*a" for _ in range(50)) + "]", "at most 32 aliases"),
        ("run: [" + ",".join("a" for _ in range(30000)) + "]", "at most 20000 values"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_place_value_and_what_was_expected(text, complaint):
    with pytest.raises(InvalidError) as caught:
        read(text)
    assert complaint in str(caught.value)
    assert str(caught.value).startswith("job.yaml") or "missing" in str(caught.value)


def test_every_mistake_of_a_file_is_told_at_once():
    with pytest.raises(InvalidError) as caught:
        read("resources: {gpus: 0}\nnodes: 0\nnme: x\nrun: y")
    assert len(str(caught.value).splitlines()) == 3


def test_every_wrong_entry_of_a_field_is_told_with_its_line():
    with pytest.raises(InvalidError) as caught:
        read(
            "run: x\nenv:\n  A B: 1\n  GOOD: 1\n  HS_X: 1\nafter:\n  - soon\n  - 3\n  - 4:bad\nsweep:\n  c d: [1]\n  e-f: [1]\n"
        )
    told = [line.split(": expected")[0] for line in str(caught.value).splitlines()]
    assert told == [
        "job.yaml:3: env: 'A B'",
        "job.yaml:5: env: HS_X is set by HeteroShare",
        "job.yaml:6: after: 'soon'",
        "job.yaml:6: after: '4:bad'",
        "job.yaml:11: sweep: 'c d'",
        "job.yaml:12: sweep: 'e-f'",
    ]


def test_bytes_that_are_no_text_and_files_that_are_too_large_are_refused(tmp_path):
    with pytest.raises(InvalidError, match="UTF-8"):
        yamlfile.parse(b"run: \xff\xfe", "job.yaml")
    large = tmp_path / "large.yaml"
    large.write_text("run: x\n#" + "x" * (256 << 10))
    with pytest.raises(InvalidError, match="at most 256 KiB"):
        yamlfile.read(large)
    with pytest.raises(InvalidError, match="Is a directory: expected a job file"):
        yamlfile.read(tmp_path)


@given(
    st.binary(max_size=200)
    | st.text(max_size=200).map(str.encode)
    | st.text("[]{}&*:,-!|>\n ab'\"#?%@", max_size=60).map(str.encode)
)
def test_whatever_the_bytes_are_the_answer_is_a_job_or_a_refusal(raw):
    try:
        parse(*yamlfile.parse(raw, "job.yaml"))
    except InvalidError as error:
        said = str(error)
    else:
        return
    assert said


JSONABLE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*Job.model_fields, "class", "x"]), JSONABLE))
def test_whatever_the_values_are_the_answer_is_a_job_or_a_refusal(data):
    try:
        parse(data)
    except InvalidError as error:
        said = str(error)
    else:
        return
    assert said


def test_key_value_words_change_fields_of_the_file(hsctl, fake, tmp_path):
    (tmp_path / "job.yaml").write_text(
        "name: a\nresources: {gpus: 1, cpus: 2}\nenv: {LR: '1'}\nrun: 'true'\n"
    )
    words = [
        "-f",
        "job.yaml",
        "resources.gpus=2",
        "name=b",
        "env.LR=1e-4",
        "env.NEW=x: y",
        "after=[5, '6:any']",
        "placement.migrate=never",
    ]
    assert hsctl("submit", "-p", "9", *words).code == 0
    (spec,) = fake.last("Submit").jobs
    assert (spec.name, spec.gpus, spec.cpus, spec.priority, spec.migrate) == ("b", 2, 2, 9, "never")
    assert (spec.env["LR"], spec.env["NEW"]) == ("1e-4", "x: y")
    assert [a.job_id for a in spec.after] == [5, 6]
    for word, text in {"resources.gpuz=2": "did you mean 'resources.gpus'", "resources.gpus=0": "'resources.gpus=0': resources.gpus = 0", "oops": "expected KEY=VALUE",
                       "name.x=1": "expected fields below it"}.items():  # fmt: skip
        ran = hsctl("submit", "-f", "job.yaml", word)
        assert text in ran.err
        assert ran.code == 2


def test_key_value_words_are_read_as_in_the_file(hsctl, fake, tmp_path):
    (tmp_path / "job.yaml").write_text("run: 'true'\n")
    words = ["env.PATTERN=[a-z]*", "run=[echo, 1.10, 12:30]"]
    assert hsctl("submit", "-f", "job.yaml", *words).code == 0
    (spec,) = fake.last("Submit").jobs
    assert (spec.env["PATTERN"], list(spec.command)[1:]) == ("[a-z]*", ["1.10", "12:30"])


@pytest.mark.parametrize("word", ["name=a: b", "name=[a", "run=echo a\nname: b"])
def test_a_key_value_word_that_is_not_one_value_is_named_and_refused(hsctl, fake, tmp_path, word):
    (tmp_path / "job.yaml").write_text("run: 'true'\n")
    ran = hsctl("submit", "-f", "job.yaml", word)
    assert (ran.code, fake.requests["Submit"]) == (2, [])
    assert ran.err.startswith(f"hsctl: {word!r}:")


@pytest.mark.parametrize("word", ["resources.memory=", "resources.memory= ", "retry=", "name=# none"])
def test_a_key_value_word_without_a_value_takes_nothing_back(hsctl, fake, tmp_path, word):
    (tmp_path / "job.yaml").write_text("run: 'true'\nresources: {memory: 4G}\n")
    ran = hsctl("submit", "-f", "job.yaml", word)
    assert (ran.code, fake.requests["Submit"]) == (2, [])
    key = word.partition("=")[0]
    assert ran.err == f"hsctl: {word!r}: expected a value; {key}=null takes back what the file says\n"


def test_a_key_value_word_may_take_a_field_back_and_set_an_empty_variable(hsctl, fake, tmp_path):
    (tmp_path / "job.yaml").write_text("run: 'true'\nresources: {memory: 4G}\n")
    assert hsctl("submit", "-f", "job.yaml", "resources.memory=null", "env.A=").code == 0
    [spec] = fake.last("Submit").jobs
    assert (spec.memory_bytes, spec.env["A"]) == (0, "")


def test_whatever_a_job_file_says_a_key_value_word_can_take_it_back(hsctl, fake, tmp_path):
    (tmp_path / "plain.yaml").write_text("run: 'true'\n")
    (tmp_path / "job.yaml").write_text(
        "run: 'true'\nname: a\nresources: {gpus: 2}\nnodes: 2\nafter: ['11:ok', 12]\npriority: 5\nmax_duration: 2h\n"
        "retry: {max: 2}\ncheckpoint: {mode: interval, interval: 10m}\ntorchrun: true\non_partition: fence\nsteps: 7\n"
    )
    fields = ("name", "resources", "nodes", "after", "priority", "max_duration", "retry.max", "retry", "checkpoint", "torchrun", "on_partition",
              "steps", "strategies", "dataset", "placement.migrate")  # fmt: skip
    assert hsctl("submit", "-f", "plain.yaml").code == 0
    plain = fake.last("Submit").jobs
    assert hsctl("submit", "-f", "job.yaml", *(f"{field}=null" for field in fields)).code == 0
    assert fake.last("Submit").jobs == plain


def test_what_is_no_field_cannot_be_taken_back(hsctl, fake, tmp_path):
    (tmp_path / "job.yaml").write_text("run: 'true'\n")
    ran = hsctl("submit", "-f", "job.yaml", "resorces.gpus=null", "resources.gpu=null")
    assert (ran.code, fake.requests["Submit"]) == (2, [])
    assert "unknown field 'resorces'; did you mean 'resources'?" in ran.err
    assert "unknown field 'resources.gpu'" in ran.err


def test_a_job_file_is_read_from_standard_input(hsctl, fake):
    assert hsctl("submit", "-f", "-", stdin="run: 'true'\nname: piped\n").code == 0
    assert fake.last("Submit").jobs[0].name == "piped"


def test_the_published_schema_is_current(call):
    published = json.loads((ROOT / "docs/job.schema.json").read_text())
    assert published == jobfile.schema(), "run: hsctl schema > docs/job.schema.json"
    assert json.loads(call("schema").out) == published


def test_the_schema_names_every_field_and_forbids_others():
    schema = jobfile.schema()
    assert set(schema["properties"]) == {
        "class" if name == "job_class" else name for name in Job.model_fields
    }
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["run"]


def test_the_schema_takes_numbers_among_the_words_of_a_command_as_its_reader_does():
    (words,) = (kind for kind in jobfile.schema()["properties"]["run"]["anyOf"] if kind["type"] == "array")
    assert words["items"]["type"] == ["string", "number", "boolean"]
    assert read("run: [python, train.py, --epochs, 10, --amp, true]").run[3:] == ["10", "--amp", "true"]


def test_the_python_api_takes_the_same_fields():
    job = Job(run=["python", "train.py"], resources={"gpus": "V100:2"}, after=[3], job_class="x")
    assert (job.resources.count, job.gpu_types, job.after) == (2, ["V100"], ["3"])
    with pytest.raises(ValueError, match="gpuz"):
        Job(run="x", resources={"gpuz": 1})


def test_what_yaml_writes_we_read():
    job = {"run": ["a", "b"], "env": {"A": "1"}, "sweep": {"x": ["1"]}, "nodes": 1}
    data, origins = yamlfile.parse(yaml.safe_dump(job).encode(), "f")
    assert data == job
    assert origins["env", "A"] == "f:2"

import dataclasses
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hs_core import forms, model, names, reports
from hs_core.errors import RefusedError
from hs_core.strategy import Strategy
from hs_core.wanted import Guest, Lend, Peer, Source, Turn, Wanted, WantedJob
from hs_proto import convert
from hs_proto.v1 import agent_pb2, common_pb2

NON_NEGATIVE = st.integers(0, 2**31 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
SPECS = st.builds(
    model.JobSpec,
    name=TEXT, command=st.lists(TEXT, max_size=3).map(tuple), gpus=NON_NEGATIVE, nodes=st.integers(1, 9),
    gpu_types=st.lists(TEXT, max_size=2).map(tuple), gpu_memory_bytes=NON_NEGATIVE, cpus=NON_NEGATIVE,
    memory_bytes=NON_NEGATIVE, max_duration_s=st.floats(0, 1e9), priority=st.integers(-9, 9),
    after=st.lists(st.builds(model.After, job=NON_NEGATIVE, condition=st.sampled_from(model.AfterCondition)), max_size=2).map(tuple),
    env=st.dictionaries(TEXT, TEXT, max_size=2), workdir=TEXT, output=TEXT, torchrun=st.booleans(),
    migrate=st.sampled_from(model.Migrate), suspend=st.sampled_from(model.SuspendMode),
    on_partition=st.sampled_from(model.OnPartition), retry_max=NON_NEGATIVE, checkpoint_dir=TEXT,
    checkpoint_interval_s=st.floats(0, 1e9), job_class=TEXT, steps=st.integers(0, 10**15),
    gpu_memory_fixed_bytes=NON_NEGATIVE, accumulation_max=st.integers(1, 64), dataset=st.text(max_size=8), dataset_bytes=NON_NEGATIVE, array_id=st.none() | st.integers(1, 9),
    array_index=st.none() | NON_NEGATIVE, array_limit=NON_NEGATIVE,
    elastic=st.none() | st.builds(
        forms.Elastic, gpus_min=NON_NEGATIVE, gpus_max=NON_NEGATIVE, batch=NON_NEGATIVE, batch_max=NON_NEGATIVE,
        batch_per_gpu_max=NON_NEGATIVE, noise_scale=st.floats(0, 1e9),
    ),
    topology=st.sampled_from(model.Topology),
    strategies=st.lists(
        st.builds(Strategy, data=st.integers(1, 99), tensor=st.integers(1, 99), pipeline=st.integers(1, 99), layers=st.lists(st.integers(1, 99), max_size=3).map(tuple)),
        max_size=2,
    ).map(tuple),
)  # fmt: skip
PEER = Peer(host=names.HostName("v1"), address="10.0.0.2:7444")
EXITS = st.none() | st.builds(
    reports.Exit, code=st.integers(-9, 300), signal=st.integers(0, 64), why=TEXT, log_tail=TEXT
)
REPORTS = st.builds(
    reports.JobReport,
    job=NON_NEGATIVE, epoch=NON_NEGATIVE, phase=st.sampled_from(reports.Phase), gpus=st.lists(TEXT, max_size=2).map(tuple),
    step=NON_NEGATIVE, steps_per_s=st.floats(0, 1e9), gpu_s=st.floats(0, 1e9), run_s=st.floats(0, 1e9),
    suspends=NON_NEGATIVE, resumes=NON_NEGATIVE, suspend_s=st.floats(0, 1e9), since_s=st.floats(0, 1e9), resume_s=st.floats(0, 1e9),
    lost_gpu_s=st.floats(0, 1e9), tier=st.sampled_from(reports.Tier), sliceable=st.booleans(), note=TEXT,
    device_memory_bytes=NON_NEGATIVE, host_memory_bytes=NON_NEGATIVE, checkpoint_step=st.integers(-1, 99), checkpoint_generation=st.integers(-1, 99), checkpoint_bytes=NON_NEGATIVE, nodes=st.integers(1, 99), rank=st.integers(0, 99), in_touch=st.booleans(), carry=st.none() | st.floats(-1.0, 1.0),
    fallbacks=NON_NEGATIVE, fallback_why=TEXT, began_step=st.integers(-1, 99), checkpoint_fails=NON_NEGATIVE, start_fails=NON_NEGATIVE, noise_scale=st.floats(0, 1e9), noise_samples=NON_NEGATIVE,
    rendezvous=TEXT, can_checkpoint=st.booleans(), single=st.booleans(), in_turn=st.booleans(), beside=st.lists(NON_NEGATIVE, max_size=2).map(tuple), exit=EXITS,
)  # fmt: skip


@given(SPECS)
def test_a_spec_survives_the_wire(spec: model.JobSpec) -> None:
    wire = convert.from_spec(spec).SerializeToString()
    assert convert.to_spec(common_pb2.JobSpec.FromString(wire)) == spec


@given(REPORTS)
def test_a_report_survives_the_wire(report: reports.JobReport) -> None:
    wire = convert.from_report(report).SerializeToString()
    assert convert.to_report(common_pb2.JobReport.FromString(wire)) == report


FORMS = [
    None,
    forms.Shape(gpus=4, per_gpu=32, parts=2),
    Strategy(2, 1, 2, (3, 4)),
    forms.Spread(nodes=2),
    forms.Spread(nodes=1, strategy=Strategy(tensor=4)),
]


@given(SPECS, st.lists(NON_NEGATIVE, max_size=3), st.booleans(), st.sampled_from(FORMS))
def test_what_is_wanted_of_a_host_survives_the_wire(
    spec: model.JobSpec, gangs: list[Any], flag: bool, shape: forms.Form | None
) -> None:
    job = WantedJob(job=names.JobId(7), epoch=3, user=names.UserName("a"), run_as="b", job_class="c", spec=spec,
                    tickets=4 / 3, paused=flag, cancelled=not flag, time_limit_s=1.5, node_rank=1,
                    nodes=(PEER, PEER), rendezvous="10.0.0.2:29417", hold=not flag, leave=flag, grant="secret", accumulation=4, restarts=2, carry=-0.25 if flag else None,
                    shape=shape,
                    source=Source(peer=PEER, epoch=2, generation=4, step=9) if flag else None)  # fmt: skip
    guest = Guest(job=names.JobId(9), beside=(names.JobId(7), names.JobId(8)), gpus=(1, 2))
    turn = Turn(gangs=tuple(gangs), local=flag, guests=(guest,) if flag else ())
    lend = Lend(job=names.JobId(8), epoch=2, generation=3, grant="other")
    wanted = Wanted(term=1, seq=2, quantum_s=60.0, turn=turn, jobs=(job,), quantum=5, edge_in_s=0.5 if flag else None,
                    next_turn=turn if flag else None, lends=(lend,), fence_after_s=90.0, lease_s=20.0)  # fmt: skip
    wire = convert.from_wanted(wanted).SerializeToString()
    assert convert.to_wanted(agent_pb2.Wanted.FromString(wire)) == wanted


def test_every_field_of_the_model_is_under_the_round_trip() -> None:
    # A field added to the model and forgotten in convert.py would keep its default and pass unnoticed.
    for kind, strategy in ((model.JobSpec, SPECS), (reports.JobReport, REPORTS)):
        drawn = set(
            strategy.wrapped_strategy.kwargs if hasattr(strategy, "wrapped_strategy") else strategy.kwargs
        )
        assert drawn == {f.name for f in dataclasses.fields(kind)}
    assert get_type_hints(model.JobSpec)


def test_an_unknown_word_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        RefusedError, match=r"suspend: 'sometimes' is not one of auto, hook, transparent, none"
    ):
        convert.to_spec(common_pb2.JobSpec(suspend="sometimes"))


def test_a_host_is_as_its_agent_says() -> None:
    gpus = [common_pb2.Gpu(id="a", model="V100", memory_bytes=16 << 30)]
    hello = agent_pb2.Hello(
        host="h", boot_id="b", version="1", gpus=gpus, peer="h:7444", memory_bytes=64 << 30, setup="s"
    )
    host = convert.to_host(hello)
    assert (host.name, host.boot_id, host.version, host.peer, host.setup) == ("h", "b", "1", "h:7444", "s")
    assert host.memory_bytes == 64 << 30
    hello.memory_bytes = (1 << 64) - 1
    assert convert.to_host(hello).memory_bytes == 0, "nonsense is as if nothing was said"


@pytest.mark.parametrize(
    ("gpus", "why"),
    [
        ([{"memory_bytes": (1 << 64) - 1}], r"memory_bytes of 'a': 18446744073709551615; at most"),
        ([{"index": (1 << 32) - 1}], "index of 'a'"),
        ([{}, {}], "'a' is there twice"),
        ([{"id": ""}], "id: empty"),
        ([{"model": ""}], "model: empty"),
        ([{"model": "V100\n# HELP"}], "printable"),
        ([{"id": "x" * 300}], "at most 256 printable"),
        ([{"id": str(at)} for at in range(1025)], "1025 of them; at most 1024"),
        ([{"slowdowns": [common_pb2.Slowdown(job_class="*", times=1)] * 257}], "slowdowns of GPU 0: 257"),
        (
            [{"slowdowns": [common_pb2.Slowdown(job_class="*" * 300, times=1)]}],
            "slowdowns of GPU 0: .*printable",
        ),
    ],
)
def test_gpus_that_make_no_sense_are_refused(gpus: list[dict[str, Any]], why: str) -> None:
    said = [common_pb2.Gpu(**{"id": "a", "model": "V100", "memory_bytes": 16 << 30} | each) for each in gpus]
    with pytest.raises(RefusedError, match=why):
        convert.to_gpus(said)


def test_what_a_host_says_of_itself_has_a_bound() -> None:
    gpus = [common_pb2.Gpu(id="a", model="V100")]
    for field in ("boot_id", "version", "peer", "setup"):
        with pytest.raises(RefusedError, match=f"{field}: .*at most 256 printable"):
            convert.to_host(agent_pb2.Hello(host="h", gpus=gpus, **{field: "x" * 257}))
    host = convert.to_host(agent_pb2.Hello(host="h", gpus=gpus, warnings=["x" * 5000] * 100))
    assert (len(host.warnings), len(host.warnings[0])) == (32, 1000)


@pytest.mark.parametrize("name", ["", "a\n", "a\nb", "\x00", "a b", "-a", "a..b", "ü", "a" * 64, "a." * 127])
def test_a_host_whose_name_is_none_is_refused(name: str) -> None:
    gpus = [common_pb2.Gpu(id="a", model="V100")]
    with pytest.raises(RefusedError, match=r"host: .*: a host name .* was expected") as refused:
        convert.to_host(agent_pb2.Hello(host=name, gpus=gpus))
    assert repr(name) in str(refused.value)


def test_how_a_job_ended_takes_no_more_room_than_people_read() -> None:
    ended = convert.to_exit(common_pb2.Exit(code=1, why="a" * 5000, log_tail="x" * 20_000 + "end"))
    assert (len(ended.why), len(ended.log_tail), ended.log_tail[-3:]) == (4000, 16_000, "end")


def test_a_host_of_two_models_is_refused() -> None:
    gpus = [common_pb2.Gpu(id="a", model="V100"), common_pb2.Gpu(id="b", model="K80")]
    with pytest.raises(RefusedError, match="several models"):
        convert.to_host(agent_pb2.Hello(host="h", gpus=gpus))
    with pytest.raises(RefusedError, match="offers no GPU"):
        convert.to_host(agent_pb2.Hello(host="h"))

"""Copies of a training process: each on batches of its own, stopping where its portion ends, and one again from their average."""

import io
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from job_stub import StubAgent
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from warm import Warm

from hs_core.events.host import JobCheckpointed, JobHeld, JobReady, JobRestored, JobWentOn
from hs_core.reports import Tier
from hs_job import average, dice, rng
from hs_job.advice import Advice
from hs_job.checkpoint import Folder
from hs_job.handed import catch_up
from hs_job.pack import load, pack, unpack
from hs_job.position import Data

TRAIN = str(Path(__file__).parent / "train.py")
HANDED = ("--handed", "epoch", "--epochs", "4")  # 80 steps: 20 an epoch


@pytest.fixture
def agents(tmp_path: Path, warm: Warm) -> Iterator[list[StubAgent]]:
    made = [StubAgent(tmp_path / name, warm, pace_s=0.005) for name in ("a", "b", "c")]
    for agent in made:
        agent.folder.mkdir(exist_ok=True)
        agent.start()
    yield made
    for agent in made:
        agent.__exit__()


def ask(
    agent: StubAgent, generation: int, parts: list[tuple[StubAgent, int, int]], step: int, **copy: int
) -> None:
    """Leaves word of an average for its next process, as an agent does."""
    place = agent.folder / "checkpoints" / f"gen-{generation}"
    place.mkdir(parents=True)
    named = [
        {"folder": str(lender.folder / "checkpoints"), "generation": number, "steps": steps}
        for lender, number, steps in parts
    ]
    (place / average.NAME).write_text(json.dumps({"step": step, "parts": named, **copy}))


def leave(agent: StubAgent, at_least: int = 0) -> JobHeld:
    """Through a checkpoint, once it has trained so far."""
    since = agent.seen()
    agent.suspend(Tier.CHECKPOINT)
    held = agent.wait(JobHeld, since, lambda event: event.tier is Tier.CHECKPOINT)
    assert held.step >= at_least
    return held


def content(agent: StubAgent, generation: int) -> dict[str, Any]:
    return Folder(str(agent.folder / "checkpoints"), 0, 1).content(generation)


def first_alone(agent: StubAgent, steps: int = 5) -> JobHeld:
    job = agent.run(TRAIN, *HANDED, env={"HS_LAST_STEP": str(steps)})
    agent.wait(JobReady)
    agent.resume()
    held = agent.wait(JobHeld)
    assert held.step == steps
    assert leave(agent).step == steps
    assert job.wait() == 75
    return agent.wait(JobHeld, 0, lambda event: event.tier is Tier.CHECKPOINT)


def copy_of(agent: StubAgent, generation: int, last: int) -> tuple[list[tuple[int, str]], JobHeld]:
    """Trains its portion and leaves. What it trained (step, loss), and how it left."""
    since = agent.seen()
    job = agent.run(TRAIN, *HANDED, env={"HS_RESTORE": str(generation), "HS_LAST_STEP": str(last)})
    agent.wait(JobReady, since)
    agent.resume()
    agent.wait(JobHeld, since)
    held = leave(agent, last)
    output, errors = job.communicate()
    assert (job.returncode, errors) == (75, "")
    found = [(int(step), loss) for step, loss in re.findall(r"^0:(\d+) (\S+)$", output, re.MULTILINE)]
    return found, held


def test_copies_train_on_their_own_and_one_goes_on_from_their_average_to_the_end(
    agents: list[StubAgent],
) -> None:
    a, b, c = agents
    alone = first_alone(a)
    ask(b, 1, [(a, alone.generation, 0)], 5, copy=0, copies=2)
    ask(c, 1, [(a, alone.generation, 0)], 5, copy=1, copies=2)
    one, left = copy_of(b, 1, 45)
    other, right = copy_of(c, 1, 25)
    assert [step for step, _ in one] == list(range(6, 46))
    assert [step for step, _ in other] == list(range(6, 26))
    assert {loss for _, loss in one}.isdisjoint(loss for _, loss in other), "they trained on the same batches"

    total = 5 + 40 + 20
    ask(a, 7, [(b, left.generation, 40), (c, right.generation, 20)], total)
    since = a.seen()
    job = a.run(TRAIN, *HANDED, env={"HS_RESTORE": "7"})
    assert a.wait(JobReady, since).step == total
    restored = a.wait(JobRestored, since)
    assert (restored.step, restored.generation, restored.note) == (total, 7, "")
    whole, (x, y) = content(a, 7), (content(b, left.generation), content(c, right.generation))
    for name, value in whole["objects"]["model"].items():
        if value.is_floating_point():
            mean = (
                x["objects"]["model"][name].double() * 40 + y["objects"]["model"][name].double() * 20
            ) / 60
            torch.testing.assert_close(value, mean.to(value.dtype), rtol=1e-6, atol=1e-9)
    assert whole["objects"]["model"]["1.num_batches_tracked"] == 45, "whole numbers are the busiest copy's"
    assert (whole["data"]["epoch"], whole["data"]["fetched"]) == (3, 5), "batches add up"
    a.resume()
    output, errors = job.communicate()
    assert (job.returncode, errors) == (0, "")
    steps = [int(step) for step in re.findall(r"^0:(\d+) ", output, re.MULTILINE)]
    assert steps == list(range(total + 1, 81)), "the script ends with the total"
    assert re.search(r"lr \[0\.00125\]", output), (
        "the schedule of learning rates took the epochs of all copies"
    )


def test_where_nothing_is_left_the_script_ends_without_a_step(agents: list[StubAgent]) -> None:
    a, b, c = agents
    alone = first_alone(a)
    ask(b, 1, [(a, alone.generation, 0)], 5, copy=0, copies=2)
    ask(c, 1, [(a, alone.generation, 0)], 5, copy=1, copies=2)
    left, right = copy_of(b, 1, 45)[1], copy_of(c, 1, 40)[1]
    ask(a, 7, [(b, left.generation, 40), (c, right.generation, 35)], 80)
    since = a.seen()
    job = a.run(TRAIN, *HANDED, env={"HS_RESTORE": "7"})
    assert a.wait(JobReady, since).step == 80
    a.resume()
    output, errors = job.communicate()
    assert (job.returncode, errors) == (0, "")
    assert not re.search(r"^0:\d+ ", output, re.MULTILINE)
    assert "weights" in output


def test_ranks_of_a_copy_all_stop_where_its_portion_ends(agent: StubAgent) -> None:
    agent.kill()
    agent._machine_args = {"last_step": 12}
    agent.start()
    job = agent.run(
        TRAIN, "--ddp", "--handed", "epoch", "--epochs", "10", env={"HS_LAST_STEP": "12"}, ranks=2
    )
    agent.wait(JobReady)
    agent.resume()
    agent.wait(JobWentOn)
    assert agent.wait(JobHeld).step == 12
    since = agent.seen()
    agent.resume()  # by who did not know yet
    assert agent.wait(JobHeld, since).step == 12
    assert leave(agent).step == 12
    output, errors = job.communicate()
    assert (job.returncode, errors) == (75, "")
    steps = sorted(int(step) for step in re.findall(r"^\d:(\d+) ", output, re.MULTILINE))
    assert steps == sorted([*range(1, 13)] * 2)
    assert agent.wait(JobCheckpointed).step == 12


def test_parts_that_do_not_match_end_the_process_and_say_why(agents: list[StubAgent]) -> None:
    a, b, _ = agents
    alone = first_alone(a)
    ask(b, 1, [(a, alone.generation, 5), (a, alone.generation + 3, 5)], 10)
    job = b.run(TRAIN, *HANDED, env={"HS_RESTORE": "1"})
    _, errors = job.communicate()
    assert job.returncode == 1
    assert "checkpoints of 2 copies cannot be averaged" in errors


def saved(
    step: int, weight: float, *, fetched: int, began: int, count: int, numbers: int = 0
) -> dict[str, Any]:
    data = {"epoch": 0, "fetched": fetched, "made": {}, "reused": False, "batches": 10, "in_order": True}
    return {
        "format": 1,
        "step": step,
        "objects": {
            "model": {"w": torch.tensor([weight]), "seen": torch.tensor(numbers)},
            "schedule": {"last_epoch": count},
        },
        "data": data,
        "rng": {"python": [3, list(range(625)), None]},
        "began": {
            "data": {**data, "fetched": began},
            "all": {**data, "fetched": 2},
            "schedules": {"schedule": 2},
        },
    }


def test_weights_go_by_the_steps_done_and_schedules_take_the_steps_of_all() -> None:
    found = average.merged(
        [saved(8, 1.0, fetched=8, began=2, count=8, numbers=6), saved(4, 4.0, fetched=6, began=4, count=4)],
        [6, 2],
        10,
    )
    assert found["objects"]["model"]["w"].tolist() == [1.75]
    assert found["objects"]["model"]["seen"] == 6
    assert (found["step"], found["data"]["epoch"], found["data"]["fetched"]) == (10, 0, 10)
    assert found["behind"] == {"schedule": 2}, "8 steps of its own, 2 of the other's"


def test_ranks_of_an_elastic_job_average_what_copies_of_another_number_of_ranks_wrote(tmp_path: Path) -> None:
    for name, weight in (("a", 1.0), ("b", 3.0)):
        for rank in (1, 0):
            kept = Folder(str(tmp_path / name), rank, 2, elastic=True)
            kept.write(4, 12, saved(12, weight, fetched=4, began=2, count=4), wait_for_manifest=False)
    parts = [{"folder": str(tmp_path / name), "generation": 4, "steps": 5} for name in ("a", "b")]
    (tmp_path / "c" / "gen-5").mkdir(parents=True)
    (tmp_path / "c" / "gen-5" / average.NAME).write_text(json.dumps({"step": 20, "parts": parts}))
    folder = Folder(str(tmp_path / "c"), 0, 1, elastic=True)
    average.complete(folder, 5)
    content, generation, note = folder.read(5)
    assert content is not None
    assert (content["objects"]["model"]["w"].tolist(), content["step"]) == ([2.0], 20)
    assert (generation, note) == (5, "")


def test_an_average_is_of_the_versions_of_modules_that_its_parts_are_of() -> None:
    parts = [saved(4, weight, fetched=4, began=2, count=4) for weight in (1.0, 2.0)]
    for part in parts:
        part["objects"]["model"] = torch.nn.BatchNorm1d(1).state_dict()
    found = average.merged(parts, [2, 2], 6)["objects"]["model"]
    assert found._metadata == {"": {"version": 2}}


def test_arrays_without_elements_have_an_average() -> None:
    parts = [saved(4, weight, fetched=4, began=2, count=4) for weight in (1.0, 2.0)]
    for part in parts:
        part["objects"]["model"]["none"] = pack(np.zeros((0, 3)), "none")
    found = average.merged(parts, [2, 2], 6)["objects"]["model"]
    assert unpack(found["none"]).shape == (0, 3)


def test_arrays_of_numbers_are_averaged_and_bytes_are_the_busiest_copys() -> None:
    parts = [saved(4, weight, fetched=4, began=2, count=4) for weight in (1.0, 2.0)]
    for part, weight in zip(parts, (1.0, 5.0), strict=True):
        own = {
            "small": np.full((2, 3), weight, np.float32),
            "large": np.full(5000, weight),
            "by column": np.asfortranarray([[weight, 1.0], [2.0, 3.0]]),
            "complex": np.array(weight * 1j, np.complex64),
            "whole": np.array([weight], int),
            "number": np.float32(weight),
            "word": np.str_(weight),
            "bytes": bytes(int(weight) * 2000),
            "keys": {b"a": np.array([weight]), (1, b"b"): b""},
        }
        part["objects"]["model"]["own"] = pack(own, "own")
    found = unpack(average.merged(parts, [3, 1], 6)["objects"]["model"]["own"])
    assert found["small"].tolist() == [[2.0] * 3] * 2
    assert found["large"].tolist() == [2.0] * 5000
    assert found["by column"].tolist() == [[2.0, 1.0], [2.0, 3.0]]
    assert found["by column"].flags.f_contiguous
    assert (found["complex"].tolist(), found["whole"].tolist()) == (2j, [1])
    assert (found["number"], found["word"], found["bytes"]) == (1.0, "1.0", bytes(2000))
    assert (found["keys"][b"a"].tolist(), found["keys"][1, b"b"]) == ([2.0], b"")
    assert [found[name].dtype for name in ("small", "complex")] == [np.float32, np.complex64]
    parts[1]["objects"]["model"]["own"]["keys"] = pack({b"b": np.array([1.0]), (1, b"b"): b""}, "keys")
    with pytest.raises(ValueError, match=r"the copies differ in entries of model\['own'\]\['keys'\]"):
        average.merged(parts, [3, 1], 6)


def test_an_average_is_the_same_whatever_the_default_device_is() -> None:
    parts = [saved(4, weight, fetched=4, began=2, count=4) for weight in (1.0, 2.0)]
    for part in parts:
        part["rng"]["cuda"] = [torch.zeros(16, dtype=torch.uint8)]
    with torch.device("meta"):
        elsewhere = average.as_copy(average.merged(parts, [2, 2], 6), 1, 2)
    found = average.as_copy(average.merged(parts, [2, 2], 6), 1, 2)
    assert elsewhere["objects"]["model"]["w"].tolist() == [1.5]
    assert elsewhere["rng"]["cuda"][0].tolist() == found["rng"]["cuda"][0].tolist()


def test_copies_draw_apart_also_from_a_generator_that_a_script_has_given_numpy() -> None:
    part = saved(4, 1.0, fetched=4, began=2, count=4)
    made = np.random.RandomState(np.random.PCG64(1))
    part["rng"]["numpy"] = rng.of_numpy(made.get_state(legacy=False))
    drawn = []
    for copy in range(3):
        made.set_state(unpack(average.as_copy(average.merged([part], [2], 4), copy, 3)["rng"]["numpy"]))
        drawn.append(made.rand())
    assert len(set(drawn)) == 3


@pytest.mark.parametrize(
    "made",
    [
        random.Random(1),
        np.random.default_rng(1),
        np.random.Generator(np.random.MT19937(1)),
        np.random.RandomState(1),
        torch.Generator().manual_seed(1),
    ],
    ids=["python", "numpy", "numpy's older kind", "numpy's old one", "torch"],
)
def test_copies_draw_apart_also_from_generators_that_their_data_keep(made: Any) -> None:
    part = saved(4, 1.0, fetched=4, began=2, count=4)
    part["rng"]["own"] = [dice.state(made)]
    states = []
    for copy in range(3):
        copied = average.as_copy(average.merged([part], [2], 4), copy, 3)["rng"]["own"][0]
        dice.set_state(made, copied)
        states.append(repr(dice.state(made)))
        assert repr(copied) == states[-1]
    assert len(set(states)) == 3


def test_parameters_that_no_module_has_are_averaged_too() -> None:
    parts = [saved(4, 1.0, fetched=4, began=2, count=4) for _ in range(2)]
    for part, heat in zip(parts, (1.0, 5.0), strict=True):
        part["loose"] = {"optimizer": {2: torch.tensor([heat])}}
    found = average.merged(parts, [3, 1], 6)
    assert found["loose"]["optimizer"][2].tolist() == [2.0]


def test_a_copy_that_did_nothing_has_no_weight() -> None:
    idle = saved(2, float("nan"), fetched=2, began=2, count=2)
    found = average.merged([idle, saved(4, 4.0, fetched=4, began=2, count=4)], [0, 2], 4)
    assert found["objects"]["model"]["w"].tolist() == [4.0]


def test_a_loader_that_does_not_shuffle_gives_each_copy_another_part_of_the_epoch() -> None:
    base = average.merged([saved(2, 1.0, fetched=2, began=2, count=2)], [0], 2)
    starts = [average.as_copy(base, copy, 4)["data"]["fetched"] for copy in range(4)]
    assert starts == [2, 4, 6, 8]


def test_a_schedule_is_not_ahead_where_the_busiest_copy_alone_has_ended_the_epoch() -> None:
    """It began further on in it: 2 batches of 10 were done, and then 1 by one copy and 6 by the other, from the sixth on."""
    parts = [
        saved(3, 1.0, fetched=3, began=2, count=0),
        saved(8, 8.0, fetched=2, began=6, count=1),
    ]
    parts[1]["data"]["epoch"] = 1
    for part in parts:
        part["began"]["schedules"] = {"schedule": 0}
    found = average.merged(parts, [1, 6], 9)
    assert (found["data"]["epoch"], found["data"]["fetched"]) == (0, 9)
    assert (found["objects"]["schedule"], found["behind"]) == ({"last_epoch": 0}, {})
    assert found["objects"]["model"]["w"].tolist() == [7.0]


def test_no_copy_is_taken_on_so_far_that_its_script_ends_before_its_portion_is_done() -> None:
    """Of 8 batches that are left of the last epoch 2 are the first copy's, which is slower."""
    base = average.merged([saved(2, 1.0, fetched=2, began=2, count=2)], [0], 2)
    assert average.as_copy(base, 1, 2, 2)["data"]["fetched"] == 4
    assert average.as_copy(base, 1, 2, 7)["data"]["fetched"] == 6


def test_so_does_one_that_shuffles_by_the_number_of_the_epoch_alone() -> None:
    """As those of several ranks do: all copies would train on the same batches, whatever their generators are at."""
    examples = TensorDataset(torch.arange(40))
    seen: list[set[int]] = []
    for copy in range(3):
        sampler = DistributedSampler(examples, num_replicas=2, rank=0, seed=9)
        data = Data(DataLoader(examples, batch_size=2, sampler=sampler), Advice())
        base = {**saved(1, 1.0, fetched=1, began=1, count=1), "data": data.position(1) | {"epoch": 0}}
        base["data"]["made"] = rng.capture(torch, [])
        data.aim(average.as_copy(base, copy, 3)["data"], own_dice=True)
        batches = data.iterate(DataLoader.__iter__, next)
        seen.append({int(each) for _ in range(3) for each in next(batches)[0]})
    assert len(set.union(*seen)) == 18, "they train on the same batches"


def trained(steps: int, rate: float | torch.Tensor) -> tuple[dict[str, Any], dict[str, Any]]:
    """A model, its optimizer and its schedule, after so many steps; and the checkpoint of them."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        schedule.step()
    objects = {"model": model, "optimizer": optimizer, "schedule": schedule}
    kept = saved(steps, 1.0, fetched=steps, began=0, count=0)
    kept["objects"] = {name: pack(thing.state_dict(), name) for name, thing in objects.items()}
    kept["began"]["schedules"] = {"schedule": 0}
    return objects, read_back(kept)


def read_back(kept: dict[str, Any]) -> dict[str, Any]:
    """As it is read from disk."""
    file = io.BytesIO()
    torch.save(kept, file)
    file.seek(0)
    return load(file)


@pytest.mark.parametrize("tensor", [False, True])
def test_learning_rates_are_those_of_all_steps_also_where_they_are_tensors(tensor: bool) -> None:
    rate = torch.tensor(0.5) if tensor else 0.5
    parts = [trained(steps, rate)[1] for steps in (6, 2)]
    found = average.merged(parts, [6, 2], 8)
    objects, _ = trained(0, rate)
    for name, thing in objects.items():
        thing.load_state_dict(unpack(found["objects"][name]))
    catch_up(objects["schedule"], found["behind"]["schedule"])
    [group] = objects["optimizer"].param_groups
    assert float(group["lr"]) == pytest.approx(0.5 * 0.9**8)
    momenta = [part["objects"]["optimizer"]["state"][0]["momentum_buffer"] for part in parts]
    mean = objects["optimizer"].state_dict()["state"][0]["momentum_buffer"]
    torch.testing.assert_close(mean, (6 * momenta[0] + 2 * momenta[1]) / 8)


def test_schedules_that_accelerate_has_prepared_take_the_steps_of_all_copies() -> None:
    from accelerate.scheduler import AcceleratedScheduler

    objects, _ = trained(1, 0.5)
    catch_up(AcceleratedScheduler(objects["schedule"], [objects["optimizer"]]), 3)
    assert objects["optimizer"].param_groups[0]["lr"] == pytest.approx(0.5 * 0.9**4)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.parametrize("layout", ["coo", "csr", "bsr"])
def test_an_average_of_sparse_tensors_is_sparse_as_only_that_is_loaded(layout: str) -> None:
    def made(weight: float) -> torch.nn.Module:
        module, whole = torch.nn.Module(), torch.eye(4) * weight
        kinds = {
            "coo": whole.to_sparse,
            "csr": whole.to_sparse_csr,
            "bsr": lambda: whole.to_sparse_bsr((2, 2)),
        }
        module.register_buffer("near", kinds[layout]())
        return module

    parts = [saved(4, 1.0, fetched=4, began=2, count=4) for _ in range(2)]
    for part, weight in zip(parts, (1.0, 5.0), strict=True):
        part["objects"]["model"] = pack(made(weight).state_dict(), "model")
    found = average.merged(parts, [3, 1], 6)["objects"]["model"]
    module = made(9.0)
    module.load_state_dict(unpack(found))
    assert (module.near.to_dense() == 2.0 * torch.eye(4)).all()


def test_what_an_optimizer_keeps_of_a_parameter_is_the_mean_of_the_copies_that_have_stepped_it() -> None:
    """Where one copy alone has come to thaw a layer, say, or to use it."""
    parts = [trained(steps, 0.5)[1] for steps in (6, 2, 4)]
    states = [part["objects"]["optimizer"]["state"] for part in parts]
    del states[0][1]
    found = average.merged(parts, [6, 2, 4], 12)["objects"]["optimizer"]["state"]
    momenta = [state[1]["momentum_buffer"] for state in states[1:]]
    torch.testing.assert_close(found[1]["momentum_buffer"], (2 * momenta[0] + 4 * momenta[1]) / 6)
    assert set(found) == {0, 1}


def test_what_grows_without_tensors_is_the_busiest_copys() -> None:
    parts = [saved(4, 1.0, fetched=4, began=2, count=4) for _ in range(2)]
    for part, losses in zip(parts, ({0: 0.5, 1: 0.25}, {0: 0.75}), strict=True):
        part["objects"]["history"] = {"losses": list(losses.values()), "by epoch": losses}
        part["objects"]["tuples"] = pack({(epoch, "a"): loss for epoch, loss in losses.items()}, "tuples")
        part["objects"]["keys"] = pack({b"%d" % epoch: 0 for epoch in losses}, "keys")
    found = average.merged(parts, [3, 1], 6)["objects"]
    for name in ("history", "tuples", "keys"):
        assert found[name] == parts[0]["objects"][name]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"w": torch.tensor([1.0, 2.0])}, r"model\['w'\] has shapes"),
        ({"other": torch.tensor(1)}, r"differ in entries \['other'\] of model"),
    ],
)
def test_states_that_differ_in_shape_or_names_are_refused(change: dict[str, Any], said: str) -> None:
    one, other = (saved(4, 1.0, fetched=4, began=2, count=4) for _ in range(2))
    other["objects"]["model"] |= change
    with pytest.raises(ValueError, match=said):
        average.merged([one, other], [2, 2], 6)

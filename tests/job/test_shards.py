"""Tensors that are spread over ranks: what is saved of them, where it goes back, and how their memory is swapped."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from hs_job.pack import PackError, pack, unpack
from hs_job.shards import Layouts, local
from hs_job.swap import Swapper

# What torch before 2.5 says of every tensor that is spread on the CPU:
pytestmark = [
    pytest.mark.filterwarnings("ignore:DTensor random operators may not"),
    pytest.mark.filterwarnings("ignore:To construct DTensor from torch.Tensor"),
]


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    """Of one rank."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,), mesh_dim_names=("dp",))
    finally:
        torch.distributed.destroy_process_group()


def sharded(mesh: DeviceMesh, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    try:
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    except ImportError:  # before torch 2.5
        from torch.distributed._tensor import Replicate, Shard, distribute_tensor
    torch.manual_seed(seed)
    model = nn.Linear(4, 3)
    model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), mesh, [Shard(0)]))
    model.bias = nn.Parameter(distribute_tensor(model.bias.detach(), mesh, [Replicate()]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False)
    return model, optimizer


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


class Handed:
    def __init__(self, **objects: Any) -> None:
        self.objects = objects


def saved(folder: Path, **objects: Any) -> dict[str, Any]:
    """Through a file, as weights only."""
    torch.save({name: pack(thing.state_dict(), name) for name, thing in objects.items()}, folder / "f")
    back: dict[str, Any] = torch.load(folder / "f", weights_only=True)
    return back


def test_a_rank_saves_its_part_and_a_new_process_lays_it_out_as_its_own_model(
    mesh: DeviceMesh, tmp_path: Path
) -> None:
    model, optimizer = sharded(mesh, 1)
    step(model, optimizer)
    content = saved(tmp_path, model=model, optimizer=optimizer)
    other, its_optimizer = sharded(mesh, 2)
    layouts = Layouts({"model": other, "optimizer": its_optimizer})
    other.load_state_dict(unpack(content["model"], layouts))
    its_optimizer.load_state_dict(unpack(content["optimizer"], layouts))
    for each in (model, optimizer), (other, its_optimizer):
        step(*each)
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert ours.placements == theirs.placements
        assert torch.equal(ours.full_tensor(), theirs.full_tensor())
        moments = optimizer.state[ours], its_optimizer.state[theirs]
        assert torch.equal(*(moment["exp_avg"].full_tensor() for moment in moments))


def test_a_state_of_the_scripts_own_making_says_by_itself_how_it_lies(
    mesh: DeviceMesh, tmp_path: Path
) -> None:
    class Averages:
        def __init__(self, weight: Any) -> None:
            self.weight = weight

        def state_dict(self) -> dict[str, Any]:
            return {"nested": [self.weight]}

    content = saved(tmp_path, ema=Averages(sharded(mesh, 1)[0].weight))
    here = Averages(sharded(mesh, 2)[0].weight)
    back = unpack(content["ema"], Layouts({"ema": here}))["nested"][0]
    assert torch.equal(back.full_tensor(), sharded(mesh, 1)[0].weight.full_tensor())


def test_a_part_that_nothing_handed_over_has_a_place_for_is_refused(mesh: DeviceMesh, tmp_path: Path) -> None:
    content = saved(tmp_path, model=sharded(mesh, 1)[0])
    with pytest.raises(ValueError, match=r"Shard\(dim=0\).* over ranks \[0\].*shard the model before"):
        unpack(content["model"], Layouts({"model": nn.Linear(4, 3)}))


def test_a_job_whose_ranks_may_become_others_is_told_to_hand_over_whole_tensors(mesh: DeviceMesh) -> None:
    model, _ = sharded(mesh, 1)
    with pytest.raises(PackError, match=r"model\['weight'\] is spread over the ranks .*whole state dicts"):
        pack(model.state_dict(), "model", whole=True)


def test_the_memory_of_parts_is_swapped_and_saved_from_the_host_meanwhile(mesh: DeviceMesh) -> None:
    model, optimizer = sharded(mesh, 1)
    step(model, optimizer)
    parts = [
        local(each)
        for parameter in model.parameters()
        for each in (parameter, parameter.grad, optimizer.state[parameter]["exp_avg"])
    ]
    before = [part.clone() for part in parts]
    swapper = Swapper(torch, lambda: [optimizer], lambda: Handed(model=model), kinds=("cpu",))
    swapper.out()
    assert all(part.untyped_storage().nbytes() == 0 for part in parts)
    content = pack(model.state_dict(), "model", swapper.host_of)
    assert torch.equal(content["weight"]["part"], before[0])
    swapper.back(pytest.fail)
    assert all(torch.equal(part, then) for part, then in zip(parts, before, strict=True))

"""Optimizers whose state is spread over the ranks: what of them is saved, where it goes back, and which are refused."""

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from hs_job import zero
from hs_job.pack import PackError, pack, unpack

pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit.:DeprecationWarning"
)  # torch's own, as it is imported


@pytest.fixture(autouse=True)
def _of_one_rank() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def made(seed: int, **more: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    torch.manual_seed(seed)
    model = nn.Linear(4, 3)
    kind = ZeroRedundancyOptimizer
    return model, kind(model.parameters(), torch.optim.AdamW, lr=0.1, **more)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def test_others_are_taken_for_what_they_are() -> None:
    model, optimizer = made(1)
    assert zero.is_spread(optimizer)
    assert not zero.is_spread(torch.optim.AdamW(model.parameters()))


def test_what_is_inside_and_what_a_schedule_has_set_outside_go_back() -> None:
    (model, optimizer), (other, its) = made(1), made(2)
    step(model, optimizer)
    torch.optim.lr_scheduler.ConstantLR(optimizer, factor=0.5)
    state = unpack(pack(zero.state_of(optimizer, "optimizer", whole=False), "optimizer"))
    other.load_state_dict(model.state_dict())
    zero.load(its, copy.deepcopy(state))
    assert [group["lr"] for group in (its.param_groups[0], its.optim.param_groups[0])] == [0.05, 0.05]
    for each in (model, optimizer), (other, its):
        step(*each)
    assert torch.equal(model.weight, other.weight)
    assert not its.state, "nothing of it lies here twice"


def test_one_that_accelerate_has_prepared_is_saved_and_put_back_as_it_is_without() -> None:
    from accelerate import Accelerator

    kind = Accelerator(cpu=True, device_placement=False)
    (model, optimizer), (other, its) = made(1), made(2)
    optimizer, its = kind.prepare(optimizer, its)
    step(model, optimizer)
    assert zero.is_spread(optimizer)
    state = unpack(pack(zero.state_of(optimizer, "optimizer", whole=False), "optimizer"))
    other.load_state_dict(model.state_dict())
    zero.load(its, copy.deepcopy(state))
    for each in (model, optimizer), (other, its):
        step(*each)
    assert torch.equal(model.weight, other.weight)


def test_the_part_of_another_rank_is_not_taken_up() -> None:
    _, optimizer = made(1)
    state = zero.state_of(optimizer, "optimizer", whole=False)
    with pytest.raises(ValueError, match=r"part of rank 1 of 2 .*; this is rank 0 of 1"):
        zero.load(optimizer, {**state, "rank": 1, "ranks": 2})


def test_a_job_whose_ranks_may_become_others_is_told_to_hand_over_whole_state() -> None:
    _, optimizer = made(1)
    with pytest.raises(PackError, match=r"optimizer has its state spread over the ranks .*whole state dicts"):
        zero.state_of(optimizer, "optimizer", whole=True)


def test_one_that_steps_amid_the_backward_pass_is_refused() -> None:
    _, optimizer = made(1, overlap_with_ddp=True)
    with pytest.raises(PackError, match="overlap_with_ddp=False"):
        zero.state_of(optimizer, "optimizer", whole=False)

"""What is looked at of a loader's samplers: whose generators a move restores, and whether every epoch has the same order."""

from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from hs_job import rng
from hs_job.position import Data

NUMBERS = list(range(8))


class Shard:
    """A sampler of batches around another one, as accelerate's of several ranks."""

    def __init__(self, batches: BatchSampler) -> None:
        self.batch_sampler = batches

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batch_sampler)

    def __len__(self) -> int:
        return len(self.batch_sampler)


def test_a_generator_is_found_however_deep_its_sampler_lies_and_once() -> None:
    dice = torch.Generator()
    batches = BatchSampler(RandomSampler(NUMBERS, generator=dice), batch_size=2, drop_last=False)
    assert rng.generators(DataLoader(NUMBERS, batch_sampler=batches)) == [dice]
    assert rng.generators(DataLoader(NUMBERS, batch_sampler=Shard(batches))) == [dice]
    assert rng.generators(DataLoader(NUMBERS, shuffle=True, generator=dice)) == [dice]


@pytest.mark.parametrize("around", [lambda batches: batches, Shard], ids=["plain", "around another"])
@pytest.mark.parametrize(("sampler", "in_order"), [(RandomSampler, False), (SequentialSampler, True)])
def test_a_loader_that_was_given_batches_is_in_order_where_their_sampler_is(
    around, sampler, in_order: bool
) -> None:
    batches = around(BatchSampler(sampler(NUMBERS), batch_size=2, drop_last=False))
    assert Data(DataLoader(NUMBERS, batch_sampler=batches)).position(0)["in_order"] is in_order


@pytest.mark.parametrize("batch_size", [2, None])
@pytest.mark.parametrize("shuffle", [True, False])
def test_any_other_loader_is_in_order_where_it_does_not_shuffle(
    batch_size: int | None, shuffle: bool
) -> None:
    loader = DataLoader(NUMBERS, batch_size=batch_size, shuffle=shuffle)
    assert Data(loader).position(0)["in_order"] is not shuffle

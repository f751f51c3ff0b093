"""What is looked at of a loader's samplers: whose generators a move restores, whether every epoch has the same order, and how many examples a batch of all ranks is."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
)

from hs_job import rng
from hs_job.advice import Advice
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
    assert Data(DataLoader(NUMBERS, batch_sampler=batches), Advice()).position(0)["in_order"] is in_order


@pytest.mark.parametrize("batch_size", [2, None])
@pytest.mark.parametrize("shuffle", [True, False])
def test_any_other_loader_is_in_order_where_it_does_not_shuffle(
    batch_size: int | None, shuffle: bool
) -> None:
    loader = DataLoader(NUMBERS, batch_size=batch_size, shuffle=shuffle)
    assert Data(loader, Advice()).position(0)["in_order"] is not shuffle


class Lines(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(96))


EXAMPLES = list(range(96))


def plain(ranks: int, rank: int, size: int) -> DataLoader[int]:
    return DataLoader(
        EXAMPLES, batch_size=size, sampler=DistributedSampler(EXAMPLES, ranks, rank, shuffle=False)
    )


def given_batches(ranks: int, rank: int, size: int) -> DataLoader[int]:
    sampler = DistributedSampler(EXAMPLES, ranks, rank, shuffle=False)
    return DataLoader(EXAMPLES, batch_sampler=BatchSampler(sampler, size, drop_last=False))


def by_accelerate(loader: DataLoader[int], ranks: int, rank: int, **how: bool) -> DataLoader[int]:
    from accelerate.data_loader import prepare_data_loader  # not while tests are collected: it takes a second

    return prepare_data_loader(loader, num_processes=ranks, process_index=rank, put_on_device=False, **how)


def prepared(ranks: int, rank: int, size: int) -> DataLoader[int]:
    return by_accelerate(DataLoader(EXAMPLES, batch_size=size), ranks, rank)


def prepared_whole(ranks: int, rank: int, size: int) -> DataLoader[int]:
    return by_accelerate(DataLoader(EXAMPLES, batch_size=size * ranks), ranks, rank, split_batches=True)


def prepared_lines(ranks: int, rank: int, size: int) -> DataLoader[int]:
    return by_accelerate(DataLoader(Lines(), batch_size=size), ranks, rank, dispatch_batches=False)


@pytest.mark.parametrize("make", [plain, given_batches, prepared, prepared_whole, prepared_lines])
def test_other_ranks_with_other_batches_go_on_after_as_many_examples(make) -> None:
    before = Data(make(2, 0, 6), Advice())
    fetched = before.iterate(DataLoader.__iter__, next)
    before.begins()
    for _ in range(3):
        next(fetched)
    seen: list[int] = []
    for rank in range(3):
        after = Data(make(3, rank, 2), Advice())
        after.aim(before.position(3), own_dice=rank < 2)
        seen += torch.cat([*after.iterate(DataLoader.__iter__, next)]).tolist()
    assert sorted(set(seen)) == list(range(36, 96)), "3 batches of 6 on each of two ranks are done"


def test_of_batches_of_unlike_sizes_no_number_of_examples_is_known() -> None:
    loader = DataLoader(
        NUMBERS, batch_sampler=Shard(BatchSampler(SequentialSampler(NUMBERS), 2, drop_last=False))
    )
    assert Data(loader, Advice()).position(0)["stride"] == 0


def test_what_data_keep_is_looked_through_for_generators_and_asked_for_nothing() -> None:
    class Shy:
        """Stands in for another object, which is not there."""

        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(name)

    class Noise:
        def __init__(self) -> None:
            self.shy, self.own, self.of_system = Shy(), random.Random(1), random.SystemRandom()
            self.shy_ones = {
                "one": self,
                "many": [random.Random(2)] * 100,
                "other": (np.random.default_rng(3),),
            }

    noise, dice = Noise(), torch.Generator()
    part = Subset(NUMBERS, range(4))
    part.transforms = [noise, dice]
    loader = DataLoader(part, shuffle=True, generator=dice)
    assert rng.generators(loader) == [dice, noise.own, noise.shy_ones["other"][0]]

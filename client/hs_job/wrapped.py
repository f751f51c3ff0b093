"""Loaders of accelerate, which transformers' Trainer trains with: around one of torch's, and a batch ahead of it, to see where the epoch ends. And its optimizers, around one of the script's."""

from __future__ import annotations

from typing import Any

_LOOK_AHEAD = {"DataLoaderShard", "DataLoaderDispatcher"}


def optimizer(thing: Any) -> Any:
    """The script's own, of one that accelerate has prepared. By name, as below."""
    kinds = {kind.__name__ for kind in type(thing).__mro__}
    return thing.optimizer if "AcceleratedOptimizer" in kinds else thing


def inner(loader: Any) -> Any:
    """The one of torch's that it goes through."""
    return getattr(loader, "base_dataloader", loader)


def ahead(loader: Any) -> int:
    """Batches that it has fetched beyond the one that it has given. By name: who has not imported accelerate need not."""
    kinds = {kind.__name__ for kind in type(loader).__mro__}  # its `__class__` is torch's
    return 0 if kinds.isdisjoint(_LOOK_AHEAD) else 1


def shards(loader: Any) -> int:
    """Ranks among which batches of that size are handed out by what is put in the place of its sampler, or of its dataset."""
    batches, dataset = loader.batch_sampler, loader.dataset
    if type(batches).__name__ == "BatchSamplerShard":  # where it splits them, they are of all ranks together
        return 1 if batches.split_batches else int(batches.num_processes)
    return int(dataset.num_processes) if type(dataset).__name__ == "IterableDatasetShard" else 1


def go_to(loader: Any, epoch: int) -> None:
    """It counts epochs itself, for samplers that are told."""
    if ahead(loader) and hasattr(loader, "iteration"):
        loader.iteration = epoch

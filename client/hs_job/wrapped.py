"""Loaders of accelerate, which transformers' Trainer trains with: around one of torch's, and a batch ahead of it, to see where the epoch ends. And its optimizers, around one of the script's.
Loaders of Lightning's Fabric, which are around one of torch's, too."""

# What libraries do not offer otherwise:
# ruff: noqa: SLF001

from __future__ import annotations

from typing import Any

from hs_job import rng

_LOOK_AHEAD = {"DataLoaderShard", "DataLoaderDispatcher"}


def optimizer(thing: Any) -> Any:
    """The script's own, of one that accelerate has prepared. By name, as below."""
    kinds = {kind.__name__ for kind in type(thing).__mro__}
    return thing.optimizer if "AcceleratedOptimizer" in kinds else thing


def inner(loader: Any) -> Any:
    """The one of torch's that it goes through."""
    return loader._dataloader if _is_of_fabric(loader) else getattr(loader, "base_dataloader", loader)


def _is_of_fabric(loader: Any) -> bool:
    return type(loader).__name__ == "_FabricDataLoader"


def ahead(loader: Any) -> int:
    """Batches that it has fetched beyond the one that it has given. By name: who has not imported accelerate need not."""
    kinds = {kind.__name__ for kind in type(loader).__mro__}  # its `__class__` is torch's
    return 0 if kinds.isdisjoint(_LOOK_AHEAD) else 1


def adds_up(loader: Any) -> bool:
    """Accelerate counts the batches of a step by itself (`accumulate`)."""
    return bool(getattr(getattr(loader, "gradient_state", None), "num_steps", 1) > 1)


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


def iterations(loader: Any) -> int:
    """How often one of Fabric's has been gone through: it tells that to its samplers as the epoch. 0: they are told by others."""
    return int(loader._num_iter_calls) if _is_of_fabric(loader) else 0


def iterates_again(loader: Any, iterations: int) -> None:
    """It was counted so far when it had told its samplers of this epoch, and has told them of another one now."""
    if not iterations or not _is_of_fabric(loader):
        return
    loader._num_iter_calls = iterations
    for sampler in rng.samplers(inner(loader)):
        if callable(tell := getattr(sampler, "set_epoch", None)):
            tell(iterations - 1)

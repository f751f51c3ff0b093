"""The Trainer of transformers: counted, held and saved between its steps, and resumed where it was by the way that it resumes its own checkpoints.

What it would read from a folder of its own (weights, optimizer, generators) is put back by `hs_job.state`; of that folder there is only the file that
says how far it is. The position in the data is the loader's, so none of its batches is passed by.
"""
# What a library does not offer otherwise:
# ruff: noqa: SLF001

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
from typing import Any, Dict, List, Optional

import hs_job
from hs_job import advice, handed, runtime
from hs_job.position import Data

STATE = "trainer_state.json"
_SUMS = ("_total_loss_scalar", "current_flos")
_SINCE_LOGGED = ("_tr_loss", "_globalstep_last_logged", "_initial_global_step")
"""What its log lines are reckoned from, beside its state; before transformers 5 the losses since the last line are its loop's own, so the next one is of the steps since the move, and before 5.18 or so it does not know where it began."""


def check(trainer: Any) -> None:
    """Raises TypeError where it cannot be attached; changes nothing."""
    if getattr(trainer, "is_deepspeed_enabled", False):
        raise TypeError("hs_job.attach: the trainer uses DeepSpeed; expected one whose optimizer is torch's")
    if getattr(trainer, "is_fsdp_enabled", False) and _fsdp(trainer) < 2:
        raise TypeError("hs_job.attach: the trainer uses FSDP, version 1; expected fsdp_version 2 (DTensors)")


def attach(trainer: Any) -> None:
    library: Any = sys.modules["transformers"]
    train, progress = trainer.train, Progress(trainer)

    def on_train_begin(_: Any, *__: Any, **given: Any) -> None:
        """All there is to hand over is there."""
        if runtime.current().keeper.handed is not None:
            runtime.current().advice.give(advice.TRAINS_AGAIN)
            return
        begun = hs_job.state(
            model=given["model"],
            optimizer=given["optimizer"],
            scheduler=given["lr_scheduler"],
            scaler=getattr(trainer.accelerator, "scaler", None),
            loader=given["train_dataloader"],
            progress=progress,
        )
        begun.starts_at_epoch()

    def resumed(resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        content = handed.found(runtime.current())
        if content is None or "progress" not in content["objects"]:
            return train(resume_from_checkpoint, *args, **kwargs)
        with tempfile.TemporaryDirectory(prefix="hs-job-") as folder:
            with open(os.path.join(folder, STATE), "w", encoding="utf-8") as file:  # noqa: PTH118, PTH123
                file.write(content["objects"]["progress"]["state"])
            trainer._load_from_checkpoint = _nothing
            _begins_at(trainer, content["data"])
            _position_is_the_loaders()
            return train(folder, *args, **kwargs)

    hands = type("Hands", (library.TrainerCallback,), {"on_train_begin": on_train_begin})
    trainer.add_callback(hands())
    trainer.train = resumed


def _fsdp(trainer: Any) -> int:
    plugin = getattr(getattr(trainer.accelerator, "state", None), "fsdp_plugin", None)
    return int(getattr(plugin, "fsdp_version", 1))


def _nothing(*_: Any, **__: Any) -> None:
    """Weights are put back by `hs_job.state`."""


def _begins_at(trainer: Any, data: Dict[str, Any]) -> None:
    """Of a loader that has no length it takes all steps for one epoch, and would tell the data that it begins the first one again."""
    begins = getattr(trainer, "_init_training_state", None)
    if data["batches"] or begins is None:  # before transformers 5 its loop works that out by itself
        return

    def at(*args: Any, **kwargs: Any) -> Any:
        begins(*args, **kwargs)
        return data["epoch"], data["fetched"]

    trainer._init_training_state = at


def _position_is_the_loaders() -> None:
    """Of the handed-over loader nothing is to be skipped: it goes on by itself."""
    module: Any = sys.modules["transformers.trainer"]
    skip = module.skip_first_batches

    def skip_first_batches(loader: Any, num_batches: int = 0) -> Any:
        held = runtime.current().keeper.handed
        data: Optional[Data] = held.data if held is not None else None
        return loader if data is not None and data.is_of(loader) else skip(loader, num_batches)

    module.skip_first_batches = skip_first_batches


class Progress:
    """How far it is: its state, with what its callbacks keep there, and the sums of losses since its last log line."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def state_dict(self) -> Dict[str, Any]:
        trainer = self._trainer
        state, callbacks = trainer.state, self._stateful()
        if callbacks is not None:
            state = dataclasses.replace(state, stateful_callbacks=callbacks)  # it asks each for its own
        names = (*_SUMS, *_SINCE_LOGGED) if hasattr(trainer, _SINCE_LOGGED[0]) else _SUMS
        sums = {name: getattr(trainer, name) for name in names if hasattr(trainer, name)}
        return {"state": json.dumps(dataclasses.asdict(state)), "sums": sums}

    def load_state_dict(self, saved: Dict[str, Any]) -> None:
        """Its state was read from its file before."""
        for name, value in saved["sums"].items():
            own = getattr(self._trainer, name, None)
            device = getattr(own, "device", None)
            setattr(self._trainer, name, value if device is None else value.to(device, copy=True))

    def _stateful(self) -> Optional[List[Any]]:
        """Callbacks that keep a state of their own; None: this version of transformers knows of none."""
        kind = getattr(sys.modules["transformers.trainer_callback"], "ExportableState", None)
        if kind is None:
            return None
        trainer = self._trainer
        return [
            each for each in (*trainer.callback_handler.callbacks, trainer.control) if isinstance(each, kind)
        ]

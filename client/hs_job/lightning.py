"""The Trainer of Lightning: its loops' progress, its callbacks and the module are handed over beside optimizers, schedules and the loader, once its fit begins.

Its loops resume as from a checkpoint of its own; the position in the data is the loader's, so they need not be wound forward.
"""
# What a library does not offer otherwise:
# ruff: noqa: SLF001

from __future__ import annotations

import copy
import re
import sys
from itertools import zip_longest
from typing import Any, Dict, List

import hs_job
from hs_job import advice, rng, runtime
from hs_job.pack import PackError

_SHARDED = {"DeepSpeedStrategy", "FSDPStrategy"}
_SINCE = (2, 5)  # its loops resume amid an epoch without counting it twice


def check(trainer: Any, version: str) -> None:
    """Raises TypeError where it cannot be attached, as far as is known before it trains; changes nothing."""
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < _SINCE:
        raise TypeError(f"hs_job.attach: this is Lightning {version}; expected 2.5 or newer")
    kinds = {kind.__name__ for kind in type(trainer.strategy).__mro__}
    if not kinds.isdisjoint(_SHARDED):
        raise TypeError(
            f"hs_job.attach: the trainer's strategy is a {type(trainer.strategy).__name__}; "
            "expected one that leaves whole parameters, or DTensors, to torch's optimizers"
        )


def attach(trainer: Any) -> None:
    fit = trainer.fit_loop
    run, stage = fit.run, trainer._run_stage
    staged = False  # its tuner tries batch sizes and learning rates out before, on a model that it puts back

    def stages() -> Any:
        nonlocal staged
        staged = True
        return stage()

    def begins() -> None:
        if staged and runtime.current().keeper.handed is None and trainer.optimizers:
            _hand_over(trainer)
        run()

    trainer._run_stage, fit.run = stages, begins
    runtime.current().keeper.comes_later = True


def _hand_over(trainer: Any) -> None:
    """Its loaders are made, and the iterator of the first epoch with them: in a fresh run that is taken up as it is. After a restore it is made anew, where the job had stopped; in a fresh run, where it has fetched
    already, with the numbers that it drew before."""
    fit, torch = trainer.fit_loop, sys.modules["torch"]
    made = fit._combined_loader is not None  # somebody has asked how many steps there will be
    before = rng.capture(torch, [])
    fit.setup_data()
    after = rng.capture(torch, [])
    loader = trainer.train_dataloader
    if not isinstance(loader, torch.utils.data.DataLoader):
        raise TypeError(
            f"hs_job.attach: the trainer trains on a {type(loader).__name__}; expected one torch.utils.data.DataLoader"
        )
    hs_job.state(loader=loader, **_objects(trainer)).starts_at_epoch()
    rt, fetcher = runtime.current(), fit._data_fetcher
    handed = rt.keeper.handed
    if handed is None:
        return
    if trainer.reload_dataloaders_every_n_epochs:
        rt.cannot_be_saved(advice.RELOADS)
    assert handed.data is not None
    if fetcher.length is None:
        handed.data.ahead = max(handed.data.ahead, getattr(fetcher, "prefetch_batches", 0))
    if not handed.restored and handed.data.takes_up(_iterator(fetcher)):
        return
    if loader.persistent_workers:
        loader._iterator = None  # one that is only set back draws less than one that is made
    if handed.restored:
        _enter_epoch(trainer)
        if trainer.current_epoch:
            return
    for sampler in rng.samplers(loader):
        if callable(tell := getattr(sampler, "set_epoch", None)):
            tell(fit.epoch_progress.current.processed)  # it would, once the iterator is there
    if not made:
        rng.put_back(torch, [], before)
    iter(fetcher)
    if made:
        rng.put_back(torch, [], after)


def _enter_epoch(trainer: Any) -> None:
    """What the script does where an epoch begins it does in the process that goes on amid it, too: Lightning leaves that out where it resumes, and the module would lack what it sets there. Of the first epoch
    the iterator is made before, of others after it, as the data that its workers are given may be changed there."""
    fit = trainer.fit_loop
    starts = fit.on_advance_start

    def starts_again() -> None:
        del fit.on_advance_start  # once
        starts()
        if getattr(fit, "restarted_mid_epoch", False):  # before 2.5.1 it left nothing out
            call: Any = sys.modules[type(fit).__module__].call
            call._call_callback_hooks(trainer, "on_train_epoch_start")
            call._call_lightning_module_hook(trainer, "on_train_epoch_start")
        if trainer.current_epoch:
            iter(fit._data_fetcher)

    fit.on_advance_start = starts_again


def _iterator(fetcher: Any) -> Any:
    """Of the loader itself; None: it has made none."""
    made = getattr(getattr(fetcher.combined_loader, "_iterator", None), "iterators", None)
    return made[0] if made else None


def _objects(trainer: Any) -> Dict[str, Any]:
    found: Dict[str, Any] = {"model": trainer.lightning_module, "progress": Progress(trainer)}
    for name, things in (("optimizer", trainer.optimizers), ("scheduler", _schedules(trainer))):
        found.update({f"{name}{at or ''}": thing for at, thing in enumerate(things)})
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    if scaler is not None:
        found["scaler"] = scaler
    return found


def _schedules(trainer: Any) -> List[Any]:
    return [each.scheduler for each in trainer.lr_scheduler_configs]


class Progress:
    """How far its loops are, and what its callbacks, its data module and the module's own hooks would put into a checkpoint."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._loaded = False
        self._schedules = _schedules(trainer)

    def state_dict(self) -> Dict[str, Any]:
        trainer = self._trainer
        if any(a is not b for a, b in zip_longest(self._schedules, _schedules(trainer))):
            raise PackError(
                "a callback has changed the learning rate schedules since they were handed over "
                "(StochasticWeightAveraging does): a new process would go on with those before"
            )
        data = trainer.datamodule.state_dict() if trainer.datamodule is not None else {}
        callbacks = {each.state_key: kept for each in self._callbacks() if (kept := each.state_dict())}
        return {
            "loops": trainer.fit_loop.state_dict(),
            "stepped": trainer.fit_loop.epoch_loop._batches_that_stepped,
            "callbacks": callbacks,
            "data": data,
            **self._own(callbacks),
        }

    def load_state_dict(self, saved: Dict[str, Any]) -> None:
        """The loops once, before they begin: they resume by what they are told there, and count one step for it. All else once more where the first batch is fetched, whatever was done to it as the epoch began."""
        trainer = self._trainer
        trainer.fit_loop.epoch_loop._batches_that_stepped = saved["stepped"]
        if not self._loaded:
            trainer.fit_loop.load_state_dict(copy.deepcopy(saved["loops"]))
        self._loaded = True
        if trainer.datamodule is not None:
            trainer.datamodule.load_state_dict(saved["data"])
        module, kept = trainer.lightning_module, copy.deepcopy(saved["callbacks"])
        given = {**self._given(kept), **copy.deepcopy(saved["own"])}
        given.update({name: module.state_dict() for name in saved.get("weights", ())})
        module.on_load_checkpoint(given)
        for each in self._callbacks():
            each.on_load_checkpoint(trainer, module, given)
        for each in self._callbacks():
            if each.state_key in kept:
                each.load_state_dict(kept[each.state_key])

    def _callbacks(self) -> List[Any]:
        return list(self._trainer.callbacks)

    def _given(self, callbacks: Dict[str, Any]) -> Dict[str, Any]:
        """What hooks find in a checkpoint of its own, but for what is handed over beside it."""
        trainer = self._trainer
        return {
            "epoch": trainer.current_epoch,
            "global_step": trainer.global_step,
            "state_dict": dict(trainer.lightning_module.state_dict()),
            "callbacks": callbacks,
        }

    def _own(self, callbacks: Dict[str, Any]) -> Dict[str, Any]:
        """What the hooks of callbacks and of the module add, or put in the place of what they find, as an average of weights in that of the module's. The module's own are saved already."""
        module = self._trainer.lightning_module
        given = self._given(callbacks)
        found = dict(given)
        for each in self._callbacks():
            each.on_save_checkpoint(self._trainer, module, given)
        module.on_save_checkpoint(given)
        own = {name: value for name, value in given.items() if found.get(name) is not value}
        weights = [name for name, value in own.items() if value is found["state_dict"]]
        return {
            "own": {name: value for name, value in own.items() if name not in weights},
            "weights": weights,
        }

"""Training through libraries: prints one line `step loss` (repr) per mini-batch and a digest of the final weights. Not a test."""

import hashlib
import logging
import multiprocessing
import os
import random
import sys
import warnings
from contextlib import redirect_stderr
from io import StringIO

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

import hs_job

HOW, *MORE = sys.argv[1:]
EPOCHS, PARTS = 3, 2 if "adds-up" in MORE else 1
WORKERS = 1 if "worker" in MORE else 0
multiprocessing.set_start_method("fork")  # not by Python 3.14 unless it is told: others import this file anew
logging.disable(logging.CRITICAL)
warnings.simplefilter("ignore")
torch.set_num_threads(1)
torch.manual_seed(1)
random.seed(2)


def say(step: int, what: object) -> None:
    os.write(1, f"{os.environ.get('RANK', '0')}:{step} {what}\n".encode())


class Noisy(Dataset):
    """Eleven batches of eight, each time with other noise."""

    def __init__(self) -> None:
        self.x = torch.randn(88, 6, generator=torch.Generator().manual_seed(5))
        self.noise = 0.0 if "persistent" in MORE else 0.01
        self.y = (self.x.sum(1) > 0).long()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[i] + self.noise * (torch.randn(6) + random.random()), "labels": self.y[i]}


class Stream(IterableDataset):
    """Nobody knows how long."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self):
        data = Noisy()
        for i in range(len(data)):
            yield data[(i + 7 * self.epoch) % len(data)]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
        self.last = 0.0

    def forward(self, x: torch.Tensor, labels: torch.Tensor, **_: object) -> dict[str, torch.Tensor]:
        loss = cross_entropy(self.layers(x), labels)
        self.last = loss.item()
        return {"loss": loss}


def data(**more: object) -> DataLoader:
    stream = "stream" in MORE
    if "own" in MORE:
        more["generator"] = torch.Generator().manual_seed(9)
    if "persistent" in MORE:
        more["persistent_workers"] = True
    return DataLoader(
        Stream() if stream else Noisy(), batch_size=8, shuffle=not stream, num_workers=WORKERS, **more
    )


def by_epoch() -> DataLoader:
    """It shuffles by the epoch that it is told, as with several ranks."""
    return DataLoader(
        Noisy(),
        batch_size=8,
        sampler=DistributedSampler(Noisy(), num_replicas=1, rank=0),
        num_workers=WORKERS,
    )


def with_accelerate(net: Net) -> object:
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    whole = Accelerator(
        cpu=True,
        gradient_accumulation_steps=PARTS,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler="seeded" in MORE),
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.5)
    model, optimizer, loader, schedule = whole.prepare(net, optimizer, data(), schedule)
    state = hs_job.state(model=model, optimizer=optimizer, scheduler=schedule, loader=loader)
    step = state.step
    for _ in range(state.epoch if "plain" not in MORE else 0, EPOCHS):
        for batch in loader:
            with whole.accumulate(model):
                whole.backward(model(**batch)["loss"])
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            step += whole.sync_gradients
            say(step, repr(net.last))
    return schedule.get_last_lr()


def with_fabric(net: Net) -> object:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    model, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), lr=0.01))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.5)
    loader = fabric.setup_dataloaders(by_epoch())
    next(iter(loader))  # it counts what it is gone through
    state = hs_job.state(model=model, optimizer=optimizer, scheduler=schedule, loader=loader)
    step = state.step
    for _ in range(state.epoch if "plain" not in MORE else 0, EPOCHS):
        for batch in loader:
            fabric.backward(model(**batch)["loss"])
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            step += 1
            say(step, repr(net.last))
    return schedule.get_last_lr()


def with_transformers(net: Net) -> object:
    import transformers

    class Tells(transformers.TrainerCallback):
        def on_step_end(self, _: object, state, *__: object, **___: object) -> None:
            say(state.global_step, repr(net.last))

    trainer = transformers.Trainer(
        model=net,
        args=transformers.TrainingArguments(
            output_dir="out", num_train_epochs=EPOCHS, per_device_train_batch_size=8, learning_rate=0.01,
            gradient_accumulation_steps=PARTS, logging_steps=4, eval_strategy="epoch", save_strategy="no",
            max_steps=EPOCHS * 11 if "stream" in MORE else -1, report_to=[], use_cpu=True, disable_tqdm=True, remove_unused_columns=False, dataloader_num_workers=WORKERS,
            dataloader_persistent_workers="persistent" in MORE,
        ),
        train_dataset=Stream() if "stream" in MORE else Noisy(),
        eval_dataset=Noisy(),
        callbacks=[Tells()],
    )  # fmt: skip
    trainer.remove_callback(transformers.PrinterCallback)
    hs_job.attach(trainer)
    loss = trainer.train().training_loss
    if transformers.__version__ < "5":  # it keeps the losses since the last log line to itself
        return [(each["epoch"], each.get("eval_loss")) for each in trainer.state.log_history]
    told = [(each["epoch"], each.get("loss"), each.get("eval_loss")) for each in trainer.state.log_history]
    return loss, told


def lightning_module(net: Net, stops: object):
    """`stops`: a callback of its own trainer, which no trial has."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.lr = net, 0.01

        def on_train_epoch_start(self) -> None:
            if "begins" in MORE:
                self.part = 0.5**self.current_epoch
                self.trainer.train_dataloader.dataset.noise = 0.1 * self.current_epoch

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            loss = self.net(**batch)["loss"]
            return loss * self.part if "begins" in MORE else loss

        def on_train_batch_end(self, *_: object) -> None:
            if stops in self.trainer.callbacks:  # not in a trial
                say(self.trainer.global_step, (self.trainer.fit_loop.epoch_loop.total_batch_idx, net.last))

        def validation_step(self, batch: dict[str, torch.Tensor], _: int) -> None:
            self.log("worth", self.net(**batch)["loss"])

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
            if "asks" in MORE and self.trainer.estimated_stepping_batches > 1:
                random.random(), torch.rand(())
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

    return Module()


def with_lightning(net: Net) -> object:
    import lightning
    from lightning.pytorch.callbacks import (
        EarlyStopping,
        EMAWeightAveraging,
        GradientAccumulationScheduler,
        LearningRateFinder,
        StochasticWeightAveraging,
    )

    class Epochs(lightning.Callback):
        begun = 0

        def on_train_epoch_start(self, *_: object) -> None:
            self.begun += 1

        def state_dict(self) -> dict[str, int]:
            return {"begun": self.begun}

        def load_state_dict(self, kept: dict[str, int]) -> None:
            self.begun = kept["begun"]

    stops, epochs = EarlyStopping("worth", patience=5), Epochs()
    callbacks = [stops]
    if "tries" in MORE:
        callbacks.insert(0, LearningRateFinder(num_training_steps=4, early_stop_threshold=None))
    if "begins" in MORE:
        callbacks += [epochs, GradientAccumulationScheduler({0: 1, 1: 3})]
    if "averages" in MORE:
        callbacks.append(EMAWeightAveraging(decay=0.9))
    if "swaps" in MORE:
        callbacks.append(StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=1))
    trainer = lightning.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accumulate_grad_batches=PARTS, callbacks=callbacks,
        num_sanity_val_steps=0 if "untried" in MORE else None,
        reload_dataloaders_every_n_epochs=1 if "reloads" in MORE else 0,
    )  # fmt: skip
    hs_job.attach(trainer)
    loader = data()
    if "seeded" in MORE:
        loader = by_epoch()
    with redirect_stderr(StringIO() if "tries" in MORE else sys.stderr):  # the trials' progress
        trainer.fit(lightning_module(net, stops), loader, DataLoader(Noisy(), batch_size=8))
    return (
        stops.best_score,
        stops.wait_count,
        trainer.current_epoch,
        epochs.begun,
        trainer.optimizers[0].param_groups[0]["lr"],
    )


net = Net()
told = {
    "accelerate": with_accelerate,
    "fabric": with_fabric,
    "lightning": with_lightning,
    "transformers": with_transformers,
}[HOW](net)
digest = hashlib.sha256()
for tensor in net.state_dict().values():
    digest.update(tensor.numpy().tobytes())
say(-1, (told, digest.hexdigest()))

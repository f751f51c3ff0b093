"""Training loops that are a library's: what `hs_job.attach` does for them."""

from __future__ import annotations

import os
import sys
from typing import Any

from hs_job import place, runtime


def attach(trainer: Any) -> None:
    """What cannot be attached is refused without an agent as well: so a script finds out where it is written."""
    for module, ours in _KNOWN:
        kind = getattr(sys.modules.get(module), "Trainer", None)
        if isinstance(kind, type) and isinstance(trainer, kind):
            if os.environ.get("HS_HOOK") != "0":
                _check_shape()
                ours(trainer, sys.modules[module.partition(".")[0]].__version__, runtime.current().alone)
                runtime.current().keeper.single = True
            return
    raise TypeError(
        f"hs_job.attach: trainer is a {type(trainer).__name__}; "
        "expected a Trainer of transformers or Lightning (other loops: hs_job.state)"
    )


def _check_shape() -> None:
    """A library's loop goes by steps, also to know when it is done: of another batch there are more of them, or fewer."""
    if place.is_elastic(dict(os.environ)):
        raise TypeError(
            "hs_job.attach: this job is elastic, and the trainer counts steps, which are not all of one size; "
            "expected a loop of your own that counts epochs (hs_job.state), or a job without `elastic`"
        )


def _transformers(trainer: Any, _: str, alone: bool) -> None:
    from hs_job import transformers

    transformers.check(trainer)
    if not alone:
        transformers.attach(trainer)


def _lightning(trainer: Any, version: str, alone: bool) -> None:
    from hs_job import lightning

    lightning.check(trainer, version)
    if not alone:
        lightning.attach(trainer)


_KNOWN = (
    ("transformers", _transformers),
    ("lightning.pytorch", _lightning),
    ("pytorch_lightning", _lightning),
)

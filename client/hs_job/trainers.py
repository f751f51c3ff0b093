"""Training loops that are a library's: what `hs_job.attach` does for them."""

from __future__ import annotations

import sys
from typing import Any

from hs_job import runtime


def attach(trainer: Any) -> None:
    for module, ours in _KNOWN:
        kind = getattr(sys.modules.get(module), "Trainer", None)
        if isinstance(kind, type) and isinstance(trainer, kind):
            if not runtime.current().alone:
                ours(trainer, sys.modules[module.partition(".")[0]].__version__)
            return
    raise TypeError(
        f"hs_job.attach: trainer is a {type(trainer).__name__}; "
        "expected a Trainer of transformers or Lightning (other loops: hs_job.state)"
    )


def _transformers(trainer: Any, _: str) -> None:
    from hs_job import transformers

    transformers.attach(trainer)


def _lightning(trainer: Any, version: str) -> None:
    from hs_job import lightning

    lightning.attach(trainer, version)


_KNOWN = (
    ("transformers", _transformers),
    ("lightning.pytorch", _lightning),
    ("pytorch_lightning", _lightning),
)

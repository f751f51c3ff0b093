"""Training loops that are a library's: what `hs_job.attach` does for them."""

from __future__ import annotations

import sys
from typing import Any

from hs_job import runtime


def attach(trainer: Any) -> None:
    for module, name, ours in _KNOWN:
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and isinstance(trainer, kind):
            if not runtime.current().alone:
                ours(trainer)
            return
    raise TypeError(
        f"hs_job.attach: trainer is a {type(trainer).__name__}; expected a Trainer of transformers or Lightning (other loops: hs_job.state)"
    )


def _transformers(trainer: Any) -> None:
    from hs_job import transformers

    transformers.attach(trainer)


def _lightning(trainer: Any) -> None:
    from hs_job import lightning

    lightning.attach(trainer)


_KNOWN = (
    ("transformers", "Trainer", _transformers),
    ("lightning.pytorch", "Trainer", _lightning),
    ("pytorch_lightning", "Trainer", _lightning),
)

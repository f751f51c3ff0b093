"""What a training script said at its end, and the same training without a cluster."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

ENDED = frozenset({"succeeded", "failed", "cancelled"})


def result(text: str) -> dict[str, object]:
    """The JSON line that a training script prints last."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            return dict(json.loads(line))
    return {}


def uninterrupted(script: Sequence[str], ranks: int = 1) -> dict[str, object]:
    """The same training outside the cluster, from start to end."""
    started = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *started, *script], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        print(
            f"{' '.join(script)} without the cluster: exit status {done.returncode}\n{done.stderr[-2000:]}",
            file=sys.stderr,
        )
    return result(done.stdout)


Twin = tuple[Sequence[str], int]  # script, ranks


def uninterrupted_all(twins: Sequence[Twin]) -> list[dict[str, object]]:
    """Each as `uninterrupted`, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda twin: uninterrupted(*twin), twins))


def same_weights(one: dict[str, object], other: dict[str, object]) -> bool:
    return bool(one.get("digest")) and one["digest"] == other.get("digest")

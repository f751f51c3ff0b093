"""What an agent leaves in host.json has the number of its form."""

import json
from collections.abc import Mapping
from typing import Any

from hs_agent.memory import Memory
from hs_core.events.host import Launch
from hs_core.host import HostConfig, HostMachine
from hs_core.host.hosted import HostedJob
from hs_core.host.last_words import _Words
from hs_core.host.memory import VERSION
from hs_core.model import Gpu
from hs_core.names import GpuId
from hs_core.wanted import Turn
from tests.forms import digest, lines

FORM = (17, "4d7da07cfe81")


def keys(value: Mapping[str, Any], above: str = "") -> set[str]:
    found = set()
    for key, inner in value.items():
        found |= {f"{above}{key}"} | (keys(inner, f"{above}{key}.") if isinstance(inner, Mapping) else set())
    return found


def test_what_an_agent_leaves_of_another_form_has_another_number(tmp_path) -> None:
    """An agent of another version would pass over what it does not know of jobs that are there."""
    gpu = Gpu(id=GpuId("GPU-0"), index=0, model="V100", memory_bytes=1)
    memory = Memory(tmp_path)
    memory.save(HostMachine((gpu,), HostConfig(), now_s=0.0).saved(), (), 0.0)
    kept = json.loads(memory.path.read_text())
    found = (VERSION, digest((*keys(kept), *lines(HostedJob, Turn, Launch, _Words))))
    assert found == FORM, (
        f"host.json's form is another: raise VERSION (hs_core/host/memory.py) and say it here, FORM = {found}"
    )

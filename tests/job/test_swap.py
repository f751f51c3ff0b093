"""Device memory to the host and back, without a device and with one."""

import errno
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from models import trained

from hs_job.hooks import Hooks
from hs_job.pack import pack
from hs_job.swap import Swapper


class Handed:
    def __init__(self, **objects: Any) -> None:
        self.objects = objects


def test_swapped_memory_is_gone_and_comes_back_as_the_same_tensors() -> None:
    model, optimizer, data = trained()
    swapper = Swapper(torch, lambda: [optimizer], lambda: Handed(model=model), kinds=("cpu",))
    tensors = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters())]
    before = [tensor.detach().clone() for tensor in tensors]
    row = model[0].weight.detach()[3]  # a view
    for _ in range(3):
        swapper.out()
        assert swapper.parked_bytes > 0
        assert all(tensor.untyped_storage().nbytes() == 0 for tensor in tensors)
        assert torch.equal(swapper.host_of(model[0].weight), before[0])
        swapper.back(pytest.fail)
        assert swapper.parked_bytes == 0
        assert all(torch.equal(now, then) for now, then in zip(tensors, before, strict=True))
    assert model[2].weight is model[0].weight
    assert row.data_ptr() == model[0].weight.data_ptr() + 3 * 8 * 4
    model(data).square().sum().backward()
    optimizer.step()
    other, its_optimizer, data = trained()
    other(data).square().sum().backward()
    its_optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_state_is_saved_from_the_host_while_its_memory_is_swapped_out() -> None:
    model, optimizer, _ = trained()
    swapper = Swapper(torch, lambda: [optimizer], lambda: Handed(model=model), kinds=("cpu",))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    swapper.out()
    saved = pack(model.state_dict(), "model", swapper.host_of)
    assert all(torch.equal(saved[name], before[name]) for name in before)


def test_a_scripts_own_handler_of_sigterm_finds_on_the_host_what_is_swapped_out(tmp_path: Path) -> None:
    model, optimizer, _ = trained()
    swapper = Swapper(torch, lambda: [optimizer], lambda: Handed(model=model), kinds=("cpu",))
    last = tmp_path / "last.pt"

    def state() -> list[Any]:
        kept = optimizer.state_dict()["state"].values()
        return [*model.state_dict().values(), *(tensor for each in kept for tensor in each.values())]

    def saves(*_: object) -> None:
        torch.save(state(), last)

    def saves_and_ends(*_: object) -> None:
        saves()
        sys.exit(3)

    def are_as_before(found: list[Any]) -> bool:
        return all(torch.equal(now, then) for now, then in zip(found, before, strict=True))

    before = [tensor.clone() for tensor in state()]
    default = signal.signal(signal.SIGTERM, saves)
    try:
        swapper.out()
        signal.raise_signal(signal.SIGTERM)
        assert are_as_before(torch.load(last))
        assert all(p.untyped_storage().nbytes() == 0 for p in model.parameters()), "its turn is not back"
        swapper.back(pytest.fail)
        assert signal.getsignal(signal.SIGTERM) is saves
        assert are_as_before(state())
        assert model[2].weight is model[0].weight
        signal.signal(signal.SIGTERM, saves_and_ends)
        last.unlink()
        swapper.out()
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)
        assert are_as_before(torch.load(last))
        assert are_as_before(state()), "a script may save at its very end"
    finally:
        signal.signal(signal.SIGTERM, default)


def test_what_is_swapped_lies_on_the_host_whatever_the_default_device_is() -> None:
    model, optimizer, _ = trained()
    swapper = Swapper(torch, lambda: [optimizer], lambda: Handed(model=model), kinds=("cpu",))
    before = [p.detach().clone() for p in model.parameters()]
    with torch.device("meta"):
        swapper.out()
        saved = pack(dict(model.named_parameters()), "model", swapper.host_of)
        swapper.back(pytest.fail)
    assert all(torch.equal(a, b) for a, b in zip(saved.values(), before, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


def none_left(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def test_a_swap_without_host_memory_leaves_all_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer, _ = trained()
    swapper = Swapper(torch, lambda: [optimizer], lambda: None, kinds=("cpu",))
    before = [p.detach().clone() for p in model.parameters()]
    monkeypatch.setattr("hs_job.parking.mmap.mmap", none_left)
    with pytest.raises(OSError, match="Cannot allocate"):
        swapper.out()
    assert swapper.parked_bytes == 0
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


def test_memory_that_cannot_be_resized_stays_where_it_is_where_torch_does_not_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, optimizer, _ = trained()
    foreign = torch.from_numpy(np.ones(8, dtype=np.float32))
    optimizer.param_groups[0]["params"].append(torch.nn.Parameter(foreign))
    monkeypatch.setattr("hs_job.swap._fixed", lambda _tensor: False)  # as on a GPU with torch 2.2
    swapper = Swapper(torch, lambda: [optimizer], lambda: None, kinds=("cpu",))
    before = [p.detach().clone() for p in model.parameters()]
    swapper.out()
    assert foreign.tolist() == [1.0] * 8
    assert all(p.untyped_storage().nbytes() == 0 for p in model.parameters())
    swapper.back(pytest.fail)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


def test_what_has_captured_a_cuda_graph_is_not_swapped_any_more() -> None:
    class Graph:
        def capture_begin(self, pool: str, capture_error_mode: str = "global") -> tuple[str, str]:
            return pool, capture_error_mode

    model, optimizer, _ = trained()
    told: list[str] = []
    swapper = Swapper(torch, lambda: [optimizer], lambda: None, kinds=("cpu",))
    rt: Any = SimpleNamespace(tiers=SimpleNamespace(swapper=swapper))
    rt.tell_can = lambda: told.append(swapper.fixed_why)
    Hooks(torch, rt)._hook_graphs(Graph)
    assert Graph().capture_begin("pool", capture_error_mode="relaxed") == ("pool", "relaxed")
    Graph().capture_begin("pool")
    assert told == ["it has captured CUDA graphs, which keep addresses of device memory"]
    with pytest.raises(RuntimeError, match="CUDA graphs"):
        swapper.out()
    assert all(p.untyped_storage().nbytes() for p in model.parameters())


class Block:
    """Memory on a device, or its place on the host."""

    def __init__(self, device: str, done: list[str]) -> None:
        self.device, self._done, self._cdata = device, done, id(self)

    def nbytes(self) -> int:
        return 8

    def copy_(self, other: "Block", _: bool) -> None:
        self._done.append(f"{other.device} to {self.device}")

    def resize_(self, size: int) -> None:
        self._done.append(f"{self.device} resized to {size}")


def test_a_swap_waits_for_every_device_that_memory_lies_on(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    cuda = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        synchronize=lambda device="current": done.append(f"waits for {device}"),
        empty_cache=lambda: None,
    )
    swapper = Swapper(SimpleNamespace(cuda=cuda), list, lambda: None)
    blocks = [Block("cuda:0", done), Block("cuda:1", done)]
    monkeypatch.setattr(swapper, "_storages", lambda: blocks)
    monkeypatch.setattr(swapper._host, "take", lambda sizes: [Block("host", done) for _ in sizes])
    swapper.out()
    copied, gone = done.index("cuda:1 to host"), done.index("cuda:0 resized to 0")
    assert set(done[copied + 1 : gone]) == {"waits for cuda:0", "waits for cuda:1"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device, or a torch without CUDA")
def test_gpu_memory_is_suspended_freed_and_resumed(capsys: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(16))).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(8, 4096, device="cuda")).square().sum().backward()
    optimizer.step()
    swapper = Swapper(torch, lambda: [optimizer], lambda: Handed(model=model))
    before = [p.detach().clone().cpu() for p in model.parameters()]
    torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved()
    begin = time.monotonic()
    swapper.out()
    out_s, size = time.monotonic() - begin, swapper.parked_bytes
    assert held - torch.cuda.memory_reserved() > 0.9 * size
    begin = time.monotonic()
    swapper.back(pytest.fail)
    back_s = time.monotonic() - begin
    assert all(torch.equal(now.cpu(), then) for now, then in zip(model.parameters(), before, strict=True))
    with capsys.disabled():
        gb = size / 1e9
        print(  # noqa: T201 - the figure is what it is for
            f"\nsuspend {out_s * 1e3:.1f} ms ({gb / out_s:.1f} GB/s), resume {back_s * 1e3:.1f} ms ({gb / back_s:.1f} GB/s), {gb:.2f} GB"
        )

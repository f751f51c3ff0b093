"""Device memory to the host and back: the storages shrink to nothing and come back, tensors stay the same objects.

Moved are the storages that training itself needs at a batch edge: parameters, gradients and state of every optimizer, parameters and
buffers of every module handed over. Views and tied weights share a storage, so they stay views and tied. What is on the host says so: a
script may have made its GPU the default device.
"""
# Python 3.9 has no strict; a storage has no other identity that lasts:
# ruff: noqa: B905, SLF001

from __future__ import annotations

import contextlib
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from hs_job import shards
from hs_job.parking import HostMemory
from hs_job.sigterm import Sigterm

_FIRST_PAUSE_S = 0.02
_LAST_PAUSE_S = 1.0
_TELL_AFTER_S = 5.0


class Swapper:
    """`kinds`: device types whose memory is moved. On a CPU there is nothing to move, and the protocol is the same.

    `fixed_why`: the script keeps addresses of device memory (it has captured a CUDA graph, say), so none of it can be moved; "": it can.
    """

    def __init__(
        self,
        torch: Any,
        optimizers: Callable[[], List[Any]],
        handed: Callable[[], Any],
        kinds: Tuple[str, ...] = ("cuda",),
    ) -> None:
        self._torch = torch
        self._optimizers = optimizers
        self._handed = handed
        self._kinds = kinds
        self._host = HostMemory(torch, self._on_cuda)
        self._parked: Dict[int, Tuple[Any, Any, int]] = {}  # by identity: storage, host buffer, bytes
        self._sigterm = Sigterm(self._lend, _take_back)
        self.fixed_why = ""  # why nothing can be moved any more

    @property
    def parked_bytes(self) -> int:
        return sum(size for _, _, size in self._parked.values())

    def device_bytes(self) -> int:
        cuda = self._torch.cuda
        return int(cuda.max_memory_reserved()) if cuda.is_available() and cuda.is_initialized() else 0

    def needed_bytes(self, asked_bytes: int) -> int:
        """At the least, where it was refused so much beside what it holds."""
        cuda = self._torch.cuda
        held = cuda.memory_reserved() if cuda.is_available() and cuda.is_initialized() else 0
        return max(self.device_bytes(), int(held) + asked_bytes)

    def out(self) -> None:
        """All or nothing: what fails half-way is put back."""
        assert not self._parked, "swapped out twice"
        if self.fixed_why:
            raise RuntimeError(self.fixed_why)
        self._sigterm.begin()
        try:
            self._out()
        except BaseException:
            self._sigterm.end()
            raise

    def _out(self) -> None:
        storages = list(self._storages())
        self._synchronize(storages)
        buffers = self._host.take([storage.nbytes() for storage in storages])
        try:
            for storage, buffer in zip(storages, buffers):
                buffer.copy_(storage, True)
            self._synchronize(storages)
        except BaseException:
            self._synchronize(storages)
            self._host.give(buffers)
            raise
        for storage, buffer in zip(storages, buffers):
            size = storage.nbytes()
            try:
                storage.resize_(0)
            except RuntimeError as error:
                if "not resizable" not in str(error):
                    raise
                self._host.give([buffer])
            else:
                self._parked[_identity(storage)] = (storage, buffer, size)
        if self._on_cuda():
            self._torch.cuda.empty_cache()

    def back(self, say: Callable[[str], None]) -> None:
        """Waits for the memory, if whoever had it in between is still leaving."""
        pause_s, began, told = _FIRST_PAUSE_S, time.monotonic(), False
        for storage, buffer, size in self._parked.values():
            while storage.nbytes() != size:
                try:
                    storage.resize_(size)
                except RuntimeError as error:  # torch.cuda.OutOfMemoryError is one
                    if "out of memory" not in str(error).lower():
                        raise
                    if not told and time.monotonic() - began > _TELL_AFTER_S:
                        told = True
                        say(f"waiting for {size} bytes of device memory: {str(error).splitlines()[0]}")
                    self._torch.cuda.empty_cache()
                    time.sleep(pause_s)
                    pause_s = min(_LAST_PAUSE_S, pause_s * 2)
            storage.copy_(buffer, True)
        self._synchronize([storage for storage, _, _ in self._parked.values()])
        self._host.give([buffer for _, buffer, _ in self._parked.values()])
        self._parked.clear()
        self._sigterm.end()

    def host_of(self, tensor: Any) -> Optional[Any]:
        """A swapped tensor as it is on the host; None for one that is where it belongs."""
        if not self._parked or tensor.layout is not self._torch.strided:
            return None
        parked = self._parked.get(_identity(tensor.untyped_storage()))
        if parked is None:
            return None
        _, buffer, _ = parked
        view = self._torch.empty(0, dtype=tensor.dtype, device="cpu")
        return view.set_(buffer, tensor.storage_offset(), tensor.size(), tensor.stride())

    def _lend(self) -> List[Tuple[Any, Any]]:
        """Swapped tensors are on the host, until they are taken back: each with what it was."""
        lent = []
        for tensor in map(shards.local, self._tensors()):
            host, own = self.host_of(tensor), tensor.data
            if host is not None:
                with contextlib.suppress(RuntimeError, TypeError):  # of a kind that is on a device only
                    tensor.data = host
                    lent.append((tensor, own))
        return lent

    # --- what to move ----------------------------------------------------------------------------------------------

    def _storages(self) -> Iterator[Any]:
        seen = set()
        for tensor in map(shards.local, self._tensors()):
            if (
                tensor.device.type in self._kinds
                and tensor.layout is self._torch.strided
                and not _fixed(tensor)
            ):
                storage = tensor.untyped_storage()
                if storage.nbytes() and _identity(storage) not in seen:
                    seen.add(_identity(storage))
                    yield storage

    def _tensors(self) -> Iterator[Any]:
        torch = self._torch
        for optimizer in self._optimizers():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    yield from _with_gradient(parameter)
            for state in optimizer.state.values():
                yield from shards.tensors_in(state, torch)
        for module in self._modules():
            for parameter in module.parameters():
                yield from _with_gradient(parameter)
            yield from module.buffers()

    def _modules(self) -> Iterator[Any]:
        handed = self._handed()
        for thing in handed.objects.values() if handed is not None else ():
            if isinstance(thing, self._torch.nn.Module):
                yield thing

    def _on_cuda(self) -> bool:
        cuda = self._torch.cuda
        return "cuda" in self._kinds and cuda.is_available() and cuda.is_initialized()

    def _synchronize(self, storages: Sequence[Any]) -> None:
        """With every device that they lie on: torch means the current one alone."""
        if self._on_cuda():
            for device in {storage.device for storage in storages}:
                self._torch.cuda.synchronize(device)


def _take_back(lent: List[Tuple[Any, Any]]) -> None:
    for tensor, own in lent:
        tensor.data = own


def _identity(storage: Any) -> int:
    """Of the storage itself: addresses change, and wrappers come and go."""
    return int(storage._cdata)


def _fixed(tensor: Any) -> bool:
    """Memory that is another's (shared between processes, wrapped): it stays where it is."""
    storage = tensor.untyped_storage()
    if hasattr(storage, "resizable"):
        return not storage.resizable()
    # torch 2.2 does not tell. Those on a GPU are all called shared there: one that is shows it when it is resized.
    return bool(storage.device.type == "cpu" and storage.is_shared())


def _with_gradient(parameter: Any) -> Iterator[Any]:
    yield parameter
    if parameter.grad is not None:
        yield parameter.grad

"""Host memory that device memory is parked in, locked where a GPU copies from and to it.

Torch's pinned tensors are `cudaHostAlloc`'s: 2 GB/s on a host with an H100, in the middle of somebody's turn. A mapping of huge pages that a
few threads have filled and that is registered then takes a quarter of the time, or less (benchmarks/results/gpu.txt).
"""
# Python 3.9 has no strict:
# ruff: noqa: B905

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, Iterator, List, Sequence

_THREADS = 4  # more are no faster
_CHUNK_BYTES = 64 << 20
_ALIGNED_BYTES = 512
_ROOMS: List[mmap.mmap] = []  # never unmapped: the driver would take whatever comes to lie there for locked
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14; mmap has no name for it


class HostMemory:
    """Buffers stay locked and ours until the process ends: the next swap takes them again. `locks`: there is a device to lock them for."""

    def __init__(self, torch: Any, locks: Callable[[], bool]) -> None:
        self._torch = torch
        self._locks = locks
        self._idle: Dict[int, List[Any]] = {}  # storages by size

    def take(self, sizes: Sequence[int]) -> List[Any]:
        """A storage of each size (bytes). Raises OSError or MemoryError where there is not enough, and takes nothing then."""
        found: List[Any] = []
        try:
            for size in sizes:
                idle = self._idle.get(size)
                found.append(idle.pop() if idle else None)
            lacking = [size for size, buffer in zip(sizes, found) if buffer is None]
            more = iter(self._map(lacking) if lacking else ())
        except BaseException:
            self.give([buffer for buffer in found if buffer is not None])
            raise
        return [next(more) if buffer is None else buffer for buffer in found]

    def give(self, buffers: Sequence[Any]) -> None:
        for buffer in buffers:
            self._idle.setdefault(buffer.nbytes(), []).append(buffer)

    def _map(self, sizes: Sequence[int]) -> Iterator[Any]:
        offsets, end = [], 0
        for size in sizes:
            offsets.append(end)
            end += -(-size // _ALIGNED_BYTES) * _ALIGNED_BYTES
        room = mmap.mmap(-1, end, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel without huge pages
            room.madvise(mmap.MADV_HUGEPAGE)
        # Locked pages are copied for a child at once, and a DataLoader's workers are children.
        room.madvise(mmap.MADV_DONTFORK)
        whole = self._torch.frombuffer(room, dtype=self._torch.uint8)
        _fill(whole.data_ptr(), end)
        if self._locks():
            _ROOMS.append(room)
            self._lock(whole.data_ptr(), end)
        return (
            self._torch.frombuffer(room, dtype=self._torch.uint8, offset=offset, count=size).untyped_storage()
            for offset, size in zip(offsets, sizes)
        )

    def _lock(self, address: int, size: int) -> None:
        cuda = self._torch.cuda
        driver = cuda.cudart()
        if driver.cudaHostRegister(address, size, 0) != driver.cudaError.success:
            # Slower, not impossible. The driver keeps the error for whoever asks next: that is to be us.
            with contextlib.suppress(RuntimeError):
                self._torch.zeros(1, device="cuda")


def _fill(address: int, size: int) -> None:
    """Pages are made by several threads: one makes 4 GB/s, at best."""
    libc = ctypes.CDLL(None, use_errno=True)

    def fill(offset: int) -> int:
        length = min(_CHUNK_BYTES, size - offset)
        done = libc.madvise(ctypes.c_void_p(address + offset), ctypes.c_size_t(length), _POPULATE_WRITE)
        return ctypes.get_errno() if done else 0

    threads = min(_THREADS, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(threads) as pool:
        failed = set(pool.map(fill, range(0, size, _CHUNK_BYTES)))
    if errno.ENOMEM in failed:
        raise MemoryError(f"{size} bytes of host memory to park device memory in")

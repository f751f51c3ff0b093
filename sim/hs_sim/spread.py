"""Many runs at once: over the cores of this machine, or over machines with Ray or Dask where those are installed. The order of results is that of the work."""

import os
import signal
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, suppress
from enum import StrEnum
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import active_children, get_context, parent_process
from threading import Thread, current_thread, main_thread
from typing import Any, TypeVar

from hs_core.errors import Kind, RefusedError

T = TypeVar("T")
R = TypeVar("R")
Done = Callable[[int], None]  # told the place of each that has ended


class Where(StrEnum):
    LOCAL = "local"
    RAY = "ray"
    DASK = "dask"


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spread(
    work: Callable[[T], R],
    items: Sequence[T],
    *,
    where: Where = Where.LOCAL,
    workers: int = 0,
    address: str = "",
    done: Done = lambda _: None,
) -> list[R]:
    """`work` of each item. `workers`: processes here (0: one a core). `address`: of the Ray or Dask cluster; empty: one of their own."""
    if where is Where.LOCAL:
        ended = _here(work, items, min(workers or cores(), len(items)))
    else:
        if find_spec(_MODULES[where]) is None:
            raise RefusedError(
                f"--on: {where}; expected it to be installed (pip install {_PACKAGES[where]})",
                Kind.UNAVAILABLE,
            )
        ended = (_ray if where is Where.RAY else _dask)(work, items, address)
    found: dict[int, R] = {}
    with closing(ended):
        for at, result in ended:
            found[at] = result
            done(at)
    return [found[at] for at in range(len(items))]


_MODULES = {Where.RAY: "ray", Where.DASK: "distributed"}
_PACKAGES = {Where.RAY: "ray", Where.DASK: "distributed"}


def _here(work: Callable[[T], R], items: Sequence[T], workers: int) -> Generator[tuple[int, R]]:
    if workers <= 1:
        yield from ((at, work(item)) for at, item in enumerate(items))
        return
    try:
        with pool_of(workers) as pool:
            place: dict[Future[R], int] = {pool.submit(work, item): at for at, item in enumerate(items)}
            for future in as_completed(place):
                yield place[future], future.result()
    except BrokenProcessPool:
        raise RefusedError(
            f"--workers: one of {workers} processes was killed, perhaps for want of memory; expected room for so many runs at once: fewer may do",
            Kind.UNAVAILABLE,
        ) from None


class _Pool(ProcessPoolExecutor):
    """It starts its processes as work comes in. One whose start is interrupted is on nobody's list, so nobody ends it, and it complains that nobody told it anything."""

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> "Future[R]":
        with _uninterrupted():
            return super().submit(fn, *args, **kwargs)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Who is interrupted meanwhile, or told to end, heeds it afterwards."""
    heard: list[int] = []
    before: dict[int, Any] = {}
    if current_thread() is main_thread():  # no other is interrupted, nor may it say what a signal does
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if callable(signal.getsignal(number)):
                before[number] = signal.signal(number, lambda number, _: heard.append(number))
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        for each in heard:
            signal.raise_signal(each)


@contextmanager
def pool_of(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that end with this one, however it ends, and at once where it is interrupted or one of them has failed: nobody waits for the rest."""
    others = set(active_children())
    # Not forked: threads of whoever calls would be lost with their locks held.
    with _Pool(
        processes, mp_context=get_context("spawn"), initializer=_end_with_the_one_that_began_it
    ) as pool:
        try:
            yield pool
        except BaseException:
            for child in set(active_children()) - others:
                child.terminate()
            _hang_up(pool)
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _hang_up(pool: ProcessPoolExecutor) -> None:
    """Its workers are ended. An item that is larger than a pipe holds may be half written: the thread that writes it, for which the pool waits, is told that nobody
    reads on only once this process does not, either (CPython's gh-94777: newer ones close it themselves).
    """
    inside: Any = pool
    with suppress(OSError):  # closed just now
        inside._call_queue._reader.close()  # noqa: SLF001


def _end_with_the_one_that_began_it() -> None:
    """One that was killed says no word: its children would compute on, and then wait for work for ever."""
    Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    if (above := parent_process()) is not None:
        above.join()
        os._exit(1)


def _ray(work: Callable[[T], R], items: Sequence[T], address: str) -> Generator[tuple[int, R]]:
    ray: Any = import_module("ray")
    with _open(lambda: ray.init(address=address or None, log_to_driver=False), "Ray", address, ray.shutdown):
        task = ray.remote(work)
        place = {task.remote(item): at for at, item in enumerate(items)}
        left = list(place)
        while left:
            ready, left = ray.wait(left, num_returns=1)
            for one in ready:
                yield place[one], ray.get(one)


def _dask(work: Callable[[T], R], items: Sequence[T], address: str) -> Generator[tuple[int, R]]:
    distributed: Any = import_module("distributed")
    clients: list[Any] = []
    with _open(
        lambda: clients.append(distributed.Client(address or None)), "Dask", address, lambda: _close(clients)
    ):
        futures = clients[0].map(work, list(items), pure=False)
        place = {future.key: at for at, future in enumerate(futures)}
        for future in distributed.as_completed(futures):
            yield place[future.key], future.result()


def _close(clients: Iterable[Any]) -> None:
    for client in clients:
        client.close()


@contextmanager
def _open(begin: Callable[[], object], name: str, address: str, end: Callable[[], object]) -> Iterator[None]:
    try:
        begin()
    except (OSError, ConnectionError, TimeoutError, ValueError) as error:
        raise RefusedError(
            f"--address: {address!r}: {error}; expected a {name} cluster", Kind.UNAVAILABLE
        ) from None
    try:
        yield
    finally:
        end()

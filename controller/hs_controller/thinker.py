"""The thread on which policies are asked, one question after the other: they share what they keep between decisions.

A policy may stay at a question for ever: an endless loop, a solver that hangs. When it is given up nobody hears of what that thread still comes to,
and who asks next is answered on another one. A thread cannot be killed; what is in Python code ends at an exception that is put into it.
"""

import asyncio
import contextlib
import ctypes
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from hs_core.errors import Kind, RefusedError

Answer = TypeVar("Answer")

LET_END_S = 10.0  # what was given up may come to its end by itself, as most does, before it is broken off: the import of a solver, say, would be broken for all
NAME = "policy"


class GivenUpError(RefusedError):
    """Somebody asked, and the policy was given up before it had answered."""

    def __init__(self) -> None:
        super().__init__("the policy was given up before it had answered; try again", Kind.UNAVAILABLE)


class _Enough(BaseException):
    """Put into a thread that is to end. Who catches what goes wrong in a policy does not catch it."""


class Thinker:
    """For one event loop: everything is called in it."""

    def __init__(self) -> None:
        self._at: _Thread | None = None  # since the first question
        self._given_up: list[_Thread] = []
        self._closed = False

    def ask(self, question: Callable[[], Answer], answered: Callable[[Answer], None]) -> None:
        """`answered` is not called once it was given up, or all is closed. A question must not raise."""
        if not self._closed:
            self._put(question).add_done_callback(partial(_tell, answered))

    async def answer(self, question: Callable[[], Answer]) -> Answer:
        """Raises what the question raises, and GivenUpError."""
        if self._closed:
            raise GivenUpError
        # Shielded: of who goes away the question is still being answered, and behind it nothing else is.
        return await asyncio.shield(self._put(question))

    def _put(self, question: Callable[[], Answer]) -> asyncio.Future[Answer]:
        if self._at is None:
            self._at = _Thread()
        return self._at.ask(question)

    def give_up(self) -> None:
        """Whatever was asked."""
        if self._at is None or not self._at.asked:
            return  # it stands idle, and knows what was decided last
        self._at.leave()
        asyncio.get_running_loop().call_later(LET_END_S, self._at.end)
        self._given_up = [thread for thread in (*self._given_up, self._at) if thread.is_alive()]
        self._at = None

    @property
    def given_up(self) -> int:
        """Threads that are still at what was given up."""
        return sum(thread.is_alive() for thread in self._given_up)

    def close(self) -> None:
        """What is being thought about keeps nobody waiting, and nobody hears of it."""
        self._closed = True
        if self._at is not None:
            idle = not self._at.asked
            self._at.leave()
            if idle:
                self._at.join()


class _Thread:
    """Answers what it is asked, in order. It keeps no process from ending."""

    def __init__(self) -> None:
        self.asked = set[asyncio.Future[Any]]()  # and not answered yet
        self._left = False
        self._questions = SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None]()
        self._may_end = threading.Lock()
        self._is_at_one = False
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name=NAME, daemon=True)
        self._thread.start()

    def ask(self, question: Callable[[], Answer]) -> asyncio.Future[Answer]:
        done: asyncio.Future[Answer] = self._loop.create_future()
        self.asked.add(done)
        done.add_done_callback(self.asked.discard)
        self._questions.put((question, done))
        return done

    def leave(self) -> None:
        """Nobody asks anything more, nor waits for an answer."""
        self._left = True
        self._questions.put(None)
        for done in tuple(self.asked):
            if not done.done():
                done.set_exception(GivenUpError())
                done.exception()  # seen: perhaps nobody waits for it

    def end(self) -> None:
        with self._may_end:  # else it might end by itself just now, and another thread have its number
            if self._is_at_one and self._thread.ident is not None:
                number = ctypes.c_ulong(self._thread.ident)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(number, ctypes.py_object(_Enough))

    def join(self) -> None:
        self._thread.join(1.0)

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        with contextlib.suppress(_Enough):
            while (asked := self._questions.get()) is not None and not self._left:
                self._answer(*asked)
                del asked  # what it is about may be large

    def _answer(self, question: Callable[[], Answer], done: asyncio.Future[Answer]) -> None:
        with self._may_end:
            self._is_at_one = True
        try:
            settle: Callable[[], None] = partial(done.set_result, question())
        except Exception as error:
            settle = partial(done.set_exception, error)
        with self._may_end:
            self._is_at_one = False
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(_unless_done, done, settle)


def still_at_it() -> bool:
    """Some thread of this process is at a question, whether anybody waits for it or not."""
    return any(thread.name == NAME for thread in threading.enumerate())


def _unless_done(done: asyncio.Future[Any], settle: Callable[[], None]) -> None:
    if not done.done():
        settle()


def _tell(answered: Callable[[Answer], None], done: asyncio.Future[Answer]) -> None:
    if not isinstance(done.exception(), GivenUpError):
        answered(done.result())

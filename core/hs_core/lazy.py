"""What is found when it is asked for first, and kept: `functools.cached_property` without the lock that Python 3.11 has there, which takes longer than most answers."""

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

V = TypeVar("V")


class lazy(Generic[V]):  # noqa: N801  (named like `property`)
    """Of a value: two threads that ask at the same time find the same."""

    def __init__(self, find: Callable[[Any], V]) -> None:
        self._find = find
        self._name = find.__name__
        self.__doc__ = find.__doc__

    @overload
    def __get__(self, of: None, cls: type) -> Self: ...

    @overload
    def __get__(self, of: object, cls: type) -> V: ...

    def __get__(self, of: object | None, cls: type) -> Self | V:
        if of is None:
            return self
        found = of.__dict__[self._name] = self._find(of)
        return found

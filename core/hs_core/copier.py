"""Values of frozen classes, made and changed at a third of what `__init__` and `dataclasses.replace` take, for where thousands of them are new in a second.

What is frozen is filled field by field through `object.__setattr__`. A twin of the class, with the same slots, is not frozen: it is filled like any object, and
is of the class from then on.
"""

from collections.abc import Callable
from dataclasses import Field, field, fields, make_dataclass
from operator import attrgetter
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


def maker(kind: Callable[P, T]) -> Callable[P, T]:
    """Makes values as the class does, of one whose `__init__` does nothing but keep what it is given."""
    made: Callable[P, T] = _twin(
        kind, lambda one: field(default=one.default, default_factory=one.default_factory)
    )
    return made


def copier(kind: type[T]) -> Callable[..., T]:
    """Copies values of such a class; what a copy has otherwise is named."""
    twin = _twin(kind, lambda _: field(kw_only=False))
    names = [one.name for one in fields(kind)]  # type: ignore[arg-type]
    values = attrgetter(*names)
    setters = {
        name: getattr(kind, name).__set__ for name in names
    }  # frozen is what `__setattr__` says, not the slots

    def changed(old: T, **changes: Any) -> T:
        new: T = twin(*values(old))
        for name, value in changes.items():
            setters[name](new, value)
        return new

    return changed


def _twin(kind: Any, as_in: Callable[[Field[Any]], Any]) -> Any:
    name = kind.__name__
    assert not hasattr(kind, "__post_init__"), f"{name} looks at what it is given"
    assert kind.__bases__ == (object,), f"{name} has slots of another class"

    def is_of_the_class(made: Any) -> None:
        made.__class__ = kind

    slots = [(one.name, Any, as_in(one)) for one in fields(kind)]
    more = {"__post_init__": is_of_the_class}
    return make_dataclass(name, slots, namespace=more, slots=True, kw_only=True, eq=False, repr=False)

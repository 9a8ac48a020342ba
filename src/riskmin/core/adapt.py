"""Foreign objects as instances of the package's abstract bases: a user's plain class needs no base class."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import new_class
from typing import Any


def adapted(thing: Any, base: type, adapt: Callable[[Any], Any]) -> Any:
    """Return the object as an instance of the base, which supplies the defaults that its class lacks.

    The new object has the attributes of the old one, and its class derives from that of the old one and from
    the base, under the old name: methods, repr and equality remain those of the user's class. `adapt` is the
    function that called this one; a pickle holds the original object and calls it.

    Examples
    --------
    >>> class Base:
    ...     smooth = False
    >>> class Mine:
    ...     scale = 2.0
    >>> mine = adapted(Mine(), Base, lambda thing: thing)
    >>> type(mine).__name__, mine.scale, mine.smooth, isinstance(mine, Mine)
    ('Mine', 2.0, False, True)
    """
    kind: Any = type(thing)
    # functions that are attributes of the object become methods that take no self
    own = {k: v for k, v in getattr(thing, "__dict__", {}).items() if callable(v) and hasattr(base, k)}
    made = _class_with_methods(kind, base, adapt, own) if own else _adapted_class(kind, base, adapt)
    return _with_state_of(thing, object.__new__(made), kind)


@cache
def _adapted_class(kind: Any, base: type, adapt: Callable[[Any], Any]) -> type:
    return _class_with_methods(kind, base, adapt, {})


def _class_with_methods(
    kind: type, base: type, adapt: Callable[[Any], Any], methods: dict[str, Callable[..., Any]]
) -> type:
    def reduce_ex(self: Any, protocol: Any) -> Any:
        return adapt, (_with_state_of(self, object.__new__(kind), kind),)

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    statics = {name: staticmethod(method) for name, method in methods.items()}
    body = {**names, **statics, "__reduce_ex__": reduce_ex}
    return new_class(kind.__name__, (kind, base), {}, lambda namespace: namespace.update(body))


def _with_state_of(thing: Any, copy: Any, kind: type) -> Any:
    """Return the copy with the attributes of the object: one dictionary for both, and equal slots."""
    if hasattr(thing, "__dict__") and hasattr(copy, "__dict__"):
        # past the __setattr__ of frozen dataclasses
        object.__setattr__(copy, "__dict__", thing.__dict__)
    for cls in kind.__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(thing, name):
                object.__setattr__(copy, name, getattr(thing, name))
    return copy

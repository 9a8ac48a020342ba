"""Dataclasses with settings: registries of names, conversion to and from plain data, equality and repr.

And objects of user-defined classes as instances of the abstract bases: a plain class needs no base class.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from operator import attrgetter
from types import MappingProxyType, new_class
from typing import Any

import numpy as np
from scipy.sparse import issparse

from riskmin.core.interfaces import has_method
from riskmin.core.messages import unknown_name


class UntrustedCodeError(ValueError):
    """A file names code that it may not import."""


class Registry(dict[str, Any]):
    """The objects of a kind by name: riskmin's own, registered ones, and those of installed packages.

    A package offers objects as entry points of the group ``riskmin.losses`` (or `regularizers`, `solvers`).
    They are imported when a user names one of them.

    Parameters
    ----------
    category : str
        What the objects are, in messages: "loss".
    method : str
        The method by which they are recognized: "value_grad".
    group : str
        The group of entry points: "riskmin.losses".
    example : str
        How a name with settings is written, for messages.
    own : dict
        riskmin's objects by name.
    more : classes
        Classes of riskmin without a name, such as those that wrap others.
    synonyms : dict
        Names that other libraries use, in lower case, and those of riskmin; messages suggest them.
    """

    def __init__(
        self,
        category: str,
        method: str,
        group: str,
        example: str,
        own: dict[str, Any],
        *more: type,
        synonyms: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(own)
        self.category, self.method, self.group, self.example = category, method, group, example
        self.own_classes = {kind.__name__: kind for kind in (*more, *map(type, own.values()))}
        self._own_names, self._synonyms = frozenset(own), synonyms

    def register(self, name: str, thing: Any) -> None:
        """Add an object, or a class whose default instance is meant, under a name."""
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"{name!r} is no name: give a Python identifier")
        if name in self._own_names:
            raise ValueError(f"{name!r} is a {self.category} of riskmin: give yours another name")
        self[name] = self._checked(thing() if isinstance(thing, type) else thing, repr(name))

    def _checked(self, thing: Any, source: str) -> Any:
        if not has_method(thing, self.method):
            raise ValueError(f"{source} is no {self.category}: it has no method {self.method}")
        return thing

    # ------------------------------------------------------------ names
    def resolve(self, given: Any, adapt: Callable[[Any], Any], such_as: str) -> Any:
        """Return the object of a text (see `lookup`), or `adapt(given)` for any other object."""
        if isinstance(given, str):
            given = self.lookup(given)
        if isinstance(given, type):
            name = given.__name__
            raise ValueError(f"{name} is a class, not a {self.category}; give an instance: {name}()")
        try:
            return adapt(given)
        except TypeError:
            raise ValueError(
                f"{given!r} is not a {self.category}: pass an object {such_as}, or one of the names "
                f"{', '.join(self)}"
            ) from None

    def lookup(self, text: str, trust: Collection[str] | None = None) -> Any:
        """Return the object that a text names, with the settings that follow.

        Parameters
        ----------
        text : str
            A name (``"huber"``), with settings (``"huber:delta=2"``); or a class, which is imported
            (``"package.module:Class,level=0.9"``).
        trust : collection of str, optional
            The modules and packages that may be imported. None, for a text that a user gave: all of them.
        """
        if text in self:
            return self[text]
        name, _, rest = (part.strip() for part in text.partition(":"))
        kind, _, after = rest.partition(",")
        is_path = name not in self and names_class(text)
        default = import_class(f"{name}:{kind}", self, trust) if is_path else self._named(name, trust)
        example = self.example if is_path else _example_of(default, name, rest) or self.example
        settings = parse_settings(f"{name}:{after}" if is_path else text, self.category, example)
        if is_path:
            return default(**check_params(default, settings))
        return dataclasses.replace(default, **check_params(type(default), settings)) if settings else default

    def _named(self, name: str, trust: Collection[str] | None) -> Any:
        if name in self:
            return self[name]
        from importlib.metadata import entry_points

        installed = {entry.name: entry for entry in entry_points(group=self.group)}
        if name in installed and is_trusted(installed[name].module, trust):
            with _import_errors(name, self.category):
                thing = installed[name].load()
            self.register(name, thing)
            return self[name]
        names = [*self, *sorted(set(installed) - set(self))]
        problem, listed = f"there is no {self.category} named {name!r}", f"the names are {', '.join(names)}"
        raise ValueError(unknown_name(problem, name, names, listed, self._synonyms))

    # ------------------------------------------------------------ plain data
    def to_dict(self, thing: Any) -> dict[str, Any]:
        """Return an object as plain data that JSON can hold: the name of its class and the parameters.

        The name is short for a class of riskmin, ``package.module:Class`` for others.
        """
        return to_dict(thing, self.own_classes)

    def from_dict(self, data: dict[str, Any], trust: Collection[str] = ()) -> Any:
        """Return the object from which `to_dict` made the data; see `from_dict`."""
        registered = {class_path(type(thing)): type(thing) for thing in self.values()}
        classes = registered | self.own_classes

        def find(name: str) -> Any:
            if name in classes:
                return classes[name]
            if ":" not in name:
                raise ValueError(f"{name} is not a {self.category} of riskmin: upgrade riskmin")
            return import_class(name, self, trust)

        return from_dict(data, find)

    def check_savable(self, thing: Any) -> None:
        """Raise a ValueError that gives the reason if `from_dict` could not make the object again."""
        kind, name = type(thing), type(thing).__name__
        if kind in self.own_classes.values():
            return
        try:
            found = import_class(class_path(kind), self, None)
        except ValueError:
            found = None
        # the class of an adapted object derives from the user's
        if found not in kind.__mro__ or kind.__module__ == "__main__":
            raise ValueError(
                f"{name} is a {self.category} of your own, and code is not written to files: define its "
                "class in a module, so that the file can name it, or pickle the model"
            )
        if not dataclasses.is_dataclass(kind) and kind.__init__ is not object.__init__:
            raise ValueError(
                f"{name} is a {self.category} of your own whose parameters are not known: make it a dataclass"
            )


def names_class(text: str) -> bool:
    """Whether a text has the form of a class to import, not that of a name with settings."""
    first = text.partition(":")[2].partition(",")[0].strip()
    return first != "" and "=" not in first


def class_path(kind: type) -> str:
    """Return the path of a class, from which it can be imported: ``package.module:Class``."""
    return f"{kind.__module__}:{kind.__qualname__}"


def is_trusted(module: str, trust: Collection[str] | None) -> bool:
    """Whether a module may be imported: it is named, or is in a package that is; None allows every module."""
    return trust is None or any(module == name or module.startswith(f"{name}.") for name in trust)


@contextmanager
def _import_errors(name: str, category: str) -> Iterator[None]:
    """Turn any error of imported code into one sentence."""
    try:
        yield
    except Exception as error:  # the code of others may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"the {category} {name} cannot be imported ({reason})") from error


def import_class(path: str, registry: Registry, trust: Collection[str] | None) -> Any:
    """Return the class of a path; a ValueError if its module is not trusted, or it is not of the category."""
    module, _, qualname = path.partition(":")
    if not is_trusted(module, trust):
        raise UntrustedCodeError(
            f"the {registry.category} {path} is not one of riskmin, and a file imports no code by itself: if "
            f"you trust it, load_model(path, trust=[{module!r}]), or --trust {module} in the command"
        )
    with _import_errors(path, registry.category):
        kind: Any = attrgetter(qualname)(import_module(module))
    if not isinstance(kind, type) or not has_method(kind, registry.method):
        raise ValueError(f"{path} is no {registry.category}: it is no class with a method {registry.method}")
    return kind


def to_dict(thing: Any, classes: dict[str, Any]) -> dict[str, Any]:
    """Return a dataclass as plain data that JSON can hold: the class name and the parameters."""
    kind: Any = type(thing)
    # classes of riskmin by their short name, custom ones by their path
    name = kind.__name__ if kind in classes.values() else class_path(kind)
    params = settings_of(thing) if dataclasses.is_dataclass(kind) else {}
    return {"name": name, "params": {k: _plain_value(v, classes) for k, v in params.items()}}


def settings_of(thing: Any) -> dict[str, Any]:
    """Return the fields of a dataclass and their values, which are not copied."""
    return {f.name: getattr(thing, f.name) for f in dataclasses.fields(thing)}


def _plain_value(value: Any, classes: dict[str, Any]) -> Any:
    """Convert NumPy scalars, arrays and nested dataclasses to plain data."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    nested = type(value) in classes.values() or dataclasses.is_dataclass(value)
    return to_dict(value, classes) if nested else value


def from_dict(data: dict[str, Any], find: Callable[[str], Any]) -> Any:
    """Return the object from which `to_dict` made the data, by the class that `find` returns for a name."""
    kind = find(data["name"])
    params = {k: from_dict(v, find) if type(v) is dict else v for k, v in data["params"].items()}
    return kind(**check_params(kind, params))


def check_params(kind: Any, params: dict[str, Any]) -> dict[str, Any]:
    """Return the params; raise a ValueError if the class does not have all of them."""
    names = [f.name for f in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
    if unknown := sorted(set(params) - set(names)):
        has = f"it has {', '.join(names)}" if names else "it has none"
        problem = f"{kind.__name__} has no parameter {', '.join(unknown)}"
        raise ValueError(unknown_name(problem, unknown[0], names, has))
    return params


def _example_of(thing: Any, name: str, setting: str) -> str:
    """Return how the setting of an object is written, if it was given without its name; else nothing."""
    fields = dataclasses.fields(thing) if dataclasses.is_dataclass(thing) else ()
    try:
        return f"{name}:{fields[0].name}={float(setting):g}"
    except (ValueError, IndexError):
        return ""


def parse_settings(text: str, category: str, example: str) -> dict[str, float]:
    """Parse the settings after the colon."""
    try:
        # a pair without "=" or with two fails to unpack, which is a ValueError as well
        pairs = [item.split("=") for item in text.partition(":")[2].split(",") if item.strip()]
        return {key.strip(): float(value) for key, value in pairs}
    except ValueError:
        raise ValueError(f"{text!r} does not read as a {category}; write it like {example!r}") from None


def repr_of_changes(thing: Any) -> str:
    """Return the class of a dataclass and the settings that differ from their defaults."""
    settings = ((f, getattr(thing, f.name)) for f in dataclasses.fields(thing))
    changed = [f"{f.name}={_short_repr(value)}" for f, value in settings if not _equal(value, f.default)]
    return f"{type(thing).__name__}({', '.join(changed)})"


class ArrayDataclass:
    """Equality of dataclasses some of whose fields are arrays, and a repr that omits the defaults."""

    def __repr__(self) -> str:
        return repr_of_changes(self)

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(map(_equal, settings_of(self).values(), settings_of(other).values()))

    # arrays are not hashable: equal objects must have equal hashes, so only the type is hashed
    def __hash__(self) -> int:
        return hash(type(self))


def _short_repr(value: Any) -> str:
    """Return the repr of a setting if it fits one line of a message, else only its type and shape."""
    shape: Any = getattr(value, "shape", None)
    # more than 20 numbers never fit, and NumPy takes a millisecond to print them
    text = "" if shape and math.prod(shape) > 20 else repr(value)
    if text and len(text) <= 60 and "\n" not in text:
        return text
    return f"<{type(value).__name__}{f' of shape {shape}' if shape else ''}>"


def _equal(a: Any, b: Any) -> bool:
    """Compare two settings by value, arrays and sparse matrices included."""
    if a is b:
        return True
    # sparse matrices compare entry by entry, and have no truth value
    if issparse(a) or issparse(b):
        return type(a) is type(b) and a.shape == b.shape and (a != b).nnz == 0
    return bool(np.all(a == b)) if np.shape(a) == np.shape(b) else False


# ---------------------------------------------------------------- objects of user-defined classes
_ABSENT: Any = object()


def adapted(thing: Any, base: type, adapt: Callable[[Any], Any]) -> Any:
    """Return the object as an instance of the base, which supplies the defaults that its class lacks.

    The new object has the attributes of the old one, and its class derives from that of the old one and from
    the base, under the old name: methods, repr and equality remain those of the user's class. `adapt` is the
    function that called this one; a pickle holds the original object and calls it.
    """
    kind: Any = type(thing)
    # what the object has but its class has not, such as attributes that __getattr__ finds, goes to the class
    names = (name for name in dir(base) if not name.startswith("_") and not hasattr(kind, name))
    own = {name: value for name in names if (value := getattr(thing, name, _ABSENT)) is not _ABSENT}
    made = _class_with_attributes(kind, base, adapt, own) if own else _adapted_class(kind, base, adapt)
    return _with_state_of(thing, made, kind)


@cache
def _adapted_class(kind: Any, base: type, adapt: Callable[[Any], Any]) -> type:
    return _class_with_attributes(kind, base, adapt, {})


def _class_with_attributes(kind: type, base: type, adapt: Callable[[Any], Any], own: dict[str, Any]) -> type:
    def reduce_ex(self: Any, protocol: Any) -> Any:
        return adapt, (_with_state_of(self, kind, kind),)

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    statics = {name: staticmethod(v) if callable(v) else v for name, v in own.items()}
    body = {**names, **statics, "__reduce_ex__": reduce_ex}
    return new_class(kind.__name__, (kind, base), {}, lambda namespace: namespace.update(body))


def _with_state_of(thing: Any, made: Any, kind: type) -> Any:
    """Return a new object of the class `made` with the attributes of another: one dictionary, equal slots."""
    try:
        copy = object.__new__(made)
        with suppress(AttributeError):  # a class of slots has no dictionary
            # past the __setattr__ of frozen dataclasses
            object.__setattr__(copy, "__dict__", thing.__dict__)
    except TypeError:  # a class that is not written in Python, such as SimpleNamespace
        copy = made.__new__(made)
        copy.__dict__.update(thing.__dict__)
    state = object.__getstate__(thing)  # a dictionary; with slots, that and a dictionary of the slots
    for name, value in state[1].items() if type(state) is tuple else ():
        object.__setattr__(copy, name, value)
    return copy

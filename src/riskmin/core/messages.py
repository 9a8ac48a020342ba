"""Text from files and file names for use in messages, without control sequences; and checks of numbers."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any


def printable(text: object) -> str:
    r"""Return the text with unprintable characters escaped, so that no file can control the terminal.

    Parameters
    ----------
    text : object
        Converted by `str`.

    Returns
    -------
    str
    """
    string = str(text)
    if string.isprintable():
        return string
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in string)


def one_line(text: object) -> str:
    r"""Return the text on one line, with whitespace collapsed and unprintable characters escaped."""
    return printable(" ".join(str(text).split()))


class MissingExtra(ImportError):
    """A package that an extra installs is missing; the message names the extra."""


def extra_hint(extra: str, *packages: str) -> str:
    """Return how an extra is installed, from a package index and from a checkout, for messages.

    Examples
    --------
    >>> extra_hint("mpi", "mpich")
    "pip install 'riskmin[mpi]' mpich (in a checkout: pip install '.[mpi]' mpich)"
    """
    more = "".join(f" {package}" for package in packages)
    return f"pip install 'riskmin[{extra}]'{more} (in a checkout: pip install '.[{extra}]'{more})"


def format_label(label: object) -> str:
    """Return a class label as in a data file, where 1.0 is "1"."""
    # floats of NumPy are registered as real numbers, too
    if isinstance(label, numbers.Real) and not isinstance(label, numbers.Integral):
        return str(int(float(label))) if float(label).is_integer() else str(label)
    return str(label)


def is_number(value: Any) -> bool:
    """Whether a setting is a real number, and not True or False."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_rescaling(rescaled: Any) -> None:
    """Raise a ValueError unless `rescaled` is False, True or a power of the cost from 0 to 1."""
    if not isinstance(rescaled, bool) and not (is_number(rescaled) and 0 <= rescaled <= 1):
        raise ValueError(f"rescaled must be False, True or a number from 0 to 1, not {rescaled!r}")


def is_whole(value: Any, at_least: float) -> bool:
    """Whether a setting is a whole number of at least this size, of any type: 3 and 3.0."""
    return is_number(value) and at_least <= value < math.inf and value == int(value)


def is_whole_number(value: Any, at_least: float = -math.inf) -> bool:
    """Whether a setting is an integer of at least this size, and not True or False."""
    return is_number(value) and isinstance(value, numbers.Integral) and int(value) >= at_least


def check_whole(thing: Any, name: str, at_least: int = 1, *, optional: bool = False) -> None:
    """Make a setting of a dataclass an int; raise a ValueError unless it is a whole number, or allowed None.

    Settings that are written after a name, such as ``"ndcg:k=5"``, are floats.
    """
    value = vars(thing)[name]
    if value is None and optional:
        return
    if not is_whole(value, at_least):
        expected = f"a whole number >= {at_least}{' or None' if optional else ''}"
        raise ValueError(f"{type(thing).__name__} needs {name} to be {expected}, not {value!r}")
    object.__setattr__(thing, name, int(value))


def nearest_name(
    name: object, names: Iterable[str], synonyms: Mapping[str, str] = MappingProxyType({})
) -> str | None:
    """Return the name that was probably meant: that of another library's, or the most similar one.

    Examples
    --------
    >>> nearest_name("L1", ["l1", "l2"]), nearest_name("hing", ["hinge"]), nearest_name("x", ["hinge"])
    ('l1', 'hinge', None)
    """
    from difflib import get_close_matches

    plain = _plain(name)
    by_plain = {_plain(other): other for other in names}
    close = get_close_matches(plain, by_plain, 1)
    return synonyms.get(plain) or by_plain.get(plain) or (by_plain[close[0]] if close else None)


def _plain(name: object) -> str:
    return str(name).lower().replace("-", "_").replace(" ", "_")


def unknown_name(
    problem: str,
    name: object,
    names: Iterable[str],
    listed: str = "",
    synonyms: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return the message about a name that does not exist: the nearest one first, then what there is.

    Examples
    --------
    >>> unknown_name("there is no loss named 'hing'", "hing", ["hinge"], "the names are hinge, logistic")
    "there is no loss named 'hing': did you mean 'hinge'? The names are hinge, logistic"
    >>> unknown_name("there is no loss named 'x'", "x", ["hinge"], "the names are hinge, logistic")
    "there is no loss named 'x'; the names are hinge, logistic"
    """
    guess = nearest_name(name, names, synonyms)
    if guess is None:
        return f"{problem}; {listed}" if listed else problem
    return f"{problem}: did you mean {guess!r}? {listed[:1].upper()}{listed[1:]}".rstrip()

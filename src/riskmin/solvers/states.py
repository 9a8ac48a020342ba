"""Saved states are checked before a solver goes on from one: compiled loops believe the arrays they get."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from riskmin.arrays import to_numpy
from riskmin.intercept import without_intercept
from riskmin.objective import Objective
from riskmin.types import Array

NONE: Mapping[str, int] = {}


def checked(
    state: Mapping[str, Array], shapes: Mapping[str, str], below: Mapping[str, int] = NONE, **sizes: int
) -> None:
    """Raise a ValueError where an array of a state is missing, or of another shape, kind or range.

    Parameters
    ----------
    state : dict of arrays
    shapes : dict of str
        The dimensions of each array: numbers, names of sizes, or other names, which stand for the same
        number throughout. A name with a question mark is that of an array that need not be there.
    below : dict of int
        Arrays of whole numbers, each from 0 to less than this; all others are of floats.
    **sizes : int
        Arrays with such a dimension are of finite numbers; others may hold infinities, none holds NaN.

    Examples
    --------
    >>> import numpy as np
    >>> state = {"w": np.zeros(3), "S": np.zeros((2, 3)), "Y": np.zeros((1, 3))}
    >>> checked(state, {"w": "d", "S": "m d", "z?": "n"}, d=3)
    >>> checked(state, {"S": "m d", "Y": "m d"}, d=3)
    Traceback (most recent call last):
    ...
    ValueError: its array Y has shape (1, 3), not (2, 3)
    """
    known = dict(sizes)
    for given, dimensions in shapes.items():
        name = given.rstrip("?")
        if name not in state:
            if given == name:
                raise ValueError(f"its array {name} is missing")
            continue
        a, words = to_numpy(state[name]), dimensions.split()
        _check_shape(name, a.shape, words, known)
        _check_numbers(name, a, below.get(name), finite=any(word in sizes for word in words))


def _check_shape(name: str, shape: tuple[int, ...], words: list[str], known: dict[str, int]) -> None:
    if len(shape) == len(words):
        for word, length in zip(words, shape, strict=True):
            if not word.isdigit():
                known.setdefault(word, length)
        wanted = tuple(int(word) if word.isdigit() else known[word] for word in words)
        if shape == wanted:
            return
        raise ValueError(f"its array {name} has shape {shape}, not {wanted}")
    raise ValueError(f"its array {name} has {len(shape)} dimensions, not {len(words)}")


def _check_numbers(name: str, a: Any, below: int | None, finite: bool) -> None:
    if a.dtype.kind != "f" if below is None else a.dtype.kind not in "iu":
        raise ValueError(
            f"its array {name} is of {a.dtype}, not of {'floats' if below is None else 'integers'}"
        )
    if below is not None:
        if a.size and (int(a.min()) < 0 or int(a.max()) >= below):
            raise ValueError(f"its array {name} has numbers outside of 0 to {below - 1}")
    elif np.isnan(a).any() or (finite and not np.isfinite(a).all()):
        raise ValueError(f"its array {name} holds {'NaN or infinity' if finite else 'NaN'}")


def check_places(places: Any, n: int) -> None:
    """Raise a ValueError where places are visited that a run has not, or one of them twice."""
    if len(places) > n or len(np.unique(places)) < len(places):
        raise ValueError(f"its array order is no order of {n} rows")


def sizes(obj: Objective) -> dict[str, int]:
    """Of the states of Newton's method: the length of w, the same and one, and how many rows there are."""
    risk: Any = without_intercept(obj.risk)
    return {"d": obj.risk.dim, "e": obj.risk.dim + 1, "n": risk.table.shape[0]}

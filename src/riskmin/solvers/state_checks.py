"""States of runs by declared attributes, validated before a run continues: compiled kernels trust them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from riskmin.arrays.namespace import to_numpy
from riskmin.core import Array, Cut
from riskmin.problem.objective import Objective

NO_INTEGER_ARRAYS: Mapping[str, int] = {}
"""Default of `below`: all arrays of the state are floats."""


def check_state(
    state: Mapping[str, Array],
    shapes: Mapping[str, str],
    below: Mapping[str, int] = NO_INTEGER_ARRAYS,
    **sizes: int,
) -> None:
    """Raise a ValueError where an array of a state is missing, or has the wrong shape, dtype or range.

    Parameters
    ----------
    state : dict of arrays
    shapes : dict of str
        The dimensions of each array, separated by spaces: numbers, names of `sizes`, or other names, each of
        which stands for one number throughout. An array whose name ends in a question mark is optional.
    below : dict of int
        Arrays of integers, and the number that all of their entries must be below; all other arrays are of
        floats.
    **sizes : int
        Arrays with one of these dimensions must be finite; others may hold infinities; none may hold NaN.
    """
    lengths = dict(sizes)
    for key, dimensions in shapes.items():
        name = key.rstrip("?")
        if name not in state:
            if key == name:
                raise ValueError(f"its array {name} is missing")
            continue
        # a name without a size gets the length of the first array that has it
        a, words = to_numpy(state[name]), dimensions.split()
        _check_shape(name, a.shape, words, lengths)
        _check_entries(name, a, below.get(name), finite=any(word in sizes for word in words))


def _check_shape(name: str, shape: tuple[int, ...], words: list[str], lengths: dict[str, int]) -> None:
    """Compare a shape with its dimensions; a name without a length yet takes that of the array."""
    if len(shape) == len(words):
        for word, length in zip(words, shape, strict=True):
            if not word.isdigit():
                lengths.setdefault(word, length)
        expected = tuple(int(word) if word.isdigit() else lengths[word] for word in words)
        if shape == expected:
            return
        raise ValueError(f"its array {name} has shape {shape}, not {expected}")
    raise ValueError(f"its array {name} has {len(shape)} dimensions, not {len(words)}")


def _check_entries(name: str, a: Any, below: int | None, finite: bool) -> None:
    """Check the dtype of an array, the range of integers, and that floats are not NaN."""
    if a.dtype.kind != "f" if below is None else a.dtype.kind not in "iu":
        raise ValueError(
            f"its array {name} is of {a.dtype}, not of {'floats' if below is None else 'integers'}"
        )
    # integers serve as indices in compiled loops, which do not check bounds
    if below is not None:
        if a.size and (int(a.min()) < 0 or int(a.max()) >= below):
            raise ValueError(f"its array {name} has numbers outside of 0 to {below - 1}")
    elif np.isnan(a).any() or (finite and not np.isfinite(a).all()):
        raise ValueError(f"its array {name} holds {'NaN or infinity' if finite else 'NaN'}")


CUT: Any = Cut("d", float)  # type: ignore[arg-type]
"""The declaration of a cut in `SavedAttributes.SAVED`."""


class SavedAttributes:
    """A run whose state is the attributes that `SAVED` declares.

    Examples
    --------
    >>> class Run(SavedAttributes):
    ...     SAVED = {"w": "d", "steps": int, "L": float, "best": CUT}
    ...     w, steps, L, best = np.zeros(2), 3, 0.5, Cut(np.ones(2), 1.0)
    >>> run = Run()
    >>> state = run.state()
    >>> sorted(state)
    ['L', 'best_a', 'best_b', 'steps', 'w']
    >>> run.steps = 0
    >>> run.restore(state, d=2)
    >>> run.steps, run.best.b
    (3, 1.0)
    """

    SAVED: ClassVar[Mapping[str, Any]] = {}
    """Dimensions of an array, as in `check_state`; int or float; or a named tuple of these, None for what is
    not saved."""

    def saved(self) -> Mapping[str, Any]:
        """The attributes of this run; by default those of the class."""
        return self.SAVED

    def state(self) -> dict[str, Array]:
        """The attributes as arrays, those of named tuples part by part; arrays of NumPy are copies."""
        found = {}
        for name, (attribute, part, spec) in self._parts().items():
            value = getattr(self, attribute) if part is None else getattr(getattr(self, attribute), part)
            found[name] = np.array([value]) if isinstance(spec, type) else _copied(value)
        return found

    def restore(
        self, state: Mapping[str, Array], below: Mapping[str, int] = NO_INTEGER_ARRAYS, **sizes: int
    ) -> None:
        """Set the attributes to those of a state, once `check_state` finds nothing wrong with it."""
        specs = {name: spec for name, (_, _, spec) in self._parts().items()}
        limits = {name: 2**62 for name, spec in specs.items() if spec is int} | dict(below)
        shapes = {name: "1" if isinstance(spec, type) else spec for name, spec in specs.items()}
        check_state(state, shapes, limits, **sizes)
        parts: dict[str, dict[Any, Any]] = {}
        for name, (attribute, part, spec) in self._parts().items():
            value = spec(state[name][0]) if isinstance(spec, type) else _copied(state[name])
            parts.setdefault(attribute, {})[part] = value
        for attribute, values in parts.items():
            kind: Any = type(self.saved()[attribute])
            setattr(self, attribute, values[None] if None in values else kind(**values))

    def _parts(self) -> dict[str, tuple[str, str | None, Any]]:
        """The attribute, the part and the dimensions of each array of a state."""
        found: dict[str, tuple[str, str | None, Any]] = {}
        for name, spec in self.saved().items():
            parts = spec._asdict() if isinstance(spec, tuple) else {None: spec}  # type: ignore[attr-defined]
            for part, dimensions in parts.items():
                if dimensions is not None:
                    found[name if part is None else f"{name}_{part}"] = name, part, dimensions
        return found


def _copied(a: Array) -> Array:
    """A copy of an array of NumPy, which kernels may change; those of other libraries are replaced only."""
    return a.copy() if isinstance(a, np.ndarray) else a


def check_row_order(order: Any, n: int) -> None:
    """Raise a ValueError where an order of rows has more than n entries, or one of them twice."""
    # a row that occurs twice would be updated twice per sweep
    if len(order) > n or len(np.unique(order)) < len(order):
        raise ValueError(f"its array order is no order of {n} rows")


def state_sizes(obj: Objective) -> dict[str, int]:
    """The dimensions of the states of Newton's method: d = len(w), n rows, and k outputs."""
    risk: Any = obj.risk
    return {"d": risk.dim, "n": risk.row_metadata.shape[0], "k": risk.linear_map.columns}

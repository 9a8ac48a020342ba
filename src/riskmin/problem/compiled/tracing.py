"""Losses of one score per row as programs: their array code, traced to the assignments of one row.

The one definition of a loss is array code. `trace_loss` calls it with symbols and returns what it did to a
row, from which `_numba.traced` makes a compiled function of a block of rows; a loss of a user is traced in
the same way. What cannot be traced keeps its array code.
"""

from __future__ import annotations

import copy
import numbers
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from riskmin.arrays.symbols import Recording, RowSum, Symbol, Untraceable
from riskmin.core import Array, NDArray
from riskmin.losses.base import Loss

Outputs = tuple[str, str, str, str]
"""The names of the value, the slope, the minorant offset and the second derivative of a row."""


@dataclass(frozen=True)
class RowProgram:
    """The assignments of one row, from z, y, c and parameters k0, k1, ... to the outputs, weighted by c."""

    lines: tuple[str, ...]
    parameters: tuple[float, ...]
    outputs: Outputs


@dataclass(frozen=True, eq=False)
class TracedLoss:
    """A loss with the programs of its rows; the same object for equal losses."""

    loss: Loss
    first: RowProgram
    """Value, slope and minorant offset."""
    second: RowProgram
    """The same and the second derivative, which is 0 where the loss has none."""

    def agrees_with(self, compiled: Callable[[NDArray], NDArray], y: NDArray, c: NDArray) -> bool:
        """Whether compiled(z), the value, the minorant offset and the slopes, agrees with the array code."""
        z = trial_scores(y)
        # far out, exponentials overflow, and an infinite sum shows no difference: so also at small scores
        return all(self._agrees_at(s, compiled(s), y, c) for s in (z, np.clip(z, -9.0, 9.0)))

    def _agrees_at(self, z: NDArray, found: NDArray, y: NDArray, c: NDArray) -> bool:
        value, slopes, offset = self.loss.offset_tangent(z.copy(), y.copy(), c.copy())
        expected = np.array([value, offset, *slopes], dtype=float)
        finite = np.isfinite(expected)
        sizes = abs(float(value)) if finite[0] else np.inf, np.abs(slopes[finite[2:]]).max(initial=0.0)
        # relative to the value, and to the largest slope
        size = np.repeat(sizes, [2, len(slopes)])
        close = np.abs(found - expected)[finite] <= 1e-12 * size[finite]
        return bool(close.all()) and np.array_equal(found[~finite], expected[~finite], equal_nan=True)


def trace_loss(loss: Loss) -> TracedLoss:
    """Return a loss with its programs; the same object for equal losses.

    Raises
    ------
    Untraceable
        If the loss needs all rows at once, or operations that have no symbolic form; the message names them.
    """
    result = _trace(_ByState(loss))
    if isinstance(result, str):
        raise Untraceable(result)
    return result


def try_trace(loss: Loss) -> TracedLoss | None:
    """Return a loss with its programs, or None if it cannot be traced."""
    try:
        return trace_loss(loss)
    except Untraceable:
        return None


class _ByState:
    """A loss, hashed and compared by its class and its attributes: these may be changed by a user."""

    def __init__(self, loss: Loss) -> None:
        self.loss, self.state = loss, _state(loss)

    def __hash__(self) -> int:
        return hash(self.state)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByState) and self.state == other.state


def _state(thing: Any) -> Any:
    """Return the attributes of a loss as something hashable; refuse arrays and other mutable objects."""
    if isinstance(thing, Loss):
        attributes = object.__getstate__(thing)  # a dictionary, with __slots__ two, or None
        both = attributes if isinstance(attributes, tuple) else (attributes,)
        return type(thing), tuple(
            (name, _state(v)) for some in both for name, v in sorted((some or {}).items())
        )
    if isinstance(thing, tuple):
        return tuple(_state(v) for v in thing)
    known = thing is None or isinstance(thing, (numbers.Number, str, bytes, type)) or callable(thing)
    if known and isinstance(thing, Hashable):
        return type(thing), thing
    raise Untraceable(f"an attribute of type {type(thing).__name__}")


@lru_cache(maxsize=256)
def _trace(key: _ByState) -> TracedLoss | str:
    """Return a loss with its programs, or why it has none."""
    if not key.loss.separable or key.loss.multi_output:
        return f"{type(key.loss).__name__} is no sum over rows of one score each"
    try:
        # a copy: its user may change a loss later, and calls with symbols may
        loss = copy.deepcopy(key.loss)
        attributes = dict(vars(loss))
        traced = TracedLoss(loss, _program(loss, second=False), _program(loss, second=True))
        _refuse_changes(loss, attributes)
    except Untraceable as refusal:
        return str(refusal)
    except Exception as error:  # the code of a user may fail in any way on something that is no array
        return f"{type(error).__name__}: {error}"
    return traced


def _refuse_changes(loss: Loss, before: dict[str, Any]) -> None:
    """Raise Untraceable if a call has changed attributes of the loss, or added others than constants."""
    after = vars(loss)
    if any(name not in after or after[name] is not value for name, value in before.items()):
        raise Untraceable("a loss that changes itself")
    for name in after.keys() - before.keys():
        _state(after[name])


def _program(loss: Loss, second: bool) -> RowProgram:
    recording = Recording()
    z, y, c = (Symbol(recording, name) for name in "zyc")
    value, slope, offset = loss.offset_tangent(z, y, c)
    hessian: Any = loss.hessian(z, y, c) if second and loss.smooth else None
    if hessian is not None and (hessian.low_rank or hessian.pair_blocks):
        raise Untraceable("second derivatives of several rows")
    terms = [_term(v) for v in (value, offset)]
    rows = [slope, 0.0 if hessian is None else hessian.diagonal]
    names = [recording.text(v) for v in (terms[0], rows[0], terms[1], rows[1])]
    lines, parameters = tuple(recording.lines), tuple(recording.parameters)
    return RowProgram(lines, parameters, (names[0], names[1], names[2], names[3]))


def _term(value: Any) -> Any:
    """Return the term of one row of a sum over rows."""
    if isinstance(value, RowSum):
        return value.term
    if isinstance(value, Symbol) or float(value) != 0:
        raise Untraceable("a value that is no sum over rows")
    return 0.0


def sampled_rows(*arrays: Array) -> list[Array]:
    """Return about 256 evenly spaced entries of each of some arrays of one length."""
    return [a[:: max(len(a) // 256, 1)] for a in arrays]


def trial_scores(y: NDArray) -> NDArray:
    """Return scores at which programs are compared with array code: near 0, around the labels, far out."""
    rng = np.random.default_rng(0)
    scale = np.resize([1e-3, 1.0, 1.0, 30.0, 1e3], len(y))
    z = scale * rng.standard_normal(len(y)) + np.where(np.arange(len(y)) % 2, y, 0.0)
    # exact zeros, signs and labels, where losses are not smooth
    z[0::16], z[3::16], z[7::16] = 0.0, np.sign(z[3::16]), y[7::16]
    return z

"""A regularizer that leaves the last entries of w alone: intercepts of many outputs are never penalized."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from riskmin.arrays import namespace
from riskmin.regularizers.separable import Terms
from riskmin.types import Array, Cut, Euclidean, Regularizer, Smooth


@dataclass(frozen=True)
class Free:
    r"""A regularizer of all but the last entries of w, :math:`\Omega(w_{1 \ldots d - m})`.

    Its conjugate is infinite but for slopes that are zero in these entries. `Objective` wraps its
    regularizer so, where the risk has intercepts in w.

    Parameters
    ----------
    penalized : Regularizer
        What the others are under.
    m : int
        How many entries are free.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2
    >>> free(L2(), 1).value(np.array([3.0, 100.0]))
    4.5
    """

    penalized: Any
    m: int

    @property
    def formula(self) -> str:
        """That of what is penalized."""
        return str(getattr(self.penalized, "formula", repr(self.penalized)))

    @property
    def polyhedral(self) -> bool:
        """As what is penalized is."""
        return bool(getattr(self.penalized, "polyhedral", False))

    def _with(self, head: Array, tail: Array) -> Array:
        return namespace(head).concat([head, tail])

    def value(self, w: Array) -> float:
        """Omega of the others."""
        return float(self.penalized.value(w[: -self.m]))

    def prox(self, v: Array, step: float) -> Array:
        """The proximal point of the others; these stay."""
        return self._with(self.penalized.prox(v[: -self.m], step), v[-self.m :])

    def conjugate(self, u: Array) -> float:
        """The conjugate of the others, where the slopes in these are zero."""
        if bool(namespace(u).any(u[-self.m :] != 0)):
            return math.inf
        return float(self.penalized.conjugate(u[: -self.m]))

    def conjugate_grad(self, u: Array) -> Array:
        """That of the others; of these, any number attains it, such as zero."""
        return self._with(self.penalized.conjugate_grad(u[: -self.m]), 0.0 * u[-self.m :])

    def scale(self, cut: Cut, lam: float) -> float:
        """That of the others; a cut that has a slope in these proves no more than R >= 0 does."""
        if bool(namespace(cut.a).any(cut.a[-self.m :] != 0)):
            return 0.0
        return float(self.penalized.scale(Cut(cut.a[: -self.m], cut.b), lam))

    def line(self, w: Array, d: Array) -> Callable[[float], tuple[float, float]]:
        """That of the others."""
        found: Callable[[float], tuple[float, float]] = self.penalized.line(w[: -self.m], d[: -self.m])
        return found

    def reach(self, w: Array, d: Array) -> float:
        """That of the others."""
        return float(self.penalized.reach(w[: -self.m], d[: -self.m]))

    def terms(self, w: Array) -> Terms:
        """The coefficients of a sum over coordinates: none for these."""
        inner, xp = self.penalized.terms(w[: -self.m]), namespace(w)
        zero, tail = 0.0 * w[: -self.m], 0.0 * w[-self.m :]
        ends = (0.0, 0.0, -math.inf, math.inf)
        return Terms(*(xp.concat([t + zero, end + tail]) for t, end in zip(inner, ends, strict=True)))


@dataclass(frozen=True)
class FreeSmooth(Free):
    """The same of a regularizer with a gradient.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2
    >>> free(L2(), 1).grad(np.array([3.0, 100.0])).tolist()
    [3.0, 0.0]
    """

    def grad(self, w: Array) -> Array:
        """Zero in these."""
        return self._with(self.penalized.grad(w[: -self.m]), 0.0 * w[-self.m :])


@dataclass(frozen=True)
class FreeSquare(FreeSmooth):
    """The same of a regularizer w' K w / 2.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2
    >>> free(L2(), 1).gram(np.array([[3.0, 0.0]]), np.array([2.0, 0.0])).tolist()
    [6.0]
    """

    def gram(self, A: Array, a: Array) -> Array:
        """Of cuts whose slopes in these are zero."""
        return self.penalized.gram(A[:, : -self.m], a[: -self.m])


def free(reg: Regularizer, m: int) -> Any:
    """The regularizer with its last m entries free; as it is, where m is 0 or they are free already.

    Examples
    --------
    >>> from riskmin import L1, L2
    >>> type(free(L2(), 3)).__name__, type(free(L1(), 3)).__name__, free(L1(), 0)
    ('FreeSquare', 'Free', L1())
    """
    if m == 0 or isinstance(reg, Free):
        return reg
    if not isinstance(reg, Smooth):
        return Free(reg, m)
    return FreeSquare(reg, m) if isinstance(reg, Euclidean) else FreeSmooth(reg, m)


def penalized(reg: Any) -> Any:
    """The regularizer of the entries that are not free: as it was given.

    Examples
    --------
    >>> from riskmin import L1
    >>> penalized(free(L1(), 3)), penalized(L1())
    (L1(), L1())
    """
    return reg.penalized if isinstance(reg, Free) else reg

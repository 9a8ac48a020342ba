"""A regularizer of weights times sizes: those of standardized columns, for columns as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.arrays import like
from riskmin.regularizers.base import Comparable, check_setting
from riskmin.types import Array, CurvedConjugate, Cut, NDArray, Smooth, Unsuited

ROUNDING = 1e-14
"""Products of a size and its inverse are one, but for this."""


@dataclass(frozen=True, eq=False, repr=False)
class Rescaled(Comparable):
    r"""A regularizer of rescaled weights, :math:`\Omega(s \circ w)`.

    Solvers see :math:`\Omega` itself, in the variables :math:`s \circ w`, where X can be changed with them
    (see `Preconditioner`); else what `opened` makes of it. It has no proximal points of its own.

    Parameters
    ----------
    reg : Regularizer
        :math:`\Omega`.
    sizes : (p,) array
        The :math:`s_j > 0`.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import QNorm
    >>> reg = Rescaled(QNorm(q=1.5), np.array([1.0, 10.0]))
    >>> w = np.array([2.0, -0.3])
    >>> reg.value(w) == QNorm(q=1.5).value(np.array([2.0, -3.0]))
    True
    >>> reg.scaled(np.array([1.0, 0.1]))
    QNorm(q=1.5, power=2.0)
    """

    reg: Any
    sizes: NDArray

    def __post_init__(self) -> None:
        check_setting(self, "sizes", lambda v: (v > 0) & np.isfinite(v), "numbers > 0")

    @property
    def formula(self) -> str:
        """In one line of plain text."""
        return f"{getattr(self.reg, 'formula', repr(self.reg))} of sizes * w"

    def scaled(self, s: NDArray) -> Any:
        """The same function of v = w / s: what is rescaled itself, where that undoes the sizes."""
        sizes = self.sizes * s
        undone = bool(np.all(np.abs(sizes - 1) <= ROUNDING))
        return self.reg if undone else opened(rescaled(self.reg, sizes))

    def value(self, w: Array) -> float:
        """Omega of the rescaled weights."""
        return float(self.reg.value(like(self.sizes, w) * w))

    def prox(self, v: Array, step: float) -> Array:
        """A point of the domain near v, for step 0; there is no formula for others."""
        if step:
            raise Unsuited(f"the proximal points of {self!r} are not known: use Bundle")
        sizes = like(self.sizes, v)
        return self.reg.prox(sizes * v, 0.0) / sizes

    def conjugate(self, u: Array) -> float:
        """That of Omega at u / s."""
        return float(self.reg.conjugate(u / like(self.sizes, u)))

    def conjugate_grad(self, u: Array) -> Array:
        """The w that attains it."""
        sizes = like(self.sizes, u)
        return self.reg.conjugate_grad(u / sizes) / sizes

    def scale(self, cut: Cut, lam: float) -> float:
        """The best shrinkage, as that of the cut in the rescaled weights."""
        return float(self.reg.scale(Cut(cut.a / like(self.sizes, cut.a), cut.b), lam))

    def line(self, w: Array, d: Array) -> Callable[[float], tuple[float, float]]:
        """T -> Omega along the line, and its slope."""
        sizes = like(self.sizes, w)
        found: Callable[[float], tuple[float, float]] = self.reg.line(sizes * w, sizes * d)
        return found

    def reach(self, w: Array, d: Array) -> float:
        """How far w + t d stays in the domain."""
        sizes = like(self.sizes, w)
        return float(self.reg.reach(sizes * w, sizes * d))


class RescaledSmooth(Rescaled):
    """The same of a regularizer with a gradient."""

    def grad(self, w: Array) -> Array:
        """By the chain rule."""
        sizes = like(self.sizes, w)
        return sizes * self.reg.grad(sizes * w)


class RescaledCurved(Rescaled):
    """The same of a regularizer whose conjugate has second derivatives."""

    def conjugate_bend(self, u: Array, A: Array) -> Array:
        """By the chain rule."""
        sizes = like(self.sizes, u)
        return self.reg.conjugate_bend(u / sizes, A / sizes)


class RescaledBoth(RescaledSmooth, RescaledCurved):
    """The same of a regularizer with both."""


def rescaled(reg: Any, sizes: NDArray) -> Any:
    """Omega(sizes * w) as a function of w, for sizes > 0.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import QNorm
    >>> type(rescaled(QNorm(), np.array([2.0, 3.0]))).__name__, rescaled(QNorm(), np.ones(2))
    ('RescaledBoth', QNorm(q=1.5, power=2.0))
    """
    if bool(np.all(sizes == 1)):
        return reg
    smooth, curved = isinstance(reg, Smooth), isinstance(reg, CurvedConjugate)
    if smooth:
        return (RescaledBoth if curved else RescaledSmooth)(reg, sizes)
    return (RescaledCurved if curved else Rescaled)(reg, sizes)


def opened(reg: Any) -> Any:
    """A rescaled regularizer as one of the same kind, with other weights, where there is such a one.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L1
    >>> opened(rescaled(L1(), np.array([2.0, 3.0]))), opened(L1())
    (L1(weights=array([2., 3.])), L1())
    """
    if not isinstance(reg, Rescaled):
        return reg
    own = getattr(reg.reg, "scaled", None)
    found = None if own is None else own(reg.sizes)
    return reg if found is None else found

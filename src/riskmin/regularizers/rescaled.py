"""A regularizer of rescaled weights: the penalty of standardized columns, for unscaled columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.arrays.namespace import as_array_like
from riskmin.core import Array, Cut, NDArray, UnsupportedProblem
from riskmin.regularizers.base import ArrayDataclass, Regularizer, check_setting
from riskmin.regularizers.from_conjugate import as_regularizer


@dataclass(frozen=True, eq=False, repr=False)
class Rescaled(ArrayDataclass, Regularizer):
    r"""A regularizer of rescaled weights, :math:`\Omega(s \circ w)`.

    If X can be rescaled too (see `Preconditioner`), solvers work with :math:`\Omega` itself in the variables
    :math:`s \circ w`; otherwise with `without_sizes`. It has no proximal operator.

    Parameters
    ----------
    reg : Regularizer
        :math:`\Omega`.
    sizes : (p,) array
        The :math:`s_j > 0`.
    """

    UNIT_SIZE_TOLERANCE = 1e-14
    """The largest deviation from 1 (rounding) of the product of a size and its inverse."""

    reg: Any
    sizes: NDArray

    is_rescaled = True

    def __post_init__(self) -> None:
        check_setting(self, "sizes", lambda v: (v > 0) & np.isfinite(v), "numbers > 0")
        object.__setattr__(self, "reg", as_regularizer(self.reg))
        object.__setattr__(self, "change_for_convergence", self.reg.change_for_convergence)
        object.__setattr__(self, "formula", f"{self.reg.formula or repr(self.reg)} of sizes * w")

    def scaled(self, s: NDArray) -> Any:
        """Return the same function of v = w / s; Omega itself if s is the inverse of the sizes."""
        sizes = self.sizes * s
        # (sizes * s) * v = sizes * w: product 1 means the variables of Omega itself
        undone = bool(np.all(np.abs(sizes - 1) <= self.UNIT_SIZE_TOLERANCE))
        return self.reg if undone else rescaled(self.reg, sizes).without_sizes

    @property
    def without_sizes(self) -> Regularizer:
        """The same function as one of the class of Omega with other weights, if there is one."""
        # `scaled` may also return None, for example for a linear operator
        result: Regularizer | None = self.reg.scaled(self.sizes)
        return self if result is None else result

    def value(self, w: Array) -> float:
        """Return Omega of the rescaled weights."""
        return float(self.reg.value(as_array_like(self.sizes, w) * w))

    def prox(self, v: Array, step: float) -> Array:
        """Return a point of the domain close to v, for step 0; raise for other steps (no formula)."""
        if step:
            raise UnsupportedProblem(f"the proximal points of {self!r} are not known: use Bundle")
        sizes = as_array_like(self.sizes, v)
        return self.reg.prox(sizes * v, 0.0) / sizes

    def conjugate(self, u: Array) -> float:
        """Return the conjugate of Omega at u / s."""
        return float(self.reg.conjugate(u / as_array_like(self.sizes, u)))

    def conjugate_grad(self, u: Array) -> Array:
        """Return the w that attains the conjugate."""
        sizes = as_array_like(self.sizes, u)
        # max_w u'w - Omega(s w) is attained at s w = argmax of Omega* at u / s
        return self.reg.conjugate_grad(u / sizes) / sizes

    def scale(self, cut: Cut, lam: float) -> float:
        """Return the best scale of the cut, as a cut in the rescaled weights."""
        # a'w = (a / s)'(s w)
        return float(self.reg.scale(Cut(cut.a / as_array_like(self.sizes, cut.a), cut.b), lam))

    def line(self, w: Array, d: Array) -> Callable[[float], tuple[float, float]]:
        """Return t -> (Omega(s * (w + t d)), its derivative)."""
        sizes = as_array_like(self.sizes, w)
        result: Callable[[float], tuple[float, float]] = self.reg.line(sizes * w, sizes * d)
        return result

    def is_finite(self, dim: int) -> bool:
        """Whether Omega is finite everywhere."""
        return bool(self.reg.is_finite(dim))

    def reach(self, w: Array, d: Array) -> float:
        """Return the largest t for which w + t d is in the domain."""
        sizes = as_array_like(self.sizes, w)
        return float(self.reg.reach(sizes * w, sizes * d))

    def grad(self, w: Array) -> Array:
        """Return the gradient, by the chain rule."""
        sizes = as_array_like(self.sizes, w)
        return sizes * self.reg.grad(sizes * w)

    @property
    def smooth(self) -> bool:
        """Whether Omega is differentiable."""
        return bool(self.reg.smooth)

    def conjugate_hessian_product(self, u: Array, A: Array) -> Array:
        """Return A H A', by the chain rule."""
        sizes = as_array_like(self.sizes, u)
        return self.reg.conjugate_hessian_product(u / sizes, A / sizes)

    @property
    def has_conjugate_hessian(self) -> bool:
        """Whether the conjugate of Omega has a Hessian."""
        return bool(self.reg.has_conjugate_hessian)


def rescaled(reg: Any, sizes: NDArray) -> Any:
    """Return Omega(sizes * w) as a function of w, for sizes > 0."""
    if bool(np.all(sizes == 1)):
        return reg
    return Rescaled(reg, sizes)

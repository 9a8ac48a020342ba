"""The group lasso: weights of a group of features are zero together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from riskmin.arrays.namespace import as_array_like, to_numpy
from riskmin.core import Array, Cut, NDArray
from riskmin.regularizers.base import SAFE_SHARE, ArrayDataclass, Regularizer, best_scale, check_setting


@dataclass(frozen=True, eq=False, repr=False)
class GroupLasso(ArrayDataclass, Regularizer):
    r"""The group lasso, :math:`\Omega(w) = \sum_g \omega_g \|w_g\|_2 + \tfrac m2 \|w\|^2`.

    The weights of a group are zero together, such as those of the indicators of one category. With
    :math:`m > 0` the conjugate :math:`\Omega^*(u) = \sum_g \max(0, \|u_g\| - \omega_g)^2 / (2 m)` is finite,
    and `Bundle` has a master problem, for any loss. With m = 0 the conjugate is 0 where
    :math:`\|u_g\| \le \omega_g` for all g, else infinite: `ProximalGradient` takes smooth losses,
    ``Smoothing(ProximalGradient())`` others. Both take many steps if units of columns differ, which
    ``standardize=True`` of the estimators avoids. With several outputs, a group has the weights of
    all of them.

    Parameters
    ----------
    groups : (p,) array
        The group of each feature: numbers or strings.
    weights : None, float or (G,) array
        The :math:`\omega_g > 0`, in the order of the sorted groups; None for the square roots of the sizes.
    ridge : float
        The m >= 0 of the squared norm.

    References
    ----------
    M. Yuan, Y. Lin, Model selection and estimation in regression with grouped variables, Journal of the Royal
    Statistical Society B 68, 2006.

    Examples
    --------
    >>> import numpy as np
    >>> reg = GroupLasso(["city", "city", "age"], weights=1.0)
    >>> reg.value(np.array([3.0, 4.0, -2.0])), reg.prox(np.array([3.0, 4.0, -2.0]), 2.5).tolist()
    (7.0, [1.5, 2.0, 0.0])
    >>> from riskmin import LinearRegressor
    >>> X = np.random.default_rng(0).normal(size=(100, 4))
    >>> model = LinearRegressor("squared", regularizer=GroupLasso([0, 0, 1, 1]), alpha=0.2)
    >>> model.fit(X, X @ [1.0, 0.5, 0.1, 0.0]).coef_[2:].tolist()
    [0.0, 0.0]
    """

    groups: Any
    weights: Any = None
    ridge: float = 0.0

    formula = "sum_g weights_g |w_g| + ridge |w|^2 / 2"

    def __post_init__(self) -> None:
        labels = np.asarray(self.groups)
        if labels.ndim != 1 or not len(labels) or (labels.dtype.kind == "f" and np.isnan(labels).any()):
            raise ValueError("GroupLasso needs groups to be one number or string per feature, without NaN")
        codes = np.unique(labels, return_inverse=True)[1].reshape(-1).astype(np.intp)
        codes.flags.writeable = False
        object.__setattr__(self, "groups", codes)
        if self.weights is not None:
            check_setting(self, "weights", lambda v: (v > 0) & np.isfinite(v), "numbers > 0")
            if np.ndim(self.weights) and np.shape(self.weights) != (self.n_groups,):
                raise ValueError(
                    f"weights has shape {np.shape(self.weights)}, but there are {self.n_groups} groups: give "
                    "a number, or one per group in sorted order"
                )
        check_setting(self, "ridge", lambda v: (v >= 0) & np.isfinite(v) & (v.ndim == 0), "a number >= 0")
        # without the squared norm the conjugate is an indicator function, as that of `L1`
        object.__setattr__(self, "polyhedral", self.ridge == 0)
        if self.ridge == 0:
            object.__setattr__(self, "change_for_convergence", "give GroupLasso a ridge > 0")

    @property
    def n_groups(self) -> int:
        """The number of groups."""
        return int(self.groups[np.argmax(self.groups)]) + 1

    @cached_property
    def _sizes(self) -> NDArray:
        """The omega_g of all groups."""
        if self.weights is None:
            return np.sqrt(np.bincount(self.groups))
        sizes: NDArray = self.weights + np.zeros(self.n_groups)
        return sizes

    def _norms(self, w: Array) -> tuple[NDArray, NDArray]:
        """Return w as an array of NumPy, and the norms of its groups."""
        x = to_numpy(w)
        if len(x) != len(self.groups):
            raise ValueError(f"groups has {len(self.groups)} entries, but w has {len(x)}: give one per entry")
        # relative to the largest entry, because squares overflow
        largest = float(np.max(np.abs(x))) or 1.0
        if not math.isfinite(largest):
            return x, np.full(self.n_groups, largest)
        return x, largest * np.sqrt(np.bincount(self.groups, (x / largest) ** 2, self.n_groups))

    def value(self, w: Array) -> float:
        """Return sum_g omega_g |w_g| + m |w|^2 / 2."""
        x, norms = self._norms(w)
        return float(self._sizes @ norms) + 0.5 * self.ridge * float(x @ x)

    def slope(self, w: Array, d: Array) -> float:
        """Return the derivative along d; a group at zero has the one-sided derivative omega_g |d_g|."""
        (x, norms), (step, step_norms) = self._norms(w), self._norms(d)
        inner = np.bincount(self.groups, x * step, self.n_groups)
        slopes = np.where(norms > 0, inner / np.where(norms > 0, norms, 1.0), step_norms)
        return float(self._sizes @ slopes) + self.ridge * float(x @ step)

    def prox(self, v: Array, step: float) -> Array:
        """Return the groups of v, shortened by step omega_g, divided by 1 + step m."""
        x, norms = self._norms(v)
        factors = _share_beyond(norms, step * self._sizes) / (1 + step * self.ridge)
        return as_array_like(x * factors[self.groups] + 0.0, v)  # no negative zeros

    def conjugate(self, u: Array) -> float:
        """Return sum_g max(0, |u_g| - omega_g)^2 / (2 m); for m = 0, the indicator of |u_g| <= omega_g."""
        excess = np.maximum(self._norms(u)[1] - self._sizes, 0.0)
        if self.ridge:
            return float(excess @ excess) / (2 * self.ridge)
        return math.inf if excess.any() else 0.0

    def conjugate_grad(self, u: Array) -> Array:
        """Return the groups of u, shortened by omega_g, over m; raise a TypeError where there is none."""
        x, norms = self._norms(u)
        shares = _share_beyond(norms, self._sizes)
        if not self.ridge and shares.any():
            raise TypeError(f"the conjugate of {self!r} is infinite at this point, so it has no gradient")
        return as_array_like(x * shares[self.groups] / (self.ridge or 1.0), u)

    def conjugate_hessian_product(self, u: Array, A: Array) -> Array:
        """Return A H A', with the blocks (1 - omega / n) I + omega u u' / n^3 over m, for n = |u_g|.

        Blocks with n <= omega are zero.
        """
        (x, norms), rows = self._norms(u), to_numpy(A)
        shares = _share_beyond(norms, self._sizes)
        half = rows * np.sqrt(shares[self.groups] / self.ridge)
        active = np.flatnonzero(shares)
        unit = x / np.where(norms > 0, norms, 1.0)[self.groups]
        along = np.stack([np.bincount(self.groups, a * unit, self.n_groups) for a in rows])[:, active]
        rest = (1 - shares[active]) / self.ridge  # omega / n
        return as_array_like(half @ half.T + (along * rest) @ along.T, A)

    @property
    def has_conjugate_hessian(self) -> bool:
        """Whether the conjugate is finite."""
        return self.ridge > 0

    def scale(self, cut: Cut, lam: float) -> float:
        """Return the best scale; if the conjugate is an indicator function, the largest feasible one."""
        if self.ridge:
            return best_scale(self, cut, lam)
        largest = float(np.max(self._norms(cut.a)[1] / (lam * self._sizes)))
        return 0.0 if cut.b <= 0 else 1.0 if largest < SAFE_SHARE else SAFE_SHARE / largest

    def strong_convexity(self, w: Array) -> float:
        """Return m."""
        return float(self.ridge)


def _share_beyond(norms: NDArray, bounds: NDArray) -> NDArray:
    """Return max(0, 1 - bound / norm), and 0 for norm 0."""
    return np.where(norms > bounds, 1 - bounds / np.where(norms > bounds, norms, 1.0), 0.0)

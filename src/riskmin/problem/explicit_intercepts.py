r"""Intercepts of multi-output risks: unpenalized entries of w, and cuts without a slope in them.

A cut bounds :math:`\min_{w, b} J` only if its slope in every intercept is zero: otherwise it is unbounded
below in b. The slopes of a tangent are small, but vanish only at the minimum. So a tangent is mixed with k
cuts that are known beforehand, from the inequalities :math:`l(z, y) \ge F_{yj} (z_j - z_y) + O_{yj}`, "always
predict j". Their slopes in the intercepts span all directions, so that a small share of these cuts suffices,
and no pass over X is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from riskmin.arrays.namespace import as_array_like, namespace, to_numpy, zeros_for
from riskmin.core import Array, Cut, NDArray, Shard
from riskmin.executors import Executor
from riskmin.linear_maps.linear import Centered, MultiOutput, SingleOutput, Standardized
from riskmin.losses.multiclass import one_hot
from riskmin.problem import shard_ops
from riskmin.problem.shard_ops import blocks

if TYPE_CHECKING:
    from riskmin.problem.risk import Risk, ScoreCursor


def class_sums(shard: Shard, linear_map: Any) -> tuple[NDArray, NDArray]:
    """The weighted sums of the rows of each class, (p, k), and the total weights of the classes."""
    k = linear_map.columns
    sums, weights = np.zeros(shard.X.shape[1] * k), np.zeros(k)
    for i, j in blocks(shard, linear_map):
        c = shard.c[i:j, None]
        # entry (i, j) is c_i where y_i = j: the pullback adds c_i x_i to the column of class y_i
        indicators = c * one_hot(shard.y[i:j], c + zeros_for((1, k), c))
        linear_map.pullback(shard.X, indicators, i, j, sums)
        weights += to_numpy(indicators.sum(0))
    return sums.reshape(-1, k), weights


@dataclass(frozen=True)
class ConstantPredictionCuts:
    """The cuts of "always predict j", for all j together."""

    ABSENT_CLASS_SHIFT = 1e6
    """The intercepts of classes without rows start this far below the others."""

    sums: Array
    """The weighted sums of the rows of each class, (p, k)."""
    weights: NDArray
    """pi, the total weight of the rows of each class."""
    F: NDArray | float
    """The costs F_yj of the inequality; a number if all are equal."""
    offsets: NDArray
    """One per class, sum_i c_i O_(y_i, j)."""
    linear_map: Any
    """The map from the weights to the scores, without intercepts."""

    @classmethod
    def from_risk(cls, risk: Risk) -> ConstantPredictionCuts:
        """The cuts of a risk with explicit intercepts: one pass over X."""
        k, loss = risk.n_intercepts, risk.loss
        inner: Any = risk.linear_map.inner  # type: ignore[attr-defined]
        # sums of the rows as the scores see them: standardized columns, no sharing of weights
        linear_map = inner.with_separate_weights if isinstance(inner, Standardized) else MultiOutput(k)
        sums, pi = risk.executor.sum(class_sums, linear_map)
        cuts = loss.constant_prediction_cuts(k)
        assert cuts is not None
        F, offsets = cuts
        return cls(sums, pi, F, pi @ (offsets + np.zeros((k, k))), inner)

    def _converted_sums(self, like: Array) -> Array:
        """The sums in the array library of w, converted once: all cuts are of the same library."""
        if not isinstance(self.__dict__.get("converted"), type(like)):
            self.__dict__["converted"] = as_array_like(self.sums, like)
        return self.__dict__["converted"]

    def mixture(self, s: NDArray, like: Array = None) -> tuple[Array, float]:
        """The slopes in the weights and the offset of the cuts mixed by s, in the array library of `like`."""
        # column j of the slopes: s_j sum_y F_yj S_y - (sum_i F_ji s_i) S_j, with S_y the row sums of class y
        S, F = self.sums, self.F
        if like is not None and not isinstance(S, type(like)):
            S = self._converted_sums(like)
        if isinstance(F, float):
            gained, lost = namespace(S).sum(S, axis=1)[:, None] * F, F * float(s.sum())
        else:
            gained, lost = S @ as_array_like(F.copy(), S), as_array_like(F @ s, S)
        slopes = as_array_like(s, S) * gained - lost * S
        return self.linear_map.grad_from_outputs(slopes), float(self.offsets @ s)

    def intercept_slopes(self, s: NDArray) -> NDArray:
        """The slopes of the mixture in the intercepts,
        :math:`s_j \\sum_y \\pi_y F_{yj} - \\pi_j \\sum_i F_{ji} s_i`.
        """
        pi, F = self.weights, self.F
        slopes = F * (s * pi.sum() - pi * s.sum()) if isinstance(F, float) else s * (pi @ F) - pi * (F @ s)
        return np.asarray(slopes)

    @cached_property
    def stationary_mixture(self) -> tuple[NDArray, Any]:
        """A mixture with zero slopes in the intercepts, and the map from slopes to mixtures that have them.

        The map is a matrix, or a factor where F is a number.
        """
        pi, F = self.weights, self.F
        if isinstance(F, float):
            return pi, 1 / F
        # the slopes in the intercepts are V s, with V = diag(F' pi) - diag(pi) F
        V = np.diag(pi @ F) - pi[:, None] * F
        # V has rank k - 1, since slopes sum to zero: one more equation makes the solution unique
        inverse = np.linalg.pinv(np.vstack([V, np.ones(len(V))]))
        return np.maximum(inverse[:, -1], 0.0), inverse[:, :-1]

    def cut(self, j: int) -> Cut:
        """The cut of "always predict j", with its slopes in the intercepts."""
        s = np.zeros(len(self.weights))
        s[j] = 1.0
        a, offset = self.mixture(s)
        return Cut(namespace(a).concat([a, as_array_like(self.intercept_slopes(s), a)]), offset)

    def lower_absent_classes(self, w: Array) -> Array:
        """Copy of w with the intercepts of classes without rows lowered by `ABSENT_CLASS_SHIFT`.

        No constant cut can compensate a slope in such an intercept: any slope, however small, would make the
        cut useless. At scores this low, the slope is zero.
        """
        k, absent = len(self.weights), self.weights == 0
        if not absent.any():
            return w
        return namespace(w).concat([w[:-k], w[-k:] - as_array_like(self.ABSENT_CLASS_SHIFT * absent, w)])

    def project_out(self, cut: Cut) -> Cut:
        """The cut, mixed with the least share of constant cuts that cancels its slopes in the intercepts."""
        k, xp = len(self.weights), namespace(cut.a)
        slopes = np.asarray(to_numpy(cut.a[-k:]), dtype=float)
        stationary, correction = self.stationary_mixture
        # mix a share t of stationary + rate * direction with 1 - t of the cut: slopes cancel if
        # (1 - t) / t = rate, and t is least at the largest rate that leaves all entries >= 0
        direction = -correction @ slopes if np.ndim(correction) else -correction * slopes
        decreasing = direction < 0
        with np.errstate(over="ignore"):  # a slope that is nearly zero sets no limit
            rate = (
                float(np.min(stationary[decreasing] / -direction[decreasing])) if decreasing.any() else np.inf
            )
        # a cut with infinite or NaN slopes is replaced by the stationary mixture as a whole
        t = 1 / (1 + rate) if np.isfinite(slopes).all() else 1.0
        zeros = xp.zeros_like(cut.a[-k:])
        if t == 0:
            return Cut(xp.concat([cut.a[:-k], zeros]), cut.b)
        s = stationary if t == 1 else np.maximum(stationary + rate * direction, 0.0)
        a, b = self.mixture(s, cut.a)
        a, b = t * a, t * b
        if t < 1:
            a, b = a + (1 - t) * cut.a[:-k], b + (1 - t) * cut.b
        return Cut(xp.concat([a, zeros]), b)


def optimize_intercepts(cursor: ScoreCursor) -> None:
    """Approximately minimize over the intercepts of w, on cached scores: cuts then slope little in them."""
    risk, k, xp = cursor.risk, cursor.risk.n_intercepts, namespace(cursor.w)

    def evaluate(b: NDArray) -> tuple[float, NDArray]:
        value, slopes = cursor.reduce_shards(shard_ops.value_grad_of_shift, cursor.loss, risk.linear_map, b)
        return value, slopes

    b, cursor.intercept_inverse_hessian = bfgs_intercepts(
        evaluate, risk.constant_prediction_cuts.weights, cursor.intercept_inverse_hessian
    )
    cursor.w = xp.concat([cursor.w[:-k], cursor.w[-k:] + as_array_like(b, cursor.w)])
    cursor.update_shards(shard_ops.shift_scores, b)


def with_best_intercepts(risk: Any, zero: Array) -> Array:
    """The point zero, with nearly the best intercepts: all rows of a class have the same scores there.

    The search starts from the best of: zeros, the margins of the most frequent class, the minimum of many
    nonsmooth losses, and the logarithms of the shares of the classes, that of `Softmax`.
    """
    weights = risk.constant_prediction_cuts.weights
    k, rows = len(weights), np.arange(len(weights))

    def evaluate(b: NDArray) -> tuple[float, NDArray]:
        value, slopes = risk.loss.value_grad(np.tile(b, (k, 1)), rows, weights)
        return float(value), slopes.sum(0)

    logarithms = np.log(np.maximum(weights, 1e-3 * np.min(weights[weights > 0])))
    starts = np.zeros(k), np.eye(k)[int(np.argmax(weights))], logarithms
    start = min(starts, key=lambda b: evaluate(b)[0])
    more, _ = bfgs_intercepts(lambda b: evaluate(start + b), weights)
    return namespace(zero).concat([zero[:-k], zero[-k:] + as_array_like(start + more, zero)])


def bfgs_intercepts(
    evaluate: Callable[[NDArray], tuple[float, NDArray]], weights: NDArray, H: NDArray | None = None
) -> tuple[NDArray, NDArray]:
    """Shifts b at which the slopes of the risk are a small share of those at zero, and the estimate of H.

    The method of Broyden, Fletcher, Goldfarb and Shanno; the inverse Hessian H starts from the last estimate,
    or from diag(1 / weights): the curvature in an intercept is about the weight of its class.
    """
    # slopes are compared relative to the weights: a class of few rows has small slopes and curvature
    present = weights > 0
    scale = np.where(present, weights, 1.0)
    b, H = np.zeros(len(weights)), np.diag(present / scale) if H is None else H
    value, g = evaluate(b)
    # stop when the largest slope has fallen to this share, or is rounding, or after 8 steps
    tol = max(1e-2 * float(np.max(abs(g) / scale)), 1e-12)
    for _ in range(8):
        # the quasi-Newton direction, and the directional derivative g'd
        d = -H @ g
        slope, t = float(g @ d), 1.0
        if np.max(abs(g) / scale) <= tol or not slope < 0:
            break
        new_value, new_g = evaluate(b + d)
        if new_g @ d > 0.5 * abs(slope):  # too long: back to the zero of the slope by the secant method
            t = slope / (slope - float(new_g @ d))
            new_value, new_g = evaluate(b + t * d)
        if not new_value <= value:
            break
        s, y = t * d, new_g - g
        b, value, g = b + s, new_value, new_g
        # the curvature condition; else H would not stay positive definite
        if (sy := float(s @ y)) > 0 and sy * sy > 0:
            Hy = H @ y
            # H+ = (I - s y'/sy) H (I - y s'/sy) + s s'/sy, written as an update of rank two
            H = H + (sy + y @ Hy) / sy**2 * np.outer(s, s) - (np.outer(Hy, s) + np.outer(s, Hy)) / sy
    return b, H


def center_rows(linear_map: Any, executor: Executor, p: int) -> Centered:
    """The linear map of rows less their weighted mean."""
    (mean,) = executor.sum(_weighted_sum, p)
    return Centered(linear_map, mean)


def _weighted_sum(shard: Shard, p: int) -> tuple[NDArray]:
    """A shard's part of the weighted mean of all rows, sum_i c_i x_i."""
    total = zeros_for((p,), shard.c)
    for i, j in blocks(shard, SingleOutput()):
        shard.X.pullback(shard.c[i:j], i, j, total)
    return (total,)

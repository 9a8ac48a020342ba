r"""The base class of losses, Nesterov smoothing, and the adaptation of foreign losses.

.. math:: l(z) = \max_\beta\; \beta^\top A z - g(\beta), \qquad
          l_\mu(z) = \max_\beta\; \beta^\top A z - g(\beta) - \tfrac\mu2 |\beta|^2 \;\le\; l(z).

The gradient of :math:`l_\mu` is :math:`A^\top \beta` for the maximizer :math:`\beta`, which is feasible for l
too: the tangent of :math:`l_\mu` plus the offset :math:`\tfrac\mu2 |\beta|^2` is a cut of the loss l.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from riskmin.arrays.namespace import namespace
from riskmin.core import Array, Hessian, LinearMap, NDArray, UnsupportedProblem, has_method
from riskmin.core.registry import adapted
from riskmin.losses.block_hessian import BlockHessian
from riskmin.losses.conjugate import Conjugate, IntervalConjugate


class Loss(ABC):
    """A convex, nonnegative function of the scores z. Only `value_grad` is required.

    The other methods are capabilities, and return None if the loss lacks them. A loss of a user may be any
    object with a method `value_grad`: `as_loss` supplies these defaults.
    """

    separable: bool = True
    """Whether the loss is a sum over rows, so that blocks of rows can be evaluated independently."""
    smooth: bool = False
    """Whether the loss is differentiable."""
    task: str | None = None
    """The kind of labels, such as "classification"; None if any estimator takes the loss."""
    formula: str = ""
    """The formula in one line of plain text."""
    shift_invariant: bool = False
    """Whether a constant added to all scores changes nothing, so that no intercept is fitted."""
    fixed_positive_count: bool = False
    """Whether the loss fixes the number of predicted positives: it has no best intercept."""
    multi_output_targets: bool = False
    """Whether labels have one column per output."""
    probabilistic: bool = False
    """Whether the loss is minus the log-likelihood of a model of class probabilities."""
    likelihood: str = ""
    """The distribution of y whose minus log-likelihood the loss is, such as "poisson"; empty if none.

    The variance of "normal" is a factor that the loss leaves out.
    """
    log_link: bool = False
    """Whether the prediction of a score z is exp(z)."""
    max_slope: float = 1.0
    """The largest slope of a non-decomposable loss in a score, per unit of weight."""
    min_rows: int = 0
    """How many rows the metric that the loss bounds needs."""
    margin: float = 1.0
    """The margin to which scores are compared; 0 if their scale does not matter."""
    of_residual: bool = False
    """Whether the loss depends on z - y only, so that an offset of the scores is one of the labels."""
    self_concordance: float = math.inf
    """M such that third derivatives along a line of scores are at most M times the second derivatives times
    the largest change of a score (with several outputs, of a difference of scores); infinite if unknown."""
    constant_curvature: bool = False
    """Whether the second derivatives do not depend on the scores."""
    finite_curvature: bool = True
    """Whether the second derivatives of a smooth loss are finite."""
    accepts_center: bool = False
    """Whether `smoothed_value_grad` and `hessian` take a center: there is one multiplier per row."""

    @abstractmethod
    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return sum_i c_i l(z_i, y_i) and a subgradient in z, the weights c_i included."""

    def check_labels(self, y: Array) -> None:  # noqa: B027
        """Raise a ValueError that names the cause and the remedy, if y is not valid for the loss."""

    # ------------------------------------------------------------ conjugates and values of rows
    def conjugate(self, y: Array) -> Conjugate | None:
        """Return the conjugates of the rows of a separable loss of one score per row."""
        return None

    def interval_conjugate(self, y: Array) -> IntervalConjugate | None:
        """Return the conjugates if they are quadratic on an interval, else None."""
        conjugate = self.conjugate(y)
        return conjugate if isinstance(conjugate, IntervalConjugate) else None

    @cached_property
    def quadratic_conjugate(self) -> bool:
        """Whether there is an `interval_conjugate`; any number serves as a label."""
        return self.interval_conjugate(np.ones(1)) is not None

    def intercept_form(self, y: Array, c: Array) -> tuple[Loss, float] | None:
        """Return (l, f) if a non-decomposable loss is f min_b sum_i c_i l(z_i + b, y_i), else None."""
        return None

    def pairs(self, y: Array, c: Array, limit: int) -> tuple[NDArray, NDArray, NDArray] | None:
        """Return the rows i, j and weights c_ij if a loss is sum c_ij max(0, 1 - (z_i - z_j)) over few pairs.

        None for more than `limit` pairs.
        """
        return None

    def worst_tables(self, z: Array, y: Array, c: Array) -> Any:
        """Return contingency tables with the largest objectives, a `WorstTables`; None for other losses."""
        return None

    @property
    def has_tables(self) -> bool:
        """Whether `worst_tables` is there."""
        return type(self).worst_tables is not Loss.worst_tables

    def values(self, z: Array, y: Array) -> Array:
        """Return l(z_i, y_i) per row; by default from the conjugate."""
        conjugate = self.conjugate(y)
        if conjugate is None:
            raise TypeError(
                f"{type(self).__name__} cannot return its loss per row: give it a method values(z, y), "
                "or a conjugate"
            )
        # Fenchel-Young: l(z) = g z - l*(g) for the derivative g; with unit weights, that of row i is l'(z_i)
        g = self.value_grad(z, y, namespace(z).ones_like(z))[1]
        return g * z - conjugate.value(g)

    # ------------------------------------------------------------ smoothing and second derivatives
    def smoothed_value_grad(
        self, z: Array, y: Array, c: Array, mu: float, center: Array | None = None
    ) -> tuple[Any, Array, Any]:
        """Return the smoothed loss, its gradient in z, and the minorant offset.

        A maximum over multipliers minus a proximity term: (mu / 2) times their squared norm, or an entropy.
        The offset is that term at the maximizer; the tangent plus the offset is a cut of the loss itself.
        With a center (an earlier gradient), the term is the squared distance to the center's multipliers.
        """
        conjugate = self.interval_conjugate(y)
        if conjugate is None:
            raise UnsupportedProblem(
                f"{type(self).__name__} cannot be smoothed, as it has neither a method smoothed_value_grad "
                "nor a conjugate that is quadratic on an interval: use Bundle"
            )
        return conjugate.smoothed(z, c, mu, center)

    @property
    def can_be_smoothed(self) -> bool:
        """Whether `smoothed_value_grad` supports the loss."""
        return type(self).smoothed_value_grad is not Loss.smoothed_value_grad or self.quadratic_conjugate

    @property
    def supports_center(self) -> bool:
        """Whether an earlier gradient can be the center: by declaration, or by the conjugate's smoothing."""
        own = type(self).smoothed_value_grad is not Loss.smoothed_value_grad
        return self.accepts_center if own else True

    def smoothed(self, mu: float) -> Loss | None:
        """Return the smoothed loss, whose offset tangents are cuts of this one; None if there is none."""
        return OffsetSmoothed(self, mu) if self.can_be_smoothed else None

    def offset_tangent(self, z: Array, y: Array, c: Array) -> tuple[Any, Array, Any]:
        """Return value, gradient, and the offset that makes the tangent a cut of the loss that it stands for.

        The offset is zero unless the loss is a surrogate (a smoothed one) of another.
        """
        value, dz = self.value_grad(z, y, c)
        return value, dz, 0.0

    @property
    def has_offset(self) -> bool:
        """Whether the loss is a surrogate of another, with a minorant offset."""
        return type(self).offset_tangent is not Loss.offset_tangent

    def hessian(
        self, z: Array, y: Array, c: Array, mu: float = 0.0, center: Array | None = None
    ) -> Hessian | None:
        """Return the Hessian in z of the loss (mu = 0) or of the smoothed loss, one-sided where it jumps.

        By default from the conjugate. Multi-output losses have `block_hessian` instead.
        """
        conjugate = self.interval_conjugate(y)
        return None if conjugate is None else conjugate.hessian(z, c, mu, center)

    def block_hessian(self, dz: NDArray, y: NDArray, c: NDArray, mu: float = 0.0) -> BlockHessian | None:
        """Return the Hessian of a multi-output loss, or of its smoothed form, where the gradient is dz."""
        return None

    def multiplier_cut(self, dz: NDArray, y: NDArray, c: NDArray) -> tuple[NDArray, Any, Any] | None:
        """Return feasible slopes in the scores near dz, the offset of their cut, and the size of its terms.

        None if there is no formula for the conjugate of this multi-output loss.
        """
        return None

    @property
    def has_hessian(self) -> bool:
        """Whether there are second derivatives, of the smoothed loss if the loss is not smooth."""
        if self.multi_output:
            return type(self).block_hessian is not Loss.block_hessian
        return type(self).hessian is not Loss.hessian or self.quadratic_conjugate

    # ------------------------------------------------------------ outputs and predictions
    def linear_map(self, y: NDArray, n_outputs: int | None = None) -> LinearMap | None:
        """Return the map from w to the scores of a multi-output loss; None for one score per row."""
        return None

    @property
    def multi_output(self) -> bool:
        """Whether the loss has several scores per row."""
        return type(self).linear_map is not Loss.linear_map

    def for_classes(self, k: int) -> Loss | None:
        """Return the loss for k classes: itself, or the multiclass form of a binary loss, or None."""
        return self if self.multi_output or k <= 2 else None

    def constant_prediction_cuts(self, k: int) -> tuple[Any, Any] | None:
        """Return slopes F and offsets O of lower bounds F_yj (z_j - z_y) + O_yj of a loss of k classes."""
        return None

    @property
    def has_constant_cuts(self) -> bool:
        """Whether `constant_prediction_cuts` is there, so that intercepts can be fitted."""
        return type(self).constant_prediction_cuts is not Loss.constant_prediction_cuts

    def cutoff(self, z: Array, y: Array, c: Array) -> float | None:
        """Return the threshold on scores above which rows are predicted positive; None for zero."""
        return None

    @property
    def has_cutoff(self) -> bool:
        """Whether the loss has a threshold of its own."""
        return type(self).cutoff is not Loss.cutoff

    def terms(self, z: Array, y: Array, c: Array) -> Any:
        """Return the sum of absolute terms of the value beyond slopes times scores: a scale of rounding."""
        return 0.0

    # ------------------------------------------------------------ queries
    def by_query(self, y: Array, c: Array) -> Loss | None:
        """Return a ranking loss as a sum over queries, for rows that are grouped by query."""
        return None

    @property
    def chosen(self) -> Loss:
        """The loss that the user chose, of which this one may be a form (`by_query`)."""
        return self

    @property
    def components(self) -> tuple[Any, ...]:
        """The loss, and the losses or the model that it wraps, the innermost last."""
        return (self,)


def as_loss(loss: Any) -> Loss:
    """Return an object with a method `value_grad` as a `Loss`, with the defaults of what it lacks."""
    if isinstance(loss, Loss):
        return loss
    if not has_method(loss, "value_grad"):
        raise TypeError(f"{loss!r} is not a loss: it has no method value_grad(z, y, c)")
    result: Loss = adapted(loss, Loss, as_loss)
    return result


@dataclass(frozen=True)
class Smoothed(Loss):
    r"""A loss minus :math:`\tfrac\mu2 |\beta|^2` of its multipliers: smooth, and a lower bound of the loss.

    Parameters
    ----------
    loss : Loss
        One with a method ``smoothed_value_grad(z, y, c, mu)``, such as `RocArea`, or with a conjugate that is
        quadratic on an interval, such as `Hinge` and `Absolute`.
    mu : float
        The smoothing parameter, above 0.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge
    >>> z, y, c = np.array([0.5, 2.0]), np.ones(2), np.full(2, 0.5)
    >>> value, dz = Smoothed(Hinge(), mu=1.0).value_grad(z, y, c)
    >>> float(value), dz.tolist()
    (0.0625, [-0.25, 0.0])
    """

    loss: Any
    mu: float

    smooth = True

    def __post_init__(self) -> None:
        if not self.mu > 0:
            raise ValueError(f"Smoothed needs mu > 0, not {self.mu!r}")
        object.__setattr__(self, "loss", as_loss(self.loss))
        copy_traits(
            self.loss,
            self,
            *("separable", "shift_invariant", "fixed_positive_count", "task", "min_rows", "max_slope"),
        )

    def check_labels(self, y: Array) -> None:
        """Check the labels by the wrapped loss."""
        self.loss.check_labels(y)

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return the smoothed loss and its gradient in z."""
        # without the offset: the tangent itself is a cut of the smoothed loss
        value, dz, _ = self.loss.smoothed_value_grad(z, y, c, self.mu)
        return value, dz

    def linear_map(self, y: NDArray, n_outputs: int | None = None) -> LinearMap | None:
        """Return the linear map of the wrapped loss."""
        result: LinearMap | None = self.loss.linear_map(y, n_outputs)
        return result

    @property
    def components(self) -> tuple[Any, ...]:
        """The smoothed form, and those of the wrapped loss."""
        return self, *self.loss.components

    def block_hessian(self, dz: NDArray, y: NDArray, c: NDArray, mu: float = 0.0) -> BlockHessian | None:
        """Return the Hessian of the smoothed form of a multi-output loss."""
        result: BlockHessian | None = self.loss.block_hessian(dz, y, c, self.mu)
        return result

    @property
    def has_hessian(self) -> bool:
        """Whether there are second derivatives: with several outputs, those of the wrapped loss."""
        return bool(self.loss.has_hessian) if self.multi_output else super().has_hessian

    @property
    def multi_output(self) -> bool:
        """Whether the wrapped loss has several scores per row."""
        return bool(self.loss.multi_output)

    def cutoff(self, z: Array, y: Array, c: Array) -> float | None:
        """Return the threshold of the wrapped loss."""
        result: float | None = self.loss.cutoff(z, y, c)
        return result

    @property
    def has_cutoff(self) -> bool:
        """Whether the wrapped loss has a threshold of its own."""
        return bool(self.loss.has_cutoff)


@dataclass(frozen=True)
class OffsetSmoothed(Smoothed):
    """A smoothed loss whose offset tangents are cuts of the unsmoothed loss."""

    def offset_tangent(self, z: Array, y: Array, c: Array) -> tuple[Any, Array, Any]:
        """Return the smoothed loss, its gradient, and the offset that makes the tangent a cut of the loss."""
        result: tuple[Any, Array, Any] = self.loss.smoothed_value_grad(z, y, c, self.mu)
        return result

    def constant_prediction_cuts(self, k: int) -> tuple[Any, Any] | None:
        """Return the cuts of the unsmoothed loss."""
        result: tuple[Any, Any] | None = self.loss.constant_prediction_cuts(k)
        return result


def copy_traits(inner: Loss, outer: Loss, *names: str) -> None:
    """Give a loss that wraps another one these traits of it."""
    for name in names:
        object.__setattr__(outer, name, getattr(inner, name))

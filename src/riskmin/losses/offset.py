r"""The loss of scores with a given offset per row, :math:`l(z_i + o_i, y_i)`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from riskmin.arrays.namespace import as_array_like, as_numpy, namespace, to_floats
from riskmin.core import Array, Hessian, NDArray
from riskmin.losses.base import Loss, as_loss, copy_traits
from riskmin.losses.conjugate import ClosedFormConjugate, Conjugate, IntervalConjugate


@dataclass(frozen=True)
class AtOffset(Loss):
    r"""A loss at scores plus an offset, :math:`l(z_i + o_i, y_i)`, for labels with the columns y and o.

    Solvers, executors and certificates need not know of the offset: it travels with the labels.

    Parameters
    ----------
    loss : Loss
        A sum over rows of one score each.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Poisson
    >>> y, offset = np.array([3.0]), np.log([2.0])  # 3 events in 2 years
    >>> value, dz = AtOffset(Poisson()).value_grad(np.log([1.5]), np.column_stack([y, offset]), np.ones(1))
    >>> abs(float(value)) < 1e-12, bool(abs(dz[0]) < 1e-12)
    (True, True)
    """

    loss: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "loss", as_loss(self.loss))
        traits = ("smooth", "task", "min_rows", "self_concordance", "constant_curvature", "finite_curvature")
        copy_traits(self.loss, self, *traits, "margin", "accepts_center", "formula")

    @property
    def components(self) -> tuple[Any, ...]:
        """The loss at the offset, and those of the loss itself."""
        return self, *self.loss.components

    @staticmethod
    def _parts(z: Array, y: Array) -> tuple[Array, Array]:
        """Return the scores z + o, and the labels."""
        return z + y[:, 1], y[:, 0]

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return sum_i c_i l(z_i + o_i, y_i) and its gradient in z."""
        result: tuple[Any, Array] = self.loss.value_grad(*self._parts(z, y), c)
        return result

    def values(self, z: Array, y: Array) -> Array:
        """Return l(z_i + o_i, y_i) per row."""
        return self.loss.values(*self._parts(z, y))

    def terms(self, z: Array, y: Array, c: Array) -> Any:
        """Return the absolute terms of the loss, and those of the offset times the slopes."""
        slopes = self.value_grad(z, y, c)[1]
        return self.loss.terms(*self._parts(z, y), c) + abs(slopes) @ abs(y[:, 1])

    def hessian(
        self, z: Array, y: Array, c: Array, mu: float = 0.0, center: Array | None = None
    ) -> Hessian | None:
        """Return the second derivatives at z + o."""
        result: Hessian | None = self.loss.hessian(*self._parts(z, y), c, mu, center)
        return result

    @property
    def has_hessian(self) -> bool:
        """Whether the loss has second derivatives."""
        return bool(self.loss.has_hessian)

    def smoothed_value_grad(
        self, z: Array, y: Array, c: Array, mu: float, center: Array | None = None
    ) -> tuple[Any, Array, Any]:
        """Return the smoothed loss at z + o, its gradient, and the minorant offset."""
        more = () if center is None else (center,)
        result: tuple[Any, Array, Any] = self.loss.smoothed_value_grad(*self._parts(z, y), c, mu, *more)
        return result

    @property
    def can_be_smoothed(self) -> bool:
        """Whether the loss can be smoothed."""
        return bool(self.loss.can_be_smoothed)

    @property
    def supports_center(self) -> bool:
        """Whether an earlier gradient can be the center of the smoothed loss."""
        return bool(self.loss.supports_center)

    def conjugate(self, y: Array) -> Conjugate | None:
        r"""Return the conjugate, :math:`l^*(u, y_i) - o_i u`."""
        # without the second column there is no offset: so the kind of the conjugate is asked for
        y, offset = (y, 0.0 * y) if y.ndim == 1 else (y[:, 0], y[:, 1])
        dual = self.loss.conjugate(y)
        if dual is None:
            return None
        if isinstance(dual, IntervalConjugate):
            return replace(dual, shift=dual.shift - offset)
        return ClosedFormConjugate(
            dual.lower,
            dual.upper,
            lambda u: dual.value(u) - offset * u,
            lambda u: dual.grad(u) - offset,
            lambda u: dual.cancelling(u) + abs(offset * u),
            kink_at_zero=dual.kink_at_zero,
        )


def with_offset(loss: Loss, labels: Any, offset: NDArray) -> tuple[Loss, NDArray]:
    """Return the loss and the labels of rows whose scores have an offset.

    A loss of the residual z - y takes the labels y - o, with which it keeps its own solvers.

    Examples
    --------
    >>> from riskmin import Logistic, Squared
    >>> with_offset(Squared(), np.array([3.0]), np.array([1.0]))
    (Squared(), array([2.]))
    >>> with_offset(Logistic(), np.array([-1.0]), np.array([0.5]))
    (AtOffset(loss=Logistic()), array([[-1. ,  0.5]]))
    """
    if not loss.separable or loss.multi_output or loss.task == "novelty":
        raise ValueError(
            f"offset is added to one score per row, but {type(loss).__name__} is no sum over rows of one "
            "score and its label: leave it out"
        )
    beside: Any = as_array_like(offset, labels)
    if loss.of_residual:
        return loss, labels - beside
    return AtOffset(loss), namespace(labels).stack([labels, beside], axis=1)


def check_offset(offset: Any, n_rows: int) -> NDArray:
    """Return an offset as floats, one per row; raise a ValueError that names the cause and the remedy."""
    values = to_floats(as_numpy(offset, "offset"))
    if values is None or not np.isfinite(values).all():
        raise ValueError("offset holds NaN, infinity or something that is no number: give one number per row")
    if values.shape in ((), (n_rows, 1)):  # one number for all rows, or a column
        values = values.reshape(-1) + np.zeros(n_rows)
    if values.shape != (n_rows,):
        raise ValueError(f"offset has shape {values.shape}, but X has {n_rows} rows: give one number per row")
    return values

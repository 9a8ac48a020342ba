r"""Kernel machines of several classes: one certified problem per class, that class against all others.

.. math:: J = \sum_j J_j, \qquad
          J_j(f_j, b_j) = \tfrac\alpha2 \|f_j\|_H^2 + \sum_i c_i\, l(f_j(x_i) + b_j, \pm 1),

with +1 for the rows of class j. The problems share the rows of the kernel matrix that were computed.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.core.blas_threads import scipy_module
from riskmin.estimators._common.base import RiskArguments
from riskmin.estimators._common.classes import BinaryMixin, apply_class_weight, unique_classes
from riskmin.estimators._common.fit import resolve_loss
from riskmin.estimators._common.input import EncodedLabels
from riskmin.estimators._common.outputs import in_turn, store_combined
from riskmin.estimators.kernel.names import fit_kernel_machine, kernel_matrix
from riskmin.losses import Loss, get_loss
from riskmin.problem.kernel.rkhs import RkhsNorm, coefficients
from riskmin.report.page import certificate_html


@dataclass(frozen=True)
class OneVsRestLoss(Loss):
    r"""The sum over classes of a binary loss, :math:`\sum_j l(z_j, \pm 1)`, with +1 for the class of the row.

    Examples
    --------
    >>> from riskmin import Hinge
    >>> value, _ = OneVsRestLoss(Hinge()).value_grad(np.zeros((1, 3)), np.array([2.0]), np.ones(1))
    >>> float(value)
    3.0
    """

    loss: Any

    @property
    def multi_output(self) -> bool:
        """True: one score per class."""
        return True

    def value_grad(self, z: NDArray, y: NDArray, c: NDArray) -> tuple[Any, NDArray]:
        """Return the sum of the losses of all classes for the codes y, and its gradient in the scores."""
        each = [self.loss.value_grad(z[:, j], np.where(y == j, 1.0, -1.0), c) for j in range(z.shape[1])]
        return sum(value for value, _ in each), np.stack([dz for _, dz in each], axis=1)


class OneVsRestMixin(BinaryMixin):
    """A classifier whose classes are separate problems, each against the rest, unless there are two."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        with contextlib.suppress(ValueError):  # before `fit`, the loss may be invalid
            tags.classifier_tags.multi_class = bool(get_loss(self.loss).separable)
        return tags

    @property
    def _n_classes(self) -> int:
        """The number of classes of the last fit; 0 before it."""
        return len(vars(self).get("classes_", ()))

    def _fitted_loss(self) -> Any:
        loss = resolve_loss(self)
        return OneVsRestLoss(loss) if self._n_classes > 2 else loss

    def _risk_arguments(self, X: Any, y: Any, weight: NDArray | None, **more: Any) -> RiskArguments:
        if self._n_classes > 2:
            raise ValueError(
                "its classes are separate problems: certify model.estimators_[j] of the fit, with the labels "
                "y == model.classes_[j]"
            )
        result: RiskArguments = super()._risk_arguments(X, y, weight, **more)
        return result

    def _certificate_html(self) -> str:
        text: str = super()._certificate_html()  # the sum
        for label, single in zip(self.classes_, vars(self).get("estimators_", ()), strict=False):
            caption = f"certificate of {label} against the rest"
            text += certificate_html(single.result_, single.objective_, single.tol, caption)
        return text

    def _class_probabilities(self, z: NDArray, *, log: bool) -> NDArray:
        """Return the probabilities of each class against the rest, divided by their sum."""
        special = scipy_module("special")
        logs = special.log_expit(z)
        logs = logs - special.logsumexp(logs, axis=1, keepdims=True)
        p: NDArray = logs if log else np.exp(logs)
        return p


def fit_one_vs_rest(model: Any, kernel: Any, X: Any, y: NDArray, weight: NDArray | None, loss: Any) -> None:
    """Solve one problem per class, and store their sum, the support and the coefficients in the model."""
    classes = unique_classes(y, weight)
    # rows of weight zero may have labels outside `classes`: clip their code, which has no effect
    codes = np.minimum(np.searchsorted(classes, y), len(classes) - 1)
    weighted = weight is not None
    if model.class_weight is not None:
        weight = apply_class_weight(model.class_weight, classes, codes, weight)
    singles = _fit_singles(model, kernel, X, EncodedLabels(codes, weight, classes, loss))
    model.classes_, model.estimators_, model.threshold_ = classes, singles, 0.0
    result = store_combined(model, singles, RkhsNorm(), n_rows=X.shape[0], weighted=weighted)
    B = coefficients(result.w).reshape(-1, len(classes))
    model.kernel_, model.support_ = kernel, np.flatnonzero(B.any(axis=1))
    model.support_vectors_ = np.empty((0, 0)) if kernel == "precomputed" else X[model.support_]
    model.dual_coef_ = np.ascontiguousarray(B[model.support_].T)
    model.intercept_ = np.array([m.intercept_[0] for m in singles])


def _fit_singles(model: Any, kernel: Any, X: Any, rows: EncodedLabels) -> list[Any]:
    """Fit one machine per class to the codes of the labels."""
    classes: Any = rows.classes
    model._check_parameters()
    K, before = kernel_matrix(model, kernel, X), vars(model).get("estimators_", [])
    parameters = model.get_params(deep=False) | {"class_weight": None}
    singles = [type(model)(**parameters) for _ in classes]
    for j, single in in_turn(model, singles):
        if model.warm_start and len(before) == len(classes):
            single.result_ = before[j].result_
        labels = np.where(rows.labels == j, 1.0, -1.0)
        beta, b = fit_kernel_machine(single, kernel, X, rows._replace(labels=labels), K)
        single.n_features_in_ = model.n_features_in_
        single.classes_, single.dual_coef_ = np.array([False, True]), beta[None, :]
        single.intercept_, single.threshold_ = np.array([b]), 0.0
        del single._fit_tasks
    return singles

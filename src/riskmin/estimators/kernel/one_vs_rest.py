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
from riskmin.estimators._common.classes import BinaryMixin
from riskmin.estimators._common.fit import resolve_loss
from riskmin.estimators._common.input import EncodedLabels
from riskmin.estimators._common.labels import Classes, refuse_many_classes
from riskmin.estimators._common.outputs import in_turn, store_combined
from riskmin.estimators.kernel.names import fit_kernel_machine, kernel_matrix, set_machine
from riskmin.losses import Loss, get_loss
from riskmin.problem.kernel.rkhs import RkhsNorm
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


class OneVsRestClasses(Classes):
    """Classes that are separate problems, each against the rest, unless there are two."""

    def loss(self, model: Any) -> Any:
        loss = resolve_loss(model)
        if len(self.values) == 2:
            return loss
        return OneVsRestLoss(loss) if loss.separable else refuse_many_classes(self.values)

    def separate_problems(self, loss: Any) -> str:
        return (
            "its classes are separate problems: certify model.estimators_[j] of the fit, with the labels "
            "y == model.classes_[j]"
            if loss.multi_output
            else ""
        )


class OneVsRestMixin(BinaryMixin):
    """A classifier whose classes are separate problems, each against the rest, unless there are two."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        with contextlib.suppress(ValueError):  # before `fit`, the loss may be invalid
            tags.classifier_tags.multi_class = bool(get_loss(self.loss).separable)
        return tags

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


def fit_one_vs_rest(model: Any, kernel: Any, X: Any, rows: EncodedLabels) -> None:
    """Solve one problem per class for the codes of the labels, and store their sum."""
    classes: Any = rows.known.values
    model._check_parameters()
    K, before = kernel_matrix(model, kernel, X), vars(model).get("estimators_", [])
    parameters = model.get_params(deep=False) | {"class_weight": None}
    singles = [type(model)(**parameters) for _ in classes]
    for j, single in in_turn(model, singles):
        if model.warm_start and len(before) == len(classes):
            single.result_ = before[j].result_
        labels = np.where(rows.labels == j, 1.0, -1.0)
        known = OneVsRestClasses(np.array([False, True]))
        single.n_features_in_ = model.n_features_in_
        fit_kernel_machine(
            single, kernel, X, rows._replace(labels=labels, known=known, loss=rows.loss.loss), K
        )
        del single._fit_tasks
    model.estimators_ = singles
    result = store_combined(model, singles, RkhsNorm(), n_rows=X.shape[0], weighted=rows.weight is not None)
    set_machine(model, kernel, X, np.asarray(result.w), np.array([m.intercept_[0] for m in singles]), rows)

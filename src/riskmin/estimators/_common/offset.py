r"""The offset of the rows of a fitted model: what is added to their scores, :math:`x_i^\top w + b + o_i`."""

from __future__ import annotations

import copy
from functools import partial, update_wrapper
from typing import Any

from riskmin.arrays.namespace import as_array_like
from riskmin.core import NDArray
from riskmin.estimators._common.input import DaskLabelsMixin, compute_if_dask
from riskmin.losses.offset import check_offset


def row_offset(offset: Any, n_rows: int) -> NDArray | None:
    """Return an offset given by the user as floats, one per row; None stands for zeros."""
    return None if offset is None else check_offset(compute_if_dask(offset), n_rows)


def at_offset(z: NDArray, offset: Any) -> NDArray:
    """Return scores plus an offset given by the user."""
    if offset is None:
        return z
    if z.ndim > 1:
        raise ValueError(
            f"offset is added to one score per row, but the model has {z.shape[1]}: leave it out"
        )
    result: NDArray = z + as_array_like(row_offset(offset, len(z)), z)
    return result


def at_row_offset(model: Any, offset: NDArray | None) -> Any:
    """Return a view of a model whose scores and predictions for some rows are at their offset."""
    if offset is None:
        return model
    view = copy.copy(model)
    for name in ("predict", "decision_function", "predict_proba", "predict_log_proba", "score"):
        if hasattr(model, name):
            method = getattr(model, name)
            setattr(view, name, update_wrapper(partial(method, offset=offset), method))
    view._scores = lambda X: at_offset(model._scores(X), offset)
    return view


class OffsetScoreMixin(DaskLabelsMixin):
    """Mixin whose `score` also takes an offset of the rows."""

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, offset: Any = None) -> float:
        """Return scikit-learn's default score of the estimator: the accuracy, or R^2.

        Parameters
        ----------
        X, y, sample_weight, offset
            As in `fit`.

        Returns
        -------
        float
            1 for perfect predictions.
        """
        return self._score_of(self.predict(X, offset=offset), y, sample_weight)  # type: ignore[attr-defined]

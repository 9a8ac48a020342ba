"""Metadata of multi-output models in model files: the classes, or the intercepts."""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.estimators.base import fitted_loss, loss_of
from riskmin.estimators.many import is_many, unpacked
from riskmin.estimators.plain_checks import classes_of, count_of, flag_of
from riskmin.types import NDArray


def has_many(model: Any) -> bool:
    """Whether a fitted model is multi-output, so that its weights are a matrix."""
    if model.task == "classification":
        return is_many(fitted_loss(model))
    return model.task == "regression" and np.ndim(getattr(model, "coef_", ())) == 2


def many_facts(model: Any) -> dict[str, Any]:
    """Return the number of outputs, and what predictions need in addition to w."""
    if model.task == "regression":
        return {"outputs": len(model.coef_), "intercept": model.intercept_.tolist()}
    classes = model.classes_
    return {
        "outputs": len(classes),
        "classes": {"values": classes.tolist(), "dtype": classes.dtype.str},
        "intercepts": len(model.result_.w) > len(classes) * model.n_features_in_,
    }


def many_dim(fitted: dict[str, Any]) -> int:
    """Return the length of w: one weight per output and feature, and one intercept per output if any."""
    return count_of(fitted, "outputs") * (
        count_of(fitted, "n_features") + flag_of(fitted, "intercepts", False)
    )


def put_back_many(model: Any, w: NDArray, fitted: dict[str, Any]) -> None:
    """Set the fitted attributes of a model from its file."""
    k = count_of(fitted, "outputs")
    if model.task == "regression":
        model.coef_, _ = unpacked(w, k, intercepts=False)
        model.intercept_ = np.array(fitted["intercept"], dtype=np.float64)
        if model.intercept_.shape != (k,) or not np.isfinite(model.intercept_).all():
            raise ValueError(f"its intercepts are not {k} finite numbers")
        return
    classes = classes_of(fitted["classes"])
    if classes.shape != (k,) or k < 2:
        raise ValueError(f"it has {classes.size} classes for {k} scores per row")
    if not is_many(loss_of(model, k)):
        raise ValueError(f"its loss, {model.loss!r}, takes one score per row")
    model._unpack(w, classes, intercepts=flag_of(fitted, "intercepts"))

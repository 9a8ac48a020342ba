"""Metadata of multi-output models in model files: the classes, or the intercepts."""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.estimators._common.fit import fitted_loss, resolve_loss
from riskmin.estimators._common.multi_output import is_multi_output, unpack_weights
from riskmin.estimators.persistence.plain_checks import read_classes, read_count, read_flag


def is_multi_output_model(model: Any) -> bool:
    """Whether a fitted model is multi-output, so that its weights are a matrix."""
    if model.task == "classification":
        return is_multi_output(fitted_loss(model))
    return model.task == "regression" and np.ndim(getattr(model, "coef_", ())) == 2


def multi_output_metadata(model: Any) -> dict[str, Any]:
    """Return the number of outputs, and what predictions need in addition to w."""
    if model.task == "regression":
        return {"outputs": len(model.coef_), "intercept": model.intercept_.tolist()}
    classes = model.classes_
    return {
        "outputs": len(classes),
        "classes": {"values": classes.tolist(), "dtype": classes.dtype.str},
        "intercepts": len(model.result_.w) > len(classes) * model.n_features_in_,
    }


def multi_output_weights_size(fitted: dict[str, Any]) -> int:
    """Return the length of w: one weight per output and feature, and one intercept per output if any."""
    return read_count(fitted, "outputs") * (
        read_count(fitted, "n_features") + read_flag(fitted, "intercepts", False)
    )


def restore_multi_output(model: Any, w: NDArray, fitted: dict[str, Any]) -> None:
    """Set the fitted attributes of a model from its file."""
    k = read_count(fitted, "outputs")
    if model.task == "regression":
        model.coef_, _ = unpack_weights(w, k, intercepts=False)
        model.intercept_ = np.array(fitted["intercept"], dtype=np.float64)
        if model.intercept_.shape != (k,) or not np.isfinite(model.intercept_).all():
            raise ValueError(f"its intercepts are not {k} finite numbers")
        return
    # the sizes in the file must agree with each other and with the loss
    classes = read_classes(fitted["classes"])
    if classes.shape != (k,) or k < 2:
        raise ValueError(f"it has {classes.size} classes for {k} scores per row")
    if not is_multi_output(resolve_loss(model, k)):
        raise ValueError(f"its loss, {model.loss!r}, takes one score per row")
    model._set_multi_output(w, classes, intercepts=read_flag(fitted, "intercepts"))

"""The parameters of estimators as plain data, fit for JSON, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from riskmin.estimators.base import loss_of, named_loss
from riskmin.estimators.hierarchy_files import hierarchy_from, hierarchy_plain
from riskmin.estimators.plain_checks import check_plain
from riskmin.losses import LOSSES, Nu, Smoothed, from_spec, spec
from riskmin.mercer import DotProduct, Polynomial, Rbf
from riskmin.registry import described, revived
from riskmin.regularizers import (
    REGULARIZERS,
    Box,
    Quadratic,
    get_regularizer,
    regularizer_from_spec,
    regularizer_spec,
)
from riskmin.solvers import SOLVERS, KernelDual

KERNELS: dict[str, Any] = {kind.__name__: kind for kind in (Rbf, DotProduct, Polynomial)}
"""The kernels that are objects."""

_OWN_FORM = {"loss", "regularizer", "solver", "class_weight", "kernel", "hierarchy", "callback", "checkpoint"}
"""Parameters that are written in a form of their own, or belong to one machine and are not written."""


# ---------------------------------------------------------------- to plain data
def params_of(model: Any) -> dict[str, Any]:
    """The parameters of an estimator; raise where one is code."""
    given = model.get_params(deep=False)
    loss = loss_of(model)
    inner = loss.loss if type(loss) in (Nu, Smoothed) else loss
    if type(inner) not in {type(known) for known in LOSSES.values()}:
        raise ValueError(
            f"{type(inner).__name__} is a loss of your own, and code is not written to files: "
            "keep coef_ and intercept_ yourself, or pickle the model"
        )
    found = {
        "plain": {k: scalar(v) for k, v in given.items() if k not in _OWN_FORM},
        "loss": spec(loss) | {"given": given["loss"] if isinstance(given.get("loss"), str) else None},
        "solver": _solver(given["solver"]),
        "class_weight": _class_weight(given.get("class_weight")),
    }
    if "regularizer" in given:
        found["regularizer"] = _regularizer(given["regularizer"])
    if "kernel" in given:
        found["kernel"] = _kernel(given["kernel"])
    if "hierarchy" in given:
        found["hierarchy"] = hierarchy_plain(given["hierarchy"])
    return found


def scalar(value: Any) -> Any:
    """A number of NumPy's as one of Python's, sequences as lists; anything else as it is."""
    if isinstance(value, (list, tuple, np.ndarray)):
        return [scalar(one) for one in value]
    return value.item() if isinstance(value, np.generic) else value


def _regularizer(given: Any) -> dict[str, Any]:
    reg = get_regularizer(given)
    if type(reg) not in {Box, *(type(known) for known in REGULARIZERS.values())}:
        holds = "holds a matrix" if isinstance(reg, Quadratic) else "is a regularizer of your own"
        raise ValueError(
            f"{type(reg).__name__} {holds}, which is not written to model files: "
            "keep coef_ and intercept_ yourself, or pickle the model"
        )
    return regularizer_spec(reg) | {"given": given if isinstance(given, str) else None}


def _solvers() -> dict[str, Any]:
    kinds: list[Any] = [KernelDual, *(type(known) for known in SOLVERS.values())]
    return {kind.__name__: kind for kind in kinds}


def _solver(solver: Any) -> Any:
    """A name, or the class and the parameters of one of riskmin's; None for others."""
    if type(solver) in _solvers().values():
        return {"name": type(solver).__name__, "params": dataclasses.asdict(solver)}
    return solver if isinstance(solver, str) else None


def _class_weight(given: Any) -> Any:
    """Pairs, since the keys of JSON are strings."""
    return [[scalar(k), scalar(v)] for k, v in given.items()] if isinstance(given, dict) else given


def _kernel(given: Any) -> Any:
    if isinstance(given, str):
        return given
    if type(given) not in KERNELS.values():
        raise ValueError(
            "its kernel is a function of your own, and code is not written to files: pickle the model, "
            "or fit the matrix of the kernel with kernel='precomputed'"
        )
    return described(given, KERNELS)


# ---------------------------------------------------------------- and back
def params_from(kind: Any, written: dict[str, Any]) -> dict[str, Any]:
    """The parameters that `params_of` wrote, for an estimator of this class."""
    params = dict(written["plain"])
    check_plain(kind, params)
    solver = written["solver"]
    params["solver"] = _solvers()[solver["name"]](**solver["params"]) if isinstance(solver, dict) else solver
    if "regularizer" in written:
        params["regularizer"] = _as_given(
            regularizer_from_spec(written["regularizer"]), written["regularizer"]["given"], get_regularizer
        )
    if "kernel" in written:
        kernel = written["kernel"]
        params["kernel"] = kernel if isinstance(kernel, str) else revived(kernel, KERNELS, "kernel")
    if kind.task != "novelty":
        params["loss"] = _as_given(
            from_spec(written["loss"]), written["loss"]["given"], partial(named_loss, kind)
        )
    if "hierarchy" in written:
        params["hierarchy"] = hierarchy_from(written["hierarchy"])
    if kind.task in ("classification", "hierarchy"):
        pairs = written["class_weight"]
        params["class_weight"] = dict(pairs) if isinstance(pairs, list) else pairs
    return params


def _as_given(thing: Any, given: str | None, named: Callable[[Any], Any]) -> Any:
    """The name that the user gave, where it still stands for the thing."""
    return given if given is not None and named(given) == thing else thing

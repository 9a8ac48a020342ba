"""Detection of trivial fits, whose J is minimal at w = 0: correctly certified, but useless for prediction."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from riskmin.arrays.namespace import count_by_index, namespace, to_numpy
from riskmin.core import Array, NDArray, Result
from riskmin.executors.base import row_ends
from riskmin.linear_maps.linear import Centered, MultiOutput, SingleOutput, WithIntercept
from riskmin.losses import PairwiseHinge, RocArea
from riskmin.losses.offset import AtOffset
from riskmin.problem import shard_ops
from riskmin.problem.kernel.rkhs import RkhsMap
from riskmin.problem.objective import Objective

MIN_TRIVIAL_TOL = 1e-3
"""Weights are useless if they lower J by less than 2 tol J, with tol between this and 1e-2."""


class TrivialModelWarning(UserWarning):
    """The weights of a fit are zero up to rounding or tol, so that all predictions are equal."""


def describe_trivial_fit(model: Any, objective: Objective, result: Result, b: Any) -> str:
    """Return a message for a converged fit no better than w = 0, with a remedy; an empty string otherwise.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, LinearRegressor, Objective, linear_risk, minimize
    >>> x = np.linspace(-1.0, 1.0, 300)
    >>> J = Objective(linear_risk(x[:, None], 2 * x, "absolute"), L2(), lam=1e6)
    >>> describe_trivial_fit(LinearRegressor("absolute", alpha=1e6), J, minimize(J), 0.0)
    'the scores vary by ... where y varies by 1.2: alpha=1e+06 is too large for the units of X (...'
    """
    w = np.asarray(result.w)
    if np.any(_without_weights(objective, 0.0 * w)):
        return ""
    # the innermost loss of wrappers such as Nu and Smoothed
    loss = objective.risk.loss.components[-1]
    task = "multiclass" if model.task == "hierarchy" else loss.task or model.task
    if task == "novelty":
        return "" if np.any(w) else _novelty_message(model)
    if task == "regression":
        symptom = _regression_symptom(objective, w, loss)
    elif task in ("classification", "multiclass") and loss.separable:
        symptom = _classification_symptom(objective, w, b)
    else:
        symptom = f"the scores of {loss!r} carry no information, as J is least at w = 0 within tol"
    # constant labels need no further diagnosis
    if not symptom or symptom.endswith("check y"):
        return symptom
    # J without weights, compared with the bound: an upper bound of what weights can gain
    with np.errstate(over="ignore", invalid="ignore"):
        value = objective.value(_without_weights(objective, w))
    within = value - result.lower <= 2 * min(max(model.tol, MIN_TRIVIAL_TOL), 1e-2) * value
    if (not within and np.any(w) and task != "regression") or not _has_signal(objective):
        return ""
    return f"{symptom}: {_reason(model, objective, loss, value, within)}"


def _without_weights(objective: Objective, w: NDArray) -> NDArray:
    """Return the minimizer of the regularizer, w = 0 for most, with the intercepts of w."""
    # grad Omega*(0) = argmin Omega
    minimizer: NDArray = np.array(objective.reg.conjugate_grad(np.zeros(len(w))))
    if k := objective.n_intercepts:
        minimizer[-k:] = w[-k:]
    return minimizer


def _scores(objective: Objective, w: NDArray) -> tuple[Array, Array]:
    """Return the scores and labels of the rows of positive weight, where they are."""
    risk: Any = objective.risk
    zs = risk.executor.map(shard_ops.scores, risk.linear_map, w)
    z = zs[0] if len(zs) == 1 else namespace(zs[0]).concat(zs)
    y, c = _labels(risk)
    return z[c > 0], y[c > 0]


def _labels(risk: Any) -> tuple[Array, Array]:
    """Return the labels, without offsets beside them, and the weights of all rows."""
    y, c = risk.labels
    return (y[:, 0] if isinstance(risk.loss, AtOffset) else y), c


def _has_signal(objective: Objective) -> bool:
    """Whether some feature correlates with the labels by a permutation test; assumed for many rows.

    For few rows without signal, w = 0 is the right answer and needs no warning.
    """
    risk: Any = objective.risk
    y, c = _labels(risk)
    if len(c) > 200 or not isinstance(
        risk.linear_map, (SingleOutput, MultiOutput, WithIntercept, Centered, RkhsMap)
    ):
        return True
    y, c = to_numpy(y), to_numpy(c)
    label = y[:, :1] if risk.loss.task == "ranking" else y.reshape(len(y), -1)
    if risk.multi_output and label.shape[1] == 1:
        # one indicator column per class
        label = (label == np.unique(label)) * 1.0
    label = label - c @ label  # centered
    rng, ends = np.random.default_rng(0), row_ends(risk.executor)

    def covariances(order: NDArray) -> NDArray:
        """Return X^T (c * label[order]), one covariance per weight."""
        dz = c[:, None] * label[order]
        dz = dz if risk.multi_output else dz[:, 0]
        each = [dz[i:j] for i, j in pairwise(ends)]
        zero = np.zeros(risk.dim)
        total: NDArray = risk.executor.sum(shard_ops.scatter, risk.linear_map, zero, each=each)[0]
        return total

    # standard deviation of each covariance if labels are assigned at random
    chance = np.std([covariances(rng.permutation(len(c))) for _ in range(50)], axis=0)
    size = np.abs(covariances(np.arange(len(c))))
    # in standard deviations: the expected maximum of len(size) normal variables, and a margin
    limit = 1.5 + np.sqrt(2 * np.log(2 * len(size)))
    return bool(np.any(size > limit * chance + 1e-12 * np.max(size, initial=0.0)))


# ---------------------------------------------------------------- symptoms
def _regression_symptom(objective: Objective, w: NDArray, loss: Any) -> str:
    """Describe predictions that are all equal; return an empty string if they vary."""
    # one column per output
    z, y = (a.reshape(len(a), -1) for a in _scores(objective, w))
    deviation, spread = _deviation(z), _label_spread(y)
    if not spread.any():
        constant = len(y) > 1 and np.max(deviation) <= 1e-9 * (1 + float(abs(y).max()))
        return (
            f"y is {float(y[0, 0]):.6g} in every row, and so is every prediction; check y" if constant else ""
        )
    # scores that vary by less than this count as constant
    if np.any(deviation > 1e-3 * (1.0 if loss.log_link else spread)):
        return ""
    return f"the scores vary by {np.max(deviation):.2g} where y varies by {np.max(spread):.2g}"


def _deviation(a: Array) -> NDArray:
    """Return the standard deviation of each column."""
    return to_numpy(namespace(a).std(a, axis=0, correction=0))


def _label_spread(y: Array) -> NDArray:
    """Return the spread of labels: the standard deviation, or the 10-90% range if smaller and positive."""
    # outliers inflate the standard deviation, but not the range of quantiles
    ordered = namespace(y).sort(y, axis=0)
    low, high = (to_numpy(ordered[round(share * (len(y) - 1))]) for share in (0.1, 0.9))
    deviation = _deviation(y)
    spread: NDArray = np.where(high > low, np.minimum(deviation, high - low), deviation)
    return spread


def _classification_symptom(objective: Objective, w: NDArray, b: Any) -> str:
    """Describe predictions of a single class; return "" if they differ, or a class has negligible weight."""
    z, _ = _scores(objective, w)
    predicted = namespace(z).argmax(z, axis=1) if z.ndim == 2 else z + b > 0
    if bool((predicted != predicted[0]).any()):
        return ""
    by_weight, by_rows = _class_fractions(objective)
    # a class whose mean row weight is a smaller share of the overall mean is ignored on purpose
    if np.min(by_weight / by_rows) < 1e-3:
        return ""
    return "all rows get the same class, as J is least at w = 0 within tol"


def _class_fractions(objective: Objective) -> tuple[NDArray, NDArray]:
    """Return the fraction of each class, by weight and by number of rows."""
    y, c = _labels(objective.risk)
    # rows of weight zero have no effect on the fit
    y, c = y[c > 0], c[c > 0]
    classes, codes = namespace(y).unique_inverse(y)
    codes, k = codes.reshape(-1), len(classes)
    by_weight, by_rows = (to_numpy(count_by_index(codes, a, k)) for a in (c, 0 * c + 1))
    return by_weight, by_rows / len(c)


# ---------------------------------------------------------------- causes and remedies
BALANCED_HINGE = "loss='hinge' with class_weight='balanced' or a tuned threshold"
"""What learns more than bounds of metrics do, where positives are rare."""


def loose_bound(objective: Objective, loss: Any) -> str:
    """Return why the bound of a metric may be least at w = 0."""
    if not loss.has_cutoff or loss.task != "classification":
        return "this bound of the metric is loose here"
    # the last class is the positive one
    fraction = float(_class_fractions(objective)[0][-1])
    rare = f"positives ({fraction:.2%} here) are rare or mixed with the rest"
    return f"this bound of the metric is loose where {rare}"


def _reason(model: Any, objective: Objective, loss: Any, value: float, within: bool) -> str:
    if value == 0:
        return (
            "J is zero there already, so the loss asks for too little; give it a margin, or a smaller epsilon"
        )
    if not within and model.tol > MIN_TRIVIAL_TOL:
        return f"tol={model.tol:g} lets no weights at all pass; use a smaller tol"
    if not np.any(model.alpha):
        bounded = "positive=True leaves out the weights that would help; try positive=False"
        return bounded if model.positive else "X carries no information on y that the constraints leave"
    # the effect of alpha depends on the units of X unless columns are standardized or a kernel is used
    scaled = hasattr(model, "kernel") or model.standardize
    units = "" if scaled else " for the units of X (it must shrink with them)"
    too_large = f"alpha={model.alpha:g} is too large{units}"
    if model.positive:
        return f"positive=True leaves out the weights that would help, or {too_large}; try positive=False"
    if loss.has_cutoff and not isinstance(loss, RocArea):
        return (
            f"{loose_bound(objective, loss)}, or {too_large}; use loss='roc_area', a smaller alpha, or "
            f"{BALANCED_HINGE}"
        )
    if loss.task == "ranking" and not isinstance(loss, PairwiseHinge):
        return (
            f"this bound of the metric is loose here, or {too_large}; use a smaller alpha, "
            "loss='pairwise_hinge', or other weights of positions: Ndcg(weights='discount') or None"
        )
    is_classification = loss.separable and (loss.task or model.task) in ("classification", "multiclass")
    rarest = float(_class_fractions(objective)[0].min()) if is_classification else 1.0
    # a class with a smaller share of the weight is rare
    if rarest >= 0.1:
        remedy = ("set standardize=True" if model.can_standardize else "standardize X") + ", or use"
        remedy = remedy if units else "use"
        return f"{too_large}, or X carries no information on y; {remedy} a smaller alpha"
    weights = "class_weight='balanced', " if model.class_weight is None else ""
    area = "" if loss.multi_output else "loss='roc_area', a tuned threshold, "
    return (
        f"a class of {rarest:.2%} of the weight is too rare for this loss, or {too_large}; "
        f"use {weights}{area}or a smaller alpha"
    )


def _novelty_message(model: Any) -> str:
    return (
        "all weights are zero: rows lie on all sides of the origin, from which this loss separates them, "
        f"or alpha={model.alpha:g} is too large; do not center X, or use a smaller alpha"
    )

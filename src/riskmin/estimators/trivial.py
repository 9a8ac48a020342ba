"""Fits that learned nothing: J is least at w = 0, which is proved like anything else, but of no use."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from riskmin import shards
from riskmin.arrays import to_numpy
from riskmin.convexity.owner import parts, plain
from riskmin.losses import Poisson, RocArea
from riskmin.objective import Objective
from riskmin.rkhs import Rkhs
from riskmin.scorers import Centred, Linear, Multiclass, WithOnes
from riskmin.types import NDArray, Result

HALF = 0.5
"""Where J fell to less than this part of what it was at the start, there is nothing to look for."""
GAIN, LOOSE = 1e-3, 1e-2
"""Weights gain nothing that lower J by less than twice tol, which counts as at least and at most this."""
FLAT = 1e-3
"""Scores that vary by less than this part of what labels do are all alike."""
RARE = 0.1
"""A class of a smaller share of the weight is rare."""
FEW, SHUFFLES = 200, 50
"""Up to so many rows it is looked at whether labels and features have to do with each other."""
IGNORED = 1e-3
"""A class whose rows weigh less than this part of the others was to be left out: nobody has to be told."""


class TrivialModelWarning(UserWarning):
    """The weights of a fit are zero but for rounding or tol, so that its predictions are all alike."""


def trivial(model: Any, objective: Objective, result: Result, b: Any, *, cold: bool = True) -> str:
    """What is said of a fit that is no better than one without weights, and what to do; else nothing.

    A cold start is one without weights: where J fell much from there, nothing else is looked at.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, LinearRegressor, Objective, linear_risk, minimize
    >>> x = np.linspace(-1.0, 1.0, 300)
    >>> J = Objective(linear_risk(x[:, None], 2 * x, "absolute"), L2(), lam=1e6)
    >>> trivial(LinearRegressor("absolute", alpha=1e6), J, minimize(J), 0.0)
    'the scores vary by ... where y varies by 1.2: alpha=1e+06 is too large for the units of X (...'
    """
    w, first = np.asarray(result.w), result.trace[0]["value"]
    cold = cold and not objective.balances  # intercepts in w lower J on their own
    fell = cold and first - result.value > HALF * first and np.any(w)
    if result.status != "converged" or fell or np.any(_without(objective, 0.0 * w)):
        return ""
    loss = [*parts(objective.risk)][-1]
    task = "multiclass" if model.task == "hierarchy" else getattr(loss, "task", model.task)
    if task == "novelty":
        return "" if np.any(w) else _of_one_class(model)
    if task == "regression":
        said = _of_numbers(objective, w, loss)
    elif task in ("classification", "multiclass") and loss.separable:
        said = _of_classes(objective, w, b)
    else:
        said = f"the scores of {loss!r} say nothing, as J is least at w = 0 within tol"
    if not said or said.endswith("check y"):
        return said
    value = objective.value(_without(objective, w))
    within = value - result.lower <= 2 * min(max(model.tol, GAIN), LOOSE) * value
    if (not within and np.any(w) and task != "regression") or not _has_to_say(objective):
        return ""
    return f"{said}: {_reason(model, objective, loss, value, within)}"


def _without(objective: Objective, w: NDArray) -> NDArray:
    """No weights at all, which is where most regularizers are least; intercepts stay as they are in w."""
    least: NDArray = np.array(objective.reg.conjugate_grad(np.zeros(len(w))))
    if objective.balances:
        k = objective.risk.n_intercepts  # type: ignore[attr-defined]
        least[-k:] = w[-k:]
    return least


def _scores(objective: Objective, w: NDArray) -> tuple[NDArray, NDArray]:
    """The scores of the rows that count, and their labels."""
    risk = plain(objective.risk)
    z = np.concatenate([to_numpy(part) for part in risk.executor.map(shards.scores, risk.scorer, w)])
    y, c = (to_numpy(part) for part in risk.labels)
    return z[c > 0], y[c > 0]


def _has_to_say(objective: Objective) -> bool:
    """Whether there are many rows, or else some feature goes with the labels by more than chance.

    Of few rows that tell nothing, no weights at all are the right answer, and no trap.
    """
    risk = plain(objective.risk)
    y, c = (to_numpy(part) for part in risk.labels)
    if len(c) > FEW or not isinstance(risk.scorer, (Linear, Multiclass, WithOnes, Centred, Rkhs)):
        return True
    label = y[:, :1] if getattr(risk.loss, "task", "") == "ranking" else y.reshape(len(y), -1)
    if risk.many and label.shape[1] == 1:
        label = (label == np.unique(label)) * 1.0
    label = label - c @ label
    rng, ends = np.random.default_rng(0), np.cumsum([0, *risk.executor.map(_rows)])

    def slopes(order: NDArray) -> NDArray:
        dz = c[:, None] * label[order]
        dz = dz if risk.many else dz[:, 0]
        each = [dz[i:j] for i, j in pairwise(ends)]
        found: NDArray = risk.executor.sum(shards.scatter, risk.scorer, np.zeros(risk.dim), each=each)[0]
        return found

    chance = np.std([slopes(rng.permutation(len(c))) for _ in range(SHUFFLES)], axis=0)
    size = np.abs(slopes(np.arange(len(c))))
    limit = 1.5 + np.sqrt(2 * np.log(2 * len(size)))  # the largest of so many normal numbers, and more
    return bool(np.any(size > limit * chance + 1e-12 * np.max(size, initial=0.0)))


def _rows(shard: Any) -> int:
    return len(shard.c)


# ---------------------------------------------------------------- what is seen
def _of_numbers(objective: Objective, w: NDArray, loss: Any) -> str:
    """Whether all numbers that are predicted are alike."""
    z, y = (a.reshape(len(a), -1) for a in _scores(objective, w))
    varies, spread = np.std(z, axis=0), _spread(y)
    if not spread.any():
        same = len(y) > 1 and np.max(varies) <= 1e-9 * (1 + np.max(np.abs(y)))
        return f"y is {y[0, 0]:.6g} in every row, and so is every prediction; check y" if same else ""
    if np.any(varies > FLAT * (1.0 if isinstance(loss, Poisson) else spread)):
        return ""
    return f"the scores vary by {np.max(varies):.2g} where y varies by {np.max(spread):.2g}"


def _spread(y: NDArray) -> NDArray:
    """How much labels vary, a few that are far off left out where that leaves something."""
    low, high = np.quantile(y, [0.1, 0.9], axis=0)
    deviation: NDArray = np.std(y, axis=0)
    found: NDArray = np.where(high > low, np.minimum(deviation, high - low), deviation)
    return found


def _of_classes(objective: Objective, w: NDArray, b: Any) -> str:
    """Whether all rows get the same class, though none was to be left out."""
    z, _ = _scores(objective, w)
    said = np.argmax(z, axis=1) if z.ndim == 2 else z + b > 0
    shares, rows = _shares(objective)
    if np.any(said != said[0]) or np.min(shares / rows) < IGNORED:
        return ""
    return "all rows get the same class, as J is least at w = 0 within tol"


def _shares(objective: Objective) -> tuple[NDArray, NDArray]:
    """The shares of the classes, by weight and by rows."""
    y, c = (to_numpy(part) for part in plain(objective.risk).labels)
    number = np.unique(y[c > 0], return_inverse=True)[1]
    return np.bincount(number, c[c > 0]), np.bincount(number) / len(number)


# ---------------------------------------------------------------- why it is so, and what to do
def _reason(model: Any, objective: Objective, loss: Any, value: float, within: bool) -> str:
    if value == 0:
        return (
            "J is zero there already, so the loss asks for too little; give it a margin, or a smaller epsilon"
        )
    if not within and model.tol > GAIN:
        return f"tol={model.tol:g} lets no weights at all pass; use a smaller tol"
    scaled = hasattr(model, "kernel") or getattr(model, "standardize", False)
    units = "" if scaled else " for the units of X (it must shrink with them)"
    large = f"alpha={model.alpha:g} is too large{units}"
    if getattr(model, "positive", False):
        return f"positive=True leaves out the weights that would help, or {large}; try positive=False"
    if hasattr(loss, "cutoff") and not isinstance(loss, RocArea):
        share = float(_shares(objective)[0][-1])
        return (
            f"this bound of the metric is loose where positives ({share:.2%} here) are rare or mixed with "
            f"the rest, or {large}; use loss='roc_area', a smaller alpha, or loss='hinge' with "
            "class_weight='balanced' or a tuned threshold"
        )
    of_classes = loss.separable and getattr(loss, "task", model.task) in ("classification", "multiclass")
    rarest = float(_shares(objective)[0].min()) if of_classes else 1.0
    if rarest >= RARE:
        more = ("set standardize=True" if hasattr(model, "standardize") else "standardize X") + ", or use"
        more = more if units else "use"
        return f"{large}, or X tells nothing of y; {more} a smaller alpha"
    weights = "class_weight='balanced', " if getattr(model, "class_weight", "") is None else ""
    area = "" if hasattr(loss, "scorer") else "loss='roc_area', a tuned threshold, "
    return (
        f"a class of {rarest:.2%} of the weight is too rare for this loss, or {large}; "
        f"use {weights}{area}or a smaller alpha"
    )


def _of_one_class(model: Any) -> str:
    return (
        "all weights are zero: rows lie on all sides of the origin, which this loss is to tell them apart "
        f"from, or alpha={model.alpha:g} is too large; do not centre X, or use a smaller alpha"
    )

r"""The objectives :math:`J(w, b) = R(w, b) + \lambda\,\Omega(w)`: b is zero, or an unpenalized intercept.

J is implemented independently of riskmin, in NumPy and float64: this function evaluates the results of all
solvers, including those of riskmin. The tests compare it with `riskmin.Objective`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

import riskmin as rm

QUANTILE, EPSILON, DELTA = 0.9, 0.1, 1.0
"""Parameters of the losses that have one."""


# ---------------------------------------------------------------- R of the scores, in plain NumPy
def hinge(z, y):
    return np.mean(np.maximum(0.0, 1.0 - y * z))


def squared_hinge(z, y):
    return np.mean(np.maximum(0.0, 1.0 - y * z) ** 2) / 2


def logistic(z, y):
    return np.mean(np.logaddexp(0.0, -y * z))


def squared(z, y):
    return np.mean((z - y) ** 2) / 2


def absolute(z, y):
    return np.mean(np.abs(z - y))


def quantile(z, y):
    return np.mean(np.where(y > z, QUANTILE * (y - z), (1 - QUANTILE) * (z - y)))


def epsilon_insensitive(z, y):
    return np.mean(np.maximum(0.0, np.abs(z - y) - EPSILON))


def huber(z, y):
    r = np.abs(z - y)
    return np.mean(np.where(r <= DELTA, r**2 / 2, DELTA * r - DELTA**2 / 2))


def poisson(z, y):
    """Poisson deviance / 2: the constants make the minimum of each row zero."""
    with np.errstate(over="ignore"):
        return np.mean(np.exp(z) - y * z + y * np.log(np.where(y > 0, y, 1.0)) - y)


def roc_area(z, y):
    """Mean hinge over pairs: for each positive score a, the negative scores b > a - 1."""
    above, below = z[y > 0], np.sort(z[y < 0])
    first = np.searchsorted(below, above - 1, side="right")
    tails = np.concatenate([np.cumsum(below[::-1])[::-1], [0.0]])  # sums of the largest scores
    total = tails[first] + (len(below) - first) * (1 - above)
    return total.sum() / (len(above) * len(below))


def prbep(z, y):
    """Maximum over k false negatives and k false positives: lowest positive, highest negative scores."""
    above, below = np.sort(z[y > 0]), np.sort(z[y < 0])[::-1]
    many = min(len(above), len(below))
    lost = np.concatenate([[0.0], np.cumsum(below[:many] - above[:many])])
    return np.max(np.arange(many + 1) / len(above) + 2 / len(z) * lost)


def softmax(z, y):
    top = z.max(axis=1)
    z_true = z[np.arange(len(z)), y.astype(int)]
    return np.mean(np.log(np.exp(z - top[:, None]).sum(axis=1)) + top - z_true)


def multiclass_hinge(z, y):
    true_class = np.arange(len(z)), y.astype(int)
    margins = 1.0 + z - z[true_class][:, None]
    margins[true_class] = 0.0
    return np.mean(margins.max(axis=1))


# ---------------------------------------------------------------- tasks
@dataclass(frozen=True)
class Task:
    """A loss with its regularizer, and the labels it is for."""

    name: str
    loss: Any
    """Ours."""
    mean: Callable[[Any, Any], float]
    """R(scores, y): the reference."""
    labels: str
    """Kind of labels: signs, numbers, counts or classes."""
    slope: Callable[[Any], Any] | None = None
    """For L1: n times the gradient of R in the scores at zero, linear in y."""
    lams: tuple[float, ...] = (1e-2, 1e-4, 1e-6)
    intercept: bool = False

    @property
    def takes_intercept(self) -> bool:
        """Whether an intercept makes a difference: it does not for losses of pairs and contingency tables."""
        return self.name not in ("roc_area", "prbep")

    def with_intercept(self) -> Task:
        """The task with an unpenalized intercept, one per class."""
        return replace(self, intercept=True)

    @property
    def reg(self) -> Any:
        """Regularizer of riskmin: L1 if the slope at zero is given, else L2."""
        return rm.L2() if self.slope is None else rm.L1()

    def strength(self, X, y, lam):
        """The given lam, or for L1 lam times lam_max, the smallest value for which w = 0 is optimal."""
        if self.slope is None:
            return lam
        # at w = 0 the best intercept makes the slopes sum to zero: for both losses, those of y - mean(y)
        residual = y - y.mean() if self.intercept else y
        return lam * float(np.abs(X.T @ self.slope(residual)).max()) / len(y)

    def columns(self, y):
        """Number of scores per row."""
        return int(y.max()) + 1 if self.labels == "classes" else 1

    def objective(self, X, y, lam, w, b=0.0):
        """J(w, b), by which all solvers are compared; with one intercept, at the best b for this w.

        So a peer that penalizes the intercept, or stops at a rough one, is judged by its w.
        """
        w = np.asarray(w, dtype=np.float64)
        many = self.columns(y)
        z = np.asarray(X @ (w.ravel() if many == 1 else w.reshape(X.shape[1], many)))
        size = 0.5 * float(w.ravel() @ w.ravel()) if self.slope is None else float(np.abs(w).sum())
        risk = float(self.mean(z + b, y))
        if self.intercept and many == 1 and np.isfinite(risk):
            b = float(np.ravel(b)[0])
            best = minimize_scalar(
                lambda t: self.mean(z + t, y), bracket=(b, b + 0.1), options={"xtol": 1e-9}
            )
            risk = min(risk, float(best.fun))
        value = risk + lam * size
        return value if np.isfinite(value) else np.inf


def _tasks():
    yield Task("hinge", rm.Hinge(), hinge, "signs")
    yield Task("squared_hinge", rm.SquaredHinge(), squared_hinge, "signs")
    yield Task("logistic", rm.Logistic(), logistic, "signs")
    yield Task("roc_area", rm.RocArea(), roc_area, "signs", lams=(1e-4, 1e-6))
    yield Task("prbep", rm.Prbep(), prbep, "signs", lams=(1e-4, 1e-6))
    yield Task("squared", rm.Squared(), squared, "numbers")
    yield Task("absolute", rm.Absolute(), absolute, "numbers", lams=(1e-4, 1e-6, 1e-8))
    yield Task("quantile", rm.Quantile(QUANTILE), quantile, "numbers", lams=(1e-4, 1e-6, 1e-8))
    yield Task("epsilon_insensitive", rm.EpsilonInsensitive(EPSILON), epsilon_insensitive, "numbers")
    yield Task("huber", rm.Huber(DELTA), huber, "numbers")
    yield Task("poisson", rm.Poisson(), poisson, "counts")
    yield Task("lasso", rm.Squared(), squared, "numbers", lambda y: -y, lams=(0.1, 0.01, 0.001))
    yield Task("l1_logistic", rm.Logistic(), logistic, "signs", lambda y: -y / 2, lams=(0.1, 0.01, 0.001))
    yield Task("softmax", rm.Softmax(), softmax, "classes")
    yield Task("multiclass_hinge", rm.MulticlassHinge(), multiclass_hinge, "classes")


TASKS = {task.name: task for task in _tasks()}

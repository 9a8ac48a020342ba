"""ReHLine: sums of ReLU and ReHU (quadratic, then linear) terms, by dual coordinate descent."""

from __future__ import annotations

import warnings

import numpy as np

from benchmarks.harness.peers.base import Peer, ladder
from benchmarks.harness.tasks import DELTA, EPSILON, QUANTILE

EMPTY = np.empty((0, 0))


def relus(task, y, C):
    """U and V: the loss of a row is the sum of max(0, u z + v)."""
    one = np.ones_like(y)
    if task.name == "hinge":
        return -C * y[None, :], C * one[None, :]
    up, down = {"quantile": (QUANTILE, 1 - QUANTILE)}.get(task.name, (1.0, 1.0))
    epsilon = EPSILON if task.name == "epsilon_insensitive" else 0.0
    return C * np.array([-up * one, down * one]), C * np.array([up * (y - epsilon), -down * (y + epsilon)])


def rehus(task, y, C):
    """Tau, S and T: the loss of a row is a sum of terms (s z + t)^2 / 2, linear beyond tau."""
    root, one = np.sqrt(C), np.ones_like(y)
    if task.name == "squared_hinge":
        return np.full((1, len(y)), np.inf), -root * y[None, :], root * one[None, :]
    tau = root * DELTA if task.name == "huber" else np.inf
    return np.full((2, len(y)), tau), root * np.array([one, -one]), root * np.array([-y, y])


def fit(X, y, task, lam, rung):
    from rehline import ReHLine_solver

    C = 1 / (lam * len(y))
    U, V, Tau, S, T = EMPTY, EMPTY, EMPTY, EMPTY, EMPTY
    if task.name in ("hinge", "quantile", "absolute", "epsilon_insensitive"):
        U, V = relus(task, y, C)
    else:
        Tau, S, T = rehus(task, y, C)
    result = ReHLine_solver(X, U, V, Tau, S, T, max_iter=rung.steps, tol=rung.tol, verbose=0)
    if not result.converged:
        warnings.warn("did not converge", stacklevel=1)  # as its estimators do
    return np.asarray(result.beta)


PEERS = (
    Peer(
        "ReHLine",
        "rehline",
        ("hinge", "squared_hinge", "quantile", "absolute", "epsilon_insensitive", "huber", "squared"),
        fit,
        ladder((1e-1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-8), (100, 1_000, 10_000, 100_000)),
        shrinks=True,
    ),
)

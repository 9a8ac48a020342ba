"""A checkpoint is a hint: whatever a file with a right checksum holds, no status and no bound is false."""

import warnings
from functools import cache

import numpy as np
import pytest
from test_checkpoint_trust import CASES, CLASS, SIGN, ThreeClasses, X, forge, problem

from riskmin import (
    L1,
    L2,
    AcceleratedGradient,
    Auto,
    Bmrm,
    Bundle,
    DualConjugateGradient,
    DualCoordinateAscent,
    ExcessiveGap,
    Fallback,
    Hinge,
    Lbfgs,
    LineSearchBmrm,
    Logistic,
    Newton,
    Objective,
    Pegasos,
    Softmax,
    Squared,
    Structured,
    Switching,
    WorkingSet,
    minimize,
)
from riskmin.core.persist import FileError, load_arrays

FAMILIES = CASES | {
    "line search": lambda: (problem(SIGN, Logistic()), LineSearchBmrm()),
    "floor": lambda: (problem(SIGN, Hinge()), Bmrm(floor=True)),
    "accelerated": lambda: (problem(SIGN, Logistic(), L1()), AcceleratedGradient()),
    "conjugate gradients": lambda: (problem(SIGN, Squared()), DualConjugateGradient()),
    "excessive gap": lambda: (problem(SIGN, Hinge()), ExcessiveGap()),
    "pegasos": lambda: (problem(SIGN, Hinge()), Pegasos()),
    "switching": lambda: (problem(SIGN, Hinge()), Switching(DualCoordinateAscent(), Newton())),
    "fallback": lambda: (problem(SIGN, Logistic()), Fallback((Lbfgs(), Bundle()))),
    "least squares": lambda: (problem(SIGN, Squared(), fit_intercept=True), Newton()),
    "softmax": lambda: (problem(CLASS, Softmax()), Auto()),
    "working set": lambda: (Objective(Structured(ThreeClasses()).risk(X, CLASS), L2(), 0.3), WorkingSet()),
}
TOL = 1e-4


@cache
def saved_run(name, folder):
    """A run of some iterations, its file, and bounds of the minimum."""
    J, solver = FAMILIES[name]()
    path = folder / f"{name}.checkpoint"
    minimize(J, solver, tol=0.0, max_iter=3, checkpoint=path)
    best = minimize(J, tol=1e-9)
    return J, solver, load_arrays(path, "checkpoint"), best


def mutated(a, rng):
    """An array of the same shape and dtype with other numbers."""
    if a.dtype.kind != "f":
        return rng.permutation(a) if a.ndim else a
    size = float(np.abs(a).max(initial=0.0)) or 1.0
    return [
        lambda: a * rng.choice([-1.0, 0.0, 0.5, 0.99, 1.01, 2.0, 1e3, 1e9]),
        lambda: a + size * 10.0 ** rng.integers(-6, 3) * rng.standard_normal(a.shape),
        lambda: np.full_like(a, size * rng.choice([0.0, 1.0, -1.0, 1e6, 1e-6])),
        lambda: rng.permutation(a.ravel()).reshape(a.shape),
        lambda: np.where(np.arange(a.size).reshape(a.shape) == a.size - 1, a + rng.uniform(0, 2), a),
    ][rng.integers(5)]()


def mutation(arrays, meta, rng):
    """Other contents for one to all arrays of a file, and for some of its numbers."""
    arrays, meta = dict(arrays), dict(meta)
    states = sorted(k for k in arrays if k.startswith("state."))
    for key in rng.permutation(states)[: rng.choice([1, 1, 2, len(states)])] if states else ():
        arrays[key] = mutated(arrays[key], rng)
    if rng.random() < 0.2:
        trace = arrays["trace"].copy()
        column = meta["keys"].index(rng.choice(["value", "lower", "gap", "seconds", "calls"]))
        trace[:, column] = rng.choice([0.0, 1.0, meta["exact"], 2.0**70, 1e300])
        arrays["trace"] = trace
    if rng.random() < 0.2:
        meta["noise"] = float(rng.choice([0.0, -1e3, 1e-3]))
    return arrays, meta


def check_hints(name, folder, n, seed):
    """Resume from n changed files, and return what is false."""
    J, solver, (arrays, meta), best = saved_run(name, folder)
    path, false = folder / "run", []
    for k in range(n):
        rng = np.random.default_rng([seed, k, sum(map(ord, name))])
        with np.errstate(all="ignore"):  # states hold infinite bounds
            changed = mutation(arrays, meta, rng)
        forge(path, *changed)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = minimize(J, solver, tol=TOL, max_iter=15, max_seconds=1e6, checkpoint=path)
        except FileError:
            continue
        truth = J.value(result.w)
        if not (
            result.lower <= best.value * (1 + 1e-9)
            and abs(result.value - truth) <= 1e-9 * max(abs(truth), best.value)
            and (result.status != "converged" or truth - best.lower <= (TOL + 1e-8) * truth + 1e-9)
        ):
            false.append((k, result.status, result.value, result.lower))
    return false


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hints")


@pytest.mark.parametrize("name", FAMILIES)
def test_changed_checkpoints_give_no_false_status(name, folder):
    assert check_hints(name, folder, 3, seed=0) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FAMILIES)
def test_many_changed_checkpoints_give_no_false_status(name, folder):
    assert check_hints(name, folder, 2000 // len(FAMILIES) + 1, seed=1) == []

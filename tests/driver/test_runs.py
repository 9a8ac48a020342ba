"""Runs of many losses, regularizers, solvers and storages: certified, optimal, and with the recorded work.

runs.json holds the minimum of each case by an independent solver (null where none can state the problem) and
the work of the run. `python tests/driver/test_runs.py` records it again after an intended change.
"""

import itertools
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from riskmin import (
    L1,
    L2,
    Absolute,
    Box,
    ChainCrf,
    ChainMaxMargin,
    Elastic,
    Entropy,
    FBeta,
    Hinge,
    Huber,
    Logistic,
    MulticlassHinge,
    Ndcg,
    Objective,
    Ordinal,
    Poisson,
    Quantile,
    RocArea,
    Softmax,
    Squared,
    SquaredHinge,
    kernel_risk,
    linear_risk,
    minimize,
)

RECORD = Path(__file__).with_name("runs.json")
TOL, LAM = 1e-4, 1e-2
RNG = np.random.default_rng(17)
N, P = 90, 6
X = RNG.standard_normal((N, P)) * (RNG.random((N, P)) < 0.8)
Z = X * [1.0, 100.0, 1e-2, 1.0, 10.0, 1.0] + [0.0, 1000.0, 3.0, 0.0, -20.0, 0.0]
MARGIN = X @ [1.0, -1.0, 0.5, 0.0, 0.0, 0.2] + 0.5 * RNG.standard_normal(N)
SIGN = np.where(MARGIN > 0, 1.0, -1.0)
CLASS = np.digitize(MARGIN, [-0.7, 0.7]).astype(float)
COUNT = RNG.poisson(np.exp(0.3 * MARGIN)).astype(float)
STORES = {"C": np.ascontiguousarray, "F": np.asfortranarray, "csr": sp.csr_array, "csc": sp.csc_array}
LOSSES = {
    "hinge": (Hinge(), SIGN),
    "squared_hinge": (SquaredHinge(), SIGN),
    "logistic": (Logistic(), SIGN),
    "squared": (Squared(), MARGIN),
    "absolute": (Absolute(), MARGIN),
    "huber": (Huber(), MARGIN),
    "quantile": (Quantile(0.8), MARGIN),
    "poisson": (Poisson(), COUNT),
    "roc_area": (RocArea(), SIGN),
    "f1": (FBeta(), SIGN),
    "ordinal": (Ordinal(), CLASS),
    "ndcg": (Ndcg(), CLASS),
    "softmax": (Softmax(), CLASS),
    "multiclass_hinge": (MulticlassHinge(), CLASS),
    "chain_crf": (ChainCrf(), CLASS),
    "chain_max_margin": (ChainMaxMargin(), CLASS),
}
MORE = {
    "ndcg": {"qid": np.repeat(np.arange(9), 10)},
    "chain_crf": {"lengths": [10] * 9},
    "chain_max_margin": {"lengths": [10] * 9},
}
# the order determines storage and intercept of each
NAMED_SOLVERS = [
    "accelerated_gradient", "bmrm", "bundle", "coordinate_descent", "dual", "dual_accelerated", "lbfgs",
    "line_search_bmrm", "newton", "owlqn", "proximal_gradient", "smoothing",
]  # fmt: skip
REGS = {"l2": L2(), "l1": L1(), "elastic": Elastic(0.3), "box": Box(L2(), -1.0, 1.0), "entropy": Entropy(0.5)}


def cases():
    """Names of cases: loss, regularizer, solver, storage, table, intercept."""
    without_intercept = ("roc_area", "ordinal", "ndcg", "chain_crf", "chain_max_margin")
    for k, loss in enumerate(LOSSES):
        yield from (
            (loss, "l2", "auto", store, "raw", loss not in without_intercept) for store in ("C", "csr")
        )
        yield loss, "l2", "auto", "F", "plain", False
        yield loss, "l1", "auto", "csc" if k % 2 else "C", "plain", False
        yield loss, "elastic", "bundle", "C", "plain", k % 2 == 0 and loss not in without_intercept
    for k, solver in enumerate(NAMED_SOLVERS):
        for loss in ("hinge", "logistic", "squared"):
            yield loss, "l2", solver, "csr" if k % 2 else "C", "plain", k % 3 == 0
    for loss, reg in itertools.product(("hinge", "logistic", "multiclass_hinge"), ("box", "entropy")):
        yield loss, reg, "auto", "C", "plain", False
    yield "hinge", "rkhs", "auto", "C", "plain", False
    yield "squared", "rkhs", "auto", "C", "plain", True


def result_of(case):
    """The result of a run, or None if the solver does not support the problem."""
    loss, reg, solver, store, table, intercept = case
    loss_object, y = LOSSES[loss]
    data = Z if table == "raw" else X
    try:
        if reg == "rkhs":
            risk, norm = kernel_risk(data, y, loss_object, "rbf", fit_intercept=intercept)
        else:
            settings = MORE.get(loss, {})
            risk = linear_risk(STORES[store](data), y, loss_object, fit_intercept=intercept, **settings)
            norm = REGS[reg]
        return minimize(Objective(risk, norm, LAM), solver, tol=TOL, max_iter=150)
    except (TypeError, ValueError):
        return None


def work(result):
    """Iterations, and passes over X outside of them."""
    return [result.n_iter, int(result.trace[-1]["calls"])]


def name_of(case):
    return " ".join(map(str, case))


@pytest.fixture(scope="module")
def recorded():
    return json.loads(RECORD.read_text(encoding="utf-8"))


def test_all_cases_are_recorded(recorded):
    assert [*recorded] == [name_of(case) for case in cases()]


@pytest.mark.parametrize("case", list(cases()), ids=name_of)
def test_runs_are_certified_with_the_recorded_work(case, recorded):
    then, result = recorded[name_of(case)], result_of(case)
    assert (result is not None) == then["supported"]
    if result is None:
        return
    assert (result.status == "converged") == then["converged"]
    minimum = then["minimum"]
    if minimum is not None:
        assert result.lower <= minimum * (1 + 1e-7)
        assert result.value >= minimum * (1 - 1e-7)
        assert result.status != "converged" or result.value <= minimum * (1 + 1.01 * TOL)
    # last bits differ between processors, and with them the iterations
    assert all(now <= 1.1 * before + 3 for now, before in zip(work(result), then["work"], strict=True))


def minimum_of(case):
    """The minimum by Clarabel, or None."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import reference

    loss, reg, _, _, table, intercept = case
    loss_object, y = LOSSES[loss]
    if reg == "rkhs" or loss in ("f1", "ndcg", "chain_crf", "chain_max_margin"):
        return None
    value = reference.optimum(
        loss_object, REGS[reg], Z if table == "raw" else X, y, None, LAM, intercept, **MORE.get(loss, {})
    )
    return None if math.isnan(value) else value


def record():
    """Write runs.json."""
    rows = {}
    for case in cases():
        result = result_of(case)
        rows[name_of(case)] = row = {"supported": result is not None}
        if result is not None:
            row |= {
                "converged": result.status == "converged",
                "minimum": minimum_of(case),
                "work": work(result),
            }
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    RECORD.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    record()

"""Golden runs: fits give the same results as before, and public names have the same signatures.

On the machine that wrote the files, statuses and solvers are equal, values and bounds agree to 1e-12, and the
iterations to two: only the order of operations may change. Last bits differ between processors and builds of
NumPy, and with them the iterations: on another machine, converged values agree to the tolerance of the runs.
`python tests/driver/test_golden.py` rewrites the files after an intended change.
"""

import inspect
import itertools
import json
import platform
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import riskmin
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

FOLDER = Path(__file__).parents[1] / "golden"
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
# the order determines storage and intercept of each; the former name of Newton comes second to last
NAMED_SOLVERS = [
    "accelerated_gradient", "bmrm", "bundle", "coordinate_descent", "dual", "dual_accelerated", "lbfgs",
    "line_search_bmrm", "newton", "owlqn", "proximal_gradient", "semismooth_newton", "smoothing",
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


def outcome(case):
    """The result of a run as JSON, with exact (hexadecimal) numbers."""
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
        result = minimize(Objective(risk, norm, 1e-2), solver, tol=1e-4, max_iter=150)
    except (TypeError, ValueError) as error:
        return {"error": type(error).__name__}
    numbers = {"value": result.value.hex(), "lower": float(result.lower).hex()}
    return {"status": result.status, "steps": result.n_iter, "solver": result.solver, **numbers}


def machine():
    """Everything on which the last bits depend."""
    blas = {k: v["name"] + v["version"] for k, v in np.show_config("dicts")["Build Dependencies"].items()}
    simd = np.show_config("dicts")["SIMD Extensions"].get("found", [])
    return [np.__version__, platform.machine(), blas, sorted(simd), riskmin_numba()]


def riskmin_numba():
    """The version of Numba and the target processor."""
    import llvmlite.binding
    import numba

    return [numba.__version__, llvmlite.binding.get_host_cpu_name()]


def name_of(case):
    return " ".join(map(str, case))


@pytest.fixture(scope="module")
def golden():
    return json.loads((FOLDER / "runs.json").read_text(encoding="utf-8"))


def test_all_cases_are_recorded(golden):
    assert [*golden["runs"]] == [name_of(case) for case in cases()]
    assert len(golden["runs"]) >= 60


@pytest.mark.parametrize("case", list(cases()), ids=name_of)
def test_runs_match_the_recorded_results(case, golden):
    then, now = golden["runs"][name_of(case)], outcome(case)
    assert now.get("error") == then.get("error")
    if "error" in then:
        return
    values, lowers = ([float.fromhex(run[key]) for run in (then, now)] for key in ("value", "lower"))
    if machine() == json.loads(json.dumps(golden["machine"])):
        assert (now["status"], now["solver"]) == (then["status"], then["solver"])
        assert abs(now["steps"] - then["steps"]) <= 2
        assert values[1] == pytest.approx(values[0], rel=1e-12, abs=0.0)
        assert lowers[1] == pytest.approx(lowers[0], rel=1e-12, abs=1e-12 * abs(values[0]))
    elif then["status"] == now["status"] == "converged":
        assert values[0] == pytest.approx(values[1], rel=2e-4)
        assert max(lowers) <= min(values) * (1 + 1e-12)


def names():
    """Every public name with its signature, and the public methods of classes with theirs."""
    signatures = {}
    for name in sorted(riskmin.__all__ if hasattr(riskmin, "__all__") else dir(riskmin)):
        public_object = getattr(riskmin, name)
        if name.startswith("_") or inspect.ismodule(public_object):
            continue
        signatures[name] = signature(public_object)
        if inspect.isclass(public_object):
            for method, f in inspect.getmembers(public_object, callable):
                if not method.startswith("_") and getattr(f, "__module__", "").startswith("riskmin"):
                    signatures[f"{name}.{method}"] = signature(f)
    return signatures


def signature(public_object):
    """The signature without annotations and addresses."""
    try:
        full = inspect.signature(public_object)
        bare = [each.replace(annotation=inspect.Parameter.empty) for each in full.parameters.values()]
        return re.sub(r" at 0x[0-9a-f]+", "", str(inspect.Signature(bare)))
    except (TypeError, ValueError):
        return repr(type(public_object).__name__)


def test_public_names_and_signatures_are_unchanged():
    """There may be new names, which the next rewrite of the file includes."""
    then, now = json.loads((FOLDER / "names.json").read_text(encoding="utf-8")), names()
    assert {name: now.get(name) for name in then} == then


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    runs = {name_of(case): outcome(case) for case in cases()}
    text = json.dumps({"machine": machine(), "runs": runs}, indent=1)
    (FOLDER / "runs.json").write_text(text + "\n", encoding="utf-8")
    (FOLDER / "names.json").write_text(json.dumps(names(), indent=1) + "\n", encoding="utf-8")
    print(len(runs), "runs,", sum("error" in run for run in runs.values()), "of them refused")

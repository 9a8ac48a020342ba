"""No fit, prediction, certificate or check changes one bit of its inputs, in any storage.

Sparse data with unsorted or duplicate entries give the result of their canonical form. Each case takes one
dense storage and two sparse ones; the storages take turns, so that each meets solvers, losses and estimators.
"""

import itertools

import numpy as np
import pytest

import riskmin as rm
from helpers import ALL_LOSSES, LIST_LOSSES, MANY_LOSSES, problem, risk_of
from riskmin import estimators as models
from riskmin.core import UnsupportedProblem
from riskmin.testing import check_inputs
from riskmin.testing.inputs import bits, storages

STORAGES = list(storages(np.eye(2)))
DENSE = [name for name in STORAGES if not name.startswith("CS")]
SPARSE = {kind: [name for name in STORAGES if name.startswith(kind + ",")] for kind in ("CSR", "CSC")}


def turns():
    """Names of a dense storage, of a sparse one, and of another with the same entries."""
    for k in itertools.count():
        kind = ("CSR", "CSC")[k % 2]
        yield DENSE[k % len(DENSE)], kind, SPARSE[kind][k // 2 % len(SPARSE[kind])]


def in_turn(cases):
    """Parameters: each case with the storages whose turn it is."""
    return [pytest.param(case, formats, id=str(case)) for case, formats in zip(cases, turns(), strict=False)]


def sparse_problem(loss, n=60, p=7):
    """A problem with zeros in X, and offsets and scales of the columns that solvers take out."""
    X, y, weights = problem(loss, n, p)
    rng = np.random.default_rng(1)
    shape = X.shape
    X = np.where(rng.random(shape) < 0.5, X * 10.0 ** rng.integers(-1, 2, p) + rng.integers(0, 3, p), 0.0)
    return X, y, weights


def run(X, y, weights, w0, *, loss, solver=None, reg=None, max_iter=8, **settings):
    """The point, value and bound of a run; None where the solver does not support the problem."""
    J = rm.Objective(risk_of(loss, X, y, weights, **settings), reg or rm.L2(np.linspace(1, 2, len(w0))), 0.1)
    try:
        result = rm.minimize(J, solver, w0, tol=1e-6, max_iter=max_iter)
    except UnsupportedProblem:
        return None
    return np.concatenate([result.w, [result.value, result.lower]])


def check_run(loss, formats, **settings):
    X, y, weights = sparse_problem(loss, n=40)
    w0 = np.full(risk_of(loss, X, y, weights).dim, 0.01)
    check_inputs(run, X, y, weights, w0, loss=loss, formats=formats, **settings)


PAIRS = list(itertools.product([rm.Hinge(), rm.Logistic(), rm.Softmax()], rm.SOLVERS))


@pytest.mark.parametrize(("pair", "formats"), in_turn(PAIRS))
def test_solvers_change_nothing(pair, formats):
    loss, name = pair
    check_run(loss, solver=rm.SOLVERS[name], formats=formats)


@pytest.mark.parametrize(("loss", "formats"), in_turn([*ALL_LOSSES, *MANY_LOSSES, *LIST_LOSSES]))
def test_default_runs_of_every_loss_change_nothing(loss, formats):
    check_run(loss, formats=formats[1:])


@pytest.mark.parametrize(("name", "formats"), in_turn(list(rm.REGULARIZERS)))
def test_default_runs_of_every_regularizer_change_nothing(name, formats):
    check_run(rm.Logistic(), formats=formats[1:], reg=rm.REGULARIZERS[name])


# ---------------------------------------------------------------- estimators
def classes(z, k=2):
    return np.digitize(z, np.quantile(z, np.arange(1, k) / k))


def fit_and_use(X, y, more, *, model):
    """Fit, predict, score, certify and summarize; the weights and the predictions."""
    model.fit(X, y, **more)
    results = [np.ravel(model.coef_)] if hasattr(model, "coef_") else []
    for name in ("predict", "decision_function", "predict_proba", "transform"):
        if hasattr(model, name):
            results.append(np.ravel(getattr(model, name)(X)))
    if hasattr(model, "score") and y is not None:
        model.score(X, y, **{k: v for k, v in more.items() if k != "groups"})
    if hasattr(model, "gap_") and not hasattr(model, "alphas_") and np.ndim(y) < 2:
        rm.certify(model, X, y, **more)
    return np.concatenate([r.astype(float) for r in results if r.dtype.kind in "biuf"])


Z = sparse_problem(rm.Logistic(), 60)[0] @ np.linspace(-1, 1, 7)
WEIGHTS = {"sample_weight": np.linspace(0.5, 2, 60)}
ESTIMATORS = {
    "hinge": (models.LinearClassifier("hinge"), classes(Z), WEIGHTS),
    "logistic, 3 classes": (models.LinearClassifier("logistic", standardize=True), classes(Z, 3), WEIGHTS),
    "squared hinge, text": (models.LinearClassifier("squared_hinge"), np.array(["a", "b"])[classes(Z)], {}),
    "roc area": (models.LinearClassifier("roc_area", alpha=0.1), classes(Z), {}),
    "lasso": (models.LinearRegressor("squared", regularizer="l1"), Z, WEIGHTS),
    "two outputs": (models.LinearRegressor("huber"), np.column_stack([Z, -Z]), {}),
    "no penalty": (models.LinearRegressor("squared", alpha=0), Z, WEIGHTS),
    "no penalty, constrained": (models.LinearRegressor("absolute", alpha=0, positive=True), Z, WEIGHTS),
    "times": (models.LinearRegressor("cox"), np.where(Z > 0.5, -1.0, 1.0) * np.exp(Z), WEIGHTS),
    "quantiles": (models.LinearQuantiles(), Z, WEIGHTS),
    "classes by folds": (models.LinearClassifierCV("logistic", alphas=2, cv=2), classes(Z), WEIGHTS),
    "regression by folds": (models.LinearRegressorCV("squared", alphas=2, cv=2), Z, WEIGHTS),
    "grades by folds": (models.OrdinalClassifierCV(alphas=2, cv=2), classes(Z, 3), WEIGHTS),
    "ranking by folds": (
        models.LinearRankerCV(alphas=2, cv=2),
        classes(Z, 3) * 1.0,
        {"qid": np.repeat(np.arange(6), 10)},
    ),
    "novelty": (models.NoveltyDetector(), None, WEIGHTS),
    "ordinal": (models.OrdinalClassifier(alpha=0.1), classes(Z, 3), WEIGHTS),
    "online": (models.OnlineClassifier(), classes(Z), {}),
    "kernel classes": (models.KernelClassifier(), classes(Z), WEIGHTS),
    "kernel regression": (models.KernelRegressor(), Z, WEIGHTS),
    "incomplete Cholesky": (models.IncompleteCholesky(), None, {}),
    "ranker": (models.LinearRanker(alpha=0.1), classes(Z, 3) * 1.0, {"qid": np.repeat(np.arange(6), 10)}),
}


@pytest.mark.parametrize(("name", "formats"), in_turn(list(ESTIMATORS)))
@pytest.mark.filterwarnings("ignore")
def test_estimators_change_nothing(name, formats):
    model, y, more = ESTIMATORS[name]
    check_inputs(fit_and_use, sparse_problem(rm.Logistic())[0], y, more, formats=formats, model=model)


@pytest.mark.filterwarnings("ignore")
def test_taggers_change_nothing():
    def tag(X, y, lengths):
        model = models.ChainTagger().fit(X, y, lengths=lengths)
        model.score(X, y, lengths=lengths)
        rm.certify(model, X, y, lengths=lengths)
        return np.append(model.coef_, model.predict(X, lengths=lengths))

    formats = "read only", "CSR", "CSR, duplicates"
    check_inputs(tag, sparse_problem(rm.Logistic())[0], classes(Z, 3), np.full(12, 5), formats=formats)


@pytest.mark.parametrize("frame", ["pandas", "polars", "pyarrow"])
@pytest.mark.filterwarnings("ignore")
def test_frames_and_lists_are_not_changed(frame):
    X, y, weights = sparse_problem(rm.Logistic())
    table = {f"x{j}": column for j, column in enumerate(X.T)}
    make = pytest.importorskip(frame)
    rows = make.table(table) if frame == "pyarrow" else make.DataFrame(table)
    labels = make.array(y) if frame == "pyarrow" else make.Series(y)
    given = {"X": rows, "y": labels, "sample_weight": weights.tolist()}
    before = {name: bits(value if name != "y" else np.asarray(value)) for name, value in given.items()}
    model = models.LinearClassifier("logistic", standardize=True).fit(**given)
    model.predict(rows)
    rm.certify(model, rows, labels, sample_weight=weights)
    after = {name: bits(value if name != "y" else np.asarray(value)) for name, value in given.items()}
    assert after == before


def test_kernel_risks_and_paths_change_nothing():
    X, y, weights = sparse_problem(rm.Logistic())

    def kernel(X, y, weights):
        risk, reg = rm.kernel_risk(X, y, "hinge", "poly", sample_weight=weights)
        return rm.minimize(rm.Objective(risk, reg, 0.1)).w

    def path(X, y, weights):
        risk = rm.linear_risk(X, y, "squared", sample_weight=weights)
        return np.array([r.value for r in rm.path(risk, rm.L1(), [1.0, 0.1])])

    for function, formats in zip((kernel, path), turns(), strict=False):
        check_inputs(function, X, y, weights, formats=formats)


def test_a_changed_input_is_found():
    def sort(X):
        if hasattr(X, "sum_duplicates") and hasattr(X, "indices"):
            X.sum_duplicates()

    with pytest.raises(AssertionError, match="it changes X, where X is stored as CSR, unsorted"):
        check_inputs(sort, np.eye(3) + 1)

    def count(X):
        return getattr(X, "nnz", 0)

    with pytest.raises(
        AssertionError, match="its result differs from that of CSR, where X is stored as CSR, dup"
    ):
        check_inputs(count, np.eye(3) + 1)

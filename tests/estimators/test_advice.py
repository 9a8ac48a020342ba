"""Warnings of fits that did not converge, and the absolute tolerance."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import ConvergenceWarning

from riskmin import (
    SOLVERS,
    Bundle,
    ChainTagger,
    GroupLasso,
    HierarchicalClassifier,
    KernelClassifier,
    KernelRegressor,
    LinearClassifier,
    LinearClassifierCV,
    LinearRanker,
    LinearRegressor,
    LinearRegressorCV,
    NoveltyDetector,
    OrdinalClassifier,
    load_model,
    save_model,
)
from riskmin.estimators.certification import certify

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 5))
Y = X[:, 0] + 0.5 * RNG.normal(size=200) > 0
NAMES = ["rate", "income", "tiny", "time", "x"]
ILL = pd.DataFrame(X * [1, 1e6, 1e-3, 1, 1], columns=NAMES)
LINE = X @ np.arange(5.0) + 1
"""Labels that a linear function fits, so that J all but vanishes."""


def convergence_warning(model, *data, **more):
    """The message of the convergence warning of a fit."""
    with pytest.warns(ConvergenceWarning) as caught:
        model.fit(*data, **more)
    assert len(caught) == 1
    message = str(caught[0].message)
    assert message.count(". ") <= 1  # two sentences at most
    return message


# ---------------------------------------------------------------- columns
def test_columns_of_different_scale_are_named():
    message = convergence_warning(LinearClassifier(max_iter=1), ILL, Y)
    assert "LinearClassifier stopped with status 'max_iter' at a certified relative gap of" in message
    assert "above tol=0.001: raise max_iter, tol or alpha" in message
    assert "Standard deviations of columns differ by a factor of" in message
    for j in (1, 2):
        mean, deviation = X[:, j].mean() * [1, 1e6, 1e-3][j], X[:, j].std() * [1, 1e6, 1e-3][j]
        assert f"{NAMES[j]!r}: mean {mean:.3g}, standard deviation {deviation:.3g}" in message
    assert not any(repr(name) in message for name in ("rate", "time", "x"))
    assert message.endswith("set standardize=True, or put a StandardScaler before it in a pipeline")
    assert "column 1: mean" in convergence_warning(LinearClassifier(max_iter=1), ILL.to_numpy(), Y)


def test_only_few_and_badly_scaled_columns_are_named():
    ill_scaled = X * [1e6, 1e7, 1.0, 1e-5, 1e-6]
    assert convergence_warning(LinearClassifier(max_iter=1), ill_scaled, Y).count("standard deviation ") == 3
    assert "Standard deviations" not in convergence_warning(
        LinearClassifier(max_iter=1), X * [1, 1e3, 1, 1, 1], Y
    )
    assert "Standard deviations" not in convergence_warning(
        LinearClassifier(max_iter=1, standardize=True), ILL, Y
    )
    constant = np.c_[X, np.full(200, 1e9)]
    assert "column" not in convergence_warning(LinearClassifier(max_iter=1), constant, Y)


def test_columns_far_from_zero_are_named():
    message = convergence_warning(
        LinearClassifier(max_iter=1, standardize=True), ILL.assign(time=X[:, 3] + 1e9), Y
    )
    assert "means far larger than their standard deviations ('time': mean 1e+09, standard" in message
    assert message.endswith("put a StandardScaler before it in a pipeline")


@pytest.mark.parametrize(
    ("model", "y", "more"),
    [
        (LinearRegressor("absolute"), np.c_[LINE, -LINE], {}),
        (LinearRanker(), np.digitize(LINE, [-1, 1]), {"qid": np.arange(200) % 7}),
        (OrdinalClassifier(), np.digitize(LINE, [-1, 1]), {}),
        (HierarchicalClassifier("softmax"), np.digitize(LINE, [-1, 1]), {}),
        (NoveltyDetector(), None, {}),
    ],
)
def test_all_estimators_name_columns(model, y, more):
    model.set_params(max_iter=1, tol=1e-9)
    assert "'income': mean" in convergence_warning(model, ILL, y, **more)


# ---------------------------------------------------------------- solvers and limits
def test_another_solver_is_recommended():
    for model in (
        LinearClassifier(),
        LinearClassifier("logistic"),
        LinearClassifier("logistic", regularizer="l1"),
    ):
        message = convergence_warning(model.set_params(max_iter=1), X, Y)
        name = message.split("or try solver='")[1].split("'")[0]
        assert type(SOLVERS[name]).__name__ not in model.result_.solver
        assert model.set_params(max_iter=10_000, solver=name).fit(X, Y).result_.status == "converged"
    assert "or try solver='auto'" in convergence_warning(
        LinearClassifier(solver="lbfgs", alpha=1e-6, tol=1e-9), X, Y
    )
    assert "or try solver='auto'" in convergence_warning(LinearClassifier(solver=Bundle(), max_iter=1), X, Y)
    assert "or try solver='bundle'" in convergence_warning(KernelClassifier(max_iter=1), X, Y)


@pytest.mark.parametrize(("loss", "y"), [("squared", LINE), ("quantile", LINE)])
@pytest.mark.parametrize("standardize", [False, True])
def test_no_solver_is_recommended_that_refuses_the_regularizer(loss, y, standardize):
    model = LinearRegressor(loss, alpha=0.01, tol=1e-9, max_iter=1, standardize=standardize)
    message = convergence_warning(model.set_params(regularizer=GroupLasso([0, 0, 1, 1, 1])), X * 3, y)
    assert message.endswith("raise max_iter, tol or alpha, or give GroupLasso a ridge > 0")
    message = convergence_warning(model.set_params(regularizer=GroupLasso([0, 0, 1, 1, 1], ridge=0.1)), X, y)
    assert "ridge" not in message


def test_limits_and_unreachable_tolerances():
    assert ": raise max_seconds, tol or alpha" in convergence_warning(
        LinearClassifier(max_seconds=1e-9), X, Y
    )
    assert convergence_warning(LinearClassifier("logistic", tol=0), X, Y).endswith(
        "above tol=0: raise tol, since double precision proves no smaller gap for this problem"
    )
    stopped = LinearClassifier(callback=lambda iterate, row: True)
    assert convergence_warning(stopped, ILL, Y).endswith(
        "with warm_start=True to continue from the current weights"
    )


# ---------------------------------------------------------------- the absolute tolerance
@pytest.mark.parametrize(
    ("model", "y"),
    [
        (LinearRegressor("absolute", alpha=1e-14), LINE),
        (LinearRegressor("squared", alpha=1e-30), LINE),
        (LinearRegressor("absolute", alpha=1e-14), np.c_[LINE, -LINE]),
        (LinearClassifier(alpha=1e-14), LINE > 1),
    ],
)
def test_absolute_tolerance_gives_convergence(model, y, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(X, y)
    assert (model.result_.status, model.result_.criterion) == ("converged", "atol")
    assert model.gap_ > model.tol * model.objective_
    save_model(model, tmp_path / "m")
    again = load_model(tmp_path / "m")
    assert (again.atol, again.result_.criterion) == (None, "atol")
    if np.ndim(y) == 1:
        certification = certify(again, X, y)
        assert (certification.status, again.result_.criterion) == ("certified", "atol"), certification.reason


def test_all_estimators_have_atol():
    kinds = [LinearClassifier, LinearClassifierCV, LinearRegressor, LinearRegressorCV, OrdinalClassifier]
    kinds += [
        LinearRanker,
        NoveltyDetector,
        HierarchicalClassifier,
        ChainTagger,
        KernelClassifier,
        KernelRegressor,
    ]
    for kind in kinds:
        assert kind().get_params()["atol"] == (0.0 if kind is NoveltyDetector else None)
    loose = LinearClassifier(atol=0.5, tol=1e-9).fit(X, Y)
    assert (loose.result_.criterion, loose.gap_ <= 0.5) == ("atol", True)
    strict = LinearClassifier(atol=0.0, tol=1e-6).fit(X, Y)
    assert (strict.result_.criterion, strict.gap_ <= 1e-6 * strict.objective_) == ("tol", True)
    for atol in (-1.0, "small", float("nan")):
        with pytest.raises(
            ValueError, match=r"atol=.*, but LinearClassifier needs atol to be None or a number >= 0"
        ):
            LinearClassifier(atol=atol).fit(X, Y)
    cv = LinearClassifierCV(alphas=[1e-4], cv=2, atol=0.05, tol=0).fit(X, Y)
    assert (cv.n_not_converged_, cv.result_.criterion) == (0, "atol")


def test_false_claims_of_the_absolute_tolerance_are_refuted():
    model = LinearClassifier(atol=0.5, tol=1e-9).fit(X, Y)
    model.atol = 0.01 * model.gap_
    assert "converged to an absolute gap of" in certify(model, X, Y).reason
    model.atol = None
    assert certify(model, X, Y).status == "refuted"


# ---------------------------------------------------------------- the command
@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.csv"
    ILL.assign(label=Y.astype(int)).to_csv(path, index=False)
    return path


def test_command_names_columns(table, tmp_path, run):
    code, _, err = run("fit", table, "--max-iter", 1, "-o", tmp_path / "m")
    assert code == 3
    assert "above the 0.001 asked for; raise --max-iter, --tol or --lam, or try --solver bundle. " in err
    assert "'income': mean" in err
    assert err.endswith("add --standardize\n")
    code, _, err = run("path", table, "--max-iter", 1, "--tol", 1e-9, "--n-lams", 2)
    assert (code, "'income': mean" in err) == (3, True)
    code, _, err = run(
        "cv", table, "--max-iter", 1, "--tol", 1e-9, "--lams", 1e-4, "--folds", 2, "-o", tmp_path / "m"
    )
    assert (code, "'income': mean" in err) == (3, True)


def test_command_prints_the_tolerance_met(tmp_path, run):
    data = tmp_path / "line.csv"
    pd.DataFrame(X, columns=NAMES).assign(target=LINE).to_csv(data, index=False)
    model, page = tmp_path / "m", tmp_path / "page.html"
    code, out, _ = run("fit", data, "--loss", "absolute", "--lam", 1e-14, "-o", model, "--report", page)
    assert code == 0
    assert "converged, by --atol: the gap is" in out
    assert "at most 1e-6 tol of the risk at w = 0" in out
    assert "converged, by atol" in page.read_text()
    code, out, _ = run("certify", model, data)
    assert (code, "the absolute one (atol)" in out) == (0, True)
    assert "of the optimum, in absolute terms" in out
    code, out, _ = run("fit", data, "--loss", "squared", "--atol", 5.0, "--tol", 0, "--json", "-o", model)
    assert (code, json.loads(out)["criterion"], json.loads(out)["atol"]) == (0, "atol", 5.0)
    assert load_model(model).atol == 5.0
    code, out, _ = run("path", data, "--loss", "squared", "--atol", 5.0, "--tol", 0, "--lams", 1e-3, "--json")
    assert (code, json.loads(out)["path"][0]["criterion"]) == (0, "atol")

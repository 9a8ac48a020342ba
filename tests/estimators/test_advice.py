"""Warnings of fits that did not converge, and the absolute tolerance."""

import json

import numpy as np
import pandas as pd
import pytest
from estimator_cases import CASES, FAR, HIGH, X
from sklearn.exceptions import ConvergenceWarning

import riskmin as rm
from helpers import ticking_clock

NAMES = ["rate", "income", "tiny", "time"]
UNITS = np.array([1, 1e6, 1e-3, 1])
ILL = pd.DataFrame(X * UNITS, columns=NAMES)
LINE = X @ np.arange(4.0) + 1
"""Labels that a linear function fits, so that J all but vanishes."""
SHORT = {"max_iter": 1, "tol": 1e-9}


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
    message = convergence_warning(rm.LinearClassifier(**SHORT), ILL, HIGH)
    assert "LinearClassifier stopped with status 'max_iter' at a certified relative gap of" in message
    assert "above tol=1e-09: raise max_iter, tol or alpha" in message
    assert "Standard deviations of columns differ by a factor of" in message
    for j in (1, 2):
        mean, deviation = X[:, j].mean() * UNITS[j], X[:, j].std() * UNITS[j]
        assert f"{NAMES[j]!r}: mean {mean:.3g}, standard deviation {deviation:.3g}" in message
    assert not any(repr(name) in message for name in ("rate", "time"))
    assert message.endswith("set standardize=True, or put a StandardScaler before it in a pipeline")
    assert "column 1: mean" in convergence_warning(rm.LinearClassifier(**SHORT), ILL.to_numpy(), HIGH)


def test_only_few_and_badly_scaled_columns_are_named():
    many = np.c_[X, X[:, 0]] * [1e6, 1e7, 1.0, 1e-5, 1e-6]
    assert convergence_warning(rm.LinearClassifier(**SHORT), many, HIGH).count("standard deviation ") == 3
    for model, rows in [
        (rm.LinearClassifier(**SHORT), X * [1, 1e3, 1, 1]),
        (rm.LinearClassifier(**SHORT, standardize=True), ILL),
        (rm.LinearClassifier(**SHORT), np.c_[X, np.full(len(X), 1e9)]),
    ]:
        assert "standard deviation" not in convergence_warning(model, rows, HIGH).lower()


def test_columns_far_from_zero_are_named():
    far = ILL.assign(time=X[:, 3] + 1e9)
    message = convergence_warning(rm.LinearClassifier(**SHORT, standardize=True), far, HIGH)
    assert "means far larger than their standard deviations ('time': mean 1e+09, standard" in message
    assert message.endswith("put a StandardScaler before it in a pipeline")


@pytest.mark.parametrize("name", ["outputs apart", "ranking", "grades", "tree", "novelty"])
def test_all_estimators_name_columns(name):
    case = CASES[name]
    model = type(case.model)(**case.model.get_params() | SHORT)
    assert "'income': mean" in convergence_warning(model, ILL, case.y, **case.more)


# ---------------------------------------------------------------- solvers and limits
@pytest.mark.parametrize(
    "settings", [{}, {"loss": "logistic"}, {"loss": "logistic", "regularizer": "l1"}], ids=repr
)
def test_another_solver_is_recommended(settings):
    model = rm.LinearClassifier(alpha=0.1, **settings, **SHORT)
    name = convergence_warning(model, X, HIGH).split("or try solver='")[1].split("'")[0]
    assert type(rm.SOLVERS[name]).__name__ not in model.result_.solver
    model.set_params(max_iter=10_000, solver=name, tol=1e-3).fit(X, HIGH)
    assert model.result_.status == "converged"


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (rm.LinearClassifier(solver="lbfgs", **SHORT), "or try solver='auto'"),
        (rm.LinearClassifier(solver=rm.Bundle(), **SHORT), "or try solver='auto'"),
        (rm.KernelClassifier(**SHORT), "or try solver='bundle'"),
        (rm.LinearClassifier(max_seconds=1e-9, tol=1e-9), ": raise max_seconds, tol or alpha"),
        (rm.LinearClassifier("logistic", tol=0), "raise tol, since double precision proves no smaller gap"),
        (
            rm.LinearClassifier(callback=lambda *_: True, tol=1e-9),
            "with warm_start=True to continue from the",
        ),
    ],
)
def test_the_remedy_is_that_of_the_cause(model, words):
    with ticking_clock():
        assert words in convergence_warning(model, X, HIGH)


@pytest.mark.parametrize(("loss", "standardize"), [("squared", False), ("quantile", True)])
def test_no_solver_is_recommended_that_refuses_the_regularizer(loss, standardize):
    model = rm.LinearRegressor(loss, alpha=0.01, standardize=standardize, **SHORT)
    message = convergence_warning(model.set_params(regularizer=rm.GroupLasso([0, 0, 1, 1])), X * 3, LINE)
    assert message.endswith("raise max_iter, tol or alpha, or give GroupLasso a ridge > 0")
    message = convergence_warning(
        model.set_params(regularizer=rm.GroupLasso([0, 0, 1, 1], ridge=0.1)), X, LINE
    )
    assert "ridge" not in message


# ---------------------------------------------------------------- the absolute tolerance
@pytest.mark.parametrize(
    ("model", "y"),
    [
        (rm.LinearRegressor("absolute", alpha=1e-14), LINE),
        (rm.LinearRegressor("squared", alpha=1e-30), LINE),
        (rm.LinearRegressor("absolute", alpha=1e-14), np.c_[LINE, -LINE]),
        (rm.LinearClassifier(alpha=1e-18), LINE > 1),
    ],
)
def test_an_absolute_tolerance_gives_convergence(model, y, tmp_path):
    model.fit(X, y)
    assert (model.result_.status, model.result_.criterion) == ("converged", "atol")
    assert model.gap_ > model.tol * model.objective_
    rm.save_model(model, tmp_path / "m")
    again = rm.load_model(tmp_path / "m")
    assert (again.atol, again.result_.criterion) == (None, "atol")
    if np.ndim(y) == 1:
        assert rm.certify(again, X, y).status == "certified"


def test_the_tolerance_that_was_met_is_named():
    loose = rm.LinearClassifier(atol=0.5, tol=1e-9).fit(X, HIGH)
    assert (loose.result_.criterion, loose.gap_ <= 0.5) == ("atol", True)
    strict = rm.LinearClassifier(atol=0.0, tol=1e-6).fit(X, HIGH)
    assert (strict.result_.criterion, strict.gap_ <= 1e-6 * strict.objective_) == ("tol", True)
    search = rm.LinearClassifierCV(alphas=[1e-4], cv=2, atol=0.05, tol=0).fit(X, HIGH)
    assert (search.n_not_converged_, search.result_.criterion) == (0, "atol")
    rough = rm.LinearClassifier(alpha=1e-3, solver="bmrm", atol=0.1, tol=1e-9).fit(
        FAR / FAR.std(axis=0), HIGH
    )
    rough.atol = 0.01 * rough.gap_
    found = rm.certify(rough, FAR / FAR.std(axis=0), HIGH)
    assert (found.status, "converged to an absolute gap of" in found.reason) == ("refuted", True)


# ---------------------------------------------------------------- the command
def test_the_command_names_columns(tmp_path, run):
    table = tmp_path / "table.csv"
    ILL.assign(label=HIGH.astype(int)).to_csv(table, index=False)
    short = ("--max-iter", 1, "--tol", 1e-9)
    code, _, err = run("fit", table, *short, "-o", tmp_path / "m")
    assert (code, "'income': mean" in err) == (3, True)
    assert "above the 1e-09 asked for; raise --max-iter, --tol or --lam, or try --solver " in err
    assert err.endswith("add --standardize\n")
    for command in (("path", "--n-lams", 2), ("cv", "--lams", 1e-4, "--folds", 2, "-o", tmp_path / "m")):
        code, _, err = run(command[0], table, *short, *command[1:])
        assert (code, "'income': mean" in err) == (3, True)


def test_the_command_prints_the_tolerance_met(tmp_path, run):
    data, model, page = tmp_path / "line.csv", tmp_path / "m", tmp_path / "page.html"
    rows = np.random.default_rng(0).normal(size=(200, 5))
    pd.DataFrame(rows, columns=list("abcde")).assign(target=rows @ np.arange(5.0) + 1).to_csv(
        data, index=False
    )
    code, out, _ = run("fit", data, "--loss", "absolute", "--lam", 1e-14, "-o", model, "--report", page)
    assert code == 0
    assert "converged, by --atol: the gap is" in out
    assert "at most 1e-6 tol of the risk at w = 0" in out
    assert "converged, by atol" in page.read_text()
    code, out, _ = run("certify", model, data)
    assert (code, "the absolute one (atol)" in out) == (0, True)
    assert "of the optimum, in absolute terms" in out
    more = ("--loss", "squared", "--atol", 5.0, "--tol", 0, "--json")
    code, out, _ = run("fit", data, *more, "-o", model)
    assert (code, json.loads(out)["criterion"], json.loads(out)["atol"]) == (0, "atol", 5.0)
    assert rm.load_model(model).atol == 5.0
    code, out, _ = run("path", data, *more, "--lams", 1e-3)
    assert (code, json.loads(out)["path"][0]["criterion"]) == (0, "atol")

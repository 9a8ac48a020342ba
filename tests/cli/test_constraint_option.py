"""`--constraint`: linear constraints on the weights, by the names of the columns."""

import cvxpy as cp
import numpy as np
import pandas as pd
import pytest
from command_files import run_json

import riskmin as rm
from riskmin.cli.constraints import parse_constraint

inf = np.inf
WRITTEN = {
    "a <= 1": ({"a": 1}, -inf, 1),
    "-a+2*b>=-.5": ({"a": -1, "b": 2}, -0.5, inf),
    "2 a = b": ({"a": 2, "b": -1}, 0, 0),
    "1e-3 'a b' == `c=d` - 3": ({"a b": 1e-3, "c=d": -1}, -3, -3),
    "0 <= a + b - 1 <= 2": ({"a": 1, "b": 1}, 1, 3),
    "1 >= a >= -1": ({"a": 1}, -1, 1),
    "a + a <= 3 + 1": ({"a": 2}, -inf, 4),
    "größe2 <= x.1": ({"größe2": 1, "x.1": -1}, -inf, 0),
}
NOT_WRITTEN = [
    "",
    "a",
    "a < 1",
    "a <= ",
    "a b <= 1",
    "1 <= 2",
    "a - a <= 1",
    "a <= b <= c",
    "a <= 1 <= b <= 2",
    "'a <= 1",
]


@pytest.mark.parametrize("text", WRITTEN)
def test_a_constraint_is_read_as_written(text):
    factors, lower, upper = parse_constraint(text)
    assert ({name: f for name, f in factors.items() if f}, lower, upper) == WRITTEN[text]


@pytest.mark.parametrize("text", NOT_WRITTEN)
def test_anything_else_is_refused_in_one_sentence(text):
    with pytest.raises(ValueError, match=r"write|name a column"):
        parse_constraint(text)


def test_fit_path_and_cv_obey_the_constraints(tmp_path, run):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3))
    y = X @ [3.0, -2.0, 1.0] + rng.normal(size=80)
    pd.DataFrame({"a": X[:, 0], "b c": X[:, 1], "d": X[:, 2], "y": y}).to_csv(tmp_path / "t.csv", index=False)
    constraints = ("--constraint", "a + 'b c' = d", "--constraint", "-1 <= d <= 0.5", "--loss", "squared")
    fit = ("fit", tmp_path / "t.csv", *constraints, "--lam", 0.01, "--tol", 1e-8, "-o", tmp_path / "m")
    _, facts = run_json(run, *fit)
    w, b = cp.Variable(3), cp.Variable()
    # the squared loss is (z - y)^2 / 2
    J = cp.sum_squares(X @ w + b - y) / 160 + 0.005 * cp.sum_squares(w)
    cp.Problem(cp.Minimize(J), [w[0] + w[1] == w[2], w[2] >= -1, w[2] <= 0.5]).solve(solver=cp.CLARABEL)
    model = rm.load_model(tmp_path / "m")
    np.testing.assert_allclose(model.coef_, w.value, atol=1e-4)
    assert facts["objective"] == pytest.approx(J.value, rel=1e-6)
    assert facts["lower_bound"] <= J.value * (1 + 1e-7)
    assert facts["reg"] == "L2() under 2 linear constraints"
    assert run("certify", tmp_path / "m", tmp_path / "t.csv")[0] == 0
    for k, point in enumerate(
        run_json(run, "path", tmp_path / "t.csv", *constraints, "--lams", "1,0.01")[1]["path"]
    ):
        assert point["status"] == "converged"
        assert k == 0 or point["objective"] == pytest.approx(J.value, rel=2e-3)
    run_json(run, "cv", tmp_path / "t.csv", *constraints, "--lams", "1,0.01", "-o", tmp_path / "best")
    best = rm.load_model(tmp_path / "best").coef_
    assert best[0] + best[1] == pytest.approx(best[2], abs=1e-8)
    assert -1 <= best[2] <= 0.5 + 1e-9


def test_columns_without_names_and_grades(tmp_path, run):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    lines = [f"{np.digitize(x[0], [-1, 1])} 1:{x[0]} 2:{x[1]}" for x in X]
    (tmp_path / "t.svm").write_text("\n".join(lines) + "\n")
    more = ("--loss", "ordinal", "--constraint", "x0 <= 0.25", "-o", tmp_path / "m")
    run_json(run, "cv", tmp_path / "t.svm", *more, "--lams", "0.001", "--folds", 2)
    assert rm.load_model(tmp_path / "m").coef_[0] == pytest.approx(0.25, abs=1e-6)

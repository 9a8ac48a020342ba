"""The solver for benchopt, run by an installed benchopt on objectives as its benchmarks have them."""

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("benchopt", reason="benchopt is not installed: pip install benchopt")

PLUGIN = Path(__file__).parents[2] / "benchmarks" / "benchopt" / "riskmin.py"

SQUARED, L1, L2 = "(r @ r) / 2", "abs(w).sum()", "(w @ w) / 2"
LOG = "np.logaddexp(0, -self.y * z).sum()"
HINGE = "np.maximum(1 - self.y * z, 0).sum()"
PINBALL = "np.maximum(0.8 * r, -0.2 * r).mean()"
HUBER = "np.where(abs(r) <= 1.35, r**2, 2 * 1.35 * abs(r) - 1.35**2).sum()"
OBJECTIVES = {
    # the folder: what set_objective is given beside X and y, the formula, and the name of the result
    "benchmark_lasso": ("lmbd=8.0, fit_intercept=True", f"{SQUARED} + 8 * {L1}", "beta"),
    "benchmark_elastic_net": (
        "lmbda=0.2, l1_ratio=0.9, fit_intercept=False",
        f"{SQUARED} / len(r) + 0.2 * (0.9 * {L1} + 0.1 * {L2})",
        "beta",
    ),
    "benchmark_ridge": ("lmbd=0.5, fit_intercept=True", f"{SQUARED} + 0.5 * {L2}", "beta"),
    "benchmark_logreg_l2": ("lmbd=0.1, fit_intercept=True", f"{LOG} + 0.1 * {L2}", "beta"),
    "benchmark_logreg_l1": ("lmbd=3.0", f"{LOG} + 3 * {L1}", "beta"),
    "benchmark_linear_svm_binary_classif_no_intercept": ("C=0.05", f"0.05 * {HINGE} + {L2}", "beta"),
    "benchmark_quantile_regression": (
        "lmbd=0.1, quantile=0.8, fit_intercept=False",
        f"{PINBALL} + 0.1 * {L1}",
        "params",
    ),
    "benchmark_huber_l2": ("lmbd=1.0, epsilon=1.35", f"{HUBER} + 2 * {L2}", "params"),
}
OBJECTIVE = """
    import numpy as np
    from benchopt import BaseObjective
    from scipy.optimize import minimize

    class Objective(BaseObjective):
        name = "test"

        def set_data(self, X, y):
            self.X, self.y = X, y

        def J(self, w, b):
            z = self.X @ w + b
            r = self.y - z
            return float({formula})

        def evaluate_result(self, {result}):
            p = self.X.shape[1]
            v = {result}
            first = {first}
            w, b = (v[-p:], v[0]) if first else (v[:p], v[p:].sum())
            return dict(value=self.J(w, b), weights=len(v))

        def get_one_result(self):
            return dict({result}=np.zeros(self.X.shape[1]))

        def get_objective(self):
            return dict(X=self.X, y=self.y, {arguments})
"""
DATA = """
    import numpy as np
    from benchopt import BaseDataset

    class Dataset(BaseDataset):
        name = "simulated"

        def get_data(self):
            rng = np.random.default_rng(0)
            X = rng.normal(size=(80, 6))
            z = X @ [2.0, -1.0, 0.5, 0.0, 0.0, 0.1] + 0.3
            y = z + rng.standard_t(3, size=80)
            return dict(X=X, y=np.sign(y) if {signs} else y)
"""


def minimum(folder, formula, *, intercept):
    """The minimum of J by a general method for convex problems, on the rows of the data set."""
    import cvxpy as cp
    import numpy as np

    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 6))
    y = X @ [2.0, -1.0, 0.5, 0.0, 0.0, 0.1] + 0.3 + rng.standard_t(3, size=80)
    w, b = cp.Variable(6), cp.Variable() if intercept else 0.0
    y = np.sign(y) if "self.y" in formula else y
    z = X @ w + b
    r, l1, l2 = y - z, cp.norm1(w), cp.sum_squares(w) / 2
    J = {
        "lasso": cp.sum_squares(r) / 2 + 8 * l1,
        "elastic_net": cp.sum_squares(r) / 160 + 0.2 * (0.9 * l1 + 0.1 * l2),
        "ridge": cp.sum_squares(r) / 2 + 0.5 * l2,
        "logreg_l2": cp.sum(cp.logistic(-cp.multiply(y, z))) + 0.1 * l2,
        "logreg_l1": cp.sum(cp.logistic(-cp.multiply(y, z))) + 3 * l1,
        "linear_svm_binary_classif_no_intercept": 0.05 * cp.sum(cp.pos(1 - cp.multiply(y, z))) + l2,
        "quantile_regression": cp.sum(cp.maximum(0.8 * r, -0.2 * r)) / 80 + 0.1 * l1,
        "huber_l2": cp.sum(cp.huber(r, 1.35)) + 2 * l2,
    }[folder.removeprefix("benchmark_")]
    return cp.Problem(cp.Minimize(J)).solve(solver=cp.CLARABEL)


@pytest.mark.parametrize("folder", OBJECTIVES)
def test_benchopt_reaches_the_minimum(folder, tmp_path):
    arguments, formula, result = OBJECTIVES[folder]
    home = tmp_path / folder
    (home / "solvers").mkdir(parents=True)
    (home / "datasets").mkdir()
    first = folder == "benchmark_huber_l2"
    text = OBJECTIVE.format(formula=formula, arguments=arguments, result=result, first=first)
    (home / "objective.py").write_text(textwrap.dedent(text))
    (home / "datasets" / "simulated.py").write_text(textwrap.dedent(DATA.format(signs="self.y" in formula)))
    shutil.copy(PLUGIN, home / "solvers" / "riskmin.py")
    options = ["run", str(home), "-l", "--no-plot", "--no-html", "-n", "200"]
    command = [str(Path(sys.executable).with_name("benchopt")), *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = home.rglob("*.parquet")
    table = pd.read_parquet(file)
    assert set(table["solver_name"].str.partition("[")[0]) == {"riskmin"}, done.stdout
    best = minimum(folder, formula, intercept=first or "fit_intercept=True" in arguments)
    assert table["objective_value"].min() == pytest.approx(best, rel=1e-6), done.stdout
    assert (table["objective_value"] >= best * (1 - 1e-7)).all()

"""Multipliers prove the gap of a model, by formulas of their own: the conjugate of a loss is a maximum."""

import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import scipy.sparse as sp

from riskmin import (
    L1,
    L2,
    DualCoordinateAscent,
    Elastic,
    KernelClassifier,
    LinearClassifier,
    LinearRegressor,
    Objective,
    SquaredHinge,
    get_loss,
    linear_risk,
    load_model,
    minimize,
    multipliers,
    optimum_region,
    save_model,
)

RNG = np.random.default_rng(0)
N, P = 120, 4
X = RNG.standard_normal((N, P)) * [1.0, 30.0, 0.1, 1.0]
Z = X @ [1.0, 0.03, 5.0, 0.0]
REAL = Z + RNG.standard_normal(N)
LABELS = {
    "classification": np.where(REAL > 0, "yes", "no"),
    "multiclass": np.digitize(REAL, [-1.0, 1.0]),
    "regression": REAL,
}
COUNTS = RNG.poisson(np.exp(Z / 2)).astype(float)
WEIGHTS = RNG.uniform(0.0, 2.0, N) * (np.arange(N) % 7 > 0)
GRID = np.concatenate([-np.geomspace(1e-4, 60, 4000)[::-1], [0.0], np.geomspace(1e-4, 60, 4000)])
FORMULAS = {
    "hinge": lambda z, y: np.maximum(0, 1 - y * z),
    "squared_hinge": lambda z, y: np.maximum(0, 1 - y * z) ** 2 / 2,
    "power_hinge": lambda z, y: np.maximum(0, 1 - y * z) ** 1.5 / 1.5,
    "smoothed_hinge": lambda z, y: np.where(
        1 - y * z < 0.5, np.maximum(0, 1 - y * z) ** 2, np.maximum(1 - y * z, 0) - 0.25
    ),
    "exponential": lambda z, y: np.exp(-y * z),
    "logistic": lambda z, y: np.logaddexp(0, -y * z),
    "squared": lambda z, y: (z - y) ** 2 / 2,
    "absolute": lambda z, y: abs(z - y),
    "quantile:level=0.3": lambda z, y: np.maximum(0.3 * (y - z), 0.7 * (z - y)),
    "epsilon_insensitive": lambda z, y: np.maximum(0, abs(z - y) - 0.1),
    "huber": lambda z, y: np.where(abs(z - y) <= 1, (z - y) ** 2 / 2, abs(z - y) - 0.5),
    "poisson": lambda z, y: np.exp(z) - y * z + y * np.log(np.maximum(y, 1)) - y,
}
SEVERAL = ["softmax", "multiclass_hinge", "multiclass_squared_hinge"]


def fitted(loss, **settings):
    task = get_loss(loss).task
    y = COUNTS if loss == "poisson" else LABELS[task]
    kind = LinearRegressor if task == "regression" else LinearClassifier
    weight = settings.pop("sample_weight", None)
    rows = settings.pop("X", X)
    return kind(loss, alpha=1e-2, **settings).fit(rows, y, sample_weight=weight), y


def bound(model, y, u, c):
    """The bound of the multipliers u of a model with one score: l* is the largest u z - l(z) on a grid.

    The grid makes l* too small by a little, and the bound too large.
    """
    labels = y if np.issubdtype(y.dtype, np.floating) else np.where(y == model.classes_[1], 1.0, -1.0)
    z = labels[:, None] + GRID
    conjugates = np.max(u[:, None] * z - FORMULAS[model.loss](z, labels[:, None]), axis=1)
    a = -(X.T @ (c * u)) / model.alpha
    if model.regularizer == "l2":
        return -c @ conjugates - model.alpha * 0.5 * a @ a
    assert np.abs(a).max() <= 1 + 1e-9  # L1* is zero in the unit box
    return -c @ conjugates


@pytest.mark.parametrize("loss", sorted(FORMULAS))
@pytest.mark.parametrize("regularizer", ["l2", "l1"])
def test_multipliers_prove_the_gap(loss, regularizer):
    model, y = fitted(loss, regularizer=regularizer, sample_weight=WEIGHTS)
    found = multipliers(model, X, y, sample_weight=WEIGHTS)
    c = WEIGHTS / WEIGHTS.sum()
    assert found.value == pytest.approx(model.objective_, rel=1e-12)
    assert found.gap <= model.gap_ * (1 + 1e-9)
    assert abs(c @ found.u) <= 1e-13 * (c @ abs(found.u))
    assert not found.u[WEIGHTS == 0].any()
    assert found.lower == pytest.approx(bound(model, y, found.u, c), rel=1e-4)


@pytest.mark.parametrize("loss", SEVERAL)
@pytest.mark.parametrize("regularizer", ["l2", "elastic"])
def test_those_of_classes_have_zero_totals(loss, regularizer):
    model, y = fitted(loss, regularizer=regularizer)
    found = multipliers(model, X, y)
    assert found.u.shape == (N, 3)
    assert np.abs(found.u.sum(axis=0)).max() < 1e-10
    assert np.abs(found.u.sum(axis=1)).max() < 1e-10
    assert found.gap <= model.gap_ * (1 + 1e-9)
    # a tighter fit of the same problem is not below the bound
    best = fitted(loss, regularizer=regularizer, tol=1e-9)[0]
    assert found.lower <= best.objective_


@pytest.mark.parametrize("tol", [1e-3, 1e-7])
@pytest.mark.parametrize("penalty", ["l1", "elastic"])
def test_those_of_classes_with_corners_prove_small_gaps(penalty, tol):
    model, y = fitted("multiclass_hinge", regularizer=penalty, tol=tol, standardize=True)
    assert model.result_.status == "converged"
    assert multipliers(model, X, y).gap <= model.gap_ * (1 + 1e-6) + 1e-12


@pytest.mark.parametrize(
    "settings", [{"standardize": True}, {"X": X.astype(np.float32)}, {"X": sp.csr_array(X)}]
)
def test_other_rows_and_standardized_models(settings, tmp_path):
    model, y = fitted("hinge", tol=1e-6, **settings)
    save_model(model, tmp_path / "m.riskmin")
    rows = settings.get("X", X)
    for each in (model, load_model(tmp_path / "m.riskmin")):
        assert multipliers(each, rows, y).gap <= 1.01 * model.gap_ + 1e-12


@pytest.mark.parametrize(
    ("loss", "reg", "solver"),
    [
        ("hinge", L1(), None),
        ("squared_hinge", L1(), None),
        ("hinge", Elastic(0.5), None),
        ("hinge", L2(), "dual"),
    ],
)
def test_a_result_keeps_the_multipliers_of_its_cut(loss, reg, solver):
    y = np.sign(REAL)
    risk = linear_risk(X, y, get_loss(loss), fit_intercept=True)
    obj = Objective(risk, reg, 0.1)
    found = minimize(obj, DualCoordinateAscent() if solver else None, tol=1e-5)
    u = found.multipliers
    assert u.shape == (N,)
    np.testing.assert_allclose(X.T @ u / N, found.cut.a, rtol=1e-6, atol=1e-9)
    # l* of the hinge is y u on its domain, and u^2 / 2 more for the squared hinge
    assert np.all(-y * u >= 0)
    offset = -(y * u + (0.5 * u**2 if loss == "squared_hinge" else 0.0)).mean()
    assert found.cut.b == pytest.approx(offset, rel=1e-6)
    assert "multipliers" not in repr(found)


def test_models_do_not_keep_them():
    model, _ = fitted("hinge", regularizer="l1")
    assert model.result_.multipliers is None


REFUSALS = [
    (
        lambda: LinearClassifier("roc_area").fit(X, LABELS["classification"]),
        "classification",
        "no sum over rows",
    ),
    (lambda: KernelClassifier("hinge").fit(X, LABELS["classification"]), "classification", "no linear model"),
    (lambda: LinearRegressor(alpha=0).fit(X, REAL), "regression", "alpha=0"),
    (lambda: LinearRegressor().fit(X, REAL, sample_weight=WEIGHTS), "regression", "give sample_weight"),
    (lambda: LinearRegressor().fit(X[1:], REAL[1:]), "regression", "fitted to 119 rows, not to 120"),
    (lambda: LinearRegressor().fit(X, np.c_[REAL, Z]), "two", "no formula of its conjugate"),
]


@pytest.mark.parametrize(("make", "task", "words"), REFUSALS)
def test_refusals(make, task, words):
    with pytest.raises(ValueError, match=words):
        multipliers(make(), X, np.c_[REAL, Z] if task == "two" else LABELS[task])


@dataclass(frozen=True)
class Less(SquaredHinge):
    """A multiple of the squared hinge, with the conjugate of the whole loss, whose bounds are too high."""

    def value_grad(self, z, y, c):
        value, gradient = super().value_grad(z, y, c)
        return 0.9 * value, 0.9 * gradient


def test_multipliers_refute_a_wrong_conjugate():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 5))
    y = np.sign(X[:, 0] + rng.standard_normal(200))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LinearClassifier(Less(), alpha=1e-2, tol=0.2).fit(X, y)
    for claim in (multipliers, optimum_region):
        with pytest.raises(ValueError, match="the conjugate of Less contradicts its values"):
            claim(model, X, y)

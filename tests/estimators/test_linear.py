"""Linear classifiers, regressors and detectors: what the contract of estimators does not say.

Models of scikit-learn with converted parameters, classes, outputs, regularizers, callbacks and solvers.
"""

import pickle
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from estimator_cases import BOTH, GRADE, HIGH, KINDS, WEIGHT, N, P, X, Z, close_minima, fitted
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import (
    ElasticNet,
    Lasso,
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    QuantileRegressor,
    Ridge,
)
from sklearn.svm import SVC, LinearSVC, LinearSVR

import riskmin as rm
from helpers import ticking_clock

COUNTS = np.floor(np.exp(Z / 2))

# ---------------------------------------------------------------- models of scikit-learn
A = 0.02
"""alpha; C of scikit-learn is 1 / (alpha n)."""
C = 1 / (A * N)
EXACT = {"tol": 1e-10, "max_iter": 100_000}
PEERS = [
    (rm.LinearClassifier("logistic"), LogisticRegression(C=C, **EXACT), HIGH),
    (rm.LinearClassifier("logistic"), LogisticRegression(C=C, **EXACT), KINDS),
    (rm.LinearClassifier(), SVC(kernel="linear", C=C, tol=1e-8), HIGH),
    (
        rm.LinearClassifier("squared_hinge", fit_intercept=False),
        LinearSVC(C=C / 2, fit_intercept=False, **EXACT),
        HIGH,
    ),
    (rm.LinearRegressor(), Ridge(alpha=A * N), Z),
    (rm.LinearRegressor(), Ridge(alpha=A * N), BOTH),
    (rm.LinearRegressor("poisson"), PoissonRegressor(alpha=A, **EXACT), COUNTS),
    (rm.LinearRegressor("quantile:level=0.8", regularizer="l1"), QuantileRegressor(quantile=0.8, alpha=A), Z),
    (
        rm.LinearRegressor("epsilon_insensitive:epsilon=0.1", fit_intercept=False),
        LinearSVR(epsilon=0.1, C=C, fit_intercept=False, **EXACT),
        Z,
    ),
    (rm.LinearRegressor(regularizer="l1", positive=True), Lasso(alpha=A, positive=True, tol=1e-10), Z),
    (
        rm.LinearRegressor(regularizer="elastic:eps=1.5"),
        ElasticNet(alpha=2.5 * A, l1_ratio=0.6, tol=1e-10),
        Z,
    ),
    (rm.LinearRegressor(alpha=0), LinearRegression(), Z),
]


@pytest.mark.parametrize(("ours", "theirs", "y"), PEERS)
def test_models_of_scikit_learn_with_the_converted_parameter(ours, theirs, y):
    ours = clone(ours).set_params(tol=1e-9, **({} if ours.alpha == 0 else {"alpha": A})).fit(X, y)
    theirs = clone(theirs).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=2e-3)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=2e-3)
    assert ours.score(X, y) == pytest.approx(theirs.score(X, y), abs=0.02) or ours.loss != "squared"
    if y is COUNTS:
        np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=1e-3)
    if hasattr(theirs, "predict_proba"):
        np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-3)


# ---------------------------------------------------------------- weights
@pytest.mark.parametrize("regularizer", ["l2", "l1"])
def test_weights_and_repeated_rows_give_the_same_bits(regularizer):
    """Also in another order, and where the minimum is not unique."""
    order = np.random.default_rng(0).permutation(N)
    times = WEIGHT.astype(int)
    model = rm.LinearClassifier("hinge", regularizer=regularizer, alpha=1e-2)
    one = clone(model).fit(X[order], GRADE[order], WEIGHT[order])
    many = clone(model).fit(np.repeat(X, times, axis=0), np.repeat(GRADE, times))
    np.testing.assert_array_equal(one.coef_, many.coef_)
    np.testing.assert_array_equal(one.intercept_, many.intercept_)


def test_the_intercept_is_the_midpoint_of_the_optimal_ones():
    # any b between 1 and 3 is a median of these labels
    rows, y = np.zeros((4, 1)), np.array([0.0, 1.0, 3.0, 7.0])
    assert rm.LinearRegressor("absolute", alpha=1.0).fit(rows, y).intercept_ == pytest.approx(2.0)
    assert rm.LinearRegressor("absolute", alpha=1.0).fit(rows, y + 100).intercept_ == pytest.approx(102.0)
    signs = np.array([-1, 1, -1, 1])
    assert rm.LinearClassifier(alpha=1.0).fit(rows, signs).intercept_[0] == pytest.approx(0.0, abs=1e-9)


def test_bounds_are_valid_with_rows_at_nonsmooth_points():
    # separable, repeated rows: at the optimum every row with nonzero weight is on its margin
    rng = np.random.RandomState(42)
    rows, y, weight = rng.rand(15, 30), rng.randint(0, 3, size=15) > 0, rng.randint(0, 5, size=15)
    fits = [
        rm.LinearClassifier(solver=solver, tol=1e-6).fit(rows.repeat(weight, axis=0), y.repeat(weight))
        for solver in ("bundle", "bmrm")
    ]
    fits += [rm.LinearClassifier(tol=1e-6).fit(rows, y, sample_weight=weight)]
    assert max(m.lower_bound_ for m in fits) <= min(m.objective_ for m in fits)


@pytest.mark.parametrize("form", [np.ascontiguousarray, sp.csr_array])
def test_rows_are_not_copied(form):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((6000, 100))
    y, rows = rows[:, 0] > 0, form(rows)
    model = rm.LinearClassifier("logistic", alpha=1.0, tol=1e-2).fit(rows, y)
    tracemalloc.start()
    model.fit(rows, y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < rows.data.nbytes


# ---------------------------------------------------------------- classes
@pytest.mark.parametrize(
    ("several", "one"), [("softmax", "logistic"), ("multiclass_squared_hinge", "squared_hinge")]
)
def test_two_classes_with_one_score_each(several, one):
    # for given w = v_1 - v_0, the minimum of |v_0|^2 + |v_1|^2 is |w|^2 / 2, at v_1 = -v_0 = w / 2: two
    # scores with alpha are equivalent to one score with alpha / 2
    pair = rm.LinearClassifier(several, alpha=0.1, tol=1e-12).fit(X, HIGH)
    single = rm.LinearClassifier(one, alpha=0.05, tol=1e-12).fit(X, HIGH)
    assert pair.objective_ == pytest.approx(single.objective_, rel=1e-10)
    assert (pair.coef_.shape, pair.intercept_.shape) == ((1, P), (1,))
    np.testing.assert_allclose(pair.coef_, single.coef_, atol=1e-5)
    np.testing.assert_allclose(pair.intercept_, single.intercept_, atol=1e-5)
    assert pair.decision_function(X).shape == (N,)
    if one == "logistic":
        np.testing.assert_allclose(pair.predict_proba(X), single.predict_proba(X), atol=1e-5)


# ---------------------------------------------------------------- outputs
@pytest.mark.parametrize(("loss", "reg"), [("squared", "l1"), ("huber", "l2"), ("poisson", "l2")])
def test_other_losses_are_one_problem_per_output(loss, reg):
    targets = np.abs(BOTH)
    model = rm.LinearRegressor(loss, alpha=1e-2, regularizer=reg).fit(X, targets)
    each = [rm.LinearRegressor(loss, alpha=1e-2, regularizer=reg).fit(X, y) for y in targets.T]
    np.testing.assert_array_equal(model.coef_, [one.coef_ for one in each])
    np.testing.assert_array_equal(model.intercept_, [one.intercept_ for one in each])
    np.testing.assert_allclose(model.predict(X), np.stack([one.predict(X) for one in each], axis=1))
    for name in ("objective_", "lower_bound_", "gap_"):
        assert getattr(model, name) == pytest.approx(sum(getattr(one, name) for one in each), rel=1e-9)
    assert model.n_iter_ == max(one.n_iter_ for one in each)
    assert [row.get("output") for row in model.result_.trace] == [0, 1, None]


@pytest.mark.parametrize("reg", [rm.L2(), rm.L1(), rm.Elastic(eps=0.5)])
def test_the_cut_of_outputs_is_below_the_sum_of_their_risks(reg):
    model = rm.LinearRegressor("absolute", regularizer=reg, alpha=0.01, fit_intercept=False).fit(X, BOTH)
    risks = [rm.linear_risk(X, y, "absolute") for y in BOTH.T]
    result = model.result_

    def risk(w):
        return sum(one(v)[0] for one, v in zip(risks, w.reshape(P, 2).T, strict=True))

    assert risk(result.w) + 0.01 * reg.value(result.w) == pytest.approx(model.objective_, rel=1e-9)
    for size in (0.1, 1.0, 10.0):
        v = result.w + size * np.random.default_rng(0).normal(size=2 * P)
        assert result.cut.a @ v + result.cut.b <= risk(v) + 1e-9
    bound = result.cut.b - 0.01 * reg.conjugate(-result.cut.a / 0.01)
    assert bound == pytest.approx(model.lower_bound_, rel=1e-9)


def test_one_output_in_any_shape():
    flat, column = (rm.LinearRegressor(alpha=0.1, tol=1e-12).fit(X, y) for y in (Z, Z[:, None]))
    multi = rm.LinearRegressor(rm.MultivariateSquared(), alpha=0.1, tol=1e-12).fit(X, Z)
    assert (flat.coef_.shape, column.coef_.shape, multi.coef_.shape) == ((P,), (1, P), (P,))
    assert (flat.predict(X).shape, column.predict(X).shape, multi.predict(X).shape) == ((N,), (N, 1), (N,))
    np.testing.assert_allclose(column.coef_[0], flat.coef_, atol=1e-6)
    np.testing.assert_allclose(multi.predict(X), flat.predict(X), atol=1e-6)
    assert isinstance(multi.intercept_, np.float64)
    assert isinstance(flat.intercept_, np.float64)


def test_limits_apply_to_all_outputs_together(tmp_path):
    seen = []

    def stop(iterate, row):
        seen.append(row["iteration"])
        return len(seen) == 3

    with pytest.warns(ConvergenceWarning, match="interrupted"):
        model = rm.LinearRegressor("absolute", alpha=1e-3, tol=1e-9, solver="bundle", callback=stop).fit(
            X, BOTH
        )
    assert [row["iteration"] for row in model.result_.trace[:2]] == [3, 1]
    with ticking_clock(), pytest.warns(ConvergenceWarning, match="max_seconds"):
        rm.LinearRegressor("absolute", alpha=1e-6, tol=0, max_seconds=0.05).fit(X, BOTH)
    save = rm.LinearRegressor("huber", alpha=1e-3, checkpoint=tmp_path / "run").fit(X, BOTH)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.0", "run.1"]
    assert clone(save).fit(X, BOTH).objective_ == pytest.approx(save.objective_, rel=1e-12)
    with pytest.raises(ValueError, match="was not of 3 outputs"):
        save.set_params(warm_start=True, checkpoint=None).fit(X, np.c_[BOTH, Z])


# ---------------------------------------------------------------- regularizers
def test_a_warm_start_may_change_the_regularizer():
    model = rm.LinearClassifier(warm_start=True, alpha=1e-2).fit(X, HIGH)
    assert (model.coef_ < 0).any()
    model.set_params(positive=True).fit(X, HIGH)
    assert (model.coef_ >= 0).all()
    close_minima(model, rm.LinearClassifier(alpha=1e-2, positive=True).fit(X, HIGH))


# ---------------------------------------------------------------- the run
class FalseBound(rm.Bundle):
    """A solver whose lower bound exceeds the value of its point by a share of it."""

    def __init__(self, excess):
        object.__setattr__(self, "excess", excess)

    def iterates(self, obj, w0):
        value = obj.value(w0)
        yield rm.Iterate(w0, value, rm.Cut(np.zeros_like(w0), value * (1 + self.excess)))


def test_a_bound_above_the_objective_is_not_believed_but_for_rounding():
    models = [rm.LinearClassifier(solver=FalseBound(e), fit_intercept=False) for e in (1.0, 1e-10)]
    with pytest.warns(ConvergenceWarning):
        model = models[0].set_params(alpha=1e-2).fit(X, HIGH)
    assert model.lower_bound_ <= fitted("no intercept").objective_ < model.objective_
    with pytest.warns(rm.TrivialModelWarning):
        models[1].set_params(alpha=0.1).fit(X, HIGH)
    # the intercept alone fits all rows
    with pytest.warns(rm.TrivialModelWarning, match="y is 1000 in every row"):
        model = rm.LinearRegressor(alpha=1e-3).fit(np.eye(3), np.full(3, 1e3))
    assert model.objective_ < 1e-20


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_threads_do_not_change_one_bit(loss):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((20_000, 32))
    y = rows[:, 0] + rng.standard_normal(len(rows)) > 0
    one, *others = (
        rm.LinearClassifier(loss, alpha=0.5, tol=1e-2, n_jobs=n).fit(rows, y) for n in (None, 2, -1)
    )
    for other in others:
        np.testing.assert_array_equal(one.coef_, other.coef_)
        np.testing.assert_array_equal(one.intercept_, other.intercept_)
        assert (one.objective_, one.lower_bound_) == (other.objective_, other.lower_bound_)


class SquareRoot:
    """A user-defined loss, sqrt(1 + (z - y)^2) - 1."""

    separable = True

    def value_grad(self, z, y, c):
        r = z - y
        s = np.sqrt(1 + r * r)
        return c @ (s - 1), c * r / s


class Blocks(SquareRoot):
    separable = False


def test_a_loss_of_the_user():
    model = rm.LinearRegressor(SquareRoot(), tol=1e-4).fit(X, Z)
    assert model.gap_ <= 1e-4 * model.objective_
    assert model.score(X, Z) > 0.45
    assert rm.LinearClassifier(SquareRoot()).fit(X, HIGH).score(X, HIGH) > 0.7
    assert rm.LinearRegressor(Blocks(), fit_intercept=False).fit(X, Z).gap_ >= 0
    together = rm.LinearRegressor(Blocks(), tol=1e-4).fit(X, Z)
    close_minima(together, model)
    assert together.intercept_ == pytest.approx(model.intercept_, abs=0.05)


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("y", [HIGH, GRADE])
def test_a_checkpoint_is_resumed(y, standardize, tmp_path):
    settings = {"alpha": 1e-3, "tol": 1e-6, "solver": "bundle", "checkpoint": tmp_path / "run"}
    with pytest.warns(ConvergenceWarning):
        rm.LinearClassifier(max_iter=4, standardize=standardize, **settings).fit(X, y)
    resumed = rm.LinearClassifier(standardize=standardize, **settings).fit(X, y)
    assert resumed.result_.trace[3]["iteration"] == 4
    close_minima(resumed, rm.LinearClassifier(alpha=1e-3, standardize=standardize).fit(X, y))


def test_verbose_shows_progress_and_calls_back(capfd):
    rows = []
    with ticking_clock() as clock:
        clock.TICK = 1.0  # a line is due every few seconds
        rm.LinearClassifier(verbose=True, callback=lambda iterate, row: rows.append(row)).fit(X, HIGH)
    shown = capfd.readouterr()
    assert "gap" in shown.err
    assert not shown.out
    assert rows


def test_contamination_is_the_share_of_novel_rows():
    rows = np.abs(X)
    model = rm.NoveltyDetector(contamination=0.2).fit(rows)
    assert (model.predict(rows) == -1).sum() == int(0.2 * N)
    np.testing.assert_array_equal(model.decision_function(rows), model.score_samples(rows) - model.offset_)
    np.testing.assert_array_equal(model.fit_predict(rows), model.predict(rows))
    half = rm.NoveltyDetector().fit(rows, sample_weight=np.where(np.arange(N) < 30, 2.0, 0.0))
    assert (half.predict(rows[:30]) == -1).sum() == 3
    assert not hasattr(half, "intercept_")


# ---------------------------------------------------------------- as scikit-learn has them
def test_each_target_may_have_its_own_alpha():
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(60, 4))
    Y, alpha = rows @ rng.normal(size=(4, 3)) + rng.normal(size=(60, 3)), np.array([0.01, 0.1, 1.0])
    model, theirs = rm.LinearRegressor(alpha=alpha, tol=1e-12).fit(rows, Y), Ridge(alpha * 60).fit(rows, Y)
    np.testing.assert_allclose(model.coef_, theirs.coef_, atol=1e-8)
    np.testing.assert_allclose(model.intercept_, theirs.intercept_, atol=1e-8)
    singles = [rm.LinearRegressor(alpha=a, tol=1e-12).fit(rows, y) for a, y in zip(alpha, Y.T, strict=True)]
    assert model.objective_ == pytest.approx(sum(single.objective_ for single in singles), rel=1e-10)
    assert model.lower_bound_ <= model.objective_ <= model.lower_bound_ + 1e-11 * model.objective_
    l1 = rm.LinearRegressor("absolute", regularizer="l1", alpha=list(alpha), tol=1e-5).fit(rows, Y)
    assert l1.result_.status == "converged"
    assert (np.count_nonzero(l1.coef_[0]), np.count_nonzero(l1.coef_[2])) == (4, 0)


@pytest.mark.parametrize(
    ("model", "y"),
    [
        (rm.LinearRegressor("absolute", regularizer="l1", alpha=0.1), "numbers"),
        (rm.LinearRegressor(alpha=[0.1, 0.2]), "both"),
        (rm.LinearClassifier("logistic", regularizer="l1", alpha=0.05, standardize=True), "signs"),
        (rm.LinearClassifier("softmax", regularizer="l1", alpha=0.05), "classes"),
        (rm.LinearRanker("squared", alpha=0.1), "numbers"),
        (rm.OrdinalClassifier(alpha=0.1), "classes"),
    ],
)
def test_sparse_weights_give_the_same_model(model, y, tmp_path):
    rows = np.random.default_rng(2).normal(size=(50, 6))
    z = rows[:, 0] - rows[:, 1]
    labels = {"numbers": z, "both": np.c_[z, -z], "signs": z > 0, "classes": np.digitize(z, [-1, 1])}[y]
    model.fit(rows, labels)
    dense, intercept = model.coef_, model.intercept_
    predicted = model.predict(rows)
    assert model.sparsify() is model
    assert sp.issparse(model.coef_)
    assert (model.coef_.shape, model.coef_.nnz) == (dense.shape, np.count_nonzero(dense))
    np.testing.assert_array_equal(model.predict(rows), predicted)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(rows), predicted)
    rm.save_model(model, tmp_path / "m")
    np.testing.assert_array_equal(rm.load_model(tmp_path / "m").predict(rows), predicted)
    if y != "both":  # separate problems are certified one by one
        assert rm.certify(model, rows, labels)
    assert model.densify().densify() is model
    np.testing.assert_array_equal(model.coef_, dense)
    model.sparsify().set_params(warm_start=True).fit(rows, labels)
    assert not sp.issparse(model.coef_)
    np.testing.assert_allclose(model.intercept_, intercept, atol=0.05)


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_intercepts_have_the_shape_of_the_weights_without_the_columns(fit_intercept, tmp_path):
    rows = np.random.default_rng(2).normal(size=(50, 6))
    z = rows[:, 0] + 1.0
    cases = [(rm.LinearRegressor, t) for t in (z, z[:, None], np.c_[z, -z])]
    cases += [(rm.LinearClassifier, t) for t in (z > 0, np.digitize(z, [0, 1.5]))] + [(rm.KernelRegressor, z)]
    for kind, labels in cases:
        model = kind(fit_intercept=fit_intercept).fit(rows, labels)
        rm.save_model(model, tmp_path / "m")
        for one in (model, rm.load_model(tmp_path / "m")):
            weights = one.dual_coef_ if kind is rm.KernelRegressor else one.coef_
            assert isinstance(one.intercept_, (np.float64, np.ndarray))
            assert one.intercept_.shape == weights.shape[:-1]
            assert one.intercept_.dtype == np.float64
            assert bool(np.any(one.intercept_)) == fit_intercept

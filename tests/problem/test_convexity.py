"""User-defined losses and risks: nonconvex ones are refused or not certified, convex ones pass."""

import math
import time
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning

import riskmin
from helpers import ALL_LOSSES, MANY_LOSSES, problem, risk_of, ticking_clock
from riskmin import (
    L1,
    L2,
    Absolute,
    Bmrm,
    Box,
    Bundle,
    Hinge,
    KernelRegressor,
    Lbfgs,
    LinearClassifier,
    LinearClassifierCV,
    LinearRegressor,
    LinearRegressorCV,
    Logistic,
    Mrr,
    MulticlassHinge,
    MultiOutput,
    Nu,
    Objective,
    Processes,
    Smoothed,
    Structured,
    linear_risk,
    minimize,
    namespace,
    path,
)
from riskmin.problem.convexity import check, is_foreign, monitor_for
from riskmin.problem.convexity.scores import CHECK_SECONDS


@dataclass(frozen=True)
class Own:
    """A loss given by a function: z, y, c -> value, gradient."""

    f: object
    separable: bool = True

    def value_grad(self, z, y, c):
        return self.f(z, y, c)


def rowwise(loss, slope):
    """A loss given by its value and slope for a row, without weights."""
    return Own(lambda z, y, c: (c @ loss(z, y), c * slope(z, y)))


@dataclass(frozen=True)
class Tukey:
    """The biweight loss: bounded, and constant beyond `width`."""

    width: float = 1.0
    separable = True

    def value_grad(self, z, y, c):
        r = np.clip((z - y) / self.width, -1.0, 1.0)
        u = 1 - r * r
        return c @ (1 - u**3), c * 6 * r * u**2 / self.width


def regression(n=200, p=5, seed=0, scale=10.0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    return X, X @ np.full(p, scale) + 0.5 * rng.standard_normal(n)


def classification(n=100, p=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    return X, np.where(X[:, 0] + 0.5 * rng.standard_normal(n) > 0, 1.0, -1.0)


def refused(loss, message, X=None, y=None, **settings):
    """Assert that `minimize` and the estimator both refuse the loss, in one sentence and before any step."""
    data = regression() if X is None else (X, y)
    J = Objective(linear_risk(*data, loss, **settings), L2(), 1e-3)
    with pytest.raises(ValueError, match=message) as caught:
        minimize(J, callback=lambda *_: pytest.fail("it ran"))
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=message):
        LinearRegressor(loss).fit(*data)


# ---------------------------------------------------------------- nonconvex losses
@pytest.mark.parametrize("solver", [None, "bundle", "bmrm", "lbfgs", "linesearch_bmrm"])
@pytest.mark.parametrize("size", [None, 0.1, 3.0, 30.0])
@pytest.mark.parametrize("intercept", [False, True])
def test_tukey_is_refused_from_any_start(solver, size, intercept):
    X, y = regression()
    J = Objective(linear_risk(X, y, Tukey(), fit_intercept=intercept), L2(), 1e-6)
    w0 = None if size is None else size * np.random.default_rng(1).standard_normal(5)
    with pytest.raises(
        ValueError, match=r"Tukey is not convex: it is .* at the scores .*; no bound would be"
    ):
        minimize(J, solver, w0)


@pytest.fixture
def unchecked(monkeypatch):
    """Disable the check before a run, so that the monitor during the run must find the fault."""
    monkeypatch.setattr("riskmin.driver.loop.check", lambda *_: None)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("solver", [None, Bundle(), Bmrm(), Lbfgs()], ids=repr)
@pytest.mark.parametrize("intercept", [False, True])
def test_tukey_is_not_certified_in_a_run(solver, intercept):
    """It was once certified at 0.97 although weights with a value of 0.38 exist."""
    X, y = regression()
    J = Objective(linear_risk(X, y, Tukey(), fit_intercept=intercept), L2(), 1e-6)
    best = J.value(np.full(5, 10.0))
    assert best < 0.4
    rng = np.random.default_rng(2)
    for w0 in (None, *(size * rng.standard_normal(5) for size in (0.1, 1.0, 3.0, 30.0))):
        result = minimize(J, solver, w0, max_iter=200)
        assert result.status != "converged" or result.lower <= best
        if result.status != "converged":
            assert result.lower == 0
            assert J.lower(result.cut) == 0
            assert result.note.startswith("Tukey is not convex, or its gradient is wrong: ")
            assert result.note.endswith(
                "so nothing is proved but that J >= 0, and other weights may be better"
            )
            assert "\n" not in result.note
            assert result.value == pytest.approx(J.value(result.w), rel=1e-9)


@pytest.mark.usefixtures("unchecked")
def test_a_probe_at_the_end_finds_what_the_run_did_not_visit():
    """A flat start is stationary, and the only point that the run visits."""

    class Dip:
        dim = 1

        def __call__(self, w):
            r = float(np.clip(w[0] - 6.0, -2.0, 2.0))
            return 1.0 - (1 - r * r / 4) ** 2, np.array([(1 - r * r / 4) * r])

    J = Objective(Dip(), L2(), 1e-3)
    result = minimize(J, Bundle(), np.array([3.5]), tol=1e-2)
    assert (result.status, result.lower) == ("stalled", 0)
    assert "the risk Dip is not convex" in result.note
    assert result.value < 0.5  # the probe is returned, since it is better


@pytest.mark.usefixtures("unchecked")
def test_the_estimator_warns_that_nothing_is_proved():
    X, y = regression()
    model = LinearRegressor(Tukey(), alpha=1e-6)
    with pytest.warns(
        ConvergenceWarning, match="status 'stalled' .*: Tukey is not convex, .* nothing is proved"
    ):
        model.fit(X, y)
    assert (model.lower_bound_, model.gap_) == (0.0, model.objective_)
    model = LinearRegressor(Tukey(), alpha=1e-6)
    with pytest.warns(ConvergenceWarning, match="Tukey is not convex"):
        model.fit(X, np.stack([y, -y], axis=1))
    assert "Tukey" in model.result_.note


@pytest.mark.usefixtures("unchecked")
def test_a_negative_risk_has_no_bound():
    class Below:
        dim = 2

        def __call__(self, w):
            return float((w - 3) @ (w - 3)) - 1.0, 2 * (w - 3)

    result = minimize(Objective(Below(), L2(), 1e-3), Bundle())
    assert result.status == "stalled"
    assert result.lower == -math.inf
    assert "it is -" in result.note


@pytest.mark.parametrize("width", [1e-3, 1.0, 4.685, 30.0])
@pytest.mark.parametrize("scale", [0.01, 1.0, 1e3, 1e6])
def test_losses_of_any_width_are_refused(width, scale):
    X, y = regression(scale=scale)
    with pytest.raises(ValueError, match="Tukey is not convex"):
        check(linear_risk(X, y, Tukey(width)), L2(), np.zeros(5))


ROBUST = {
    "Welsch": rowwise(
        lambda z, y: 1 - np.exp(-((z - y) ** 2) / 2), lambda z, y: (z - y) * np.exp(-((z - y) ** 2) / 2)
    ),
    "Cauchy": rowwise(lambda z, y: np.log1p((z - y) ** 2), lambda z, y: 2 * (z - y) / (1 + (z - y) ** 2)),
    "root": rowwise(
        lambda z, y: np.sqrt(abs(z - y)), lambda z, y: np.sign(z - y) / (2 * np.sqrt(abs(z - y)))
    ),
    "one sign": rowwise(
        lambda z, y: np.where(y > 0, np.minimum((z - y) ** 2, 9.0), (z - y) ** 2),
        lambda z, y: 2 * (z - y) * ((y <= 0) | (abs(z - y) < 3)),
    ),
}


@pytest.mark.parametrize("name", ROBUST)
def test_other_robust_losses_are_refused(name):
    refused(ROBUST[name], "Own is not convex: it is")


MARGIN = {
    "ramp": rowwise(lambda z, y: np.clip(1 - y * z, 0.0, 1.0), lambda z, y: -y * ((y * z < 1) & (y * z > 0))),
    "zero-one": rowwise(lambda z, y: (y * z <= 0) * 1.0, lambda z, y: 0.0 * z),
    "sigmoid": rowwise(lambda z, y: 1 / (1 + np.exp(y * z)), lambda z, y: -y / (2 + 2 * np.cosh(y * z))),
}


@pytest.mark.parametrize("name", MARGIN)
def test_nonconvex_margin_losses_are_refused(name):
    X, y = classification()
    with pytest.raises(ValueError, match="Own is not convex: it is"):
        minimize(Objective(linear_risk(X, y, MARGIN[name]), L2(), 0.1))
    with pytest.raises(ValueError, match="Own is not convex: it is"):
        LinearClassifier(MARGIN[name]).fit(X, y)
    with pytest.raises(ValueError, match="Own is not convex: it is"):
        LinearClassifierCV(MARGIN[name]).fit(X, y)


def absolute_error(z, y):
    return abs(z - y)


WRONG = {
    "wrong sign": (
        lambda z, y, c: (c @ absolute_error(z, y), -c * np.sign(z - y)),
        "the gradient of Own is wrong",
    ),
    "no weights": (
        lambda z, y, c: (c @ absolute_error(z, y), np.sign(z - y)),
        "gradient of Own is wrong.*with the c_i in",
    ),
    "weights twice": (
        lambda z, y, c: (c @ absolute_error(z, y), c * c * np.sign(z - y)),
        "the gradient of Own is wrong",
    ),
    "a factor": (lambda z, y, c: (c @ (z - y) ** 2, c * (z - y)), "the gradient of Own is wrong"),
    "one percent": (lambda z, y, c: (c @ (z - y) ** 2, 2.02 * c * (z - y)), "the gradient of Own is wrong"),
    "negative": (lambda z, y, c: (c @ ((z - y) ** 2 - 1), 2 * c * (z - y)), "Own is -1 at .* must be >= 0"),
    "NaN far out": (
        lambda z, y, c: (c @ np.where(abs(z) > 50, np.nan, absolute_error(z, y)), c * np.sign(z - y)),
        "is nan at",
    ),
    "NaN slopes": (
        lambda z, y, c: (c @ absolute_error(z, y), np.where(abs(z) > 50, np.nan, c * np.sign(z - y))),
        "not finite",
    ),
    "infinite": (lambda z, y, c: (c @ np.cosh(1e4 * (z - y)), 1e4 * c * np.sinh(1e4 * (z - y))), "is inf at"),
    "shape": (
        lambda z, y, c: (c @ absolute_error(z, y), (c * np.sign(z - y))[:, None]),
        r"shape \(1, 1\), but the scores",
    ),
    "dtype": (
        lambda z, y, c: (c @ absolute_error(z, y), np.float32(c * np.sign(z - y))),
        "is of float32 .* are of float64",
    ),
    "a sum": (
        lambda z, y, c: (c @ absolute_error(z, y), float(c @ np.sign(z - y))),
        r"is of float and shape \(\)",
    ),
    "values": (lambda z, y, c: (c * absolute_error(z, y), c * np.sign(z - y)), "add them up, c @ values"),
    "one thing": (lambda z, y, c: c @ absolute_error(z, y), "must return two things"),
    "needs all rows": (
        lambda z, y, c: (c @ absolute_error(z, y) + 0 * np.ones(200) @ z, c),
        "must have separable = False",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_other_mistakes_are_reported(name):
    f, message = WRONG[name]
    refused(Own(f), message)


def test_the_check_uses_the_sample_weights():
    """The weights of the rows are used, so that a loss that assumes equal weights is refused."""
    X, y = regression()
    mean = Own(lambda z, y, c: (c @ absolute_error(z, y), np.sign(z - y) / len(z)))
    with pytest.raises(ValueError, match="the gradient of Own is wrong"):
        check(linear_risk(X, y, mean, sample_weight=np.arange(200.0)), L2(), np.zeros(5))


def test_multi_output_losses_are_checked():
    class Worst(MulticlassHinge):
        def value_grad(self, z, y, c):
            value, dz = super().value_grad(z, y, c)
            return value, np.roll(dz, 1, axis=1)

    class Capped(MulticlassHinge):
        def value_grad(self, z, y, c):
            rows = [
                super(Capped, self).value_grad(z[i : i + 1], y[i : i + 1], c[i : i + 1])
                for i in range(len(z))
            ]
            capped = [min(v, c[i] * 2.0) for i, (v, _) in enumerate(rows)]
            return sum(capped), np.concatenate([dz * (v < 2 * c[i]) for i, (v, dz) in enumerate(rows)])

    X, y, _ = problem(MulticlassHinge())
    for loss, message in (
        (Worst(), "gradient of Worst is wrong|Worst is not convex"),
        (Capped(), "Capped is not convex"),
    ):
        for intercept in (False, True):
            with pytest.raises(ValueError, match=message):
                minimize(Objective(linear_risk(X, y, loss, fit_intercept=intercept), L2(), 0.1))


def test_nondecomposable_losses_are_checked():
    maximum = Own(
        lambda z, y, c: (
            float(np.max(absolute_error(z, y))),
            np.eye(len(z))[np.argmax(absolute_error(z, y))] * np.sign(z - y),
        ),
        False,
    )
    minimum = Own(
        lambda z, y, c: (
            float(np.min(absolute_error(z, y))),
            np.eye(len(z))[np.argmin(absolute_error(z, y))] * np.sign(z - y),
        ),
        False,
    )
    X, y = regression()
    check(linear_risk(X, y, maximum), L2(), np.zeros(5))
    with pytest.raises(ValueError, match="Own is not convex"):
        check(linear_risk(X, y, minimum), L2(), np.zeros(5))


def test_wrapped_losses_are_checked():
    class Values(Tukey):
        def values(self, z, y):
            return 1 - (1 - np.clip(z - y, -1, 1) ** 2) ** 3

    class Ranks(Mrr):
        def value_grad_of_queries(self, q, z):
            value, dz = super().value_grad_of_queries(q, z)
            return value, -dz

    X, y = regression(60)
    for risk in (
        linear_risk(X, y, Nu(Values(), 0.5)),
        linear_risk(X, y, Nu(Values(), 0.5), fit_intercept=True),
    ):
        assert is_foreign(risk)
        with pytest.raises(ValueError, match="Values is not convex"):
            minimize(Objective(risk, L2(), 0.1))
    qid = np.repeat(np.arange(20), 3)
    risk = linear_risk(X, (y > 0) * 1.0, Ranks(), qid=qid)
    assert type(risk.loss).__name__ == "QuerySeparable"
    with pytest.raises(ValueError, match="Ranks is wrong"):
        minimize(Objective(risk, L2(), 0.1))
    with pytest.raises(ValueError, match="Tukey is not convex"):
        KernelRegressor(Tukey(), solver="bundle").fit(X, y)


def test_user_chain_losses_are_checked():
    class Turned(riskmin.ChainCrf):
        def value_grad(self, z, y, c):
            value, dz = super().value_grad(z, y, c)
            return value, -dz

    X, y, weights = problem(riskmin.ChainCrf())
    with pytest.raises(ValueError, match="Turned is not convex, or its gradient is wrong"):
        minimize(Objective(risk_of(Turned(), X, y, weights), L2(), 0.1), Lbfgs())


# ---------------------------------------------------------------- user-defined risks
@dataclass
class Oracle:
    f: object
    dim: int = 3

    def __call__(self, w):
        return self.f(w)


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (lambda w: (math.nan, w), "the risk Oracle is nan where the run starts: .*, or give another w0"),
        (lambda w: (1.0, math.nan * w), "the gradient of the risk Oracle is not finite where the run starts"),
        (lambda w: (float(w @ w) - 2, 2 * w), "the risk Oracle is -2 at a point: it must be >= 0"),
        (
            lambda w: (float(w @ w), 2 * w[:2]),
            r"gradient of the risk Oracle has shape \(2,\), but w has \(3,\)",
        ),
        (lambda w: (float(w @ w), -2 * w), "not convex, or its gradient is wrong: it is .* its tangent"),
        (lambda w: (float((w - 1) @ (w - 1)), w - 1), "not convex, or its gradient is wrong"),
        (lambda w: (1 - math.exp(-float(w @ w)), 2 * w * math.exp(-float(w @ w))), "not convex"),
        (lambda w: (float(min(w @ w, 1.0)), 2 * w * (w @ w < 1)), "not convex"),
    ],
)
def test_wrong_risks_are_refused(f, message):
    with pytest.raises(ValueError, match=message) as caught:
        minimize(Objective(Oracle(f), L2(), 0.1), "bundle")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("what", ["value", "gradient"])
@pytest.mark.parametrize("solver", [Bundle(), Bmrm(), Lbfgs()], ids=repr)
def test_a_risk_that_becomes_nan_is_reported(what, solver):
    calls = []

    def f(w):
        calls.append(0)
        bad = len(calls) > 12
        value, grad = float((w - 1) @ (w - 1)), 2 * (w - 1)
        return math.nan if bad and what == "value" else value, grad * (math.nan if bad else 1)

    with pytest.raises(
        ValueError, match=r"the risk Oracle is NaN at a point that the run came to: return finite"
    ):
        minimize(Objective(Oracle(f), L2(), 1e-3), solver, tol=1e-12)


def test_a_flat_start_does_not_pass_the_check():
    """The risk of Tukey's loss as a plain function, from a point where all rows are beyond its width."""
    X, y = regression(scale=3.0)
    inner = linear_risk(X, y, Tukey(0.3))
    with pytest.raises(ValueError, match="not convex"):
        minimize(Objective(Oracle(inner, 5), L2(), 1e-6), "lbfgs")


def test_points_stay_in_the_domain():
    def f(w):
        assert (w >= 0).all()
        return float((w - 1) @ (w - 1)), 2 * (w - 1)

    result = minimize(Objective(Oracle(f), Box(L1(), 0.0), 0.1), "bundle", tol=1e-6)
    assert result.status == "converged"
    assert result.note == ""


def test_a_slow_risk_is_called_few_times():
    calls = []

    def f(w):
        calls.append(time.sleep(0.2))
        return float((w - 1) @ (w - 1)), 2 * (w - 1)

    check(Oracle(f), L2(), np.zeros(3))
    assert 3 <= len(calls) <= 5


def test_a_risk_is_checked_once(monkeypatch):
    calls = []

    def f(w):
        calls.append(0)
        return float((w - 1) @ (w - 1)), 2 * (w - 1)

    risk = Oracle(f)
    check(risk, L2(), np.zeros(3))
    n_calls = len(calls)
    check(risk, L2(), np.zeros(3))
    assert len(calls) == n_calls
    check(Oracle(f), L2(), np.zeros(3))
    assert len(calls) == 2 * n_calls


def test_the_check_of_a_slow_loss_is_short():
    calls = []

    def f(z, y, c):
        calls.append(len(z))
        clock.readings += 50
        return c @ absolute_error(z, y), c * np.sign(z - y)

    with ticking_clock() as clock:
        check(linear_risk(*regression(), Own(f)), L2(), np.zeros(5))
    assert len(calls) <= (CHECK_SECONDS + 1) / (50 * clock.TICK)


def test_a_nonconvex_log_partition_is_not_certified(monkeypatch):
    class Bad:
        dim = 1

        def joint_feature(self, x, y):
            return np.array([float(y)])

        def log_partition(self, x, w):  # a correct gradient, but not of a log-sum-exp
            return 3 + math.sin(3 * w[0]) + abs(w[0]), np.array([3 * math.cos(3 * w[0]) + np.sign(w[0])])

    J = Objective(Structured(Bad()).risk([0] * 3, [1] * 3, check=False), L2(), 0.01)
    with pytest.raises(ValueError, match="Bad is not convex, or its gradient is wrong"):
        minimize(J, Lbfgs())
    monkeypatch.setattr("riskmin.driver.loop.check", lambda *_: None)
    result = minimize(J, Lbfgs(), np.array([1.0]))
    assert (result.status, result.lower) == ("stalled", 0)
    assert "Bad is not convex" in result.note


# ---------------------------------------------------------------- convex losses
def test_builtin_losses_are_not_checked(monkeypatch):
    """The losses of riskmin skip the check."""
    monkeypatch.setattr(
        "riskmin.problem.convexity.before.check_scores", lambda *_: pytest.fail("it was looked at")
    )
    monkeypatch.setattr(
        "riskmin.problem.convexity.before._check_points", lambda *_: pytest.fail("it was looked at")
    )
    for loss in (*ALL_LOSSES, *MANY_LOSSES, Nu(Absolute(), 0.5), Smoothed(Hinge(), 0.1)):
        if isinstance(loss, (Nu, Smoothed)):
            X, y, weights = problem(loss.loss)
            risk = linear_risk(X, y, loss, sample_weight=weights)
        else:
            X, y, weights = problem(loss)
            risk = risk_of(loss, X, y, weights)
        check(risk, L2(), np.zeros(risk.dim))
        assert monitor_for(Objective(risk, L2(), 0.1), np.zeros(risk.dim)) is None


@pytest.mark.slow
def test_builtin_losses_would_pass(monkeypatch):
    """As if they were user-defined, for any labels and weights."""
    monkeypatch.setattr("riskmin.problem.convexity.owner.is_builtin", lambda thing: False)
    monkeypatch.setattr("riskmin.problem.convexity.before.is_builtin", lambda thing: False)
    for seed in range(3):
        for loss in (*ALL_LOSSES, *MANY_LOSSES):
            X, y, weights = problem(loss, seed=seed)
            for intercept in (False, True) if loss.task != "tagging" else (False,):
                risk = risk_of(loss, X, y, weights, fit_intercept=intercept)
                check(risk, L2(), np.zeros(risk.dim))


@pytest.mark.parametrize(
    "name", ["roc_area", "prbep", "f1", "ordinal", "precision_at_k:k=3", "recall_at_k:k=3"]
)
def test_builtin_nondecomposable_losses_would_pass(monkeypatch, name):
    monkeypatch.setattr("riskmin.problem.convexity.owner.is_builtin", lambda thing: False)
    monkeypatch.setattr("riskmin.problem.convexity.before.is_builtin", lambda thing: False)
    X, y = classification(2000)
    check(linear_risk(X, y, name), L2(), np.zeros(4))


@dataclass(frozen=True)
class Expectile:
    """The example of docs/add-a-loss.md."""

    level: float = 0.5
    separable = True
    smooth = True

    def value_grad(self, z, y, c):
        xp = namespace(z)
        r = z - y
        g = c * r * xp.abs(self.level - xp.astype(r > 0, z.dtype))
        return 0.5 * (g @ r), g


@dataclass(frozen=True)
class LogCosh:
    """The example of CONTRIBUTING.md."""

    separable = True
    smooth = True

    def value_grad(self, z, y, c):
        xp = namespace(z)
        r = z - y
        a = xp.abs(r)
        return c @ (a + xp.log1p(xp.exp(-2 * a)) - math.log(2)), c * xp.tanh(r)


@dataclass(frozen=True)
class OneAgainstAll:
    """The example of docs/multiclass.md."""

    separable = True
    smooth = True
    task = "multiclass"

    def linear_map(self, y, n_outputs=None):
        return MultiOutput(n_outputs or int(y.max()) + 1)

    def value_grad(self, z, y, c):
        xp = namespace(z)
        residual = z - xp.where(xp.arange(z.shape[1]) == y[:, None], 1.0, -1.0)
        return 0.5 * (c @ xp.sum(residual * residual, axis=1)), c[:, None] * residual


# Written as users would write them: terms cancel, exponentials overflow.
CONVEX = {
    "square, multiplied out": rowwise(lambda z, y: z * z - 2 * z * y + y * y, lambda z, y: 2 * (z - y)),
    "square root": rowwise(
        lambda z, y: np.sqrt(1 + (z - y) ** 2) - 1, lambda z, y: (z - y) / np.sqrt(1 + (z - y) ** 2)
    ),
    "log cosh": rowwise(lambda z, y: np.log(np.cosh((z - y) / 50)), lambda z, y: np.tanh((z - y) / 50) / 50),
    "exponential of a square": rowwise(
        lambda z, y: np.expm1((z - y) ** 2 / 1e4), lambda z, y: 2e-4 * (z - y) * np.exp((z - y) ** 2 / 1e4)
    ),
    "linex": rowwise(lambda z, y: np.exp(z - y) - (z - y) - 1, lambda z, y: np.exp(z - y) - 1),
    "cubic": rowwise(lambda z, y: abs(z - y) ** 3, lambda z, y: 3 * abs(z - y) * (z - y)),
    "power 1.01": rowwise(
        lambda z, y: abs(z - y) ** 1.01, lambda z, y: 1.01 * np.sign(z - y) * abs(z - y) ** 0.01
    ),
    "nothing": rowwise(lambda z, y: 0 * z, lambda z, y: 0 * z),
    "a constant": rowwise(lambda z, y: 0 * z + 1e9, lambda z, y: 0 * z),
    "steep": rowwise(lambda z, y: 1e9 * abs(z - y), lambda z, y: 1e9 * np.sign(z - y)),
    "math, row by row": Own(
        lambda z, y, c: (
            sum(w * math.exp(a - b) for a, b, w in zip(z, y, c, strict=True)),
            np.array([w * math.exp(a - b) for a, b, w in zip(z, y, c, strict=True)]),
        )
    ),
}


@pytest.mark.parametrize("name", CONVEX)
@pytest.mark.parametrize("scale", [1e-4, 1.0, 20.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_convex_losses_pass(name, scale, weighted):
    for n in (1, 2, 7, 300):
        rng = np.random.default_rng(n)
        X, y = rng.standard_normal((n, 3)), scale * rng.standard_normal(n)
        weights = rng.exponential(size=n) ** 6 * (np.arange(n) % 5 > 0) + 1e-300 if weighted else None
        risk = linear_risk(X, y, CONVEX[name], sample_weight=weights)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check(risk, L2(), np.zeros(3))


NAIVE = {
    "logistic": rowwise(lambda z, y: np.log(1 + np.exp(-y * z)), lambda z, y: -y / (1 + np.exp(y * z))),
    "exponential": rowwise(lambda z, y: np.exp(-y * z), lambda z, y: -y * np.exp(-y * z)),
    "exponential of one": rowwise(
        lambda z, y: np.exp(np.exp(-y * z)), lambda z, y: -y * np.exp(-y * z + np.exp(-y * z))
    ),
    "hinge": rowwise(lambda z, y: np.maximum(1 - y * z, 0), lambda z, y: -y * (y * z < 1)),
}


@pytest.mark.filterwarnings("ignore:(overflow|invalid):RuntimeWarning")  # far out, in the run
@pytest.mark.parametrize("name", NAIVE)
@pytest.mark.parametrize("solver", [Bundle(), Lbfgs()], ids=repr)
def test_convex_losses_converge(name, solver):
    X, y = classification()
    result = minimize(
        Objective(linear_risk(X, y, NAIVE[name], fit_intercept=True), L2(), 0.1), solver, tol=1e-2
    )
    assert result.note == ""
    # Lbfgs may stall at a nonsmooth point, and the search for an intercept may stall after overflow
    assert result.status == "converged" or name in ("hinge", "exponential of one")


@pytest.mark.parametrize("loss", [Expectile(0.9), LogCosh()], ids=repr)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3, 1e6])
def test_the_losses_of_the_documentation_converge(loss, scale):
    X, y = regression(scale=scale)
    result = minimize(Objective(linear_risk(X, y, loss, fit_intercept=True), L2(), 1e-3), tol=1e-6)
    assert (result.status, result.note) == ("converged", "")
    check(linear_risk(X, y, loss), L2(), np.zeros(5))
    X, y, weights = problem(MulticlassHinge())
    risk = linear_risk(X, y, OneAgainstAll(), sample_weight=weights)
    assert minimize(Objective(risk, L2(), 0.1)).status == "converged"


@st.composite
def piecewise_linear(draw):
    """The maximum of some lines in z - y, or in y z, and zero."""
    number = st.floats(-1e3, 1e3, allow_subnormal=False)
    lines = draw(st.lists(st.tuples(number, number), min_size=1, max_size=6))
    a, b = np.array([(0.0, 0.0), *lines]).T
    in_margin = draw(st.booleans())

    def f(z, y, c):
        s = y * z if in_margin else z - y
        lines_ = a[:, None] * s + b[:, None]
        best = np.argmax(lines_, axis=0)
        return c @ np.max(lines_, axis=0), c * a[best] * (y if in_margin else 1.0)

    return Own(f)


@settings(max_examples=150, deadline=None)
@given(
    piecewise_linear(),
    st.integers(1, 40),
    st.integers(0, 10**6),
    st.integers(-6, 6),
    st.booleans(),
    st.booleans(),
)
def test_piecewise_linear_losses_are_never_refused(loss, n, seed, power, signs, weighted):
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((n, 2)), 10.0**power * rng.standard_normal(n)
    y = np.sign(y) if signs else y
    weights = rng.exponential(size=n) if weighted else None
    check(linear_risk(X, y, loss, sample_weight=weights), L2(), np.zeros(2))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(piecewise_linear(), st.integers(0, 10**6), st.integers(-4, 2), st.booleans())
def test_runs_of_piecewise_linear_losses_pass_the_monitor(loss, seed, power, intercept):
    X, y = classification(20, 3, seed)
    try:
        risk = linear_risk(X, y, loss, fit_intercept=intercept)
        result = minimize(Objective(risk, L2(), 10.0**power), Bundle(), tol=1e-4, max_iter=60)
    except ValueError as error:  # lines that all slope in one direction
        assert "no best intercept exists" in str(error)  # noqa: PT017
        return
    assert result.note == ""
    other = minimize(Objective(risk, L2(), 10.0**power), Bmrm(), tol=1e-4, max_iter=60)
    assert max(result.lower, other.lower) <= min(result.value, other.value) * (1 + 1e-9) + 1e-9


def test_paths_and_searches_accept_convex_losses():
    X, y = regression(scale=1.0)
    results = path(linear_risk(X, y, LogCosh()), L2(), [1.0, 0.1, 0.01])
    assert [r.note for r in results] == [""] * 3
    model = LinearRegressorCV(LogCosh(), alphas=[1e-1, 1e-3], cv=3).fit(X, y)
    assert model.result_.note == ""
    with pytest.raises(ValueError, match="Tukey is not convex"):
        LinearRegressorCV(Tukey(), regularizer="l1", cv=3).fit(X, y)


def test_labels_may_be_strings():
    loss = Own(
        lambda z, y, c: (
            c @ np.logaddexp(0, np.where(y == "a", z, -z)),
            c * np.where(y == "a", 1, -1) / (1 + np.exp(np.where(y == "a", -z, z))),
        )
    )
    X, _ = regression(50)
    y = np.where(X[:, 0] > 0, "a", "b")
    assert minimize(Objective(linear_risk(X, y, loss), L2(), 0.1)).status == "converged"


@pytest.mark.slow
def test_a_run_in_processes():
    from dask_forks import SlowHinge  # in a module that processes can import

    X, y = classification()
    risk = linear_risk(X, y, SlowHinge(), executor=Processes(n_workers=2), n_shards=2)
    result = minimize(Objective(risk, L2(), 0.1))
    assert (result.status, result.note) == ("converged", "")


def test_a_resumed_run_is_monitored(tmp_path, monkeypatch):
    monkeypatch.setattr("riskmin.driver.loop.check", lambda *_: None)
    X, y = regression()
    J = Objective(linear_risk(X, y, Tukey()), L2(), 1e-6)
    w0 = np.random.default_rng(2).standard_normal(5)
    for _ in range(3):
        result = minimize(J, Lbfgs(), w0, max_iter=50, checkpoint=tmp_path / "run")
        assert result.status != "converged"
        assert result.lower == 0


@pytest.mark.usefixtures("unchecked")
def test_a_saved_bound_is_probed_before_it_is_claimed(tmp_path, monkeypatch):
    """A killed run has saved a bound that is not yet refuted, and a larger tol would accept it."""

    class Shallow:
        dim = 1

        def __call__(self, w):  # convex where the run goes, and lower beyond
            r = abs(float(w[0]))
            return (1.0 + 0.5 * w[0] ** 2, w) if r < 1 else (max(2.5 - r, 0.0), -np.sign(w) * (r < 2.5))

    class Killed(Exception):
        pass

    def kill(it, row):
        if row["iteration"] == 2:
            raise Killed

    J, file = Objective(Shallow(), L2(), 1.0), riskmin.Checkpoint(tmp_path / "run", every=0.0)
    with pytest.raises(Killed):
        minimize(J, Bmrm(), np.array([0.9]), tol=0.0, checkpoint=file, callback=kill)
    result = minimize(J, Bmrm(), np.array([0.9]), tol=0.99, checkpoint=file)
    assert (result.status, result.n_iter) == ("stalled", 1)
    assert "Shallow is not convex" in result.note


# ---------------------------------------------------------------- other arrays
@pytest.mark.slow  # for the import of torch
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_arrays_of_torch(dtype):
    torch = pytest.importorskip("torch")

    class TorchTukey:
        separable = True

        def value_grad(self, z, y, c):
            r = torch.clamp(z - y, -1.0, 1.0)
            u = 1 - r * r
            return c @ (1 - u**3), c * 6 * r * u**2

    class TorchHinge:
        separable = True

        def value_grad(self, z, y, c):
            m = torch.clamp(1 - y * z, min=0)
            return c @ m, -c * y * (m > 0)

    rng = np.random.default_rng(0)
    X = torch.as_tensor(rng.standard_normal((200, 4)), dtype=getattr(torch, dtype))
    for scale in (1.0, 1e3):
        y = scale * (X[:, 0] + 0.1 * X[:, 1])
        for loss in (Expectile(0.8), LogCosh()):
            result = minimize(Objective(linear_risk(X, y, loss), L2(), 1e-2), "lbfgs", tol=1e-2)
            assert (result.status, result.note) == ("converged", "")
        with pytest.raises(ValueError, match=r"TorchTukey is .*not convex"):
            minimize(Objective(linear_risk(X, y, TorchTukey()), L2(), 1e-2))
    y = torch.sign(X[:, 0])
    for intercept in (False, True):
        risk = linear_risk(X, y, TorchHinge(), fit_intercept=intercept)
        assert minimize(Objective(risk, L2(), 0.1), "bundle", tol=1e-2).note == ""


def test_user_nonsmooth_losses_are_fitted():
    X, y = classification()

    class Mine(Hinge):
        pass

    user_model = LinearClassifier(Mine(), alpha=1e-2).fit(X, y)
    builtin_model = LinearClassifier("hinge", alpha=1e-2).fit(X, y)
    assert user_model.objective_ == pytest.approx(builtin_model.objective_, rel=2e-3)
    assert LinearClassifier(Logistic()).fit(X, y).result_.note == ""

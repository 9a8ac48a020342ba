"""User-defined losses and risks: nonconvex ones are refused or not certified, convex ones pass."""

import dataclasses
import itertools
import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning

import riskmin as rm
from helpers import ALL_LOSSES, LIST_LOSSES, MANY_LOSSES, Problem, altered, problem, risk_of, ticking_clock


@dataclass(frozen=True)
class Own:
    """A loss given by a function: z, y, c -> value, gradient."""

    f: object
    separable: bool = True

    def value_grad(self, z, y, c):
        return self.f(z, y, c)


def both(value, slope):
    """A loss as its value and its gradient."""
    return lambda z, y, c: (value(z, y, c), slope(z, y, c))


def of_residuals(loss, slope):
    """A loss given by its value and slope for a residual z - y."""
    return Own(lambda z, y, c: (c @ loss(z - y), c * slope(z - y)))


def of_margins(loss, slope):
    """A loss given by its value and slope for a margin y z."""
    return Own(lambda z, y, c: (c @ loss(y * z), c * y * slope(y * z)))


@dataclass(frozen=True)
class Tukey:
    """The biweight loss: bounded, and constant beyond `width`."""

    width: float = 1.0
    separable = True

    def value_grad(self, z, y, c):
        r = rm.namespace(z).clip((z - y) / self.width, -1.0, 1.0)
        u = 1 - r * r
        return c @ (1 - u**3), c * 6 * r * u**2 / self.width


class HiddenTukey(Tukey):
    """Convex on samples of the rows, so that only a run over all of them shows what it is."""

    def value_grad(self, z, y, c):
        return super().value_grad(z, y, c) if len(z) >= 200 else rm.Absolute().value_grad(z, y, c)


def regression(n=200, scale=10.0):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 5))
    return X, X @ np.full(5, scale) + 0.5 * rng.standard_normal(n)


def classification(n=100, p=4, seed=0):
    return problem(rm.Hinge(), n, p, seed)[:2]


def accept(loss, X, y, **settings):
    """Check that a run of a single step starts, and refutes nothing."""
    J = rm.Objective(rm.linear_risk(X, y, loss, **settings), rm.L2(), 1.0)
    assert rm.minimize(J, rm.Bmrm(), max_iter=1).note == ""


def refuse(message, risk, w0=None):
    """Check that `minimize` refuses the risk in one sentence and before any step."""
    J = rm.Objective(risk, rm.L2(), 1e-3)
    with pytest.raises(ValueError, match=message) as caught:
        rm.minimize(J, "bundle", w0, callback=lambda *_: pytest.fail("it ran"))
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- nonconvex losses
@pytest.mark.parametrize("scale", [0.01, 1.0, 10.0, 1e3, 1e6])
def test_losses_of_any_width_are_refused_from_any_start(scale):
    words = r"Tukey is not convex: it is .* at the scores .*; no bound would"
    for width, size in itertools.product((1e-3, 1.0, 4.685, 30.0), (0.0, 0.1, 3.0, 30.0)):
        risk = rm.linear_risk(*regression(scale=scale), Tukey(width), fit_intercept=size in (0.0, 3.0))
        refuse(words, risk, size * np.random.default_rng(1).standard_normal(5))


@pytest.mark.parametrize(
    ("solver", "intercept", "size"),
    [
        (None, True, 0.0),
        (rm.Bundle(), False, 1.0),
        (rm.Bmrm(), True, 30.0),
        (rm.Lbfgs(), False, 0.1),
        (rm.Lbfgs(), True, 3.0),
    ],
)
def test_tukey_is_not_certified_in_a_run(solver, intercept, size):
    """It was once certified at 0.97 although weights with a value of 0.38 exist."""
    J = rm.Objective(rm.linear_risk(*regression(), HiddenTukey(), fit_intercept=intercept), rm.L2(), 1e-6)
    assert J.value(np.full(5, 10.0)) < 0.4
    w0 = size * np.random.default_rng(2).standard_normal(5)
    result = rm.minimize(J, solver, w0, max_iter=200)
    assert result.status == "stalled"
    assert result.lower == J.lower(result.cut) == 0
    assert result.note.startswith("HiddenTukey is not convex, or its gradient is wrong: ")
    assert result.note.endswith("so nothing is proved but that J >= 0, and other weights may be better")
    assert "\n" not in result.note
    assert result.value == pytest.approx(J.value(result.w), rel=1e-9)


def test_a_resumed_run_is_monitored(tmp_path):
    J = rm.Objective(rm.linear_risk(*regression(), HiddenTukey()), rm.L2(), 1e-6)
    for _ in range(3):
        result = rm.minimize(J, rm.Lbfgs(), np.full(5, 0.5), max_iter=50, checkpoint=tmp_path / "run")
        assert (result.status, result.lower) == ("stalled", 0)


def test_the_estimator_warns_that_nothing_is_proved():
    X, y = regression()
    model = rm.LinearRegressor(HiddenTukey(), alpha=1e-6)
    with pytest.warns(
        ConvergenceWarning, match="status 'stalled' .*: HiddenTukey is not .* nothing is proved"
    ):
        model.fit(X, y)
    assert (model.lower_bound_, model.gap_) == (0.0, model.objective_)
    with pytest.warns(ConvergenceWarning, match="HiddenTukey is not convex"):
        model.fit(X, np.stack([y, -y], axis=1))
    assert "HiddenTukey" in model.result_.note


NONCONVEX = {
    "Welsch": of_residuals(lambda r: 1 - np.exp(-r * r / 2), lambda r: r * np.exp(-r * r / 2)),
    "Cauchy": of_residuals(lambda r: np.log1p(r * r), lambda r: 2 * r / (1 + r * r)),
    "root": of_residuals(lambda r: np.sqrt(abs(r)), lambda r: np.sign(r) / (2 * np.sqrt(abs(r)))),
    "one sign": Own(
        lambda z, y, c: (
            c @ np.where(y > 0, np.minimum((z - y) ** 2, 9.0), (z - y) ** 2),
            2 * c * (z - y) * ((y <= 0) | (abs(z - y) < 3)),
        )
    ),
}
NONCONVEX_IN_MARGINS = {
    "ramp": of_margins(lambda m: np.clip(1 - m, 0.0, 1.0), lambda m: -1.0 * ((m < 1) & (m > 0))),
    "zero-one": of_margins(lambda m: (m <= 0) * 1.0, lambda m: 0.0 * m),
    "sigmoid": of_margins(lambda m: 1 / (1 + np.exp(m)), lambda m: -1 / (2 + 2 * np.cosh(m))),
}


def errors(z, y, c):
    return c @ abs(z - y)


def signs(z, y, c):
    return c * np.sign(z - y)


def squares(z, y, c):
    return c @ (z - y) ** 2


WRONG = {
    "wrong sign": (errors, lambda z, y, c: -signs(z, y, c), "the gradient of Own is wrong"),
    "no weights": (errors, lambda z, y, c: np.sign(z - y), "gradient of Own is wrong.*with the c_i in"),
    "weights twice": (errors, lambda z, y, c: c * signs(z, y, c), "the gradient of Own is wrong"),
    "a factor": (squares, lambda z, y, c: c * (z - y), "the gradient of Own is wrong"),
    "one percent": (squares, lambda z, y, c: 2.02 * c * (z - y), "the gradient of Own is wrong"),
    "negative": (
        lambda z, y, c: c @ ((z - y) ** 2 - 1),
        lambda z, y, c: 2 * c * (z - y),
        "Own is -1 at .* must be >= 0",
    ),
    "NaN far out": (lambda z, y, c: c @ np.where(abs(z) > 50, np.nan, abs(z - y)), signs, "is nan at"),
    "NaN slopes": (errors, lambda z, y, c: np.where(abs(z) > 50, np.nan, signs(z, y, c)), "not finite"),
    "infinite": (
        lambda z, y, c: c @ np.cosh(1e4 * (z - y)),
        lambda z, y, c: 1e4 * c * np.sinh(1e4 * (z - y)),
        "is inf at",
    ),
    "shape": (errors, lambda z, y, c: signs(z, y, c)[:, None], r"shape \(1, 1\), but the scores"),
    "dtype": (errors, lambda z, y, c: np.float32(signs(z, y, c)), "is of float32 .* are of float64"),
    "a sum": (errors, lambda z, y, c: float(signs(z, y, c).sum()), r"is of float and shape \(\)"),
    "values": (lambda z, y, c: c * abs(z - y), signs, "add them up, c @ values"),
    "needs all rows": (
        lambda z, y, c: errors(z, y, c) + 0 * np.ones(200) @ z,
        signs,
        "must have separable = False",
    ),
}
REFUSED = {
    **{name: (loss, "Own is not convex: it is") for name, loss in (NONCONVEX | NONCONVEX_IN_MARGINS).items()},
    **{name: (Own(both(f, slope)), words) for name, (f, slope, words) in WRONG.items()},
    "one thing": (Own(errors), "must return two things"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_losses_are_refused(name):
    loss, words = REFUSED[name]
    in_margins = name in NONCONVEX_IN_MARGINS
    X, y = classification() if in_margins else regression()
    refuse(words, rm.linear_risk(X, y, loss))
    regressors = rm.LinearRegressor, rm.LinearRegressorCV, partial(rm.KernelRegressor, solver="bundle")
    for model in (rm.LinearClassifier, rm.LinearClassifierCV) if in_margins else regressors:
        with pytest.raises(ValueError, match=words):
            model(loss).fit(X, y)


def test_the_check_uses_the_sample_weights():
    """The weights of the rows are used, so that a loss that assumes equal weights is refused."""
    mean = Own(lambda z, y, c: (errors(z, y, c), np.sign(z - y) / len(z)))
    refuse("gradient of Own is wrong", rm.linear_risk(*regression(), mean, sample_weight=np.arange(200.0)))


def turned(parts, *_):
    """The slopes of other classes or rows."""
    return parts[0], np.roll(parts[1], 1, axis=-1)


TURNED = "gradient of Altered is wrong|Altered is not convex"


class Capped(rm.MulticlassHinge):
    """At most 2 per row."""

    def value_grad(self, z, y, c):
        rows = [super(Capped, self).value_grad(z[i, None], y[i, None], c[i, None]) for i in range(len(z))]
        capped = [min(v, c[i] * 2.0) for i, (v, _) in enumerate(rows)]
        return sum(capped), np.concatenate([dz * (v < 2 * c[i]) for i, (v, dz) in enumerate(rows)])


class TukeyValues(Tukey):
    def values(self, z, y):
        return 1 - (1 - np.clip(z - y, -1, 1) ** 2) ** 3


def extreme(choose):
    """The smallest or the largest error of all rows, of which only the largest is convex."""

    def value_grad(z, y, c):
        k = choose(abs(z - y))
        return float(abs(z - y)[k]), np.eye(len(z))[k] * np.sign(z - y)

    return Own(value_grad, separable=False)


def test_the_largest_error_of_all_rows_passes_and_the_smallest_is_refused():
    accept(extreme(np.argmax), *regression())
    refuse("Own is not convex", rm.linear_risk(*regression(), extreme(np.argmin)))


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(
    ("loss", "like", "words"),
    [
        (altered(rm.MulticlassHinge(), value_grad=turned), rm.MulticlassHinge(), TURNED),
        (Capped(), rm.MulticlassHinge(), "Capped is not convex"),
        (rm.Nu(TukeyValues(), 0.5), rm.Absolute(), "TukeyValues is not convex"),
        (altered(rm.Mrr(), value_grad_of_queries=turned), rm.Mrr(), TURNED),
        (altered(rm.ChainCrf(), value_grad=turned), rm.ChainCrf(), TURNED),
    ],
    ids=lambda v: type(v).__name__,
)
def test_losses_of_every_kind_are_checked(loss, like, words, intercept):
    if intercept and like.task in ("ranking", "tagging"):
        pytest.skip("it has no intercept")
    refuse(words, risk_of(loss, *problem(like), fit_intercept=intercept))


# ---------------------------------------------------------------- user-defined risks
@dataclass
class Oracle:
    f: object
    dim: int = 3

    def __call__(self, w):
        return self.f(w)


def square(w):
    return float((w - 1) @ (w - 1)), 2 * (w - 1)


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
        # the risk of Tukey's loss, from a flat start: all rows are beyond its width
        (rm.linear_risk(*(a[:, :3] if a.ndim > 1 else a for a in regression()), Tukey(0.3)), "not convex"),
    ],
)
def test_wrong_risks_are_refused(f, message):
    refuse(message, Oracle(f))


def test_points_stay_in_the_domain():
    def f(w):
        assert (w >= 0).all()
        return square(w)

    result = rm.minimize(rm.Objective(Oracle(f), rm.Box(rm.L1(), 0.0), 0.1), "bundle", tol=1e-6)
    assert (result.status, result.note) == ("converged", "")


def test_the_check_of_slow_code_is_short():
    def slowly(f):
        def called(*args):
            calls.append(0)
            clock.readings += 200  # a fifth of a second
            return f(*args)

        return called

    for risk, most in (
        (Oracle(slowly(square)), 6),
        (rm.linear_risk(*regression(), Own(slowly(rm.Absolute().value_grad))), 16),
    ):
        calls, until_the_first_step = [], []
        count = until_the_first_step.append
        with ticking_clock() as clock:
            J = rm.Objective(risk, rm.L2(), 1.0)
            rm.minimize(J, rm.Bmrm(), max_iter=2, callback=lambda it, row: count(len(calls)))  # noqa: B023
        assert 3 <= until_the_first_step[0] <= most


class Counted(Oracle):
    """A risk that counts its calls."""

    calls = 0

    def __call__(self, w):
        self.calls += 1
        return super().__call__(w)


@pytest.mark.parametrize("what", ["value", "gradient"])
def test_a_risk_that_becomes_nan_is_reported(what):
    def f(w):
        bad = math.nan if risk.calls > 12 else 1.0
        return square(w)[0] * (bad if what == "value" else 1.0), square(w)[1] * bad

    for solver in (rm.Bundle(), rm.Bmrm(), rm.Lbfgs()):
        risk = Counted(f)
        with pytest.raises(ValueError, match="the risk Counted is NaN at a point that the run came to: ret"):
            rm.minimize(rm.Objective(risk, rm.L2(), 1e-3), solver, tol=1e-12)


def test_a_risk_is_checked_once():
    calls, risk = [], Counted(square)
    for tested in (risk, risk, Counted(square)):
        before = tested.calls
        rm.minimize(rm.Objective(tested, rm.L2(), 1.0), rm.Bmrm(), max_iter=1)
        calls.append(tested.calls - before)
    assert calls[1] < calls[0] == calls[2]


class Dip:
    """Constant where the run starts, and lower around 5.5."""

    dim = 3

    def __call__(self, w):
        r = w - 5.5
        inside = max(1 - float(r @ r) / 4, 0.0)
        return 1.0 - inside**2, inside * r


class Below:
    """Negative at its minimum."""

    dim = 2

    def __call__(self, w):
        return float((w - 3) @ (w - 3)) - 1.0, 2 * (w - 3)


@pytest.mark.parametrize(
    ("risk", "w0", "lower", "words"),
    [(Dip(), np.full(3, 2.5), 0, "the risk Dip is not convex"), (Below(), np.zeros(2), -math.inf, "it is -")],
)
def test_a_probe_at_the_end_finds_what_the_run_did_not_visit(risk, w0, lower, words):
    result = rm.minimize(rm.Objective(risk, rm.L2(), 1e-3), rm.Bundle(), w0, tol=1e-2)
    assert (result.status, result.lower) == ("stalled", lower)
    assert words in result.note
    if lower == 0:
        assert result.value < 0.8  # the probe is returned, since it is better


def test_a_saved_bound_is_probed_before_it_is_claimed(tmp_path):
    """A killed run has saved a bound that is not yet refuted, and a larger tol would accept it."""

    class Shallow:
        dim, dented = 1, False

        def __call__(self, w):
            r = abs(float(w[0]))
            if r < 1 or not self.dented:
                return 1.0 + 0.5 * w[0] ** 2, w
            return max(2.5 - r, 0.0), -np.sign(w) * (r < 2.5)

    class Killed(Exception):
        pass

    def kill(it, row):
        if row["iteration"] == 2:
            raise Killed

    risk, file = Shallow(), rm.Checkpoint(tmp_path / "run", every=0.0)
    J = rm.Objective(risk, rm.L2(), 1.0)
    with pytest.raises(Killed):
        rm.minimize(J, rm.Bmrm(), np.array([0.9]), tol=0.0, checkpoint=file, callback=kill)
    risk.dented = True  # convex where the run went, and lower beyond
    result = rm.minimize(J, rm.Bmrm(), np.array([0.9]), tol=0.99, checkpoint=file)
    assert (result.status, result.n_iter) == ("stalled", 1)
    assert "Shallow is not convex" in result.note


def test_a_nonconvex_log_partition_is_refused():
    class Bad:
        dim = 1

        def joint_feature(self, x, y):
            return np.array([float(y)])

        def log_partition(self, x, w):
            # a correct gradient, but not of a log-sum-exp
            return 3 + math.sin(3 * w[0]) + abs(w[0]), np.array([3 * math.cos(3 * w[0]) + np.sign(w[0])])

    risk = rm.Structured(Bad()).risk([0] * 3, [1] * 3, check=False)
    refuse("Bad is not convex, or its gradient is wrong", risk)


# ---------------------------------------------------------------- convex losses
def as_own(loss):
    """The same loss, of a class that is not riskmin's."""
    own = type(f"Own{type(loss).__name__}", (type(loss),), {"__module__": __name__})
    return own(**{f.name: getattr(loss, f.name) for f in dataclasses.fields(loss) if f.init})


@pytest.mark.slow
@pytest.mark.parametrize("loss", [*ALL_LOSSES, *MANY_LOSSES, *LIST_LOSSES], ids=repr)
def test_builtin_losses_would_pass_as_own_ones(loss):
    for seed, intercept in itertools.product((1, 2), {False, loss.separable and loss.task != "tagging"}):
        J = Problem(loss, seed=seed, weighted=True, intercept=intercept)
        J.loss = as_own(loss)
        assert rm.minimize(J.objective(), rm.Bundle(), max_iter=1).note == ""


@dataclass(frozen=True)
class Expectile:
    """The example of docs/add-a-loss.md."""

    level: float = 0.5
    separable = True
    smooth = True

    def value_grad(self, z, y, c):
        xp = rm.namespace(z)
        r = z - y
        g = c * r * xp.abs(self.level - xp.astype(r > 0, z.dtype))
        return 0.5 * (g @ r), g


# Written as users would write them: terms cancel, exponentials overflow.
CONVEX = {
    "square, multiplied out": Own(lambda z, y, c: (c @ (z * z - 2 * z * y + y * y), 2 * c * (z - y))),
    "square root": of_residuals(lambda r: np.sqrt(1 + r * r) - 1, lambda r: r / np.sqrt(1 + r * r)),
    "log cosh": of_residuals(lambda r: np.log(np.cosh(r / 50)), lambda r: np.tanh(r / 50) / 50),
    "exponential of a square": of_residuals(
        lambda r: np.expm1(r * r / 1e4), lambda r: 2e-4 * r * np.exp(r * r / 1e4)
    ),
    "linex": of_residuals(lambda r: np.exp(r) - r - 1, lambda r: np.exp(r) - 1),
    "cubic": of_residuals(lambda r: abs(r) ** 3, lambda r: 3 * abs(r) * r),
    "power 1.01": of_residuals(lambda r: abs(r) ** 1.01, lambda r: 1.01 * np.sign(r) * abs(r) ** 0.01),
    "nothing": of_residuals(lambda r: 0 * r, lambda r: 0 * r),
    "a constant": of_residuals(lambda r: 0 * r + 1e9, lambda r: 0 * r),
    "steep": of_residuals(lambda r: 1e9 * abs(r), lambda r: 1e9 * np.sign(r)),
    "math, row by row": Own(
        lambda z, y, c: (
            sum(w * math.exp(a - b) for a, b, w in zip(z, y, c, strict=True)),
            np.array([w * math.exp(a - b) for a, b, w in zip(z, y, c, strict=True)]),
        )
    ),
}


@pytest.mark.parametrize("name", CONVEX)
@pytest.mark.parametrize(("scale", "weighted"), [(1e-4, True), (20.0, False)])
def test_convex_losses_pass(name, scale, weighted):
    for n in (1, 40):
        rng = np.random.default_rng(n)
        X, y = rng.standard_normal((n, 3)), scale * rng.standard_normal(n)
        weights = rng.exponential(size=n) ** 6 * (np.arange(n) % 5 > 0) + 1e-300 if weighted else None
        accept(CONVEX[name], X, y, sample_weight=weights)


NAIVE = {
    "logistic": of_margins(lambda m: np.log(1 + np.exp(-m)), lambda m: -1 / (1 + np.exp(m))),
    "exponential": of_margins(lambda m: np.exp(-m), lambda m: -np.exp(-m)),
    "exponential of one": of_margins(lambda m: np.exp(np.exp(-m)), lambda m: -np.exp(-m + np.exp(-m))),
    "hinge": of_margins(lambda m: np.maximum(1 - m, 0), lambda m: -1.0 * (m < 1)),
}


@pytest.mark.filterwarnings("ignore:(overflow|invalid):RuntimeWarning")  # far out, in the run
@pytest.mark.parametrize("name", NAIVE)
@pytest.mark.parametrize("solver", [rm.Bundle(), rm.Lbfgs()], ids=repr)
def test_convex_losses_converge(name, solver):
    J = rm.Objective(rm.linear_risk(*classification(), NAIVE[name], fit_intercept=True), rm.L2(), 0.1)
    result = rm.minimize(J, solver, tol=1e-2)
    assert result.note == ""
    # Lbfgs may stall at a nonsmooth point, and the search for an intercept may stall after overflow
    assert result.status == "converged" or name in ("hinge", "exponential of one")


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_the_loss_of_the_documentation_converges(scale):
    """In a single fit, a path and a search."""
    X, y = regression(scale=scale)
    risk = rm.linear_risk(X, y, Expectile(0.9), fit_intercept=True)
    for result in (
        rm.minimize(rm.Objective(risk, rm.L2(), 1e-3), tol=1e-6),
        *rm.path(risk, rm.L2(), [1.0, 0.1, 0.01]),
        rm.LinearRegressorCV(Expectile(0.9), alphas=[1e-1, 1e-3], cv=3).fit(X, y).result_,
    ):
        assert (result.status, result.note) == ("converged", "")


def test_other_convex_losses_converge():
    X, y, weights = problem(rm.MulticlassHinge())
    by_name = Own(
        lambda z, y, c: (
            c @ np.logaddexp(0, np.where(y == "a", z, -z)),
            c * np.where(y == "a", 1, -1) / (1 + np.exp(np.where(y == "a", -z, z))),
        )
    )
    for risk in (
        rm.linear_risk(X, y, as_own(rm.Softmax()), sample_weight=weights),
        rm.linear_risk(X, np.where(y > 0, "a", "b"), by_name),
    ):
        assert rm.minimize(rm.Objective(risk, rm.L2(), 0.1)).status == "converged"


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


@settings(max_examples=25, deadline=None)
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
    accept(loss, X, y, sample_weight=rng.exponential(size=n) if weighted else None)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(piecewise_linear(), st.integers(0, 10**6), st.integers(-4, 2), st.booleans())
def test_runs_of_piecewise_linear_losses_pass_the_monitor(loss, seed, power, intercept):
    X, y = classification(20, 3, seed)
    try:
        risk = rm.linear_risk(X, y, loss, fit_intercept=intercept)
        result = rm.minimize(rm.Objective(risk, rm.L2(), 10.0**power), rm.Bundle(), tol=1e-4, max_iter=60)
    except ValueError as error:  # lines that all slope in one direction
        assert "no best intercept exists" in str(error)  # noqa: PT017
        return
    assert result.note == ""
    other = rm.minimize(rm.Objective(risk, rm.L2(), 10.0**power), rm.Bmrm(), tol=1e-4, max_iter=60)
    assert max(result.lower, other.lower) <= min(result.value, other.value) * (1 + 1e-9) + 1e-9


# ---------------------------------------------------------------- other arrays
@pytest.mark.slow  # for the import of torch
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_arrays_of_torch(dtype):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    X = torch.as_tensor(rng.standard_normal((200, 4)), dtype=getattr(torch, dtype))
    for scale in (1.0, 1e3):
        y = scale * (X[:, 0] + 0.1 * X[:, 1])
        J = rm.Objective(rm.linear_risk(X, y, Expectile(0.8)), rm.L2(), 1e-2)
        result = rm.minimize(J, "lbfgs", tol=1e-2)
        assert (result.status, result.note) == ("converged", "")
        with pytest.raises(ValueError, match=r"Tukey is .*not convex"):
            rm.minimize(rm.Objective(rm.linear_risk(X, y, Tukey()), rm.L2(), 1e-2))
    y = torch.sign(X[:, 0])
    for intercept in (False, True):
        risk = rm.linear_risk(X, y, as_own(rm.Hinge()), fit_intercept=intercept)
        assert rm.minimize(rm.Objective(risk, rm.L2(), 0.1), "bundle", tol=1e-2).note == ""

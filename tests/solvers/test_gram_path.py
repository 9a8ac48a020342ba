"""Paths as one run: bounds that hold in any units, and minima of another program."""

import numpy as np
import pytest

import riskmin as rm
from helpers import Problem
from riskmin.driver.joint_runs import joint_results
from riskmin.problem.second_moments import SecondMoments, center_of
from riskmin.solvers.coordinate.gram_path import gram_path, pays, terms_of
from riskmin.solvers.coordinate.newton_path import SmoothRows, newton_path

JOINT = "one run for all"


# ---------------------------------------------------------------- bounds in any units
def rows_of(seed):
    """Rows in units of 1e-6 to 1e6, far from zero, nearly collinear, nearly exact fits, or with constants."""
    rng, kind = np.random.default_rng(seed), seed % 6
    n, p = int(rng.integers(5, 200)), int(rng.integers(1, 25))
    X = rng.normal(size=(n, p))
    if kind in (1, 2):
        X = X * 10 ** rng.uniform(-6, 6, p)
    if kind == 2:
        X = X + X.std(axis=0) * 10 ** rng.uniform(0, 5, p)
    if kind == 3:
        X[:, 1:] = X[:, :1] + 10 ** rng.uniform(-8, -1) * X[:, 1:]
    z = X @ (rng.normal(size=p) * (rng.random(p) < 0.4) / X.std(axis=0))
    y = z + (10 ** rng.uniform(-9, -3) if kind == 4 else 1.0) * (z.std() or 1.0) * rng.normal(size=n)
    if kind == 5:
        y, X[:, -1] = 1e-6 * y + 1e3, 7.0
    c = rng.uniform(0.1, 3, n)
    if seed % 8 == 5:
        c[rng.random(n) < 0.2] = 0.0
    return X, y, c, rng


def J(X, y, c, w, b, terms):
    """J in extended precision; at the best intercept if b is None."""
    X, y, c, w, terms = (np.asarray(a, np.longdouble) for a in (X, y, c, w, terms))
    # the means first: they may be much larger than the residuals
    centered = y - c @ y / c.sum() - (X - c @ X / c.sum()) @ w
    r = centered if b is None else y - X @ w - np.longdouble(b)
    return c @ (r * r) / (2 * c.sum()) + terms[0] @ abs(w) + terms[1] @ (w * w) / 2


def violations(seeds, rounding):
    """How many bounds of paths are wrong, and how many gaps are proved, of all."""
    wrong, proved, count = 0, 0, 0
    for seed in seeds:
        X, y, c, rng = rows_of(seed)
        risk = SecondMoments.of_rows(X, y, c, center_of(X, y, True)).risk(True)
        risk = risk if rounding else risk._replace(rounding=0.0)
        reg = (rm.L1(), rm.Elastic(eps=0.5), rm.L2())[seed // 6 % 3]
        lams = abs(risk.q).max() * np.geomspace(1, 10 ** rng.uniform(-8, -2), 8)
        terms = terms_of(reg, lams, X.shape[1])
        paths = [gram_path(risk, terms, tol, 0.0) for tol in (1e-3, 1e-6, 1e-9)]
        for k in range(len(lams)):
            least = min(J(X, y, c, path.W[k], None, terms[k]) for path in paths)
            for path in paths:
                b, raised = risk.intercepts(path.W[k][None])
                wrong += bool(path.value[k] + raised[0] < J(X, y, c, path.W[k], b[0], terms[k]))
                wrong += bool(path.lower[k] > least)
            proved, count = proved + bool(paths[1].accepted(1e-6, 0.0)[k]), count + 1
    return wrong, proved / count


def test_bounds_hold_in_any_units():
    """The same bounds without their rounding are wrong in a tenth of all cases: so the test can see it."""
    wrong, proved = violations(range(60), rounding=True)
    assert wrong == 0
    assert proved > 0.95
    assert violations(range(60), rounding=False)[0] > 100


@pytest.mark.slow
def test_bounds_hold_in_any_units_for_many_problems():
    assert violations(range(60, 300), rounding=True)[0] == 0


# ---------------------------------------------------------------- minima of another program
REGS = [
    rm.L1(),
    rm.L2(),
    rm.Elastic(eps=0.3),
    rm.L1(weights=np.array([1.0, 0.2, 3.0, 1.0])),
    rm.Box(rm.L1(), 0.0),
    rm.Box(rm.Elastic(eps=0.2), -0.1, 0.3),
    rm.Box(rm.L2(), 0.1, 0.4),
    rm.Box(rm.L1(), np.array([-0.5, 0.0, 0.1, -1.0]), np.array([-0.1, 1.0, 2.0, 0.0])),
]


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("reg", REGS, ids=repr)
def test_minima_are_those_of_another_program(reg, intercept):
    settings = {"reg": reg, "intercept": intercept, "weighted": True, "n": 60}
    lams = [1e-3, 0.3, 1e-2]
    first = Problem(rm.Squared(), **settings)
    results = rm.path(first.objective().risk, reg, lams, tol=1e-8)
    for lam, result in zip(lams, results, strict=True):
        assert JOINT in result.solver
        problem = Problem(rm.Squared(), lam=lam, **settings)
        problem.check(result, 1e-8)
        obj = problem.objective()
        assert obj.lower(result.cut) == pytest.approx(result.lower, rel=1e-9)
        assert obj.value(result.w) == pytest.approx(result.value, rel=1e-10)
        assert obj.risk.best_intercept(result.w) == pytest.approx(result.intercept, rel=1e-9, abs=1e-12)
        assert result.trace[-1]["lam"] == lam


@pytest.mark.parametrize("tol", [1e-2, 1e-5])
def test_cuts_bound_the_risk(tol):
    problem = Problem(rm.Squared(), reg=rm.L1(), intercept=True, n=80, units=np.geomspace(1e-3, 1e3, 4))
    risk = problem.objective().risk
    rng = np.random.default_rng(0)
    for result in rm.path(risk, rm.L1(), [1e-1, 1e-3, 1e-5], tol=tol):
        assert result.gap <= tol * result.value
        for _ in range(20):
            v = result.w + rng.normal(size=4) / np.geomspace(1e-3, 1e3, 4) * 10 ** rng.uniform(-4, 1)
            assert result.cut.a @ v + result.cut.b <= risk(v)[0] * (1 + 1e-12)


# ---------------------------------------------------------------- where rows are read instead
def test_gaps_that_rounding_hides_are_proved_by_the_rows():
    """Of an exact fit, second moments hold few digits: the runs for small lam read the rows."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(200, 5))
    y = X @ [1.0, -2.0, 0.0, 0.5, 3.0] + 1e-5 * rng.normal(size=200)
    risk, lams = rm.linear_risk(X, y, rm.Squared(), fit_intercept=True), np.geomspace(1, 1e-10, 10)
    results = rm.path(risk, rm.L1(), lams, tol=1e-6, atol=0.0)
    ways = [JOINT in result.solver for result in results]
    assert ways[0]
    assert not ways[-1]
    assert {result.status for result in results} == {"converged"}
    for lam, result in zip(lams, results, strict=True):
        one = rm.minimize(rm.Objective(risk, rm.L1(), lam), tol=1e-6)
        assert max(one.lower, result.lower) <= min(one.value, result.value) * (1 + 1e-12)


@pytest.mark.parametrize(
    "settings",
    [{"solver": "lbfgs"}, {"max_seconds": 60.0}, {"loss": rm.PowerHinge(p=1.5)}, {"sparse": True}],
    ids=repr,
)
def test_other_problems_take_passes_over_the_rows(settings):
    settings = dict(settings)
    loss, sparse = settings.pop("loss", rm.Squared()), settings.pop("sparse", False)
    risk = Problem(loss, n=60, sparse=sparse).objective().risk
    results = rm.path(risk, rm.L2(), [1e-1, 1e-2], **settings)
    assert {result.status for result in results} == {"converged"}
    assert not any(JOINT in result.solver for result in results)


def test_wide_rows_take_passes():
    assert pays(1000, 100, 100)
    assert not pays(100, 101, 100)
    assert not pays(10**6, 400, 10)


def test_numbers_whose_squares_overflow_take_passes():
    X = np.array([[1e200], [-1e200], [2e200]])
    objectives = [rm.Objective(rm.linear_risk(X, [1.0, 2.0, 3.0], rm.Squared()), rm.L1(), 1.0)] * 2
    limits = {"tol": 1e-3, "max_iter": 10, "max_seconds": np.inf, "atol": None}
    with np.errstate(all="ignore"):
        assert list(joint_results(objectives, rm.Auto(), limits)) == [None, None]


def test_a_callback_sees_each_lam_and_ends_the_path():
    risk, seen = Problem(rm.Squared(), n=60).objective().risk, []

    def second(iterate, row):
        seen.append((row["lam"], iterate.value))
        return row["lam"] < 0.5

    results = rm.path(risk, rm.L1(), [0.01, 1.0, 0.3], callback=second)
    assert [lam for lam, _ in seen] == [1.0, 0.3]
    assert [result.status for result in results] == ["interrupted", "converged", "interrupted"]
    for lam, result in zip([0.01, 1.0, 0.3], results, strict=True):
        obj = rm.Objective(risk, rm.L1(), lam)
        assert result.lower <= rm.minimize(obj, tol=1e-9).value <= result.value * (1 + 1e-9)
        assert obj.value(result.w) == pytest.approx(result.value, rel=1e-9)


# ---------------------------------------------------------------- other smooth losses
class WithoutRounding(SmoothRows):
    """Rows whose bounds do not allow for rounding."""

    rounding = 0.0


def smooth_J(loss, X, y, c, w, b, terms):
    """J in extended precision."""
    X, y, c, w, terms = (np.asarray(a, np.longdouble) for a in (X, y, c, w, terms))
    z = X @ w + np.longdouble(b)
    if isinstance(loss, rm.Logistic):
        losses = np.log1p(np.exp(-abs(z))) + np.maximum(-y * z, 0)
    else:
        r = abs(z - y)
        losses = np.where(r <= 1, r * r / 2, r - np.longdouble(0.5))
    return c @ losses + terms[0] @ abs(w) + terms[1] @ (w * w) / 2


def wrong_bounds_of_smooth_losses(kind, seeds):
    """How many bounds are wrong, how many gaps are proved, and how many there are."""
    wrong, proved, count = 0, 0, 0
    for seed in seeds:
        X, y, c, _ = rows_of(seed)
        c = np.maximum(c, 0.1) / np.maximum(c, 0.1).sum()
        signs, numbers = np.where(y > np.median(y), 1.0, -1.0), (y - y.mean()) / (y.std() or 1.0)
        for loss, labels in ((rm.Logistic(), signs), (rm.Huber(), numbers)):
            reg = (rm.L1(), rm.Elastic(eps=0.5), rm.L2())[seed // 6 % 3]
            risk = rm.linear_risk(X, labels, loss, sample_weight=c, fit_intercept=True)
            top, b = rm.lam_max(risk, rm.L1()), risk.best_intercept(np.zeros(X.shape[1]))
            terms = terms_of(reg, max(top, 1e-300) * np.geomspace(1, 1e-4, 5), X.shape[1])
            rows = kind.of(risk.rows, loss, True)
            paths = [list(newton_path(rows, terms, float(b), tol, 0.0)) for tol in (1e-3, 1e-6)]
            for k in range(5):
                values = [smooth_J(loss, X, labels, c, path[k].w, path[k].b, terms[k]) for path in paths]
                for path, J_here, tol in zip(paths, values, (1e-3, 1e-6), strict=True):
                    wrong += bool(path[k].value < J_here) + bool(path[k].lower > min(values))
                    proved += bool(path[k].value - path[k].lower <= tol * path[k].value)
                    count += 1
    return wrong, proved / count


def test_bounds_of_smooth_losses_hold_in_any_units():
    wrong, proved = wrong_bounds_of_smooth_losses(SmoothRows, range(40))
    assert wrong == 0
    assert proved > 0.98
    assert wrong_bounds_of_smooth_losses(WithoutRounding, range(40))[0] > 100


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("reg", REGS, ids=repr)
@pytest.mark.parametrize(
    "loss", [rm.Logistic(), rm.SquaredHinge(), rm.Huber(delta=0.3), rm.SmoothedHinge(mu=0.1)], ids=repr
)
def test_minima_of_smooth_losses_are_those_of_another_program(loss, reg, intercept):
    settings = {"reg": reg, "intercept": intercept, "weighted": True, "n": 60}
    lams = [1e-3, 0.3, 1e-2]
    first = Problem(loss, **settings)
    results = rm.path(first.objective().risk, reg, lams, tol=1e-6)
    assert any(JOINT in result.solver for result in results)
    for lam, result in zip(lams, results, strict=True):
        problem = Problem(loss, lam=lam, **settings)
        problem.check(result)
        obj = problem.objective()
        assert obj.lower(result.cut) == pytest.approx(result.lower, rel=1e-7, abs=1e-12)
        assert obj.value(result.w) <= result.value
        assert obj.risk.loss.value_grad(problem.X @ result.w + result.intercept, problem.y, obj.risk.rows.c)[
            0
        ] + lam * reg.value(result.w) == pytest.approx(result.value, rel=1e-9)

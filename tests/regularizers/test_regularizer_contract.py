"""The contract of every regularizer: its checks, extreme inputs, other arrays, its files; its refusals."""

import json
import math
import pickle

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.sparse.linalg import aslinearoperator

import riskmin as rm
from helpers import Ridge, altered
from reference import omega
from riskmin.regularizers import unpenalized_tail
from riskmin.testing import check_regularizer

P = 5
RNG = np.random.default_rng(0)
M, LOWER, UPPER = RNG.uniform(0.3, 3, P), -RNG.uniform(0, 2, P), RNG.uniform(0, 2, P)
B = RNG.standard_normal((P, P))
K = B @ B.T / P + np.eye(P)
GROUPS = ["b", "a", "b", "c", "a"]
INCREASING = np.diff(np.eye(P), axis=0)
OPERATOR = rm.Quadratic(aslinearoperator(K), solve=lambda u: np.linalg.solve(K, u))
SHARED = [
    *(*rm.REGULARIZERS.values(), rm.L2(3.0), rm.L1(0.2), rm.Elastic(0.0)),
    *(rm.Box(rm.L2()), rm.Box(rm.L1(), -1.0, 2.0), rm.Box(rm.Elastic(), 0.5, 2.0)),
    rm.Box(rm.L2(), -2.0, -1.0),
    *(rm.Entropy(), rm.Entropy(0.01, normalized=False), rm.Entropy(0.01, balanced=True)),
    *(rm.QNorm(1.1), rm.QNorm(3.0, 1.5), rm.QNorm(1.5, 4.0)),
]
"""Every regularizer by its name, and with unusual parameters."""
INSTANCES = [
    *(*SHARED, rm.L2(M), rm.L1(M), rm.Elastic(2.0, M)),
    *(rm.Box(rm.L1(M), LOWER, UPPER), rm.Box(rm.L1(M), -math.inf, UPPER)),
    *(rm.Box(rm.L2(M), LOWER, math.inf), rm.Entropy(M), rm.Entropy(M, normalized=False, balanced=True)),
    *(rm.GroupLasso(GROUPS, weights=[1e-3, 2.0, 50.0]), rm.GroupLasso(GROUPS, weights=0.7, ridge=1e-2)),
    *(rm.GroupLasso(GROUPS, ridge=0.5), rm.Quadratic(K), rm.Quadratic(sp.csr_array(K)), OPERATOR),
]
"""Also with one setting per feature."""
CONSTRAINED = [
    rm.LinearConstraints(rm.L2(), np.ones((1, P)), 1.0, 1.0),
    rm.LinearConstraints(rm.L2([1e-3, 1.0, 5.0, 2.0, 100.0]), INCREASING, 0.0, [1.0, 2.0, math.inf, 3.0]),
    rm.LinearConstraints(rm.Box(rm.Elastic(0.2), -1.0, 1.0), RNG.standard_normal((6, P)), upper=0.5),
    rm.LinearConstraints(rm.L2(), RNG.standard_normal((6, P)) * np.logspace(-6, 6, 6)[:, None], -1.0, 1.0),
]
each_regularizer = pytest.mark.parametrize("reg", INSTANCES, ids=lambda r: repr(r)[:60])


FREE = [unpenalized_tail(reg, 2) for reg in (rm.L2(), rm.L1(), rm.Elastic(), rm.Box(rm.L2()), rm.QNorm())]
"""With entries that are not penalized."""


# ---------------------------------------------------------------- the contract
@pytest.mark.parametrize("reg", [*INSTANCES, *FREE], ids=lambda r: repr(r)[:60])
def test_contract(reg):
    check_regularizer(reg, P, n_cases=6)


@pytest.mark.parametrize("reg", [*INSTANCES, *CONSTRAINED], ids=lambda r: repr(r)[:60])
def test_values_are_those_of_another_program(reg):
    if getattr(reg, "balanced", False):
        pytest.skip("it is a minimum, which fits compare")
    w = cp.Variable(P)
    w.value = reg.prox(np.random.default_rng(0).standard_normal(P), 1.0)
    assert reg.value(w.value) == pytest.approx(omega(reg, w)[0].value, rel=1e-9)


@pytest.mark.parametrize("number", range(len(CONSTRAINED)))
def test_contract_of_linear_constraints(number):
    """Each evaluation is a quadratic program."""
    check_regularizer(CONSTRAINED[number], P, n_cases=1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("reg", [*SHARED, *CONSTRAINED], ids=lambda r: repr(r)[:60])
def test_contract_in_many_cases(reg):
    check_regularizer(reg, P, seed=1)
    if reg not in CONSTRAINED:
        check_regularizer(reg, 1, seed=1, n_cases=10)
        check_regularizer(reg, 40, seed=1, n_cases=10)


class Cube:
    """0 on [-1, 1]^d and infinite elsewhere: neither smooth nor finite; its conjugate is the 1-norm."""

    def value(self, w):
        return 0.0 if np.max(np.abs(w)) <= 1 + 1e-12 else math.inf

    def prox(self, v, step):
        return np.clip(v, -1.0, 1.0)

    def conjugate(self, u):
        return float(np.sum(np.abs(u)))

    def conjugate_grad(self, u):
        return np.sign(u)

    def scale(self, cut, lam):
        return 1.0 if cut.b > np.sum(np.abs(cut.a)) else 0.0

    def line(self, w, d):
        return lambda t: (self.value(w + t * d), 0.0)

    def reach(self, w, d):
        return float(np.min((1 - np.sign(d) * w)[d != 0] / np.abs(d[d != 0]), initial=np.inf))


@pytest.mark.parametrize("reg", [Cube(), Ridge()], ids=lambda reg: type(reg).__name__)
def test_the_contract_holds_for_regularizers_of_a_user(reg):
    check_regularizer(reg, n_cases=10)


def wrong_slope(line, w, d):
    """Twice the absolute slope at a nonsmooth point; elsewhere the correct one."""

    def changed(t):
        value, slope = line(t)
        return value, slope if np.all(w + t * d) else 2 * abs(slope)

    return changed


CUBE = rm.Box(rm.L2(), -1.0, 1.0)
WRONG = [
    (rm.L2(), {"value": lambda v, w: float(w @ w)}, "minimizer"),
    (rm.L2(), {"grad": lambda g, w: 1.001 * g}, "grad"),
    (rm.L2(), {"prox": lambda p, v, step: p * (1 + step) / (1 + 1.01 * step)}, "minimizer"),
    (rm.L2(), {"prox": lambda p, v, step: np.divide(v, 1 + step, out=v)}, "changes its argument"),
    (rm.Box(rm.L2()), {"prox": lambda p, v, step: p if step else p + 0.1}, "nearest point"),
    (rm.Box(rm.L2()), {"prox": lambda p, v, step: p if step else v}, "domain"),
    (rm.L2(), {"conjugate": lambda c, u: 0.998 * c}, "conjugate|Fenchel"),
    (rm.L2(), {"conjugate": lambda c, u: 1.02 * c}, "value"),
    (rm.L2(), {"conjugate_grad": lambda w, u: 0.99 * w}, "conjugate_grad"),
    (rm.L2(), {"scale": lambda s, cut, lam: 1.0}, "another s"),
    (rm.L2(), {"scale": lambda s, cut, lam: 0.5}, "another s"),
    (rm.L2(), {"scale": lambda s, cut, lam: 1.5}, "not in"),
    (rm.L2(), {"bound": lambda b, cut, lam: b + 1e-6 * abs(b)}, "bound gives"),
    (rm.L1(), {"bound": lambda b, cut, lam: cut.b}, "bound gives"),
    (rm.L2(), {"line": lambda f, w, d: lambda t: (float(w @ w) / 2, 0.0)}, "line"),
    (rm.L2(), {"line": lambda f, w, d: lambda t: (f(t)[0], float(w @ d))}, "slope"),
    (rm.L1(), {"line": wrong_slope}, "too much"),
    (rm.Elastic(), {"conjugate_hessian_product": lambda H, u, A: 1.01 * H}, "conjugate_hessian_product"),
    (rm.Elastic(), {"conjugate_hessian_product": lambda H, u, A: A @ A.T}, "conjugate_hessian_product"),
    (rm.Entropy(), {"conjugate_hessian_product": lambda H, u, A: A @ A.T}, "conjugate_hessian_product"),
    (rm.Elastic(), {"conjugate_hessian_product": lambda H, u, A: H[:1]}, "shape"),
    (rm.L2(), {"inverse_metric_product": lambda g, A, a: 1.001 * g}, "inverse_metric_product"),
    (CUBE, {"reach": lambda t, w, d: 1.01 * t + 0.01}, "ends before"),
    (CUBE, {"reach": lambda t, w, d: math.inf}, "ends before"),
    (CUBE, {"reach": lambda t, w, d: min(t, 1.0)}, "goes on"),
    (rm.L2(), {"reach": lambda t, w, d: -1.0}, "reach"),
]


@pytest.mark.parametrize(("base", "changes", "message"), WRONG, ids=lambda v: repr(v)[:30])
def test_the_contract_refuses_changed_results(base, changes, message):
    with pytest.raises(AssertionError, match=message):
        check_regularizer(altered(base, **changes))


def test_the_contract_refuses_a_metric_product_of_no_quadratic_form():
    product = {"inverse_metric_product": lambda self, A, a: A @ self.conjugate_grad(a)}
    with pytest.raises(AssertionError, match="not linear"):
        check_regularizer(type("Changed", (rm.Elastic,), product)())


# ---------------------------------------------------------------- properties at any point
vectors = arrays(float, P, elements=st.floats(-100, 100))


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(INSTANCES),
    vectors,
    st.floats(-50, 50),
    st.floats(-8, 8).map(lambda e: 10.0**e),
    st.sampled_from([1e-6, 1.0, 1e6]),
)
def test_no_bound_exceeds_the_objective(reg, a, b, lam, size):
    """No other scaling of the cut gives a better bound than `scale`."""
    cut, obj = rm.Cut(size * a, b), rm.Objective(None, reg, lam)
    lower = obj.lower(cut)
    for v in (0 * a, a, -a, -3 * b * a):
        w = reg.prox(v, 1.0)
        J = max(0.0, float(cut.a @ w) + cut.b) + lam * reg.value(w)
        assert lower <= J + 1e-9 * (abs(J) + abs(b) + float(abs(cut.a) @ abs(w)))
    with np.errstate(over="ignore"):
        others = [t * b - lam * reg.conjugate(-t / lam * cut.a) for t in np.geomspace(1e-9, 1, 30)]
    assert lower >= max(others) - 1e-7 * (abs(lower) + lam * 1e-6 + abs(b) * 1e-6)


def test_without_a_useful_cut_the_bound_is_the_minimum_of_the_regularizer():
    """R >= 0 and w >= 2 bound J by lam |w|^2 / 2 = 4 lam."""
    assert rm.Objective(None, rm.Box(rm.L2(), 2.0), 3.0).lower(rm.Cut(np.ones(2), -100.0)) == 12.0
    assert rm.Objective(None, rm.L2(), 3.0).lower(rm.Cut(np.full(2, np.inf), -1.0)) == 0.0


@each_regularizer
@pytest.mark.parametrize("size", [1e6, 1e-300])
def test_extreme_inputs(reg, size):
    """No warning, no NaN, and points within the domain, at any size of w, u and step."""
    rng = np.random.default_rng(4)
    u, d = size * rng.standard_normal(P), rng.standard_normal(P)
    with np.errstate(over="ignore"):  # as `minimize` does: exponentials of large numbers are infinite
        assert not math.isnan(reg.conjugate(u))
        for step in (0.0, 1e-8, 1e8):
            w = reg.prox(u, step)
            assert math.isfinite(reg.value(w))
            assert reg.reach(w, d) >= 0
            assert np.all(np.isfinite(reg.line(w, d)(0.0)))
        if not reg.polyhedral:
            assert not np.any(np.isnan(reg.conjugate_grad(u)))
        for lam, b in ((1e-8, -1.0), (1e-8, 1e8), (1.0, 1e-12), (1e8, -1.0), (1e8, 1e8)):
            assert 0 <= reg.scale(rm.Cut(u, b), lam) <= 1
            assert math.isfinite(rm.Objective(None, reg, lam).lower(rm.Cut(u, b)))


# ---------------------------------------------------------------- dtypes and libraries
@each_regularizer
@pytest.mark.parametrize("library", ["float32", pytest.param("torch", marks=pytest.mark.slow)])
def test_other_arrays_give_the_same_values(reg, library):
    if isinstance(reg, rm.Quadratic | rm.GroupLasso) and library == "torch":
        pytest.skip("settings are of NumPy or SciPy")
    torch = pytest.importorskip("torch") if library == "torch" else None
    rng = np.random.default_rng(5)
    v, d, A = rng.standard_normal(P), rng.standard_normal(P), rng.standard_normal((2, P))
    w, u = reg.prox(v, 1.0), 0.1 * d

    def convert(a):
        return np.asarray(a, dtype=np.float32) if torch is None else torch.as_tensor(a, dtype=torch.float64)

    rtol = 1e-3 if torch is None else 1e-9
    numbers, vectors = [], []
    if torch or not getattr(reg, "normalized", False):  # float32 misses the sum constraint
        numbers.append((reg.value(convert(w)), reg.value(w)))
        numbers.append((reg.line(convert(w), convert(0 * d))(0.5), reg.line(w, 0 * d)(0.5)))
    numbers.append((reg.conjugate(convert(u)), reg.conjugate(u)))
    numbers.append((reg.reach(convert(w), convert(d)), reg.reach(w, d)))
    for result, expected in numbers:
        assert result == pytest.approx(expected, rel=rtol, abs=rtol)
    for lam in (0.1, 10.0):
        scale = reg.scale(rm.Cut(convert(d), 0.7), lam)
        assert scale == pytest.approx(reg.scale(rm.Cut(d, 0.7), lam), rel=0.05, abs=rtol)
    if not (torch and isinstance(reg, rm.Entropy | rm.QNorm)):
        vectors.append((reg.prox(convert(v), 0.5), reg.prox(v, 0.5)))
    if not reg.polyhedral:
        vectors.append((reg.conjugate_grad(convert(u)), reg.conjugate_grad(u)))
    if reg.has_conjugate_hessian and not reg.polyhedral:
        product = reg.conjugate_hessian_product
        vectors.append((product(convert(u), convert(A)), product(u, A)))
    if reg.smooth:
        vectors.append((reg.grad(convert(w)), reg.grad(w)))
    for result, expected in vectors:
        assert torch is None or isinstance(result, torch.Tensor)
        np.testing.assert_allclose(np.asarray(result), expected, rtol=rtol, atol=rtol)


# ---------------------------------------------------------------- names, files, equality
@pytest.mark.parametrize("reg", [*INSTANCES, *CONSTRAINED], ids=lambda r: repr(r)[:60])
def test_equality_and_files(reg):
    assert reg == reg
    assert hash(reg) == hash(reg)
    assert reg != rm.L2(0.123)
    assert reg != "L2"
    assert repr(reg).startswith(type(reg).__name__ + "(")
    assert "\n" not in reg.formula
    if reg == OPERATOR:  # it holds a function
        return
    v = np.random.default_rng(1).standard_normal(P)
    expected = reg.conjugate(v)  # some keep a factorization
    copy = pickle.loads(pickle.dumps(reg))
    assert copy == reg
    assert copy.conjugate(v) == expected
    if not isinstance(reg, rm.Quadratic):
        assert rm.REGULARIZERS.from_dict(json.loads(json.dumps(rm.REGULARIZERS.to_dict(reg)))) == reg


def test_equality_compares_arrays():
    assert rm.L1(M) == rm.L1(M.copy())
    assert rm.L1(M) != rm.L1(2 * M)
    assert rm.Quadratic(K) == rm.Quadratic(K.copy())
    assert rm.Quadratic(aslinearoperator(K), solve=OPERATOR.solve) != OPERATOR  # equal to itself only
    assert rm.L1([1.0, 2.0]) != rm.L1(1.0)
    assert repr(rm.L2()) == "L2()"
    assert repr(rm.Box(rm.L1(2.0), -1.0)) == "Box(reg=L1(weights=2.0), lower=-1.0)"


def test_settings_cannot_be_written_to():
    weights = np.ones(3)
    reg = rm.L2(weights)
    weights[0] = 7.0
    assert reg == rm.L2(np.ones(3))
    with pytest.raises(ValueError, match="read-only"):
        reg.weights[0] = 2.0


@pytest.mark.parametrize(
    ("name", "reg"),
    [
        ("l1", rm.L1()),
        ("elastic:eps=2,weights=3", rm.Elastic(2.0, 3.0)),
        ("qnorm:q=1.2", rm.QNorm(1.2)),
        ("entropy:prior=0.1", rm.Entropy(0.1, balanced=True)),
        ("entropy:balanced=0", rm.Entropy()),
        (rm.L1(2.0), rm.L1(2.0)),
    ],
)
def test_get_regularizer(name, reg):
    assert rm.get_regularizer(name) == reg


# ---------------------------------------------------------------- special cases
def test_at_the_bounds_of_a_box():
    box = rm.Box(rm.L1(), -1.0, 2.0)
    lower, upper = np.full(3, -1.0), np.full(3, 2.0)
    assert box.value(lower) == 3.0
    assert box.value(upper) == 6.0
    assert box.value(np.nextafter(upper, 3.0)) == pytest.approx(6.0)  # within rounding of the bound
    assert box.value(upper + 1e-9) == math.inf
    assert box.reach(upper, np.ones(3)) == 0.0
    assert box.reach(lower, np.ones(3)) == 3.0
    assert box.reach(lower, np.zeros(3)) == math.inf
    none = np.full(2, math.inf)
    assert rm.Box(rm.L2(), -none, none).is_finite(2)
    assert not rm.Box(rm.L2(), np.array([-math.inf, 0.0]), none).is_finite(2)
    assert not rm.Box(rm.L2(), -none, np.array([0.0, math.inf])).is_finite(2)


def test_the_proximal_point_of_zeros_and_tiny_numbers():
    """Where the factor of the penalty underflows, 0 / 0 gave NaN."""
    w = rm.QNorm(q=1.5, power=4.0).prox(np.array([0.0, 1e-265]), 1.0)
    np.testing.assert_allclose(w, [0.0, 1e-265])


@pytest.mark.parametrize("prior", [1e-100, 1e100])
@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("balanced", [True, False])
def test_entropies_with_the_smallest_and_largest_priors(prior, normalized, balanced):
    reg, u = rm.Entropy(prior, normalized, balanced), np.array([0.5, -0.5, 0.0])
    w = reg.conjugate_grad(u)
    assert 0 <= reg.value(w) <= 10 * prior
    assert reg.value(w) == pytest.approx(w @ u - reg.conjugate(u), rel=1e-6)

"""Regularizers: their contract, special cases, extreme inputs, other array libraries, errors."""

import json
import math
import pickle
from dataclasses import dataclass

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.sparse.linalg import aslinearoperator

from riskmin import (
    L1,
    L2,
    REGULARIZERS,
    Bmrm,
    Box,
    Bundle,
    Cut,
    Elastic,
    Entropy,
    Hinge,
    Lbfgs,
    LineSearchBmrm,
    Objective,
    QNorm,
    Quadratic,
    get_regularizer,
    linear_risk,
    minimize,
)
from riskmin.testing import check_regularizer

vectors = arrays(float, 5, elements=st.floats(-100, 100))


def any_dimension():
    """Regularizers for any dimension: those with a name, and some with unusual parameters."""
    return [
        *REGULARIZERS.values(),
        L2(3.0),
        L1(0.2),
        Elastic(0.0),
        Box(L2()),
        Box(L1()),
        Box(L1(), -1.0, 2.0),
        Box(Elastic(), 0.5, 2.0),
        Box(L2(), -2.0, -1.0),
        Entropy(),
        Entropy(0.01, normalized=False),
        Entropy(0.01, balanced=True),
        QNorm(1.1),
        QNorm(3.0, 1.5),
        QNorm(1.5, 4.0),
    ]


def by_feature(dim, seed=0):
    """Regularizers with one setting per feature, and quadratic forms."""
    rng = np.random.default_rng(seed)
    m, lower, upper = rng.uniform(0.3, 3, dim), -rng.uniform(0, 2, dim), rng.uniform(0, 2, dim)
    B = rng.standard_normal((dim, dim))
    K = B @ B.T / dim + np.eye(dim)
    return [
        L2(m),
        L1(m),
        Elastic(2.0, m),
        Box(L1(m), lower, upper),
        Box(L1(m), -math.inf, upper),
        Box(L2(m), lower, math.inf),
        Box(Elastic(0.5, m), lower, upper),
        Entropy(m),
        Entropy(m, normalized=False),
        Entropy(m, balanced=True),
        Entropy(m, normalized=False, balanced=True),
        Quadratic(K),
        Quadratic(sp.csr_array(K)),
        Quadratic(aslinearoperator(K), solve=lambda u: np.linalg.solve(K, u)),
    ]


SMALL = [*any_dimension(), *by_feature(5)]
SMOOTH_DUAL = [r for r in SMALL if not getattr(r, "polyhedral", False)]
each_regularizer = pytest.mark.parametrize("reg", SMALL, ids=lambda r: repr(r)[:60])


# ---------------------------------------------------------------- the contract
@pytest.mark.parametrize("reg", [*any_dimension()[::2], *by_feature(9)[::2]], ids=lambda r: repr(r)[:60])
def test_contract(reg):
    check_regularizer(reg, 9)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dim", [1, 40])
def test_contract_in_other_dimensions(dim):
    for reg in [*any_dimension()[1::4], *by_feature(dim)[1::4]]:
        check_regularizer(reg, dim, seed=1)


def altered(method, change):
    """The method of the base class with a changed result."""

    def wrapper(self, *args):
        return change(getattr(super(type(self), self), method)(*args), *args)

    return {method: wrapper}


WRONG = {
    "value": (L2(), {"value": lambda self, w: float(w @ w)}, "minimizer"),
    "grad": (L2(), altered("grad", lambda g, w: 1.001 * g), "grad"),
    "prox": (L2(), altered("prox", lambda p, v, step: p * (1 + step) / (1 + 1.01 * step)), "minimizer"),
    "prox of step 0": (
        Box(L2()),
        altered("prox", lambda p, v, step: p if step else p + 0.1),
        "nearest point",
    ),
    "prox of step 0 outside": (Box(L2()), altered("prox", lambda p, v, step: p if step else v), "domain"),
    "conjugate": (L2(), altered("conjugate", lambda c, u: 0.998 * c), "conjugate|Fenchel"),
    "conjugate_grad": (L2(), altered("conjugate_grad", lambda w, u: 0.99 * w), "conjugate_grad"),
    "scale": (L2(), {"scale": lambda self, cut, lam: 1.0}, "another s"),
    "line": (L2(), {"line": lambda self, w, d: lambda t: (self.value(w + t * d), float(w @ d))}, "slope"),
    "line at a nonsmooth point": (
        L1(),
        {"line": lambda self, w, d: lambda t: (self.value(w + t * d), _wrong_slope(self, w + t * d, d))},
        "too much",
    ),
    "Hessian product": (
        Elastic(),
        altered("conjugate_hessian_product", lambda H, u, A: 1.01 * H),
        "conjugate_hessian_product",
    ),
    "Hessian product everywhere": (
        Elastic(),
        {"conjugate_hessian_product": lambda self, u, A: A @ A.T},
        "conjugate_hessian_product",
    ),
    "Hessian product without the mean": (
        Entropy(),
        {"conjugate_hessian_product": lambda self, u, A: (A * self.conjugate_grad(u)) @ A.T},
        "conjugate_hessian_product",
    ),
    "Hessian product of one row": (
        Elastic(),
        altered("conjugate_hessian_product", lambda H, u, A: H[:1]),
        "shape",
    ),
    "metric product": (
        L2(),
        altered("inverse_metric_product", lambda g, A, a: 1.001 * g),
        "inverse_metric_product",
    ),
    "metric product of no quadratic form": (
        Elastic(),
        {"inverse_metric_product": lambda self, A, a: A @ self.conjugate_grad(a)},
        "not linear",
    ),
    "reach too far": (Box(L2(), -1.0, 1.0), altered("reach", lambda t, w, d: 1.01 * t + 0.01), "ends before"),
    "infinite reach": (Box(L2(), -1.0, 1.0), {"reach": lambda self, w, d: math.inf}, "ends before"),
    "reach too short": (Box(L2(), -1.0, 1.0), altered("reach", lambda t, w, d: min(t, 1.0)), "goes on"),
    "negative reach": (L2(), {"reach": lambda self, w, d: -1.0}, "reach"),
}


def _wrong_slope(reg, w, d):
    """At a nonsmooth point, twice the absolute slope; elsewhere the correct one."""
    return reg.slope(w, d) if np.all(w) else 2 * abs(reg.slope(w, d))


@pytest.mark.parametrize(("base", "methods", "message"), WRONG.values(), ids=WRONG.keys())
def test_contract_refuses(base, methods, message):
    broken = dataclass(frozen=True, eq=False, repr=False)(type("Broken", (type(base),), methods))
    fields = {name: getattr(base, name) for name in base.__dataclass_fields__}
    with pytest.raises(AssertionError, match=message):
        check_regularizer(broken(**fields))


# ---------------------------------------------------------------- properties at any point
@settings(max_examples=20, deadline=None)
@given(st.sampled_from(SMALL), vectors, vectors, st.floats(1e-4, 1e4))
def test_moreau(reg, v, x, step):
    """prox(v) = v - u step, with u in the subdifferential: Fenchel-Young holds with equality."""
    w = reg.prox(v, step)
    u = (v - w) / step
    size = 1 + abs(float(u @ w))
    assert reg.value(w) + reg.conjugate((1 - 1e-9) * u) == pytest.approx(float(u @ w), abs=1e-6 * size)
    y = reg.prox(x, 1.0)
    assert reg.value(y) + reg.conjugate(u) >= float(u @ y) - 1e-8 * (1 + abs(float(u @ y)))


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([r for r in SMOOTH_DUAL if not isinstance(r, Quadratic)]), vectors, vectors)
def test_the_gradient_of_the_conjugate(reg, u, d):
    """The conjugate lies above its tangent: its slope lies between the one-sided differences."""
    u, d = 0.05 * u, d / (1 + np.linalg.norm(d))
    slope, value, h = float(reg.conjugate_grad(u) @ d), reg.conjugate(u), 1e-5
    left, right = (value - reg.conjugate(u - h * d)) / h, (reg.conjugate(u + h * d) - value) / h
    rounding = 1e-9 * (1 + abs(value)) + 1e-6 * abs(slope)
    assert left - rounding <= slope <= right + rounding


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(SMALL),
    vectors,
    st.floats(-50, 50),
    st.floats(-8, 8).map(lambda e: 10.0**e),
    st.sampled_from([1e-6, 1.0, 1e6]),
)
def test_no_bound_exceeds_the_objective(reg, a, b, lam, size):
    """No other scaling of the cut gives a better bound than `scale`."""
    cut, obj = Cut(size * a, b), Objective(None, reg, lam)
    lower = obj.lower(cut)
    for v in (0 * a, a, -a, -3 * b * a):
        w = reg.prox(v, 1.0)
        J = max(0.0, float(cut.a @ w) + cut.b) + lam * reg.value(w)
        assert lower <= J + 1e-9 * (abs(J) + abs(b) + float(abs(cut.a) @ abs(w)))
    with np.errstate(over="ignore"):
        others = [t * b - lam * reg.conjugate(-t / lam * cut.a) for t in np.geomspace(1e-9, 1, 30)]
    assert lower >= max(others) - 1e-7 * (abs(lower) + lam * 1e-6 + abs(b) * 1e-6)


@given(vectors, st.floats(-50, 50), st.floats(1e-3, 1e3))
def test_the_bound_is_the_minimum_of_the_cut_and_zero(a, b, lam):
    """For L2, max(0, a @ w + b) + lam |w|^2 / 2 is minimal on the line through a."""
    lower = Objective(None, L2(), lam).lower(Cut(a, b))
    q = float(a @ a)
    if q < 1e-100:
        assert lower == pytest.approx(max(b, 0.0))
        return
    # w = -t a: max(0, b - t q) + lam t^2 q / 2, minimal at t = 1 / lam or where the cut reaches zero
    t = min(1 / lam, max(b / q, 0.0))
    minimum = max(0.0, b - t * q) + lam * t * t * q / 2
    assert lower == pytest.approx(minimum, rel=1e-9, abs=1e-9)


def test_without_a_useful_cut_the_bound_is_the_minimum_of_the_regularizer():
    """R >= 0 and w >= 2 bound J by lam |w|^2 / 2 = 4 lam."""
    assert Objective(None, Box(L2(), 2.0), 3.0).lower(Cut(np.ones(2), -100.0)) == 12.0
    assert Objective(None, L2(), 3.0).lower(Cut(np.full(2, np.inf), -1.0)) == 0.0


@each_regularizer
@pytest.mark.parametrize("size", [1e6, 1e-300])
def test_extreme_inputs(reg, size):
    """No warning, no NaN, and points within the domain, at any size of w, u and step."""
    rng = np.random.default_rng(4)
    u, d = size * rng.standard_normal(5), rng.standard_normal(5)
    with np.errstate(over="ignore"):  # as `minimize` does: exponentials of large numbers are infinite
        assert not math.isnan(reg.conjugate(u))
        for step in (0.0, 1e-8, 1.0, 1e8):
            w = reg.prox(u, step)
            assert math.isfinite(reg.value(w))
            assert reg.reach(w, d) >= 0
            assert np.all(np.isfinite(reg.line(w, d)(0.0)))
        if not reg.polyhedral:
            assert not np.any(np.isnan(reg.conjugate_grad(u)))
        for lam in (1e-8, 1.0, 1e8):
            for b in (-1.0, 1e-12, 1e8):
                assert 0 <= reg.scale(Cut(u, b), lam) <= 1
                assert math.isfinite(Objective(None, reg, lam).lower(Cut(u, b)))


def test_at_the_bounds_of_a_box():
    box = Box(L1(), -1.0, 2.0)
    lower, upper = np.full(3, -1.0), np.full(3, 2.0)
    assert box.value(lower) == 3.0
    assert box.value(upper) == 6.0
    assert box.value(np.nextafter(upper, 3.0)) == pytest.approx(6.0)  # within rounding of the bound
    assert box.value(upper + 1e-9) == math.inf
    assert box.reach(upper, np.ones(3)) == 0.0
    assert box.reach(lower, np.ones(3)) == 3.0
    assert box.reach(lower, np.zeros(3)) == math.inf


# ---------------------------------------------------------------- special cases
def test_special_cases_agree():
    rng = np.random.default_rng(0)
    w, u = rng.standard_normal((2, 5))
    for one, other in [
        (L2(), QNorm(2.0, 2.0)),
        (L2(), Elastic(0.0)),
        (L2(2.0), Quadratic(2.0 * np.eye(5))),
        (L1(), Box(L1(), -math.inf)),
        (Elastic(0.7), Box(Elastic(0.7), -math.inf)),
    ]:
        assert one.value(w) == pytest.approx(other.value(w))
        assert one.conjugate(0.1 * u) == pytest.approx(other.conjugate(0.1 * u))
        np.testing.assert_allclose(one.prox(w, 0.7), other.prox(w, 0.7), atol=1e-12)


@pytest.mark.parametrize("normalized", [True, False])
def test_a_balanced_entropy_equals_the_entropy_of_stacked_data(normalized):
    """[X, -X] with twice as many weights: the same minimum, and the same w = w+ - w-."""
    rng = np.random.default_rng(2)
    X = rng.standard_normal((60, 4))
    y = np.where(X @ [1.0, -2.0, 0.5, 0.0] + rng.standard_normal(60) > 0, 1.0, -1.0)
    prior = np.array([0.5, 1.0, 0.2, 0.7])
    one = Objective(linear_risk(X, y, Hinge()), Entropy(prior, normalized, balanced=True), 0.05)
    stacked = linear_risk(np.hstack([X, -X]), y, Hinge())
    two = Objective(stacked, Entropy(np.tile(prior, 2), normalized), 0.05)
    a, b = (minimize(obj, Bundle(), tol=1e-10, max_iter=2000) for obj in (one, two))
    assert a.status == b.status == "converged"
    assert a.value == pytest.approx(b.value, rel=1e-9)
    np.testing.assert_allclose(a.w, b.w[:4] - b.w[4:], atol=1e-4)
    assert one.reg.value(a.w) == pytest.approx(two.reg.value(b.w), rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("normalized", [True, False])
def test_a_balanced_entropy_equals_cvxpy(normalized):
    cp = pytest.importorskip("cvxpy")
    rng = np.random.default_rng(3)
    X, y = rng.standard_normal((40, 3)), np.append(np.ones(20), -np.ones(20))
    plus, minus = cp.Variable(3), cp.Variable(3)
    entropy = sum(cp.sum(cp.kl_div(v, np.ones(3))) for v in (plus, minus))  # v ln v - v + 1
    J = 0.1 * entropy + cp.sum(cp.pos(1 - cp.multiply(y, X @ (plus - minus)))) / 40
    program = cp.Problem(cp.Minimize(J), [cp.sum(plus + minus) == 6] if normalized else [])
    program.solve(solver=cp.CLARABEL)
    reg = Entropy(normalized=normalized, balanced=True)
    result = minimize(Objective(linear_risk(X, y, Hinge()), reg, 0.1), Bundle(), tol=1e-8)
    assert result.value == pytest.approx(program.value, rel=1e-6)
    np.testing.assert_allclose(result.w, plus.value - minus.value, atol=1e-3)


# ---------------------------------------------------------------- dtypes and libraries
@each_regularizer
@pytest.mark.parametrize("library", ["float32", pytest.param("torch", marks=pytest.mark.slow)])
def test_other_arrays_give_the_same_values(reg, library):
    if isinstance(reg, Quadratic) and library == "torch":
        pytest.skip("K is NumPy's or SciPy's")
    torch = pytest.importorskip("torch") if library == "torch" else None
    rng = np.random.default_rng(5)
    v, d, A = rng.standard_normal(5), rng.standard_normal(5), rng.standard_normal((2, 5))
    w, u = reg.prox(v, 1.0), 0.1 * d

    def convert(a):
        return np.asarray(a, dtype=np.float32) if torch is None else torch.as_tensor(a, dtype=torch.float64)

    rtol = 1e-3 if torch is None else 1e-9
    if not (
        torch is None and isinstance(reg, Entropy) and reg.normalized
    ):  # float32 misses the sum constraint
        assert reg.value(convert(w)) == pytest.approx(reg.value(w), rel=rtol, abs=rtol)
        assert reg.line(convert(w), convert(0 * d))(0.5) == pytest.approx(
            reg.line(w, 0 * d)(0.5), rel=rtol, abs=rtol
        )
    assert reg.conjugate(convert(u)) == pytest.approx(reg.conjugate(u), rel=rtol, abs=rtol)
    assert reg.reach(convert(w), convert(d)) == pytest.approx(reg.reach(w, d), rel=rtol, abs=rtol)
    for lam in (0.1, 10.0):
        assert reg.scale(Cut(convert(d), 0.7), lam) == pytest.approx(
            reg.scale(Cut(d, 0.7), lam), rel=0.05, abs=rtol
        )
    pairs = []
    if not (library == "torch" and isinstance(reg, (Entropy, QNorm))):
        pairs.append((reg.prox(convert(v), 0.5), reg.prox(v, 0.5)))
    if not reg.polyhedral:
        pairs.append((reg.conjugate_grad(convert(u)), reg.conjugate_grad(u)))
    if reg.has_conjugate_hessian and not reg.polyhedral:
        pairs.append(
            (reg.conjugate_hessian_product(convert(u), convert(A)), reg.conjugate_hessian_product(u, A))
        )
    if reg.smooth:
        pairs.append((reg.grad(convert(w)), reg.grad(w)))
    for result, expected in pairs:
        assert torch is None or isinstance(result, torch.Tensor)
        np.testing.assert_allclose(np.asarray(result), expected, rtol=rtol, atol=rtol)


# ---------------------------------------------------------------- names, dicts, equality, errors
@each_regularizer
def test_equality_and_repr(reg):
    assert reg == reg
    assert hash(reg) == hash(reg)
    assert repr(reg).startswith(type(reg).__name__ + "(")
    assert reg != L2(0.123)
    assert reg != "L2"


def test_equality_compares_arrays():
    one, two = by_feature(5), by_feature(5)
    assert one[:-1] == two[:-1]  # all but the operator, which is only equal to itself
    assert one[-1] != two[-1]
    assert all(a != b for a, b in zip(one, by_feature(5, seed=1), strict=True))
    assert L1([1.0, 2.0]) != L1(1.0)
    assert repr(L2()) == "L2()"
    assert repr(Box(L1(2.0), -1.0)) == "Box(reg=L1(weights=2.0), lower=-1.0)"


@pytest.mark.parametrize("reg", [*any_dimension(), *by_feature(5)[:-3]], ids=lambda r: repr(r)[:60])
def test_spec_round_trip(reg):
    assert REGULARIZERS.from_dict(json.loads(json.dumps(REGULARIZERS.to_dict(reg)))) == reg
    assert "\n" not in reg.formula


def test_settings_cannot_be_written_to():
    weights = np.ones(3)
    reg = L2(weights)
    weights[0] = 7.0
    assert reg == L2(np.ones(3))
    with pytest.raises(ValueError, match="read-only"):
        reg.weights[0] = 2.0


@pytest.mark.parametrize(
    ("name", "reg"),
    [
        ("l1", L1()),
        ("elastic:eps=2,weights=3", Elastic(2.0, 3.0)),
        ("qnorm:q=1.2", QNorm(1.2)),
        ("entropy:prior=0.1", Entropy(0.1, balanced=True)),
        ("entropy:balanced=0", Entropy()),
        (L1(2.0), L1(2.0)),
    ],
)
def test_get_regularizer(name, reg):
    assert get_regularizer(name) == reg


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: get_regularizer("l3"), "no regularizer named 'l3'; the names are l2, l1, elastic"),
        (
            lambda: get_regularizer("elastic:epsilon=1"),
            "Elastic has no parameter epsilon; it has eps, weights",
        ),
        (lambda: get_regularizer("elastic:eps"), "write it like 'elastic:eps=0.5'"),
        (lambda: get_regularizer(L1), r"L1 is a class.*L1\(\)"),
        (lambda: get_regularizer(3), "3 is not a regularizer"),
        (lambda: L2(0.0), "L2 needs weights to be numbers >= 0, and one of them > 0, not 0.0"),
        (lambda: L1([0.0, 0.0]), "L1 needs weights to be numbers >= 0, and one of them > 0"),
        (lambda: L1([1.0, math.nan]), "L1 needs weights to be numbers >= 0"),
        (
            lambda: Elastic(weights=-1),
            "Elastic needs weights to be numbers >= 0, and one of them > 0, not -1.0",
        ),
        (lambda: L2(math.inf), "L2 needs weights"),
        (lambda: Elastic(-0.5), "Elastic needs eps to be a number >= 0, not -0.5"),
        (lambda: Elastic(math.nan), "eps"),
        (lambda: L2(np.ones(4)).value(np.ones(5)), r"weights has shape \(4,\), but w has 5 entries"),
        (lambda: L1(np.ones((5, 1))).value(np.ones(5)), r"weights has shape \(5, 1\)"),
        (lambda: Entropy(np.ones(4)).conjugate(np.ones(5)), "prior has shape"),
        (lambda: Box(L1(), np.zeros(3)).prox(np.ones(5), 1.0), "lower has shape"),
        (lambda: Box(L1(), 1.0, 0.0), "Box needs lower <= upper for every feature, not 1.0 and 0.0"),
        (lambda: Box(L1(), [0.0, 1.0], [1.0, 0.5]), "lower <= upper"),
        (lambda: Box(L1(), np.zeros(3), np.ones(4)), "bounds for 3 and for 4 features"),
        (lambda: Box(L1(), math.nan), "lower to be numbers below infinity"),
        (lambda: Box(L1(), 0.0, math.nan), "upper to be numbers above minus infinity"),
        (lambda: Entropy(0.0), "Entropy needs prior to be numbers > 0"),
        (lambda: Entropy([1.0, -1.0]), "Entropy needs prior to be numbers > 0"),
        (lambda: Entropy(1e-200), "Entropy needs prior to be numbers > 0, from 1e-100"),
        (lambda: QNorm(1.0), "QNorm needs q > 1 and power > 1"),
        (lambda: QNorm(math.inf), "QNorm needs q > 1"),
        (lambda: QNorm(2.0, 1.0), "power > 1"),
        (lambda: Quadratic(np.ones((2, 3))), r"square K, not one of shape \(2, 3\)"),
        (lambda: Quadratic(np.ones(3)), "square K"),
        (lambda: Quadratic([[1.0, 2.0], [0.0, 1.0]]), r"symmetric and finite: give \(K \+ K.T\) / 2"),
        (lambda: Quadratic(sp.csr_array([[1.0, 2.0], [0.0, 1.0]])), "symmetric"),
        (lambda: Quadratic([[1.0, 0.0], [0.0, math.nan]]), "finite"),
        (lambda: Quadratic([[math.inf, 0.0], [0.0, 1.0]]), "finite"),
        (
            lambda: Quadratic([[1.0, 2.0], [2.0, 1.0]]).conjugate(np.ones(2)),
            "positive definite K: add a small",
        ),
        (
            lambda: Quadratic(sp.csr_array([[1.0, 2.0], [2.0, 1.0]])).conjugate(np.ones(2)),
            "positive definite K: add a small",
        ),
        (lambda: Quadratic(np.eye(3)).value(np.ones(2)), r"K has shape \(3, 3\), but w has 2 entries"),
        (lambda: Quadratic(np.eye(3)).conjugate(np.ones(2)), r"K has shape \(3, 3\), but"),
    ],
)
def test_errors_name_cause_and_remedy(make, message):
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_box_bounds_sums_over_coordinates():
    with pytest.raises(TypeError, match=r"Box bounds L1\(\), L2\(\) or Elastic\(\), not QNorm"):
        Box(QNorm())


def test_a_singular_sparse_form_is_refused():
    reg = Quadratic(sp.csr_array(np.ones((2, 2))))
    with pytest.raises(ValueError, match="positive definite K"):
        reg.conjugate(np.ones(2))


# ---------------------------------------------------------------- solvers
@pytest.mark.parametrize("solver", [Bundle(), Bmrm()], ids=repr)
def test_solvers_refuse_unsupported_regularizers(solver):
    @dataclass(frozen=True)
    class Own:
        """A regularizer with a value and a zero conjugate gradient only."""

        def value(self, w):
            return float(np.abs(w).sum())

        def prox(self, v, step):
            return np.sign(v) * np.maximum(np.abs(v) - step, 0.0)

        def conjugate(self, u):
            return 0.0 if np.all(np.abs(u) <= 1) else np.inf

        def conjugate_grad(self, u):
            return np.zeros_like(u)

    obj = Objective(linear_risk(np.eye(2), np.array([1.0, -1.0]), Hinge()), Own(), 0.1)
    with pytest.raises(TypeError, match=r"a finite conjugate.*Own.*ProximalGradient"):
        minimize(obj, solver)
    with pytest.raises(TypeError, match="smooth regularizer"):
        minimize(obj, Lbfgs())


def test_the_line_search_variant_needs_a_smooth_conjugate():
    obj = Objective(linear_risk(np.eye(2), np.array([1.0, -1.0]), Hinge()), L1(), 0.1)
    with pytest.raises(
        TypeError, match=r"LineSearchBmrm needs a differentiable conjugate, not that of L1\(\)"
    ):
        minimize(obj, LineSearchBmrm())


@pytest.mark.parametrize("lam", [0.0, -1.0, np.inf, np.nan])
def test_lam_is_checked(lam):
    with pytest.raises(ValueError, match="finite number > 0"):
        Objective(None, L2(), lam)


def test_the_proximal_point_of_zeros_and_tiny_numbers():
    """Where the factor of the penalty underflows, 0 / 0 gave NaN."""
    w = QNorm(q=1.5, power=4.0).prox(np.array([0.0, 1e-265]), 1.0)
    np.testing.assert_allclose(w, [0.0, 1e-265])


@pytest.mark.parametrize("K", [2 * np.eye(3), sp.csc_array(2 * np.eye(3))])
def test_a_quadratic_form_can_be_pickled_after_use(K):
    reg = Quadratic(K)
    u = reg.conjugate_grad(np.ones(3))
    assert np.array_equal(pickle.loads(pickle.dumps(reg)).conjugate_grad(np.ones(3)), u)


@pytest.mark.parametrize("prior", [1e-100, 1e100])
@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("balanced", [True, False])
def test_entropies_with_the_smallest_and_largest_priors(prior, normalized, balanced):
    reg = Entropy(prior, normalized, balanced)
    w = reg.conjugate_grad(np.array([0.5, -0.5, 0.0]))
    assert 0 <= reg.value(w) <= 10 * prior
    assert reg.value(w) == pytest.approx(
        w @ [0.5, -0.5, 0.0] - reg.conjugate(np.array([0.5, -0.5, 0.0])), rel=1e-6
    )

"""The losses: their contract, their values against independent formulas, and their errors."""

import json
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import MANY_LOSSES
from riskmin.core import Hessian
from riskmin.losses import (
    LOSSES,
    Absolute,
    EpsilonInsensitive,
    Exponential,
    FBeta,
    Hinge,
    Huber,
    Logistic,
    MulticlassHinge,
    Novelty,
    Ordinal,
    Poisson,
    PowerHinge,
    Prbep,
    PrecisionAtK,
    Quantile,
    RecallAtK,
    RocArea,
    SmoothedHinge,
    Squared,
    SquaredHinge,
    formula,
    get_loss,
)
from riskmin.losses.conjugate import ClosedFormConjugate
from riskmin.regularizers import L2
from riskmin.testing import check_loss, check_regularizer
from riskmin.testing.cases import make_case_sampler

# Every loss by its name, and one entry per extreme parameter: the contract runs on this list.
LOSS_INSTANCES = [
    *dict.fromkeys(loss for loss in LOSSES.values() if loss.separable and not loss.multi_output),
    Hinge(margin=2.5),
    SquaredHinge(margin=0.0),
    PowerHinge(p=1.0),
    PowerHinge(p=1.01, margin=0.0),
    PowerHinge(p=3.0, margin=2.0),
    SmoothedHinge(mu=1e-3),
    SmoothedHinge(mu=2.0),
    Quantile(level=0.01),
    Quantile(level=0.9),
    EpsilonInsensitive(epsilon=0.0),
    EpsilonInsensitive(epsilon=0.5, power=2.0),
    EpsilonInsensitive(epsilon=0.1, power=1.5),
    EpsilonInsensitive(epsilon=0.0, power=3.0),
    Huber(delta=1e-3),
    Huber(delta=10.0),
]
LIST_LOSSES = [
    *dict.fromkeys(loss for loss in LOSSES.values() if not loss.separable),
    Ordinal(costs=[[], [1.0], [2.0, 0.0], [4.0, 2.0, 1.0]]),
    FBeta(beta=0.2),
    FBeta(beta=5.0),
    PrecisionAtK(k=1),
    RecallAtK(k=40),
]
"""Non-decomposable losses; on four grades and five queries, or on two classes."""
every_loss = pytest.mark.parametrize("loss", [*LOSS_INSTANCES, *LIST_LOSSES, *MANY_LOSSES], ids=repr)


def draw(loss, n=50, seed=0):
    """Scores, labels valid for the loss, and weights."""
    rng = np.random.default_rng(seed)
    if loss in MANY_LOSSES:
        z, y, c = make_case_sampler(loss).case(rng, 3.0, n)
        return z, y, c
    y = rng.choice([-1.0, 1.0], n) if loss.task == "classification" else 2 * rng.standard_normal(n)
    if isinstance(loss, Poisson):
        y = rng.poisson(2.0, n).astype(float)
    if loss.task in ("ordinal", "ranking"):
        y = rng.permutation(np.arange(n) % 4.0)
    if loss.task == "ranking":
        y = np.column_stack([y, rng.permutation(np.arange(n) % 5.0)])
    c = rng.uniform(0.0, 1.0, n) if loss.separable or loss.task == "ordinal" else np.ones(n)
    return 3 * rng.standard_normal(n), y, c / n


# ---------------------------------------------------------------- the contract
@every_loss
def test_contract(loss):
    check_loss(loss)


@dataclass(frozen=True)
class Broken:
    """A deliberately wrong loss."""

    name: str
    separable = True
    task = "classification"

    def value_grad(self, z, y, c):
        m = np.maximum(1 - y * z, 0.0)
        value, slope = c @ m, -c * y * (m > 0)
        return {
            "wrong sign": lambda: (value, -slope),
            "wrong constant": lambda: (value, 1.01 * slope),
            "negative": lambda: (value - 1.0 * np.sum(c), slope),
            "not convex": lambda: (c @ np.minimum(m, 1.0), slope * (m < 1)),
            "forgets the weights": lambda: (np.mean(m), -y * (m > 0) / len(z)),
            "weights in the value only": lambda: (value, -y * (m > 0) / len(z)),
            "not separable": lambda: (np.max(m), -y * (m > 0) * (m == np.max(m))),
            "depends on the order": lambda: (value + c[0] * m[0], slope * (1 + (np.arange(len(z)) == 0))),
            "overflows": lambda: (c @ np.exp(-y * z), -c * y * np.exp(-y * z)),
            "wider dtype": lambda: (value, slope.astype(np.float64)),
            "wrong shape": lambda: (value, slope[:, None]),
            "not finite": lambda: (value + np.where(np.abs(z[0]) > 1e6, np.inf, 0.0), slope),
            "changes its inputs": lambda: (value, np.multiply(c, -y * (m > 0), out=c)),
        }[self.name]()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrong sign", "tangent"),
        ("wrong constant", "tangent|slope"),
        ("negative", "negative"),
        ("not convex", "not convex"),
        ("forgets the weights", "weights"),
        ("weights in the value only", "dz is wrong"),
        ("not separable", "weights"),
        ("depends on the order", "order"),
        ("overflows", "overflow"),
        ("wider dtype", "float64"),
        ("wrong shape", "shape"),
        ("not finite", "inf"),
        ("changes its inputs", "inputs"),
    ],
)
def test_contract_refuses_wrong_losses(name, message):
    with pytest.raises(AssertionError, match=message):
        check_loss(Broken(name))


def test_contract_requires_labels_for_unknown_tasks():
    @dataclass(frozen=True)
    class Odd(Hinge):
        task = "something else"

    with pytest.raises(AssertionError, match="pass check_loss labels"):
        check_loss(Odd())
    check_loss(Odd(), labels=lambda rng, n: rng.choice([-1.0, 1.0], n))


def test_contract_accepts_multi_output_losses():
    class Softmax:
        separable = True

        def value_grad(self, z, y, c):
            rows = np.arange(len(z))
            top = np.max(z, axis=1, keepdims=True)
            e = np.exp(z - top)
            total = np.sum(e, axis=1, keepdims=True)
            dz = e / total
            dz[rows, y] -= 1
            return c @ (np.log(total[:, 0]) + top[:, 0] - z[rows, y]), c[:, None] * dz

    check_loss(Softmax(), labels=lambda rng, n: rng.integers(0, 3, n), columns=3)


def test_contract_requires_the_number_of_scores_of_a_loss():
    loss = MulticlassHinge(1 - np.eye(5))
    check_loss(loss, columns=5)
    with pytest.raises(AssertionError, match=r"cost is for 2 classes, but there are 3.*pass check_loss col"):
        check_loss(MulticlassHinge(1 - np.eye(2)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda loss, z, y, c, value, dz: (value, dz + 1e-3 * c[:, None]), "slope|tangent"),
        (lambda loss, z, y, c, value, dz: (value, dz[:, :2]), "shape"),
        (lambda loss, z, y, c, value, dz: (value, np.roll(dz, 1, axis=1)), "tangent"),
        (lambda loss, z, y, c, value, dz: (value / np.sum(c), dz / np.sum(c)), "weights"),
    ],
)
def test_contract_refuses_wrong_multi_output_losses(change, message):
    class Changed(type(LOSSES["softmax"])):
        def value_grad(self, z, y, c):
            return change(self, z, y, c, *super().value_grad(z, y, c))

    with pytest.raises(AssertionError, match=message):
        check_loss(Changed())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda value, dz, offset, mu: (value, dz, 2 * offset), "a tangent plus its minorant offset"),
        (lambda value, dz, offset, mu: (value, 0.9 * dz, offset), "tangent|slope"),
    ],
)
def test_contract_refuses_wrong_smoothed_multi_output_losses(change, message):
    class Changed(MulticlassHinge):
        def smoothed_value_grad(self, z, y, c, mu, centre=None):
            return change(*super().smoothed_value_grad(z, y, c, mu, centre), mu)

    with pytest.raises(AssertionError, match=message):
        check_loss(Changed())


# ---------------------------------------------------------------- non-decomposable and smoothed losses
def changed(loss, change):
    """A loss whose smoothed form is deliberately changed."""

    class Changed(type(loss)):
        def smoothed_value_grad(self, z, y, c, mu):
            value, dz, offset = super().smoothed_value_grad(z, y, c, mu)
            return change(value, dz, offset, mu) if mu else (value, dz, offset)

    return Changed()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda value, dz, offset, mu: (value + 2 * offset, dz, offset), "above the loss"),
        (lambda value, dz, offset, mu: (value, dz, 2 * offset), "a tangent plus its minorant offset"),
        (lambda value, dz, offset, mu: (value, dz, -offset), "negative"),
        (lambda value, dz, offset, mu: (value, 0.9 * dz, offset), "tangent|slope"),
        (lambda value, dz, offset, mu: (value, dz, 0.5 * offset), "by its minorant offsets"),
        (lambda value, dz, offset, mu: (value, dz.astype(np.float64), offset), "float64"),
    ],
)
def test_contract_refuses_wrong_smoothed_forms(change, message):
    with pytest.raises(AssertionError, match=message):
        check_loss(changed(RocArea(), change))


def test_contract_refuses_multipliers_not_reproduced_by_a_center():
    class Changed(Prbep):
        def smoothed_value_grad(self, z, y, c, mu, centre=None):
            return super().smoothed_value_grad(z, y, c, mu)

    with pytest.raises(AssertionError, match="around its own multipliers"):
        check_loss(Changed())


def test_contract_refuses_false_shift_invariance():
    @dataclass(frozen=True)
    class Changed(FBeta):
        shift_invariant = True

    with pytest.raises(AssertionError, match="invariant"):
        check_loss(Changed())


# ---------------------------------------------------------------- the contract of conjugates and curvatures
def broken(base, **methods):
    """A loss with some methods replaced."""
    return type("Broken", (type(base),), methods)(**{f: getattr(base, f) for f in base.__dataclass_fields__})


def altered(method, change):
    """The method of the base class with a changed result."""

    def wrapper(self, *args):
        return change(getattr(super(type(self), self), method)(*args), *args)

    return {method: wrapper}


WRONG_DUALS = {
    "shift": (Hinge(), altered("conjugate", lambda d, y: replace(d, shift=0.99 * d.shift)), "l.z. . l..u."),
    "epsilon": (EpsilonInsensitive(), altered("conjugate", lambda d, y: replace(d, epsilon=0.0)), "l.z."),
    "square": (Squared(), altered("conjugate", lambda d, y: replace(d, square=1.01)), "l.z."),
    "no square": (Huber(), altered("conjugate", lambda d, y: replace(d, square=0.0)), "l.z."),
    "too narrow": (
        Hinge(),
        altered("conjugate", lambda d, y: replace(d, lower=0.9 * d.lower)),
        "slope outside",
    ),
    "too wide": (Hinge(), altered("conjugate", lambda d, y: replace(d, lower=1.1 * d.lower)), "l.z."),
    "wider on the other side": (
        Hinge(),
        altered("conjugate", lambda d, y: replace(d, upper=d.upper + 0.1)),
        "l.z.",
    ),
    "endless": (Absolute(), altered("conjugate", lambda d, y: replace(d, upper=math.inf + d.upper)), "l.z."),
    "not around 0": (
        Absolute(),
        altered("conjugate", lambda d, y: replace(d, lower=0.1 + 0 * y)),
        "lower <= 0",
    ),
    "not a row": (
        Quantile(),
        altered("conjugate", lambda d, y: replace(d, upper=d.upper[:1])),
        "one interval per row",
    ),
    "turned over": (
        Quantile(0.2),
        {"conjugate": lambda self, y: Quantile(0.8).conjugate(y)},
        "slope outside",
    ),
    "differs": (PowerHinge(2.0), altered("conjugate", lambda d, y: replace(d, square=1.001)), "l.z."),
}


class FiniteOutside(ClosedFormConjugate):
    """A conjugate that is not infinite outside of its domain."""

    def value(self, u):
        return np.minimum(super().value(u), 1e9)


def conjugate_formula(change):
    """The formula of the conjugate, changed."""
    return altered("conjugate", lambda d, y: replace(d, formula=lambda u: change(d.formula(u))))


def derivative(change):
    """The derivative of the conjugate, changed."""
    return altered("conjugate", lambda d, y: replace(d, derivative=lambda u: change(d.derivative(u))))


def diagonal(change):
    """The diagonal of the Hessian, changed."""
    return altered("hessian", lambda H, z, y, c, *mu: H and H._replace(diagonal=change(H.diagonal)))


def curvature(values):
    """A diagonal Hessian by another formula."""
    return {"hessian": lambda self, z, y, c, mu=0.0, center=None: Hessian(values(z, y, c))}


WRONG_CONJUGATES = {
    "above": (Logistic(), conjugate_formula(lambda v: v + 1e-6), "l.z."),
    "below": (Logistic(), conjugate_formula(lambda v: v - 1e-6), "l.z."),
    "finite outside": (
        Logistic(),
        altered("conjugate", lambda d, y: FiniteOutside(**vars(d))),
        "not infinite",
    ),
    "gradient": (Exponential(), derivative(lambda z: 0.999 * z), "l.z."),
    "sign of the gradient": (Poisson(), derivative(lambda z: -z), "l.z."),
    "NaN at the end": (Poisson(), derivative(lambda z: np.where(np.isfinite(z), z, np.nan)), "NaN"),
    "narrow domain": (
        PowerHinge(3.0),
        altered("conjugate", lambda d, y: replace(d, lower=-0.5 * (y > 0))),
        "outside",
    ),
    "wrong power": (PowerHinge(1.5), {"conjugate": lambda self, y: PowerHinge(3.0).conjugate(y)}, "l.z."),
}
WRONG_CURVATURES = {
    "factor": (Logistic(), diagonal(lambda h: 1.01 * h), "differences of dz"),
    "no weights": (Squared(), curvature(lambda z, y, c: np.ones_like(z) / len(z)), "weights"),
    "negative": (Squared(), diagonal(lambda h: -h), "negative"),
    "everywhere": (SquaredHinge(), curvature(lambda z, y, c: c), "differences of dz"),
    "shape": (Huber(), diagonal(lambda h: h[:, None]), "shape"),
    "overflow": (Poisson(), curvature(lambda z, y, c: c * np.exp(z)), "overflow"),
    "dtype": (Huber(), diagonal(lambda h: h.astype(float)), "dtype"),
    "of a nonsmooth loss": (Hinge(), curvature(lambda z, y, c: c * (y * z < 1)), "differences of dz"),
    "in place": (Squared(), curvature(lambda z, y, c: np.multiply(c, 2, out=c) / 2), "inputs"),
    "not diagonal": (
        Squared(),
        altered("hessian", lambda H, z, y, c, *mu: H._replace(low_rank=(c,))),
        "not diagonal",
    ),
    "none": (Logistic(), {"hessian": lambda self, z, y, c, mu=0.0, center=None: None}, "returns None"),
}
WRONG = [
    pytest.param(*case, id=f"{what}: {name}")
    for what, cases in (
        ("dual", WRONG_DUALS),
        ("conjugate", WRONG_CONJUGATES),
        ("curvature", WRONG_CURVATURES),
    )
    for name, case in cases.items()
]


@pytest.mark.parametrize(("base", "methods", "message"), WRONG)
def test_contract_refuses_wrong_conjugates_and_curvatures(base, methods, message):
    with pytest.raises(AssertionError, match=message):
        check_loss(broken(base, **methods))


@pytest.mark.parametrize("base", [Hinge(), Logistic(), Huber(), Poisson(), PowerHinge(2.0)], ids=repr)
def test_contract_accepts_correct_conjugates_and_curvatures(base):
    check_loss(broken(base, **altered("conjugate", lambda d, y: d)))


# ---------------------------------------------------------------- values by independent formulas
GRID = np.linspace(-4.0, 4.0, 80_001)
SCALAR = [
    (Hinge(margin=2.5), lambda z, y: 0.0 if y * z >= 2.5 else 2.5 - y * z),
    (Hinge(margin=0.0), lambda z, y: (abs(z) - y * z) / 2),
    (SquaredHinge(), lambda z, y: 0.0 if y * z >= 1 else (1 - 2 * y * z + z * z) / 2),
    (PowerHinge(p=3.0), lambda z, y: 0.0 if y * z >= 1 else math.pow(1 - y * z, 3) / 3),
    (PowerHinge(p=1.0), lambda z, y: (abs(1 - y * z) + 1 - y * z) / 2),
    (Exponential(), lambda z, y: math.cosh(z) - y * math.sinh(z)),
    (Logistic(), lambda z, y: -y * z / 2 + math.log(2 * math.cosh(z / 2))),
    (Novelty(), lambda z, y: (abs(1 - z) + 1 - z) / 2),
    (Squared(), lambda z, y: z * z / 2 - z * y + y * y / 2),
    (Absolute(), lambda z, y: math.sqrt((z - y) ** 2)),
    (Quantile(level=0.9), lambda z, y: 0.9 * (y - z) if y > z else 0.1 * (z - y)),
    (EpsilonInsensitive(epsilon=0.5), lambda z, y: max(z - y - 0.5, y - z - 0.5, 0.0)),
    (EpsilonInsensitive(epsilon=0.5, power=2.0), lambda z, y: max(z - y - 0.5, y - z - 0.5, 0.0) ** 2 / 2),
    (Poisson(), lambda z, y: math.exp(z) - y * z + (y * math.log(y) - y if y else 0.0)),
]


@pytest.mark.parametrize(("loss", "scalar"), SCALAR, ids=lambda p: repr(p) if hasattr(p, "task") else "")
def test_value_equals_the_scalar_formula(loss, scalar):
    z, y, c = draw(loss)
    expected = math.fsum(
        ci * scalar(zi, yi) for zi, yi, ci in zip(z.tolist(), y.tolist(), c.tolist(), strict=True)
    )
    assert float(loss.value_grad(z, y, c)[0]) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("delta", [0.01, 1.0, 3.0])
@pytest.mark.parametrize("r", [-2.7, -0.4, 0.0, 0.9, 3.5])
def test_huber_is_the_envelope_of_the_absolute_value(delta, r):
    expected = np.min((r - GRID) ** 2 / 2 + delta * np.abs(GRID))  # the infimal convolution, on a grid of u
    value, _ = Huber(delta).value_grad(np.array([r]), np.zeros(1), np.ones(1))
    assert float(value) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("mu", [0.01, 0.5, 2.0])
@pytest.mark.parametrize("z", [-1.5, 0.3, 0.995, 1.0, 2.0])
def test_smoothed_hinge_is_the_maximum_over_the_dual(mu, z):
    a = np.linspace(0.0, 1.0, 100_001)
    expected = np.max(a * (1 - z) - mu / 2 * a**2)
    value, dz = SmoothedHinge(mu).value_grad(np.array([z]), np.ones(1), np.ones(1))
    assert float(value) == pytest.approx(expected, abs=1e-9)
    assert -dz[0] == pytest.approx(a[np.argmax(a * (1 - z) - mu / 2 * a**2)], abs=1e-4)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(-50, 50), min_size=1, max_size=15, unique=True),
    st.sampled_from([0.11, 0.37, 0.5, 0.93]),
)
def test_quantile_is_minimized_by_the_sample_quantile(labels, level):
    y, ones = np.array(labels, dtype=float), np.ones(len(labels))
    values = [float(Quantile(level).value_grad(np.full_like(y, z), y, ones)[0]) for z in y]
    assert min(values) == pytest.approx(
        values[labels.index(int(np.quantile(y, level, method="inverted_cdf")))]
    )


@pytest.mark.parametrize("y", [0.0, 1.0, 7.0, 1e4])
def test_poisson_is_zero_at_the_logarithm_of_the_label(y):
    z = np.array([math.log(y) if y else -800.0])
    value, dz = Poisson().value_grad(z, np.array([y]), np.ones(1))
    assert float(value) == pytest.approx(0.0, abs=1e-15 * max(1.0, y))
    assert dz[0] == pytest.approx(0.0, abs=1e-14 * max(1.0, y))


@settings(max_examples=50, deadline=None)
@given(st.floats(-700, 700), st.sampled_from([-1.0, 1.0]))
def test_logistic_is_exact_at_every_score(z, y):
    value, dz = Logistic().value_grad(np.array([z]), np.array([y]), np.ones(1))
    e = math.exp(-abs(z))
    assert float(value) == pytest.approx(math.log1p(e) + max(0.0, -y * z), rel=1e-14, abs=1e-300)
    assert dz[0] == pytest.approx(-y * (e if y * z > 0 else 1.0) / (1 + e), rel=1e-14, abs=1e-300)


@pytest.mark.parametrize("loss", [Exponential(), Poisson()], ids=repr)
def test_exponentials_are_continued_from_below_past_the_cap(loss):
    sign = -1.0 if isinstance(loss, Exponential) else 1.0
    for t in [350.0, 400.0, 700.0]:
        value, dz = loss.value_grad(np.array([sign * t]), np.ones(1), np.ones(1))
        exact = math.exp(t)
        assert value <= exact * (1 + 1e-12)
        assert (value == pytest.approx(exact, rel=1e-12)) == (t == 350.0)
        assert 0 < sign * dz[0] <= exact
        beyond, _ = loss.value_grad(np.array([sign * (t + 1e-3)]), np.ones(1), np.ones(1))
        assert beyond - value == pytest.approx(1e-3 * sign * dz[0], rel=1e-3)  # the tangent, or close to it


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(LOSS_INSTANCES), st.floats(-20, 20), st.floats(-20, 20), st.floats(0, 1))
def test_losses_are_convex_along_every_chord(loss, a, b, t):
    y = np.array([3.0 if loss.task == "regression" else 1.0])

    def value(z):
        return float(loss.value_grad(np.array([z]), y, np.ones(1))[0])

    chord = t * value(a) + (1 - t) * value(b)
    assert value(t * a + (1 - t) * b) <= chord + 1e-10 * (1 + chord)


def test_at_nonsmooth_points_the_slope_is_a_subgradient():
    for loss, z, y, low, high in [
        (Hinge(), 1.0, 1.0, -1.0, 0.0),
        (PowerHinge(p=1.0), 1.0, 1.0, -1.0, 0.0),
        (Novelty(), 1.0, 0.0, -1.0, 0.0),
        (Absolute(), 2.0, 2.0, -1.0, 1.0),
        (Quantile(0.9), 2.0, 2.0, -0.9, 0.1),
        (EpsilonInsensitive(0.5), 2.5, 2.0, 0.0, 1.0),
        (EpsilonInsensitive(0.0), 2.0, 2.0, -1.0, 1.0),
    ]:
        value, dz = loss.value_grad(np.array([z]), np.array([y]), np.ones(1))
        assert value == 0.0
        assert low - 1e-12 <= dz[0] <= high + 1e-12


# ---------------------------------------------------------------- array libraries
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@every_loss
def test_torch_agrees(loss, dtype):
    torch = pytest.importorskip("torch")
    z, y, c = draw(loss)
    value, dz = loss.value_grad(z, y, c)
    tensors = [torch.as_tensor(a, dtype=getattr(torch, dtype)) for a in (z, y, c)]
    if loss.task == "tagging":  # dynamic programs are loops compiled for NumPy
        with pytest.raises(ValueError, match="is computed by NumPy, not by torch: give NumPy arrays"):
            loss.value_grad(*tensors)
        return
    other, grad = loss.value_grad(*tensors)
    tol = 1e-12 if dtype == "float64" else 1e-4
    assert grad.dtype == getattr(torch, dtype)
    assert float(other) == pytest.approx(float(value), rel=tol)
    np.testing.assert_allclose(grad.numpy(), dz, rtol=tol, atol=tol * np.max(np.abs(dz)))


@pytest.mark.parametrize(
    "loss", [*LOSS_INSTANCES, *(loss for loss in MANY_LOSSES if loss.task != "tagging")], ids=repr
)
def test_only_the_array_api_standard_is_required(loss):
    strict = pytest.importorskip("array_api_strict")
    z, y, c = draw(loss)
    value, dz = loss.value_grad(z, y, c)
    other, grad = loss.value_grad(*(strict.asarray(a) for a in (z, y, c)))
    assert grad.dtype == strict.float64
    assert float(other) == pytest.approx(float(value), rel=1e-12)
    np.testing.assert_allclose(np.from_dlpack(grad), dz, rtol=1e-12, atol=1e-15)


# ---------------------------------------------------------------- labels and parameters
@pytest.mark.parametrize(
    ("loss", "y", "message"),
    [
        (
            Hinge(),
            np.array([0, 1, 1]),
            "Hinge needs labels -1 and .1, but y holds 0, 1; use LinearClassifier",
        ),
        (Logistic(), np.array([-1.0, 1.0, 0.5]), "Logistic needs .* y holds -1, 0.5, 1"),
        (Hinge(), np.arange(9.0), r"0, 1, 2, 3, 4, \.\.\."),
        (Hinge(), np.array(["spam", "ham"]), "'ham', 'spam'"),
        (Hinge(), np.array(["spam", 1.5], dtype=object), "'1.5', 'spam'"),
        (Hinge(), np.array([True, False]), "False, True"),
        (Hinge(), np.ones(3), r"y holds a single class, \+1, but Hinge needs"),
        (Hinge(), -np.ones(3, dtype=int), "y holds a single class, -1"),
        (Hinge(), np.array([-1.0, np.nan, 1.0]), "1 of 3 are NaN"),
        (Hinge(), np.array([]), "y is empty"),
        (Squared(), np.array([1.0, np.inf]), "Squared needs finite numbers in y, but y holds inf"),
        (Huber(), np.array([1.0, np.nan]), "1 of 2 are NaN"),
        (Absolute(), np.array(["a"]), "finite numbers in y, but y holds 'a'"),
        (Poisson(), np.array([3.0, -1.0, -2.0]), "Poisson needs y >= 0, but y holds -2, -1"),
        (Poisson(), np.array([3.0, -np.inf]), "finite"),
    ],
)
def test_label_errors_name_cause_and_remedy(loss, y, message):
    with pytest.raises(ValueError, match=message):
        loss.check_labels(y)


@every_loss
def test_good_labels_pass(loss):
    _, y, _ = draw(loss)
    loss.check_labels(y)
    if loss.task not in ("ranking", "tagging"):  # linear_risk makes their second column
        loss.check_labels(y.tolist())
    loss.check_labels(pytest.importorskip("torch").as_tensor(y))


def test_novelty_accepts_any_labels():
    Novelty().check_labels(None)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Hinge(margin=-1.0), "Hinge needs margin >= 0, got -1"),
        (lambda: SquaredHinge(margin=math.nan), "SquaredHinge needs margin >= 0, got nan"),
        (lambda: PowerHinge(p=0.5), "p >= 1"),
        (lambda: PowerHinge(p=2.0, margin=math.inf), "margin"),
        (lambda: SmoothedHinge(mu=0.0), "mu > 0.*Hinge"),
        (lambda: Quantile(level=0.0), "0 < level < 1"),
        (lambda: Quantile(level=90), "0 < level < 1"),
        (lambda: EpsilonInsensitive(epsilon=-0.1), "epsilon >= 0"),
        (lambda: EpsilonInsensitive(power=0.9), "power >= 1"),
        (lambda: Huber(delta=0.0), "delta > 0"),
    ],
)
def test_parameter_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_smoothness_is_declared():
    nonsmooth = {loss for loss in LOSS_INSTANCES if not loss.smooth}
    assert nonsmooth == {
        *(loss for loss in LOSS_INSTANCES if isinstance(loss, Hinge | Novelty | Absolute | Quantile)),
        PowerHinge(p=1.0),
        EpsilonInsensitive(),
        EpsilonInsensitive(epsilon=0.0),
    }


# ---------------------------------------------------------------- names and specs
@every_loss
def test_spec_round_trip(loss):
    assert LOSSES.from_dict(json.loads(json.dumps(LOSSES.to_dict(loss)))) == loss
    assert formula(loss)
    assert "\n" not in formula(loss)


def test_spec_makes_numpy_scalars_plain():
    assert (
        json.dumps(LOSSES.to_dict(Huber(delta=np.float32(2.0))))
        == '{"name": "Huber", "params": {"delta": 2.0}}'
    )


def test_user_losses_are_described_but_not_loaded():
    class Mine:
        separable = True

        def value_grad(self, z, y, c):
            return c @ z**2, 2 * c * z

    data = LOSSES.to_dict(Mine())
    assert data["name"].endswith(":test_user_losses_are_described_but_not_loaded.<locals>.Mine")
    with pytest.raises(ValueError, match="Mine is not one of riskmin, and a file imports no code by itself"):
        LOSSES.from_dict(data)
    assert isinstance(get_loss(Mine()), Mine)


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        ("hinge", Hinge()),
        ("perceptron", Hinge(margin=0.0)),
        ("squared_epsilon_insensitive", EpsilonInsensitive(power=2.0)),
        ("quantile:level=0.9", Quantile(level=0.9)),
        ("huber : delta = 2", Huber(delta=2.0)),
        ("epsilon_insensitive:epsilon=0.5,power=2", EpsilonInsensitive(0.5, 2.0)),
        ("squared_epsilon_insensitive:epsilon=0", EpsilonInsensitive(0.0, 2.0)),
        ("logistic:", Logistic()),
        (Huber(3.0), Huber(3.0)),
    ],
)
def test_get_loss(name, loss):
    assert get_loss(name) == loss


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hing", "no loss named 'hing'; the names are hinge, perceptron"),
        ("huber:epsilon=1", "Huber has no parameter epsilon; it has delta"),
        ("logistic:margin=1", "Logistic has no parameter margin; it has none"),
        ("huber:delta", "write it like"),
        ("huber:delta=two", "write it like"),
        ("huber:delta=1=2", "write it like"),
        ("huber:delta=-1", "delta > 0"),
        (Hinge, "Hinge is a class"),
        (3, "3 is not a loss"),
    ],
)
def test_get_loss_errors(name, message):
    with pytest.raises(ValueError, match=message):
        get_loss(name)


# ---------------------------------------------------------------- the contract of regularizers
class Box:
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


@pytest.mark.parametrize("reg", [L2(), Box()], ids=lambda reg: type(reg).__name__)
def test_regularizer_contract_accepts(reg):
    check_regularizer(reg)


@pytest.mark.parametrize(
    ("method", "wrong", "message"),
    [
        ("value", lambda self, w: float(w @ w), "minimizer"),
        ("prox", lambda self, v, step: v / (1 + 1.01 * step), "minimizer"),
        ("prox", lambda self, v, step: np.divide(v, 1 + step, out=v), "changes its argument"),
        ("conjugate", lambda self, u: 0.49 * float(u @ u), "Fenchel-Young|value"),
        ("conjugate", lambda self, u: 0.51 * float(u @ u), "value"),
        ("conjugate_grad", lambda self, u: 1.01 * u, "conjugate_grad"),
        ("grad", lambda self, w: 2 * w, "grad"),
        ("scale", lambda self, cut, lam: 0.5, "another s"),
        ("scale", lambda self, cut, lam: 1.5, "not in"),
        ("line", lambda self, w, d: lambda t: (float(w @ w) / 2, 0.0), "line"),
        ("line", lambda self, w, d: lambda t: (self.value(w + t * d), 0.0), "slope"),
    ],
)
def test_regularizer_contract_refuses(method, wrong, message):
    broken = type("Broken", (L2,), {method: wrong})
    with pytest.raises(AssertionError, match=message):
        check_regularizer(broken())

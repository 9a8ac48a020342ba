"""The contract of every loss: its checks, other array libraries, its names and files; and what it refuses."""

import json
import math
import pickle
from dataclasses import dataclass, replace

import numpy as np
import pytest

from helpers import ALL_LOSSES, COST, LIST_LOSSES, MANY_LOSSES, TREE_LOSSES, Problem, altered
from riskmin import (
    LOSSES,
    Absolute,
    ChainMaxMargin,
    EpsilonInsensitive,
    ExpectedRankUtility,
    Exponential,
    FBeta,
    HierarchicalHinge,
    Hinge,
    Huber,
    Logistic,
    Mrr,
    MulticlassHinge,
    Ndcg,
    Novelty,
    Ordinal,
    Poisson,
    PositionWeights,
    PowerHinge,
    Prbep,
    Quantile,
    RocArea,
    Smoothed,
    SmoothedHinge,
    Softmax,
    Squared,
    SquaredHinge,
    check_loss,
    get_loss,
)
from riskmin.core import Hessian
from riskmin.losses import formula
from riskmin.losses.conjugate import ClosedFormConjugate
from riskmin.testing.cases import make_case_sampler

RANKINGS = [
    Ndcg(k=2),
    Ndcg(weights=0.5),
    Ndcg(k=3, weights=PositionWeights(power=0.5, k=2)),
    Ndcg(k=3, weights="discount"),
    Mrr(weights=PositionWeights(power=1, shift=1)),
    Mrr(weights="discount"),
    ExpectedRankUtility(1.5, weights="discount"),
]
INSTANCES = [
    *dict.fromkeys(ALL_LOSSES),
    PowerHinge(p=1.01, margin=0.0),
    *(loss for loss in LIST_LOSSES if not getattr(loss, "costs", None)),
    Ordinal(costs=[[], [1.0], [2.0, 0.0], [4.0, 2.0, 1.0]]),
    FBeta(beta=0.2),
    *RANKINGS,
    *MANY_LOSSES,
    MulticlassHinge(COST, rescaled=0.5),
    MulticlassHinge(COST, rescaled=0.7, scaled_margin=True),
    ChainMaxMargin(rescaled=0.4),
    *TREE_LOSSES,
]
"""Every loss by its name, and one entry per extreme parameter."""


def case(loss):
    return make_case_sampler(loss).case(np.random.default_rng(0), 3.0)


def check_value(loss):
    """The risk is that of the independent formulas, as of all labellings, rankings or paths."""
    if isinstance(loss, SmoothedHinge):
        return  # an envelope, compared in test_loss_formulas
    if loss.task == "ordinal" and loss.costs:
        loss = Ordinal(costs=[[], [1.0], [0.0, 2.0]])  # for three grades
    problem = Problem(loss, n=8, weighted=True)
    risk = problem.objective().risk
    w = 2 * np.random.default_rng(0).standard_normal(risk.dim)
    assert risk(w)[0] == pytest.approx(problem.value(w, lam=0.0), rel=1e-9)


def check_torch(loss):
    torch = pytest.importorskip("torch")
    z, y, c = case(loss)
    for dtype, tol in ((torch.float64, 1e-12), (torch.float32, 1e-4)):
        tensors = [torch.as_tensor(a, dtype=dtype) for a in (z, y, c)]
        if loss.task == "tagging":  # dynamic programs are loops compiled for NumPy
            with pytest.raises(ValueError, match="is computed by NumPy, not by torch: give NumPy arrays"):
                loss.value_grad(*tensors)
            continue
        (value, dz), (other, grad) = loss.value_grad(z, y, c), loss.value_grad(*tensors)
        assert grad.dtype == dtype
        assert float(other) == pytest.approx(float(value), rel=tol)
        np.testing.assert_allclose(grad.numpy(), dz, rtol=tol, atol=tol * np.max(np.abs(dz)))


def check_array_standard(loss):
    """Losses that are sums over rows use nothing beyond the array API standard."""
    strict = pytest.importorskip("array_api_strict")
    if not loss.separable or loss.task == "tagging" or isinstance(loss, HierarchicalHinge):
        return
    z, y, c = case(loss)
    value, dz = loss.value_grad(z, y, c)
    other, grad = loss.value_grad(*(strict.asarray(a) for a in (z, y, c)))
    assert grad.dtype == strict.float64
    assert float(other) == pytest.approx(float(value), rel=1e-12)
    np.testing.assert_allclose(np.from_dlpack(grad), dz, rtol=1e-12, atol=1e-15)


def check_labels(loss):
    y = case(loss).y
    loss.check_labels(y)
    if loss.task not in ("ranking", "tagging"):  # linear_risk makes their second column
        loss.check_labels(y.tolist())
    loss.check_labels(pytest.importorskip("torch").as_tensor(y))


def check_files(loss):
    loaded = pickle.loads(pickle.dumps(loss))
    assert loaded == loss
    assert loaded.can_be_smoothed == loss.can_be_smoothed
    assert formula(loss)
    assert "\n" not in formula(loss)
    if not hasattr(loss, "tree"):  # a tree is written with its classifier
        assert LOSSES.from_dict(json.loads(json.dumps(LOSSES.to_dict(loss)))) == loss


CHECKS = [check_loss, check_value, check_torch, check_array_standard, check_labels, check_files]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("loss", INSTANCES, ids=repr)
def test_contract(loss, check):
    check(loss)


def test_the_contract_holds_for_losses_of_a_user():
    class Mine:
        separable = True

        def value_grad(self, z, y, c):
            rows = np.arange(len(z))
            top = np.max(z, axis=1, keepdims=True)
            e = np.exp(z - top)
            total = np.sum(e, axis=1, keepdims=True)
            dz = e / total
            dz[rows, y] -= 1
            return c @ (np.log(total[:, 0]) + top[:, 0] - z[rows, y]), c[:, None] * dz

    @dataclass(frozen=True)
    class Odd(Hinge):
        task = "something else"

    check_loss(Mine(), labels=lambda rng, n: rng.integers(0, 3, n), columns=3)
    check_loss(Odd(), labels=lambda rng, n: rng.choice([-1.0, 1.0], n))
    check_loss(MulticlassHinge(1 - np.eye(5)), columns=5)
    check_loss(Smoothed(MulticlassHinge(), 0.2))
    with pytest.raises(AssertionError, match="pass check_loss labels"):
        check_loss(Odd())
    with pytest.raises(AssertionError, match=r"cost is for 2 classes, but there are 3.*pass check_loss col"):
        check_loss(MulticlassHinge(1 - np.eye(2)))
    data = LOSSES.to_dict(Mine())
    assert data["name"].endswith(":test_the_contract_holds_for_losses_of_a_user.<locals>.Mine")
    with pytest.raises(ValueError, match="Mine is not one of riskmin, and a file imports no code by itself"):
        LOSSES.from_dict(data)
    assert isinstance(get_loss(Mine()), Mine)


# ---------------------------------------------------------------- what the contract refuses
@dataclass(frozen=True)
class Broken:
    """A hinge with a mistake."""

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


BROKEN = {
    "wrong sign": "tangent",
    "wrong constant": "tangent|slope",
    "negative": "negative",
    "not convex": "not convex",
    "forgets the weights": "weights",
    "weights in the value only": "dz is wrong",
    "not separable": "weights",
    "depends on the order": "order",
    "overflows": "overflow",
    "wider dtype": "float64",
    "wrong shape": "shape",
    "not finite": "inf",
    "changes its inputs": "inputs",
}


class FiniteOutside(ClosedFormConjugate):
    """A conjugate that is not infinite outside of its domain."""

    def value(self, u):
        return np.minimum(super().value(u), 1e9)


def of_conjugate(**changes):
    """Changes of the conjugate's fields, each a function of the field and the labels."""

    def change(d, y):
        return replace(d, **{name: made(getattr(d, name), y) for name, made in changes.items()})

    return {"conjugate": change}


def of_formula(name, change):
    """A change of the numbers that a function of the conjugate returns."""
    return of_conjugate(**{name: lambda given, y: lambda u: change(given(u))})


def of_diagonal(change):
    return {"hessian": lambda H, *case: H and H._replace(diagonal=change(H.diagonal, *case[:3]))}


def of_smoothed(change):
    """A change of the smoothed value, gradient and offset."""
    return {"smoothed_value_grad": lambda parts, z, y, c, mu, *_: change(*parts) if mu else parts}


def of_value(change):
    return {"value_grad": lambda parts, z, y, c: change(*parts, c)}


def of_blocks(**changes):
    """Changes of the Hessian's parts."""
    return {
        "block_hessian": lambda H, *_: H._replace(
            **{name: change(getattr(H, name)) for name, change in changes.items()}
        )
    }


def twice(function):
    return lambda *args: 2 * function(*args)


CONJUGATES = [
    (Hinge(), of_conjugate(shift=lambda v, y: 0.99 * v), "l.z. . l..u."),
    (EpsilonInsensitive(), of_conjugate(epsilon=lambda v, y: 0.0), "l.z."),
    (Squared(), of_conjugate(square=lambda v, y: 1.01), "l.z."),
    (Huber(), of_conjugate(square=lambda v, y: 0.0), "l.z."),
    (Hinge(), of_conjugate(lower=lambda v, y: 0.9 * v), "slope outside"),
    (Hinge(), of_conjugate(lower=lambda v, y: 1.1 * v), "l.z."),
    (Hinge(), of_conjugate(upper=lambda v, y: v + 0.1), "l.z."),
    (Absolute(), of_conjugate(upper=lambda v, y: math.inf + v), "l.z."),
    (Absolute(), of_conjugate(lower=lambda v, y: 0.1 + 0 * y), "lower <= 0"),
    (Quantile(), of_conjugate(upper=lambda v, y: v[:1]), "one interval per row"),
    (Quantile(0.2), {"conjugate": lambda d, y: Quantile(0.8).conjugate(y)}, "slope outside"),
    (PowerHinge(2.0), of_conjugate(square=lambda v, y: 1.001), "l.z."),
    (Logistic(), of_formula("formula", lambda v: v + 1e-6), "l.z."),
    (Logistic(), of_formula("formula", lambda v: v - 1e-6), "l.z."),
    (Logistic(), {"conjugate": lambda d, y: FiniteOutside(**vars(d))}, "not infinite"),
    (Exponential(), of_formula("derivative", lambda z: 0.999 * z), "l.z."),
    (Poisson(), of_formula("derivative", lambda z: -z), "l.z."),
    (Poisson(), of_formula("derivative", lambda z: np.where(np.isfinite(z), z, np.nan)), "NaN"),
    (PowerHinge(3.0), of_conjugate(lower=lambda v, y: -0.5 * (y > 0)), "outside"),
    (PowerHinge(1.5), {"conjugate": lambda d, y: PowerHinge(3.0).conjugate(y)}, "l.z."),
]
CURVATURES = [
    (Logistic(), of_diagonal(lambda h, z, y, c: 1.01 * h), "differences of dz"),
    (Squared(), of_diagonal(lambda h, z, y, c: np.ones_like(z) / len(z)), "weights"),
    (Squared(), of_diagonal(lambda h, z, y, c: -h), "negative"),
    (SquaredHinge(), of_diagonal(lambda h, z, y, c: c), "differences of dz"),
    (Huber(), of_diagonal(lambda h, z, y, c: h[:, None]), "shape"),
    (Poisson(), of_diagonal(lambda h, z, y, c: c * np.exp(z)), "overflow"),
    (Huber(), of_diagonal(lambda h, z, y, c: h.astype(float)), "dtype"),
    (Hinge(), {"hessian": lambda H, z, y, c, *_: Hessian(c * (y * z < 1))}, "differences of dz"),
    (Squared(), of_diagonal(lambda h, z, y, c: np.multiply(c, 2, out=c) / 2), "inputs"),
    (Squared(), {"hessian": lambda H, z, y, c, *_: H._replace(low_rank=(c,))}, "not diagonal"),
    (Logistic(), {"hessian": lambda H, *_: None}, "returns None"),
    (Softmax(), of_blocks(product=twice), "differences of dz"),
    (Softmax(), of_blocks(diagonal=lambda d: 2 * d), "diagonal"),
    (Softmax(), of_blocks(block_sum=twice), "total"),
    (MulticlassHinge(), of_blocks(product=twice), "differences of dz"),
    (MulticlassHinge(), of_blocks(factors=lambda f: lambda: (f()[0], 2 * f()[1])), "factors"),
]
SMOOTHED = [
    (RocArea(), of_smoothed(lambda value, dz, offset: (value + 2 * offset, dz, offset)), "above the loss"),
    (RocArea(), of_smoothed(lambda value, dz, offset: (value, dz, 2 * offset)), "plus its minorant offset"),
    (RocArea(), of_smoothed(lambda value, dz, offset: (value, dz, -offset)), "negative"),
    (RocArea(), of_smoothed(lambda value, dz, offset: (value, 0.9 * dz, offset)), "tangent|slope"),
    (RocArea(), of_smoothed(lambda value, dz, offset: (value, dz, 0.5 * offset)), "by its minorant offsets"),
    (RocArea(), of_smoothed(lambda value, dz, offset: (value, dz.astype(np.float64), offset)), "float64"),
    (
        Prbep(),
        {"smoothed_value_grad": lambda parts, z, y, c, mu, *_: Prbep().smoothed_value_grad(z, y, c, mu)},
        "around its own multipliers",
    ),
    (
        MulticlassHinge(),
        of_smoothed(lambda value, dz, offset: (value, dz, 2 * offset)),
        "plus its minorant offset",
    ),
    (MulticlassHinge(), of_smoothed(lambda value, dz, offset: (value, 0.9 * dz, offset)), "tangent|slope"),
]
VALUES = [
    (Softmax(), of_value(lambda value, dz, c: (value, dz + 1e-3 * c[:, None])), "slope|tangent"),
    (Softmax(), of_value(lambda value, dz, c: (value, dz[:, :2])), "shape"),
    (Softmax(), of_value(lambda value, dz, c: (value, np.roll(dz, 1, axis=1))), "tangent"),
    (Softmax(), of_value(lambda value, dz, c: (value / np.sum(c), dz / np.sum(c))), "weights"),
]


@pytest.mark.parametrize(("name", "message"), BROKEN.items())
def test_the_contract_refuses_mistakes(name, message):
    with pytest.raises(AssertionError, match=message):
        check_loss(Broken(name))


@pytest.mark.parametrize(
    ("base", "changes", "message"), [*VALUES, *SMOOTHED, *CONJUGATES, *CURVATURES], ids=lambda v: repr(v)[:30]
)
def test_the_contract_refuses_changed_results(base, changes, message):
    with pytest.raises(AssertionError, match=message):
        check_loss(altered(base, **changes))


def test_the_contract_refuses_false_shift_invariance():
    with pytest.raises(AssertionError, match="invariant"):
        check_loss(type("Changed", (FBeta,), {"shift_invariant": True})())


@pytest.mark.parametrize("base", [Hinge(), Logistic(), PowerHinge(2.0)], ids=repr)
def test_the_contract_accepts_unchanged_results(base):
    check_loss(altered(base, conjugate=lambda d, y: d))


# ---------------------------------------------------------------- names
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
        ("multiclass_hinge:rescaled=0.5", MulticlassHinge(rescaled=0.5)),
        ("chain_max_margin:rescaled=1", ChainMaxMargin(rescaled=1)),
        ("ndcg:k=5", Ndcg(k=5)),
        ("ndcg:k=5,weights=0.5", Ndcg(5, PositionWeights(power=0.5))),
        ("expected_rank_utility:half_life=3", ExpectedRankUtility(half_life=3.0)),
    ],
)
def test_names_and_settings(name, loss):
    assert get_loss(name) == loss


def test_numbers_of_numpy_are_written_as_plain_numbers():
    written = json.dumps(LOSSES.to_dict(Huber(delta=np.float32(2.0))))
    assert written == '{"name": "Huber", "params": {"delta": 2.0}}'


def test_smoothness_is_declared():
    kinks = Hinge | Novelty | Absolute | Quantile
    assert {loss for loss in ALL_LOSSES if not loss.smooth} == {
        *(loss for loss in ALL_LOSSES if isinstance(loss, kinks)),
        PowerHinge(p=1.0),
        EpsilonInsensitive(),
        EpsilonInsensitive(epsilon=0.0),
    }
    assert ChainMaxMargin().can_be_smoothed
    assert not ChainMaxMargin(rescaled=True).can_be_smoothed

"""The contract of every loss: its checks, other array libraries, its names and files; and what it refuses."""

import json
import math
import pickle
from dataclasses import dataclass, replace

import numpy as np
import pytest

import riskmin as rm
from helpers import ALL_LOSSES, COST, LIST_LOSSES, MANY_LOSSES, RANKED, TREE_LOSSES, Problem, altered, problem
from reference import labellings
from riskmin.core import Hessian
from riskmin.losses import formula
from riskmin.losses.conjugate import ClosedFormConjugate
from riskmin.testing.cases import make_case_sampler

INSTANCES = [
    *dict.fromkeys(ALL_LOSSES),
    rm.PowerHinge(p=1.01, margin=0.0),
    *(loss for loss in LIST_LOSSES if not getattr(loss, "costs", None)),
    rm.Ordinal(costs=[[], [1.0], [2.0, 0.0], [4.0, 2.0, 1.0]]),
    rm.FBeta(beta=0.2),
    rm.Ndcg(k=2),
    *RANKED,
    *MANY_LOSSES,
    rm.MulticlassHinge(COST, rescaled=0.5),
    rm.MulticlassHinge(COST, rescaled=0.7, scaled_margin=True),
    rm.ChainMaxMargin(rescaled=0.4),
    *TREE_LOSSES,
    rm.Nu(rm.Hinge(), 0.02),
    rm.Nu(rm.Hinge(), 0.3),
    rm.Nu(rm.Absolute(), 0.3),
    rm.Nu(rm.Squared(), 1.0),
]
"""Every loss by its name, and one entry per extreme parameter."""


def case(loss):
    return make_case_sampler(loss).case(np.random.default_rng(0), 3.0)


def check_value(loss):
    """The risk is that of the independent formulas, as of all labellings, rankings or paths."""
    if isinstance(loss, rm.SmoothedHinge | rm.Nu | rm.HuberScale | rm.Probit):
        return  # an envelope, minima and a distribution: test_loss_formulas, test_adaptive, test_huber_scale
    if loss.task == "ordinal" and loss.costs:
        loss = rm.Ordinal(costs=[[], [1.0], [0.0, 2.0]])  # for three grades
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
    if not loss.separable or loss.task == "tagging" or isinstance(loss, rm.HierarchicalHinge):
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
    assert (loaded, hash(loaded)) == (loss, hash(loss))
    assert [other for other in INSTANCES if other == loss] == [loss]
    assert loaded.can_be_smoothed == loss.can_be_smoothed
    assert formula(loss)
    assert "\n" not in formula(loss)
    if not hasattr(loss, "tree"):  # a tree is written with its classifier
        assert rm.LOSSES.from_dict(json.loads(json.dumps(rm.LOSSES.to_dict(loss)))) == loss


def check_cutoff(loss):
    """The threshold gives the best labelling of all thresholds; that of the smoothed loss is the same."""
    if not loss.has_cutoff:
        return
    y, c, z = problem(loss)[1], np.full(8, 1 / 8), np.random.default_rng(0).standard_normal(8)

    def error(threshold):
        slope = (np.where(z > threshold, 1.0, -1.0) - y) / 8
        if isinstance(loss, rm.RocArea):  # the sum of the error rates of both classes
            return sum(np.mean(slope[y == label] != 0) for label in (-1, 1))
        slopes, deltas = labellings(loss, y)
        return min(deltas[np.all(slopes == slope, axis=1)], default=np.inf)

    threshold = loss.cutoff(z, y, c)
    assert threshold not in z
    assert error(threshold) == pytest.approx(min(error(t) for t in [z.min() - 1, *z]))
    if loss.can_be_smoothed:
        assert loss.smoothed(0.1).cutoff(z, y, c) == threshold


CHECKS = [
    rm.check_loss,
    check_value,
    check_torch,
    check_array_standard,
    check_labels,
    check_cutoff,
    check_files,
]


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
    class Odd(rm.Hinge):
        task = "something else"

    rm.check_loss(Mine(), labels=lambda rng, n: rng.integers(0, 3, n), columns=3)
    rm.check_loss(Odd(), labels=lambda rng, n: rng.choice([-1.0, 1.0], n))
    rm.check_loss(rm.MulticlassHinge(1 - np.eye(5)), columns=5)
    rm.check_loss(rm.Smoothed(rm.MulticlassHinge(), 0.2))
    with pytest.raises(AssertionError, match="pass check_loss labels"):
        rm.check_loss(Odd())
    with pytest.raises(AssertionError, match=r"cost is for 2 classes, but there are 3.*pass check_loss col"):
        rm.check_loss(rm.MulticlassHinge(1 - np.eye(2)))
    assert isinstance(rm.get_loss(Mine()), Mine)


# ---------------------------------------------------------------- what the contract refuses
@dataclass(frozen=True)
class Broken:
    """A hinge with a mistake, which changes its value and its slopes."""

    change: object
    separable = True
    task = "classification"

    def value_grad(self, z, y, c):
        m = np.maximum(1 - y * z, 0.0)
        return self.change(m, z, y, c, c @ m, -c * y * (m > 0))


def doubled_first(m, z, y, c, value, slope):
    return value + c[0] * m[0], slope * (1 + (np.arange(len(z)) == 0))


BROKEN = {
    "wrong sign": (lambda m, z, y, c, v, g: (v, -g), "tangent"),
    "wrong constant": (lambda m, z, y, c, v, g: (v, 1.01 * g), "tangent|slope"),
    "negative": (lambda m, z, y, c, v, g: (v - 1.0 * np.sum(c), g), "negative"),
    "not convex": (lambda m, z, y, c, v, g: (c @ np.minimum(m, 1.0), g * (m < 1)), "not convex"),
    "no weights": (lambda m, z, y, c, v, g: (np.mean(m), -y * (m > 0) / len(z)), "weights"),
    "weights in the value only": (lambda m, z, y, c, v, g: (v, -y * (m > 0) / len(z)), "dz is wrong"),
    "not separable": (lambda m, z, y, c, v, g: (np.max(m), -y * (m > 0) * (m == np.max(m))), "weights"),
    "depends on the order": (doubled_first, "order"),
    "overflows": (lambda m, z, y, c, v, g: (c @ np.exp(-y * z), -c * y * np.exp(-y * z)), "overflow"),
    "wider dtype": (lambda m, z, y, c, v, g: (v, g.astype(np.float64)), "float64"),
    "wrong shape": (lambda m, z, y, c, v, g: (v, g[:, None]), "shape"),
    "not finite": (lambda m, z, y, c, v, g: (v + np.where(np.abs(z[0]) > 1e6, np.inf, 0.0), g), "inf"),
    "changes its inputs": (lambda m, z, y, c, v, g: (v, np.multiply(c, -y * (m > 0), out=c)), "inputs"),
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
    (rm.Hinge(), of_conjugate(shift=lambda v, y: 0.99 * v), "l.z. . l..u."),
    (rm.EpsilonInsensitive(), of_conjugate(epsilon=lambda v, y: 0.0), "l.z."),
    (rm.Squared(), of_conjugate(square=lambda v, y: 1.01), "l.z."),
    (rm.Huber(), of_conjugate(square=lambda v, y: 0.0), "l.z."),
    (rm.Hinge(), of_conjugate(lower=lambda v, y: 0.9 * v), "slope outside"),
    (rm.Hinge(), of_conjugate(lower=lambda v, y: 1.1 * v), "l.z."),
    (rm.Hinge(), of_conjugate(upper=lambda v, y: v + 0.1), "l.z."),
    (rm.Absolute(), of_conjugate(upper=lambda v, y: math.inf + v), "l.z."),
    (rm.Absolute(), of_conjugate(lower=lambda v, y: 0.1 + 0 * y), "lower <= 0"),
    (rm.Quantile(), of_conjugate(upper=lambda v, y: v[:1]), "one interval per row"),
    (rm.Quantile(0.2), {"conjugate": lambda d, y: rm.Quantile(0.8).conjugate(y)}, "slope outside"),
    (rm.PowerHinge(2.0), of_conjugate(square=lambda v, y: 1.001), "l.z."),
    (rm.Logistic(), of_formula("formula", lambda v: v + 1e-6), "l.z."),
    (rm.Logistic(), of_formula("formula", lambda v: v - 1e-6), "l.z."),
    (rm.Logistic(), {"conjugate": lambda d, y: FiniteOutside(**vars(d))}, "not infinite"),
    (rm.Exponential(), of_formula("derivative", lambda z: 0.999 * z), "l.z."),
    (rm.Poisson(), of_formula("derivative", lambda z: -z), "l.z."),
    (rm.Poisson(), of_formula("derivative", lambda z: np.where(np.isfinite(z), z, np.nan)), "NaN"),
    (rm.PowerHinge(3.0), of_conjugate(lower=lambda v, y: -0.5 * (y > 0)), "outside"),
    (rm.PowerHinge(1.5), {"conjugate": lambda d, y: rm.PowerHinge(3.0).conjugate(y)}, "l.z."),
]
CURVATURES = [
    (rm.Logistic(), of_diagonal(lambda h, z, y, c: 1.01 * h), "differences of dz"),
    (rm.Squared(), of_diagonal(lambda h, z, y, c: np.ones_like(z) / len(z)), "weights"),
    (rm.Squared(), of_diagonal(lambda h, z, y, c: -h), "negative"),
    (rm.SquaredHinge(), of_diagonal(lambda h, z, y, c: c), "differences of dz"),
    (rm.Huber(), of_diagonal(lambda h, z, y, c: h[:, None]), "shape"),
    (rm.Poisson(), of_diagonal(lambda h, z, y, c: c * np.exp(z)), "overflow"),
    (rm.Huber(), of_diagonal(lambda h, z, y, c: h.astype(float)), "dtype"),
    (rm.Hinge(), {"hessian": lambda H, z, y, c, *_: Hessian(c * (y * z < 1))}, "differences of dz"),
    (rm.Squared(), of_diagonal(lambda h, z, y, c: np.multiply(c, 2, out=c) / 2), "inputs"),
    (rm.Squared(), {"hessian": lambda H, z, y, c, *_: H._replace(low_rank=(c,))}, "not diagonal"),
    (rm.Logistic(), {"hessian": lambda H, *_: None}, "returns None"),
    (rm.Softmax(), of_blocks(product=twice), "differences of dz"),
    (rm.Softmax(), of_blocks(diagonal=lambda d: 2 * d), "diagonal"),
    (rm.Softmax(), of_blocks(block_sum=twice), "total"),
    (rm.MulticlassHinge(), of_blocks(product=twice), "differences of dz"),
    (rm.MulticlassHinge(), of_blocks(factors=lambda f: lambda: (f()[0], 2 * f()[1])), "factors"),
]
SMOOTHED = [
    (rm.RocArea(), of_smoothed(lambda v, g, o: (v + 2 * o, g, o)), "above the loss"),
    (rm.RocArea(), of_smoothed(lambda v, g, o: (v, g, 2 * o)), "plus its minorant offset"),
    (rm.RocArea(), of_smoothed(lambda v, g, o: (v, g, -o)), "negative"),
    (rm.RocArea(), of_smoothed(lambda v, g, o: (v, 0.9 * g, o)), "tangent|slope"),
    (rm.RocArea(), of_smoothed(lambda v, g, o: (v, g, 0.5 * o)), "by its minorant offsets"),
    (rm.RocArea(), of_smoothed(lambda v, g, o: (v, g.astype(np.float64), o)), "float64"),
    (
        rm.Prbep(),
        {"smoothed_value_grad": lambda parts, z, y, c, mu, *_: rm.Prbep().smoothed_value_grad(z, y, c, mu)},
        "around its own multipliers",
    ),
    (rm.MulticlassHinge(), of_smoothed(lambda v, g, o: (v, g, 2 * o)), "plus its minorant offset"),
    (rm.MulticlassHinge(), of_smoothed(lambda v, g, o: (v, 0.9 * g, o)), "tangent|slope"),
]
VALUES = [
    (rm.Softmax(), of_value(lambda value, dz, c: (value, dz + 1e-3 * c[:, None])), "slope|tangent"),
    (rm.Softmax(), of_value(lambda value, dz, c: (value, dz[:, :2])), "shape"),
    (rm.Softmax(), of_value(lambda value, dz, c: (value, np.roll(dz, 1, axis=1))), "tangent"),
    (rm.Softmax(), of_value(lambda value, dz, c: (value / np.sum(c), dz / np.sum(c))), "weights"),
    (rm.Squared(), {"values": lambda rows, *_: 3 * rows}, "for a row whose loss is"),
]


@pytest.mark.parametrize("name", BROKEN)
def test_the_contract_refuses_mistakes(name):
    change, message = BROKEN[name]
    with pytest.raises(AssertionError, match=message):
        rm.check_loss(Broken(change))


@pytest.mark.parametrize(
    ("base", "changes", "message"), [*VALUES, *SMOOTHED, *CONJUGATES, *CURVATURES], ids=lambda v: repr(v)[:30]
)
def test_the_contract_refuses_changed_results(base, changes, message):
    with pytest.raises(AssertionError, match=message):
        rm.check_loss(altered(base, **changes))


def test_the_contract_refuses_false_shift_invariance():
    with pytest.raises(AssertionError, match="invariant"):
        rm.check_loss(type("Changed", (rm.FBeta,), {"shift_invariant": True})())


# ---------------------------------------------------------------- names
@pytest.mark.parametrize(
    ("name", "loss"),
    [
        ("hinge", rm.Hinge()),
        ("perceptron", rm.Hinge(margin=0.0)),
        ("squared_epsilon_insensitive", rm.EpsilonInsensitive(power=2.0)),
        ("quantile:level=0.9", rm.Quantile(level=0.9)),
        ("huber : delta = 2", rm.Huber(delta=2.0)),
        ("epsilon_insensitive:epsilon=0.5,power=2", rm.EpsilonInsensitive(0.5, 2.0)),
        ("squared_epsilon_insensitive:epsilon=0", rm.EpsilonInsensitive(0.0, 2.0)),
        ("logistic:", rm.Logistic()),
        (rm.Huber(3.0), rm.Huber(3.0)),
        ("multiclass_hinge:rescaled=0.5", rm.MulticlassHinge(rescaled=0.5)),
        ("chain_max_margin:rescaled=1", rm.ChainMaxMargin(rescaled=1)),
        ("ndcg:k=5", rm.Ndcg(k=5)),
        ("ndcg:k=5,weights=0.5", rm.Ndcg(5, rm.PositionWeights(power=0.5))),
        ("expected_rank_utility:half_life=3", rm.ExpectedRankUtility(half_life=3.0)),
    ],
)
def test_names_and_settings(name, loss):
    assert rm.get_loss(name) == loss


def test_numbers_of_numpy_are_written_as_plain_numbers():
    written = json.dumps(rm.LOSSES.to_dict(rm.Huber(delta=np.float32(2.0))))
    assert written == '{"name": "Huber", "params": {"delta": 2.0}}'


def test_smoothness_is_declared():
    kinks = rm.Hinge | rm.Novelty | rm.Absolute | rm.Quantile
    assert {loss for loss in ALL_LOSSES if not loss.smooth} == {
        *(loss for loss in ALL_LOSSES if isinstance(loss, kinks)),
        rm.PowerHinge(p=1.0),
        rm.EpsilonInsensitive(),
        rm.EpsilonInsensitive(epsilon=0.0),
    }
    assert rm.ChainMaxMargin().can_be_smoothed
    assert not rm.ChainMaxMargin(rescaled=True).can_be_smoothed

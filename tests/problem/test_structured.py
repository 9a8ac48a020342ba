"""User-defined structured models: brute force over all outputs, other solvers, checks of wrong models."""

import itertools
import math

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import linear_sum_assignment

import riskmin as rm
from helpers import refusals


class Matching:
    """Permutations; x[i, j] holds the features of the pair i, j."""

    def __init__(self, dim=3, form=np.asarray):
        self.dim, self.form = dim, form

    def joint_feature(self, x, y):
        return self.form(x[np.arange(len(y)), y].sum(axis=0))

    def cost(self, y, other):
        return float(np.mean(y != other))

    def loss_augmented_argmax(self, x, y, w):
        return linear_sum_assignment(x @ w + (1 - np.eye(len(y))[y]) / len(y), maximize=True)[1]

    def argmax(self, x, w):
        return linear_sum_assignment(x @ w, maximize=True)[1]


class Listed(Matching):
    """A model that lists all outputs, so that the argmax can be checked against them."""

    def outputs(self, x):
        return (np.array(y) for y in itertools.permutations(range(len(x))))


class Rescaled(Listed):
    """The best matching of each cost, among all of them."""

    def best_of_each_cost(self, x, y, w):
        best = {}
        for other in self.outputs(x):
            cost, score = self.cost(y, other), w @ np.asarray(self.joint_feature(x, other))
            if cost not in best or score > best[cost][0]:
                best[cost] = score, other
        return [other for _, other in best.values()]


class OwnSearch(Listed):
    """An argmax of the rescaled margin of its own."""

    def rescaled_argmax(self, x, y, w, beta):
        return max(self.outputs(x), key=lambda o: margin(self, x, y, w, o, beta))


class Kinds:
    """Classes, with w of shape (p, k) and methods for both losses."""

    def __init__(self, p, k):
        self.p, self.k, self.dim = p, k, p * k

    def joint_feature(self, x, y):
        return np.arange(self.p) * self.k + y, x

    def cost(self, y, other):
        return float(y != other)

    def loss_augmented_argmax(self, x, y, w):
        return int(np.argmax(x @ w.reshape(self.p, self.k) + (np.arange(self.k) != y)))

    def log_partition(self, x, w):
        z = x @ w.reshape(self.p, self.k)
        p = np.exp(z - z.max())
        return z.max() + math.log(p.sum()), np.outer(x, p / p.sum()).ravel()

    def outputs(self, x):
        return range(self.k)


def matchings(n=12, size=3, dim=3, seed=0):
    rng = np.random.default_rng(seed)
    ys = [rng.permutation(size) for _ in range(n)]
    return [rng.standard_normal((size, size, dim)) + np.eye(size)[y][:, :, None] for y in ys], ys


def classes(n=40, p=3, k=4, seed=0):
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((n, p)), rng.integers(0, k, n)
    return X, [int(v) for v in y]


def matching_objective(n=12, size=3, lam=0.01, **settings):
    return rm.Objective(rm.Structured(Matching()).risk(*matchings(n, size), **settings), rm.L2(), lam)


def margin(model, x, y, w, other, beta=0.0):
    """What the loss maximizes over outputs: cost + cost^beta w'(phi(x, other) - phi(x, y))."""
    cost = model.cost(y, other)
    return cost + cost**beta * (w @ (model.joint_feature(x, other) - model.joint_feature(x, y)))


# ---------------------------------------------------------------- the risk
@pytest.mark.parametrize(
    ("model", "size", "beta"),
    [
        (Matching(), 1, 0.0),
        (Matching(), 2, 0.0),
        (Matching(), 4, 0.0),
        (Rescaled(), 3, 0.4),
        (Rescaled(), 4, True),
        (OwnSearch(), 3, True),
        (OwnSearch(), 4, 0.4),
    ],
)
def test_the_risk_equals_brute_force(model, size, beta):
    xs, ys = matchings(5, size)
    weights = np.arange(5.0)
    risk = rm.Structured(model, rescaled=beta).risk(xs, ys, sample_weight=weights)
    rng = np.random.default_rng(1)
    for scale in (0.3, 3.0):
        w, v = scale * rng.standard_normal((2, 3))
        value, grad = risk(w)
        worst = [
            max(margin(model, x, y, w, np.array(o), float(beta)) for o in itertools.permutations(range(size)))
            for x, y in zip(xs, ys, strict=True)
        ]
        assert value == pytest.approx(weights / 10 @ worst, rel=1e-12)
        assert risk(v)[0] >= value + grad @ (v - w) - 1e-12
        restricted, slope = risk.restricted_risk()(v)
        assert value + grad @ (v - w) - 1e-12 <= restricted <= risk(v)[0] + 1e-12
        assert risk(w)[0] >= restricted + slope @ (w - v) - 1e-12


@pytest.mark.parametrize(
    "form",
    [
        sparse.csr_array,
        lambda v: sparse.csr_matrix(v[None]),
        lambda v: (np.arange(3), v),
        lambda v: (np.array([0, 1, 2, 2]), np.append(v, 0.0)),
        list,
    ],
)
def test_features_in_any_form_agree(form):
    w = np.array([0.3, -0.2, 1.0])
    value, grad = rm.Structured(Matching()).risk(*matchings(5))(w)
    other, slope = rm.Structured(Matching(form=form)).risk(*matchings(5))(w)
    assert other == value
    np.testing.assert_array_equal(slope, grad)


@pytest.mark.parametrize(("kind", "flat"), [("max_margin", rm.MulticlassHinge()), ("log", rm.Softmax())])
def test_classes_give_the_multiclass_losses(kind, flat):
    X, y = classes(20)
    risk = rm.Structured(Kinds(3, 4), kind).risk(X, y)
    other = rm.linear_risk(X, np.array(y, float), flat)
    for w in np.random.default_rng(1).standard_normal((3, 12)):
        value, grad = risk(w)
        assert value == pytest.approx(other(w)[0], rel=1e-12)
        np.testing.assert_allclose(grad, other(w)[1], atol=1e-14)
    result, best = (rm.minimize(rm.Objective(r, rm.L2(), 0.05), tol=1e-6) for r in (risk, other))
    assert result.status == "converged"
    assert result.value == pytest.approx(best.value, rel=3e-6)


# ---------------------------------------------------------------- minimization
def full_program(xs, ys, lam, penalty, beta):
    """The optimum, by a program with all outputs of all examples."""
    import cvxpy as cp  # imported here, since worker processes import this module

    w, slack = cp.Variable(3), cp.Variable(len(xs), nonneg=True)
    model, constraints = Matching(), []
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        for o in map(np.array, itertools.permutations(range(len(x)))):
            phi = model.joint_feature(x, o) - model.joint_feature(x, y)
            cost = model.cost(y, o)
            constraints.append(slack[i] >= cost + cost**beta * phi @ w)
    omega = cp.sum_squares(w) / 2 if penalty == rm.L2() else cp.norm1(w)
    return cp.Problem(cp.Minimize(lam * omega + cp.sum(slack) / len(xs)), constraints).solve("CLARABEL")


@pytest.mark.parametrize(
    ("reg", "beta"), [(rm.L2(), 0.0), (rm.L2(), 0.5), pytest.param(rm.L1(), 0.0, marks=pytest.mark.slow)]
)
def test_the_optimum_equals_that_of_the_full_program(reg, beta):
    rows = matchings(10)
    risk = rm.Structured(Rescaled() if beta else Matching(), rescaled=beta).risk(*rows)
    expected = full_program(*rows, 0.05, reg, beta)
    result = rm.minimize(rm.Objective(risk, reg, 0.05), tol=1e-7)
    assert result.status == "converged"
    assert result.solver.startswith("WorkingSet(share=0.1): Structured is not smooth")
    assert result.value == pytest.approx(expected, rel=1e-6)
    assert result.lower <= expected * (1 + 1e-7)


def test_iterates_are_valid():
    J, rng = matching_objective(30, 4), np.random.default_rng(3)
    for it in itertools.islice(rm.WorkingSet().iterates(J, rng.standard_normal(3)), 5):
        assert it.value == pytest.approx(J.value(it.w), rel=1e-12)
        for v in [*rng.standard_normal((4, 3)), it.w]:
            assert it.cut.a @ v + it.cut.b <= J.risk(v)[0] + 1e-12


def test_the_working_set_needs_few_calls_of_the_argmax():
    """The measurement of docs/structured.md on a smaller problem: at most a fifth of the calls."""
    calls = []
    for solver in (rm.WorkingSet(), rm.Bundle()):
        J = matching_objective(40, 5, lam=0.001, check=False)
        assert rm.minimize(J, solver, tol=1e-3).status == "converged"
        calls.append(J.risk.call_counts()["argmax"])
    assert calls[0] <= 0.2 * calls[1]


def test_features_of_cached_outputs_are_not_recomputed():
    risk = matching_objective(10, check=False).risk
    first = [risk(np.ones(3))[0], risk.call_counts()]
    second = [risk(np.ones(3))[0], risk.call_counts()]
    assert second[0] == first[0]
    assert second[1]["joint_feature"] == first[1]["joint_feature"]
    assert second[1]["argmax"] == first[1]["argmax"] + 10


def test_the_output_cache_is_bounded():
    bounded, unbounded = matching_objective(memory=1), matching_objective()
    result, other = (rm.minimize(J, tol=1e-2) for J in (bounded, unbounded))
    assert result.status == other.status == "converged"
    assert bounded.risk.call_counts()["kept"] == 12
    assert bounded.risk.call_counts()["dropped"] > 0
    assert result.value == pytest.approx(other.value, rel=2e-2)


def test_a_run_resumes(tmp_path):
    first, second = (
        rm.minimize(matching_objective(30, 4, lam=1e-3), tol=1e-6, max_iter=k, checkpoint=tmp_path / "run")
        for k in (3, 1000)
    )
    assert (first.status, second.status) == ("max_iter", "converged")
    assert second.n_iter > 3
    assert second.lower >= first.lower
    with pytest.raises(rm.FileError, match="other data"):
        rm.minimize(matching_objective(29, 4, lam=1e-3), tol=1e-6, checkpoint=tmp_path / "run")


def test_the_choice_of_solver_and_prediction():
    xs, ys = classes(5)
    log = rm.Structured(Kinds(3, 4), "log")
    assert log.smooth
    assert isinstance(rm.Auto().choose(rm.Objective(log.risk(xs, ys), rm.L2(), 1))[0], rm.Lbfgs)
    xs, w = matchings(3)[0], np.ones(3)
    np.testing.assert_array_equal(rm.Structured(Matching()).predict(xs, w)[0], Matching().argmax(xs[0], w))
    assert repr(rm.Structured(Matching())) == "Structured(Matching(dim=3), loss='max_margin')"
    assert "rescaled=0.5" in repr(rm.Structured(OwnSearch(), rescaled=0.5))


# ---------------------------------------------------------------- executors
def bits(executor, kind):
    """The bits of two evaluations and of a run."""
    xs, ys = matchings(8) if kind == "max_margin" else classes(8)
    model = Matching() if kind == "max_margin" else Kinds(3, 4)
    risk = rm.Structured(model, kind).risk(xs, ys, executor=executor, n_shards=3)
    values = [risk(w) for w in np.random.default_rng(0).standard_normal((2, model.dim))]
    result = rm.minimize(rm.Objective(risk, rm.L2(), 0.05), tol=1e-3)
    if isinstance(executor, rm.Processes):
        risk.executor.close()
    return [np.hstack(part).tobytes() for part in (*values, (result.w, result.value, result.lower))]


@pytest.mark.parametrize(
    "executor", [rm.Threads(n_workers=2), pytest.param(rm.Processes(n_workers=2), marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("kind", ["max_margin", "log"])
def test_executors_give_the_same_bits(kind, executor):
    assert bits(executor, kind) == bits(rm.Serial, kind)


# ---------------------------------------------------------------- wrong models
class Greedy(Listed):
    """Takes the best remaining column row by row, which is not the best matching."""

    def loss_augmented_argmax(self, x, y, w):
        score = x @ w + (1 - np.eye(len(y))[y]) / len(y)
        columns = np.full(len(y), -1)
        for i in range(len(y)):
            remaining = [j for j in range(len(y)) if j not in columns[:i]]
            columns[i] = remaining[int(np.argmax(score[i, remaining]))]
        return columns


class Blind(Matching):
    """Ignores the cost."""

    def loss_augmented_argmax(self, x, y, w):
        return self.argmax(x, w)


class Late(Matching):
    """Wrong for the last example only, and only at some w."""

    def loss_augmented_argmax(self, x, y, w):
        return super().loss_augmented_argmax(x, y, -w if x[0, 0, 0] > 50 and w @ w > 0 else w)


class Negative(OwnSearch):
    def cost(self, y, other):
        return -super().cost(y, other)


class NotRescaled(OwnSearch):
    def rescaled_argmax(self, x, y, w, beta):
        return self.loss_augmented_argmax(x, y, w)


def test_a_greedy_argmax_is_detected_by_cached_outputs():
    """Without a list of outputs it is detected during the run: no convergence is claimed."""
    greedy = type("Plain", (Greedy,), {"outputs": None})()
    risk = rm.Structured(greedy).risk(*matchings(20, 5), check=False)
    with pytest.raises(ValueError, match="does not maximize"):
        rm.minimize(rm.Objective(risk, rm.L2(), 0.001), tol=1e-6)


def test_a_rare_mistake_is_detected_at_its_example():
    xs, ys = matchings(20, 3)
    xs[17][0, 0, 0] = 60.0
    with pytest.raises(ValueError, match="for example 17 it found"):
        rm.minimize(rm.Objective(rm.Structured(Late()).risk(xs, ys), rm.L2(), 0.01))


def with_methods(kind, **methods):
    """The risk of classes whose model has other methods."""
    return lambda: rm.Structured(type("Changed", (Kinds,), methods)(3, 4), kind).risk(*classes(10))


def with_cost(cost):
    return with_methods("max_margin", cost=lambda s, y, o: cost)


def with_features(f):
    return with_methods("max_margin", joint_feature=lambda s, x, y: f(x))


def with_sums(f):
    return with_methods(
        "log", log_partition=lambda s, x, w: f(x, lambda w=w: Kinds.log_partition(s, x, w), w)
    )


WRONG = [
    (lambda: rm.Structured(Greedy()).risk(*matchings(20, 5)), r"does not maximize: for example \d+ it found"),
    (lambda: rm.Structured(Blind()).risk(*matchings(20, 5)), r"does not maximize: for example \d+ it found"),
    (lambda: rm.Structured(Negative(), rescaled=0.5).risk(*matchings(4, 4)), "rescaled by costs >= 0"),
    (
        lambda: rm.Structured(NotRescaled(), rescaled=0.5).risk(*matchings(4, 4)),
        r"rescaled_argmax does not maximize: .* cost \+ cost\^0.5 w @",
    ),
    (lambda: rm.Structured(OwnSearch(), rescaled=2), "rescaled must be False, True or a number from 0 to 1"),
    (lambda: rm.Structured(Kinds(2, 3), loss="log", rescaled=True), "leave it False with loss='log'"),
    (lambda: rm.Structured(Matching(), rescaled=0.5), "max_margin needs .* or best_of_each_cost"),
    (with_cost(1.0), r"cost\(y, y\) of example 0 is 1.0"),
    (with_cost(math.nan), "cost of example 0 is nan"),
    (with_cost("no"), "cost of example 0 is 'no'"),
    (with_features(lambda x: x), r"joint_feature of example 0 has shape \(3,\).*\(12,\)"),
    (with_features(lambda x: np.full(12, np.nan)), "example 0 holds NaN or infinity"),
    (with_features(lambda x: ([12], [1.0])), r"index outside of 0..11"),
    (with_features(lambda x: ([0.5], [1.0])), "no pair"),
    (with_features(lambda x: "abc"), "is str, no vector"),
    (with_features(lambda x: sparse.csr_array(x[None])), r"has shape \(1, 3\)"),
    (with_sums(lambda x, true, w: 0.0), "is no pair"),
    (with_sums(lambda x, true, w: (math.inf, x)), "is inf"),
    (with_sums(lambda x, true, w: (5.0, x)), r"the gradient of log_partition of example 0 has shape \(3,\)"),
    (with_sums(lambda x, true, w: (-1.0, np.zeros(12))), "less than the score of y"),
    (with_sums(lambda x, true, w: (true()[0], np.ones(12))), "differences give"),
    (with_sums(lambda x, true, w: true(2 * w)), "differences give"),
    (with_sums(lambda x, true, w: (true()[0] + 1, true()[1])), "the sum over"),
    (lambda: rm.Structured(object()), "object lacks methods: a model needs joint_feature, cost, "),
    (lambda: rm.Structured(Kinds(3, 4)), "Kinds has methods for both losses"),
    (lambda: rm.Structured(Matching(), "log"), "Matching has no method log_partition"),
    (lambda: rm.Structured(Matching(), "hinge"), "'max_margin' or 'log'"),
    *((lambda dim=dim: rm.Structured(Matching(dim)), "dim of Matching is") for dim in (0, None, 2.5, True)),
    (lambda: rm.Structured(Matching()).risk([1, 2, 3], [1, 2]), "3 inputs and 2 outputs"),
    (lambda: matching_objective(n_shards=0), "n_shards=0, but there are 12 examples"),
    (lambda: rm.Structured(Kinds(3, 4), "log").predict([], np.zeros(12)), "no method argmax"),
    (
        lambda: rm.Structured(Matching(form=lambda v: v)).risk(*matchings(), executor=rm.Processes),
        "the model Matching cannot be sent to other processes.*use Threads",
    ),
    (
        lambda: rm.Structured(Matching()).risk([lambda: 0], [0], executor=rm.Processes(n_workers=1)),
        "the first input cannot be sent",
    ),
    (
        lambda: rm.minimize(
            rm.Objective(rm.linear_risk(np.eye(2), [1.0, -1.0], "hinge"), rm.L2(), 0.1), rm.WorkingSet()
        ),
        "caches the outputs it finds.*use Bundle",
    ),
    (lambda: rm.WorkingSet(0), "0 < share < 1"),
]
test_refusals = refusals((WRONG, (ValueError, TypeError)))

"""User-defined structured models: brute force over all outputs, other solvers, checks of wrong models."""

import itertools
import math
import os
import signal

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import linear_sum_assignment

from riskmin import (
    L1,
    L2,
    Auto,
    Bmrm,
    Box,
    Bundle,
    Checkpoint,
    Lbfgs,
    MulticlassHinge,
    Objective,
    Processes,
    Serial,
    Softmax,
    Structured,
    Threads,
    WorkingSet,
    linear_risk,
    minimize,
)
from riskmin.core import UnsupportedProblem


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
        truth = self.joint_feature(x, y)
        value = {
            tuple(o): self.cost(y, o) + self.cost(y, o) ** beta * (w @ (self.joint_feature(x, o) - truth))
            for o in self.outputs(x)
        }
        return np.array(max(value, key=value.get))


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


def brute_force(model, xs, ys, w, c=None, beta=0.0):
    c = np.full(len(xs), 1 / len(xs)) if c is None else c
    worst = []
    for x, y in zip(xs, ys, strict=True):
        outputs = [np.array(o) for o in itertools.permutations(range(len(x)))]
        score = [
            model.cost(y, o)
            + model.cost(y, o) ** beta * (w @ (model.joint_feature(x, o) - model.joint_feature(x, y)))
            for o in outputs
        ]
        worst.append(max(score))
    return float(c @ worst)


# ---------------------------------------------------------------- the risk
@pytest.mark.parametrize("size", [1, 2, 4])
def test_matchings_equal_brute_force(size):
    xs, ys = matchings(6, size)
    weights = np.arange(6.0)
    risk = Structured(Matching()).risk(xs, ys, sample_weight=weights)
    rng = np.random.default_rng(1)
    for _ in range(4):
        w, v = rng.standard_normal((2, 3))
        value, grad = risk(w)
        assert value == pytest.approx(brute_force(Matching(), xs, ys, w, weights / 15), rel=1e-12)
        assert risk(v)[0] >= value + grad @ (v - w) - 1e-12
        restricted, slope = risk.restricted_risk()(v)
        assert value + grad @ (v - w) - 1e-12 <= restricted <= risk(v)[0] + 1e-12
        assert risk(w)[0] >= restricted + slope @ (w - v) - 1e-12


@pytest.mark.parametrize("model", [Rescaled(), OwnSearch()], ids=["of each cost", "own"])
@pytest.mark.parametrize("beta", [0.4, True])
def test_rescaled_margins_equal_brute_force(model, beta):
    xs, ys = matchings(5, 4)
    risk = Structured(model, rescaled=beta).risk(xs, ys)
    rng = np.random.default_rng(1)
    for scale in (0.3, 3.0):
        w, v = scale * rng.standard_normal((2, 3))
        value, grad = risk(w)
        assert value == pytest.approx(brute_force(model, xs, ys, w, beta=float(beta)), rel=1e-12)
        assert risk(v)[0] >= value + grad @ (v - w) - 1e-12
        restricted, slope = risk.restricted_risk()(v)
        assert value + grad @ (v - w) - 1e-12 <= restricted <= risk(v)[0] + 1e-12
        assert risk(w)[0] >= restricted + slope @ (w - v) - 1e-12


@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_rescaled_classes_have_the_optimum_of_the_multiclass_hinge(beta):
    """For costs that depend on the class, by another loss and other solvers."""
    cost = np.array([[0.0, 2, 1, 3], [2, 0, 1, 0.5], [1, 1, 0, 4], [3, 0.5, 4, 0]])

    class Costly(Kinds):
        def cost(self, y, other):
            return cost[y, other]

        def best_of_each_cost(self, x, y, w):
            return self.outputs(x)

    X, y = classes()
    flat = linear_risk(X, np.array(y, float), MulticlassHinge(cost, rescaled=beta))
    expected = minimize(Objective(flat, L2(), 0.05), tol=1e-7)
    result = minimize(Objective(Structured(Costly(3, 4), rescaled=beta).risk(X, y), L2(), 0.05), tol=1e-7)
    assert result.status == "converged"
    assert result.value == pytest.approx(expected.value, rel=2e-7)


def test_rescaled_models_are_checked():
    class Negative(OwnSearch):
        def cost(self, y, other):
            return -super().cost(y, other)

    class Wrong(OwnSearch):
        def rescaled_argmax(self, x, y, w, beta):
            return self.loss_augmented_argmax(x, y, w)

    xs, ys = matchings(4, 4)
    with pytest.raises(
        TypeError, match=r"no method rescaled_argmax: max_margin needs .* or best_of_each_cost"
    ):
        Structured(Matching(), rescaled=0.5)
    with pytest.raises(ValueError, match="rescaled must be False, True or a number from 0 to 1"):
        Structured(OwnSearch(), rescaled=2)
    with pytest.raises(ValueError, match="leave it False with loss='log'"):
        Structured(Kinds(2, 3), loss="log", rescaled=True)
    with pytest.raises(ValueError, match="rescaled by costs >= 0"):
        Structured(Negative(), rescaled=0.5).risk(xs, ys)
    with pytest.raises(ValueError, match=r"rescaled_argmax does not maximize: .* cost \+ cost\^0.5 w @"):
        Structured(Wrong(), rescaled=0.5).risk(xs, ys)
    assert "rescaled=0.5" in repr(Structured(OwnSearch(), rescaled=0.5))


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
    xs, ys = matchings()
    w = np.array([0.3, -0.2, 1.0])
    value, grad = Structured(Matching()).risk(xs, ys)(w)
    other, slope = Structured(Matching(form=form)).risk(xs, ys)(w)
    assert other == value
    np.testing.assert_array_equal(slope, grad)


def test_classes_give_the_multiclass_hinge():
    X, y = classes()
    risk = Structured(Kinds(3, 4), "max_margin").risk(X, y)
    for w in np.random.default_rng(1).standard_normal((5, 12)):
        z = X @ w.reshape(3, 4)
        margins = (np.arange(4) != np.array(y)[:, None]) + z - z[np.arange(40), y][:, None]
        assert risk(w)[0] == pytest.approx(margins.max(axis=1).mean(), rel=1e-13)


def test_sums_over_classes_give_softmax():
    X, y = classes()
    loss = Structured(Kinds(3, 4), "log")
    risk, other = loss.risk(X, y), linear_risk(X, np.array(y, float), Softmax())
    assert loss.smooth
    for w in np.random.default_rng(1).standard_normal((3, 12)):
        value, grad = risk(w)
        assert value == pytest.approx(other(w)[0], rel=1e-12)
        np.testing.assert_allclose(grad, other(w)[1], atol=1e-14)
        d = np.random.default_rng(2).standard_normal(12)
        assert (risk(w + 1e-5 * d)[0] - risk(w - 1e-5 * d)[0]) / 2e-5 == pytest.approx(grad @ d, rel=1e-7)
    result = minimize(Objective(risk, L2(), 0.01), tol=1e-8)
    assert result.status == "converged"
    assert result.solver.startswith("Lbfgs")
    assert result.value == pytest.approx(minimize(Objective(other, L2(), 0.01), tol=1e-8).value, rel=1e-7)


# ---------------------------------------------------------------- minimization
def reference(xs, ys, lam, penalty):
    """The optimum, by a program with all outputs of all examples."""
    import cvxpy as cp  # imported here, since worker processes import this module

    penalty = {"L2": lambda w: cp.sum_squares(w) / 2, "L1": cp.norm1}[penalty]
    w, slack = cp.Variable(3), cp.Variable(len(xs))
    model, constraints = Matching(), [slack >= 0]
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        for o in map(np.array, itertools.permutations(range(len(x)))):
            phi = model.joint_feature(x, o) - model.joint_feature(x, y)
            constraints.append(slack[i] >= model.cost(y, o) + phi @ w)
    return cp.Problem(cp.Minimize(lam * penalty(w) + cp.sum(slack) / len(xs)), constraints).solve(
        solver="CLARABEL"
    )


@pytest.mark.parametrize(("reg", "penalty"), [(L2(), "L2"), pytest.param(L1(), "L1", marks=pytest.mark.slow)])
def test_the_optimum_equals_that_of_the_full_program(reg, penalty):
    xs, ys = matchings(15)
    J = Objective(Structured(Matching()).risk(xs, ys), reg, 0.05)
    expected = reference(xs, ys, 0.05, penalty)
    result = minimize(J, tol=1e-7)
    assert result.status == "converged"
    assert result.solver.startswith("WorkingSet(share=0.1): Structured is not smooth")
    assert result.value == pytest.approx(expected, rel=1e-6)
    assert result.lower <= expected * (1 + 1e-7)


@pytest.mark.exhaustive
@pytest.mark.parametrize("solver", [Bundle(), Bmrm(), WorkingSet(0.5)], ids=repr)
@pytest.mark.parametrize("reg", [L2(), Box(L2(), lower=np.array([0.0, -np.inf, 0.0]))], ids=["L2", "Box"])
def test_all_solvers_agree(solver, reg):
    xs, ys = matchings(40, 5)
    J = Objective(Structured(Matching()).risk(xs, ys), reg, 0.01)
    result, other = minimize(J, solver, tol=1e-6), minimize(J, tol=1e-6)
    assert result.status == other.status == "converged"
    assert result.value == pytest.approx(other.value, rel=3e-6)


def test_iterates_are_valid():
    xs, ys = matchings(30, 4)
    risk = Structured(Matching()).risk(xs, ys)
    J = Objective(risk, L2(), 0.01)
    rng = np.random.default_rng(3)
    for it in itertools.islice(WorkingSet().iterates(J, rng.standard_normal(3)), 6):
        assert it.value == pytest.approx(J.value(it.w), rel=1e-12)
        for v in [*rng.standard_normal((5, 3)), it.w]:
            assert it.cut.a @ v + it.cut.b <= risk(v)[0] + 1e-12


def test_the_working_set_needs_few_calls_of_the_argmax():
    """The measurement of docs/structured.md on a smaller problem: at most a fifth of the calls."""
    xs, ys = matchings(40, 5)
    calls = []
    for solver in (WorkingSet(), Bundle()):
        risk = Structured(Matching()).risk(xs, ys, check=False)
        assert minimize(Objective(risk, L2(), 0.001), solver, tol=1e-3).status == "converged"
        calls.append(risk.call_counts()["argmax"])
    assert calls[0] <= 0.2 * calls[1]


def test_features_of_cached_outputs_are_not_recomputed():
    xs, ys = matchings(10)
    risk = Structured(Matching()).risk(xs, ys, check=False)
    w = np.ones(3)
    first = [risk(w)[0], risk.call_counts()]
    second = [risk(w)[0], risk.call_counts()]
    assert second[0] == first[0]
    assert second[1]["joint_feature"] == first[1]["joint_feature"]
    assert second[1]["argmax"] == first[1]["argmax"] + 10


def test_the_output_cache_is_bounded():
    xs, ys = matchings(12, 4)
    risk = Structured(Matching()).risk(xs, ys, memory=1)
    result = minimize(Objective(risk, L2(), 0.01), tol=1e-3)
    assert result.status == "converged"
    assert risk.call_counts()["kept"] == 12
    assert risk.call_counts()["dropped"] > 0
    unbounded = minimize(Objective(Structured(Matching()).risk(xs, ys), L2(), 0.01), tol=1e-3)
    assert result.value == pytest.approx(unbounded.value, rel=2e-3)


def test_other_risks_have_no_working_set():
    J = Objective(linear_risk(np.eye(2), [1.0, -1.0], "hinge"), L2(), 0.1)
    with pytest.raises(UnsupportedProblem, match=r"caches the outputs it finds.*use Bundle"):
        minimize(J, WorkingSet())
    with pytest.raises(ValueError, match="0 < share < 1"):
        WorkingSet(0)


# ---------------------------------------------------------------- executors
def bits(executor, kind):
    """The bits of two evaluations and of a run."""
    xs, ys = matchings(12) if kind == "max_margin" else classes(12)
    model = Matching() if kind == "max_margin" else Kinds(3, 4)
    risk = Structured(model, kind).risk(xs, ys, executor=executor, n_shards=3)
    values = [risk(w) for w in np.random.default_rng(0).standard_normal((2, model.dim))]
    result = minimize(Objective(risk, L2(), 0.01), tol=1e-6)
    if isinstance(executor, Processes):
        risk.executor.close()
    return [np.hstack(part).tobytes() for part in (*values, (result.w, result.value, result.lower))]


@pytest.mark.parametrize("kind", ["max_margin", "log"])
def test_threads_give_the_same_bits(kind):
    assert bits(Threads(n_workers=2), kind) == bits(Serial, kind)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["max_margin", "log"])
def test_processes_give_the_same_bits(kind):
    assert bits(Processes(n_workers=2), kind) == bits(Serial, kind)


@pytest.mark.exhaustive
def test_a_killed_process_is_reported_and_the_run_resumes(tmp_path):
    xs, ys = matchings(30, 5)
    loss = Structured(Matching())
    risk = loss.risk(xs, ys, executor=Processes(n_workers=2))
    checkpoint = Checkpoint(tmp_path / "run", every=0.0)

    def kill(it, row):
        if row["iteration"] == 4:
            os.kill(risk.executor._workers[0].process.pid, signal.SIGTERM)

    with pytest.raises(RuntimeError, match=r"worker process ended .*checkpoint"):
        minimize(Objective(risk, L2(), 1e-3), tol=1e-8, callback=kill, checkpoint=checkpoint)
    risk.executor.close()
    J = Objective(loss.risk(xs, ys), L2(), 1e-3)
    resumed = minimize(J, tol=1e-8, checkpoint=checkpoint)
    assert resumed.status == "converged"
    assert [row["iteration"] for row in resumed.trace[:4]] == [1, 2, 3, 4]
    assert resumed.value == pytest.approx(minimize(J, tol=1e-8).value, rel=2e-8)


def test_a_run_resumes(tmp_path):
    xs, ys = matchings(30, 4)
    J = Objective(Structured(Matching()).risk(xs, ys), L2(), 1e-3)
    first = minimize(J, tol=1e-6, max_iter=3, checkpoint=tmp_path / "run")
    J = Objective(Structured(Matching()).risk(xs, ys), L2(), 1e-3)
    second = minimize(J, tol=1e-6, checkpoint=tmp_path / "run")
    assert (first.status, second.status) == ("max_iter", "converged")
    assert second.n_iter > 3
    assert second.lower >= first.lower
    other = Objective(Structured(Matching()).risk(xs[1:], ys[1:]), L2(), 1e-3)
    with pytest.raises(Exception, match="other data"):
        minimize(other, tol=1e-6, checkpoint=tmp_path / "run")


def test_models_that_cannot_be_pickled_are_reported():
    model = Matching(form=lambda v: v)
    with pytest.raises(TypeError, match=r"the model Matching cannot be sent to other processes.*use Threads"):
        Structured(model).risk(*matchings(), executor=Processes)
    with pytest.raises(TypeError, match="the first input cannot be sent"):
        Structured(Matching()).risk([lambda: 0], [0], executor=Processes(n_workers=1))


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
        if x[0, 0, 0] > 50 and w @ w > 0:
            return super().loss_augmented_argmax(x, y, -w)
        return super().loss_augmented_argmax(x, y, w)


@pytest.mark.parametrize("model", [Greedy(), Blind()], ids=["greedy", "blind"])
def test_an_argmax_that_does_not_maximize_is_detected(model):
    with pytest.raises(
        ValueError, match=r"loss_augmented_argmax does not maximize: for example \d+ it found"
    ):
        Structured(model).risk(*matchings(20, 5))


def test_a_greedy_argmax_is_detected_by_cached_outputs():
    """Without a list of outputs it is detected during the run: no convergence is claimed."""
    xs, ys = matchings(20, 5)
    greedy = type("Plain", (Greedy,), {"outputs": None})()
    with pytest.raises(ValueError, match="does not maximize"):
        minimize(Objective(Structured(greedy).risk(xs, ys, check=False), L2(), 0.001), tol=1e-6)


def test_a_rare_mistake_is_detected_at_its_example():
    xs, ys = matchings(20, 3)
    xs[17][0, 0, 0] = 60.0
    with pytest.raises(ValueError, match="for example 17 it found"):
        minimize(Objective(Structured(Late()).risk(xs, ys), L2(), 0.01))


def changed(**methods):
    return type("Changed", (Kinds,), methods)(3, 4)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (changed(cost=lambda s, y, o: 1.0), r"cost\(y, y\) of example 0 is 1.0"),
        (changed(cost=lambda s, y, o: math.nan), "cost of example 0 is nan"),
        (changed(cost=lambda s, y, o: "no"), "cost of example 0 is 'no'"),
        (changed(joint_feature=lambda s, x, y: x), r"joint_feature of example 0 has shape \(3,\).*\(12,\)"),
        (changed(joint_feature=lambda s, x, y: np.full(12, np.nan)), "example 0 holds NaN or infinity"),
        (changed(joint_feature=lambda s, x, y: ([12], [1.0])), r"index outside of 0..11"),
        (changed(joint_feature=lambda s, x, y: ([0.5], [1.0])), "no pair"),
        (changed(joint_feature=lambda s, x, y: "abc"), "is str, no vector"),
        (changed(joint_feature=lambda s, x, y: sparse.csr_array(x[None])), r"has shape \(1, 3\)"),
    ],
)
def test_bad_features_and_costs_are_reported(model, message):
    with pytest.raises(ValueError, match=message):
        Structured(model, "max_margin").risk(*classes())


@pytest.mark.parametrize(
    ("sums", "message"),
    [
        (lambda s, x, w: 0.0, "is no pair"),
        (lambda s, x, w: (math.inf, x), "is inf"),
        (lambda s, x, w: (5.0, x), r"the gradient of log_partition of example 0 has shape \(3,\)"),
        (lambda s, x, w: (-1.0, np.zeros(12)), "less than the score of y"),
        (lambda s, x, w: (Kinds.log_partition(s, x, w)[0], np.ones(12)), "differences give"),
        (lambda s, x, w: Kinds.log_partition(s, x, 2 * w), "differences give"),
        (
            lambda s, x, w: (Kinds.log_partition(s, x, w)[0] + 1, Kinds.log_partition(s, x, w)[1]),
            "the sum over",
        ),
    ],
)
def test_bad_log_partitions_are_reported(sums, message):
    with pytest.raises(ValueError, match=message):
        Structured(changed(log_partition=sums), "log").risk(*classes())


def test_incomplete_models_are_reported():
    with pytest.raises(TypeError, match="object lacks methods: a model needs joint_feature, cost, "):
        Structured(object())
    with pytest.raises(TypeError, match="Kinds has methods for both losses"):
        Structured(Kinds(3, 4))
    with pytest.raises(TypeError, match="Matching has no method log_partition"):
        Structured(Matching(), "log")
    with pytest.raises(ValueError, match="'max_margin' or 'log'"):
        Structured(Matching(), "hinge")
    for dim in (0, None, 2.5, True):
        with pytest.raises(ValueError, match="dim of Matching is"):
            Structured(Matching(dim))
    loss = Structured(Matching())
    with pytest.raises(ValueError, match="3 inputs and 2 outputs"):
        loss.risk([1, 2, 3], [1, 2])
    with pytest.raises(ValueError, match=r"n_shards=0, but there are 12 examples"):
        loss.risk(*matchings(), n_shards=0)
    with pytest.raises(TypeError, match="no method argmax"):
        Structured(Kinds(3, 4), "log").predict([], np.zeros(12))


def test_repr_choice_and_prediction():
    assert repr(Structured(Matching())) == "Structured(Matching(dim=3), loss='max_margin')"
    assert (
        Auto().choose(Objective(Structured(Kinds(2, 2), "log").risk([[0.0, 1.0]], [1]), L2(), 1))[0]
        == Lbfgs()
    )
    xs, _ = matchings(3)
    w = np.ones(3)
    np.testing.assert_array_equal(Structured(Matching()).predict(xs, w)[0], Matching().argmax(xs[0], w))

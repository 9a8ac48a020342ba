"""User-defined objects: matrices that compute features, kernels of strings, minimal regularizers."""

import runpy
from pathlib import Path

import numpy as np
import pytest

import riskmin as rm
from helpers import Ridge, problem, refusals
from riskmin.core import UnsupportedProblem
from riskmin.core.interfaces import LinearMap

rng = np.random.default_rng(3)
X, Y, _ = problem(rm.Hinge(), 60, 3)


# ---------------------------------------------------------------- matrices
class Squares:
    """The columns of X and their squares, computed on demand."""

    block_rows = 7

    def __init__(self, X):
        self.X, self.shape = X, (len(X), 2 * X.shape[1])

    def features(self, start, stop):
        return np.hstack([self.X[start:stop], self.X[start:stop] ** 2])

    def scores(self, w, start, stop):
        return self.features(start, stop) @ w

    def pullback(self, dz, start, stop, out):
        out += self.features(start, stop).T @ dz


@pytest.mark.parametrize(
    ("loss", "intercept"),
    [("hinge", True), ("logistic", False), ("roc_area", False), ("squared", True), ("softmax", True)],
)
def test_a_user_matrix_gives_the_risk_of_its_rows(loss, intercept):
    matrix = Squares(X)
    y = np.where(Y > 0, 1.0, 0.0) if loss == "softmax" else Y
    computed, stored = (
        rm.Objective(rm.linear_risk(A, y, loss, fit_intercept=intercept), rm.L2(), 0.1)
        for A in (matrix, matrix.features(0, 60))
    )
    w = rng.standard_normal(stored.risk.dim)
    assert computed.value(w) == pytest.approx(stored.value(w), rel=1e-12)
    result = rm.minimize(computed, tol=1e-5)
    assert result.status == "converged"
    assert result.lower <= rm.minimize(stored, tol=1e-6).value + 1e-12


def test_features_of_strings_that_are_computed_on_the_fly():
    """The matrix of an example: its products are those of the stored features, theirs are the kernel."""
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "dna_strings.py"))
    letters, y = example["drawn"](120, length=20, rare=0.3)
    matrix = example["WeightedDegree"](letters, 3)
    stored = matrix.stored()
    w, dz, out = rng.standard_normal(matrix.shape[1]), rng.standard_normal(7), np.ones(matrix.shape[1])
    dz[::3] = 0
    np.testing.assert_allclose(matrix.scores(w, 5, 40), (stored @ w)[5:40], rtol=1e-12)
    matrix.pullback(dz, 11, 18, out)
    np.testing.assert_allclose(out, 1 + stored[11:18].T @ dz, rtol=1e-12, atol=1e-14)
    # the kernel: weights of the orders times the numbers of substrings at the same positions
    for i, j in ((0, 0), (0, 1), (3, 7)):
        same = letters[i] == letters[j]
        runs = [np.sum(np.all([same[k : 20 - d + 1 + k] for k in range(d)], axis=0)) for d in (1, 2, 3)]
        product = (stored[[i]] @ stored[[j]].T).toarray()[0, 0]
        assert product == pytest.approx(np.array([3, 2, 1]) @ runs / 120)
    risk = rm.linear_risk(matrix, y, "roc_area", n_shards=3)
    assert rm.minimize(rm.Objective(risk, rm.L2(), 1e-2), tol=1e-4).status == "converged"


def broken(**changes):
    matrix = Squares(X)
    for name, value in changes.items():
        setattr(matrix, name, value)
    return matrix


WRONG_MATRICES = [
    (broken(shape=(60,)), r"Squares.shape is \(60,\)"),
    (broken(block_rows=0), "block_rows is 0"),
    (broken(scores=lambda w, i, j: np.zeros(3)), "one score per row"),
    (broken(pullback=lambda dz, i, j, out: out.fill(np.nan)), "NaN or infinity"),
    # returns what it should add
    (broken(pullback=lambda dz, i, j, out: Squares(X).features(i, j).T @ dz), "let it add"),
    (broken(pullback=lambda dz, i, j, out: np.copyto(out, Squares(X).features(i, j).T @ dz)), "let it add"),
    (broken(pullback=lambda dz, i, j, out: Squares(X).pullback(dz, 0, j - i, out)), "let it add"),
    (broken(pullback=lambda dz, i, j, out: Squares(X).pullback(0.99 * dz, i, j, out)), "let it add"),
    (broken(scores=lambda w, i, j: rng.standard_normal(j - i)), "make it repeatable"),
]


# ---------------------------------------------------------------- kernels
WORDS = np.array([f"{'ab' if y > 0 else 'cd'}{k % 7}" for k, y in enumerate(Y)])


def n_shared_letters(A, B):
    """The number of letters that two words share, which is an inner product."""
    letters = "abcd0123456"
    a, b = (np.array([[c in word for c in letters] for word in np.ravel(words)], float) for words in (A, B))
    return a @ b.T


@pytest.mark.parametrize("words", [WORDS, WORDS.tolist(), WORDS[:, None], WORDS.astype(object)])
def test_kernel_machines_accept_strings(words):
    model = rm.KernelClassifier("hinge", kernel=n_shared_letters, alpha=0.01).fit(words, Y)
    assert model.score(words, Y) == 1.0
    risk, reg = rm.kernel_risk(WORDS, Y, "hinge", n_shared_letters, fit_intercept=True)
    best = rm.minimize(rm.Objective(risk, reg, lam=0.01))
    assert model.lower_bound_ <= best.value
    assert best.lower <= model.objective_
    regressor = rm.KernelRegressor("squared", kernel=n_shared_letters, alpha=1e-3).fit(words, Y)
    assert regressor.predict(words[:5]).shape == (5,)


# ---------------------------------------------------------------- regularizers
class WrongConjugate(Ridge):
    """Bounds are made of the conjugate: one that is too small would prove too much."""

    def conjugate(self, u):
        return 0.9 * super().conjugate(u)


# ---------------------------------------------------------------- linear maps
class TwoOutputs(LinearMap):
    """The scores of two outputs, whose weights are side by side; optionally with a wrong adjoint."""

    columns = 2

    def __init__(self, factor):
        self.factor = factor

    def dim(self, n_features):
        return 2 * n_features

    def scores(self, X, w, start, stop):
        return X.scores(w.reshape(-1, 2), start, stop)

    def pullback(self, X, dz, start, stop, out):
        X.pullback(self.factor * dz, start, stop, out.reshape(-1, 2))


class MappedSoftmax(rm.Softmax):
    """A loss that makes a linear map of its own."""

    factor = 1.0

    def linear_map(self, y, n_outputs):
        return TwoOutputs(self.factor)


class HalvedSoftmax(MappedSoftmax):
    factor = 0.5


def with_conjugate(intercept):
    return lambda: rm.minimize(
        rm.Objective(rm.linear_risk(X, Y, "hinge", fit_intercept=intercept), WrongConjugate(), 0.1)
    )


WRONG = [
    *((lambda matrix=matrix: rm.linear_risk(matrix, Y, "hinge"), words) for matrix, words in WRONG_MATRICES),
    (
        lambda: rm.minimize(rm.Objective(rm.linear_risk(Squares(X), Y, "hinge"), rm.L2(), 0.01), "dual"),
        "rows are all in this process",
    ),
    (lambda: rm.KernelClassifier().fit(WORDS[:, None], Y), "column 0 of X holds text"),
    (
        lambda: (
            rm.KernelClassifier(kernel=n_shared_letters)
            .fit(WORDS[:, None], Y)
            .predict(np.column_stack([WORDS, WORDS]))
        ),
        "X has 2 columns",
    ),
    (lambda: rm.KernelClassifier(kernel=n_shared_letters).fit(WORDS[:5], Y), "inconsistent"),
    (with_conjugate(False), r"WrongConjugate\.conjugate does not fit WrongConjugate\.value"),
    (with_conjugate(True), r"WrongConjugate\.conjugate does not fit WrongConjugate\.value"),
    (
        lambda: rm.linear_risk(X, np.where(Y > 0, 1.0, 0.0), HalvedSoftmax()),
        r"TwoOutputs\.pullback does not fit TwoOutputs\.scores",
    ),
]
test_refusals = refusals((WRONG, (ValueError, UnsupportedProblem)))


def test_an_own_linear_map_is_used():
    assert rm.linear_risk(X, np.where(Y > 0, 1.0, 0.0), MappedSoftmax()).dim == 6


# ---------------------------------------------------------------- risks
class Distance:
    """The mean distance of w to a few points, without any base class."""

    dim = 3

    def __call__(self, w):
        rows = w - X
        lengths = np.sqrt((rows**2).sum(1))
        return float(lengths.mean()), (rows / np.maximum(lengths, 1e-300)[:, None]).mean(0)


class DistanceWithCut(Distance):
    """The same risk, which returns a cut that is lower than its tangent."""

    def __call__(self, w):
        value, grad = super().__call__(w)
        return value, grad, rm.Cut(grad, value - float(grad @ w) - 1e-9)


@pytest.mark.parametrize("solver", [rm.Bundle(), None], ids=repr)
def test_a_plain_risk_is_adapted(solver):
    own = Distance()
    objective = rm.Objective(own, rm.L2(), 0.1)
    assert repr(objective.risk) == repr(own)
    value, gradient, cut = objective.risk.evaluate(np.ones(3))
    assert (value, gradient.tolist()) == (own(np.ones(3))[0], own(np.ones(3))[1].tolist())
    assert 0 < value - (cut.a @ np.ones(3) + cut.b) < 1e-12
    assert rm.minimize(objective, solver, tol=1e-6).status == "converged"


def test_a_plain_risk_may_return_its_cut():
    objective = rm.Objective(DistanceWithCut(), rm.L2(), 0.1)
    evaluation = objective(np.ones(3))
    assert evaluation.cut.b == DistanceWithCut()(np.ones(3))[2].b
    result = rm.minimize(objective, tol=1e-6)
    assert result.status == "converged"
    assert result.value == pytest.approx(
        rm.minimize(rm.Objective(Distance(), rm.L2(), 0.1), tol=1e-6).value, rel=2e-6
    )

"""One small problem per family of kernels: `make boundscheck` runs them with every index checked.

Compiled code does not check array bounds. Each module of kernels runs on unusual shapes (one row, one column,
empty rows, blocks that do not divide the rows), so that an index out of bounds
raises IndexError under NUMBA_BOUNDSCHECK=1.
"""

import importlib
import io
import os
import pkgutil

import numpy as np
import pytest
import scipy.sparse as sp

import riskmin
import riskmin._numba
from riskmin import L1, L2, Elastic, Objective, linear_risk, minimize
from riskmin.arrays.matrix import as_matrix
from riskmin.data import load_svmlight
from riskmin.estimators.tagger.seen_pairs import with_seen_pairs
from riskmin.numerics.simplex import project_onto_simplex
from riskmin.numerics.sorting import ranks_in_sorted, stable_argsort
from riskmin.problem.kernel.rkhs import kernel_risk

rng = np.random.default_rng(11)
N, P = 37, 5
X = np.where(rng.random((N, P)) < 0.5, rng.standard_normal((N, P)), 0.0)
X[3] = 0.0
Y = np.where(X[:, 0] + 0.3 * rng.standard_normal(N) > 0, 1.0, -1.0)
GRADES = (np.arange(N) % 3).astype(float)
QID = np.arange(N) // 7
WITHOUT_KERNELS = {
    *("compile_cache", "prefetch", "exponential", "active_sequences", "conjugate_loops", "svmlight_codes"),
    *("slots", "items", "row_vectors", "pair_products", "tables"),
}
"""Modules without kernels, or whose kernels are part of others: inlined, or in loops that threads share, and
that another process may have compiled and stored."""


def solve(risk, reg=None, solver=None, lam=0.01):
    result = minimize(Objective(risk, reg or L2(), lam), solver, max_iter=20)
    assert result.lower <= result.value


def matrices():
    for A in (X, np.asfortranarray(X), sp.csr_array(X), sp.csc_array(X), sp.csr_array(X[:1]), X[:1, :1]):
        matrix = as_matrix(A)
        n, p = matrix.shape
        for w in (np.ones(p), np.ones((p, 3))):
            z = matrix.scores(w, 0, n)
            if not sp.issparse(A) or A.format == "csr" or w.ndim == 1:
                matrix.pullback(z, 0, n, np.zeros(w.shape))
        matrix.hessian_product(np.ones(p), np.ones(n))


def margins():
    for A in (X, sp.csr_array(X)):
        for loss in ("hinge", "squared_hinge", "logistic"):
            solve(linear_risk(A, Y, loss, fit_intercept=True))


def duals():
    for loss in ("hinge", "logistic", "squared"):
        for A in (X, sp.csr_array(X)):
            solve(linear_risk(A, Y, loss), solver="dual")
    for reg in (L2(), Elastic(), riskmin.Entropy()):
        solve(linear_risk(sp.csr_array(X), Y, "logistic"), reg, riskmin.DualGaussSeidel())
    for A in (X, sp.csr_array(X), X[:1, :1]):
        solve(linear_risk(A, Y[: A.shape[0]], "squared"), solver="dual_conjugate_gradient")


def columns():
    # columns of a wide CSR matrix are copied, few ones are not
    wide = sp.csr_array(np.where(rng.random((N, 90)) < 0.2, rng.standard_normal((N, 90)), 0.0))
    for A in (X, sp.csr_array(X), sp.csc_array(X), wide):
        for loss in ("squared", "logistic", "squared_hinge"):
            solve(linear_risk(A, Y, loss, fit_intercept=True), L1(), "coordinate_descent")
    for A in (X, X[:1, :1]):
        for reg in (L1(), L2(), Elastic()):
            riskmin.path(linear_risk(A, Y[: len(A)], "squared", fit_intercept=True), reg, [1.0, 1e-3, 1e-6])


def classes():
    for A in (X, sp.csr_array(X)):
        for loss in ("multiclass_hinge", "softmax"):
            solve(linear_risk(A, GRADES, loss))
        solve(linear_risk(A, GRADES, "multiclass_hinge"), solver="dual")
        solve(linear_risk(A, GRADES, "multiclass_hinge", fit_intercept=True), solver="newton")


def nondecomposable():
    for loss in ("roc_area", "f1", "prbep", "ordinal"):
        solve(linear_risk(X, GRADES if loss == "ordinal" else Y, loss))
    for loss in ("ndcg", "pairwise_hinge", "expected_rank_utility", "mrr"):
        y = (np.arange(N) % 7 == 2).astype(float) if loss == "mrr" else GRADES
        solve(linear_risk(X, y, loss, qid=QID))
    relevant = (np.arange(N) % 7 == 2).astype(float)
    solve(linear_risk(X, relevant, riskmin.Mrr(weights=0.5), qid=QID))
    solve(linear_risk(X, GRADES, riskmin.Ndcg(k=3, weights=riskmin.PositionWeights(k=5)), qid=QID))
    for loss in (riskmin.Mrr(), riskmin.Ndcg(k=3, weights="discount")):
        y = relevant if isinstance(loss, riskmin.Mrr) else GRADES
        solve(linear_risk(X, y, loss, qid=QID), solver="smoothing")


def chains():
    lengths = [1, 6, 10, 20]
    for loss in ("chain_crf", "chain_max_margin"):
        solve(linear_risk(X, GRADES, loss, lengths=lengths))
    for loss in ("chain_max_margin", "chain_max_margin:rescaled=0.5"):
        solve(linear_risk(X, GRADES, loss, lengths=lengths), solver="chain_ascent")
    solve(with_seen_pairs(linear_risk(sp.csr_array(X), GRADES, "chain_crf", lengths=lengths)))
    tokens = [[("a", "b"), ("c", "d")], [("e", "f")], [("a", "f"), ("c", "b"), ("e", "d")]]
    labels = [["B-x", "I-x"], ["O"], ["O", "B-x", "I-x"]]
    model = riskmin.ChainTagger("crf", template="window", constraints="bio", max_iter=200)
    model.fit(tokens, labels)
    model.predict(tokens), model.predict_marginals(tokens)


def feature_spaces():
    for loss in ("hinge", "logistic", "squared"):
        risk, reg = kernel_risk(X, Y, loss, "rbf", fit_intercept=True)
        solve(risk, reg)
    riskmin.KernelClassifier("hinge", max_iter=20, tol=0.5).fit(sp.csr_array(X), Y).predict(X)


def projections():
    for shape in ((5, 4), (1, 1)):
        project_onto_simplex(rng.standard_normal(shape))
    from riskmin.numerics.projections import project

    ones = np.ones(9)
    project(rng.standard_normal(9), ones, -ones, ones, total=1.0)
    solve(linear_risk(X, Y, "hinge", fit_intercept=True), solver="dual_accelerated")


def sorting():
    z = rng.standard_normal(5000).round(2)
    order = stable_argsort(z)
    np.testing.assert_array_equal(order, np.argsort(z, kind="stable"))
    for side in ("left", "right"):
        np.testing.assert_array_equal(
            ranks_in_sorted(z[order], z[order], side), np.searchsorted(z[order], z[order], side)
        )


def subsets():
    for loss in ("precision_at_k", "recall_at_k", "f1"):
        solve(linear_risk(X, Y, loss), solver="smoothing")


def text():
    # short files are parsed without compiled code
    rows = (b"1 1:1", b"1 1:2.5e-7 9:1e300 # x\n\n-1 qid:3 2:0.1"[:24], b"1 3:123456789012345678901234567890")
    for row in rows:
        load_svmlight(io.BytesIO(b"\n".join([row] * 20_000) + b"\n"))


def large_problems():
    """Losses compiled from their array code, loops that threads share, and sums over ranges of rows."""
    n, p = 2**18 + 3, 17
    A = np.where(rng.random((n, p)) < 0.9, rng.standard_normal((n, p)), 0.0)
    y = np.where(A[:, 0] > 0, 1.0, -1.0)
    for B in (A, np.asfortranarray(A), sp.csr_array(A)):
        for threads in ({}, {"executor": riskmin.Threads(n_workers=3), "n_shards": 5}):
            for loss, solver in (("huber", "lbfgs"), ("hinge", "bundle"), ("logistic", "newton")):
                risk = linear_risk(B, y, loss, fit_intercept=bool(threads), **threads)
                minimize(Objective(risk, L2(), 0.01), solver, max_iter=3)
        minimize(Objective(linear_risk(B, y, "hinge", **threads), L2(), 0.01), "dual", max_iter=3)
    wide = sp.random_array((200, 2**18), density=1e-3, format="csr", rng=rng)
    signs = np.where(np.arange(200) % 2, 1.0, -1.0)
    minimize(Objective(linear_risk(wide, signs, "logistic"), L2(), 0.01), "lbfgs", max_iter=5)


checks_bounds = pytest.mark.skipif(
    not os.environ.get("NUMBA_BOUNDSCHECK"), reason="only make boundscheck checks bounds"
)
FAMILIES = [
    *(large_problems, matrices, margins, duals, columns, classes, nondecomposable, chains),
    *(feature_spaces, projections, sorting, subsets, text),
]


@checks_bounds
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_a_family_of_kernels(family):
    family()


@checks_bounds
def test_bounds_are_checked():
    from riskmin._numba import products

    A = as_matrix(sp.csr_array(X))
    with pytest.raises(IndexError):
        products.csr_scores(A.indptr, A.indices, A.data, np.ones(2), 0, N, np.empty(N))


def compiled(module):
    """The kernels defined in a module, by name."""
    dispatchers = {name: kernel for name, kernel in vars(module).items() if hasattr(kernel, "signatures")}
    return {
        name: kernel for name, kernel in dispatchers.items() if kernel.py_func.__module__ == module.__name__
    }


@checks_bounds
def test_every_module_of_kernels_has_run():
    for family in FAMILIES:
        family()
    idle = []
    for info in pkgutil.walk_packages(riskmin._numba.__path__, "riskmin._numba."):
        kernels = compiled(importlib.import_module(info.name))
        compiled_names = {name for name, kernel in kernels.items() if kernel.signatures}
        without_kernels = info.ispkg or info.name.rpartition(".")[2] in WITHOUT_KERNELS
        if not without_kernels and not compiled_names:
            idle.append((info.name, sorted(kernels)))
    assert not idle

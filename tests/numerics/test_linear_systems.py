"""Linear systems of semidefinite matrices: solved up to rounding, never without a descent direction."""

import math

import numpy as np
import pytest
import scipy.sparse as sp

from riskmin.core.deadline import OutOfTime, TimeLimit
from riskmin.numerics.linear_systems import cg, rows_system, shifted_cholesky

UNITS = np.array([1e-6, 1.0, 1e10, 1e3, 1e-3, 1.0, 7.0, 1e5])


def definite(seed, n=8, condition=10.0, units=1.0):
    """A positive definite matrix with eigenvalues from 1 / condition to 1, in units of its columns."""
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.standard_normal((n, n)))[0]
    A = (Q * np.geomspace(1 / condition, 1.0, n)) @ Q.T
    return (A + A.T) / 2 * (units * np.ones(n)) * (units * np.ones(n))[:, None], rng.standard_normal(n)


def small_residual(share, b):
    return lambda at: float(np.linalg.norm(at.residual)) <= share * float(np.linalg.norm(b))


STIFF, B = definite(2, condition=1e6), definite(0)[1]
DIAGONAL = np.arange(1.0, 9.0)


# ---------------------------------------------------------------- conjugate gradients
SINGLE = tuple(a.astype(np.float32) for a in definite(9))
COLUMNS = definite(8)[0], np.random.default_rng(0).standard_normal((8, 3))
# the system, the settings, the relative error of the solution, and the largest number of steps
SOLVED = {
    **{f"as many steps as dimensions, {k}": (definite(k), {"max_steps": 8}, 1e-9, 8) for k in range(3)},
    "only rounding ends the run": (definite(0, condition=1e3), {}, 1e-11, 300),
    "a diagonal as a preconditioner": (definite(0), {"precondition": lambda r: r / DIAGONAL}, 1e-11, 300),
    "a factorization as a preconditioner": (
        STIFF,
        {"precondition": shifted_cholesky(STIFF[0]), "stop": small_residual(1e-6, STIFF[1])},
        1e-6,
        1,
    ),
    "several columns": (COLUMNS, {"stop": small_residual(1e-12, COLUMNS[1])}, 1e-9, 30),
    "single precision": (SINGLE, {"stop": small_residual(1e-5, SINGLE[1]), "max_steps": 50}, 1e-3, 49),
    "no right-hand side": ((np.eye(3), np.zeros(3)), {}, 0.0, 0),
}


@pytest.mark.parametrize("name", SOLVED)
def test_conjugate_gradients_solve_a_system(name):
    (A, b), settings, rtol, most = SOLVED[name]
    before = A.copy(), b.copy()
    at = cg(lambda d: A @ d, b, **settings)
    np.testing.assert_allclose(at.x, np.linalg.solve(A, b), rtol=rtol)
    if settings == {"max_steps": 8}:
        np.testing.assert_allclose(at.residual, b - A @ at.x, atol=1e-12)
    assert at.steps <= most
    assert at.done == (settings != {"max_steps": 8})
    assert at.x.dtype == b.dtype
    assert np.array_equal(A, before[0])
    assert np.array_equal(b, before[1])


def test_columns_of_any_unit_are_solved_with_their_diagonal_as_a_preconditioner():
    A, b = definite(1, condition=100.0, units=UNITS)
    diagonal = A.diagonal().copy()
    at = cg(lambda d: A @ d, UNITS * b, lambda r: r / diagonal, lambda at: at.square <= 1e-24 * (b @ b))
    np.testing.assert_allclose(UNITS * at.x, np.linalg.solve(A / UNITS / UNITS[:, None], b), rtol=1e-8)
    assert at.steps <= 12


def test_a_singular_system_has_the_solution_of_least_norm():
    rng = np.random.default_rng(0)
    B = rng.standard_normal((4, 8))
    A, b = B.T @ B, B.T @ rng.standard_normal(4)
    at = cg(lambda d: A @ d, b, stop=small_residual(1e-11, b), max_steps=20)
    assert at.done
    np.testing.assert_allclose(at.x, np.linalg.pinv(A) @ b, atol=1e-9)


def test_directions_without_positive_curvature_are_not_taken():
    """An indefinite matrix: the steps before are descent directions, and x stays finite."""
    A, b = np.diag([2.0, 1.0, -1.0]), np.array([1.0, 1.0, 1e-3])
    at = cg(lambda d: A @ d, b, max_steps=50)
    assert at.done
    assert at.steps >= 1
    assert b @ at.x > 0
    assert at.x @ A @ at.x / 2 - b @ at.x < 0


@pytest.mark.parametrize(
    ("product", "b"),
    [
        (lambda d: -d, np.ones(3)),
        *((lambda d: d.copy(), np.array([1.0, bad])) for bad in (np.nan, np.inf)),
        *((lambda d, bad=bad: np.array([bad, 1.0]), np.ones(2)) for bad in (np.nan, np.inf)),
    ],
)
def test_no_curvature_and_numbers_that_are_not_finite_end_the_run_at_zero(product, b):
    at = cg(product, b)
    assert at.done
    assert not at.x.any()


def test_every_stop_has_a_descent_direction_and_the_stated_decrease():
    A, b = definite(3, condition=100.0)
    for n in range(1, 8):
        at = cg(lambda d: A @ d, b, max_steps=n)
        assert at.steps == n
        assert b @ at.x > 0
        assert at.decrease == pytest.approx(b @ at.x - at.x @ A @ at.x / 2, rel=1e-10)
        assert at.decrease == pytest.approx(b @ at.x / 2, rel=1e-10)


def test_a_preconditioner_is_called_once_per_step():
    """And once more for a rule that reads the preconditioned residual."""
    (A, b), calls = definite(4), []

    def precondition(r):
        calls.append(0)
        return r / DIAGONAL

    for stop, most in ((lambda at: at.steps == 3, 3), (lambda at: at.square < 0 or at.steps == 3, 4)):
        calls.clear()
        at = cg(lambda d: A @ d, b, precondition, stop)
        assert (at.done, at.steps, len(calls)) == (True, 3, most)
        assert at.square == pytest.approx(at.residual @ (at.residual / DIAGONAL))


def test_a_time_limit_ends_a_run():
    with pytest.raises(OutOfTime):
        TimeLimit(0.0).call(cg, lambda d: d.copy(), np.ones(4))


# ---------------------------------------------------------------- factorizations
LOWER_WRONG = np.triu(definite(0)[0]) + np.tril(np.full((8, 8), 7.0), -1)
PENALTY = np.geomspace(1e-3, 1e3, 8)
ZERO_COLUMN = np.pad(definite(0)[0], (0, 1))
# the matrix, the penalty, the right-hand side, the whole system, and the relative error of the solution
FACTORED = {
    **{
        f"condition {k:g}": (G := definite(0, condition=k)[0], 0.0, B, G, 1e-13 * k + 1e-12)
        for k in (1.0, 1e4, 1e10)
    },
    "only the upper triangle counts": (LOWER_WRONG, 0.5, B, definite(0)[0] + 0.5 * np.eye(8), 1e-7),
    "in columns": (np.asfortranarray(LOWER_WRONG), 0.0, B, definite(0)[0], 1e-11),
    "a penalty per column": (definite(1)[0], PENALTY, B, definite(1)[0] + np.diag(PENALTY), 1e-10),
    "several columns": (definite(1)[0], PENALTY, COLUMNS[1], definite(1)[0] + np.diag(PENALTY), 1e-10),
    "a column of zeros": (
        ZERO_COLUMN, 0.0, np.append(B, 0.0), ZERO_COLUMN + np.diag([0.0] * 8 + [1.0]), 1e-11
    ),
    "single precision": (SINGLE[0], 0.0, B, definite(9)[0], 1e-5),
    "only zeros": (np.zeros((3, 3)), 0.0, np.zeros(3), np.eye(3), 0.0),
}  # fmt: skip


@pytest.mark.parametrize("name", FACTORED)
def test_a_factorization_solves_like_numpy(name):
    G, penalty, b, whole, rtol = FACTORED[name]
    before, x = G.copy(), shifted_cholesky(G, penalty)(b)
    np.testing.assert_allclose(x, np.linalg.solve(whole, b), rtol=rtol)
    assert x.dtype == np.float64
    assert np.array_equal(G, before)


@pytest.mark.parametrize("copies", [1, 7])
def test_copies_of_columns_still_give_a_descent_direction(copies):
    """A singular matrix, in columns of units from 1e-6 to 1e10: the gradient is in its range."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20, 8))
    X[:, :copies] = X[:, 7:]
    X *= UNITS
    G, g = X.T @ X, X.T @ rng.standard_normal(20)
    x = shifted_cholesky(G)(g)
    assert g @ x > 0
    # in each unit, the equations hold: columns of a small unit are not lost beside the large ones
    np.testing.assert_allclose((G @ x - g) / UNITS, 0.0, atol=1e-7)


def test_an_indefinite_matrix_gives_a_descent_direction():
    A, b = np.array([[1.0, 2.0], [2.0, 1.0]]), np.array([1.0, -1.0])
    x = shifted_cholesky(A)(b)
    assert np.isfinite(x).all()
    assert b @ x > 0


def test_terms_that_cancel_are_shifted_by_their_sizes():
    """Of a constant column less its mean, rounding is left: other columns must not be shifted for it."""
    rng = np.random.default_rng(1)
    X = np.column_stack([rng.standard_normal((50, 3)), 1e6 * np.ones(50) / 3])
    m = X.sum(axis=0) / math.sqrt(50)
    G, g = X.T @ X, rng.standard_normal(4) * [1, 1, 1, 0]
    sizes = G.diagonal().copy()
    G -= np.outer(m, m)
    G[3] += [0, 0, 0, -1e-6]
    x = shifted_cholesky(G, 1e-12, sizes)(g)
    centered = X[:, :3] - X[:, :3].mean(axis=0)
    np.testing.assert_allclose(x[:3], np.linalg.solve(centered.T @ centered, g[:3]), rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_matrix_that_is_not_finite_is_replaced_by_its_diagonal(bad):
    G = np.diag([2.0, 4.0, 5.0])
    G[0, 2] = G[2, 0] = bad
    x = shifted_cholesky(G)(np.ones(3))
    np.testing.assert_allclose(x, [0.5, 0.25, 0.2])
    G[2, 2] = bad
    assert shifted_cholesky(G)(np.ones(3)).tolist() == [0.5, 0.25, 0.0]


# ---------------------------------------------------------------- systems of the rows
@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("known", [False, True], ids=["", "products"])
@pytest.mark.parametrize(("intercept", "size"), [(True, 0), (True, 8), (False, 8)])
def test_a_system_of_rows_solves_the_three_equations(kind, known, intercept, size):
    """Penalties of columns in units from 1e-8 to 1e8 differ by 1e32."""
    rng = np.random.default_rng(0)
    units = np.logspace(-size, size, 30)
    X = rng.standard_normal((5, 30)) * (rng.random((5, 30)) < 0.7) * units
    K, L = rng.uniform(0.1, 2.0, 30) * units**2, np.geomspace(1e-6, 1e6, 5)
    products = (X / K) @ X.T if known else None
    r, s, t = rng.standard_normal(30) * units, rng.standard_normal(5), 0.7
    w, a, b = rows_system(kind(X), K, L, intercept=intercept, products=products)(r, s, t)
    np.testing.assert_allclose((K * w + X.T @ a) / units, r / units, atol=1e-9)
    np.testing.assert_allclose(L * a - X @ w - b, s, atol=1e-9)
    assert a.sum() == pytest.approx(t) if intercept else b == 0.0


def test_equal_rows_make_no_singular_system():
    X = np.ones((6, 10))
    w, _, b = rows_system(X, np.ones(10), np.full(6, 1e-14), intercept=True)(np.ones(10), np.zeros(6), 0.0)
    assert np.isfinite(w).all()
    assert math.isfinite(b)
    # multipliers of sum 0 leave equal rows without effect
    np.testing.assert_allclose(w, 1.0, rtol=1e-6)

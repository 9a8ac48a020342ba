"""Checks of the contract of executors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from riskmin.arrays.matrix import as_matrix
from riskmin.core import Array, NDArray, Shard
from riskmin.driver.loop import minimize
from riskmin.executors import Backend, Executor, as_backend
from riskmin.executors.base import SerialExecutor
from riskmin.linear_maps.linear import MultiOutput, SingleOutput, WithIntercept
from riskmin.losses import Hinge, Logistic, Softmax
from riskmin.problem.linear_risk import linear_risk, make_shards
from riskmin.problem.objective import Objective
from riskmin.problem.risk import Risk, with_intercept
from riskmin.regularizers import L1, L2
from riskmin.solvers import get_solver
from riskmin.testing.base import require


def _n_rows_and_text(shard: Shard, text: str) -> tuple[int, str]:
    return shard.X.shape[0], text


def _weight_sum_and_scaled(shard: Shard, k: float, each: NDArray) -> tuple[float, NDArray]:
    return float(shard.c.sum()), k * each


def _are_aligned(shard: Shard, each: NDArray) -> bool:
    """Whether arrays begin at a multiple of their item size: other loops add up those that do not."""
    return bool(shard.c.flags.aligned and each.flags.aligned)


def _add_to_cache(shard: Shard, k: int) -> None:
    shard.cache["k"] = k + shard.cache.get("k", 0)


def _read_cache(shard: Shard) -> int:
    return int(shard.cache["k"])


def _raise_for_size(shard: Shard, n_rows: int) -> None:
    if shard.X.shape[0] == n_rows:
        raise ZeroDivisionError("on purpose")


def check_executor(executor: Any, *, seed: int = 0) -> None:
    """Check that an executor keeps its shards in order and reproduces the results of `Serial` bit for bit.

    One with ``is_local = True`` must compute on the given shards in this process; solvers that visit rows and
    columns are run with it.

    Parameters
    ----------
    executor : Backend
        As for `linear_risk`: a backend such as ``Threads(n_workers=2)``, or a class of executors.
    seed : int
        The seed of the random data.

    Raises
    ------
    AssertionError
        Names the property that fails.

    Examples
    --------
    >>> from riskmin import Threads
    >>> check_executor(Threads(n_workers=2))
    """
    backend = as_backend(executor)
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((53, 7)), np.where(rng.random(53) < 0.5, 1.0, -1.0)
    c = rng.random(53)
    c /= c.sum()
    sparse = sp.csr_array(np.where(rng.random(X.shape) < 0.3, X, 0.0))
    # C-order float64, Fortran-order float32, CSR, CSC
    for data in (X, np.asfortranarray(X, dtype=np.float32), sparse, sparse.tocsc()):
        shards = make_shards(as_matrix(data), y, c, 5)
        tested = backend.place(shards)
        _check_calls(tested, shards)
        _check_location(tested, shards, backend)
        _check_single_output(tested, shards, rng)
    classes = make_shards(as_matrix(X), np.arange(53.0) % 3, c, 5)
    _check_multi_output(backend.place(classes), classes, rng)
    if backend.is_local:
        _check_solvers(backend, X, y)


def _check_calls(tested: Executor, shards: Sequence[Shard]) -> None:
    """Check order, arguments, shard caches and errors of `map` and `sum`."""
    rows = [s.X.shape[0] for s in shards]
    results = tested.map(_n_rows_and_text, "hello")
    in_order = [tuple(r) for r in results] == [(n, "hello") for n in rows]
    require(in_order, tested, f"map is out of order: {results}")
    for size in (1, 30_000):
        each = [np.arange(size) + 0.1 * k for k in range(len(shards))]
        # sums in shard order: any other order would change the last bits
        expected = SerialExecutor(shards).sum(_weight_sum_and_scaled, 1 / 3, each=each)
        actual = tested.sum(_weight_sum_and_scaled, 1 / 3, each=each)
        same = actual[0] == expected[0] and np.array_equal(actual[1], expected[1])
        require(same, tested, f"the sum of arrays of length {size} is not that of Serial, bit for bit")
        aligned = all(tested.map(_are_aligned, each=each))
        require(aligned, tested, "an array is not aligned where it arrives")
    for _ in range(2):
        tested.map(_add_to_cache, 1)
    require(set(tested.map(_read_cache)) == {2}, tested, "a shard's cache does not persist from call to call")
    # an exception at one shard must reach the caller, and leave the shards usable
    try:
        tested.map(_raise_for_size, rows[-1])
    except ZeroDivisionError:
        pass
    else:
        require(False, tested, "an exception at a shard is lost")
    require(
        [n for n, _ in tested.map(_n_rows_and_text, "")] == rows,
        tested,
        "an exception at a shard leaves it unusable",
    )


def _itself(shard: Shard) -> Shard:
    return shard


def _check_location(tested: Executor, shards: Sequence[Shard], backend: Backend) -> None:
    """Check that a local executor computes on the given shards, and can hold others."""
    same = tested.is_local == backend.is_local
    require(same, tested, f"is_local is {tested.is_local}, but that of its backend {backend.is_local}")
    if not tested.is_local:
        return
    own = all(a.X is b.X for a, b in zip(tested.map(_itself), shards, strict=True))
    require(own, tested, "is_local is True, but its shards are not those of this process")
    other = tested.with_shards(shards[::-1])
    expected = [(s.X.shape[0], "") for s in shards[::-1]]
    require(other.map(_n_rows_and_text, "") == expected, tested, "with_shards does not hold the given shards")


def _check_solvers(backend: Backend, X: NDArray, y: NDArray) -> None:
    """Check that solvers which visit rows and columns give the results of `Serial`."""
    for loss, reg, solver in (
        (Logistic(), L1(), get_solver("coordinate_descent")),
        (Logistic(), L2(), get_solver("newton")),
        (Hinge(), L2(), get_solver("dual")),
    ):
        results = [
            minimize(Objective(linear_risk(X, y, loss, executor=e, n_shards=5), reg, 0.01), solver, tol=1e-6)
            for e in (backend, None)
        ]
        same = np.array_equal(results[0].w, results[1].w)
        require(same, backend, f"{solver!r} does not give the result of Serial, bit for bit")


def _check_single_output(tested: Executor, shards: Sequence[Shard], rng: np.random.Generator) -> None:
    """Compare the risk with and without an intercept, and line searches with cached scores."""
    p = shards[0].X.shape[1]
    w, d = rng.standard_normal((2, p))
    for loss in (Hinge(), Logistic()):
        risk, reference = (Risk(loss, SingleOutput(), e, p) for e in (tested, SerialExecutor(shards)))
        same = _equal(risk(w), reference(w))
        require(same, tested, f"the risk of {loss!r} is not that of Serial, bit for bit")
        same = _equal(with_intercept(risk)(w), with_intercept(reference)(w))
        require(same, tested, f"the risk of {loss!r} with an intercept is not that of Serial, bit for bit")
        _check_line_search(tested, risk, reference, w, d)


def _check_multi_output(tested: Executor, shards: Sequence[Shard], rng: np.random.Generator) -> None:
    """Compare a multi-output risk with intercepts in w."""
    linear_map = WithIntercept(MultiOutput(3))
    dim = linear_map.dim(shards[0].X.shape[1])
    risk, reference = (Risk(Softmax(), linear_map, e, dim) for e in (tested, SerialExecutor(shards)))
    w, d = rng.standard_normal((2, dim))
    same = _equal(risk(w), reference(w))
    require(same, tested, "the risk of Softmax() is not that of Serial, bit for bit")
    _check_line_search(tested, risk, reference, w, d)


def _check_line_search(tested: Executor, risk: Risk, reference: Risk, w: Array, d: Array) -> None:
    """Compare the evaluations of a line search along d from w."""
    evaluations = []
    for r in (risk, reference):
        cursor = r.cursor(w)
        cursor.set_direction(d)
        line = [cursor.value_slope(t) for t in (0.0, 0.5, 2.0)]
        cursor.advance(0.5)
        evaluations.append((np.array(line), cursor.evaluate()[1]))
    same = _equal(*evaluations)
    require(same, tested, f"a line search on {risk.loss!r} is not that of Serial, bit for bit")


def _equal(a: tuple[Any, Array], b: tuple[Any, Array]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))

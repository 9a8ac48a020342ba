"""Threads of the libraries of linear algebra: one during a fit, and what was set before is restored."""

import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
import scipy.linalg
from threadpoolctl import threadpool_limits

from helpers import blas_thread_counts
from riskmin import (
    L2,
    Bundle,
    Hinge,
    KernelClassifier,
    LinearClassifier,
    LinearClassifierCV,
    Logistic,
    Objective,
    Processes,
    Serial,
    Shard,
    Threads,
    linear_risk,
    minimize,
)
from riskmin.arrays.matrix import as_matrix
from riskmin.core import blas_threads

rng = np.random.default_rng(0)
X = rng.standard_normal((60, 3))
y = np.where(X[:, 0] + rng.standard_normal(60) > 0, 1.0, -1.0)


@pytest.fixture
def two():
    """As on a machine of two cores."""
    with threadpool_limits(2, user_api="blas"):
        if set(blas_thread_counts()) != {2}:
            pytest.skip("the libraries here have no more than one thread")
        yield


def during(fit):
    """What a fit has, by its callback."""
    seen = []
    fit(lambda it, row: seen.append(set(blas_thread_counts())))
    assert seen
    return seen[0] if seen.count(seen[0]) == len(seen) else seen


@pytest.mark.parametrize("executor", [Serial(), Threads(n_workers=2)], ids=type)
def test_a_run_has_one_thread_and_restores_what_was_set(two, executor):
    obj = Objective(linear_risk(X, y, Hinge(), executor=executor, n_shards=2, fit_intercept=True), L2(), 0.1)
    assert during(lambda callback: minimize(obj, callback=callback)) == {1}
    assert set(blas_thread_counts()) == {2}


@pytest.mark.parametrize("n_jobs", [None, 1, 2])
def test_an_estimator_does_too(two, n_jobs):
    model = LinearClassifier(n_jobs=n_jobs)
    assert during(lambda callback: model.set_params(callback=callback).fit(X, y)) == {1}
    assert set(blas_thread_counts()) == {2}


def test_kernel_machines_and_risks_of_ones_own_are_left_alone(two):
    """The products of the ones are large, and what the others do is not known."""
    model = KernelClassifier()
    assert during(lambda callback: model.set_params(callback=callback).fit(X, y)) == {2}

    class Risk:
        dim = 3

        def __call__(self, w):
            return 0.5 * float((w - 1) @ (w - 1)), w - 1

    assert during(lambda callback: minimize(Objective(Risk(), L2(), 0.1), callback=callback)) == {2}


def test_an_error_restores_them_too(two):
    def fail(it, row):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        minimize(Objective(linear_risk(X, y, Hinge()), L2(), 0.1), callback=fail)
    assert set(blas_thread_counts()) == {2}


def test_a_smaller_number_stays_as_it_is():
    with threadpool_limits(1, user_api="blas"), blas_threads.blas_thread_limit(4):
        assert set(blas_thread_counts()) == {1}


def test_fits_side_by_side_restore_them_once(two):
    """The first one to end is not the first one that began."""
    inside, leave = threading.Event(), threading.Event()

    def other():
        with blas_threads.blas_thread_limit(1):
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=other)
    with blas_threads.blas_thread_limit(1):
        thread.start()
        assert inside.wait(30)
    assert set(blas_thread_counts()) == {1}
    leave.set()
    thread.join()
    assert set(blas_thread_counts()) == {2}
    LinearClassifierCV(alphas=[0.1, 0.01], cv=3, n_jobs=3).fit(X, y)
    assert set(blas_thread_counts()) == {2}


def test_more_is_what_the_most_asked_for(two):
    with blas_threads.blas_thread_limit(1):
        with blas_threads.blas_thread_limit(2):
            assert set(blas_thread_counts()) == {2}
        assert set(blas_thread_counts()) == {1}


def test_a_library_that_comes_in_the_middle_of_a_fit(two):
    """SciPy has its own, which comes with its first use: here, by Newton's method."""
    script = """
        import sys
        import numpy as np
        from threadpoolctl import threadpool_info, threadpool_limits
        from riskmin import L2, Logistic, Newton, Objective, linear_risk, minimize

        def numbers():
            return sorted(lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas")

        X, y = np.random.default_rng(0).standard_normal((200, 5)), np.where(np.arange(200) % 3, 1.0, -1.0)
        threadpool_limits(2, user_api="blas")
        before, first, seen = "scipy.linalg" in sys.modules, numbers(), []
        obj = Objective(linear_risk(X, y, Logistic()), L2(), 1e-6)
        minimize(obj, Newton(), tol=1e-9, callback=lambda it, row: seen.append(numbers()))
        print(before, "scipy.linalg" in sys.modules, set(seen[-1]), len(seen[-1]) > len(first))
        print(set(numbers()))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    assert done.stdout in (f"False True {{1}} {more}\n{{2}}\n" for more in (True, False))


def test_worker_processes_have_one_each():
    shards = [Shard(as_matrix(np.ones((2, 2))), np.ones(2), np.ones(2), {}) for _ in range(2)]
    workers = Processes(n_workers=2).place(shards)
    workers.map(blas_thread_counts)  # SciPy's library comes with the first call
    found = workers.map(blas_thread_counts)
    workers.close()
    assert found
    assert all(numbers and set(numbers) == {1} for numbers in found)


def test_the_number_of_workers_changes_no_bit(two):
    """It would, if the libraries had as many threads: they add up ten thousand terms and more in parts."""
    Z = np.random.default_rng(0).standard_normal((30_000, 12))
    s = np.where(Z[:, 0] + np.random.default_rng(1).standard_normal(30_000) > 0, 1.0, -1.0)
    for loss in (Hinge(), Logistic()):
        found = [
            minimize(
                Objective(linear_risk(Z, s, loss, fit_intercept=True, executor=e), L2(), 1e-6), tol=1e-6
            ).w
            for e in (Serial(), Threads(n_workers=2), Threads(n_workers=3))
        ]
        assert np.array_equal(found[0], found[1])
        assert np.array_equal(found[0], found[2])


class Own:
    """A library of which each thread has a number of its own."""

    filepath, threading_layer = "libopenblas_openmp.so", "openmp"

    def __init__(self):
        self.here = threading.local()

    def get_num_threads(self):
        return getattr(self.here, "number", 8)

    def set_num_threads(self, n):
        self.here.number = n


def test_libraries_that_have_a_number_a_thread(monkeypatch):
    """The thread of the fit, and those of its workers, have one; another's stays as it is."""
    library = Own()
    monkeypatch.setattr(blas_threads._libraries, "by_thread", [library])
    executor, seen = Threads(n_workers=2), []

    class Looking(Hinge):
        def value_grad(self, z, y, c):
            seen.append((threading.current_thread().name, library.get_num_threads()))
            return super().value_grad(z, y, c)

    risk = linear_risk(X, y, Looking(), executor=executor, n_shards=2)
    minimize(Objective(risk, L2(), 0.1), Bundle())
    assert any(name.startswith("riskmin") for name, _ in seen)
    assert {number for _, number in seen} == {1}
    assert library.get_num_threads() == 8


# ---------------------------------------------------------------- factors
@pytest.mark.parametrize("lower", [False, True])
def test_factors_are_those_of_scipy(lower, monkeypatch):
    A = rng.standard_normal((70, 70))
    A = A @ A.T + np.eye(70)
    here = scipy.linalg.cho_factor(A, lower=lower)[0]
    assert np.array_equal(blas_threads.cho_factor(A, lower=lower)[0], here)
    monkeypatch.setattr(blas_threads, "THREADED_CALL_OPERATIONS", 1)
    assert np.array_equal(blas_threads.cho_factor(A, lower=lower)[0], here)
    assert np.array_equal(blas_threads.cho_factor(np.asfortranarray(A), lower=lower)[0], here)
    with pytest.raises(np.linalg.LinAlgError, match="order 1"):
        blas_threads.cho_factor(-A, lower=lower)


def test_inverses_are_those_of_numpy(monkeypatch):
    A = rng.standard_normal((4, 9, 9))
    here = np.linalg.inv(A)
    assert np.array_equal(blas_threads.inverse(A), here)
    monkeypatch.setattr(blas_threads, "THREADED_CALL_OPERATIONS", 1)
    assert np.array_equal(blas_threads.inverse(A), here)
    assert np.array_equal(blas_threads.inverse(A[0]), here[0])

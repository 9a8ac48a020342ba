"""BLAS threads: one during a fit, and the previous setting is restored afterwards."""

import os
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import riskmin as rm
from helpers import blas_thread_counts, problem
from riskmin.arrays.matrix import as_matrix
from riskmin.core import blas_threads

X, y, _ = problem(rm.Hinge(), 60, 3)


@pytest.fixture
def two():
    """Two BLAS threads, as on a machine with two cores."""
    with threadpool_limits(2, user_api="blas"):
        if set(blas_thread_counts()) != {2}:
            pytest.skip("the libraries here have no more than one thread")
        yield


def during(fit):
    """The thread counts during a fit, seen by its callback."""
    counts = []
    fit(lambda it, row: counts.append(set(blas_thread_counts())))
    assert counts
    return counts[0] if counts.count(counts[0]) == len(counts) else counts


@pytest.mark.parametrize("n_jobs", [None, 1, 2])
def test_an_estimator_has_one_thread_and_restores_what_was_set(two, n_jobs):
    model = rm.LinearClassifier(n_jobs=n_jobs)
    assert during(lambda callback: model.set_params(callback=callback).fit(X, y)) == {1}
    assert set(blas_thread_counts()) == {2}


def test_kernel_machines_and_user_risks_keep_their_threads(two):
    """Kernel machines compute large products, and the work of a user's risk is unknown."""
    model = rm.KernelClassifier()
    assert during(lambda callback: model.set_params(callback=callback).fit(X, y)) == {2}

    class Risk:
        dim = 3

        def __call__(self, w):
            return 0.5 * float((w - 1) @ (w - 1)), w - 1

    assert during(lambda callback: rm.minimize(rm.Objective(Risk(), rm.L2(), 0.1), callback=callback)) == {2}


def test_an_error_restores_the_threads(two):
    def fail(it, row):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        rm.minimize(rm.Objective(rm.linear_risk(X, y, rm.Hinge()), rm.L2(), 0.1), callback=fail)
    assert set(blas_thread_counts()) == {2}


def test_a_smaller_limit_is_not_raised():
    with threadpool_limits(1, user_api="blas"), blas_threads.blas_thread_limit(4):
        assert set(blas_thread_counts()) == {1}


def test_concurrent_fits_restore_the_threads_once(two):
    """The fit that ends first is not the one that began first."""
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
    rm.LinearClassifierCV(alphas=[0.1, 0.01], cv=3, n_jobs=3).fit(X, y)
    assert set(blas_thread_counts()) == {2}


def test_nested_limits_use_the_largest(two):
    with blas_threads.blas_thread_limit(1):
        with blas_threads.blas_thread_limit(2):
            assert set(blas_thread_counts()) == {2}
        assert set(blas_thread_counts()) == {1}


@pytest.mark.slow
def test_a_library_loaded_during_a_fit(two):
    """SciPy loads its own BLAS library at its first use, here in Newton's method."""
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
        [sys.executable, "-c", textwrap.dedent(script)],
        env=os.environ | {"OPENBLAS_NUM_THREADS": "2"},  # whatever the parent has for OMP_NUM_THREADS
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout in (f"False True {{1}} {more}\n{{2}}\n" for more in (True, False))


@pytest.mark.slow
def test_worker_processes_have_one_thread_each():
    shards = [rm.Shard(as_matrix(np.ones((2, 2))), np.ones(2), np.ones(2), {}) for _ in range(2)]
    workers = rm.Processes(n_workers=2).place(shards)
    workers.map(blas_thread_counts)  # SciPy's library is loaded by the first call
    counts = workers.map(blas_thread_counts)
    workers.close()
    assert counts
    assert all(per_library and set(per_library) == {1} for per_library in counts)


class ThreadLocalLibrary:
    """A library with a separate thread count for each thread."""

    filepath, threading_layer = "libopenblas_openmp.so", "openmp"

    def __init__(self):
        self.local = threading.local()

    def get_num_threads(self):
        return getattr(self.local, "number", 8)

    def set_num_threads(self, n):
        self.local.number = n


def test_libraries_with_one_count_per_thread(monkeypatch):
    """The threads of the fit and of its workers have a count of one; those of other threads are unchanged."""
    library = ThreadLocalLibrary()
    # no such library is installed with NumPy and SciPy
    monkeypatch.setattr(blas_threads._libraries, "by_thread", [library])
    executor, counts = rm.Threads(n_workers=2), []

    class RecordingHinge(rm.Hinge):
        def value_grad(self, z, y, c):
            counts.append((threading.current_thread().name, library.get_num_threads()))
            time.sleep(0.02)  # long enough for the other thread to wake up and take the second shard
            return super().value_grad(z, y, c)

    risk = rm.linear_risk(X, y, RecordingHinge(), executor=executor, n_shards=2)
    rm.minimize(rm.Objective(risk, rm.L2(), 0.1), rm.Bundle())
    assert any(name.startswith("riskmin") for name, _ in counts)
    assert {number for _, number in counts} == {1}
    assert library.get_num_threads() == 8


# ---------------------------------------------------------------- factorizations
@pytest.mark.parametrize("n", [70, 1500], ids=["short", "long"])
def test_factors_and_inverses_are_those_of_scipy_and_numpy(n):
    """Long ones can be interrupted."""
    A = np.random.default_rng(0).standard_normal((n, n))
    A = A @ A.T + n * np.eye(n)
    factor = blas_threads.cho_factor(A, lower=True)[0]
    np.testing.assert_allclose(np.tril(factor) @ np.tril(factor).T, A, atol=1e-9 * n)
    with pytest.raises(np.linalg.LinAlgError, match=r"order 1|1-th leading minor"):
        blas_threads.cho_factor(-A, lower=True)
    stack = A[: n // 9 * 9, :9].reshape(-1, 9, 9)[:4] + 9 * n * np.eye(9)
    assert np.array_equal(blas_threads.inverse(stack), np.linalg.inv(stack))

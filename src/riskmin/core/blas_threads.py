"""Thread limits of the BLAS libraries during a fit, and factorizations that can be interrupted.

A BLAS library that starts one thread per core for every product loses much time in synchronization: on small
products, and on a machine that runs other work, it takes many times as long as one thread. So during a fit
each worker uses one BLAS thread, and the previous setting is restored afterwards.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.core.deadline import THREADED_CALL_OPERATIONS, check, interruptible_call


class _BlasLibraries:
    """The BLAS libraries of this process, and the thread limits that running fits have requested.

    Most libraries have one setting per process. If several fits run at the same time, the largest request
    holds, and the last fit to end restores the setting from before the first one. Libraries built on OpenMP
    have one setting per thread, which each fit sets and restores for itself.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process_wide: list[Any] = []
        self.by_thread: list[Any] = []
        self.n_modules = 0  # number of imported modules at the last search for libraries
        self.requests: list[int] = []  # requests of the running fits
        self.previous: list[int] = []  # settings before the first running fit
        self.current: list[int] = []  # current settings

    def find_new_libraries(self) -> None:
        """Find libraries loaded since the last search: NumPy's is there, SciPy's is loaded by its first use.

        A search takes milliseconds, so it is skipped unless a module was imported since.
        """
        if len(sys.modules) == self.n_modules:
            return
        from threadpoolctl import ThreadpoolController

        known = {library.filepath for library in self.process_wide + self.by_thread}
        for library in ThreadpoolController().select(user_api="blas").lib_controllers:
            if library.filepath in known:
                continue
            if getattr(library, "threading_layer", "") == "openmp":
                self.by_thread.append(library)
                continue
            self.process_wide.append(library)
            # found during a fit: its current setting is the one to restore
            if self.requests:
                self.previous.append(library.get_num_threads())
                self.current.append(self.previous[-1])
        self.n_modules = len(sys.modules)

    def request(self, n: int) -> None:
        """Register a fit that requests n threads."""
        with self.lock:
            self.find_new_libraries()
            if not self.requests:
                self.previous = [library.get_num_threads() for library in self.process_wide]
                self.current = list(self.previous)
            self.requests.append(n)
            self._set()

    def withdraw(self, n: int) -> None:
        """Remove the request of a fit that ended."""
        with self.lock:
            self.requests.remove(n)
            self._set()

    def apply_to_new_libraries(self) -> None:
        """Apply the current limits to libraries loaded during a fit."""
        with self.lock:
            self.find_new_libraries()
            self._set()

    def _set(self) -> None:
        """Apply the largest request, or restore the previous settings if no fit is running."""
        n_threads = max(self.requests) if self.requests else sys.maxsize
        # never more threads than before: a smaller number was set on purpose
        settings = [min(n_threads, before) for before in self.previous]
        if settings == self.current:
            return
        _clear_controlling_thread(self.process_wide[0])
        for library, now, setting in zip(self.process_wide, self.current, settings, strict=False):
            if now != setting:
                library.set_num_threads(setting)
        _clear_controlling_thread(self.process_wide[0])
        self.current = settings

    def forked(self) -> None:
        """Reset the state in a child process, which runs none of its parent's fits."""
        # another thread of the parent may have held the lock, and does not exist in the child
        self.lock = threading.Lock()
        if self.requests:
            self.requests = []
            self._set()


def _clear_controlling_thread(library: Any) -> None:
    """Allow any thread to change the setting.

    Newer versions of threadpoolctl accept changes only from the thread that made the first one. The last fit
    to end restores the setting from before the first one, and these may run in different threads.
    """
    if hasattr(library, "clear_controlling_thread"):
        library.clear_controlling_thread(force=True)


_libraries = _BlasLibraries()
request_threads, limit_new_libraries = _libraries.request, _libraries.apply_to_new_libraries
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_libraries.forked)


@contextmanager
def blas_thread_limit(n: int | None) -> Iterator[None]:
    """Limit the BLAS libraries to n threads within a block; None leaves them unchanged.

    Examples
    --------
    >>> from threadpoolctl import threadpool_info
    >>> with blas_thread_limit(1):
    ...     {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}
    {1}
    """
    if n is None:
        yield
        return
    request_threads(n)
    # process-wide settings first, then those of this thread
    before = _limit_this_thread(n)
    try:
        yield
    finally:
        _libraries.withdraw(n)
        for library, setting in before:
            library.set_num_threads(setting)


def _limit_this_thread(n: int) -> list[tuple[Any, int]]:
    """Limit libraries with per-thread settings to n in this thread; return the previous settings."""
    before = [(library, library.get_num_threads()) for library in _libraries.by_thread]
    for library, setting in before:
        library.set_num_threads(min(n, setting))
    return before


def limit_worker_to_one_thread() -> None:
    """Limit libraries with per-thread settings to one in this thread: called by each worker of a fit."""
    _limit_this_thread(1)


@cache
def scipy_module(part: str) -> Any:
    """Import a SciPy subpackage at its first use: the import takes time, and may load a BLAS library."""
    module = import_module(f"scipy.{part}")
    _libraries.apply_to_new_libraries()
    return module


def scipy_linalg() -> Any:
    """Return ``scipy.linalg``, imported at its first use."""
    return scipy_module("linalg")


# ---------------------------------------------------------------- factorizations
def cho_factor(A: NDArray, *, lower: bool = False, overwrite: bool = False) -> tuple[NDArray, bool]:
    """As ``scipy.linalg.cho_factor``, but interruptible by Ctrl-C and time limits.

    With `overwrite`, an array of doubles in Fortran order holds the factor afterwards.
    """
    # a Cholesky factorization takes n^3 / 3 operations
    n, work = len(A), len(A) ** 3 / 3
    if work < THREADED_CALL_OPERATIONS:
        check()
        factor, failed = scipy_linalg().lapack.dpotrf(A, lower=lower, clean=False, overwrite_a=overwrite)
        if failed:
            raise np.linalg.LinAlgError(f"the leading minor of order {failed} is not positive definite")
        return factor, lower
    # LAPACK overwrites an array in Fortran order
    factor = np.array(A, dtype=np.float64, order="F", copy=None if overwrite else True)
    side = b"L" if lower else b"U"
    state, size = ctypes.c_int(0), ctypes.c_int(n)

    def run() -> None:  # the closure keeps the array alive if the caller gives up
        arguments = ctypes.byref(size), factor.ctypes.data, ctypes.byref(size), ctypes.byref(state)
        _potrf()(side, *arguments)

    interruptible_call(work, run)
    if state.value:
        raise np.linalg.LinAlgError(f"the leading minor of order {state.value} is not positive definite")
    return factor, lower


@cache
def _potrf() -> Any:
    """Return LAPACK's dpotrf from SciPy's library, called without the interpreter's lock."""
    api, capsule = ctypes.pythonapi, scipy_module("linalg.cython_lapack").__pyx_capi__["dpotrf"]
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    # the C function behind SciPy's Cython interface; ctypes releases the lock during the call
    address = api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule))
    int_pointer = ctypes.c_void_p  # pointer to int
    return ctypes.CFUNCTYPE(None, ctypes.c_char_p, int_pointer, ctypes.c_void_p, int_pointer, int_pointer)(
        address
    )


def inverse(A: NDArray) -> NDArray:
    """Return the inverse of a matrix, or of each matrix in a stack."""
    # operations of one inverse
    work = 2.0 * A.shape[-1] ** 3
    # a long stack is inverted matrix by matrix, so that it can be interrupted
    if A.ndim == 2 or work * len(A) < THREADED_CALL_OPERATIONS:
        return np.asarray(interruptible_call(work, np.linalg.inv, A))
    return np.stack([inverse(one) for one in A])


def cholesky(G: NDArray, diagonal: NDArray, shift: float) -> Any:
    """The Cholesky factor of a matrix from its lower triangle, shifted as far as rounding requires.

    Where the factorization fails, `shift` is added to the diagonal, and ten times as much the next time.
    `diagonal` is a view into the matrix. None if no finite multiple of it suffices.
    """
    while True:
        try:
            return cho_factor(G, lower=True)
        except np.linalg.LinAlgError:  # rounding has made its smallest eigenvalues negative
            if not 0 < shift < np.inf:
                return None
            diagonal += shift
            shift *= 10

"""The libraries of linear algebra: how many threads they take during a fit, and calls that can be given up.

A library that starts a thread a core for every product has them wait for each other: on small products, and
on a machine where others are at work, that takes many times the time of one thread. So during a fit each
worker has one thread there, and what was set before is restored after it.
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

from riskmin.deadline import LONG, aside, check
from riskmin.types import NDArray


class _Libraries:
    """The libraries in this process, and the numbers of threads that fits have asked for.

    Most have one number for the whole process. Where several fits run at the same time, the largest one that
    any of them asked for holds, and the last of them to end restores what was set before the first one. Those
    that are built on OpenMP have a number a thread, which each fit sets and restores for itself.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.found: list[Any] = []
        self.by_thread: list[Any] = []
        self.modules = 0  # how many were imported when the libraries were looked for
        self.asked: list[int] = []
        self.before: list[int] = []  # what was set before the first of the fits, and what is set now
        self.now: list[int] = []

    def look(self) -> None:
        """Find libraries that came since the last look: NumPy's is there, SciPy's comes with its first use.

        To look for them takes milliseconds, so that is done only if something was imported.
        """
        if len(sys.modules) == self.modules:
            return
        from threadpoolctl import ThreadpoolController

        known = {library.filepath for library in self.found + self.by_thread}
        for library in ThreadpoolController().select(user_api="blas").lib_controllers:
            if library.filepath in known:
                continue
            if getattr(library, "threading_layer", "") == "openmp":
                self.by_thread.append(library)
                continue
            self.found.append(library)
            if self.asked:
                self.before.append(library.get_num_threads())
                self.now.append(self.before[-1])
        self.modules = len(sys.modules)

    def ask(self, n: int) -> None:
        """A fit begins that wants n threads."""
        with self.lock:
            self.look()
            if not self.asked:
                self.before = [library.get_num_threads() for library in self.found]
                self.now = list(self.before)
            self.asked.append(n)
            self._set()

    def leave(self, n: int) -> None:
        """A fit ends that wanted them."""
        with self.lock:
            self.asked.remove(n)
            self._set()

    def renew(self) -> None:
        """Take notice of libraries that came in the middle of a fit."""
        with self.lock:
            self.look()
            self._set()

    def _set(self) -> None:
        most = max(self.asked) if self.asked else sys.maxsize
        # never more than there were: who set a smaller number had a reason
        wanted = [min(most, before) for before in self.before]
        if wanted == self.now:
            return
        _release(self.found[0])
        for library, now, number in zip(self.found, self.now, wanted, strict=False):
            if now != number:
                library.set_num_threads(number)
        _release(self.found[0])
        self.now = wanted

    def forked(self) -> None:
        """A child process runs none of the fits of its parent, whose lock another thread may have had."""
        self.lock = threading.Lock()
        if self.asked:
            self.asked = []
            self._set()


def _release(library: Any) -> None:
    """Let any thread set numbers.

    Newer versions of threadpoolctl heed the thread alone that set one first. Here the last fit to end
    restores what the first one found, and these may be in two threads.
    """
    if hasattr(library, "clear_controlling_thread"):
        library.clear_controlling_thread(force=True)


_libraries = _Libraries()
ask, renew = _libraries.ask, _libraries.renew
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_libraries.forked)


@contextmanager
def threads(n: int | None) -> Iterator[None]:
    """A block in which the libraries of linear algebra take at most n threads; None leaves them alone.

    Examples
    --------
    >>> from threadpoolctl import threadpool_info
    >>> with threads(1):
    ...     {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}
    {1}
    """
    if n is None:
        yield
        return
    ask(n)
    before = _here(n)
    try:
        yield
    finally:
        _libraries.leave(n)
        for library, number in before:
            library.set_num_threads(number)


def _here(n: int) -> list[tuple[Any, int]]:
    """Let libraries that have a number a thread take at most n in this one; what they had."""
    before = [(library, library.get_num_threads()) for library in _libraries.by_thread]
    for library, number in before:
        library.set_num_threads(min(n, number))
    return before


def one_each() -> None:
    """What a thread calls that is a worker of a fit: libraries that have a number a thread take one in it."""
    _here(1)


def threads_of(risk: Any) -> int | None:
    """How many threads the libraries may take during a fit of a risk; None where it has no executor.

    One, for each of the executor's workers: these are the threads of a fit. Were there more for who has more
    workers, sums would be rounded in another way, and results differ in their last bits.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge, linear_risk
    >>> threads_of(linear_risk(np.eye(2), np.array([1.0, -1.0]), Hinge(), fit_intercept=True))
    1
    """
    while risk is not None:
        executor = getattr(risk, "executor", None)
        if executor is not None:
            found: int | None = getattr(executor, "blas_threads", 1)
            return found
        risk = getattr(risk, "risk", None)
    return None


@cache
def scipy(part: str) -> Any:
    """A part of SciPy that is imported by its first use: that takes a while, and may bring a library along.

    Examples
    --------
    >>> scipy("special").gammaln(1.0)
    np.float64(0.0)
    """
    found = import_module(f"scipy.{part}")
    _libraries.renew()
    return found


def linalg() -> Any:
    """``scipy.linalg``."""
    return scipy("linalg")


# ---------------------------------------------------------------- factors
def cho_factor(A: NDArray, *, lower: bool = False) -> tuple[NDArray, bool]:
    """As ``scipy.linalg.cho_factor``, but one that Ctrl-C and limits of time get the better of.

    Examples
    --------
    >>> import numpy as np
    >>> cho_factor(np.array([[4.0]]))[0].tolist()
    [[2.0]]
    """
    n, work = len(A), len(A) ** 3 / 3
    if work < LONG:
        check()
        found: tuple[NDArray, bool] = linalg().cho_factor(A, lower=lower, check_finite=False)
        return found
    factor, side = np.array(A, dtype=np.float64, order="F"), b"L" if lower else b"U"
    state, size = ctypes.c_int(0), ctypes.c_int(n)

    def run() -> None:  # it has hold of the array, also where it is left behind
        where = ctypes.byref(size), factor.ctypes.data, ctypes.byref(size), ctypes.byref(state)
        _potrf()(side, *where)

    aside(work, run)
    if state.value:
        raise np.linalg.LinAlgError(f"the leading minor of order {state.value} is not positive definite")
    return factor, lower


@cache
def _potrf() -> Any:
    """LAPACK's dpotrf of SciPy's library, called without the interpreter's lock."""
    api, capsule = ctypes.pythonapi, scipy("linalg.cython_lapack").__pyx_capi__["dpotrf"]
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    address = api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule))
    whole = ctypes.c_void_p  # pointers to whole numbers
    return ctypes.CFUNCTYPE(None, ctypes.c_char_p, whole, ctypes.c_void_p, whole, whole)(address)


def inverse(A: NDArray) -> NDArray:
    """The inverse of a matrix, or of each in a stack of them.

    Examples
    --------
    >>> import numpy as np
    >>> inverse(np.array([[2.0]])).tolist()
    [[0.5]]
    """
    work = 2.0 * A.shape[-1] ** 3
    if A.ndim == 2 or work * len(A) < LONG:
        return np.asarray(aside(work, np.linalg.inv, A))
    return np.stack([inverse(one) for one in A])

"""The libraries of linear algebra: how many threads they take during a fit, and calls that can be given up.

A library that starts a thread a core for every product has them wait for each other: on small products, and
on a machine where others are at work, that takes many times the time of one thread. So a fit has as many
threads there as it was given workers, and restores what was set before it.
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

    The number is one for the whole process. Where several fits run at the same time, the largest one that
    any of them asked for holds, and the last of them to end restores what was set before the first one.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.found: list[Any] = []
        self.modules = 0  # how many were imported when the libraries were looked for
        self.asked: list[int] = []
        self.before: list[int] = []

    def look(self) -> None:
        """Find libraries that came since the last look: NumPy's is there, SciPy's comes with its first use.

        To look for them takes milliseconds, so that is done only if something was imported.
        """
        if len(sys.modules) == self.modules:
            return
        from threadpoolctl import ThreadpoolController

        known = {library.filepath for library in self.found}
        for library in ThreadpoolController().select(user_api="blas").lib_controllers:
            if library.filepath not in known:
                self.found.append(library)
                if self.asked:
                    self.before.append(library.get_num_threads())
        self.modules = len(sys.modules)

    def ask(self, n: int) -> None:
        """A fit begins that wants n threads."""
        with self.lock:
            self.look()
            if not self.asked:
                self.before = [library.get_num_threads() for library in self.found]
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
        most = max(self.asked, default=sys.maxsize)
        for library, before in zip(self.found, self.before, strict=False):
            # never more than there were: whoever set a smaller number had a reason
            library.set_num_threads(min(most, before))

    def forked(self) -> None:
        """A child process runs none of the fits of its parent, whose lock another thread may have had."""
        self.lock = threading.Lock()
        if self.asked:
            self.asked = []
            self._set()


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
    _libraries.ask(n)
    try:
        yield
    finally:
        _libraries.leave(n)


def threads_of(risk: Any) -> int | None:
    """How many threads a risk may take: as many as its executor has workers in this process; None of others.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge, Threads, linear_risk
    >>> y = np.array([1.0, -1.0])
    >>> threads_of(linear_risk(np.eye(2), y, Hinge(), fit_intercept=True))
    1
    >>> threads_of(linear_risk(np.eye(2), y, Hinge(), executor=Threads(n_workers=3)))
    3
    """
    while risk is not None:
        executor = getattr(risk, "executor", None)
        if executor is not None:
            found: int | None = getattr(executor, "n_workers", 1)
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

"""SciPy's minimizers behind the same oracle, with a certificate (paper A, section 4.2)."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, ClassVar

import numpy as np

from riskmin.arrays.namespace import as_array_like, to_numpy
from riskmin.core import Array, Cut, Iterate, NDArray, Solver
from riskmin.core.blas_threads import scipy_module
from riskmin.problem.objective import Objective
from riskmin.solvers.base import mix_two


class _Stopped(Exception):
    """The run has ended: SciPy's function call is left by this exception."""


@dataclass(frozen=True)
class ScipyMinimizer(Solver):
    r"""Any gradient method of `scipy.optimize.minimize`, with riskmin's certificate.

    SciPy's method proposes points, at each of which it gets :math:`J(w)` and a subgradient
    :math:`\lambda\,\nabla\Omega(w) + g`. The cut at every point bounds the risk from below, and the best
    mixture of the last cuts is the certificate, whatever the method does. It ends where the method does:
    it may stall at a nonsmooth point (status ``"stalled"``), but never claims more than is proved.

    Parameters
    ----------
    method : {"L-BFGS-B", "BFGS", "CG", "TNC", "SLSQP"}
        The method of SciPy.

    Notes
    -----
    SciPy runs in a thread of its own, which waits while the risk is evaluated in the calling one, so that
    time limits, executors and interrupts work as with every other solver.

    References
    ----------
    C. H. Teo et al., A scalable modular convex solver for regularized risk minimization, KDD 2007, section
    4.2.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, Logistic, Objective, ScipyMinimizer, linear_risk, minimize
    >>> X, y = np.array([[1.0, 0.5], [-2.0, 1.0], [0.3, 0.1]]), np.array([1.0, -1.0, 1.0])
    >>> J = Objective(linear_risk(X, y, Logistic()), L2(), lam=0.01)
    >>> result = minimize(J, ScipyMinimizer("BFGS"), tol=1e-6)
    >>> result.status, result.gap <= 1e-6 * result.value
    ('converged', True)
    """

    LIMITS: ClassVar[dict[str, tuple[str, ...]]] = {
        "L-BFGS-B": ("maxiter", "maxfun"),
        "BFGS": ("maxiter",),
        "CG": ("maxiter",),
        "TNC": ("maxfun",),
        "SLSQP": ("maxiter",),
    }
    """The methods, and their options that limit the number of steps: the driver stops the run instead."""

    method: str = "L-BFGS-B"

    def __post_init__(self) -> None:
        if self.method not in self.LIMITS:
            raise ValueError(f"method is {self.method!r}, not one of {', '.join(self.LIMITS)}")

    def supports(self, obj: Objective) -> str | None:
        """None for linear models, and regularizers with a gradient."""
        if obj.reg.halves:
            return f"{self.name} has inner products of vectors, not of a kernel: use KernelDual or Bundle"
        if obj.reg.smooth:
            return None
        return f"{self.name} needs a regularizer with a gradient: use Auto, ProximalGradient or Bundle"

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield every point at which SciPy evaluates J."""
        self.check_supports(obj)
        return self._run(obj, w0)

    def _run(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        points, best = self._points(to_numpy(w0)), None
        point = next(points)
        try:
            while True:
                w = as_array_like(point, w0)
                value, g, cut = obj(w)
                best = self._better(obj, best, cut)
                yield Iterate(w, value, best, {})
                point = points.send((value, to_numpy(g + obj.lam * obj.reg.grad(w))))
        except StopIteration:
            return  # SciPy's own tolerance is met, or its line search failed
        finally:
            points.close()

    @staticmethod
    def _better(obj: Objective, best: Cut | None, cut: Cut) -> Cut:
        """The mixture of two cuts with the best bound; a cut that is not finite adds nothing."""
        if best is not None and not np.isfinite(cut.b):
            return best
        return mix_two(best, cut, obj)[0]

    def _points(self, w0: NDArray) -> Generator[NDArray, tuple[float, NDArray], None]:
        """Yield the points of SciPy's method, and take the value and the gradient at each."""
        asked: SimpleQueue[NDArray | None] = SimpleQueue()
        answers: SimpleQueue[tuple[float, NDArray] | None] = SimpleQueue()
        failure: list[BaseException] = []

        def evaluate(w: NDArray) -> tuple[float, NDArray]:
            asked.put(np.array(w))
            answer = answers.get()
            if answer is None:
                raise _Stopped
            return answer

        def work() -> None:
            options: dict[str, Any] = dict.fromkeys(self.LIMITS[self.method], 10**9)
            try:
                # the smallest tolerance that all methods take: the driver decides when to stop
                scipy_module("optimize").minimize(
                    evaluate, w0, method=self.method, jac=True, tol=1e-15, options=options
                )
            except _Stopped:
                pass
            except BaseException as error:
                failure.append(error)
            asked.put(None)

        worker = threading.Thread(target=work, name="scipy-minimizer", daemon=True)
        worker.start()
        try:
            while (point := asked.get()) is not None:
                answers.put((yield point))
        finally:
            answers.put(None)
            worker.join()
        if failure:
            raise failure[0]

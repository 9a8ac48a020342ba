"""The accelerated proximal gradient method: any smooth loss, any regularizer with a proximal operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from riskmin.core import Array, Evaluation, Iterate, Solver
from riskmin.numerics.precision import CUT_ROUNDING
from riskmin.problem.objective import Objective
from riskmin.solvers.base import loss_of, mix_two
from riskmin.solvers.state_checks import check_state

MAX_LIPSCHITZ_INCREASES = 60
"""Increases of L within a step, after which rounding is assumed to hide all descent."""


def smooth_reason(name: str, obj: Objective) -> str | None:
    """Why a solver needs another loss, if it has `smooth = False`; one without the attribute is accepted."""
    loss = loss_of(obj.risk)
    if loss is None or loss.smooth:
        return None
    remedy = "add conjugate_hessian_product to the regularizer, and use Bundle"
    if obj.reg.has_master_problem and not obj.reg.n_unpenalized:
        remedy = "use Bundle"
    elif loss.can_be_smoothed:
        remedy = "use Smoothing(ProximalGradient())"
    return f"{name} needs a smooth loss, and {loss!r} is not: {remedy}"


@dataclass(frozen=True)
class ProximalGradient(Solver):
    r"""The accelerated proximal gradient method (FISTA), for smooth losses with any regularizer.

    A step leads from an extrapolated point v to

    .. math:: w_{k+1} = \mathrm{argmin}_w\; \lambda\,\Omega(w) + g^\top w + \tfrac L2 \|w - v\|^2,
              \qquad g = \nabla R(v),

    the proximal point of :math:`v - g / L`. L is increased until the quadratic model bounds the risk from
    above, and decreased a little after every step. Where J would increase, or the step from v and the
    displacement from :math:`w_k` form an obtuse angle, the extrapolation restarts, so J never increases. The
    risk need only give its value and gradient: the data may be local or remote.

    It works in the array library of w0 with `L1`, `L2`, `Elastic` and `Box`; the proximal operators of
    `Quadratic`, `QNorm` and `Entropy` need NumPy.

    References
    ----------
    A. Beck, M. Teboulle, A fast iterative shrinkage-thresholding algorithm for linear inverse problems,
    SIAM J. Imaging Sciences 2, 2009. B. O'Donoghue, E. Candès, Adaptive restart for accelerated gradient
    schemes, Foundations of Computational Mathematics 15, 2015.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L1, Objective, ProximalGradient, Squared, linear_risk, minimize
    >>> X, y = np.array([[1.0, 0.5], [2.0, -0.5]]), np.array([1.0, 3.0])
    >>> J = Objective(linear_risk(X, y, Squared()), L1(), lam=0.5)
    >>> minimize(J, ProximalGradient(), tol=1e-9).w.round(6).tolist()
    [1.2, 0.0]
    """

    LIPSCHITZ_DECREASE = 0.9
    """The factor of the Lipschitz estimate L after each step, since the risk may be flatter further on."""

    def supports(self, obj: Objective) -> str | None:
        """None for smooth losses, and for those that are not known to be nonsmooth."""
        return smooth_reason(self.name, obj)

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield points with decreasing J."""
        self.check_supports(obj)
        return self._run(obj, w0, w0, (1.0, 0.0))

    def verifies_states(self, obj: Objective) -> bool:
        """True: cuts begin with the one at the point of the state."""
        return True

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Continue from a saved state."""
        check_state(state, {"w": "d", "before": "d", "numbers": "two"}, d=obj.risk.dim, two=2)
        momentum, L = (float(v) for v in state["numbers"])
        iterates = self._run(obj, state["w"], state["before"], (momentum, L))
        next(iterates)  # the iterate that was saved
        return iterates

    def _run(self, obj: Objective, w: Array, before: Array, pace: tuple[float, float]) -> Iterator[Iterate]:
        """The iterates from w and the point before it; `pace` is the momentum parameter and L."""
        momentum, L = pace
        current, base = evaluate_point(obj, w)
        model, _ = mix_two(None, current[2], obj)
        # a cold start has no estimate yet
        if L == 0:
            L = lipschitz_lower_bound(obj, w, current)
        while True:
            yield Iterate(w, current[0], model, {"L": L}, _snapshot(w, before, momentum, L))
            # FISTA: t_{k+1} = (1 + sqrt(1 + 4 t_k^2)) / 2, v = w + (t_k - 1) / t_{k+1} (w - before)
            grown = 0.5 * (1 + math.sqrt(1 + 4 * momentum * momentum))
            v = w if momentum == 1 else w + (momentum - 1) / grown * (w - before)
            extrapolated, height = (current, base) if momentum == 1 else evaluate_point(obj, v)
            if momentum > 1:
                model, _ = mix_two(model, extrapolated[2], obj)
            # without extrapolation the step starts at w, so J must not increase
            max_value = current[0] if momentum == 1 else math.inf
            new, result, used_L, new_base = _step(obj, v, (extrapolated[1], height), L, max_value)
            if result is None:
                # no L was large enough: repeat from w itself, unless that was the start
                if momentum == 1:
                    return  # no descent is left in this precision
                momentum, before = 1.0, w
                continue
            model, _ = mix_two(model, result[2], obj)
            L = self.LIPSCHITZ_DECREASE * used_L
            if result[0] > current[0] + risk_uncertainty(obj, new, result):  # repeated without extrapolation
                momentum, before = 1.0, w
                continue
            # the step from v and the displacement from w form an obtuse angle
            restart = float((v - new) @ (new - w)) > 0  # the criterion of O'Donoghue and Candès
            w, before, current, base = new, w, result, new_base
            momentum = 1.0 if restart else grown
            if restart:
                before = w


def lipschitz_lower_bound(obj: Objective, w: Array, point: Evaluation) -> float:
    """A lower bound of the Lipschitz constant: |grad R|^2 <= 2 L R, since R >= 0; 1 if it is not positive."""
    # by the descent lemma, 0 <= R(w - g / L) <= R(w) - |g|^2 / (2 L)
    risk = point[0] - obj.lam * obj.reg.value(w)
    if not 0 < risk < math.inf:
        return 1.0
    scaled = point[1] / math.sqrt(2 * risk)  # |grad R|^2 would overflow far earlier than this
    return float(scaled @ scaled) or 1.0


def evaluate_point(obj: Objective, w: Array) -> tuple[Evaluation, float]:
    """The evaluation of J at w, and R(w) - g'w, the value at zero of the tangent there."""
    risk = obj.evaluate_risk(w)
    return obj.add_penalty(w, risk), risk.value - float(risk.gradient @ w)


def _step(
    obj: Objective, v: Array, tangent: tuple[Array, float], L: float, max_value: float
) -> tuple[Array, Evaluation | None, float, float]:
    """The proximal step from v whose J is at most `max_value`, with the first L that is large enough.

    Returns the new point, its evaluation (None if no L was large enough), L, and its tangent's value at zero.
    Near the minimum the decrease of J is less than its rounding, so the gradients must satisfy
    (g_new - g)'d <= L |d|^2 as well.
    """
    g, base = tangent
    # new = argmin_w lam Omega(w) + g'w + (L / 2) |w - v|^2
    for _ in range(MAX_LIPSCHITZ_INCREASES):
        new = obj.reg.prox(v - g / L, obj.lam / L)
        d = new - v
        square = float(d @ d)
        # v is a fixed point of the proximal step: it is optimal in this precision
        if square == 0:
            break
        result, new_base = evaluate_point(obj, new)
        curvature = float((result[1] - g) @ d) if math.isfinite(result[0]) else math.inf
        risk = result[0] - obj.lam * obj.reg.value(new)
        # R(new) less the tangent at v, to be compared with (L / 2) |d|^2
        above, slack = risk - float(g @ new) - base, risk_uncertainty(obj, new, result)
        bounded = curvature <= L * square and above <= 0.5 * L * square + slack
        if bounded and result[0] <= max_value + slack:
            return new, result, L, new_base
        # the observed curvature, but a factor between 2 and 100
        L = max(2 * L, min(curvature / square, 100 * L))
    return v, None, L, base


def risk_uncertainty(obj: Objective, w: Array, point: Evaluation) -> float:
    """The uncertainty of R(w): twice what its cut allows for at w, for rounding and for an intercept."""
    J, g, cut = point
    risk = J - obj.lam * obj.reg.value(w)
    # the cut of a smoothed loss lies above the tangent, so that it hides the error of the value
    error = 2 * CUT_ROUNDING * (abs(risk) + abs(float(g @ w))) + obj.risk.relative_error * abs(risk)
    if obj.reg.n_unpenalized:  # its cut lies further below: its slopes in intercepts are 0
        return 2 * error
    return 2 * max(risk - float(cut.a @ w) - cut.b, error)


def _snapshot(w: Array, before: Array, momentum: float, L: float) -> Callable[[], dict[str, Array]]:
    saved = {"w": w, "before": before, "numbers": np.array([momentum, L])}
    return saved.copy

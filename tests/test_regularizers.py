"""Regularizers and their contract."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from riskmin import L2, Bmrm, Bundle, Cut, Hinge, Lbfgs, LineSearchBmrm, Objective, linear_risk, minimize
from riskmin.testing import check_regularizer

vectors = arrays(float, 5, elements=st.floats(-100, 100))


@pytest.mark.parametrize("dim", [1, 2, 9, 100])
def test_contract(dim):
    check_regularizer(L2(), dim)


@dataclass(frozen=True)
class Broken:
    """L2 with one method wrong."""

    method: str

    def __getattr__(self, name):
        if name != self.method:
            return getattr(L2(), name)
        return {
            "value": lambda w: float(w @ w),
            "grad": lambda w: 1.001 * w,
            "prox": lambda v, step: v / (1 + 1.01 * step),
            "conjugate": lambda u: 0.499 * float(u @ u),
            "conjugate_grad": lambda u: 0.99 * u,
            "scale": lambda cut, lam: 1.0,
            "line": lambda w, d: lambda t: (0.5 * float((w + t * d) @ (w + t * d)), float(w @ d)),
        }[name]


@pytest.mark.parametrize("method", ["value", "grad", "prox", "conjugate", "conjugate_grad", "scale", "line"])
def test_contract_refuses(method):
    with pytest.raises(AssertionError):
        check_regularizer(Broken(method))


def test_contract_refuses_only_what_is_wrong():
    check_regularizer(Broken("none of them"))


@given(vectors, st.floats(-50, 50), st.floats(1e-3, 1e3))
def test_the_bound_is_the_minimum_of_the_cut_and_the_floor(a, b, lam):
    """By L2's own geometry: max(0, a @ w + b) + lam |w|^2 / 2 is least on the line through a."""
    lower = Objective(None, L2(), lam).lower(Cut(a, b))
    q = float(a @ a)
    if q < 1e-100:
        assert lower == pytest.approx(max(b, 0.0))
        return
    # w = -t a: max(0, b - t q) + lam t^2 q / 2, least at t = 1 / lam or where the cut meets the floor
    t = min(1 / lam, max(b / q, 0.0))
    least = max(0.0, b - t * q) + lam * t * t * q / 2
    assert lower == pytest.approx(least, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("solver", [Bundle(), Bmrm()], ids=repr)
def test_solvers_say_which_regularizer_they_take(solver):
    @dataclass(frozen=True)
    class Own:
        """One with a value and nothing else, but for a minimum."""

        def value(self, w):
            return float(np.abs(w).sum())

        def conjugate_grad(self, u):
            return np.zeros_like(u)

    obj = Objective(linear_risk(np.eye(2), np.array([1.0, -1.0]), Hinge()), Own(), 0.1)
    with pytest.raises(TypeError, match="needs a regularizer with gram or conjugate_bend.*Own.*ProximalGradient"):
        minimize(obj, solver)
    with pytest.raises(TypeError, match="smooth regularizer"):
        minimize(obj, Lbfgs())


@pytest.mark.parametrize("lam", [0.0, -1.0, np.inf, np.nan])
def test_lam_is_checked(lam):
    with pytest.raises(ValueError, match="finite number > 0"):
        Objective(None, L2(), lam)

"""Names and settings of solvers, and errors raised before anything runs."""

import numpy as np
import pytest

import riskmin as rm
from riskmin.solvers import SOLVERS, get_solver


# ---------------------------------------------------------------- names of solvers
def test_every_solver_has_a_name():
    named = {
        "accelerated_gradient": rm.AcceleratedGradient(),
        "augmented_lagrangian": rm.AugmentedLagrangian(),
        "auto": rm.Auto(),
        "bmrm": rm.Bmrm(),
        "bundle": rm.Bundle(),
        "chain_ascent": rm.ChainAscent(),
        "contingency_tables": rm.ContingencyTables(),
        "coordinate_descent": rm.CoordinateDescent(),
        "dual": rm.DualCoordinateAscent(),
        "dual_accelerated": rm.DualAccelerated(),
        "dual_conjugate_gradient": rm.DualConjugateGradient(),
        "dual_gauss_seidel": rm.DualGaussSeidel(),
        "excessive_gap": rm.ExcessiveGap(),
        "interior_point": rm.InteriorPoint(),
        "lbfgs": rm.Lbfgs(),
        "line_search_bmrm": rm.LineSearchBmrm(),
        "newton": rm.Newton(),
        "owlqn": rm.OwlQn(),
        "pegasos": rm.Pegasos(),
        "proximal_gradient": rm.ProximalGradient(),
        "scipy": rm.ScipyMinimizer(),
        "smoothing": rm.Smoothing(),
    }
    assert {name: get_solver(name) for name in SOLVERS} == named
    assert list(SOLVERS) == list(named)


def test_whole_numbers_are_written_after_a_name():
    assert get_solver("bundle:keep=5") == rm.Bundle(keep=5)
    assert get_solver("dual:seed=3,local_epochs=2") == rm.DualCoordinateAscent(seed=3, local_epochs=2)
    assert isinstance(get_solver("lbfgs:memory=7").memory, int)


def test_a_solver_instance_is_returned_as_it_is():
    solver = rm.Bundle(keep=3)
    assert get_solver(solver) is solver
    assert get_solver(None) == rm.Auto()


@pytest.mark.parametrize(
    ("solver", "message"),
    [
        (
            "sgd",
            r"there is no solver named 'sgd'; the names are accelerated_gradient, augmented_lagrangian, auto",
        ),
        (rm.Bundle, r"give an instance: Bundle\(\)$"),
        (rm.Lbfgs, r"give an instance: Lbfgs\(\)$"),
        (
            rm.Hinge(),
            r"^Hinge\(margin=1.0\) is not a solver: pass an object such as Bundle\(\), or .* newton",
        ),
        (3, "^3 is not a solver"),
    ],
)
def test_invalid_solvers_are_refused(solver, message):
    with pytest.raises(ValueError, match=message) as caught:
        get_solver(solver)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- settings of solvers
@pytest.mark.parametrize("value", [0, -1, 2.5, True, "3", None, np.nan])
@pytest.mark.parametrize(("kind", "name"), [(rm.Lbfgs, "memory"), (rm.Bundle, "keep")])
def test_counts_are_checked(kind, name, value):
    with pytest.raises(ValueError, match=f"{kind.__name__} needs {name} to be a whole number >= 1, not"):
        kind(**{name: value})
    assert kind(**{name: np.int64(5)}) == kind(**{name: 5})

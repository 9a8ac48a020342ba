"""Names and settings of solvers, and errors raised before anything runs."""

import numpy as np
import pytest

import riskmin as rm
from helpers import refusals
from riskmin.solvers import SOLVERS, get_solver

NAMED = {"dual": rm.DualCoordinateAscent(), "scipy": rm.ScipyMinimizer(), "owlqn": rm.OwlQn()}
"""Those whose name is not that of their class."""


def test_every_solver_has_a_name():
    assert list(SOLVERS) == sorted(SOLVERS)
    assert len(SOLVERS) == 22
    for name in SOLVERS:
        named = NAMED.get(name) or getattr(rm, name.title().replace("_", ""))()
        assert get_solver(name) == named


def test_whole_numbers_are_written_after_a_name():
    assert get_solver("bundle:keep=5") == rm.Bundle(keep=5)
    assert get_solver("dual:seed=3,local_epochs=2") == rm.DualCoordinateAscent(seed=3, local_epochs=2)
    assert isinstance(get_solver("lbfgs:memory=7").memory, int)


def test_a_solver_instance_is_returned_as_it_is():
    solver = rm.Bundle(keep=3)
    assert get_solver(solver) is solver
    assert get_solver(None) == rm.Auto()


def with_count(kind, name, value):
    return lambda: kind(**{name: value})


COUNTS = [(rm.Lbfgs, "memory"), (rm.Bundle, "keep")]
REFUSED = [
    (lambda: get_solver("sgd"), "no solver named 'sgd'; the names are accelerated_gradient, augmented_lag"),
    (lambda: get_solver(rm.Bundle), r"give an instance: Bundle\(\)$"),
    (lambda: get_solver(rm.Lbfgs), r"give an instance: Lbfgs\(\)$"),
    (lambda: get_solver(rm.Hinge()), r"^Hinge\(margin=1.0\) is not a solver: pass .*Bundle\(\), or .*newton"),
    (lambda: get_solver(3), "^3 is not a solver"),
    *(
        (with_count(kind, name, value), f"{kind.__name__} needs {name} to be a whole number >= 1, not")
        for kind, name in COUNTS
        for value in (0, -1, 2.5, True, "3", None, np.nan)
    ),
]
test_refusals = refusals((REFUSED, ValueError))


@pytest.mark.parametrize(("kind", "name"), COUNTS)
def test_counts_of_numpy_are_whole_numbers(kind, name):
    assert kind(**{name: np.int64(5)}) == kind(**{name: 5})

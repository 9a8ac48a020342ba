"""Names and settings of solvers, and errors raised before anything runs."""

import numpy as np

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


REFUSED = [
    (lambda: get_solver("sgd"), "no solver named 'sgd'.* The names are accelerated_gradient, augmented_lag"),
    (lambda: get_solver(rm.Bundle), r"give an instance: Bundle\(\)$"),
    (lambda: get_solver(rm.Hinge()), r"^Hinge\(margin=1.0\) is not a solver: pass .*Bundle\(\), or .*newton"),
    (lambda: get_solver(3), "^3 is not a solver"),
]
test_refusals = refusals((REFUSED, ValueError))


def test_counts_of_numpy_are_whole_numbers():
    assert rm.Lbfgs(memory=np.int64(5)) == rm.Lbfgs(memory=5)
    assert rm.Bundle(keep=np.int64(5)) == rm.Bundle(keep=5)

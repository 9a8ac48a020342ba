"""Small examples of the parts of `riskmin.numerics`."""

import numpy as np
import pytest

from riskmin.numerics.projections import project
from riskmin.numerics.simplex import project_onto_simplex
from riskmin.numerics.simplex_qp import simplex_qp
from riskmin.numerics.sorting import prefix_sums, ranks_in_sorted, stable_argsort


def test_project():
    one = np.ones(3)
    assert project(np.array([2.0, 0.5, 0.0]), one, 0 * one, one, total=1.0).tolist() == [1.0, 0.0, 0.0]


def test_project_onto_simplex():
    assert project_onto_simplex(np.array([[2.0, 0.5, 0.0], [0.5, 0.5, 0.3]])).round(6).tolist() == [
        [1.0, 0.0, 0.0],
        [0.4, 0.4, 0.2],
    ]


def test_simplex_qp():
    assert simplex_qp(np.diag([1.0, 1.0]), np.zeros(2), np.array([1.0, 0.0])) == pytest.approx([0.5, 0.5])


def test_stable_argsort():
    assert stable_argsort(np.array([3.0, 1.0, 2.0, 1.0])).tolist() == [1, 3, 2, 0]


def test_ranks_in_sorted():
    assert ranks_in_sorted(np.array([1.0, 2.0, 2.0]), np.array([0.0, 2.0]), side="right").tolist() == [0, 3]


def test_prefix_sums():
    assert prefix_sums(np.array([1.0, 2.0, 4.0])).tolist() == [0.0, 1.0, 3.0, 7.0]

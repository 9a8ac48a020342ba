"""Small examples of the parts of `riskmin.linear_maps`."""

import numpy as np

from riskmin import Tree
from riskmin.arrays.matrix import as_matrix
from riskmin.linear_maps.chain import ChainMap, decode, marginals
from riskmin.linear_maps.linear import Centered, MultiOutput, SingleOutput, Standardized, TreePaths
from riskmin.linear_maps.tree import path_parents


def test_chain_map():
    w = np.arange(1.0, 13.0)  # two features, two labels
    assert ChainMap(2).scores(as_matrix(np.eye(2)), w, 1, 2).tolist() == [
        [3.0, 4.0],
        [5.0, 6.0],
        [7.0, 8.0],
        [9.0, 10.0],
        [11.0, 12.0],
    ]


def test_decode():
    E = np.array([[1.0, 0.0], [0.0, 2.0], [1.5, 0.0]])
    T = np.array([[0.0, -np.inf], [0.0, 0.0]])  # no 1 after a 0
    assert decode(E, T, np.zeros(2), np.zeros(2), np.array([3])).tolist() == [1, 1, 0]


def test_marginals():
    E, T = np.zeros((2, 2)), np.array([[0.0, -np.inf], [0.0, 0.0]])  # 00, 10 and 11 are allowed
    assert marginals(E, T, np.zeros(2), np.zeros(2), np.array([2])).round(4).tolist() == [
        [0.3333, 0.6667],
        [0.6667, 0.3333],
    ]


def test_centered():
    X, W = np.array([[1.0], [3.0]]), np.array([1.0, 2.0])
    assert Centered(MultiOutput(2), np.array([2.0])).scores(as_matrix(X), W, 0, 2).tolist() == [
        [-1.0, -2.0],
        [1.0, 2.0],
    ]


def test_standardized():
    linear_map = Standardized(SingleOutput(), np.array([2.0]), np.array([10.0]))
    assert linear_map.scores(as_matrix(np.array([[1.0], [3.0]])), np.array([1.0]), 0, 2).tolist() == [
        -10.0,
        10.0,
    ]


def test_tree_paths():
    linear_map = TreePaths(Tree.from_paths(["C/C15", "M"]))
    scores = linear_map.scores(as_matrix(np.array([[2.0]])), np.array([1.0, 2.0, 4.0]), 0, 1)
    assert scores.tolist() == [[6.0, 8.0]]


def test_path_parents():
    assert path_parents(["C/C15", "M"]) == {"C": None, "C/C15": "C", "M": None}

"""Weights of the features in an L2 of many outputs, where each feature has an entry of w an output."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from riskmin.matrices import Csr, as_scipy
from riskmin.regularizers import penalized
from riskmin.types import NDArray


def of_features(reg: Any, k: int) -> Any:
    """The weights of an L2 of k outputs, one a feature, or one number for all: those of the first output.

    Examples
    --------
    >>> from riskmin import L2
    >>> of_features(L2([1.0, 1.0, 4.0, 4.0]), 2).tolist(), of_features(L2(), 2)
    ([1.0, 4.0], 1.0)
    """
    weights = penalized(reg).weights
    return weights if np.ndim(weights) == 0 else weights[::k]


def alike(reg: Any, k: int) -> bool:
    """Whether all outputs of a feature have the same weight.

    Examples
    --------
    >>> from riskmin import L2
    >>> alike(L2([1.0, 1.0, 4.0, 4.0]), 2), alike(L2([1.0, 2.0, 4.0, 4.0]), 2)
    (True, False)
    """
    weights = penalized(reg).weights
    return bool(np.ndim(weights) == 0 or np.array_equal(weights, np.repeat(weights[::k], k)))


def scaled(X: Any, roots: Any) -> Any:
    """The rows with their features divided by the roots of weights: under them, L2 has none.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import as_matrix
    >>> scaled(as_matrix(np.ones((1, 2))), np.array([1.0, 2.0])).tolist()
    [[1.0, 0.5]]
    """
    if isinstance(X, Csr):
        by: NDArray = 1 / (roots + np.zeros(X.shape[1]))
        found = as_scipy(X)
        return sp.csr_array((found.data * by[found.indices], found.indices, found.indptr), shape=X.shape)
    return X.X / roots

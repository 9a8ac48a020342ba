"""Regularizers: convex functions of w with their conjugates, without the regularization strength lam."""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.core.registry import Registry
from riskmin.regularizers.base import Regularizer as Regularizer
from riskmin.regularizers.by_output import repeat_per_output as repeat_per_output
from riskmin.regularizers.entropy import Entropy as Entropy
from riskmin.regularizers.from_conjugate import as_regularizer as as_regularizer
from riskmin.regularizers.groups import GroupLasso as GroupLasso
from riskmin.regularizers.linear_constraints import LinearConstraints as LinearConstraints
from riskmin.regularizers.norms import QNorm as QNorm
from riskmin.regularizers.norms import Quadratic as Quadratic
from riskmin.regularizers.rescaled import Rescaled as Rescaled
from riskmin.regularizers.rescaled import rescaled as rescaled
from riskmin.regularizers.separable import L1 as L1
from riskmin.regularizers.separable import L2 as L2
from riskmin.regularizers.separable import Box as Box
from riskmin.regularizers.separable import Elastic as Elastic
from riskmin.regularizers.separable import Separable as Separable
from riskmin.regularizers.unpenalized import Equality as Equality
from riskmin.regularizers.unpenalized import UnpenalizedTail as UnpenalizedTail
from riskmin.regularizers.unpenalized import unpenalized_tail as unpenalized_tail

_OWN: dict[str, Any] = {
    "l2": L2(),
    "l1": L1(),
    "elastic": Elastic(),
    "entropy": Entropy(balanced=True),
    "unnormalized_entropy": Entropy(normalized=False, balanced=True),
    "qnorm": QNorm(),
}
_SYNONYMS = {"lasso": "l1", "ridge": "l2", "elasticnet": "elastic", "elastic_net": "elastic"}

REGULARIZERS = Registry(
    "regularizer",
    "prox",
    "riskmin.regularizers",
    "elastic:eps=0.5",
    _OWN,
    Box,
    GroupLasso,
    LinearConstraints,
    synonyms=_SYNONYMS,
)
"""The regularizers by the names that commands and estimators accept."""


def get_regularizer(reg: Any) -> Any:
    """Return the regularizer of a name; any other object as a `Regularizer` (see `as_regularizer`).

    Parameters
    ----------
    reg : str or Regularizer
        A name of `REGULARIZERS`, optionally with parameters after a colon (``"elastic:eps=2"``,
        ``"qnorm:q=1.2"``); a class to import (``"package.module:Class,eps=2"``); or a regularizer object.

    Returns
    -------
    Regularizer
        The regularizer.

    Examples
    --------
    >>> get_regularizer("elastic:eps=2")
    Elastic(eps=2.0)
    >>> get_regularizer(L1())
    L1()
    """
    return REGULARIZERS.resolve(reg, as_regularizer, "such as L1()")


def register_regularizer(name: str, reg: Any) -> None:
    """Add a regularizer to `REGULARIZERS`: estimators accept its name, and models with it can be loaded.

    Parameters
    ----------
    name : str
        A Python identifier; not the name of a regularizer of riskmin.
    reg : Regularizer
        An object, or its class. The fields of a dataclass can be set after the name: ``"name:eps=2"``.

    Examples
    --------
    >>> register_regularizer("mostly_l1", Elastic(eps=0.1))
    >>> get_regularizer("mostly_l1")
    Elastic(eps=0.1)
    >>> del REGULARIZERS["mostly_l1"]
    """
    REGULARIZERS.register(name, reg)


def with_scaled_variables(reg: Any, s: NDArray) -> Any:
    """Return the regularizer as a function of v = w / s, for s > 0; None if riskmin has no such class."""
    if np.all(s == 1):
        return reg
    # Omega(s v) as a function of v, if the class can express it by other weights
    return reg.scaled(s)

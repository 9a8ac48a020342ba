"""Per-feature settings of regularizers in multi-output models: w has one entry per feature and output."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from riskmin.arrays.namespace import array_shape
from riskmin.regularizers.entropy import Entropy
from riskmin.regularizers.groups import GroupLasso
from riskmin.regularizers.linear_constraints import LinearConstraints
from riskmin.regularizers.separable import Separable


def repeat_per_output(reg: Any, n_features: int, dim: int) -> Any:
    """Return the regularizer with its per-feature settings repeated for each output.

    w has `dim` entries, those of a feature contiguous. The regularizer is returned unchanged if no setting is
    an array with one entry per feature.
    """
    n_outputs, remainder = divmod(dim, n_features)
    if isinstance(reg, GroupLasso) and len(reg.groups) == n_features and not remainder:
        return replace(reg, groups=np.repeat(reg.groups, n_outputs)) if n_outputs > 1 else reg
    if (
        isinstance(reg, LinearConstraints)
        and reg.A.shape[1] == n_features
        and n_outputs > 1
        and not remainder
    ):
        inner = repeat_per_output(reg.reg, n_features, dim)
        bounds = (np.repeat(bound + np.zeros(len(reg.A)), n_outputs) for bound in (reg.lower, reg.upper))
        return LinearConstraints(inner, np.kron(reg.A, np.eye(n_outputs)), *bounds)
    if remainder or n_outputs < 2 or not isinstance(reg, (Separable, Entropy)):
        return reg
    changed: dict[str, Any] = {}
    for field in fields(reg):  # type: ignore[arg-type]
        value = vars(reg)[field.name]
        # an array of any other length is left to the check against w
        if array_shape(value) == (n_features,):
            changed[field.name] = np.repeat(value, n_outputs)
        elif isinstance(value, Separable):
            changed[field.name] = repeat_per_output(value, n_features, dim)
    return replace(reg, **changed) if changed else reg  # type: ignore[type-var]

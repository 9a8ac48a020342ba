"""Rows that are elsewhere: whatever `Auto` picks for them can take them."""

import numpy as np
import pytest

from everywhere import Elsewhere
from riskmin import (
    L1,
    L2,
    Elastic,
    Entropy,
    Hinge,
    Logistic,
    Objective,
    QNorm,
    Squared,
    linear_risk,
    minimize,
)


@pytest.mark.parametrize("loss", [Hinge(), Logistic(), Squared()], ids=repr)
@pytest.mark.parametrize("reg", [L2(), L1(), Elastic(0.5), Entropy(), QNorm(1.5)], ids=repr)
def test_any_regularizer_by_default(loss, reg):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((20, 3)), np.where(np.arange(20) % 3, 1.0, -1.0)
    here, there = (
        minimize(Objective(linear_risk(X, y, loss, executor=executor, n_shards=2), reg, 0.1))
        for executor in (None, Elsewhere())
    )
    assert here.status == there.status == "converged"
    assert max(here.lower, there.lower) <= min(here.value, there.value) * (1 + 1e-12)

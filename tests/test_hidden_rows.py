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
    LinearClassifier,
    Local,
    Logistic,
    Objective,
    QNorm,
    Spread,
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


def test_parts_of_no_rows_are_left_out():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((20, 3)), np.where(np.arange(20) % 3, 1.0, -1.0)
    parts = [Local(X[i:j], f"rows from {i}") for i, j in ((0, 0), (0, 7), (7, 7), (7, 20), (20, 20))]
    spread = Spread(parts, executor=Elsewhere())
    assert [part.name for part in spread.parts] == ["rows from 0", "rows from 7"]
    model = LinearClassifier().fit(spread, y)
    np.testing.assert_array_equal(model.predict(spread), model.predict(X))
    with pytest.raises(ValueError, match="0 rows"):
        linear_risk(Spread([parts[0], parts[2]]), y[:0], Hinge())

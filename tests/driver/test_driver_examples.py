"""Small examples of the parts of `riskmin.driver`."""

import numpy as np

from riskmin import L2, Hinge, Objective, linear_risk
from riskmin.driver.fingerprint import fingerprint


def test_fingerprint():
    X, y = np.eye(3), np.array([1.0, -1.0, 1.0])
    one = fingerprint(Objective(linear_risk(X, y, Hinge()), L2(), 0.1))
    parts = fingerprint(Objective(linear_risk(X, y, Hinge(), n_shards=2), L2(), 0.1))
    other = fingerprint(Objective(linear_risk(X, -y, Hinge()), L2(), 0.1))
    assert one == parts
    assert one != other

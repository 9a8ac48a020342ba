"""Small examples of the parts of `riskmin.regularizers`."""

import numpy as np

from riskmin import L1, Box
from riskmin.core import Cut
from riskmin.regularizers import L2, QNorm, with_scaled_variables
from riskmin.regularizers.by_output import repeat_per_output
from riskmin.regularizers.from_conjugate import as_regularizer
from riskmin.regularizers.rescaled import Rescaled, rescaled
from riskmin.regularizers.unpenalized import unpenalized_tail


def test_with_scaled_variables():
    assert with_scaled_variables(L2(), np.array([2.0, 3.0])) == L2(weights=[4.0, 9.0])
    assert with_scaled_variables(QNorm(), np.full(2, 2.0)) is None


def test_as_regularizer():
    class Mine:
        def value(self, w):
            return float(w @ w)

        def prox(self, v, step):
            return v / (1 + 2 * step)

        def conjugate(self, u):
            return float(u @ u) / 4

        def conjugate_grad(self, u):
            return u / 2

    reg = as_regularizer(Mine())
    assert type(reg).__name__ == "Mine"
    assert not (reg.smooth)
    assert round(reg.scale(Cut(np.ones(2), 1.0), 4.0), 6) == 1.0


def test_repeat_per_output():
    assert repeat_per_output(L2([1.0, 4.0]), 2, 4).weights.tolist() == [1.0, 1.0, 4.0, 4.0]
    assert repeat_per_output(Box(L1(), [0.0, -1.0]), 2, 6).lower.tolist() == [0.0, 0.0, 0.0, -1.0, -1.0, -1.0]


def test_rescaled():
    reg = Rescaled(QNorm(q=1.5), np.array([1.0, 10.0]))
    w = np.array([2.0, -0.3])
    assert reg.value(w) == QNorm(q=1.5).value(np.array([2.0, -3.0]))
    assert reg.scaled(np.array([1.0, 0.1])) == QNorm(q=1.5)


def test_rescaled_by_ones():
    assert isinstance(rescaled(QNorm(), np.array([2.0, 3.0])), Rescaled)
    assert rescaled(QNorm(), np.ones(2)) == QNorm()


def test_without_sizes():
    assert Rescaled(L1(), np.array([2.0, 3.0])).without_sizes == L1(weights=[2.0, 3.0])


def test_unpenalized_tail():
    assert unpenalized_tail(L2(), 1).value(np.array([3.0, 100.0])) == 4.5


def test_unpenalized_tail_is_as_smooth():
    assert [unpenalized_tail(reg, 3).smooth for reg in (L2(), L1())] == [True, False]
    assert unpenalized_tail(L1(), 0) == L1()

"""Objects of user-defined classes: adapted once, they have all methods and traits of the abstract bases."""

import pickle
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import numpy as np
import pytest

from helpers import Ridge
from riskmin import L2, Hinge, LinearRegressor, Objective, Squared, linear_risk, minimize
from riskmin.losses import Loss, as_loss, get_loss
from riskmin.regularizers import Regularizer, as_regularizer


class Plain:
    """A loss with `value_grad` alone."""

    def __init__(self, scale=1.0):
        self.scale, self.calls = scale, 0

    def value_grad(self, z, y, c):
        self.calls += 1
        return self.scale * (c @ abs(z - y)), self.scale * c * np.sign(z - y)


@dataclass(frozen=True, slots=True)
class Slots:
    """A frozen dataclass with slots."""

    scale: float = 2.0
    smooth: bool = field(default=True, repr=False)

    def value_grad(self, z, y, c):
        return 0.5 * self.scale * (c @ (z - y) ** 2), self.scale * c * (z - y)


def test_a_plain_loss_gets_the_defaults():
    plain = Plain(3.0)
    loss = as_loss(plain)
    assert isinstance(loss, Loss)
    assert isinstance(loss, Plain)
    assert as_loss(loss) is loss
    assert type(loss).__name__ == "Plain"
    assert loss.separable
    assert not any((loss.smooth, loss.has_hessian, loss.can_be_smoothed, loss.multi_output, loss.has_cutoff))
    assert loss.conjugate(np.ones(1)) is None
    assert loss.smoothed(0.1) is None
    assert repr(loss).split(" at ")[0] == repr(plain).split(" at ")[0]
    # one state: a loss that counts its calls still does
    loss.value_grad(np.ones(1), np.zeros(1), np.ones(1))
    assert plain.calls == loss.calls == 1


def test_slots_and_frozen_fields_are_kept():
    loss = as_loss(Slots(4.0))
    assert loss.smooth
    assert loss.scale == 4.0
    assert repr(loss) == "Slots(scale=4.0)"
    assert loss == as_loss(Slots(4.0)) != as_loss(Slots(2.0))
    assert replace(loss, scale=1.0).scale == 1.0


@pytest.mark.parametrize("thing", [Plain(3.0), Slots(4.0)], ids=lambda thing: type(thing).__name__)
def test_a_pickle_holds_the_original_object(thing):
    again = pickle.loads(pickle.dumps(as_loss(thing)))
    assert isinstance(again, Loss)
    assert again.scale == thing.scale
    assert type(again) is type(as_loss(thing))


def test_attributes_of_objects_count_as_those_of_classes():
    loss = as_loss(SimpleNamespace(value_grad=Squared().value_grad, hessian=Squared().hessian, smooth=True))
    assert loss.smooth
    assert loss.has_hessian
    X, y = np.eye(3), np.array([1.0, 2.0, 3.0])
    result = minimize(Objective(linear_risk(X, y, loss), L2(), lam=0.1))
    assert result.status == "converged"
    assert result.solver.startswith("Newton")

    class Delegating:
        def __getattr__(self, name):
            return getattr(Hinge(margin=2.0), name)

    delegating = as_loss(Delegating())
    assert delegating.task == "classification"
    assert delegating.margin == 2.0
    assert delegating.interval_conjugate(np.ones(1)).shift.tolist() == [2.0]


def test_objects_without_the_required_methods_are_refused():
    with pytest.raises(TypeError, match=r"has no method value_grad\(z, y, c\)"):
        as_loss(object())
    with pytest.raises(ValueError, match="or one of the names hinge"):
        get_loss(object())
    with pytest.raises(TypeError, match="has no method prox, conjugate_grad"):
        as_regularizer(SimpleNamespace(value=abs, conjugate=abs))
    with pytest.raises(TypeError, match="abstract"):
        type("Empty", (Loss,), {})()


def test_a_plain_regularizer_gets_the_defaults():
    J = Objective(linear_risk(np.eye(4), np.arange(1.0, 5.0), Squared()), Ridge(), lam=0.1)
    assert isinstance(J.reg, Regularizer)
    assert isinstance(J.reg, Ridge)
    assert not any((J.reg.smooth, J.reg.quadratic, J.reg.separable, J.reg.has_conjugate_hessian))
    assert "Ridge" in minimize(J).solver


def test_estimators_keep_the_given_object():
    loss = Plain()
    model = LinearRegressor(loss).fit(np.eye(3), [1.0, 2.0, 3.0])
    assert model.loss is loss
    assert model.get_params()["loss"] is loss
    assert "Plain" in model.result_.solver

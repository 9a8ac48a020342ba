"""Backward compatibility: models and checkpoints written by version 0.1 in November 2026 are still read.

The files predate the present names of classes and modules, and are never rewritten. Each model makes the same
predictions as then; each checkpoint, saved after two iterations, resumes to the same result.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import test_golden

from riskmin import (
    L1,
    L2,
    Absolute,
    Auto,
    Bundle,
    Checkpoint,
    DualCoordinateAscent,
    Equality,
    Fallback,
    Hinge,
    Lbfgs,
    MulticlassHinge,
    MultivariateSquared,
    Newton,
    Nu,
    Objective,
    Quadratic,
    Smoothing,
    Switching,
    kernel_risk,
    linear_risk,
    load_model,
    minimize,
)
from riskmin.driver.fingerprint import fingerprint

FOLDER = Path(__file__).parents[1] / "golden" / "saved"
RUNS = json.loads((FOLDER / "runs.json").read_text(encoding="utf-8"))
PREDICTIONS = json.loads((FOLDER / "predictions.json").read_text(encoding="utf-8"))
SOLVERS_OF_FILES = {
    "hand_over.checkpoint": Switching(DualCoordinateAscent(), Newton(), tol=1e-4),
    "relay.checkpoint": Fallback((Lbfgs(), Bundle())),
    "adaptive.checkpoint": Auto(),
    "09.checkpoint": Fallback((Bundle(keep=20), Smoothing())),
}


def objective(case):
    """The problem of a golden run."""
    loss, reg, _, store, table, intercept = case
    loss_object, y = test_golden.LOSSES[loss]
    X = test_golden.Z if table == "raw" else test_golden.X
    if reg == "rkhs":
        return Objective(*kernel_risk(X, y, loss_object, "rbf", fit_intercept=intercept), 1e-2)
    settings = test_golden.MORE.get(loss, {})
    risk = linear_risk(test_golden.STORES[store](X), y, loss_object, fit_intercept=intercept, **settings)
    return Objective(risk, test_golden.REGS[reg], 1e-2)


@pytest.mark.parametrize("name", RUNS)
def test_old_checkpoints_are_resumed(name, tmp_path):
    then = RUNS[name]
    solver = SOLVERS_OF_FILES.get(name) or then["case"][2]
    path = shutil.copy(FOLDER / name, tmp_path / "run")
    result = minimize(objective(then["case"]), solver, tol=1e-4, max_iter=150, checkpoint=Checkpoint(path))
    assert result.status == then["status"]
    assert result.trace[1]["iteration"] == 2
    assert not {"looks", "fall", "turn"} & result.trace[0].keys()
    if test_golden.machine() == json.loads((FOLDER.parent / "runs.json").read_text())["machine"]:
        assert result.n_iter == then["steps"]
        # searches for intercepts have changed since: their points differ within their accuracy
        accuracy = 1e-8 if then["case"][5] else 1e-12
        for now, saved in ((result.value, then["value"]), (result.lower, then["lower"])):
            assert now == pytest.approx(float.fromhex(saved), rel=accuracy)
    else:
        assert result.value == pytest.approx(float.fromhex(then["value"]), rel=2e-4)


def special_objectives():
    """Problems whose parts contain arrays, with their names in the file of fingerprints."""
    X, sign, margin, classes = test_golden.X, test_golden.SIGN, test_golden.MARGIN, test_golden.CLASS
    targets, costs = np.c_[margin, test_golden.COUNT], np.ones((3, 3)) - np.eye(3)
    weights = np.arange(90) + 1.0
    yield "quad", linear_risk(X, sign, Hinge()), Quadratic(np.eye(6))
    yield "weights", linear_risk(X, sign, Hinge(), sample_weight=weights), L2(np.arange(6) + 1.0)
    yield "adaptive+b", linear_risk(X, margin, Nu(Absolute(), 0.5), fit_intercept=True), L2()
    yield "mvs", linear_risk(X, targets, MultivariateSquared(), fit_intercept=True), L2()
    yield "cost", linear_risk(X, classes, MulticlassHinge(costs), fit_intercept=True), L1()
    yield "equality", linear_risk(X, sign, Hinge()), Equality(L2(), np.ones(6))


def test_fingerprints_are_unchanged():
    """A renamed attribute would change the hash, and every old checkpoint would be refused."""
    before = json.loads((FOLDER.parent / "fingerprints.json").read_text(encoding="utf-8"))
    now = {test_golden.name_of(case): objective(case) for case in test_golden.cases()}
    now |= {name: Objective(risk, reg, 0.1) for name, risk, reg in special_objectives()}
    assert len(now.keys() & before.keys()) >= 20
    changed = [name for name in now.keys() & before.keys() if fingerprint(now[name]) != before[name]]
    assert not changed


def words():
    """The tokens on which the tagger was fitted."""
    margins = test_golden.MARGIN
    return [[{"word": f"w{int(abs(10 * v)) % 7}"} for v in margins[i : i + 10]] for i in range(0, 90, 10)]


@pytest.mark.parametrize("name", PREDICTIONS)
def test_old_models_make_the_same_predictions(name):
    model = load_model(FOLDER / f"{name}.model")
    if name == "tagger":
        assert [list(map(str, tags)) for tags in model.predict(words())] == PREDICTIONS[name]
        return
    now, then = np.asarray(model.predict(test_golden.X)), np.asarray(PREDICTIONS[name])
    if then.dtype.kind == "f":
        np.testing.assert_allclose(now, then, rtol=1e-12)
    else:
        assert np.array_equal(now.astype(then.dtype), then)

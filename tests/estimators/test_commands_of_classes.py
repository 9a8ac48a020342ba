"""The command with several classes and several outputs: predictions, metrics, certificates, searches."""

import json

import numpy as np
import pandas as pd
import pytest
from estimator_cases import BOTH, GRADE, N, X, edit

from helpers import check_sentence
from riskmin import LinearRegressor, load_model, save_model

KINDS = np.array(["ash", "oak", "yew"])[GRADE]
FRAME = pd.DataFrame(X, columns=list("abcd"))


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "kinds.csv"
    FRAME.assign(kind=KINDS).to_csv(path, index=False)
    return path


def test_several_classes(table, tmp_path, run):
    model = tmp_path / "m"
    code, out, _ = run("fit", table, "--loss", "logistic", "--lam", "0.01", "-o", model)
    assert code == 0
    assert f"{N} rows x 4 columns, 3 classes" in out
    fitted = load_model(model)
    z = X @ fitted.coef_.T + fitted.intercept_
    losses = np.log(np.exp(z).sum(axis=1)) - z[np.arange(N), GRADE]
    assert fitted.objective_ == pytest.approx(losses.mean() + 0.005 * (fitted.coef_**2).sum(), rel=1e-9)
    assert run("predict", model, table)[1].split() == fitted.predict(FRAME).tolist()
    for option, expected in {"--proba": fitted.predict_proba, "--scores": fitted.decision_function}.items():
        out = run("predict", model, table, option)[1]
        np.testing.assert_allclose(np.loadtxt(out.splitlines()), expected(FRAME))
    code, out, _ = run("evaluate", model, table)
    assert "macro F1" in out
    assert "oak" in out
    metrics = json.loads(run("evaluate", model, table, "--json")[1])
    assert metrics["accuracy"] == pytest.approx(fitted.score(FRAME, KINDS))
    assert metrics["classes"]["yew"]["rows"] == (KINDS == "yew").sum()
    code, out, _ = run("certify", model, table, "--json", "--quiet")
    assert (code, json.loads(out)["verdict"]) == (0, "certified")


def shift_weight(arrays, meta):
    arrays["coef"][3] += 0.1


def shift_intercept(arrays, meta):
    arrays["coef"][-1] += 0.1


def lift(arrays, meta):
    meta["claim"]["b"] += 0.01
    meta["claim"]["lower_bound"] += 0.01


def tilt(arrays, meta):
    """A cut with a slope in an intercept bounds nothing."""
    arrays["cut"][-1] += 1e-3
    arrays["cut"][-2] -= 1e-3


def swap(arrays, meta):
    """Swapped classes are no valid model."""
    values = meta["fitted"]["classes"]["values"]
    values[0], values[1] = values[1], values[0]


@pytest.mark.parametrize("change", [shift_weight, shift_intercept, lift, tilt, swap])
def test_changed_models_are_refuted(change, table, tmp_path, run):
    run("fit", table, "--loss", "softmax", "--lam", "0.01", "-o", tmp_path / "m")
    edit(tmp_path / "m", change)
    code, _, err = run("certify", tmp_path / "m", table, "--quiet")
    assert (code, "not sorted" in err) == ((2, True) if change is swap else (1, False))
    assert change is swap or "refuted" in err


@pytest.mark.exhaustive
@pytest.mark.parametrize("loss", ["hinge", "squared_hinge", "multiclass_hinge:rescaled=1"])
def test_other_losses(loss, table, tmp_path, run):
    model, page = tmp_path / "m", tmp_path / "page.html"
    assert run("fit", table, "--loss", loss, "--lam", "0.1", "-o", model, "--report", page)[0] == 0
    assert run("certify", model, table, "--quiet")[0] == 0
    code, out, _ = run("path", table, "--loss", loss, "--reg", "l1", "--n-lams", 2, "-o", page)
    assert code == 0
    assert any(kind in page.read_text(encoding="utf-8") for kind in ("ash", "oak", "yew"))
    assert out.splitlines()[2].split()[3] == "0"  # all weights are zero at the largest lam
    assert run("cv", table, "--loss", loss, "--lams", "1,0.1", "--folds", 2, "-o", model)[0] == 0


def test_losses_of_two_classes_and_new_labels_are_named(table, tmp_path, run):
    words = "3 classes (ash, oak, yew), but exponential takes two: choose hinge"
    check_sentence(run("fit", table, "--loss", "exponential", "-o", tmp_path / "m"), words)
    run("fit", table, "--loss", "logistic", "-o", tmp_path / "m")
    FRAME.assign(kind="iris").to_csv(table, index=False)
    check_sentence(
        run("evaluate", tmp_path / "m", table), "the label iris is none of the model's, ash, oak, yew"
    )


def test_several_outputs_are_predicted(tmp_path, run):
    model = LinearRegressor(alpha=0.1).fit(X, BOTH)
    save_model(model, tmp_path / "m")
    np.savez(tmp_path / "d.npz", X=X, y=BOTH[:, 0])
    code, out, _ = run("predict", tmp_path / "m", tmp_path / "d.npz")
    assert code == 0
    np.testing.assert_allclose(np.loadtxt(out.splitlines()), model.predict(X))
    for command in ("evaluate", "certify"):
        check_sentence(run(command, tmp_path / "m", tmp_path / "d.npz"), "predicts 2 numbers per row")

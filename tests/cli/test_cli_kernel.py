"""The command with kernel machines and nu-models: predictions, metrics and certificates."""

import dataclasses
import json

import numpy as np
import pytest
from sklearn.datasets import make_moons

from riskmin import (
    Absolute,
    Cut,
    Hinge,
    KernelClassifier,
    KernelRegressor,
    LinearClassifier,
    Nu,
    load_model,
    save_model,
)
from riskmin.core.persist import checksum, load_arrays, save_arrays
from riskmin.data import save_svmlight

X, Y = make_moons(150, noise=0.2, random_state=0)
X = X.round(3)


@pytest.fixture
def data(tmp_path):
    save_svmlight(tmp_path / "moons.svm", X, Y)
    return tmp_path / "moons.svm"


MODELS = {
    "hinge": KernelClassifier(alpha=1e-3),
    "laplacian": KernelClassifier("logistic", kernel="laplacian", alpha=1e-2, class_weight="balanced"),
    "bundle": KernelClassifier(alpha=1e-2, gamma=1.0, solver="bundle", fit_intercept=False),
    "absolute": KernelRegressor("absolute", kernel="poly", coef0=1.0, alpha=1e-2),
    "poisson": KernelRegressor("poisson", alpha=1e-2),
    "nu": KernelClassifier(Nu(Hinge(), 0.5), alpha=1e-2),
    "nu, linear": LinearClassifier(Nu(Hinge(), 0.7), alpha=1e-2),
    "nu, regression": KernelRegressor(Nu(Absolute(), 0.4), alpha=1e-2),
}


@pytest.mark.parametrize("name", MODELS)
def test_files_predict_evaluate_and_certify(name, data, tmp_path, run):
    model = MODELS[name].fit(X, Y)
    save_model(model, tmp_path / "m")
    code, out, err = run("predict", tmp_path / "m", data)
    assert (code, err) == (0, "")
    np.testing.assert_allclose([float(line) for line in out.split()], model.predict(X), atol=1e-9)
    code, out, err = run("predict", tmp_path / "m", data, "--scores")
    scores = np.log(model.predict(X)) if name == "poisson" else None
    scores = getattr(model, "decision_function", model.predict)(X) if scores is None else scores
    np.testing.assert_allclose([float(line) for line in out.split()], scores, atol=1e-9)
    output = json.loads(run("evaluate", tmp_path / "m", data, "--json")[1])
    assert output["accuracy" if model.task == "classification" else "R^2"] == pytest.approx(model.score(X, Y))
    code, out, err = run("certify", tmp_path / "m", data, "--json", "--quiet")
    assert (code, err) == (0, "")
    output = json.loads(out)
    assert output["verdict"] == "certified"
    assert output["objective"] == pytest.approx(model.objective_, rel=1e-9)
    assert output["cut_lower_bound"] == pytest.approx(model.lower_bound_, rel=1e-9)
    assert output["gap_rel"] <= model.gap_ / model.objective_ + 1e-6


def changed(path, change):
    """Change the content of a file and write it with a valid checksum."""
    arrays, meta = load_arrays(path, "model")
    meta.pop("sha256")
    change(arrays, meta)
    save_arrays(path, arrays, meta | {"sha256": checksum(arrays, meta)})
    return path


def scale(name, part, factor):
    def change(arrays, meta):
        n = len(arrays["coef"]) // 2
        arrays[name][n:] *= factor if part == "second" else 1.0
        arrays[name][:n] *= factor if part == "first" else 1.0

    return change


def claims(**values):
    return lambda arrays, meta: meta["claim"].update(
        {name: factor * meta["claim"][name] for name, factor in values.items()}
    )


FALSEHOODS = {
    "other coefficients": (scale("coef", "second", 1.01), "the objective is"),
    "another slope": (scale("cut", "first", 0.9), "the cut proves a lower bound of"),
    "a bound too high": (claims(lower_bound=1.0001), "the cut proves a lower bound of"),
    "an objective too low": (claims(objective=0.99), "the objective is"),
    "other vectors": (lambda arrays, meta: arrays["vectors"].__iadd__(0.01), "the objective is"),
}


@pytest.mark.parametrize("name", FALSEHOODS)
def test_false_claims_are_refuted(name, data, tmp_path, run):
    change, reason = FALSEHOODS[name]
    save_model(KernelClassifier(alpha=1e-2, tol=0.05).fit(X, Y), tmp_path / "m")
    code, _, err = run("certify", changed(tmp_path / "m", change), data)
    assert code == 1
    assert err.startswith(f"riskmin: refuted: {reason}")
    assert err.count("\n") == 1


def test_kernel_products_in_the_file_are_not_trusted(data, tmp_path, run):
    """Half of a cut holds products with K: false products would make a false bound provable."""
    model = KernelClassifier(alpha=1e-2, tol=0.05).fit(X, Y)
    save_model(model, tmp_path / "m")
    a, b = model.result_.cut
    n = len(X)
    small = Cut(np.concatenate([a[:n], 0.0 * a[n:]]), b)  # a slope of norm zero would prove the bound b
    false = dataclasses.replace(model.result_, cut=small, lower=min(b, model.result_.value))
    model.result_, model.lower_bound_ = false, false.lower
    save_model(model, tmp_path / "m")
    assert load_model(tmp_path / "m").gap_ < 1e-9
    code, _, err = run("certify", tmp_path / "m", data)
    assert code == 1
    assert "the cut proves a lower bound of" in err


def test_changed_coefficients_with_equal_objective_are_refuted(tmp_path, run):
    """Moving a residual inside the tube does not change the objective, but changes the function."""
    rows, y = np.array([[1.0], [0.0]]), np.array([1.0, 0.0])
    save_svmlight(tmp_path / "two.svm", rows, y)
    tight = {"kernel": "linear", "alpha": 0.1, "fit_intercept": False, "tol": 1e-10}
    save_model(KernelRegressor("epsilon_insensitive:epsilon=0.5", **tight).fit(rows, y), tmp_path / "m")
    assert run("certify", tmp_path / "m", tmp_path / "two.svm")[0] == 0

    def longer(arrays, meta):
        arrays["vectors"] *= 1.1

    code, _, err = run("certify", changed(tmp_path / "m", longer), tmp_path / "two.svm")
    assert code == 1
    assert "its support vectors are not rows of these data" in err


def test_other_data(data, tmp_path, run):
    save_model(KernelClassifier(alpha=1e-2).fit(X, Y), tmp_path / "m")
    save_svmlight(tmp_path / "fewer.svm", X[:100], Y[:100])
    code, _, err = run("certify", tmp_path / "m", tmp_path / "fewer.svm")
    assert (code, err) == (1, "riskmin: refuted: the model was fitted to 150 rows, but the data have 100\n")
    save_model(KernelClassifier(alpha=1e-2).fit(X, Y, np.arange(1.0, 151.0)), tmp_path / "m")
    code, _, err = run("certify", tmp_path / "m", data)
    assert code == 2
    assert "weights of rows" in err

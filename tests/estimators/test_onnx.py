"""ONNX files predict as riskmin does, in another runtime; and whole pipelines in files of skops."""

import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import riskmin as rm
from riskmin.cli import main

runtime = pytest.importorskip("onnxruntime", reason="onnxruntime has no wheel for this Python")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 4)) * [1e-3, 1.0, 1e3, 1.0] + [0, 5, 0, 0]
Z = X / X.std(0)


@pytest.fixture(autouse=True)
def same_draws():
    """Each test draws the same numbers, in any order of the tests."""
    RNG.bit_generator.state = np.random.default_rng(1).bit_generator.state


def run(made, inputs):
    """The outputs by name, of a model or a file."""
    made = made if isinstance(made, str) else made.SerializeToString()
    session = runtime.InferenceSession(made, providers=["CPUExecutionProvider"])
    return dict(zip([one.name for one in session.get_outputs()], session.run(None, inputs), strict=True))


OF_CLASSES = [
    ("logistic", ["no", "yes"]),
    ("hinge", [0, 7]),
    ("roc_area", [False, True]),
    ("logistic", ["ash", "oak", "yew"]),
    ("hinge", [1, 3, 4]),
]


@pytest.mark.parametrize(("loss", "labels"), OF_CLASSES)
def test_labels_scores_and_probabilities(loss, labels):
    y = np.array(labels)[np.digitize(Z[:, 0] + Z[:, 1], [5.0, 6.0][: len(labels) - 1])]
    model = rm.LinearClassifier(loss, standardize=True).fit(X, y)
    out = run(rm.to_onnx(model), {"X": X})
    assert out["label"].tolist() == model.predict(X).tolist()
    assert len(set(out["label"].tolist())) == len(labels)
    scores = model.decision_function(X).reshape(len(X), -1)
    np.testing.assert_allclose(out["scores"], scores, rtol=1e-12, atol=1e-12)
    assert ("probabilities" in out) == (loss == "logistic")
    if loss == "logistic":
        np.testing.assert_allclose(out["probabilities"], model.predict_proba(X), rtol=1e-12, atol=1e-15)


def test_regressions_and_rankings_and_their_certificate():
    y = Z @ [1.0, 2.0, 0.5, 0.0] + RNG.normal(size=len(Z))
    for model, target in (
        (rm.LinearRegressor("huber"), y),
        (rm.LinearRegressor("poisson"), np.floor(np.abs(y))),
        (rm.LinearRegressor("squared"), np.column_stack([y, -2 * y])),
    ):
        made = rm.to_onnx(model.fit(Z, target))
        expected = model.predict(Z).reshape(len(Z), -1)
        np.testing.assert_allclose(run(made, {"X": Z})["prediction"], expected, rtol=1e-11)
    props = {one.key: one.value for one in made.metadata_props}
    assert (float(props["objective"]), props["loss"]) == (model.objective_, "squared")
    assert float(props["lower_bound"]) == model.lower_bound_
    ranker = rm.LinearRanker().fit(Z, (y > np.median(y)).astype(int), qid=np.repeat(np.arange(12), 10))
    np.testing.assert_allclose(
        run(rm.to_onnx(ranker), {"X": Z})["scores"][:, 0], ranker.predict(Z), rtol=1e-11
    )


@pytest.mark.parametrize("n_cities", [3, 60])
def test_raw_tables_with_unseen_levels_and_missing_cells(tmp_path, n_cities, capsys):
    """Dense and sparse preparations, rare and missing levels; a column has the name of an output."""
    n, options = 200, ["--impute", "median", "--standardize", "--min-frequency", "3", "--loss", "logistic"]
    cities = [f"city {k}" for k in RNG.integers(0, n_cities, n)]
    frame = pd.DataFrame(
        {
            "city": np.where(RNG.random(n) < 0.1, None, cities),
            "kind": np.array(["a", "b", "once"])[np.r_[2, RNG.integers(0, 2, n - 1)]],
            "label": np.where(RNG.random(n) < 0.1, np.nan, RNG.normal(size=n) * 1e4),
            "size of flat": RNG.normal(size=n),
        }
    )
    frame["bought"] = np.where(RNG.random(n) + frame["size of flat"] > 0.5, "yes", "no")
    new = frame.head(40).copy()
    new.loc[[3, 4], "city"] = ["Atlantis", None]
    new.loc[[5, 6], "kind"] = ["unseen", "b"]
    train, test, model, out = (str(tmp_path / name) for name in ("a.csv", "b.csv", "m.riskmin", "m.onnx"))
    frame.to_csv(train, index=False)
    new.drop(columns="bought").to_csv(test, index=False)
    assert main(["fit", train, "--target", "bought", *options, "-o", model, "-q"]) == 0
    assert main(["export", model, out]) == 0
    assert "city, kind, label, size of flat" in capsys.readouterr().out
    assert main(["predict", model, test, "--proba", "-q"]) == 0
    expected = np.array([line.split("\t") for line in capsys.readouterr().out.splitlines()], float)
    text = {name: new[[name]].fillna("").to_numpy(object).astype(str) for name in ("city", "kind")}
    numbers = {name: new[[name]].to_numpy(float) for name in ("label", "size of flat")}
    found = run(out, text | numbers)
    assert list(found) == ["label_", "scores", "probabilities"]
    np.testing.assert_allclose(found["probabilities"], expected, rtol=1e-12, atol=1e-15)
    assert found["label_"].tolist() == np.where(expected[:, 1] > expected[:, 0], "yes", "no").tolist()


def test_whole_numbers_are_levels_in_both_spellings(tmp_path):
    year = np.array(["2020", "2021", "2022"])[np.arange(60) % 3]
    frame = pd.DataFrame(
        {"year": year, "x": RNG.normal(size=60), "y": np.arange(60) % 3 + RNG.normal(size=60)}
    )
    frame.to_csv(tmp_path / "a.csv", index=False)
    model, out = str(tmp_path / "m.riskmin"), str(tmp_path / "m.onnx")
    fit = ["fit", str(tmp_path / "a.csv"), "--loss", "squared", "--categorical", "year", "-o", model, "-q"]
    assert main(fit) == 0
    assert main(["export", model, out]) == 0
    plain, pointed = (
        run(out, {"year": text[:, None].astype(object), "x": frame[["x"]].to_numpy()})["prediction"]
        for text in (year, np.char.add(year, ".0"))
    )
    assert len(np.unique(plain.round(2))) > 3
    np.testing.assert_array_equal(plain, pointed)


def test_searches_and_errors(monkeypatch, tmp_path, capsys):
    y = (Z[:, 0] > 0).astype(int)
    search = rm.LinearClassifierCV(alphas=[1.0]).fit(Z, y)
    assert run(rm.to_onnx(search), {"X": Z})["label"].tolist() == search.predict(Z).tolist()
    with pytest.raises(ValueError, match="KernelClassifier has no ONNX form; LinearClassifier,"):
        rm.to_onnx(rm.KernelClassifier().fit(Z, y))
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r"pip install '.\[onnx\]'"):
        rm.to_onnx(search)
    model = tmp_path / "m.riskmin"
    rm.save_model(rm.LinearClassifier().fit(Z, y), model)
    assert main(["export", str(model), str(tmp_path / "m.onnx")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("riskmin: ONNX files need the package onnx")
    assert error.count("\n") == 1


@pytest.mark.slow
def test_whole_pipelines_in_files_of_skops(tmp_path):
    io = pytest.importorskip("skops.io")
    table = pd.DataFrame({"x": Z[:, 0], "kind": np.where(Z[:, 1] > 5, "a", "b")})
    y = np.where(Z[:, 0] > 0, "yes", "no")
    columns = ColumnTransformer([("number", StandardScaler(), ["x"]), ("text", OneHotEncoder(), ["kind"])])
    pipeline = make_pipeline(columns, rm.LinearClassifier("logistic")).fit(table, y)
    io.dump(pipeline, tmp_path / "pipeline.skops")
    unknown = io.get_untrusted_types(file=tmp_path / "pipeline.skops")
    assert all(name.startswith(("riskmin.", "builtins.")) for name in unknown)
    loaded = io.load(tmp_path / "pipeline.skops", trusted=unknown)
    assert loaded.predict(table).tolist() == pipeline.predict(table).tolist()
    assert loaded[-1].lower_bound_ == pipeline[-1].lower_bound_

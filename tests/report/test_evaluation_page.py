"""Pages of evaluations: their numbers are those of scikit-learn, and of the metrics."""

import json
import re
from xml.etree import ElementTree as ET

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics
from sklearn.datasets import load_breast_cancer, load_iris

from riskmin.estimators import load_model
from riskmin.metrics import chunk_confusion, ndcg_per_query


def page_of(path):
    """The page as a tree, and its tables by caption: lists of rows, the header first."""
    text = path.read_text(encoding="utf-8")
    root = ET.fromstring(re.sub(r"<!doctype html>|<meta[^>]*>|<style>.*?</style>", "", text, flags=re.S))
    tables = {}
    for table in root.iter("table"):
        rows = [["".join(cell.itertext()) for cell in row] for row in table.iter("tr")]
        tables[table.find("caption").text] = rows
    return root, tables


def descriptions(root):
    charts = [svg for svg in root.iter("svg") if svg.get("role") == "img"]
    return {svg.find("title").text: svg.find("desc").text for svg in charts}


@pytest.fixture
def cancer(tmp_path):
    table = load_breast_cancer(as_frame=True).frame
    table["weight"] = np.arange(len(table)) % 3
    table.to_csv(tmp_path / "cancer.csv", index=False)
    return table


@pytest.mark.parametrize("is_weighted", [False, True])
def test_the_curves_of_two_classes(is_weighted, cancer, tmp_path, run):
    data, model = tmp_path / "cancer.csv", tmp_path / "m"
    fit = ("fit", data, "--drop", "weight", "--loss", "logistic", "--lam", 1e-2, "--standardize", "-o", model)
    assert run(*fit, "-q")[0] == 0
    weights = ("--weight", "weight") if is_weighted else ()
    assert run("evaluate", model, data, *weights, "--report", tmp_path / "page.html")[0] == 0
    root, tables = page_of(tmp_path / "page.html")
    X, y = cancer.drop(columns=["target", "weight"]), cancer["target"].to_numpy()
    c = cancer["weight"].to_numpy(dtype=float) if is_weighted else None
    fitted = load_model(model)
    y_pred, z, p = fitted.predict(X), fitted.decision_function(X), fitted.predict_proba(X)[:, 1]
    # the ring is at the rates of the predictions
    assert "Curves show all thresholds" in "".join(root.itertext())
    (tn, fp), (fn, tp) = metrics.confusion_matrix(y, y_pred, sample_weight=c)
    chart = descriptions(root)
    rates = f"{tp / (tp + fn):.4g} at false positive rate {fp / (fp + tn):.4g}."
    assert f"threshold in use: {rates}" in chart["ROC curve"]
    assert f"threshold in use: {tp / (tp + fp):.4g} at recall" in chart["Precision and recall"]
    unit = "weight of the rows" if is_weighted else "rows"
    _, *rows = tables[f"Confusion matrix: {unit}"]
    cells = [[float(cell.replace(",", "")) for cell in row[1:]] for row in rows]
    np.testing.assert_allclose(cells, [[tn, fp], [fn, tp]])
    # every row of the table of thresholds
    head, *rows = tables["Metrics of class 1 by threshold of the scores"]
    assert sum("in use" in row[0] for row in rows) == 1
    for cut, *shown in rows:
        predicted = z > float(cut.removesuffix(" (in use)"))
        expected = metrics.precision_recall_fscore_support(y, predicted, sample_weight=c, average="binary")
        np.testing.assert_allclose([float(v) for v in shown[1:4]], expected[:3], atol=1e-4)
    assert head[2:5] == ["precision", "recall", "F1"]
    # calibration: tenths of the rows by their probability
    _, *tenths = tables["Tenths of the rows, by their prediction"]
    order = np.argsort(p, kind="stable")
    for (_, n, at, share), group in zip(tenths, np.array_split(order, 10), strict=True):
        weights = None if c is None else c[group]
        assert int(n) == len(group)
        assert float(at) == pytest.approx(np.average(p[group], weights=weights), rel=1e-3)
        assert float(share) == pytest.approx(np.average(y[group], weights=weights), abs=1e-4)


def test_the_page_of_a_fit_has_weights_classes_and_the_numbers_of_its_charts(tmp_path, run):
    table = load_iris(as_frame=True).frame
    table["target"] = np.array(["<i>", "b&b", "c"])[table["target"]]
    table.to_csv(tmp_path / "iris.csv", index=False)
    fit = ("fit", tmp_path / "iris.csv", "--loss", "softmax", "-o", tmp_path / "m")
    assert run(*fit, "--report", tmp_path / "page.html")[0] == 0
    model = load_model(tmp_path / "m")
    _, tables = page_of(tmp_path / "page.html")
    _, *weights = tables["The 12 largest of 12 weights"]
    # the columns have different units: only weights of standardized columns can be compared
    size = np.abs(model.coef_ * table.drop(columns="target").std(ddof=0).to_numpy())
    assert float(weights[0][2]) == pytest.approx(model.coef_.flat[size.argmax()], rel=1e-5)
    assert {row[1] for row in weights} == {"<i>", "b&b", "c"}
    y_pred = model.predict(table.drop(columns="target"))
    expected = metrics.precision_recall_fscore_support(table["target"], y_pred)
    for k, row in enumerate(tables["Metrics of each class"][1:]):
        assert row == [model.classes_[k], *(f"{v[k]:.4f}" for v in expected[:3]), "50"]
    (trace,) = [rows for caption, rows in tables.items() if caption.startswith("Objective and lower bound")]
    assert float(trace[-1][1]) == pytest.approx(model.result_.value, rel=1e-7)
    assert float(trace[-1][2]) == pytest.approx(model.result_.lower, rel=1e-7)


def test_the_page_of_a_search_has_every_metric(cancer, tmp_path, run):
    cv = ("cv", tmp_path / "cancer.csv", "--drop", "weight", "--standardize", "--loss", "logistic", "--json")
    more = ("--folds", 2, "--lams", "0.1,0.01", "--metric", "average_precision,f1", "-o", tmp_path / "m")
    found = json.loads(run(*cv, *more, "--report", tmp_path / "cv.html")[1])
    root, tables = page_of(tmp_path / "cv.html")
    assert list(descriptions(root)) == ["average precision of the held-out rows", "F1 of the held-out rows"]
    head, *rows = tables["Mean and standard deviation over the folds"]
    assert head == ["lam", "average precision", "sd", "F1", "sd"]
    for row, entry in zip(rows, found["cv"], strict=True):
        assert float(row[1]) == pytest.approx(entry["mean"], rel=1e-5)
        assert float(row[3]) == pytest.approx(entry["metrics"]["F1"], rel=1e-5)
        assert ("chosen" in row[0]) == (entry["lam"] == found["best_lam"])


def test_the_queries_of_lowest_ndcg_are_listed(tmp_path, run):
    rng = np.random.default_rng(2)
    qid = np.repeat(np.arange(30), 5)
    table = pd.DataFrame(rng.normal(size=(150, 2)), columns=["a", "b"])
    table["qid"], table["grade"] = qid, rng.integers(0, 3, size=150)
    table.to_csv(tmp_path / "r.csv", index=False)
    fit = ("fit", tmp_path / "r.csv", "--loss", "pairwise_hinge", "--target", "grade", "-o", tmp_path / "m")
    assert run(*fit, "--report", tmp_path / "page.html")[0] == 0
    scores = load_model(tmp_path / "m").predict(table[["a", "b"]])
    ndcg = ndcg_per_query(table["grade"], scores, qid)
    root, tables = page_of(tmp_path / "page.html")
    (rows,) = [rows[1:] for caption, rows in tables.items() if "queries of lowest" in caption]
    assert [float(row[1]) for row in rows] == pytest.approx(np.sort(ndcg)[:20], abs=1e-4)
    assert all(float(row[1]) == pytest.approx(ndcg[int(row[0])], abs=1e-4) for row in rows)
    assert f"mean {np.nanmean(ndcg):.4g}" in descriptions(root)["NDCG@10 of each query"]


def test_taggers_and_numbers_have_tables_of_their_own(tmp_path, run):
    lines = ["the DT B-NP", "dog NN I-NP", "runs VB B-VP", "", "cats NN B-NP", "sleep VB B-VP", ""]
    (tmp_path / "a.conll").write_text("\n".join(lines * 4))
    assert run("fit", tmp_path / "a.conll", "--loss", "chain_crf", "-o", tmp_path / "t")[0] == 0
    assert run("evaluate", tmp_path / "t", tmp_path / "a.conll", "--report", tmp_path / "t.html")[0] == 0
    root, tables = page_of(tmp_path / "t.html")
    assert "thresholds" not in "".join(root.itertext())
    y = [["B-NP", "I-NP", "B-VP"], ["B-NP", "B-VP"]] * 4
    (rows,) = [rows[1:] for caption, rows in tables.items() if caption.startswith("Confusion of chunks")]
    assert [[int(cell) for cell in row[1:]] for row in rows] == chunk_confusion(y, y)[1].tolist()
    x = np.linspace(0, 9, 40)
    pd.DataFrame({"x": x, "y": 3 * x + 100 + np.sin(9 * x)}).to_csv(tmp_path / "n.csv", index=False)
    fit = ("fit", tmp_path / "n.csv", "--loss", "squared", "-o", tmp_path / "n")
    assert run(*fit, "--report", tmp_path / "n.html")[0] == 0
    _, tables = page_of(tmp_path / "n.html")
    means = [float(row[3]) for row in tables["Tenths of the rows, by their prediction"][1:]]
    np.testing.assert_allclose(means, (3 * x + 100 + np.sin(9 * x)).reshape(10, 4).mean(axis=1), rtol=1e-3)

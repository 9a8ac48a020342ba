"""`predict --csv`: a table with a header, ids, predictions, scores and probabilities."""

import io

import numpy as np
import pandas as pd
import pytest

import riskmin as rm
from helpers import check_sentence, customers


@pytest.fixture(scope="module")
def table():
    frame = customers()
    frame["no"] = [f"{i:04d}" for i in range(len(frame))]  # leading zeros, which a number would lose
    frame["name, first"] = np.where(np.arange(len(frame)) % 7 == 0, None, 'a "b"')
    return frame


@pytest.fixture(scope="module")
def fitted(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    table.to_csv(folder / "t.csv", index=False)
    table.to_parquet(folder / "t.parquet")
    return folder


def fit(run, folder, target, model, loss="logistic"):
    assert (
        run(
            "fit",
            folder / "t.csv",
            "--target",
            target,
            "--loss",
            loss,
            "--drop",
            "since,no",
            "--columns",
            "age,times",
            "--impute",
            "median",
            "-o",
            folder / model,
            "-q",
        )[0]
        == 0
    )


def read(text):
    return pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)


@pytest.mark.parametrize(("target", "n_classes"), [("bought", 2), ("city", 3)])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_table_of_predictions(target, n_classes, suffix, fitted, table, run):
    fit(run, fitted, target, "m")
    model, data = rm.load_model(fitted / "m"), fitted / f"t.{suffix}"
    labels = run("predict", fitted / "m", data)[1].split()
    assert run("predict", fitted / "m", data, "--csv")[1].split() == ["prediction", *labels]
    ids = ("--id", "no", "--id", "name, first")
    out = read(run("predict", fitted / "m", data, *ids, "--scores", "--proba")[1])
    names = [str(label) for label in model.classes_]
    scores = ["score"] if n_classes == 2 else [f"score {name}" for name in names]
    assert list(out) == ["no", "name, first", "prediction", *scores, *(f"probability {n}" for n in names)]
    assert list(out["no"]) == list(table["no"])
    assert list(out["name, first"]) == list(table["name, first"].fillna(""))
    assert list(out["prediction"]) == labels
    printed = np.array(run("predict", fitted / "m", data, "--proba")[1].split(), float)
    np.testing.assert_array_equal(
        out[[f"probability {n}" for n in names]].astype(float).to_numpy().ravel(), printed
    )
    printed = np.array(run("predict", fitted / "m", data, "--scores")[1].split(), float)
    np.testing.assert_array_equal(out[scores].astype(float).to_numpy().ravel(), printed)


def test_several_targets_have_a_column_each(tmp_path, run):
    rows = pd.DataFrame(np.random.default_rng(0).normal(size=(20, 3)), columns=list("abc"))
    model = rm.LinearRegressor().fit(rows[["a", "b"]], rows[["c", "a"]])
    rm.save_model(model, tmp_path / "m")
    rows.to_csv(tmp_path / "t.csv", index=False)
    out = run(
        "predict", tmp_path / "m", tmp_path / "t.csv", "--id", "c", "--target", "c", "-o", tmp_path / "o.csv"
    )
    assert out[0] == 0, out
    table = pd.read_csv(tmp_path / "o.csv")
    assert list(table) == ["c", "prediction 0", "prediction 1"]
    np.testing.assert_allclose(table.iloc[:, 1:], model.predict(rows[["a", "b"]]), rtol=1e-12)


def test_many_rows_have_one_header(tmp_path, run):
    rows = pd.DataFrame({"a": np.arange(70_000.0), "y": np.arange(70_000) / 7e4})
    rows.to_csv(tmp_path / "t.csv", index=False)
    rm.save_model(rm.LinearRegressor().fit(rows[["a"]], rows["y"]), tmp_path / "m")
    out = pd.read_csv(io.StringIO(run("predict", tmp_path / "m", tmp_path / "t.csv", "--id", "a", "-q")[1]))
    np.testing.assert_array_equal(out["a"], rows["a"])
    assert np.isfinite(out["prediction"]).all()


def test_taggers_write_no_tables(tmp_path, run):
    (tmp_path / "t.conll").write_text("Rain NN B-NP\nfell VBD B-VP\n\nIt PRP B-NP\n")
    assert run("fit", tmp_path / "t.conll", "--loss", "chain_crf", "-o", tmp_path / "m", "-q")[0] == 0
    check_sentence(run("predict", tmp_path / "m", tmp_path / "t.conll", "--csv"), "a tagger copies its input")

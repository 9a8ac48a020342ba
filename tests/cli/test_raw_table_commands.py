"""Commands on raw tables: the model file holds the preparation, so that all of them take the same file."""

import json
import pickle

import numpy as np
import pandas as pd
import pytest
from command_files import RAW

from helpers import check_sentence, customers, edit, ticking_clock
from riskmin import LinearClassifier
from riskmin.data.base import UnpreparedColumn
from riskmin.estimators import load_model


@pytest.fixture
def raw(files):
    return files / "raw.csv"


FIT = (*RAW, "--drop", "times", "--lam", 1e-3)


def test_all_commands_take_the_raw_file(raw, tmp_path, run):
    model = tmp_path / "m"
    code, out, err = run("fit", raw, *FIT, "-o", model)
    assert code == 0
    assert "120 rows x 7 columns" in out
    assert "1 of numbers, 2 of categories with 6 levels" in out
    assert err == "riskmin: column 'id' is left out: all of its levels are rare\n"
    # the target is known, and need not be the last column
    shuffled = tmp_path / "new.parquet"
    customers(120, seed=1)[["bought", "plan", "since", "age", "city"]].to_parquet(shuffled)
    code, out, err = run("evaluate", model, shuffled, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["accuracy"] > 0.75
    unlabeled = tmp_path / "unlabeled.csv"
    frame = customers(120, seed=1).drop(columns=["bought", "times"]).replace("Oslo", "Lima")
    frame.to_csv(unlabeled, index=False)
    code, out, err = run("predict", model, unlabeled)
    n_unseen = int((frame.city == "Lima").sum())
    unseen = f"{n_unseen} of 120 rows hold levels unseen in training, such as 'Lima'"
    assert err == f"riskmin: column 'city': {unseen}\n"
    assert (code, set(out.split())) == (0, {"no", "yes"})
    fitted = load_model(model)
    X = pd.DataFrame(fitted.preparation_.read([unlabeled]).X, columns=fitted.feature_names_in_)
    assert out.split() == fitted.predict(X).tolist()
    code, out, _ = run("certify", model, raw, "--json", "--quiet")
    assert (code, json.loads(out)["verdict"]) == (0, "certified")
    # path and cv take the same options
    options = [*FIT[:-2], "--lams", "1,0.01"]
    code, out, _ = run("path", raw, *options, "--json", "--quiet")
    assert (code, json.loads(out)["columns"]) == (0, 7)
    code, out, _ = run("cv", raw, *options, "--folds", "3", "--json", "-o", tmp_path / "best")
    assert code == 0
    assert run("predict", tmp_path / "best", unlabeled)[0] == 0


@pytest.mark.parametrize(
    ("command", "suffix"),
    [
        *(("fit", "csv"), ("fit", "words.csv"), ("fit", "parquet"), ("fit", "svm"), ("fit", "npz")),
        *(("path", "words.csv"), ("cv", "csv"), ("certify", "svm"), ("certify", "csv")),
    ],
)
def test_reading_ends_at_the_time_limit(command, suffix, files, tmp_path, run):
    data = files / {"csv": "two.csv", "words.csv": "raw.csv", "svm": "two.svm"}.get(suffix, "two.csv")
    if suffix in ("parquet", "npz"):
        table, data = pd.read_csv(data), tmp_path / f"data.{suffix}"
        rows = table.drop(columns="label")
        np.savez(data, X=rows, y=table.label) if suffix == "npz" else table.to_parquet(data)
    output = tmp_path / "out"
    args = (
        [files / "hinge.model", data] if command == "certify" else [data, "-o", output, "--loss", "logistic"]
    )
    with ticking_clock() as clock:
        code, out, err = run(command, *args, "--max-seconds", clock.TICK)
    assert (code, out) == (3, "")
    assert err.startswith("riskmin: --max-seconds passed while the data were read: raise it")
    assert not output.exists()


def test_a_fit_gets_the_time_that_reading_leaves(tmp_path, run):
    """Reading the same table from more files checks the clock more often."""
    rng, model = np.random.default_rng(0), tmp_path / "m"
    table = pd.DataFrame(rng.normal(size=(64, 2)), columns=["a", "b"]).assign(y=np.resize([1, -1], 64))
    steps = []
    for n_files in (1, 32):
        files = [tmp_path / f"{n_files}-{i}.csv" for i in range(n_files)]
        for rows, file in zip(np.split(table.to_numpy(), n_files), files, strict=True):
            pd.DataFrame(rows, columns=table.columns).to_csv(file, index=False)
        args = ("--solver", "bmrm", "--tol", 1e-12, "--lam", 1e-6, "-q", "-o", model)
        run("fit", *files, *args, "--max-iter", 2)  # compiles
        with ticking_clock() as clock:
            assert run("fit", *files, *args, "--max-seconds", 100 * clock.TICK)[0] == 3
        fitted = load_model(model)
        assert (fitted.result_.status, fitted.max_seconds) == ("max_seconds", 100 * clock.TICK)
        steps.append(fitted.n_iter_)
    assert steps[0] > steps[1]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_columns_of_numbers_are_found_by_name(suffix, tmp_path, run):
    """Files may have more columns, text included, in another order; the target of the fit is known."""
    rng = np.random.default_rng(0)
    train = pd.DataFrame(rng.normal(size=(40, 3)), columns=["a", "price", "b"])
    train["flag"] = np.arange(40) % 2
    model, paths = tmp_path / "m", {}
    shapes = {
        "train": train,
        "wide": train.assign(extra="text", more=1.0)[["price", "extra", "b", "more", "flag", "a"]],
        "unlabeled": train.drop(columns="price").assign(extra=2.0)[["flag", "extra", "b", "a"]],
        "narrow": train.drop(columns="a"),
        "boolean": train.assign(flag=train.flag == 1),
    }
    for name, frame in shapes.items():
        paths[name] = tmp_path / f"{name}.{suffix}"
        frame.to_csv(paths[name], index=False) if suffix == "csv" else frame.to_parquet(paths[name])
    args = ("--target", "price", "--loss", "squared", "--lam", 0.1, "-o", model, "-q")
    assert run("fit", paths["train"], *args)[0] == 0
    expected = run("predict", model, paths["train"])
    assert expected[0] == 0
    assert run("predict", model, paths["wide"]) == expected
    assert run("predict", model, paths["unlabeled"]) == expected
    assert run("evaluate", model, paths["wide"], "--json") == run("evaluate", model, paths["train"], "--json")
    assert run("certify", model, paths["wide"], "-q")[0] == 0
    message = "there is no column 'a' (which the model was fitted on); the columns are price, b, flag"
    check_sentence(run("predict", model, paths["narrow"]), message)
    check_sentence(run("evaluate", model, paths["unlabeled"]), "there is no column 'price'")
    assert run("predict", model, paths["boolean"]) == expected


def test_weights_are_repetitions(raw, tmp_path, run):
    """The rows of weight k count as k rows, in the objective, the standard deviations and the certificate."""
    options = ["--loss", "logistic", "--columns", "city", "--lam", "1e-2", "--tol", "1e-9", "--standardize"]
    assert run("fit", raw, *options, "--weight", "times", "-o", tmp_path / "m", "--quiet")[0] == 0
    table, model = customers(120), load_model(tmp_path / "m")
    repeated = table.loc[table.index.repeat(table.times)]
    X = pd.get_dummies(repeated.city, dtype=float)
    same = LinearClassifier("logistic", alpha=1e-2, tol=1e-9, standardize=True).fit(X, repeated.bought)
    assert model.objective_ == pytest.approx(same.objective_, rel=1e-8)
    assert model.coef_ == pytest.approx(same.coef_, rel=1e-4)
    assert run("certify", tmp_path / "m", raw, "--quiet")[0] == 0
    # other weights are another problem
    table.assign(times=1).to_csv(tmp_path / "once.csv", index=False)
    assert run("certify", tmp_path / "m", tmp_path / "once.csv", "--quiet")[0] == 1
    path_options = [*options[:4], "--weight", "times", "--lams", "1e-2", "--tol", "1e-9", "--standardize"]
    _, out, _ = run("path", raw, *path_options, "--json", "--quiet")
    assert json.loads(out)["path"][0]["objective"] == pytest.approx(same.objective_, rel=1e-8)


@pytest.mark.parametrize("how", [[], pytest.param(["--processes", 2], marks=pytest.mark.slow)])
def test_several_files_are_prepared_as_one(how, raw, tmp_path, run):
    """Levels, medians and rare levels are those of all files; each process encodes its own."""
    table = customers(120)
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    table.head(40).to_csv(first, index=False)
    table.tail(80).to_csv(second, index=False)
    options = [*RAW, "--lam", 1e-3, "--weight", "times", "--tol", "1e-6", "--quiet"]
    assert run("fit", raw, *options, "-o", tmp_path / "one")[0] == 0
    assert run("fit", first, second, *options, *how, "-o", tmp_path / "two")[0] == 0
    one, two = load_model(tmp_path / "one"), load_model(tmp_path / "two")
    assert two.preparation_ == one.preparation_
    assert two.coef_ == pytest.approx(one.coef_, rel=1e-2, abs=1e-4)
    assert run("certify", tmp_path / "two", raw, "--quiet")[0] == 0
    # workers of a cluster send the error by which a table is known to need a preparation
    error = pickle.loads(pickle.dumps(UnpreparedColumn("a.csv", 2, "'Oslo' is not a number")))
    assert (type(error), str(error)) == (UnpreparedColumn, "a.csv, line 2: 'Oslo' is not a number")


def test_sparse_rows_and_damaged_preparations_are_refused(raw, files, tmp_path, run):
    model = tmp_path / "m"
    assert run("fit", raw, *FIT, "-o", model, "--quiet")[0] == 0
    check_sentence(run("predict", model, files / "two.svm"), "fitted to a table with named columns")
    edit(model, lambda arrays, meta: meta["fitted"]["preparation"]["columns"][0]["levels"].append("Lima"))
    check_sentence(run("predict", model, raw), "its table gives 8 features, but it has 7")


def test_names_and_levels_from_a_file_are_printed_without_control_characters(tmp_path, run):
    path = tmp_path / "table.csv"
    path.write_bytes(b"a\x1b[2J,b\x1b[1m,y\nu\x1b]0;x\x07,1,0\nv,2,1\n")
    code, out, err = run("fit", path, "--weight", "b\x1b[1m", "--loss", "squared", "-o", tmp_path / "m")
    shown = run("show", tmp_path / "m")[1]
    path.write_bytes(b"a\x1b[2J\nw\x1b[0m\n")
    notes = run("predict", tmp_path / "m", path)[2]
    assert code == 0
    assert "unseen" in notes
    assert all(c.isprintable() or c == "\n" for c in out + err + shown + notes)


@pytest.mark.parametrize(
    ("loss", "name"),
    [("logistic", "words"), ("hinge", "graded"), ("quantile:level=0.3", "houses"), ("ordinal", "graded")],
)
def test_evaluation_with_weights_is_that_of_repeated_rows(loss, name, files, tmp_path, run):
    table = pd.read_csv(files / f"{name}.csv")
    target, n = table.columns[-1], len(table)
    table["people"] = np.random.default_rng(6).integers(0, 4, size=n)
    data, repeated = tmp_path / "data.csv", tmp_path / "repeated.csv"
    table.to_csv(data, index=False)
    table.loc[table.index.repeat(table["people"])].to_csv(repeated, index=False)
    options = ["--columns", "a,b", "--target", target, "--standardize"]
    options += ["--order", "poor,fair,good,best"] if loss == "ordinal" else []
    assert run("fit", data, "--loss", loss, *options, "-o", tmp_path / "m")[0] == 0
    weighted = json.loads(run("evaluate", tmp_path / "m", data, "--weight", "people", "--json")[1])
    alike = json.loads(run("evaluate", tmp_path / "m", repeated, "--json")[1])
    assert weighted.pop("rows") == n
    assert alike.pop("rows") == table["people"].sum()
    alike.pop("Kendall's tau", None)  # has no weights
    by_class = [metrics.pop("classes", {}) for metrics in (weighted, alike)]
    assert weighted == pytest.approx(alike)
    for name, entry in by_class[1].items():
        assert entry.pop("rows") == table["people"][table[target] == name].sum()
        assert by_class[0][name].pop("rows") == (table[target] == name).sum()
        assert by_class[0][name] == pytest.approx(entry)


def test_weights_of_an_evaluation_are_checked(tmp_path, run):
    numbers = tmp_path / "numbers.csv"
    numbers.write_text("a,b,w,y\n1,2,0,0\n3,1,1,1\n2,2,2,0\n4,1,-1,1\n")
    plain = tmp_path / "plain.csv"
    plain.write_text("a,b,y\n1,2,0\n3,1,1\n2,2,0\n4,1,1\n")
    assert run("fit", plain, "-o", tmp_path / "m")[0] == 0
    check_sentence(run("evaluate", tmp_path / "m", numbers, "--weight", "w"), "the weight is negative")
    # a model of numbers takes the weights of a table, too, and leaves them out of the features
    numbers.write_text("w,b,a,y\n0,2,1,0\n1,1,3,1\n2,2,2,0\n")
    assert json.loads(run("evaluate", tmp_path / "m", numbers, "--weight", "w", "--json")[1])["accuracy"] == 1


def test_counts_with_an_exposure(tmp_path, run):
    """An exposure is the offset of its logarithm; predictions take that of their rows from its column."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.standard_normal((200, 2)), columns=["a", "b"])
    frame["years"] = rng.uniform(0.5, 4.0, 200)
    frame["log"] = np.log(frame.years)
    frame["events"] = rng.poisson(frame.years * np.exp(0.3 * frame.a))
    path, fit = tmp_path / "d.csv", ("--target", "events", "--loss", "poisson", "--tol", 1e-9)
    frame.to_csv(path, index=False)
    frame.to_parquet(tmp_path / "d.parquet")
    found = {}
    for name, more in {"exposure": ("years", "--drop", "log"), "offset": ("log", "--drop", "years")}.items():
        model = tmp_path / name
        code, out, _ = run("fit", tmp_path / "d.parquet", *fit, f"--{name}", *more, "-o", model)
        assert (code, f"{name} from {more[0]}" in out) == (0, True)
        found[name] = np.array(run("predict", model, path)[1].split(), float)
        code, out, _ = run("certify", model, path, "--json", "--quiet")
        assert (code, json.loads(out)["verdict"]) == (0, "certified")
    np.testing.assert_allclose(found["exposure"], found["offset"], rtol=1e-6)
    fitted = load_model(tmp_path / "exposure")
    np.testing.assert_allclose(found["exposure"], fitted.predict(frame[["a", "b"]], offset=frame.log))
    again = np.array(run("predict", tmp_path / "exposure", path, "--offset", "log")[1].split(), float)
    np.testing.assert_allclose(again, found["exposure"], rtol=1e-12)
    out = json.loads(run("evaluate", tmp_path / "exposure", path, "--json")[1])
    assert out["MAE"] == pytest.approx(np.abs(frame.events - found["exposure"]).mean())
    assert out["mean loss"] == pytest.approx(fitted.objective_, rel=1e-3)
    code, _, err = run("cv", path, *fit[:-2], "--exposure", "years", "--drop", "log", "-o", tmp_path / "cv")
    assert (code, err) == (0, "")
    frame.drop(columns="years").to_csv(tmp_path / "without.csv", index=False)
    check_sentence(run("predict", tmp_path / "exposure", tmp_path / "without.csv"), "no column 'years'")
    frame.assign(years=0.0).to_csv(tmp_path / "zero.csv", index=False)
    check_sentence(run("predict", tmp_path / "exposure", tmp_path / "zero.csv"), "line 2", "no logarithm")
    ordinal = "--target", "events", "--loss", "ordinal", "--exposure", "years", "-o", tmp_path / "m"
    check_sentence(run("fit", path, *ordinal), "--exposure is for classification and regression")
    both = "--offset", "log", "--exposure", "years", "-o", tmp_path / "m"
    check_sentence(run("fit", path, *fit, *both), "give one of the two")

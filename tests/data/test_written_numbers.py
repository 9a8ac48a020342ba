"""Numbers and dates as people write them: recognized, asked for where two readings fit, kept in the model."""

import json

import numpy as np
import pandas as pd
import pytest

from helpers import check_sentence
from riskmin.data.raw_tables.fitting import TableOptions, prepare
from riskmin.data.raw_tables.written import NumberFormat, days_of
from riskmin.estimators import load_model


def table(tmp_path, cells, name="t.csv", y=None):
    """A table with the column a, and labels."""
    labels = y or [k % 2 for k in range(len(cells))]
    path = tmp_path / name
    pd.DataFrame({"a": cells, "y": labels}).to_csv(path, index=False)
    return path


READ = {
    "thousands": (["1,234.50", "12,000", "7"], [1234.5, 12000.0, 7.0]),
    "lakhs": (["12,34,567", "1,00,000"], [1234567.0, 100000.0]),
    "millions": (["1,234,567", "999"], [1234567.0, 999.0]),
    "decimal comma": (["3,5", "-0,25", "7"], [3.5, -0.25, 7.0]),
    "no thousands begin with 0": (["0,125", "0,500"], [0.125, 0.5]),
    "points and comma": (["1.234,50", "12.000,0", "7"], [1234.5, 12000.0, 7.0]),
    "spaces": (["1 234,5", "12\u00a0000", "1\u202f000\u202f000"], [1234.5, 12000.0, 1e6]),
    "apostrophes": (["1'234.5", "12\u2019000"], [1234.5, 12000.0]),
}


@pytest.mark.parametrize(("cells", "numbers"), READ.values(), ids=READ)
def test_formats_of_numbers_are_recognized(tmp_path, cells, numbers):
    path = table(tmp_path, cells)
    rows = prepare([path], TableOptions())
    assert rows.X.ravel().tolist() == numbers
    assert len(rows.notes) == 1  # a guess is said
    assert "is read as" in rows.notes[0]


def test_the_written_text_is_read_not_its_level(tmp_path):
    # 42.000 is the level 42 of a category, and in another file it is the number 42000
    paths = [table(tmp_path, ["42.000", "1,5"], "1.csv"), table(tmp_path, ["1.000", "2"], "2.csv")]
    rows = prepare(paths, TableOptions(decimal=",", thousands="."))
    assert rows.X.ravel().tolist() == [42000.0, 1.5, 1000.0, 2.0]


@pytest.mark.parametrize(
    ("cells", "options", "message"),
    [
        (["42,000", "1,250"], {}, "'42,000' may be 42000 or 42; say which by .*--thousands ','.*--decimal"),
        (["1,234.5", "1.234,5"], {}, "while others are"),
        (["1,234.5", "", "2,5e1"], {"impute": "mean"}, "column 'a'"),  # the last is of another format
        (["42,000", "unknown"], {}, "'unknown'|'42,000'"),
        (["20,5", "30,5"], {"thousands": ","}, "column 'a'"),  # 20,5 is no thousand
        (["1.234,50", "7"], {"thousands": ","}, "may be 1234.5; say which"),
        (["01/02/2024", "03/04/2024"], {"dates": "days"}, "--dates dmy or --dates mdy"),
        (["2024-01-31", "2024-02-01"], {}, "--dates days.*--dates drop.*--drop a"),
    ],
)
def test_what_has_two_readings_is_asked(tmp_path, cells, options, message):
    with pytest.raises(ValueError, match=message):
        prepare([table(tmp_path, cells)], TableOptions(**options))


def test_a_plain_column_is_asked_about_where_another_shows_a_format(tmp_path):
    path = tmp_path / "t.csv"
    pd.DataFrame({"a": ["1.234,50", "2,5"], "b": ["1.500", "2.750"], "y": [0, 1]}).to_csv(path, index=False)
    with pytest.raises(ValueError, match=r"column 'b': the cell may be 1.5, or 1500 as in other columns"):
        prepare([path], TableOptions())
    rows = prepare([path], TableOptions(decimal=",", thousands="."))
    assert rows.X.tolist() == [[1234.5, 1500.0], [2.5, 2750.0]]


@pytest.mark.parametrize(
    ("cells", "dates", "days"),
    [
        (["2024-01-31", "2024-02-01"], "days", [0.0, 1.0]),
        (["2024-02-01T18:00:00Z", "2024-02-01T00:00:00+02:00"], "days", [1.75, 0.9166666666666666]),
        (["31.12.2023", "01.01.2024"], "days", [0.0, 1.0]),
        (["12/31/23", "1/2/2024"], "days", [0.0, 2.0]),
        (["01/02/2024", "03/02/2024"], "dmy", [0.0, 2.0]),
        (["01/02/2024", "03/02/2024"], "mdy", [0.0, 60.0]),
        (["6:00", "11:00 pm"], "days", [0.25, 23 / 24]),
    ],
)
def test_dates_are_days_since_the_first(tmp_path, cells, dates, days):
    X = prepare([table(tmp_path, cells)], TableOptions(dates=dates)).X
    np.testing.assert_allclose(X.ravel(), days, rtol=0, atol=1e-9)


def test_dates_of_parquet_and_dropped_ones(tmp_path):
    path = tmp_path / "t.parquet"
    when = pd.to_datetime(["2024-01-01 00:00", "2024-01-03 12:00"])
    pd.DataFrame({"a": [1.0, 2.0], "when": when, "y": [0, 1]}).to_parquet(path)
    assert prepare([path], TableOptions(dates="days")).X.tolist() == [[1.0, 0.0], [2.0, 2.5]]
    rows = prepare([path], TableOptions(dates="drop"))
    assert (rows.feature_names, rows.notes) == (["a"], ("column 'when' is left out: it holds dates",))


def test_separators_and_days_that_do_not_exist_are_none():
    assert days_of("30.02.2024", "dmy") is None
    assert days_of("2024-01-01 25:00", "ymd") is None
    assert NumberFormat(",").number("1.5") is None
    for settings in ({"decimal": ";"}, {"thousands": "_"}, {"decimal": ",", "thousands": ","}):
        with pytest.raises(ValueError, match="give"):
            NumberFormat(**settings)


def test_the_model_keeps_the_decision_for_all_commands(tmp_path, run):
    rng = np.random.default_rng(0)
    size, price = rng.integers(20, 200, 60), rng.integers(50, 900, 60)

    def write(name, rows):
        since = [f"{1 + k % 28}/{1 + k % 12}/2024" for k in rows]
        cells = [f"{1000 * price[k] + 500:,}" for k in rows]
        frame = pd.DataFrame({"size": [f"{size[k]}.5" for k in rows], "since": since, "price": cells})
        frame.to_csv(tmp_path / name, index=False, sep="\t")
        return tmp_path / name

    train, new, model = write("train.tsv", range(60)), write("new.tsv", [0, 1]), tmp_path / "m"
    options = ("--loss", "squared", "--target", "price")
    fit = ("fit", train, *options, "--lam", 1e-3, "-o", model, "--dates", "dmy")
    check_sentence(run(*fit), "column 'price'", "--thousands ','")
    assert run(*fit, "--thousands", ",")[0] == 0
    kept = load_model(model).preparation_
    assert kept.labels == NumberFormat(thousands=",")
    rows = kept.read([new], labels=True)
    assert rows.y.tolist() == [1000.0 * price[0] + 500, 1000.0 * price[1] + 500]
    code, out, _ = run("certify", model, train, "--json", "--quiet")
    assert (code, json.loads(out)["verdict"]) == (0, "certified")
    for command in ("evaluate", "predict"):
        assert run(command, model, new)[0] == 0
    options += ("--thousands", ",", "--dates", "drop")
    assert run("cv", train, *options, "--lams", "1,0.1", "--folds", 2, "-o", tmp_path / "cv")[0] == 0

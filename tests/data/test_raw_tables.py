"""Raw tables: the prepared X is scikit-learn's, by every reader; what cannot be used is named."""

import json
import sys
from contextlib import contextmanager

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder

from riskmin.data import DataError, load
from riskmin.data.raw_tables.fitting import TableOptions, prepare
from riskmin.data.raw_tables.preparation import TablePreparation


def frame(n=600, seed=0, more_levels=()):
    """Rows of numbers with missing cells, categories with rare levels, and class names."""
    rng = np.random.default_rng(seed)
    city = rng.choice(["Rome", "Oslo", "Bonn", "Graz", "Linz"], n, p=[0.5, 0.3, 0.19, 0.005, 0.005])
    city[: len(more_levels)] = more_levels
    age = np.where(rng.random(n) < 0.1, np.nan, rng.integers(18, 80, n))
    kind = np.where(rng.random(n) < 0.2, None, rng.choice(["a, b", 'say "c"'], n))
    return pd.DataFrame(
        {
            "city": city,
            "age": age,
            "kind": pd.Series(kind, dtype="str"),
            "income": np.exp(rng.normal(10, 1, n)).round(2),
            "bought": rng.choice(["yes", "no"], n),
        }
    )


def write(table, path):
    if path.suffix == ".parquet":
        table.to_parquet(path, index=False)
    else:
        table.to_csv(path, index=False)
    return path


@contextmanager
def reading(file):
    """Block in which tables are read with pyarrow, or without it."""
    with pytest.MonkeyPatch.context() as patch:
        if file == "own.csv":
            patch.setitem(sys.modules, "pyarrow", None)
        yield


def by_name(names, X):
    X = X.toarray() if sp.issparse(X) else X
    return {name: X[:, j] for j, name in enumerate(names)}


@pytest.mark.parametrize(
    ("impute", "file"), [("median", "own.csv"), ("mean", "arrow.csv"), ("median", "a.parquet")]
)
def test_preparation_is_that_of_scikit_learn(impute, file, tmp_path):
    train, new = frame(), frame(50, seed=1, more_levels=["Lima", "Kyiv", "Lima"])
    options = TableOptions(impute=impute, min_frequency=8)
    path = write(train, tmp_path / file)
    with reading(file):
        rows = prepare([path], options)
    assert rows.y.tolist() == train.bought.tolist()
    levels = OneHotEncoder(min_frequency=8, handle_unknown="infrequent_if_exist", sparse_output=False)
    parts = [("category", levels, ["city", "kind"])]
    parts += [("number", SimpleImputer(strategy=impute), ["age", "income"])]
    reference = ColumnTransformer(parts, verbose_feature_names_out=False)
    filled = train.fillna({"kind": "(missing)"})
    expected = reference.fit_transform(filled)
    names = [
        name.replace("infrequent_sklearn", "(rare)").replace("city_", "city=").replace("kind_", "kind=")
        for name in reference.get_feature_names_out()
    ]
    assert sorted(names) == sorted(rows.feature_names)
    for name, column in by_name(names, expected).items():
        assert np.array_equal(by_name(rows.feature_names, rows.X)[name], column), name
    # columns in another order, and levels that did not occur
    path = write(new[new.columns[::-1]], tmp_path / file)
    again = TablePreparation.from_dict(json.loads(json.dumps(rows.preparation.to_dict())), len(names))
    with reading(file):
        made = again.read([path])
    expected = reference.transform(new.fillna({"kind": "(missing)"}))
    for name, column in by_name(names, expected).items():
        assert np.array_equal(by_name(made.feature_names, made.X)[name], column), name
    assert made.notes == ("column 'city': 3 of 50 rows hold levels unseen in training, such as 'Lima'",)


def test_many_levels_make_x_sparse(tmp_path):
    rng = np.random.default_rng(0)
    columns = {"code": rng.integers(0, 60, 900), "x": rng.normal(size=900), "y": rng.normal(size=900)}
    table = pd.DataFrame(columns)
    path = write(table, tmp_path / "codes.csv")
    rows = prepare([path], TableOptions(categorical=["code"], min_frequency=1))
    assert sp.issparse(rows.X)
    assert rows.X.shape == (900, 61)
    dummies = pd.get_dummies(table.code.astype(str), dtype=float)
    for name, column in by_name(rows.feature_names, rows.X).items():
        assert np.array_equal(column, table.x if name == "x" else dummies[name.removeprefix("code=")])
    # without a rare level, unseen ones have no indicator
    other = write(table.assign(code=99).head(3), tmp_path / "other.csv")
    assert rows.preparation.read([other]).X.toarray().sum(axis=1) == pytest.approx(table.x[:3])


def test_several_files_and_files_without_names(tmp_path):
    train = frame(300)
    whole = prepare([write(train, tmp_path / "all.csv")], TableOptions(impute="mean"))
    parts = [write(train[:100], tmp_path / "1.csv"), write(train[100:], tmp_path / "2.csv")]
    joined = prepare(parts, TableOptions(impute="mean"))
    assert np.array_equal(joined.X, whole.X)
    assert joined.preparation == whole.preparation
    bad = write(train.assign(income="much")[100:].reset_index(drop=True), tmp_path / "2.csv")
    with pytest.raises(DataError, match=rf"{bad.name}, line 2: column 'income': it holds 'much'"):
        prepare(parts, TableOptions(impute="mean"))
    # "Rome,31.0,..." is taken for names, but numbers and codes without names are not
    codes = train.assign(city=train.city.map(len), kind=1, bought=train.city.map(len) % 2)
    codes.to_csv(tmp_path / "bare.csv", header=False, index=False)
    bare = prepare([tmp_path / "bare.csv"], TableOptions(impute="mean", categorical=["x0"]))
    codes.drop(columns="bought").to_csv(tmp_path / "bare.csv", header=False, index=False)
    assert np.array_equal(bare.preparation.read([tmp_path / "bare.csv"]).X, bare.X)


def test_the_index_of_pandas_is_no_feature(tmp_path):
    table = pd.DataFrame({"a": [1.0, 2.0, 3.0], "y": [0.0, 1.0, 0.0]}, index=[7, 8, 9])
    table.to_parquet(tmp_path / "unnamed.parquet")
    table.rename_axis("key").to_parquet(tmp_path / "named.parquet")
    for name in ("unnamed", "named"):
        path = tmp_path / f"{name}.parquet"
        assert load(path).feature_names == ["a"]
        assert load(path, require_labels=False, n_features=1).X.ravel().tolist() == [1, 2, 3]
        assert prepare([path], TableOptions(impute="mean")).feature_names == ["a"]
    assert load(tmp_path / "named.parquet", target="key").y.tolist() == [7, 8, 9]
    assert load(tmp_path / "named.parquet", target="key").feature_names == ["a", "y"]


REFUSED = {
    "missing": ("a,b,y\n1,2,0\n3,NA,1\n", {}, r"line 3: column 'b': the cell is empty \(1 of 2 are\)"),
    "dates": ("d,y\n2024-01-31,0\n2024-02-01,1\n", {}, "'d': it holds dates or times, such as '2024-01-31'"),
    "times": ("d,y\n23:59,0\n01:30:10,1\n", {}, "column 'd': it holds dates or times.*--drop d"),
    "comma": ("a;y\n7;0\n-1,500;1\n", {}, "line 3: column 'a': '-1,500' may be -1500 or -1.5; say which by "),
    "mixed": ("a,y\n1,0\n\n3x,1\n", {}, "line 4: column 'a': it holds '3x'.*--categorical a"),
    "infinite": ("a,b,y\n1,u,0\n-inf,v,1\n", {}, "line 3: column 'a': the number is not finite"),
    "label": ("a,b,y\n1,u,0\n2,v,\n", {}, "line 3: column 'y': the cell is empty"),
    "drop": ("a,y\n1,0\n2,1\n", {"drop": ["c"]}, "no column 'c'.*the columns are a, y"),
    "columns": ("a,y\n1,0\n2,1\n", {"columns": ["y"]}, "the column 'y' cannot be a feature"),
    "nothing": ("a,y\nu,0\nv,1\n", {"min_frequency": 2}, "no column is left"),
    "negative": ("a,c,y\n1,1,0\n2,-1,1\n", {"weight": "c"}, "line 3: column 'c': the weight is negative"),
    "zero": ("a,c,y\n1,0,0\n2,0,1\n", {"weight": "c"}, "all weights are zero"),
    "words": ("a,c,y\n1,1,0\n2,two,1\n", {"weight": "c"}, "line 3: column 'c': 'two' is not a finite number"),
    "same names": ("a,a,y\n1,u,0\n2,v,1\n", {}, "several columns are called 'a'; rename"),
    "ragged": ("a,b,y\n1,u,0\n2,1\n", {}, "line 3: 2 cells where 3 are expected"),
}  # fmt: skip


def test_levels_do_not_depend_on_the_writer_of_a_file(tmp_path):
    """Whole numbers with and without ".0", booleans of CSV and Parquet; codes with leading zeros stay."""
    year = [2020, 2021, 2020, 2021]
    table = pd.DataFrame({"year": year, "code": ["007", "7", "007", "7"], "flag": [True, False, False, True]})
    table["y"] = [0.0, 1.0, 0.0, 1.0]
    made = {}
    for name, dtype in (("int", int), ("float", float)):
        changed = table.astype({"year": dtype})
        changed.to_csv(tmp_path / f"{name}.csv", index=False)
        changed.to_parquet(tmp_path / f"{name}.parquet")
        for suffix in ("csv", "parquet"):
            made[name, suffix] = tmp_path / f"{name}.{suffix}"
    upper = (tmp_path / "int.csv").read_text().replace("True", "TRUE").replace("False", "false")
    made["other", "csv"] = tmp_path / "upper.csv"
    made["other", "csv"].write_text(upper)
    always = ["year=2020", "year=2021", "code=007", "code=7"]
    for categorical, names in (
        (["year", "code"], [*always, "flag"]),
        (["year", "flag", "code"], [*always, "flag=False", "flag=True"]),
    ):
        fitted = [prepare([path], TableOptions(categorical=categorical)) for path in made.values()]
        for one in fitted:
            assert one.feature_names == names
            np.testing.assert_array_equal(one.X, fitted[0].X)
            for path in made.values():
                new = one.preparation.read([path])
                assert new.notes == ()
                np.testing.assert_array_equal(new.X, fitted[0].X)
    (tmp_path / "new.csv").write_text("year,code,flag\n20,7,True\n21,007,False\n", encoding="utf-8")
    (note,) = fitted[0].preparation.read([tmp_path / "new.csv"]).notes
    assert note.startswith("warning: column 'year': 2 of 2 rows hold levels unseen in training, such as '20'")
    assert ", where training has" in note


@pytest.mark.parametrize(("text", "options", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_used_is_named(text, options, message, tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message) as caught:
        prepare([path], TableOptions(**options))
    assert "\n" not in str(caught.value)


def test_types_of_parquet_are_named(tmp_path):
    table = pd.DataFrame({"a": [1.0, 2.0], "when": pd.to_datetime(["2024-01-01", "2024-01-02"]), "y": [0, 1]})
    path = write(table, tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"column 'when': it holds dates.*--drop when"):
        prepare([path], TableOptions())
    assert prepare([path], TableOptions(drop=["when"])).feature_names == ["a"]
    path = write(table.assign(when=[[1], [2]]), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="column 'when': it is list"):
        prepare([path], TableOptions())
    table = pd.DataFrame({"flag": [True, None, False], "n": pd.array([1, None, 3], "Int64"), "y": [0, 1, 0]})
    rows = prepare([write(table, tmp_path / "t.parquet")], TableOptions(impute="mean"))
    assert rows.X.tolist() == [[1, 1], [0.5, 2], [0, 3]]
    rows = prepare([write(table.assign(n=None), tmp_path / "t.parquet")], TableOptions(impute="mean"))
    assert rows.feature_names == ["flag"]
    assert rows.notes == ("column 'n' is left out: all of its cells are missing",)


def test_new_rows_that_do_not_fit_are_refused(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a,b,y\n1,u,0\n2,v,1\n")
    made = prepare([path], TableOptions()).preparation
    for text, message in {
        "a,y\n1,0\n": "there is no column 'b' .which the model was fitted on",
        "a,b\nx,u\n": "line 2: column 'a': it holds 'x', which is no number, but it was numeric",
        "a,b\n1,u\n,v\n": "line 3: column 'a': the cell is empty.*fit with --impute",
        "a,b\n1,u\n2,\n": "line 3: column 'b': the cell is empty.*fit with --impute",
    }.items():
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            made.read([path])
    path.write_text("b,a\nu,5\n")
    with pytest.raises(DataError, match=r"there is no column 'y' .the labels"):
        made.read([path], labels=True)
    assert made.read([path]).X.tolist() == [[5, 1, 0]]


def test_unsound_preparations_are_refused():
    sound = {"kind": "category", "name": "c", "levels": ["u", "v"], "rare": []}
    sound |= {"missing": False, "accepts_missing": True}
    roles = {"target": "y", "qid": None, "weight": None, "offset": None, "exposure": None, "has_names": True}
    assert TablePreparation.from_dict(roles | {"columns": [sound]}, 2).feature_names == ["c=u", "c=v"]
    for columns, n_features in [
        ([sound], 3),
        ([], 0),
        ([sound | {"kind": "time"}], 2),
        ([sound | {"levels": ["u", "u"]}], 2),
        ([sound | {"levels": ["u", 1]}], 2),
        ([sound | {"missing": 1}], 2),
        ([sound | {"name": None}], 2),
        ([{"kind": "number", "name": "a", "fill": "1"}], 1),
        ([{"kind": "number", "name": "a", "fill": float("nan")}], 1),
    ]:
        with pytest.raises(ValueError, match=r"its table|column|levels|preparation|missing cells"):
            TablePreparation.from_dict(roles | {"columns": columns}, n_features)
    with pytest.raises(ValueError, match="no name"):
        TablePreparation.from_dict(roles | {"columns": [sound], "target": 3}, 2)

"""Tables of DuckDB, polars, pandas and pyarrow, streamed in batches into stored data."""

import subprocess
import sys

import numpy as np
import pytest

from riskmin.data import DataError, convert, load
from riskmin.data.base import UnpreparedColumn

pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")
N = 70_000  # more than one batch


def table():
    """A table with labels of text, and query ids that are not exact in double precision."""
    rng = np.random.default_rng(0)
    return pl.DataFrame(
        {
            "a": rng.standard_normal(N),
            "qid": np.arange(N) // 7 + 2**60,
            "b": rng.integers(-3, 3, N),
            "label": rng.choice(["no", "yes"], N),
        }
    )


def relation(frame):
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect()
    connection.register("rows", frame.to_arrow())
    return connection.sql("select a, qid, b, label from rows")


SOURCES = {
    "polars, lazy": lambda frame: frame.lazy(),
    "polars": lambda frame: frame,
    "DuckDB": relation,
    "pandas": lambda frame: frame.to_pandas(),
    "Arrow, reader": lambda frame: frame.to_arrow().to_reader(1000),
    "Arrow, one batch": lambda frame: frame.to_arrow().combine_chunks(),
}


@pytest.mark.parametrize("name", SOURCES)
def test_tables_are_stored_as_they_are(name, tmp_path):
    frame = table()
    progress = []
    convert(SOURCES[name](frame), tmp_path / "t.rsk", watch=lambda rows, *_: progress.append(rows))
    data = load(tmp_path / "t.rsk")
    np.testing.assert_array_equal(data.X, frame.select("a", "b").to_numpy())
    assert data.y.tolist() == frame["label"].to_list()
    assert data.qid.tolist() == frame["qid"].to_list()
    assert data.feature_names == ["a", "b"]
    assert np.max(np.diff([0, *progress])) <= 2**16 < progress[-1] == N


def test_columns_have_the_roles_of_a_file(tmp_path):
    frame = table()
    frame.drop("label").write_parquet(tmp_path / "t.parquet")
    for source, folder in ((frame.drop("label").lazy(), "a.rsk"), (tmp_path / "t.parquet", "b.rsk")):
        convert(source, tmp_path / folder, target_column="b", dtype=np.float32)
    one, other = (load(tmp_path / folder) for folder in ("a.rsk", "b.rsk"))
    np.testing.assert_array_equal(one.X, other.X)
    np.testing.assert_array_equal(one.y, other.y)
    assert one.feature_names == other.feature_names == ["a"]


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda frame: frame.head(0), DataError, "the table: it has no rows; check its filters"),
        (lambda frame: frame.with_columns(a=None), UnpreparedColumn, "row 1, column 'a': the cell is empty"),
        (lambda frame: frame.with_columns(a=pl.lit("x")), UnpreparedColumn, "the column 'a' is text"),
        (
            lambda frame: frame.with_columns(
                a=pl.when(pl.int_range(pl.len()) == N - 1).then(np.nan).otherwise(1.0)
            ),
            UnpreparedColumn,
            f"row {N}, column 'a': NaN is not finite",
        ),
    ],
    ids=["empty", "missing", "text", "NaN"],
)
def test_unusable_tables_are_refused(change, error, words, tmp_path):
    with pytest.raises(error, match=words):
        convert(change(table()).lazy(), tmp_path / "t.rsk")
    assert list(tmp_path.iterdir()) == []


SCRIPT = """
import resource, sys
from riskmin.data import convert
kind, path, target = sys.argv[1:]
if kind == "polars":
    import polars
    source = polars.scan_parquet(path)
else:
    import duckdb
    duckdb.sql("set enable_progress_bar = false")
    source = duckdb.sql(f"select * from read_parquet('{path}')")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
convert(source, target)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak of memory in kilobytes")
@pytest.mark.parametrize("kind", ["polars", "duckdb"])
def test_tables_need_not_fit_into_memory(kind, tmp_path):
    """Reading and writing a table of 1 GB takes less than three quarters of that."""
    pytest.importorskip(kind)
    import pyarrow.parquet as pq

    path, rng = tmp_path / "big.parquet", np.random.default_rng(0)
    block = pa.table({f"c{j}": rng.standard_normal(2**16) for j in range(32)})
    with pq.ParquetWriter(path, block.schema) as writer:
        for _ in range(60):
            writer.write_table(block)
    run = [sys.executable, "-c", SCRIPT, kind, str(path), str(tmp_path / "big.rsk")]
    done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=300)
    assert 1024 * int(done.stdout) < 60 * block.nbytes * 3 / 4

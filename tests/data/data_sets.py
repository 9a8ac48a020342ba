"""Data sets in every format, for the contracts of readers and of stored data."""

import lzma
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pytest
import scipy.sparse as sp

from riskmin.data import save, save_svmlight

with suppress(ImportError):  # once imported, it reads tables of any size
    import pyarrow as pa
    import pyarrow.parquet as pq


def bits(a):
    return np.asarray(a, np.float64).view(np.int64).tolist()


def same(a, b):
    """Check that two data sets are bitwise equal."""
    assert sp.issparse(a.X) == sp.issparse(b.X)
    assert (a.X.shape, a.X.dtype) == (b.X.shape, b.X.dtype)
    parts = ("data", "indices", "indptr") if sp.issparse(a.X) else ()
    pairs = [(getattr(a.X, k), getattr(b.X, k)) for k in parts] or [(a.X, b.X)]
    for x, z in [*pairs, (a.y, b.y), (a.qid, b.qid)]:
        if x is None or z is None:
            assert x is z
        else:
            assert x.dtype == z.dtype
            np.testing.assert_array_equal(x, z)
    assert a.feature_names == b.feature_names


def _write_svmlight(path, X, y, qid):
    save_svmlight(path, X, y, qid)


def _write_table(path, X, y, qid):
    mark = "\t" if ".tsv" in path.name else ","
    rows = [[*(f"x{j}" for j in range(X.shape[1])), "qid", "y"]]
    rows += [[*map(repr, x), str(q), str(label)] for x, q, label in zip(X.tolist(), qid, y, strict=True)]
    path.write_text("".join(mark.join(row) + "\n" for row in rows))


def _write_npz(path, X, y, qid):
    np.savez(path, X=X, y=y, qid=qid)


def _write_sparse_npz(path, X, y, qid):
    sp.save_npz(path, sp.csr_matrix(X))
    with np.load(path) as file:
        np.savez(path, **dict(file), y=y, qid=qid)


def _write_parquet(path, X, y, qid):
    pytest.importorskip("pyarrow")
    columns = {f"x{j}": column for j, column in enumerate(X.T)} | {"qid": qid, "y": y}
    pq.write_table(pa.table(columns), path, row_group_size=2)


def _write_store(path, X, y, qid):
    parts = [(X[i : i + 4], y[i : i + 4], qid[i : i + 4]) for i in range(0, len(X), 4)]
    save(path, parts, shard_mb=1e-6)


@dataclass(frozen=True)
class Format:
    """How a format is written, and what it holds."""

    suffix: str
    write_plain: Callable
    compress: Callable = bytes
    text: bool = True
    """Whether it is parsed in chunks of text."""
    words: bool = True
    """Whether labels and query ids may be words."""
    pyarrow: bool = True
    """Whether pyarrow may be used."""

    def write(self, folder, X, y, qid):
        """Write a file of this format; return its path."""
        path = folder / f"data{self.suffix}"
        self.write_plain(path, X, y, qid)
        if self.compress is not bytes:
            path.write_bytes(self.compress(path.read_bytes()))
        return path


FORMATS = {
    "svmlight": Format(".svm", _write_svmlight, words=False),
    "csv": Format(".csv", _write_table, pyarrow=False),
    "csv, pyarrow": Format(".csv", _write_table),
    "tsv, xz": Format(".tsv.xz", _write_table, lzma.compress),
    "npz": Format(".npz", _write_npz, text=False),
    "npz, sparse": Format(".npz", _write_sparse_npz, text=False),
    "parquet": Format(".parquet", _write_parquet, text=False),
    "store": Format(".rsk", _write_store, text=False),
}

"""Small valid files of every format, created in each run."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from fuzz import mutate

SVMLIGHT = b"1 1:0.5 3:2 # c\n-1 2:2.5e-1\n1 1:1 2:-3.5 3:1e3\n-1 3:1\n1 1:2\n-1 2:1 3:0\n"
QUERIES = b"2 qid:1 1:0.5 3:2\n1 qid:1 2:2.5e-1\n0 qid:1 1:1\n1 qid:7 3:1\n0 qid:7 1:2\n2 qid:7 2:1\n"
CSV = b'a,"b c",d,e,class\n1,2,0,1,a\n3,4.5,1,0,"b"\n-1e3,0,1,1,a\n2,2,2,2,b\n0,1,0,-1,b\n'
PLAIN = b"1,2,0,0.5,1\n4,5,1,0,-1\n7,8.5,2,1,1\n1,1,-3,0,-1\n2,0,0,1,1\n"
RAW = b'city,age,"a, b",y\nRome,31,u,1\nOslo,45,v,0\nRome,52,u,1\n\nBonn,7e1,u,0\n'
TSV = b"w\tx\ty\tz\tqid\ttarget\n1\t0\t1\t2\tu\t0\n2\t2\t2\t1\tu\t1\n3\t0\t1\t0\tv\t0\n1\t1\t0\t2\tv\t2\n"
CONLL = b"He P B-x\nsits V I-x\n\n# note\nRain N O\nfell V B-x\n\nIt P O\n"

rng = np.random.default_rng(5)
X = np.where(rng.random((8, 4)) < 0.6, rng.standard_normal((8, 4)).round(3), 0.0)
Y = np.array([1.0, -1.0] * 4)


def _npz(**arrays: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(a) for name, a in arrays.items()}


@cache
def npz_arrays() -> list[dict[str, np.ndarray]]:
    """The arrays of .npz files: dense, and sparse of every format."""
    arrays = [
        _npz(X=X, y=Y),
        _npz(X=X, y=np.arange(8) % 3, qid=np.arange(8) // 4),
        _npz(X=X, y=np.where(Y > 0, "a", "b")),
        _npz(
            X=X, y=np.array(["C/a", "C/b", "M", "M"] * 2), qid=np.arange(8) // 4, feature_names=list("abcd")
        ),
    ]
    for kind in ("csr", "csc", "coo", "bsr", "dia"):
        out = io.BytesIO()
        sp.save_npz(out, sp.csr_matrix(X).asformat(kind))
        out.seek(0)
        with np.load(out) as file:
            arrays.append({name: file[name] for name in file.files} | {"y": Y})
    return arrays


@cache
def parquet() -> bytes:
    """A Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = io.BytesIO()
    columns = {"a": X[:, 0], "b": np.arange(8), "c": [True, False] * 4, "d": X[:, 1].astype("f4")}
    columns |= {"qid": np.arange(8) // 4, "y": ["a", "b"] * 4}
    pq.write_table(pa.table(columns), out, row_group_size=5)
    return out.getvalue()


@cache
def stores() -> list[dict[str, bytes]]:
    """The files of stored data: sparse, dense, with words and query ids."""
    from riskmin.data import save

    files = []
    with tempfile.TemporaryDirectory() as folder:
        parts: list[Any] = [
            [(sp.csr_matrix(X[:5]), Y[:5]), (sp.csr_matrix(X[5:]), Y[5:])],
            [(X, np.array(["u", "v"] * 4), np.array(["q", "r"] * 4))],
        ]
        for k, rows in enumerate(parts):
            path = Path(folder, f"{k}.rsk")
            names = list("abcd") if k else None
            save(path, rows, feature_names=names, shard_mb=1e-4)
            files.append({file.name: file.read_bytes() for file in path.iterdir()})
    return files


@cache
def models() -> dict[str, tuple[dict[str, np.ndarray], dict[str, Any]]]:
    """The arrays and metadata of model files, one of each kind."""
    import riskmin
    from riskmin.core.persist import load_arrays, save_arrays  # noqa: F401

    grades, queries = np.arange(8) % 3, np.arange(8) // 4
    fitted: dict[str, Any] = {
        "hinge": riskmin.LinearClassifier("hinge").fit(X, Y),
        "logistic": riskmin.LinearClassifier("logistic", standardize=True).fit(X, np.where(Y > 0, "a", "b")),
        "softmax": riskmin.LinearClassifier("softmax").fit(X, grades),
        "squared": riskmin.LinearRegressor(regularizer="elastic:eps=0.5").fit(X, Y),
        "ordinal": riskmin.OrdinalClassifier().fit(X, grades),
        "ranker": riskmin.LinearRanker().fit(X, grades, qid=queries),
        "novelty": riskmin.NoveltyDetector().fit(X),
        "kernel": riskmin.KernelClassifier("hinge").fit(X, Y),
        "sparse kernel": riskmin.KernelRegressor("squared").fit(sp.csr_array(X), Y),
        "tree": riskmin.HierarchicalClassifier().fit(X, np.array(["C/a", "C/b", "M", "M"] * 2)),
        "tagger": riskmin.ChainTagger("crf", template="window", constraints="bio").fit(
            [[("He", "P"), ("sits", "V")], [("Rain", "N")]], [["B-x", "I-x"], ["O"]]
        ),
    }
    saved = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, model in fitted.items():
            path = Path(folder, "m")
            riskmin.save_model(model, path)
            saved[name] = load_arrays(path, "model")
    return saved


def compressed(rng: random.Random, blob: bytes, damage: bool) -> tuple[bytes, str]:
    """The bytes, sometimes compressed, and the suffix of the compression."""
    kind = rng.randrange(8)
    pack = {0: (gzip.compress, ".gz"), 1: (lzma.compress, ".xz"), 2: (bz2.compress, ".bz2")}.get(kind)
    if pack is None:
        return blob, ""
    packed = pack[0](blob)
    return (mutate.mutated(rng, packed) if damage and rng.random() < 0.5 else packed), pack[1]


@cache
def owner_message() -> bytes:
    """A request to a data owner."""
    from riskmin.owners.wire.codec import OwnerMessage, encode

    fields = {"key": 1, "live": [1], "map": "a1", "problem": "b2", "sequence": 3}
    return encode(OwnerMessage("cache_scores", fields, {"w": np.arange(4.0), "shift": np.zeros((2, 2))}))

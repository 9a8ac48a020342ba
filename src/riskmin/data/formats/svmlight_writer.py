"""Writer of svmlight text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_matrix, issparse

from riskmin.arrays.sparse_checks import validated_sparse
from riskmin.core.atomic_files import atomic_write
from riskmin.data.base import PathLike


def save_svmlight(path: PathLike, X: Any, y: ArrayLike, qid: Iterable[int] | None = None) -> None:
    """Write X and y as svmlight text that reads back bitwise equal; indices start from 1.

    The file is written atomically.

    Parameters
    ----------
    path : path
    X : array or sparse matrix of shape (n, p)
        Only its nonzero entries are written.
    y : array of shape (n,)
    qid : integers, optional

    Examples
    --------
    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "tiny.svm")
    ...     save_svmlight(path, [[0.1, 0], [0, 2]], [1, -1])
    ...     print(path.read_text())
    1.0 1:0.1
    -1.0 2:2.0
    """
    X = csr_matrix(validated_sparse(X) if issparse(X) else X)
    # the entries of row i are those from indptr[i] to indptr[i + 1]
    rows = zip(X.indptr[:-1].tolist(), X.indptr[1:].tolist(), strict=True)
    labels = np.asarray(y, np.float64).tolist()
    queries = [""] * len(labels) if qid is None else [f" qid:{int(q)}" for q in qid]
    with atomic_write(path) as file:
        for (start, stop), label, query in zip(rows, labels, queries, strict=True):
            entries = zip(X.indices[start:stop].tolist(), X.data[start:stop].tolist(), strict=True)
            # repr is the shortest decimal that reads back as the same float64
            pairs = "".join(f" {j + 1}:{float(v)!r}" for j, v in entries)
            file.write(f"{label!r}{query}{pairs}\n".encode("ascii"))

"""Small examples of the parts of `riskmin.arrays`."""

import numpy as np
import pytest
import scipy.sparse as sp

from riskmin.arrays.matrix import as_matrix
from riskmin.arrays.namespace import as_writable_view, check_no_masks_or_dates
from riskmin.arrays.sequences import Sequences, even_sequence_ends
from riskmin.arrays.sparse_checks import InvalidSparseMatrix, validated_sparse


def test_as_writable_view():
    a = np.frombuffer(bytes(16))
    assert not (a.flags.writeable)
    assert as_writable_view(a).flags.writeable


def test_check_no_masks_or_dates():
    with pytest.raises(
        ValueError,
        match=r"y holds datetime64\[D\], which is no number: encode it as days since a first one, or drop it",
    ):
        check_no_masks_or_dates(np.array(["2020-02-20"], dtype="datetime64[D]"), "y")


def test_even_sequence_ends():
    assert even_sequence_ends(np.array([2, 3, 6]), 2).tolist() == [0, 3, 6]


def test_sequences():
    X = Sequences(as_matrix(np.eye(6)), np.array([2, 3, 6]))
    assert X.shape == (6, 6)
    assert X.rows(2, 6).ends.tolist() == [1, 4]
    assert X.shard_ends(2).tolist() == [0, 3, 6]


def test_validated_sparse():
    X = sp.csr_array(np.eye(2))
    assert validated_sparse(X) is X
    twice = sp.csr_array((np.full(3, 100, np.int8), [1, 0, 1], [0, 3, 3]), shape=(2, 2))
    twice.has_canonical_format = True  # a flag that is out of date
    assert validated_sparse(twice).indices.tolist() == [0, 1]
    assert validated_sparse(twice).data.tolist() == [100, -56]  # the sum in its dtype, as by SciPy
    assert twice.indices.tolist() == [1, 0, 1]
    X.indices[1] = 7
    with pytest.raises(InvalidSparseMatrix, match=r"X is not a valid sparse matrix: an index of its .*"):
        validated_sparse(X)

"""How threads share the rows of a dense X: what the kernels require of a layout, for all row lengths."""

import pytest

from riskmin._cuda.kernels import MAX_COLUMNS, DenseLayout, points_at_a_time


@pytest.mark.parametrize("itemsize", [2, 4, 8])
@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_layouts_fit_the_kernel(itemsize, k):
    for p in [*range(1, 700), *range(1000, MAX_COLUMNS, 997), MAX_COLUMNS]:
        if k > points_at_a_time(p):
            continue
        for ld, address in ((p, 0), (p + 3, 0), (p, itemsize)):
            lanes, vector, rows, threads, staged, _ = DenseLayout.choose(p, ld, itemsize, address, k)
            size = vector * itemsize
            # loads of aligned vectors, in every row
            assert size <= 16
            assert p % vector == 0
            assert (ld * itemsize) % size == 0
            assert address % size == 0
            # asynchronous copies are of 4, 8 or 16 bytes
            assert not staged or size in (4, 8, 16)
            # the scores of a group at a time: a power of two, one per lane
            scores = rows * k
            assert scores & (scores - 1) == 0
            assert scores <= min(lanes, 32)
            # a part of a warp, or the whole block
            assert threads == lanes if lanes > 32 else 32 % lanes == 0
            # shared memory of a block: w, and the rows that are copied ahead
            step = lanes * vector
            padded = -(-p // step) * step
            copied = rows * padded * (threads // lanes) * itemsize if staged else 0
            assert 8 * k * padded + copied <= 227 * 2**10

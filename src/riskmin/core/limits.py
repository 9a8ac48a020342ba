"""Sizes of blocks and limits of memory: in bytes, or in entries of 8 bytes each."""

from __future__ import annotations

BLOCK_BYTES = 2**20
"""Bytes per block of rows: a block stays in a core's own cache between the two products."""

FINITE_CHECK_ENTRIES = 2**17
"""Entries of X that are checked for NaN and infinity in one vectorized call."""

INDEX_CHECK_ENTRIES = 2**18
"""Indices of a sparse matrix that are checked in one vectorized call."""

SHARD_ENTRIES = 2**20
"""Multiplications per shard and pass, about: the stored entries of its rows times the number of outputs."""

CHUNK_ENTRIES = 2**20
"""Stored entries of a sparse matrix per chunk; at least as many as it has columns."""

GATHERED_BLOCK_ENTRIES = 2**18
"""Entries of dense rows that are gathered at a time: they stay in cache until they are multiplied."""

KERNEL_CHUNK_BYTES = 2**25
"""Rows that are not cached are computed in chunks of about this size."""

COPY_MAX_ENTRIES = 2**23
"""Changed columns of up to this many entries (64 MB) are stored; beyond, products are corrected instead."""

CHEAP_COPY_ENTRIES = 2**17
"""The cost of copying up to this many entries is negligible."""

SAMPLED_ENTRIES = 2**16
"""Sizes are means over rows: about this many stored entries per shard suffice to estimate them."""

HASH_BLOCK_ENTRIES = 2**18
"""Number of entries of X that are hashed in one vectorized call."""

SCATTER_ABOVE_BYTES = 2**25
"""Above this total size in bytes, over all workers, arguments go to one worker, which passes them on."""

INLINE_ARRAY_BYTES = 2**16
"""Arrays of fewer bytes in total are sent through the pipe, larger ones through shared memory."""

DP_MAX_TABLE_ENTRIES = 2**20
"""Dynamic programming is not used for queries with larger tables."""

HESSIAN_BLOCK_ENTRIES, PAIR_BLOCK_ENTRIES = 2**15, 2**17
"""Size of a block of rows in scores, and in entries times classes: it stays in cache."""

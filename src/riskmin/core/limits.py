"""Sizes of blocks and limits of memory: in bytes, or in entries of 8 bytes each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MemoryLimits:
    """How many entries are processed, copied, stored or sent at a time."""

    block_bytes: int = 2**20
    """Bytes per block of rows: a block stays in a core's own cache between the two products."""
    finite_check_entries: int = 2**17
    """Entries of X that are checked for NaN and infinity in one vectorized call."""
    index_check_entries: int = 2**18
    """Indices of a sparse matrix that are checked in one vectorized call."""
    shard_entries: int = 2**20
    """Multiplications per shard and pass, about: the stored entries of its rows times the outputs."""
    chunk_entries: int = 2**20
    """Stored entries of a sparse matrix per chunk; at least as many as it has columns."""
    gathered_block_entries: int = 2**18
    """Entries of dense rows that are gathered at a time: they stay in cache until they are multiplied."""
    scaled_block_entries: int = 2**16
    """Entries of dense rows that are scaled at a time for a Gram matrix."""
    kernel_chunk_bytes: int = 2**25
    """Rows that are not cached are computed in chunks of about this size."""
    copy_max_entries: int = 2**23
    """Changed columns of up to this many entries (64 MB) are stored; beyond, products are corrected."""
    cheap_copy_entries: int = 2**17
    """The cost of copying up to this many entries is negligible."""
    sampled_entries: int = 2**15
    """Sizes are means over rows: about this many stored entries per shard suffice to estimate them."""
    hash_block_entries: int = 2**18
    """Number of entries of X that are hashed in one vectorized call."""
    scatter_above_bytes: int = 2**25
    """Above this total size in bytes, over all workers, arguments go to one worker, which passes them on."""
    inline_array_bytes: int = 2**16
    """Arrays of fewer bytes in total are sent through the pipe, larger ones through shared memory."""
    dp_max_table_entries: int = 2**20
    """Dynamic programming is not used for queries with larger tables."""
    hessian_block_entries: int = 2**15
    """Scores of a block of rows in products with the Hessian: it stays in cache."""
    pair_block_entries: int = 2**17
    """Entries times classes of a block of rows: it stays in cache."""
    small_product: int = 10**6
    """Multiplications of a dense matrix product up to which OpenBLAS reads its operands in place, on the
    processors that have such kernels: beyond, it copies them, which takes longer than a thin product."""
    block_max_scores: int = 2**17
    """At most this many scores per block of rows, so that they stay in cache, too."""
    cache_max_scores: int = 2**22
    """Multi-output scores are cached if a shard has at most this many, and else recomputed."""
    stored_duals: int = 2**27
    """Dual variables that are stored, at most, 1 GiB: fewer cuts are kept for very many rows."""
    decompressed_bytes: int = 2**20
    """Bytes of a compressed file that are read at a time."""


LIMITS = MemoryLimits()

"""Rows that do not fit on a GPU: the time of a pass that copies them, against the bandwidth of the link.

python -m benchmarks.gpu streaming [--gigabytes 16]
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import riskmin as rm
from riskmin.arrays.devices.streamed import StreamedRows


def main(arguments):
    import cupy

    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu streaming", description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=16)
    options = parser.parse_args(arguments)
    p = 512
    n = int(options.gigabytes * 1e9) // (4 * p)
    some = np.random.default_rng(0).standard_normal((2**14, p), dtype=np.float32)
    X = np.tile(some, (n // 2**14 + 1, 1))[:n]
    y, w = np.where(np.arange(n) % 3, 1.0, -1.0), np.full(p, 0.01)
    for resident in (0, n // 2):
        start = time.perf_counter()
        rows = StreamedRows(X, resident, cupy.empty(0))
        made = time.perf_counter() - start
        speed = rows.copies.bandwidth()
        risk = rm.linear_risk(rows, y, rm.Logistic())
        risk(w)
        start = time.perf_counter()
        for _ in range(3):
            risk(w)
        seconds = (time.perf_counter() - start) / 3
        share = rows.streamed_bytes / speed / seconds
        print(
            f"{rows.streamed_bytes / 1e9:.1f} of {X.nbytes / 1e9:.1f} GB copied, "
            f"pinned: {rows.pinned}, in {made:.1f} s; link {speed / 1e9:.1f} GB/s; "
            f"a pass {seconds * 1e3:.0f} ms = {share:.0%} of the link",
            flush=True,
        )
        del risk, rows

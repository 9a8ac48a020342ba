"""Read one table as CSV and as Parquet: `riskmin.data.load` against pandas, polars and pyarrow.

python -m benchmarks.readers [--megabytes 50]

Each reader ends with a float64 matrix of all columns, on one thread where it has that setting. Rates are
megabytes of the CSV file per CPU second, for the best of three rounds, in which the readers take turns; a
reader whose matrix differs from pandas' is reported as wrong.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

os.environ.update(POLARS_MAX_THREADS="1", OMP_NUM_THREADS="1")

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from benchmarks.harness.script import script_parser
from riskmin.data import load

N_COLUMNS = 20
ROUNDS = 3


def ours(path: Path) -> np.ndarray:
    data = load(path, target="y")
    return np.column_stack([np.asarray(data.X), data.y])


def with_pandas(path: Path) -> np.ndarray:
    frame = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path, use_threads=False)
    return frame.to_numpy(np.float64)


def with_polars(path: Path) -> np.ndarray:
    frame = pl.read_csv(path) if path.suffix == ".csv" else pl.read_parquet(path)
    return frame.cast(pl.Float64).to_numpy()


def with_pyarrow(path: Path) -> np.ndarray:
    if path.suffix == ".csv":
        table = pyarrow.csv.read_csv(path, pyarrow.csv.ReadOptions(use_threads=False))
    else:
        table = pyarrow.parquet.read_table(path, use_threads=False)
    return np.column_stack([column.to_numpy() for column in table.columns])


READERS = {"riskmin": ours, "pandas": with_pandas, "polars": with_polars, "pyarrow": with_pyarrow}


def write(folder: Path, megabytes: float) -> tuple[Path, Path]:
    """Write numbers of five digits, and counts in every third column."""
    rng = np.random.default_rng(0)
    X = np.round(rng.standard_normal((int(megabytes * 1e6 / (6.5 * N_COLUMNS)), N_COLUMNS)), 4)
    X[:, ::3] = rng.integers(0, 1000, X[:, ::3].shape)
    frame = pd.DataFrame(X, columns=[*(f"x{j}" for j in range(N_COLUMNS - 1)), "y"])
    csv, parquet = folder / "table.csv", folder / "table.parquet"
    pyarrow.csv.write_csv(pa.Table.from_pandas(frame, preserve_index=False), csv)
    frame.to_parquet(parquet)
    return csv, parquet


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--megabytes", type=float, default=50.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        paths = write(Path(name), args.megabytes)
        size = paths[0].stat().st_size / 1e6
        print("| format | " + " | ".join(READERS) + " |\n|" + "---|" * (len(READERS) + 1))
        for path in paths:
            right = with_pandas(path)
            best = dict.fromkeys(READERS, np.inf)
            wrong = {reader for reader, read in READERS.items() if not np.array_equal(read(path), right)}
            for _ in range(ROUNDS):
                for reader, read in READERS.items():
                    start = time.process_time()
                    read(path)
                    best[reader] = min(best[reader], time.process_time() - start)
            cells = [f"{size / best[r]:.0f} MB/s" + (" (wrong)" if r in wrong else "") for r in READERS]
            print(f"| {path.suffix[1:]}, {size:.0f} MB of text | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()

"""Peak memory and seconds of `convert` for a Parquet folder that DuckDB, polars or pyarrow reads in chunks.

    python -m benchmarks.arrow_tables [--megabytes 1000]

Each reader runs in a process of its own. The peak is that of its resident set, less the peak before the call.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness.script import print_head, script_parser

COLUMNS, BLOCK_ROWS = 32, 2**16
SOURCES = {
    "DuckDB, a query": "import duckdb; duckdb.sql('set enable_progress_bar = false'); "
    "source = duckdb.sql(f\"select * from '{folder}/*.parquet'\")",
    "polars, a lazy frame": "import polars; source = polars.scan_parquet(f'{folder}/*.parquet')",
    "pyarrow, a reader": "import pyarrow.dataset; "
    "source = pyarrow.dataset.dataset(folder).scanner(batch_size=2**16, batch_readahead=2).to_reader()",
}
SCRIPT = """
import sys, time
from benchmarks.harness.script import memory_bytes
from riskmin.data import convert
folder, target = sys.argv[1:]
{source}
before, start = memory_bytes("VmHWM"), time.process_time()
convert(source, target)
print(memory_bytes("VmHWM") - before, time.process_time() - start)
"""


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--megabytes", type=int, default=1000)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "rows")
        folder.mkdir()
        block_bytes = 8 * COLUMNS * BLOCK_ROWS
        for k in range(max(args.megabytes * 10**6 // (8 * block_bytes), 1)):
            blocks = {f"c{j}": rng.standard_normal(8 * BLOCK_ROWS) for j in range(COLUMNS)}
            pq.write_table(pa.table(blocks), folder / f"{k:03}.parquet", row_group_size=BLOCK_ROWS)
        print_head("source | peak memory, MB | CPU s")
        for name, source in SOURCES.items():
            script = SCRIPT.format(source=source)
            command = [sys.executable, "-c", script, str(folder), str(Path(temporary, "rows.rsk"))]
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
            peak, seconds = map(float, done.stdout.split())
            print(f"| {name} | {peak / 1e6:.0f} | {seconds:.1f} |", flush=True)
            shutil.rmtree(Path(temporary, "rows.rsk"))


if __name__ == "__main__":
    main()

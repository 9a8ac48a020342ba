"""Time `riskmin.data.load_svmlight` against scikit-learn's reader, in one run, on one file.

python benchmarks/svmlight.py                 # generates text of about 100 MB in a temporary folder
python benchmarks/svmlight.py --file a9a.svm  # or takes yours (plain text)
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.harness.script import script_parser
from riskmin.data import load_svmlight

PATTERNS = {"short": "%.5g", "long": "%r"}
FIRST = """
import sys, time
start = time.perf_counter()
from riskmin.data import load_svmlight
load_svmlight(sys.argv[1])
print(time.perf_counter() - start)
"""


def write(path: Path, pattern: str, megabytes: float, seed: int = 0) -> None:
    """Write rows of about 80 out of 50 000 features; half of the values are counts, half use the pattern."""
    rng = np.random.default_rng(seed)
    block = []
    for _ in range(1000):
        indices = np.unique(rng.integers(1, 50_001, 80)).tolist()
        values = rng.standard_normal(len(indices)).tolist()
        counts = rng.integers(1, 9, len(indices)).tolist()
        texts = [pattern % v if j % 2 else str(c) for j, v, c in zip(indices, values, counts, strict=True)]
        pairs = " ".join(f"{j}:{t}" for j, t in zip(indices, texts, strict=True))
        block.append(f"{rng.choice([-1, 1])} {pairs}\n")
    text = "".join(block).encode()
    with path.open("wb") as file:
        for _ in range(round(megabytes * 1e6 / len(text)) or 1):
            file.write(text)


def report(path: Path, title: str) -> None:
    megabytes = path.stat().st_size / 1e6
    command = [sys.executable, "-c", FIRST, str(path)]
    first = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    load_svmlight(path)
    start = time.perf_counter()
    ours = load_svmlight(path)
    ours_seconds = time.perf_counter() - start

    from sklearn.datasets import load_svmlight_file

    start = time.perf_counter()
    X, y = load_svmlight_file(str(path))[:2]
    theirs_seconds = time.perf_counter() - start
    same = (ours.X != X).nnz == 0 and np.array_equal(ours.y, y)
    print(f"{title}: {megabytes:.0f} MB, {X.shape[0]} x {X.shape[1]}, {X.nnz} values, equal: {same}")
    print(f"  riskmin, again         {ours_seconds:7.2f} s {megabytes / ours_seconds:7.0f} MB/s")
    print(f"  riskmin, new process   {first:7.2f} s {megabytes / first:7.0f} MB/s (with imports)")
    print(f"  scikit-learn           {theirs_seconds:7.2f} s {megabytes / theirs_seconds:7.0f} MB/s")
    print(f"  ratio {theirs_seconds / ours_seconds:.1f}")


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--file", type=Path, help="plain svmlight text to read instead")
    parser.add_argument("--megabytes", type=float, default=100.0)
    args = parser.parse_args()
    if args.file is not None:
        report(args.file, args.file.name)
        return
    with tempfile.TemporaryDirectory() as folder:
        for title, pattern in PATTERNS.items():
            path = Path(folder, f"{title}.svm")
            write(path, pattern, args.megabytes)
            report(path, f"values as {pattern}")


if __name__ == "__main__":
    main()

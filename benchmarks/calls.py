"""The way of small fits: modules, functions and Python calls of riskmin, and CPU milliseconds.

    python -m benchmarks.calls [CHECKOUT ...] [--rounds 4]

Each checkout (`git worktree add`; by default this one) fits the estimators to the same rows in a new process
per round, in turn, on one thread, with compiled code in its own cache. The first three fits load code; then a
hundred are timed, of which the median counts, and the smallest of the rounds. One more fit is traced: its
calls are those of functions of riskmin in Python.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.harness.script import print_head, script_parser

FITS = """
import json, os, statistics, sys, time, warnings
import numpy as np, riskmin
warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
X, noise = rng.standard_normal((300, 10)), rng.standard_normal(300)
sign, target = np.where(X[:, 0] + noise > 0, 1, -1), X[:, 0] + noise
grades = np.digitize(X[:, 0], [-0.5, 0.5])
C, R = riskmin.LinearClassifier, riskmin.LinearRegressor
big = rng.standard_normal((20_000, 60)) * np.logspace(0, 3, 60) + 5
label = np.where(big[:, 0] + rng.standard_normal(20_000) > 5, 1, -1)
fits = {
    "hinge": (C("hinge", alpha=1e-3), X, sign),
    "logistic": (C("logistic", alpha=1e-3), X, sign),
    "squared": (R("squared", alpha=1e-3), X, target),
    "quantile": (R("quantile:level=0.9", alpha=1e-3), X, target),
    "lasso": (R("squared", regularizer="l1", alpha=1e-2), X, target),
    "elastic net": (R("squared", regularizer="elastic", alpha=1e-2), X, target),
    "logistic, L1": (C("logistic", regularizer="l1", alpha=1e-2), X, sign),
    "3 classes": (C("logistic", alpha=1e-3), X, grades),
    "hinge, 20 000 x 60, raw units": (C("hinge", alpha=1e-3), big, label),
}
root = os.path.dirname(riskmin.__file__) + os.sep

def way(model, X, y):
    modules, functions, calls = set(), set(), 0

    def watch(frame, event, _):
        nonlocal calls
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(root):
            calls += 1
            modules.add(code.co_filename)
            functions.add((code.co_filename, code.co_qualname))

    sys.setprofile(watch)
    model.fit(X, y)
    sys.setprofile(None)
    return len(modules), len(functions), calls

found = {}
for name, (model, X, y) in fits.items():
    times = []
    for _ in range(103 if len(X) < 1000 else 9):
        start = time.process_time()
        model.fit(X, y)
        times.append(time.process_time() - start)
    found[name] = *way(model, X, y), 1e3 * statistics.median(times[3:])
print(json.dumps(found))
"""


def run(checkout: Path) -> dict[str, list[float]]:
    """Modules, functions, calls and milliseconds of each fit, in a new process."""
    environment = os.environ | {
        "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, "-c", FITS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("checkouts", type=Path, nargs="*", default=[Path(__file__).parents[1]])
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    rounds = [[run(checkout) for checkout in args.checkouts] for _ in range(args.rounds)]
    columns = "modules | functions | calls | CPU, ms"
    print_head("fit, 300 x 10" + f" | {columns}" * len(args.checkouts) + " | last / first")
    for fit in rounds[0][0]:
        ways = [each[fit][:3] for each in rounds[0]]
        times = [min(each[k][fit][3] for each in rounds) for k in range(len(args.checkouts))]
        cells = [
            " | ".join([*(f"{n:.0f}" for n in way), f"{ms:.2f}"]) for way, ms in zip(ways, times, strict=True)
        ]
        # the median of the ratios within the rounds: both processes ran under the same load
        ratio = statistics.median(each[-1][fit][3] / each[0][fit][3] for each in rounds)
        print(f"| {fit} | {' | '.join(cells)} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()

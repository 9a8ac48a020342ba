"""The way of small fits: modules, functions and Python calls of riskmin, and CPU milliseconds.

    python -m benchmarks.calls [CHECKOUT ...] [--rounds 15]

Each checkout (`git worktree add`; by default this one) fits the estimators to the same rows in a process of
its own, on one thread. The processes take turns, so that all of them see the same load: in each round each
makes 20 fits after the other, of which the median counts. The table has the least median of the rounds, and
the median of the ratios within the rounds. One more fit is traced: its calls are those of functions of
riskmin in Python.
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

for name in map(str.strip, sys.stdin):
    model, X, y = fits[name]
    times = []
    for _ in range(20 if len(X) < 1000 else 1):
        start = time.process_time()
        model.fit(X, y)
        times.append(time.process_time() - start)
    print(json.dumps([*way(model, X, y), 1e3 * statistics.median(times)]), flush=True)
"""
FIT_NAMES = (
    "hinge", "logistic", "squared", "quantile", "lasso", "elastic net", "logistic, L1", "3 classes",
    "hinge, 20 000 x 60, raw units",
)  # fmt: skip


def started(checkout: Path) -> subprocess.Popen[str]:
    """A process that makes the fits whose names it reads."""
    environment = os.environ | {
        "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
    }  # fmt: skip
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", FITS]
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True, bufsize=1)


def measured(process: subprocess.Popen[str], name: str) -> list[float]:
    """Modules, functions, calls and milliseconds of a fit in the process."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(name + "\n")
    return json.loads(process.stdout.readline())


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("checkouts", type=Path, nargs="*", default=[Path(__file__).parents[1]])
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    processes = [started(checkout) for checkout in args.checkouts]
    columns = "modules | functions | calls | CPU, ms"
    print_head("fit, 300 x 10" + f" | {columns}" * len(processes) + " | last / first")
    for name in FIT_NAMES:
        # the first round loads code
        rounds = [[measured(process, name) for process in processes] for _ in range(args.rounds + 1)][1:]
        cells = [
            " | ".join([*map(str, way[:3]), f"{min(each[k][3] for each in rounds):.2f}"])
            for k, way in enumerate(rounds[-1])
        ]
        ratio = statistics.median(each[-1][3] / each[0][3] for each in rounds)
        print(f"| {name} | {' | '.join(cells)} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()

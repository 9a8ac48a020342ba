"""Compare two versions of riskmin: CPU seconds of fits to a certified gap of 1e-3, interleaved in one run.

    python -m benchmarks.versions BEFORE AFTER [--rounds 2]

BEFORE and AFTER are checkouts (`git worktree add`). Each round runs all problems in a new process of each
version, on one thread; the minimum of all runs counts. The data are synthetic: 20 000 rows, dense with 30
columns and sparse with 5000, and 150 of the dense ones.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.harness.script import print_head, script_parser

PROBLEMS = """
import json, time, warnings
import numpy as np, riskmin as rm, scipy.sparse as sp
warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
D, w = rng.standard_normal((20000, 30)), rng.standard_normal(30)
S, v = sp.random(20000, 5000, 0.005, "csr", random_state=0), rng.standard_normal(5000)
noise = rng.standard_normal(20000)
scores = {"dense": D @ w + 2 * noise, "sparse": S @ v + 0.3 * noise}
sign = {name: np.where(z > 0, 1.0, -1.0) for name, z in scores.items()}
target, classes = D @ w + noise, np.digitize(D @ w, [-4, 0, 4]).astype(float)
cases = []
for name, X in (("dense", D), ("sparse", S)):
    for loss in ("hinge", "logistic", "squared_hinge"):
        cases += [(name, X, sign[name], loss, rm.L2(), 1e-4, intercept) for intercept in (False, True)]
    for loss, reg in (("logistic", rm.L1()), ("hinge", rm.L1()), ("roc_area", rm.L2())):
        cases.append((name, X, sign[name], loss, reg, 1e-3, False))
for loss in ("quantile", "huber", "absolute", "squared"):
    cases.append(("dense", D, target, loss, rm.L2(), 1e-3, True))
for loss in ("multiclass_hinge", "softmax"):
    cases += [("dense", D, classes, loss, rm.L2(), 1e-2, intercept) for intercept in (False, True)]
labels = {"hinge": sign["dense"], "logistic": sign["dense"], "squared": target, "quantile": target}
for loss, y in labels.items():
    cases.append(("150 rows", D[:150], y[:150], loss, rm.L2(), 1e-2, True))
seconds = {}
for name, X, y, loss, reg, lam, intercept in cases:
    times = []
    for _ in range(30 if len(y) < 1000 else 3):
        start = time.process_time()
        risk = rm.linear_risk(X, y, loss, fit_intercept=intercept)
        rm.minimize(rm.Objective(risk, reg, lam), max_seconds=8)
        times.append(time.process_time() - start)
    seconds[f"{name} {loss} {type(reg).__name__}{' intercept' * intercept}"] = min(times)
print(json.dumps(seconds))
"""


def run(checkout: Path) -> dict[str, float]:
    """CPU seconds of each problem, in a new process."""
    environment = os.environ | {
        "PYTHONPATH": str(checkout / "src"), "NUMBA_CACHE_DIR": str(checkout / ".numba_versions"),
        "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, "-c", PROBLEMS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    rounds = [[run(checkout) for checkout in (args.before, args.after)] for _ in range(args.rounds)]
    ratios = []
    print_head("problem | before, s | after, s | after / before")
    for problem in rounds[0][0]:
        before, after = (min(each[k][problem] for each in rounds) for k in (0, 1))
        ratios.append(after / before)
        print(f"| {problem} | {before:.3f} | {after:.3f} | {ratios[-1]:.2f} |")
    print(f"\nmedian {statistics.median(ratios):.2f}, largest {max(ratios):.2f}")


if __name__ == "__main__":
    main()

"""How long a user waits before anything happens: import, first fit, small fits; each in a fresh process.

    python -m benchmarks.lag [--rounds 5]

The Numba cache is warm, as on every run but the first after an installation. The least of the rounds counts.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

DATA = """
import numpy as np
rng = np.random.default_rng(0)
X = rng.standard_normal((500, 20)); y = np.where(X[:, 0] + 0.5 * rng.standard_normal(500) > 0, 1.0, -1.0)
"""
CORE = """
J = riskmin.Objective(riskmin.linear_risk(X, y, riskmin.Hinge(), fit_intercept=True), riskmin.L2(), 1e-2)
riskmin.minimize(J)
"""
CASES = {
    "import riskmin": "import riskmin",
    "import and first fit, core": f"import riskmin\n{DATA}{CORE}",
    "import and first fit, LinearClassifier": (
        f"from riskmin import LinearClassifier\n{DATA}LinearClassifier(alpha=1e-2).fit(X, y)"
    ),
    "import sklearn.base alone": "import sklearn.base",
    "riskmin --help": "import sys; sys.argv[1:] = ['--help']\nfrom riskmin.cli import main\nmain()",
}
AGAIN = f"""
import time, riskmin
{DATA}{CORE}
start = time.perf_counter()
for _ in range(10):
    riskmin.minimize(J)
print((time.perf_counter() - start) / 10)
"""


def seconds(code: str) -> float:
    timed = (
        f"import time; start = time.perf_counter()\ntry:\n    exec({code!r}, globals())\nexcept SystemExit:\n"
    )
    timed += "    pass\nimport sys; print(time.perf_counter() - start, file=sys.stderr)"
    run = subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True)
    return float(run.stderr.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    seconds(CASES["import and first fit, LinearClassifier"])  # fills the caches
    print("| what | seconds |\n|---|---|")
    for name, code in CASES.items():
        print(f"| {name} | {min(seconds(code) for _ in range(rounds)):.2f} |", flush=True)
    run = subprocess.run([sys.executable, "-c", AGAIN], capture_output=True, text=True, check=True)
    print(f"| a later fit of the same 500 x 20, core | {float(run.stdout):.4f} |")


if __name__ == "__main__":
    main()

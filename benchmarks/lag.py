"""How long a user waits before anything happens: import, first fit, small fits; each in a fresh process.

    OMP_NUM_THREADS=1 python -m benchmarks.lag [--rounds 5]

CPU seconds, the least of the rounds. The Numba cache is warm, as on every run but the first after an
installation. Then fits of 150 rows by the estimators with their defaults, which include an intercept, after
a first one: CPU milliseconds, the least of 20, with what scikit-learn's checks of X and y take alone.
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
start = time.process_time()
for _ in range(10):
    riskmin.minimize(J)
print((time.process_time() - start) / 10)
"""
SMALL = r"""
import time, warnings, numpy as np
from sklearn.base import BaseEstimator
from sklearn.datasets import load_iris
from sklearn.utils.validation import validate_data
from riskmin import LinearClassifier, LinearRegressor
warnings.simplefilter("error")
rng = np.random.default_rng(0)
iris, X = load_iris(), rng.standard_normal((150, 20))
y = X[:, 0] + 0.5 * rng.standard_normal(150)
SETS = {"iris, 150 x 4": (iris.data, iris.target == 1, iris.data[:, 3]), "150 x 20": (X, y > 0, y)}
MODELS = [LinearClassifier(loss) for loss in ("hinge", "squared_hinge", "logistic")]
OTHERS = "squared", "absolute", "huber", "quantile", "epsilon_insensitive"
MODELS += [LinearRegressor(loss) for loss in OTHERS]

def least(f):
    times = []
    for k in range(22):
        start = time.process_time()
        f()
        times.append(time.process_time() - start)
    return 1e3 * min(times[2:])

print("| loss | " + " | ".join(SETS) + " | solver |\n|---|" + "---|" * (len(SETS) + 1))
for model in MODELS:
    cells, names = [], []
    for X, classes, values in SETS.values():
        y = classes if isinstance(model, LinearClassifier) else values
        cells.append(f"{least(lambda: model.fit(X, y)):.1f}")
        names.append(model.result_.solver.split("(")[0])
    said = ", ".join(dict.fromkeys(names))
    print(f"| {model.loss} | " + " | ".join(cells) + f" | {said} |", flush=True)
X, classes, _ = SETS["150 x 20"]
print(f"| validate_data alone | | {least(lambda: validate_data(BaseEstimator(), X, classes)):.1f} | |")
"""


def seconds(code: str) -> float:
    timed = (
        f"import time; start = time.process_time()\ntry:\n    exec({code!r}, globals())\nexcept SystemExit:\n"
    )
    timed += "    pass\nimport sys; print(time.process_time() - start, file=sys.stderr)"
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
    print(f"| a later fit of the same 500 x 20, core | {float(run.stdout):.4f} |\n")
    run = subprocess.run([sys.executable, "-c", SMALL], capture_output=True, text=True, check=True)
    print(run.stdout, end="")


if __name__ == "__main__":
    main()

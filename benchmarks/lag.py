"""Latency for the user: import, first fit, small fits; each in a fresh process.

    OMP_NUM_THREADS=1 python -m benchmarks.lag [--rounds 5] [--task hinge ...]

CPU seconds, minimum of the rounds. The Numba cache is warm, as on every run but the first after an
installation. Then fits of 150 rows by the estimators with their defaults, which include an intercept,
after a first fit: CPU milliseconds, minimum of 20, and the time of scikit-learn's checks of X and y alone.

Finally first fits of each kind, without the imports: cold, with all kernels compiled into an empty cache
folder, and warm, in the next process. With --task, only these are run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from benchmarks.harness.script import print_head, script_parser

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

def fastest(f):
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
        cells.append(f"{fastest(lambda: model.fit(X, y)):.1f}")
        names.append(model.result_.solver.split("(")[0])
    solvers = ", ".join(dict.fromkeys(names))
    print(f"| {model.loss} | " + " | ".join(cells) + f" | {solvers} |", flush=True)
X, classes, _ = SETS["150 x 20"]
print(f"| validate_data alone | | {fastest(lambda: validate_data(BaseEstimator(), X, classes)):.1f} | |")
"""


FIRST = """
import time, warnings, numba, riskmin, riskmin.estimators
import numpy as np, scipy.sparse as sp
from riskmin._numba import products
from riskmin import *
warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
X = rng.standard_normal((200, 10)); z = X[:, 0] + 0.5 * rng.standard_normal(200)
if {sparse}:
    X = sp.random(200, 50, 0.1, "csr", random_state=0)
y, grades, qid = z > 0, np.digitize(z, [-0.5, 0.5]), np.arange(200) // 10
counts = rng.poisson(np.exp(0.3 * z))
words = [[{{"w": str(i % 7), "v": str(i * j % 5)}} for j in range(4)] for i in range(20)]
tags = [["ABC"[(i + j) % 3] for j in range(4)] for i in range(20)]
start = time.process_time()
{fit}
print(time.process_time() - start)
"""
TASKS = {
    "hinge": "LinearClassifier('hinge').fit(X, y)",
    "logistic": "LinearClassifier('logistic').fit(X, y)",
    "multiclass hinge": "LinearClassifier('hinge').fit(X, grades)",
    "softmax": "LinearClassifier('logistic').fit(X, grades)",
    "squared": "LinearRegressor('squared').fit(X, z)",
    "huber": "LinearRegressor('huber').fit(X, z)",
    "quantile": "LinearRegressor('quantile').fit(X, z)",
    "poisson": "LinearRegressor('poisson').fit(X, counts)",
    "logistic, L1": "LinearClassifier('logistic', regularizer='l1', alpha=1e-2).fit(X, y)",
    "squared, L1": "LinearRegressor('squared', regularizer='l1', alpha=1e-2).fit(X, z)",
    "roc_area": "LinearClassifier('roc_area').fit(X, y)",
    "novelty": "NoveltyDetector().fit(X)",
    "ordinal": "OrdinalClassifier().fit(X, grades)",
    "ranker": "LinearRanker().fit(X, grades, qid=qid)",
    "kernel": "KernelClassifier().fit(X, y)",
    "chain, crf": "ChainTagger('crf').fit(words, tags)",
    "chain, max-margin": "ChainTagger('max_margin').fit(words, tags)",
}


def first(task: str, sparse: bool) -> tuple[float, float]:
    """CPU seconds of a first fit with an empty cache, and of a first fit in the next process."""
    code = FIRST.format(sparse=sparse, fit=TASKS[task])
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {"NUMBA_CACHE_DIR": folder}
        runs = [
            subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
            for _ in range(2)
        ]
    cold, warm = (float(run.stdout) for run in runs)
    return cold, warm


def first_fits(tasks: list[str], rounds: int) -> None:
    print_head("first fit | dense, cold | warm | sparse, cold | warm")
    for task in tasks:
        cells = []
        for sparse in (True,) if task.startswith("chain") else (False, True):
            times = [first(task, sparse) for _ in range(rounds)]
            cells += [f"{min(cold for cold, _ in times):.2f}", f"{min(warm for _, warm in times):.2f}"]
        if task.startswith("chain"):  # token features are sparse
            cells = ["", "", *cells]
        print(f"| {task} | " + " | ".join(cells) + " |", flush=True)


def seconds(code: str) -> float:
    timed = (
        f"import time; start = time.process_time()\ntry:\n    exec({code!r}, globals())\nexcept SystemExit:\n"
    )
    timed += "    pass\nimport sys; print(time.process_time() - start, file=sys.stderr)"
    run = subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True)
    return float(run.stderr.split()[-1])


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--task", action="append", choices=list(TASKS), help="run only the first fits of this kind"
    )
    args = parser.parse_args()
    rounds = args.rounds
    if args.task:
        first_fits(args.task, rounds)
        return
    seconds(CASES["import and first fit, LinearClassifier"])  # fill the caches
    print_head("what | seconds")
    for name, code in CASES.items():
        print(f"| {name} | {min(seconds(code) for _ in range(rounds)):.2f} |", flush=True)
    run = subprocess.run([sys.executable, "-c", AGAIN], capture_output=True, text=True, check=True)
    print(f"| a later fit of the same 500 x 20, core | {float(run.stdout):.4f} |\n")
    run = subprocess.run([sys.executable, "-c", SMALL], capture_output=True, text=True, check=True)
    print(run.stdout)
    first_fits(list(TASKS), rounds)


if __name__ == "__main__":
    main()

"""`riskmin warmup` compiles the kernels of later fits."""

import os
import subprocess
import sys

import pytest

from riskmin._numba import compile_cache

FITS = {
    "kernels": "riskmin.KernelClassifier().fit(X, y)",
    "tagging": """
X, y = [[{"a": 1.0}, {"b": 1.0}], [{"a": 1.0}]] * 9, [["A", "B"], ["B"]] * 9
riskmin.ChainTagger("crf").fit(X, y).predict(X)
riskmin.ChainTagger("max_margin", alpha=0.1).fit(X, y)
""",
}
AFTER = """
import numpy as np, riskmin
rng = np.random.default_rng(5)
X = rng.standard_normal((300, 9))
y = X[:, 0] + rng.standard_normal(300) > 0
{}
from riskmin._numba.compile_cache import KernelCache
print(KernelCache.n_compiled)
"""


def test_warmup_prints_the_kernels_and_the_cache(run):
    code, out, err = run("warmup", "--task", "novelty", "--task", "files")
    assert (code, err) == (0, "")
    names = [line.split()[0] for line in out.splitlines()]
    assert names == ["novelty", "files", "Total"]
    assert compile_cache.cache_folder() in out


def test_errors_of_warmup(run, monkeypatch):
    code, _, err = run("warmup", "--task", "everything")
    assert code == 2
    assert "everything" in err
    monkeypatch.setattr(compile_cache, "cache_folder", lambda: None)
    code, out, err = run("warmup")
    assert (code, out) == (2, "")
    assert "set NUMBA_CACHE_DIR to a writable one" in err


@pytest.mark.exhaustive
@pytest.mark.parametrize("task", FITS)
def test_fits_after_warmup_compile_nothing(task, tmp_path):
    env = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    command = "import sys; from riskmin.cli import main; sys.exit(main(sys.argv[1:]))"
    subprocess.run([sys.executable, "-c", command, "warmup", "--task", task], env=env, check=True)
    done = subprocess.run(
        [sys.executable, "-c", AFTER.format(FITS[task])], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0"]

"""Compiled code is cached where possible, read from existing caches, and compiled anew without a cache."""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import riskmin
from riskmin._numba.compile_cache import NO_CACHE_FOLDER_WARNING, cache_folder, source_digest

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1
PACKAGE = Path(riskmin.__file__).parent
FIT = """
import os, sys, tempfile
import numpy as np
from riskmin import Absolute, Bundle, L2, Objective, linear_risk, minimize
import riskmin
assert riskmin.__file__.startswith(sys.argv[1]), riskmin.__file__
for place in [os.path.dirname(riskmin.__file__), os.environ["HOME"], *sys.argv[2:]]:
    try:
        tempfile.TemporaryFile(dir=place)
    except PermissionError:
        continue
    raise AssertionError(f"{place} can be written to")
X = np.random.default_rng(0).normal(size=(50, 3))
result = minimize(Objective(linear_risk(X, X[:, 0], Absolute()), L2(), 1e-2), Bundle())
from riskmin._numba.products import dense_scores
_, hits, misses = dense_scores.stats
print(result.status, sum(hits.values()), sum(misses.values()))
"""


def drop_root_override():
    """Remove the capability by which root ignores file modes."""
    if os.geteuid() == 0 and ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0):
        raise OSError("the capability cannot be dropped")


def lock(root, unlock=False):
    for path in [root, *root.rglob("*")]:
        path.chmod((0o755 if unlock else 0o555) if path.is_dir() else 0o444)


@pytest.fixture
def image(tmp_path):
    """A copy of the package and a home folder, both read-only."""
    shutil.copytree(PACKAGE, tmp_path / "site" / "riskmin", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "home").mkdir()
    lock(tmp_path)
    yield tmp_path
    lock(tmp_path, unlock=True)


def fit(image, *locked, **env):
    """Run a fit; return its status, the cache hits and misses, and stderr."""
    environment = {k: v for k, v in os.environ.items() if k not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    environment |= {"HOME": str(image / "home"), "PYTHONPATH": str(image / "site")} | env
    command = [sys.executable, "-c", FIT, str(image), *map(str, locked)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, preexec_fn=drop_root_override
    )
    assert done.returncode == 0, done.stderr
    status, hits, misses = done.stdout.split()
    return status, int(hits), int(misses), done.stderr


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="modes that bind root, too")


@pytest.mark.slow
def test_without_a_cache_folder_each_process_compiles_and_warns_once(image):
    status, hits, misses, stderr = fit(image)
    assert (status, hits, misses) == ("converged", 0, 1)
    assert stderr.count(NO_CACHE_FOLDER_WARNING) == stderr.count("Warning") == 1


@pytest.mark.slow
def test_the_warning_can_be_an_error(image):
    environment = {"PYTHONWARNINGS": "error"}
    with pytest.raises(AssertionError, match="NUMBA_CACHE_DIR"):
        fit(image, **environment)


@pytest.mark.slow
def test_a_read_only_cache_is_read(image, tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    assert fit(image, NUMBA_CACHE_DIR=str(cache)) == ("converged", 0, 1, "")
    lock(cache)
    try:
        assert fit(image, cache, NUMBA_CACHE_DIR=str(cache)) == ("converged", 1, 0, "")
        for path in cache.rglob("products.dense_pullback*"):  # one not compiled before
            path.parent.chmod(0o755)
            path.unlink()
            path.parent.chmod(0o555)
        status, hits, misses, stderr = fit(image, cache, NUMBA_CACHE_DIR=str(cache))
        assert (status, hits, misses, stderr.count(NO_CACHE_FOLDER_WARNING)) == ("converged", 1, 0, 1)
    finally:
        lock(cache, unlock=True)


def test_code_is_stale_when_a_called_module_changes(tmp_path):
    """Numba's own index checks only the file of the kernel itself."""
    changed = shutil.copytree(PACKAGE / "_numba", tmp_path / "_numba")
    called = changed / "exponential.py"
    called.write_text(called.read_text() + "\n")

    def is_stale(name):
        now, then = (source_digest(folder / name, folder) for folder in (changed, PACKAGE / "_numba"))
        return now != then

    assert is_stale("chain/forward_backward.py")
    assert not is_stale("products.py")


def test_the_cache_folder_is_reported(tmp_path, monkeypatch):
    import numba

    # numba reads NUMBA_CACHE_DIR only when it is imported
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    assert Path(cache_folder()).parent == tmp_path


@pytest.mark.slow
def test_a_cached_kernel_that_calls_one_that_allocates_finds_the_allocator(tmp_path):
    # in a new process, the first kernel comes from the cache: nothing has initialized Numba before
    script = """
import numpy as np
from riskmin._numba.chain.viterbi import most_violating_paths
z, y = np.arange(14.0).reshape(7, 2), np.array([0, 1, 0])
path, dz = np.zeros(3, np.int64), np.zeros((7, 2))
print(most_violating_paths(z, y, np.array([3]), np.ones(1), 1.0, True, path, dz).tolist())
"""
    env = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    done = [
        subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
        for _ in range(2)
    ]
    assert [(run.returncode, run.stdout) for run in done] == [(0, done[0].stdout)] * 2, done[1].stderr


TRACED_FIT = """
import numpy as np
from riskmin import Absolute, L2, Objective, Threads, linear_risk, minimize
X = np.random.default_rng(0).standard_normal((2**18, 17))
for executor in (None, Threads(n_workers=2)):
    risk = linear_risk(X, X[:, 0], Absolute(), executor=executor)
    risk.evaluate(np.ones(17))
"""


@pytest.mark.slow
def test_generated_code_leaves_no_source_and_is_compiled_once(tmp_path):
    """A large risk compiles its loss from generated source: only compiled code is stored, and found again."""
    files = []
    for _ in range(2):
        env = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        sources = sorted(PACKAGE.rglob("*.py"))
        done = subprocess.run([sys.executable, "-c", TRACED_FIT], env=env, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert sorted(PACKAGE.rglob("*.py")) == sources
        files.append({path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()})
    assert {path.suffix for path in files[0]} == {".nbi", ".nbc"}
    assert any("traced_" in path.name for path in files[0])
    assert files[1] == files[0]

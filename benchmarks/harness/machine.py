"""Description of the machine, for the results."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

PACKAGES = (
    "riskmin",
    "numpy",
    "scipy",
    "numba",
    "scikit-learn",
    "liblinear-official",
    "snapml",
    "rehline",
    "skglm",
    "celer",
    "glum",
    "statsmodels",
    "dlib-bin",
    "dlib",
    "cvxpy",
    "clarabel",
)
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def set_threads(n_threads):
    """Set the number of threads of each library; has an effect only before NumPy is imported."""
    for name in THREADS:
        os.environ[name] = str(n_threads)


def processor():
    """Name of the processor, if the system reports it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def versions():
    """Versions of the installed packages."""
    installed = {}
    for name in PACKAGES:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed


def machine(threads):
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "threads": threads,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }

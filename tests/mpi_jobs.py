"""MPI jobs for tests, started by the mpiexec of this Python environment or of the system."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
BESIDE = Path(sys.executable).parent


def mpiexec():
    """The path of mpiexec, or None."""
    return shutil.which("mpiexec", path=f"{BESIDE}{os.pathsep}{os.environ.get('PATH', '')}")


def environment():
    """One BLAS thread per rank, and Open MPI's permission to run more ranks than cores."""
    more = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    oversubscribe = {
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    modules = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    return {**os.environ, **more, **oversubscribe, "PYTHONPATH": modules}


@contextlib.contextmanager
def job(n, script, *args):
    """A job of n ranks in its own process group, which is ended in any case.

    mpi4py's runner aborts all ranks if one of them raises.
    """
    command = [mpiexec(), "-n", str(n), sys.executable, "-m", "mpi4py", str(HERE / script), *map(str, args)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes, env=environment(), start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)  # mpiexec then ends the ranks
        try:
            process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()

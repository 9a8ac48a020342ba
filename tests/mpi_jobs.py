"""MPI jobs as tests start them: by the mpiexec that belongs to this Python, or the system's."""

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
    """The command, or None."""
    return shutil.which("mpiexec", path=f"{BESIDE}{os.pathsep}{os.environ.get('PATH', '')}")


def environment():
    """Threads that do not fight for the cores, and more ranks than these, where Open MPI asks for leave."""
    more = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    leave = {
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    modules = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    return {**os.environ, **more, **leave, "PYTHONPATH": modules}


@contextlib.contextmanager
def job(n, script, *args):
    """A job of n ranks, as a process of its own group: whatever happens, none of it is left behind.

    An error that one rank alone meets ends all of them, by mpi4py's own runner.
    """
    command = [mpiexec(), "-n", str(n), sys.executable, "-m", "mpi4py", str(HERE / script), *map(str, args)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)  # on which mpiexec ends the ranks
        try:
            process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()

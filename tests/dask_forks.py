"""Dask schedulers and workers as processes that can be killed, forked from one process with all imports done.

Run as a script, this module is that parent process: it reads lines "scheduler" or "worker ADDRESS" from
stdin and answers each with the id and the address of a new process. `Forks` is the client.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from riskmin import Hinge

HERE = Path(__file__)


class Forks:
    """Client of the forking process. A fork takes a few hundredths of a second; all are killed at the end."""

    def __enter__(self):
        # workers unpickle functions of the test modules by their names
        paths = [str(HERE.parent), str(HERE.parent / "executors"), os.environ.get("PYTHONPATH", "")]
        quiet = {"DASK_LOGGING__DISTRIBUTED": "critical", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        self.process = subprocess.Popen(
            [sys.executable, HERE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | quiet,
        )  # fmt: skip
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(20)
        self.process.stdout.close()

    def start(self, *command):
        """Start a scheduler or worker; return its process id and address."""
        print(*command, file=self.process.stdin, flush=True)
        pid, address = self.process.stdout.readline().split()
        return int(pid), address

    def scheduler(self):
        return self.start("scheduler")

    def worker(self, address):
        return self.start("worker", address)


class SlowHinge(Hinge):
    """A hinge with slow evaluations, so that a process can be killed during one."""

    def value_grad(self, z, y, c):
        time.sleep(0.003)
        return super().value_grad(z, y, c)


def serve(kind, address, pipe):
    from distributed import Scheduler, Worker

    async def main():
        if kind == "scheduler":
            server = Scheduler(host="127.0.0.1", port=0, dashboard_address=":0")
        else:
            server = Worker(address, nthreads=1, dashboard_address=":0", death_timeout=5)
        async with server:
            os.write(pipe, f"{os.getpid()} {server.address}\n".encode())
            await server.finished()

    asyncio.run(main())


def warm_up():
    """Import the modules that the processes need, and load the compiled kernels."""
    import distributed  # noqa: F401
    import numpy as np

    import helpers  # noqa: F401
    from riskmin import linear_risk

    risk = linear_risk(np.eye(2), np.array([1.0, -1.0]), Hinge())
    risk.cursor(risk(np.zeros(2))[1]).evaluate()


def main():
    warm_up()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # killed children are reaped by the kernel
    children = []
    for line in sys.stdin:
        kind, _, address = line.strip().partition(" ")
        child = os.fork()
        if not child:
            try:
                serve(kind, address, 1)
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    main()

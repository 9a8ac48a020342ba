"""The backend of `fit`, which reads the rows and computes: this process, processes, Dask, or MPI ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import click

from riskmin.cli.inputs import PATH_TYPE, POSITIVE_INT, add_options
from riskmin.core import ShardStateLost
from riskmin.core.messages import extra_hint
from riskmin.executors import Backend, Processes, Serial

_OPTIONS: list[Callable[..., Any]] = [
    click.option(
        "--processes",
        type=POSITIVE_INT,
        metavar="N",
        help="Compute in N worker processes, which read the data.",
    ),
    click.option(
        "--dask",
        metavar="ADDRESS",
        help="Compute on the Dask cluster with its scheduler at tcp://HOST:PORT or tls://HOST:PORT; the "
        "workers read the data.",
    ),
    click.option("--tls-ca", type=PATH_TYPE, help="CA certificate file of the cluster (tls://)."),
    click.option("--tls-cert", type=PATH_TYPE, help="Client certificate file (tls://)."),
    click.option("--tls-key", type=PATH_TYPE, help="Key file of the client certificate (tls://)."),
    click.option("--mpi", is_flag=True, help="Compute on all MPI ranks: mpiexec -n 8 riskmin fit --mpi ..."),
]


def backend_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select the backend."""
    return add_options(command, _OPTIONS)


@contextmanager
def backend(given: dict[str, Any], task: str) -> Iterator[Backend]:
    """Yield the backend selected by the options; `Serial` if the rows are in this process."""
    _check(given, task)
    with ExitStack() as stack:
        try:
            yield _executor(given, stack)
        except (RuntimeError, MemoryError) as error:
            if not _raised_by_executor(error):
                raise
            # a worker that died or ran out of memory is not a bug of riskmin
            raise click.ClickException(str(error)) from error


def _check(given: dict[str, Any], task: str) -> None:
    """Raise if options exclude each other."""
    backends = [f"--{name}" for name in ("processes", "dask", "mpi") if given[name]]
    if len(backends) > 1:
        raise click.UsageError(f"{backends[0]} and {backends[1]} exclude each other")
    # a missing file is reported before a connection is tried
    for name in ("tls_ca", "tls_cert", "tls_key"):
        if given[name] is not None and not given["dask"]:
            raise click.UsageError(f"--{name.replace('_', '-')} is for --dask tls://HOST:PORT")
        if given[name] is not None and not given[name].is_file():
            raise ValueError(f"--{name.replace('_', '-')}: there is no file {given[name]}; check the path")
    # --jobs counts threads of this process, which would be idle
    if backends and given["jobs"] != 1:
        raise click.UsageError(
            f"--jobs is for threads of this process, but {backends[0]} computes in others: leave one out"
        )
    if backends and task == "tagging":
        raise ValueError(
            "a tagger extracts its features from all sentences in one process: "
            f"leave {backends[0]} out, and use --jobs for threads"
        )


def _executor(given: dict[str, Any], stack: ExitStack) -> Backend:
    if given["processes"]:
        return Processes(n_workers=given["processes"])
    if given["mpi"]:
        ranks: Backend = _spmd()
        return ranks
    if given["dask"]:
        from riskmin.executors.dask.client import dask_client
        from riskmin.executors.dask.executor import DaskExecutor

        # without files, Dask takes them from its configuration
        files = {name: given[f"tls_{name}"] for name in ("ca", "cert", "key")}
        settings = {name: None if file is None else str(file) for name, file in files.items()}
        client = stack.enter_context(dask_client(given["dask"], **settings))
        return DaskExecutor(client, device=given.get("device"))
    return Serial()


def _spmd() -> Any:
    """The executor over all MPI ranks; a ValueError if MPI is not available."""
    from riskmin.executors.mpi.executor import Spmd

    executor = Spmd()
    try:
        # reading the rank imports mpi4py and initializes MPI
        _ = executor.rank
    except ImportError as error:
        raise ValueError(
            f"--mpi needs mpi4py and an MPI such as mpich ({error}): {extra_hint('mpi', 'mpich')}"
        ) from None
    return executor


def _raised_by_executor(error: Exception) -> bool:
    """Whether an error was raised by an executor itself, not by the function that it computes."""
    # the innermost frame is the one that raised
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    module = "" if frame is None else frame.tb_frame.f_globals.get("__name__", "")
    # exact types: subclasses such as NotImplementedError and RecursionError are bugs
    direct = type(error) in (RuntimeError, MemoryError) and str(module).startswith("riskmin.executors.")
    return direct or isinstance(error, ShardStateLost)


def root_output_only() -> AbstractContextManager[None]:
    """Context in which only rank 0 prints."""
    try:
        silenced: AbstractContextManager[None] = _spmd().root_output_only()
        return silenced
    except (ValueError, RuntimeError):  # the command itself will report it
        return nullcontext()


# ---------------------------------------------------------------- several files
def load_partitions(paths: Sequence[Path], executor: Backend, **settings: Any) -> Any:
    """Load files as the partitions of one table, in this process or in those of the executor."""
    from riskmin.data import load_partitioned

    # a single store can be split into several partitions
    source = paths[0] if len(paths) == 1 else list(paths)
    data = load_partitioned(source, executor=executor, **settings)
    # a local backend has all partitions in memory: concatenate them to one matrix
    rows: Any = data.X
    return data._replace(X=rows.whole()) if executor.is_local else data


def describe_paths(paths: Sequence[Path]) -> str:
    """The name of the data in a summary: the first file, and how many more there are."""
    return paths[0].name if len(paths) == 1 else f"{paths[0].name} and {len(paths) - 1:,} more"

"""Where the rows of `fit` are read and computed: here, in processes, on a Dask cluster, on ranks of MPI."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import click

from riskmin.cli.common import FROM_1, PATH
from riskmin.executors.company import Alone
from riskmin.spread import Local
from riskmin.types import Lost

_OPTIONS: list[Callable[..., Any]] = [
    click.option("--processes", type=FROM_1, metavar="N", help="Compute in N processes that read the data."),
    click.option(
        "--dask",
        metavar="ADDRESS",
        help="Compute on the Dask cluster of the scheduler at tcp://HOST:PORT or tls://HOST:PORT, whose "
        "workers read the data.",
    ),
    click.option("--tls-ca", type=PATH, help="The authority of the cluster's certificates (tls://)."),
    click.option("--tls-cert", type=PATH, help="The certificate to show to the cluster (tls://)."),
    click.option("--tls-key", type=PATH, help="Its key (tls://)."),
    click.option("--mpi", is_flag=True, help="Compute on all ranks: mpiexec -n 8 riskmin fit --mpi ..."),
]


def place_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say where rows are computed with."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@contextmanager
def place(given: dict[str, Any], task: str) -> Iterator[Any]:
    """The executor that the options stand for, for as long as it is needed; None for rows that are here."""
    _check(given, task)
    with ExitStack() as stack:
        try:
            yield _executor(given, stack)
        except (RuntimeError, MemoryError) as error:
            if not _of_executors(error):
                raise
            raise click.ClickException(str(error)) from error  # a dead or full worker is no bug of ours


def _check(given: dict[str, Any], task: str) -> None:
    """Raise where options exclude each other."""
    found = [f"--{name}" for name in ("processes", "dask", "mpi") if given[name]]
    if len(found) > 1:
        raise click.UsageError(f"{found[0]} and {found[1]} exclude each other")
    for name in ("tls_ca", "tls_cert", "tls_key"):
        if given[name] is not None and not given["dask"]:
            raise click.UsageError(f"--{name.replace('_', '-')} is for --dask tls://HOST:PORT")
        if given[name] is not None and not given[name].is_file():
            raise ValueError(f"--{name.replace('_', '-')}: there is no file {given[name]}; check the path")
    if found and given["jobs"] != 1:
        raise click.UsageError(
            f"--jobs is for threads here, but {found[0]} computes elsewhere: leave one out"
        )
    if found and task == "tagging":
        raise ValueError(
            f"a tagger makes its features here, of all sentences together: leave {found[0]} out, and use "
            "--jobs for threads"
        )


def _executor(given: dict[str, Any], stack: ExitStack) -> Any:
    if given["processes"]:
        from riskmin.executors import Processes

        return Processes(n_workers=given["processes"])
    if given["mpi"]:
        return _spmd()
    if given["dask"]:
        from riskmin.executors.dask import DaskExecutor
        from riskmin.executors.dask_client import dask_client

        files = {name: given[f"tls_{name}"] for name in ("ca", "cert", "key")}
        settings = {name: None if file is None else str(file) for name, file in files.items()}
        return DaskExecutor(stack.enter_context(dask_client(given["dask"], **settings)))
    return None


def _spmd() -> Any:
    """All ranks; a ValueError where there is no MPI."""
    from riskmin.executors.mpi import Spmd

    found = Spmd()
    try:
        _ = found.rank
    except ImportError as error:
        raise ValueError(
            f"--mpi needs mpi4py and an MPI such as mpich ({error}): pip install 'riskmin[mpi]' mpich"
        ) from None
    return found


def _of_executors(error: Exception) -> bool:
    """Whether it was raised by an executor itself, not by what it computes."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    name = "" if at is None else at.tb_frame.f_globals.get("__name__", "")
    own = type(error) in (RuntimeError, MemoryError) and str(name).startswith("riskmin.executors.")
    return own or isinstance(error, Lost)


def company(executor: Any) -> Any:
    """Those who run this command together: files are written by the first of them."""
    return executor if hasattr(executor, "once") else Alone()


def one_voice(args: Sequence[str] | None) -> AbstractContextManager[None]:
    """A block in which one rank alone is heard, if the command runs on many."""
    if "--mpi" not in (sys.argv[1:] if args is None else args):
        return nullcontext()
    try:
        found: AbstractContextManager[None] = _spmd().silenced()
        return found
    except (ValueError, RuntimeError):  # the command will say it
        return nullcontext()


# ---------------------------------------------------------------- several files
class Here:
    """Reads files in this process, and keeps what it reads."""

    def keep(self, f: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """[f(item)]."""
        return [f(item) for item in items]

    def ask(self, handles: Sequence[Any], g: Callable[[Any], Any]) -> list[Any]:
        """[g(result)]."""
        return [g(handle) for handle in handles]

    def part(
        self, handle: Any, name: str, shape: Any, numbers: int, sparse: bool, pick: Callable[[Any], Any]
    ) -> Local:
        """The rows of a file that was read."""
        return Local(pick(handle), name)


def table_of(paths: Sequence[Path], executor: Any, **settings: Any) -> Any:
    """Files as the parts of one table, read here or where the executor computes."""
    from riskmin.data import spread

    data = spread(paths[0] if len(paths) == 1 else list(paths), executor=executor or Here(), **settings)
    rows: Any = data.X
    return data if executor is not None else data._replace(X=rows.whole())


def named(paths: Sequence[Path]) -> str:
    """What a summary calls them."""
    return paths[0].name if len(paths) == 1 else f"{paths[0].name} and {len(paths) - 1:,} more"

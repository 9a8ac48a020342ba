"""The command group, and the single place where errors become a one-line message and an exit code."""

from __future__ import annotations

import gc
import importlib
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import click

import riskmin
from riskmin import core, estimators
from riskmin.cli.commands import COMMANDS
from riskmin.cli.invocation import Invocation
from riskmin.core import signals
from riskmin.core.deadline import OutOfTime
from riskmin.core.messages import MissingExtra, one_line, unknown_name

_EPILOG = """\b
Examples:
  riskmin demo
  riskmin fit train.svm --loss hinge --lam 1e-4 -o model.riskmin
  riskmin predict model.riskmin new.svm -o labels.txt
  riskmin fit raw.csv --target price --loss huber --impute median -o price.riskmin
  riskmin evaluate model.riskmin test.svm
  riskmin show model.riskmin
  riskmin certify model.riskmin train.svm
  riskmin prove model.riskmin train.svm -o model.proof
  riskmin path train.svm --loss logistic --reg l1 -o path.html
  riskmin cv train.svm --loss hinge -o best.riskmin
  riskmin convert big.svm big.rsk
  riskmin warmup

\b
Exit codes:
  0    success: a fit converged, or was ended by --validation; a certificate holds
  1    a certificate is refuted, or a proof does not hold
  2    bad usage or data, or a cluster that does not respond
  3    not converged, or not proved within the limits; interrupted, with the best iterate saved
  70   a bug in riskmin
  130  interrupted by Ctrl-C before there was anything to save; 143 by SIGTERM, 129 by SIGHUP

SIGTERM (sent by Slurm, Kubernetes, systemd, timeout) and SIGHUP act like Ctrl-C: a fit saves its checkpoint
and the best model so far, and leaves no temporary file behind.
"""


class LazyGroup(click.Group):
    """The commands of `COMMANDS`, each imported when it is called: most import NumPy and half of riskmin."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"riskmin.cli.commands.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            names = self.list_commands(ctx)
            problem, listed = f"there is no command {args[0]!r}", f"the commands are {', '.join(names)}"
            raise click.UsageError(unknown_name(problem, args[0], names, listed), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(riskmin.__version__, message="riskmin %(version)s")
@click.pass_context
def commands(ctx: click.Context) -> None:
    """Minimize a regularized convex risk, J(w) = lam * Omega(w) + mean loss, and prove the optimality gap.

    Every fit ends with a lower bound of min J. DATA is svmlight text, CSV, TSV, .npz or Parquet, plain or
    compressed by gzip, xz or bzip2, or a .rsk folder that 'convert' wrote.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(args: Sequence[str] | None = None) -> int:
    """Run the command; every expected error becomes one sentence on stderr.

    Parameters
    ----------
    args : sequence of str, optional
        The arguments; by default those of the process.

    Returns
    -------
    int
        The exit code.
    """
    if args is None and hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `riskmin predict ... | head` ends as `cat` would
    if args is None:  # the process is that of the command
        estimators.stand_in = True
        # imports make many objects that live to the end, which the collector would search again and again
        gc.set_threshold(50_000)
    # SIGTERM and SIGHUP raise KeyboardInterrupt, so that every command saves its state
    with signals.as_interrupts(), _root_output_only(args):
        return _main(args)


def _root_output_only(args: Sequence[str] | None) -> AbstractContextManager[Any]:
    """Context in which only rank 0 prints, if the command runs on MPI ranks."""
    # the output is silenced before Click parses the options, so search the raw arguments
    if "--mpi" not in (sys.argv[1:] if args is None else args):
        return nullcontext()
    from riskmin.cli.backends import root_output_only

    return root_output_only()


def _main(args: Sequence[str] | None) -> int:
    """Run the command group and translate exceptions into messages and exit codes."""
    given = list(sys.argv[1:] if args is None else args)
    invocation = Invocation(given, {})  # model files hold the command line

    def fail(message: str) -> int:
        return _fail(invocation.readable(message))

    try:
        return int(commands.main(given, prog_name="riskmin", standalone_mode=False, obj=invocation) or 0)
    except click.NoSuchOption as error:
        names = [name for param in error.ctx.command.params for name in param.opts] if error.ctx else []
        problem = f"there is no option {error.option_name!r}"
        return fail(f"{unknown_name(problem, error.option_name, names)}{_see_help(error)}")
    except click.UsageError as error:
        return fail(f"{error.format_message().rstrip('.')}{_see_help(error)}")
    except (ValueError, core.UnsupportedProblem, OSError, MissingExtra, click.ClickException) as error:
        return fail(str(error))
    except OutOfTime:
        _fail("--max-seconds passed while the data were read: raise it, or read a .rsk folder ('convert')")
        return 3
    # before Exception: a lack of memory is not a bug
    except MemoryError:
        return _fail("there is not enough memory for these data")
    except (click.Abort, KeyboardInterrupt):
        number = signals.last_signal()
        cause = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
        _fail(f"{cause} before there was anything to save")
        return 128 + number  # as shells report death by a signal
    # anything else is unexpected: the traceback is part of the report
    except Exception:
        traceback.print_exc()
        _fail("this is a bug in riskmin, please report it with the lines above")
        return 70  # EX_SOFTWARE of sysexits.h


def _see_help(error: click.UsageError) -> str:
    return f" (see '{error.ctx.command_path if error.ctx else 'riskmin'} --help')"


def _fail(message: str) -> int:
    """Print an error as one line on stderr; return the exit code for bad input."""
    print("riskmin:", one_line(message), file=sys.stderr)
    return 2

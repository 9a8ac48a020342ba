"""Functions shared by the commands: options, checks of paths, loading of data, summaries, aligned output."""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import click
import numpy as np

from riskmin.cli.completion import complete_columns
from riskmin.cli.invocation import Invocation
from riskmin.cli.output import pluralize
from riskmin.cli.tasks import tagging
from riskmin.core import Result
from riskmin.core.persist import is_saved
from riskmin.core.registry import names_class
from riskmin.data import format_of
from riskmin.data.limits import memory_limited
from riskmin.data.raw_tables.preparation import PreparedRows
from riskmin.report.progress import duration

ColumnRef: TypeAlias = str | int | None
"""A column of a table, given by name or by index from 0."""

STANDARDIZED_NOTE = (
    "yes: lam, objective and lower bound are those of columns divided by their standard deviations"
)
"""The note in the summary of a fit to standardized columns."""


def parse_column(ctx: click.Context, param: click.Parameter, value: str | None) -> ColumnRef:
    """Return a column's index if the text is an integer, else its name."""
    try:
        return None if value is None else int(value)
    except ValueError:
        return value


def parse_columns(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[ColumnRef, ...]:
    """Return the references of an option that may be repeated."""
    return tuple(parse_column(ctx, param, value) for value in values)


def _require_finite(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """Reject NaN and infinity: Click's ranges accept NaN, and infinity where they are unbounded."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a finite number.", ctx, param)
    return value


class StandardInput(click.Path):
    """Path of an input file; "-" is standard input, which is copied to a temporary file.

    Parameters
    ----------
    content : {"data", "model"}
        What the file holds. The format of data follows from their first bytes.
    """

    def __init__(self, content: str) -> None:
        super().__init__(path_type=Path)
        self.content = content

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value) != "-" or ctx is None:
            return super().convert(value, param, ctx)
        if ctx.meta.setdefault("riskmin.stdin", param) is not param:
            self.fail("standard input can be read once: name a file for one of the two.", param, ctx)
        if ctx.resilient_parsing:
            return Path("-")
        # the root's resources are released even if the command line turns out to be wrong
        root = ctx.find_root()
        folder = root.with_resource(tempfile.TemporaryDirectory(prefix="riskmin-"))
        content = sys.stdin.buffer
        head = content.read(2**16)
        name = f"stdin{format_suffix(head) if self.content == 'data' else ''}"
        path = Path(folder, name)
        if isinstance(root.obj, Invocation):
            root.obj.aliases[str(path)] = "standard input"
        with path.open("wb") as file:
            file.write(head)
            shutil.copyfileobj(content, file)
        return path


def format_suffix(head: bytes) -> str:
    """Return the suffix of the format that data have, by their first bytes.

    Examples
    --------
    >>> format_suffix(b"PAR1"), format_suffix(b"+1 1:0.5 7:2\\n"), format_suffix(b"city,age\\nRome,31\\n")
    ('.parquet', '.svm', '.csv')
    """
    if head.startswith(b"PAR1"):
        return ".parquet"
    if head.startswith(b"PK"):
        return ".npz"
    if head.startswith((b"\x1f\x8b", b"\xfd7zXZ", b"BZh")):  # compressed: its content is not known
        return ".svm"
    line = next((line for line in head.splitlines() if line.strip()), b"")
    # svmlight: a label, then pairs index:value
    words = line.split(b"#")[0].split()
    is_svmlight = all(re.fullmatch(rb"(qid|\d+):\S+", word) for word in words[1:]) and b"," not in line
    return ".svm" if is_svmlight and (len(words) > 1 or b"\t" not in line) else ".csv"


def add_options(command: Callable[..., Any], options: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """Return a command with more options, which --help lists in this order."""
    for option in reversed(options):  # decorators apply from the last to the first
        command = option(command)
    return command


def real_option(*names: str, **settings: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make an option that takes a finite number."""
    return click.option(*names, callback=_require_finite, **settings)


PATH_TYPE = click.Path(path_type=Path)
DATA_TYPE, MODEL_TYPE = StandardInput("data"), StandardInput("model")
NONNEGATIVE_FLOAT = click.FloatRange(0)
POSITIVE_FLOAT = click.FloatRange(0, min_open=True)
POSITIVE_INT = click.IntRange(1)
target_option = click.option(
    "--target",
    metavar="COLUMN",
    callback=parse_column,
    shell_complete=complete_columns,
    help="Label column of a table, by name or by index from 0 "
    '(default: "target", "label", "y" or "class", else the last).',
)
qid_option = click.option(
    "--qid",
    metavar="COLUMN",
    callback=parse_column,
    shell_complete=complete_columns,
    help='Column of query ids of a table, for ranking losses (default: "qid", if it exists).',
)


def _limit_memory(ctx: click.Context, param: click.Parameter, value: float | None) -> None:
    """Set the memory limit of the readers for the duration of the command."""
    ctx.with_resource(memory_limited(_require_finite(ctx, param, value)))


memory_option = click.option(
    "--max-memory",
    metavar="MB",
    type=click.FloatRange(0, min_open=True),
    expose_value=False,
    callback=_limit_memory,
    help="Memory limit of readers in megabytes (default: what the machine and its limits allow).",
)


def _search_working_folder(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Let a module in the working folder be imported, if a text names one: MODULE, or MODULE:CLASS."""
    # last, so that no file in that folder takes the place of an installed module
    if value and (isinstance(value, tuple) or names_class(value)):
        sys.path.append(str(Path.cwd()))
    return value


def importing_option(*names: str, **settings: Any) -> Callable[..., Any]:
    """Return an option whose text may name a class to import."""
    return click.option(*names, callback=_search_working_folder, **settings)


trust_option = importing_option(
    "--trust",
    multiple=True,
    metavar="MODULE",
    help="Import this module, or package, if MODEL has a loss or a regularizer of it.",
)
verbose_option = click.option("-v", "--verbose", is_flag=True, help="Print a line for every iteration.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")


def check_writable(*paths: Path | None) -> None:
    """Raise a ValueError before any computation if one of the paths cannot be written."""
    for path in paths:
        if path is None:
            continue
        # unlike Path.resolve, realpath does not raise on a loop of symbolic links
        folder = Path(os.path.realpath(path)).parent
        if path.is_dir():
            raise ValueError(f"{path} is a folder: name a file in it")
        if path.exists() and not path.is_file():
            raise ValueError(f"{path} is not a regular file, and cannot be replaced by one")
        # a file is written to a temporary neighbor and renamed: the folder must be writable
        if not folder.is_dir():
            raise ValueError(f"{path} cannot be written: there is no folder {folder}; make it first")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ValueError(f"{path} cannot be written: you may not write to the folder {folder}")


def check_distinct_paths(inputs: dict[str, Path], outputs: dict[str, Path | None]) -> None:
    """Raise if an output path equals an input, lies inside an input folder, or is given twice."""
    used = dict(inputs)
    for name, path in outputs.items():
        if path is None:
            continue
        # outputs are added to `used`, so that no two of them are the same file
        for other, taken in used.items():
            if _same_file(path, taken):
                raise ValueError(f"{name} and {other} are the same file, {path}: name another for {name}")
            if _is_inside_store(path, taken):
                raise ValueError(f"{name} would write {path}, a file of {other} {taken}: name another")
        used[name] = path


def _same_file(one: Path, other: Path) -> bool:
    """Whether both paths name one regular file; a terminal or a pipe may be both input and output."""
    if one.exists() and other.exists():
        return one.samefile(other) and one.is_file()
    return os.path.realpath(one) == os.path.realpath(other)


def _is_inside_store(path: Path, folder: Path) -> bool:
    """Whether a path leads into a .rsk folder: directly, through a linked folder, or by a hard link."""
    if not folder.is_dir() or format_of(folder) != "rsk":  # the reader will report any other folder
        return False
    # samefile follows links
    if any(parent.exists() and parent.samefile(folder) for parent in path.resolve().parents):
        return True
    return path.is_file() and any(path.samefile(file) for file in folder.iterdir() if file.is_file())


def check_not_swapped(model: Path, data: Path | None) -> None:
    """Raise if the file of the model was given for that of the rows, and the other way round."""
    if data is not None and is_saved(data) and not is_saved(model):
        raise ValueError(f"MODEL and DATA are swapped: {data} is the model, so it comes before {model}")


def check_data_options(path: Path, *, target: ColumnRef, qid: ColumnRef, quiet: bool = False) -> None:
    """Raise if --target or --qid do not apply to the file's format; announce a large file on stderr."""
    kind = format_of(path)
    if is_saved(path):
        raise ValueError(f"{path} is a file of riskmin, such as a model, not data: name the file of the rows")
    if tagging.is_conll(path):
        raise ValueError(
            f"{path} holds sentences, which are for taggers: fit one by --loss chain_crf or chain_max_margin"
        )
    for option, column, content in (("--target", target, "labels"), ("--qid", qid, "query ids")):
        if column is not None and kind in ("svmlight", "npz", "rsk"):
            raise ValueError(
                f"{option} names a column of a table, but {path} is {kind}, whose format defines where "
                f"{content} are: leave it out"
            )
    # files larger than this take seconds to read
    if not quiet and path.is_file() and path.stat().st_size > 50_000_000:
        click.echo(f"riskmin: reading {path} ({path.stat().st_size / 1e6:,.0f} MB)", err=True)


def note_unused_queries(data: PreparedRows, model: Any, name: str, *, quiet: bool) -> None:
    """Note on stderr if the data hold query ids that the loss does not use."""
    if data.qid is not None and model.task != "ranking" and not quiet:
        click.echo(f"riskmin: {name} has query ids, which {loss_name(model)} does not use", err=True)


@contextmanager
def suppress_warnings() -> Iterator[None]:
    """Suppress warnings, whose content is in the summary and the exit code; print those on checkpoints."""

    def print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
        click.echo(f"riskmin: {message}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # no summary mentions a checkpoint that could not be written
        warnings.filterwarnings("always", ".*the run goes on without a checkpoint", RuntimeWarning)
        warnings.showwarning = print_warning
        yield


_OPTION_OF_PARAMETER = {
    "class_weight='balanced'": "--class-weight balanced",
    "loss='roc_area'": "--loss roc_area",
    "loss='hinge'": "--loss hinge",
    "positive=True": "--positive",
    "try positive=False": "leave it out",
    "set standardize=True": "add --standardize",
    # replaced in this order: "alpha=" before "alpha"
    "alpha=": "--lam ",
    "alpha": "--lam",
    "tol=": "--tol ",
}
"""Parameters of estimators as they appear in notes, and the options of the command that set them."""


def note_zero_weights(model: Any) -> None:
    """Print the note of a fit that converged to zero weights, with options in place of parameters."""
    note = model.result_.note
    if note and model.result_.status == "converged":
        for name, option in _OPTION_OF_PARAMETER.items():
            note = note.replace(name, option)
        click.echo(f"riskmin: the model learned nothing: {note}", err=True)


def loss_name(model: Any) -> str:
    """The loss as it is written on the command line."""
    return "novelty" if model.task == "novelty" else str(model.loss)


def reg_name(model: Any) -> str:
    """The regularizer as it is written on the command line, and whether weights are bounded by zero."""
    from riskmin.regularizers import LinearConstraints

    if isinstance(model.regularizer, LinearConstraints):
        reg = model.regularizer
        return f"{reg.reg!r} under {pluralize(len(reg.A), 'linear constraint')}"
    return f"{model.regularizer}{', positive' if model.positive else ''}"


def makes_zeros(model: Any, n_weights: int) -> bool:
    """Whether the regularizer makes weights exactly zero: by an l1 term, or by a bound at zero."""
    from riskmin.estimators._common.fit import resolve_regularizer
    from riskmin.regularizers import repeat_per_output

    reg = resolve_regularizer(model)
    if not reg.separable:
        return False
    reg = repeat_per_output(reg, vars(model).get("n_features_in_", n_weights), n_weights)
    # per weight: the factor of |w|, and the bounds on w
    terms = reg.terms(np.zeros(n_weights))
    return bool(np.any(terms.absolute > 0) or np.any(terms.lower == 0) or np.any(terms.upper == 0))


def n_nonzero_weights(model: Any) -> int | None:
    """Number of nonzero weights; None if the regularizer makes no weights zero."""
    from riskmin.estimators.gpu_rows import dense_weights

    W = dense_weights(model)
    return int(np.count_nonzero(W)) if makes_zeros(model, np.size(model.coef_)) else None


def fit_summary(model: Any, dimensions: tuple[int, int], tol: float) -> dict[str, Any]:
    """Summarize a fit as JSON-compatible data: problem, certificate, status, cost."""
    result: Result = model.result_
    last = result.trace[-1]
    return {
        "loss": loss_name(model),
        "reg": reg_name(model),
        "lam": float(model.alpha),
        "rows": dimensions[0],
        "columns": dimensions[1],
        "weights": int(np.size(model.coef_)),
        "nonzeros": n_nonzero_weights(model),
        "objective": model.objective_,
        "lower_bound": model.lower_bound_,
        "gap": model.gap_,
        "gap_rel": model.gap_ / model.objective_ if model.objective_ else 0.0,
        "tol": tol,
        "atol": model.atol,
        "status": result.status,
        "criterion": result.criterion,
        "standardized": model.can_standardize and model.scale_ is not None,
        "iterations": result.n_iter,
        "calls": int(last["calls"]),
        "seconds": last["seconds"],
        "solver": result.solver,
        "note": result.note,
    }


def not_converged_message(model: Any, facts: dict[str, Any], which: str = "") -> str:
    """The message about a fit that did not reach the tolerance: the gap, and the remedy."""
    from riskmin.estimators._common.advice import (
        COMMAND_LINE_PHRASES,
        describe_ill_scaled_columns,
        suggest_parameters,
    )

    message = (
        f"riskmin: {which}not converged ({facts['status']}): the certified gap is {facts['gap_rel']:.2g}, "
        f"above the {model.tol:g} asked for; {suggest_parameters(model, COMMAND_LINE_PHRASES)}"
    )
    advice = describe_ill_scaled_columns(model, COMMAND_LINE_PHRASES)
    return f"{message}. {advice}" if advice else message


def summary_lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Format a summary as (name, value) pairs for printing."""
    rows = [
        ("objective", f"{facts['objective']:.9g}"),
        ("lower bound", f"{facts['lower_bound']:.9g}"),
        ("certified gap", f"{facts['gap_rel']:.2e} of the objective (asked for {facts['tol']:g})"),
        ("status", describe_status(facts)),
        ("iterations", f"{facts['iterations']:,} in {duration(facts['seconds'])}"),
        ("solver", facts["solver"]),
    ]
    if facts["nonzeros"] is not None:
        rows.append(("nonzero weights", f"{facts['nonzeros']:,} of {facts['weights']:,}"))
    if facts["standardized"]:
        rows.append(("standardized", STANDARDIZED_NOTE))
    return rows


def describe_status(facts: dict[str, Any]) -> str:
    """The status, and the absolute tolerance if that one was met."""
    if facts["criterion"] != "atol":
        return str(facts["status"])
    required = "1e-6 tol of the risk at w = 0" if facts["atol"] is None else f"{facts['atol']:g}"
    return f"{facts['status']}, by --atol: the gap is {facts['gap']:.2e}, at most {required}"


def data_shape(model: Any, data: PreparedRows) -> tuple[int, int]:
    """Number of rows (or sentences) and of columns (or weights)."""
    dimensions: tuple[int, int] = (
        tagging.corpus_shape(model, data.X) if model.task == "tagging" else data.X.shape
    )
    return dimensions


def describe_data_size(model: Any, data: PreparedRows) -> str:
    """Describe the size of the data: rows, columns, classes or queries."""
    if model.task == "tagging":
        return tagging.describe_corpus_size(model, data.X)
    n, p = data.X.shape
    text = f"{n:,} rows x {p:,} columns"
    if model.task in ("classification", "hierarchy") and len(model.classes_) > 2:
        return f"{text}, {len(model.classes_):,} classes"
    if data.qid is None or model.task != "ranking":
        return text
    return f"{text} in {len(np.unique(data.qid)):,} queries"


def problem_facts(model: Any, dimensions: tuple[int, int]) -> dict[str, Any]:
    """The problem as it is described on an HTML page: loss, regularizer, size, tolerance."""
    from riskmin.estimators._common.fit import resolve_regularizer
    from riskmin.losses import formula

    reg = resolve_regularizer(model).formula
    return {
        "loss": f"{loss_name(model)}: {formula(model._fitted_loss())}",
        "rows": dimensions[0],
        "columns": dimensions[1],
        "tol": float(model.tol),
        "regularizer": f"{reg_name(model)}: {reg}" if reg else reg_name(model),
        **({"standardized": STANDARDIZED_NOTE} if model.standardize else {}),
    }


def report_facts(model: Any, dimensions: tuple[int, int]) -> dict[str, Any]:
    """The facts about a fit that a report shows in addition to its `Result`."""
    facts = problem_facts(model, dimensions) | {"lam": float(model.alpha)}
    n_nonzero = n_nonzero_weights(model)
    if vars(model).get("n_queries_"):
        facts["queries"] = f"{model.n_queries_:,}"
    if n_nonzero is None:
        return facts
    return facts | {"nonzero weights": f"{n_nonzero:,} of {np.size(model.coef_):,}"}

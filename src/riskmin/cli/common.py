"""What the commands share: outputs that can be written, data that fit a model, aligned lines."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import click
import numpy as np

from riskmin.cli import tagging
from riskmin.data import Dataset, format_of, load
from riskmin.data.limits import limited
from riskmin.progress import duration
from riskmin.types import Result

Column: TypeAlias = str | int | None
"""A column of a table, by name or index."""

STANDARDIZED = "yes: lam, objective and lower bound are those of columns divided by their standard deviations"
"""What a summary says of a fit to standardized columns."""

BIG = 50_000_000
"""A file of so many bytes takes a while to read, so it is announced."""


def _column(ctx: click.Context, param: click.Parameter, value: str | None) -> Column:
    """A column by name, or by index where the text is a whole number."""
    try:
        return None if value is None else int(value)
    except ValueError:
        return value


def _finite(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """Click's ranges let NaN through, and infinity where they have no end."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a finite number.", ctx, param)
    return value


def real_option(name: str, **settings: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option that takes a finite number."""
    return click.option(name, callback=_finite, **settings)


PATH = click.Path(path_type=Path)
FROM_0, ABOVE_0, FROM_1 = click.FloatRange(0), click.FloatRange(0, min_open=True), click.IntRange(1)
target_option = click.option(
    "--target",
    metavar="COLUMN",
    callback=_column,
    help="The label column of a table, by name or index from 0 "
    '(default: "target", "label", "y" or "class", else the last).',
)
qid_option = click.option(
    "--qid",
    metavar="COLUMN",
    callback=_column,
    help='The column of query ids of a table, for losses that rank (default: "qid", if there is one).',
)


def _limited(ctx: click.Context, param: click.Parameter, value: float | None) -> None:
    """The limit of memory of readers, for as long as the command runs."""
    ctx.with_resource(limited(_finite(ctx, param, value)))


memory_option = click.option(
    "--max-memory",
    metavar="MB",
    type=click.FloatRange(0, min_open=True),
    expose_value=False,
    callback=_limited,
    help="Megabytes that reading may take (default: what the machine and its limits allow).",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")


def check_writable(*paths: Path | None) -> None:
    """Raise now if a file could not be written later."""
    for path in paths:
        if path is None:
            continue
        folder = Path(os.path.realpath(path)).parent  # which takes loops of links as they are
        if path.is_dir():
            raise ValueError(f"{path} is a folder: name a file in it")
        if path.exists() and not path.is_file():
            raise ValueError(f"{path} is not a regular file, and cannot be replaced by one")
        if not folder.is_dir():
            raise ValueError(f"{path} cannot be written: there is no folder {folder}; make it first")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ValueError(f"{path} cannot be written: the folder {folder} is not open to you")


def check_apart(inputs: dict[str, Path], outputs: dict[str, Path | None]) -> None:
    """Raise if a file to write is one to read, lies in a folder to read, or is to be written twice."""
    seen = dict(inputs)
    for name, path in outputs.items():
        if path is None:
            continue
        for other, taken in seen.items():
            if _same(path, taken):
                raise ValueError(f"{name} and {other} are the same file, {path}: name another for {name}")
            if _within(path, taken):
                raise ValueError(f"{name} would write {path}, a file of {other} {taken}: name another")
        seen[name] = path


def _same(one: Path, other: Path) -> bool:
    """Whether to write one is to write the other; a terminal or a pipe may well be both ends."""
    if one.exists() and other.exists():
        return one.samefile(other) and one.is_file()
    return os.path.realpath(one) == os.path.realpath(other)


def _within(path: Path, folder: Path) -> bool:
    """Whether a file is in a folder of data, by whatever name: a link to one in it, a path through a link."""
    if not folder.is_dir() or format_of(folder) != "rsk":  # others cannot be read, which will be said
        return False
    if any(parent.exists() and parent.samefile(folder) for parent in path.resolve().parents):
        return True
    return path.is_file() and any(path.samefile(file) for file in folder.iterdir() if file.is_file())


def check_data(path: Path, *, target: Column, qid: Column, quiet: bool = False) -> None:
    """Raise where the options are not for such a file; a word to those who have to wait for it."""
    kind = format_of(path)
    if tagging.is_conll(path):
        raise ValueError(
            f"{path} holds sentences, which are for taggers: fit one by --loss chain_crf or chain_max_margin"
        )
    for option, column, what in (("--target", target, "labels"), ("--qid", qid, "query ids")):
        if column is not None and kind in ("svmlight", "npz", "rsk"):
            raise ValueError(
                f"{option} names a column of a table, but {path} is {kind}, whose {what} have a place of "
                "their own: leave it out"
            )
    if not quiet and path.is_file() and path.stat().st_size > BIG:
        click.echo(f"riskmin: reading {path} ({path.stat().st_size / 1e6:,.0f} MB)", err=True)


def read(path: Path, *, target: Column, qid: Column, quiet: bool = False, **settings: Any) -> Dataset:
    """`load`, of a file that fits the options."""
    check_data(path, target=target, qid=qid, quiet=quiet)
    return load(path, target=target, qid=qid, **settings)


def take(path: Path, model: Any, given: dict[str, Any], *, quiet: bool, **settings: Any) -> Dataset:
    """Data to fit, with a word where they hold query ids for nothing."""
    if model.task == "tagging":
        return tagging.sentences(path, given["target"], given["qid"], labels=True)
    data = read(path, target=given["target"], qid=given["qid"], quiet=quiet, **settings)
    tell_of_queries(data, model, path.name, quiet=quiet)
    return data


def tell_of_queries(data: Dataset, model: Any, name: str, *, quiet: bool) -> None:
    """A word where data hold query ids for nothing."""
    if data.qid is not None and model.task != "ranking" and not quiet:
        click.echo(f"riskmin: {name} has query ids, which {loss_name(model)} does not look at", err=True)


def read_for(model: Any, path: Path, target: Column, qid: Column, *, labels: bool) -> Dataset:
    """Data for a model: as many columns as it was fitted on, in its order where both name them."""
    if model.task == "tagging":
        return tagging.sentences(path, target, qid, labels=labels, n_columns=tagging.n_columns(model))
    data = read(path, target=target, qid=qid, require_labels=labels, n_features=model.n_features_in_)
    known = getattr(model, "feature_names_in_", None)
    if known is None or data.feature_names is None or data.feature_names == list(known):
        return data
    if sorted(data.feature_names) == sorted(known):
        where = {name: i for i, name in enumerate(data.feature_names)}
        return data._replace(X=data.X[:, [where[name] for name in known]])
    other = [name for name in data.feature_names if name not in set(known)]
    lost = [name for name in known if name not in set(data.feature_names)]
    raise ValueError(
        f"{path}: the column {other[0]!r} is none that the model was fitted on, and {lost[0]!r} is missing; "
        "check the file, or name the column of the labels by --target"
    )


@contextmanager
def without_warnings() -> Iterator[None]:
    """Keep warnings to ourselves: the summary and the exit code say what they would, but of checkpoints."""

    def say(message: Warning | str, *_: Any, **__: Any) -> None:
        click.echo(f"riskmin: {message}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", ".*the run goes on without a checkpoint", RuntimeWarning)
        warnings.showwarning = say
        yield


_OPTIONS = {
    "class_weight='balanced'": "--class-weight balanced",
    "loss='roc_area'": "--loss roc_area",
    "loss='hinge'": "--loss hinge",
    "positive=True": "--positive",
    "try positive=False": "leave it out",
    "set standardize=True": "add --standardize",
    "alpha=": "--lam ",
    "alpha": "--lam",
    "tol=": "--tol ",
}
"""What the parameters of estimators are called here."""


def tell_of_nothing(model: Any) -> None:
    """A sentence where a fit has converged, but to no weights."""
    note = model.result_.note
    if note and model.result_.status == "converged":
        for name, option in _OPTIONS.items():
            note = note.replace(name, option)
        click.echo(f"riskmin: the model learned nothing: {note}", err=True)


def show(rows: Iterable[tuple[str, str]]) -> None:
    """Names and values, aligned."""
    rows = list(rows)
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        click.echo(f"  {name:<{width}}  {value}")


def columns(cells: Sequence[Sequence[str]], *, left: bool = False) -> None:
    """A table whose first row is its head: numbers end where those above do, words begin there."""
    widths = [max(len(row[k]) for row in cells) for k in range(len(cells[0]))]
    side = "<" if left else ">"
    for row in cells:
        line = "  ".join(f"{cell:{side}{width}}" for cell, width in zip(row[:-1], widths[:-1], strict=True))
        click.echo(f"  {line}  {row[-1]}".rstrip())


def count(n: int, what: str) -> str:
    """A number of things: one iteration, two iterations."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def as_label(label: Any) -> str:
    """A class as the data file had it: 1.0 is 1."""
    if isinstance(label, (float, np.floating)) and float(label).is_integer():
        return str(int(label))
    return str(label)


def loss_name(model: Any) -> str:
    """The loss as the user would write it."""
    return "novelty" if model.task == "novelty" else str(model.loss)


def reg_name(model: Any) -> str:
    """The regularizer as the user would write it, with the bound."""
    return f"{model.regularizer}{', positive' if model.positive else ''}"


def makes_zeros(model: Any, columns: int) -> bool:
    """Whether the regularizer makes weights exactly zero: by its kinks, or by a bound there."""
    from riskmin.estimators.base import regularizer_of
    from riskmin.regularizers import Separable, each_output

    reg = regularizer_of(model)
    if not isinstance(reg, Separable):
        return False
    reg = each_output(reg, getattr(model, "n_features_in_", columns), columns)
    terms = reg.terms(np.zeros(columns))
    return bool(np.any(terms.absolute > 0) or np.any(terms.lower == 0) or np.any(terms.upper == 0))


def nonzeros(model: Any) -> int | None:
    """How many weights are not zero; None where the regularizer makes none zero."""
    return int(np.count_nonzero(model.coef_)) if makes_zeros(model, np.size(model.coef_)) else None


def summary(model: Any, shape: tuple[int, int], tol: float) -> dict[str, Any]:
    """All that is worth knowing of a fit, as plain data."""
    result: Result = model.result_
    last = result.trace[-1]
    return {
        "loss": loss_name(model),
        "reg": reg_name(model),
        "lam": float(model.alpha),
        "rows": shape[0],
        "columns": shape[1],
        "weights": int(np.size(model.coef_)),
        "nonzeros": nonzeros(model),
        "objective": model.objective_,
        "lower_bound": model.lower_bound_,
        "gap": model.gap_,
        "gap_rel": model.gap_ / model.objective_ if model.objective_ else 0.0,
        "tol": tol,
        "atol": model.atol,
        "status": result.status,
        "criterion": result.criterion,
        "standardized": getattr(model, "scale_", None) is not None,
        "iterations": result.n_iter,
        "calls": int(last["calls"]),
        "seconds": last["seconds"],
        "solver": result.solver,
        "note": result.note,
    }


def not_converged(model: Any, facts: dict[str, Any], which: str = "") -> str:
    """What to do about a fit that did not get as far as it should, in a sentence or two."""
    from riskmin.estimators.advice import ON_THE_COMMAND_LINE, about_columns, remedy

    said = (
        f"riskmin: {which}not converged ({facts['status']}): the certified gap is {facts['gap_rel']:.2g}, "
        f"above the {model.tol:g} asked for; {remedy(model, ON_THE_COMMAND_LINE)}"
    )
    more = about_columns(model, ON_THE_COMMAND_LINE)
    return f"{said}. {more}" if more else said


def lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """A summary as names and values for a person."""
    rows = [
        ("objective", f"{facts['objective']:.9g}"),
        ("lower bound", f"{facts['lower_bound']:.9g}"),
        ("certified gap", f"{facts['gap_rel']:.2e} of the objective (asked for {facts['tol']:g})"),
        ("status", said_status(facts)),
        ("iterations", f"{facts['iterations']:,} in {duration(facts['seconds'])}"),
        ("solver", facts["solver"]),
    ]
    if facts["nonzeros"] is not None:
        rows.append(("nonzero weights", f"{facts['nonzeros']:,} of {facts['weights']:,}"))
    if facts["standardized"]:
        rows.append(("standardized", STANDARDIZED))
    return rows


def said_status(facts: dict[str, Any]) -> str:
    """The status, and which tolerance was met where it is not the relative one."""
    if facts["criterion"] != "atol":
        return str(facts["status"])
    asked = "1e-6 tol of the risk at w = 0" if facts["atol"] is None else f"{facts['atol']:g}"
    return f"{facts['status']}, by --atol: the gap is {facts['gap']:.2e}, at most {asked}"


def shape(model: Any, data: Dataset) -> tuple[int, int]:
    """How many rows and weights there are."""
    found: tuple[int, int] = tagging.shape(model, data.X) if model.task == "tagging" else data.X.shape
    return found


def size(model: Any, data: Dataset) -> str:
    """How large the data are, in words."""
    if model.task == "tagging":
        return tagging.size(model, data.X)
    n, p = data.X.shape
    sizes = f"{n:,} rows x {p:,} columns"
    if model.task in ("classification", "hierarchy") and len(model.classes_) > 2:
        return f"{sizes}, {len(model.classes_):,} classes"
    if data.qid is None or model.task != "ranking":
        return sizes
    return f"{sizes} in {len(np.unique(data.qid)):,} queries"


def problem_facts(model: Any, shape: tuple[int, int]) -> dict[str, Any]:
    """What a page shall say of the problem."""
    from riskmin.estimators.base import fitted_loss, regularizer_of
    from riskmin.losses import formula

    reg = getattr(regularizer_of(model), "formula", "")
    return {
        "loss": f"{loss_name(model)}: {formula(fitted_loss(model))}",
        "rows": shape[0],
        "columns": shape[1],
        "tol": float(model.tol),
        "regularizer": f"{reg_name(model)}: {reg}" if reg else reg_name(model),
        **({"standardized": STANDARDIZED} if getattr(model, "standardize", False) else {}),
    }


def facts_for_report(model: Any, shape: tuple[int, int]) -> dict[str, Any]:
    """What a report shall say of a fit beside its result."""
    facts, few = problem_facts(model, shape) | {"lam": float(model.alpha)}, nonzeros(model)
    if getattr(model, "n_queries_", 0):
        facts["queries"] = f"{model.n_queries_:,}"
    return facts if few is None else facts | {"nonzero weights": f"{few:,} of {np.size(model.coef_):,}"}

"""`riskmin convert` writes a data file as a .rsk store, `riskmin export` a model in another format."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from riskmin.cli.inputs import (
    DATA_TYPE,
    MODEL_TYPE,
    PATH_TYPE,
    check_distinct_paths,
    check_writable,
    memory_option,
    qid_option,
    real_option,
    target_option,
    trust_option,
)
from riskmin.cli.loading import load_saved
from riskmin.cli.output import pluralize, print_pairs
from riskmin.core.messages import printable
from riskmin.data import convert as convert_file
from riskmin.data.store.reader import StoreReader
from riskmin.report.progress import StatusLine, duration

_EPILOG = """\b
Examples:
  riskmin convert big.svm.gz big.rsk --dtype float32
  riskmin convert houses.parquet houses.rsk --target price
  riskmin convert --check big.rsk
  riskmin fit big.rsk --loss logistic -o big.riskmin
"""


@click.command(epilog=_EPILOG)
@click.argument("source", type=DATA_TYPE)
@click.argument("target_folder", metavar="[TARGET.rsk]", type=PATH_TYPE, required=False)
@click.option("--check", "only_check", is_flag=True, help="Verify the checksums of a .rsk store instead.")
@target_option
@qid_option
@memory_option
@click.option("--no-labels", is_flag=True, help="Accept data without labels, as for prediction and novelty.")
@click.option("--n-features", type=click.IntRange(1), help="Number of columns (svmlight).")
@click.option(
    "--zero-based/--one-based",
    default=None,
    help="Whether column indices start at 0 (svmlight; default: if an index 0 occurs).",
)
@click.option(
    "--dtype",
    type=click.Choice(["float64", "float32"]),
    default="float64",
    show_default=True,
    help="Precision of the entries of X; float32 halves the size.",
)
@click.option(
    "--sparse",
    "layout",
    flag_value="sparse",
    help="Store nonzero entries only (default for svmlight and sparse .npz).",
)
@click.option("--dense", "layout", flag_value="dense", help="Store all entries, zeros included.")
@real_option(
    "--shard-mb",
    type=click.FloatRange(0, min_open=True),
    default=64.0,
    show_default=True,
    help="Size of a shard, the unit of checksums, in megabytes.",
)
@click.option("--force", is_flag=True, help="Replace the target if it exists.")
@click.option("-q", "--quiet", is_flag=True, help="Print neither progress nor summary.")
def convert(source: Path, target_folder: Path | None, only_check: bool, quiet: bool, **given: Any) -> int:
    """Write SOURCE as a .rsk store, a folder that is fitted to without being read into memory."""
    if only_check:
        if target_folder is not None:
            raise click.UsageError("--check verifies one folder: leave TARGET out")
        return _check(source, quiet)
    if target_folder is None:
        raise click.UsageError("TARGET is missing: name the folder to write, such as data.rsk")
    # readers recognize a store by its suffix
    if target_folder.suffix != ".rsk":
        raise ValueError(f"{target_folder} would not be recognized as a store: let its name end with .rsk")
    zero_based, layout = given.pop("zero_based"), given.pop("layout")
    with StatusLine(quiet) as status:

        def report(rows: int, size: int, share: float) -> None:
            """Report rows and bytes written and the fraction of the input that was read."""
            status(
                lambda: f"{rows:,} rows, {size / 1e6:,.0f} MB written, {share:.0%} read{status.left(share)}"
            )

        convert_file(
            source,
            target_folder,
            target_column=given.pop("target"),
            require_labels=not given.pop("no_labels"),
            zero_based="auto" if zero_based is None else zero_based,
            layout=layout or "auto",
            watch=report,
            **given,
        )
    if not quiet:
        _print_summary(StoreReader(target_folder), time.perf_counter() - status.start)
    return 0


def _check(path: Path, quiet: bool) -> int:
    """Verify all checksums of a store; a mismatch raises."""
    start = time.perf_counter()
    store = StoreReader(path)
    store.verify()
    if not quiet:
        _print_summary(
            store,
            time.perf_counter() - start,
            [("checksums", f"those of {pluralize(len(store.shards), 'shard')} hold")],
        )
    return 0


def _print_summary(store: StoreReader, seconds: float, more: list[tuple[str, str]] | None = None) -> None:
    """Print the size, layout and labels of a store, and the time taken."""
    size = sum(a.nbytes for a in store.arrays.values())
    kind = "sparse" if store.sparse else "dense"
    labels = "numbers" if "y" in store.dtypes else "none"
    labels = f"{len(store.classes)} classes" if store.classes else labels
    click.echo(f"{store.path}, {store.rows:,} rows x {store.columns:,} columns")
    print_pairs(
        [
            ("numbers", f"{store.nnz:,}, {kind}, {store.dtypes['data' if store.sparse else 'X']}"),
            ("labels", labels + (", with query ids" if "qid" in store.dtypes else "")),
            ("size", f"{size / 1e6:,.1f} MB in {pluralize(len(store.shards), 'shard')}"),
            *(more or []),
            ("took", duration(seconds)),
        ]
    )


@click.command()
@click.argument("model", type=MODEL_TYPE)
@click.argument("output", type=PATH_TYPE)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["onnx"]),
    default="onnx",
    show_default=True,
    help="The format of OUTPUT.",
)
@trust_option
def export(model: Path, output: Path, file_format: str, trust: tuple[str, ...]) -> None:
    """Write MODEL in another format to OUTPUT: ONNX, for predictions without riskmin.

    The inputs are X; or, of a model of a raw table, its columns, since the preparation is part of the file.
    """
    from riskmin.estimators import to_onnx

    if output.suffix.lower() not in ("", f".{file_format}"):
        raise ValueError(
            f"{output} would hold {file_format.upper()}, the only format: let its name end with "
            f".{file_format}"
        )
    check_writable(output)
    check_distinct_paths({"MODEL": model}, {"OUTPUT": output})
    made = to_onnx(load_saved(model, trust), output)
    click.echo(f"{output}, {file_format.upper()} of riskmin {made.producer_version}")
    names = [", ".join(printable(one.name) for one in part) for part in (made.graph.input, made.graph.output)]
    print_pairs([("inputs", names[0]), ("outputs", names[1])])

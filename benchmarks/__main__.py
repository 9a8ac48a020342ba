"""The command of the benchmarks.

python -m benchmarks run --task hinge --data a9a --lam 1e-4 --data-folder FOLDER
"""

from __future__ import annotations

import json
from pathlib import Path

import click

FILE = click.Path(dir_okay=False, path_type=Path)
CLOCK = click.option(
    "--clock", type=click.Choice(["cpu", "wall"]), default="cpu", show_default=True, help="seconds to print"
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main():
    """Compare solvers: time to the same objective, and time to a proof of it.

    All solvers minimize J(w, b) = mean loss + lam Omega(w), with b = 0 or an unpenalized intercept, and one
    function evaluates J for all of them; with an intercept, at the best b for the peer's w.

    riskmin runs once to a certified gap of 1e-6; its time to a level is the time at which
    that gap was PROVED, including the construction of the risk from arrays. A peer is fitted from a cold
    start with a ladder of tolerances and iteration limits; its time to a level is that of its fastest setting
    whose J is within the level of the best known J, although its user could not know which setting that is.
    X is converted to the peer's preferred format, and kernels are compiled, before the clock starts. Rounds
    are interleaved, and the smallest time counts.
    """


@main.command()
@click.option("--task", "tasks", multiple=True, default=["hinge"], show_default=True, help="names; or all")
@click.option(
    "--data",
    "names",
    multiple=True,
    default=["all"],
    show_default=True,
    help="names  [default: all that suit the task]",
)
@click.option(
    "--lam", "lams", multiple=True, type=float, help="fractions of lam_max for L1  [default: the task's own]"
)
@click.option(
    "--data-folder",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="folder of the svmlight files; synthetic data sets need none",
)
@click.option(
    "--solver", "solvers", multiple=True, default=["auto"], show_default=True, help="of ours; or all"
)
@click.option("--peer", "peers", multiple=True, default=["all"], show_default=True, help="names; or none")
@click.option("--seconds", type=float, default=5.0, show_default=True, help="time limit per solver and cell")
@click.option(
    "--rounds",
    type=int,
    default=3,
    show_default=True,
    help="rounds of fast solvers; slow ones have two or one",
)
@click.option(
    "--intercept",
    type=click.Choice(["no", "yes", "both"]),
    default="no",
    show_default=True,
    help="unpenalized",
)
@click.option(
    "--unseen",
    "half",
    is_flag=False,
    flag_value="both",
    type=click.Choice(["choose", "report", "both"]),
    help="the sets of other packages, written by `prepare`: the half on which settings are chosen, "
    "the half that is reported, or both",
)
@click.option("--jobs", type=int, default=1, show_default=True, help="cells at a time, a process each")
@click.option("--threads", type=int, default=1, show_default=True, help="of each solver")
@click.option(
    "--memory", is_flag=True, help="also measure the peak memory of each solver, in a separate process"
)
@click.option("--json", "file", type=FILE, help="write all results as JSON")
@click.option("--lines", type=FILE, help="append a line of JSON per cell, without the curves")
@click.option("--plot", type=FILE, help="write curves as an image")
@CLOCK
def run(threads, file, plot, clock, memory, **choice):
    """Run cells, and print their times."""
    from benchmarks.harness.machine import set_threads

    set_threads(threads)  # before NumPy is imported
    from benchmarks.harness import runs

    results = runs.run_all(threads=threads, clock=clock, memory=memory, file=file, **choice)
    if plot:
        from benchmarks.harness.plot import draw

        draw(results["cells"], plot, clock)


@main.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@CLOCK
def table(files, clock):
    """Print a compact table of results: riskmin's proved times, the best peer, and the ratio of times."""
    from benchmarks.harness.report import compact, summary

    cells = [cell for file in files for cell in json.loads(file.read_text())["cells"]]
    click.echo(compact(cells, clock) + "\n\n" + summary(cells, clock))


@main.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--set", "names", multiple=True, help="names  [default: all]")
def prepare(folder, names):
    """Download the packages of the unseen sets, and write these into FOLDER (15 MB)."""
    from benchmarks.unseen.prepare import prepare as write

    write(folder, names)


@main.command(name="list")
def names():
    """Print the names of tasks, sets, solvers and peers."""
    from benchmarks.harness.runs import say_names

    say_names()


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")

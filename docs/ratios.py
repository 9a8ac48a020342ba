"""The table of docs/performance.md: ratios of CPU times, from the tables of benchmarks/RESULTS.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "benchmarks" / "RESULTS.md"
PAGE = Path(__file__).with_name("performance.md")
START, END = "<!-- the ratios -->\n", "<!-- end of the ratios -->\n"
HEAD = ["data", "task", "lam", "ours, proved 1e-3 / 1e-6", "peer to 1e-3", "ratio", "peer to 1e-6", "ratio"]


def cells(line: str) -> list[str]:
    """The cells of a row of a Markdown table."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def measured() -> Iterator[list[str]]:
    """The rows of all tables with the columns of `HEAD`."""
    inside = False
    for line in RESULTS.read_text(encoding="utf-8").splitlines():
        row = cells(line)
        if row == HEAD:
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and set(line) - set("|-"):
            yield row


def short(ratio: str) -> str:
    """A ratio with two digits; an empty one, which could not be measured, as a dash."""
    sign, number = ("> ", ratio.lstrip("> ")) if ratio.startswith(">") else ("", ratio)
    if not number:
        return "–"
    return sign + (f"{float(number):.0f}" if float(number) >= 10 else f"{float(number):.2g}")


def table(lams: list[str], l1: bool) -> str:
    """One row per loss and set of data; a cell is the ratio to 1e-3 and the ratio to 1e-6.

    Parameters
    ----------
    lams : list of str
        The columns.
    l1 : bool
        Whether to list the tasks with L1, whose lam is a fraction of `lam_max`, or the others.
    """
    found: dict[tuple[str, str], dict[str, str]] = {}
    for data, task, lam, _, _, to_3, peer_6, to_6 in measured():
        if lam in lams and (task in ("lasso", "l1_logistic")) == l1 and peer_6 != "-":
            name = task.replace("_", " "), data.replace("\\*", "").replace("_", " ")
            found.setdefault(name, {})[lam] = f"{short(to_3)} / {short(to_6)}"
    lines = [f"| loss, data | lam {' | '.join(lams)} |", "| --- |" + " --- |" * len(lams)]
    for (task, data), ratios in sorted(found.items(), key=lambda item: item[0][0]):
        lines.append(f"| {task}, {data} | " + " | ".join(ratios.get(lam, "") for lam in lams) + " |")
    return "\n".join([*lines, ""])


def page() -> str:
    """docs/performance.md with the ratios as they are measured."""
    before, rest = PAGE.read_text(encoding="utf-8").split(START)
    tables = table(["0.01", "0.0001", "1e-06", "1e-08"], False), table(["0.1", "0.01", "0.001"], True)
    return (
        before
        + START
        + f"{tables[0]}\nWith L1, lam as a fraction of `lam_max`:\n\n{tables[1]}"
        + END
        + rest.split(END)[1]
    )

"""Write the counts of a campaign into docs/reliability.md: ``python -m benchmarks.campaign.table FILE``."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- campaign: written by benchmarks.campaign.table -->", "<!-- end of the campaign -->"
KINDS = {
    "false bound": "bounds above J at a known point, in exact arithmetic",
    "false convergence": '"converged", but not within the tolerance of the smallest J known',
    "wrong value": "values that are not J(w), beyond rounding of the scores",
    "worse than zero": "results of `Auto` that are worse than w = 0",
    "exception": "errors that are not a refusal in one sentence",
    "not finite": "results that are not finite",
}


def table(results: dict[str, Any]) -> str:
    """The counts as a table of Markdown.

    Examples
    --------
    >>> counts = {"problems": 2, "fits": 20, "refusals": 3, "exact minima": 1}
    >>> print(table({"seed": 0, "counts": counts, "failures": []}).splitlines()[2])
    | random problems (seeds 0 to 1) | 2 |
    """
    counts, failures = Counter(results["counts"]), Counter(one["kind"] for one in results["failures"])
    first, losses = results["seed"], sum(name.startswith("loss ") for name in counts)
    rows = {
        f"random problems (seeds {first} to {first + counts['problems'] - 1})": counts["problems"],
        "kinds of losses in them": losses,
        "fits": counts["fits"],
        "refusals in one sentence (a solver that is not for the problem)": counts["refusals"],
        "exact minima, by enumeration in rational numbers": counts["exact minima"],
    }
    rows |= {f"**{description}**": failures[kind] for kind, description in KINDS.items()}
    return "\n".join(
        ["| counted | number |", "| --- | --- |", *(f"| {k} | {v:,} |" for k, v in rows.items())]
    )


def main() -> None:
    text, results = PAGE.read_text(), json.loads(Path(sys.argv[1]).read_text())
    before, _, after = text.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table(results)}\n{END}{after.partition(END)[2]}")


if __name__ == "__main__":
    main()

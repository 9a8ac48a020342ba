"""Repeat the experiments of the five papers, and write docs/papers with our figures beside theirs.

    OMP_NUM_THREADS=1 python -m benchmarks.papers [--data FOLDER] [--only a-figure-3 ...] [--out docs/papers]

A part whose data are missing is skipped with a word. Finished cells are kept in --cells (build/papers), so
that an interrupted run goes on where it ended; remove a file there to measure its part again. All times are
CPU seconds of one thread. Run `riskmin warmup` first, so that none of them compiles.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.script import script_parser
from benchmarks.papers import beyond, bundle_methods, dual, line_search, lower_bounds, multivariate
from benchmarks.papers.page import Lab, MissingData

PAGES = {
    "a": ("A: bundle methods for regularized risks (Teo et al., KDD 2007)", bundle_methods.PARTS),
    "b": ("B: bundle methods for machine learning (Smola et al., NIPS 2007)", line_search.PARTS),
    "c": ("C: lower bounds on the rate of bundle methods (Zhang et al., NIPS 2010)", lower_bounds.PARTS),
    "d": ("D: smoothing multivariate performance measures (Zhang et al., JMLR 2012)", multivariate.PARTS),
    "e": ("E: the dual of regularized linear systems with convex risks (Zhang, 2002)", dual.PARTS),
    "beyond": ("What the papers left open", beyond.PARTS),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    names = [name for page, (_, parts) in PAGES.items() for name in (page, *(part.name for part in parts))]
    parser.add_argument(
        "--only",
        nargs="*",
        choices=names,
        metavar="PART",
        help="names of parts or pages, such as a-figure-3 or beyond",
    )
    parser.add_argument("--out", type=Path, default=Path("docs/papers"))
    parser.add_argument("--cells", type=Path, default=Path("build/papers"))
    args = parser.parse_args(arguments)
    for page, (title, parts) in PAGES.items():
        file = args.out / f"{page}.md"
        # a part that is not run now keeps its section
        sections = sections_of(file.read_text(encoding="utf-8")) if file.exists() else {}
        chosen = [part for part in parts if not args.only or {page, part.name} & {*args.only}]
        for part in chosen:
            start = time.perf_counter()
            try:
                text = part.run(Lab(part.name, args.data, args.cells, args.out))
            except (MissingData, FileNotFoundError) as missing:
                print(f"{part.name}: skipped, {missing}", flush=True)
                continue
            sections[part.heading] = text
            print(f"{part.name}: {time.perf_counter() - start:.0f} s", flush=True)
        written = [
            f"## {part.heading}\n\n{sections[part.heading]}" for part in parts if part.heading in sections
        ]
        if chosen and written:
            args.out.mkdir(parents=True, exist_ok=True)
            note = "Written by `make papers`; times are CPU seconds of one thread.\n"
            file.write_text("\n".join([f"# {title}\n", note, *written]), encoding="utf-8")


def sections_of(text: str) -> dict[str, str]:
    """The text of each section of a page, by its heading."""
    parts = [part.partition("\n\n") for part in text.split("\n## ")[1:]]
    return {heading: body if body.endswith("\n") else body + "\n" for heading, _, body in parts}


if __name__ == "__main__":
    main()

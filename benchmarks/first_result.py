"""Time for a first result as a new user: the examples of the README, one by one, each in a new process.

    OMP_NUM_THREADS=1 python -m benchmarks.first_result [--readme README.md]

CPU seconds of the Python example and of each command, first with an empty Numba cache, as after an
installation, then with a warm one. An example that fails ends the run: what a new user sees must work.
"""

from __future__ import annotations

import doctest
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness.script import print_head, script_parser

ROOT = Path(__file__).parents[1]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def examples(text: str) -> dict[str, list[str]]:
    """The command lines of a page by what is shown of them: the Python example, and each command."""
    python = "".join(
        e.source for block in blocks(text, "python") for e in doctest.DocTestParser().get_examples(block)
    )
    lines = [
        line for block in blocks(text, "sh") for line in block.splitlines() if line.startswith("riskmin ")
    ]
    words = [shlex.split(line, comments=True) for line in lines]
    commands = {" ".join(line[:2]): [sys.executable, "-m", *line] for line in words}
    return {"in Python": [sys.executable, "-c", python], **commands}


def write_data(folder: Path) -> None:
    """The files that the commands name: a raw table and the table of tumors."""
    from sklearn.datasets import load_breast_cancer

    sys.path.insert(0, str(ROOT / "tests"))
    from helpers import customers

    customers().to_csv(folder / "customers.csv", index=False)
    customers(seed=1).drop(columns="bought").to_csv(folder / "prospects.csv", index=False)
    tumors = load_breast_cancer(as_frame=True).frame.rename(columns={"target": "diagnosis"})
    tumors.to_csv(folder / "train.csv", index=False)


def cpu_seconds(command: list[str], folder: Path, cache: str) -> float:
    start = resource.getrusage(resource.RUSAGE_CHILDREN)
    env = os.environ | {"NUMBA_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True)
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    return end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--readme", type=Path, default=ROOT / "README.md")
    to_run = examples(parser.parse_args().readme.read_text(encoding="utf-8"))
    print_head("example | after an installation | again")
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as cache:
        write_data(Path(folder))
        cold = {name: cpu_seconds(command, Path(folder), cache) for name, command in to_run.items()}
        warm = {name: cpu_seconds(command, Path(folder), cache) for name, command in to_run.items()}
    for name in to_run:
        print(f"| {name} | {cold[name]:.1f} | {warm[name]:.1f} |")
    print(f"| all | {sum(cold.values()):.1f} | {sum(warm.values()):.1f} |")


if __name__ == "__main__":
    main()

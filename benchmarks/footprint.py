"""What an installation takes: megabytes and import seconds, by dependency.

    python -m benchmarks.footprint [--repeats 3]

Sizes are those of the installed files of the distributions that riskmin requires, directly or not. `alone` is
the size of a dependency, `with what only it needs` what would go with it. Import seconds are CPU seconds of
fresh processes, the least of several, beyond those of Python alone. They are divided among packages in
proportion to the times of their modules (`python -X importtime`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import riskmin
from benchmarks.harness.script import script_parser

STEPS = {
    "import riskmin": "import riskmin",
    "LinearClassifier": "from riskmin import LinearClassifier",
    "command fit": "from riskmin.cli.commands import fit",
}
"""What is imported, and the code that does so."""


# ---------------------------------------------------------------- sizes
@cache
def requirements(name: str, extra: str = "") -> tuple[str, ...]:
    """The distributions that one requires in this environment, and is installed with."""
    found = []
    for text in distribution(name).requires or ():
        requirement = Requirement(text)
        # only what the extra adds, if there is one
        plain = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        if wanted and not (extra and plain):
            found.append(canonicalize_name(requirement.name))
    return tuple(found)


def closure(names: tuple[str, ...], without: str = "") -> set[str]:
    """All installed distributions that some require, directly or not, but through one of them."""
    found: set[str] = set()
    open_names = [name for name in names if name != without]
    while open_names:
        name = open_names.pop()
        if name in found or name == without:
            continue
        try:
            more = requirements(name)
        except PackageNotFoundError:
            continue
        found.add(name)
        open_names += more
    return found


@cache
def megabytes(name: str) -> float:
    """The size of the files of a distribution; of riskmin, which may be a checkout, of its package."""
    if name == "riskmin":
        files = Path(riskmin.__file__).parent.rglob("*")
        return sum(path.stat().st_size for path in files if path.suffix in (".py", ".css")) / 1e6
    paths = (file.locate() for file in distribution(name).files or ())
    return sum(path.stat().st_size for path in paths if path.is_file()) / 1e6


def total(names: set[str]) -> float:
    return sum(map(megabytes, names))


# ---------------------------------------------------------------- imports
def import_seconds(code: str, repeats: int) -> Counter[str]:
    """The CPU seconds of the modules of each distribution, of the fastest of several fresh processes."""
    owners = packages_distributions() | {"riskmin": ["riskmin"]}
    runs = []
    for _ in range(repeats):
        alone = cpu_seconds(["-c", "pass"])[0]
        cpu, text = cpu_seconds(["-X", "importtime", "-c", code])
        micros: Counter[str] = Counter()
        for number, module in re.findall(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)", text):
            names = owners.get(module.partition(".")[0], ["Python"])
            micros[canonicalize_name(names[0])] += int(number)
        factor = max(cpu - alone, 0.0) / micros.total()
        runs.append(Counter({name: factor * number for name, number in micros.items()}))
    return min(runs, key=Counter.total)


def cpu_seconds(arguments: list[str]) -> tuple[float, str]:
    """The CPU seconds of a process of Python, and what it writes to stderr."""
    # with compiled modules in their caches, as after the first use of an installation
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before, call = os.times(), [sys.executable, *arguments]
    text = subprocess.run(call, capture_output=True, text=True, check=True, env=settings).stderr
    after = os.times()
    used = after.children_user + after.children_system
    return used - before.children_user - before.children_system, text


# ---------------------------------------------------------------- report
def table(repeats: int) -> list[str]:
    direct = requirements("riskmin")
    all_names = closure(direct) | {"riskmin"}
    times = {step: import_seconds(code, repeats) for step, code in STEPS.items()}
    heads = [
        "required by riskmin",
        "MB alone",
        "MB with what only it needs",
        *(f"s: {step}" for step in STEPS),
    ]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    groups = {name: all_names - closure(direct, without=name) - {"riskmin"} for name in direct}
    shared = all_names - {"riskmin"} - set().union(*groups.values())
    rows = [(name, megabytes(name), group) for name, group in groups.items()]
    rows += [
        ("shared by several", total(shared), shared),
        ("riskmin itself", megabytes("riskmin"), {"riskmin"}),
    ]
    for name, size, group in sorted(rows, key=lambda row: -total(row[2])):
        seconds = (sum(times[step][member] for member in group) for step in STEPS)
        cells = [name, f"{size:.0f}", f"{total(group):.0f}", *(f"{s:.2f}" for s in seconds)]
        lines.append(f"| {' | '.join(cells)} |")
    others = (times[step].total() - sum(times[step][name] for name in all_names) for step in STEPS)
    lines.append(f"| Python itself | | | {' | '.join(f'{s:.2f}' for s in others)} |")
    sums = " | ".join(f"{times[step].total():.2f}" for step in STEPS)
    lines.append(f"| all | | {total(all_names):.0f} | {sums} |")
    return lines


def extras() -> list[str]:
    """The megabytes that each installed extra adds."""
    lines = []
    base = closure(requirements("riskmin"))
    for extra in sorted(distribution("riskmin").metadata.get_all("Provides-Extra") or ()):
        more = closure(requirements("riskmin", extra)) - base - {"riskmin"}
        lines.append(f"{extra}: {total(more):.0f} MB in {len(more)} packages")
    return lines


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument(
        "--repeats", type=int, default=3, help="processes per import, of which the fastest counts"
    )
    print("\n".join([*table(parser.parse_args().repeats), "", *extras()]))


if __name__ == "__main__":
    main()

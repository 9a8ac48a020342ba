"""Mutation testing: change one operator or constant of the source at a time, and count what the tests notice.

    python -m fuzz.mutants --n 600 --seed 0 --jobs 2 -o mutants.json

A mutant that no test fails for survives. Each runs in a fork of one process that has imported the libraries,
with the mutated source in place of the module: a mutant costs the tests of its room, not the imports.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.abc
import importlib.util
import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "riskmin"
TARGETS = {
    "losses/conjugate.py": ["tests/losses"],
    "losses/margin.py": ["tests/losses"],
    "losses/regression.py": ["tests/losses"],
    "regularizers/norms.py": ["tests/regularizers"],
    "regularizers/separable.py": ["tests/regularizers"],
    "regularizers/entropy.py": ["tests/regularizers"],
    "problem/rounding.py": ["tests/problem/test_linear_risk.py", "tests/project/test_campaign.py"],
    "problem/objective.py": ["tests/driver", "tests/problem/test_risk.py"],
    "driver/run.py": ["tests/driver"],
    "driver/checkpoint.py": ["tests/driver"],
    "owners/protection/guard.py": ["tests/owners/test_protection.py"],
    "data/formats/svmlight.py": ["tests/data"],
    "data/formats/text_table.py": ["tests/data"],
    "data/formats/npz.py": ["tests/data"],
}
"""Mutated files, each with the tests that are to notice."""
SWAPS: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or,
    ast.Or: ast.And,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "any": "all", "all": "any"}


# ---------------------------------------------------------------- mutants
def changes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield changed copies of one node."""
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPS:
        changed: Any = copy.deepcopy(node)
        changed.op = SWAPS[type(node.op)]()
        yield changed
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        changed = copy.deepcopy(node)
        changed.ops[0] = SWAPS[type(node.ops[0])]()
        yield changed
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        yield copy.deepcopy(node.operand)
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        changed = copy.deepcopy(node)
        changed.attr = NAMES[node.attr]
        yield changed
    elif isinstance(node, ast.Name) and node.id in NAMES:
        yield ast.Name(NAMES[node.id], node.ctx)


class Replace(ast.NodeTransformer):
    """Replace the node at a place, counted in the order of a walk."""

    def __init__(self, target: ast.AST, changed: ast.AST) -> None:
        self.target, self.changed = target, changed

    def visit(self, node: ast.AST) -> Any:
        """Return the changed node in place of the target."""
        if node is self.target:
            return ast.copy_location(self.changed, node)
        # annotations have no effect
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            node.value = self.visit(node.value)
            return node
        return self.generic_visit(node)


def mutable_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes whose change has an effect: annotations and type checking blocks have none."""
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns") or (
            isinstance(tree, ast.If) and "TYPE_CHECKING" in ast.dump(tree.test)
        ):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST):
                yield node
                yield from mutable_nodes(node)


def mutants(name: str) -> list[tuple[str, int, int]]:
    """Return (file, index of the node, line) of every mutant of a file."""
    tree = ast.parse((SOURCE / name).read_text(encoding="utf-8"))
    return [
        (name, index, getattr(node, "lineno", 0))
        for index, node in enumerate(mutable_nodes(tree))
        for _ in changes(node)
    ]


def mutated(name: str, index: int) -> tuple[str, str]:
    """Return the source of a mutant, and its change."""
    tree = ast.parse((SOURCE / name).read_text(encoding="utf-8"))
    node = list(mutable_nodes(tree))[index]
    (changed,) = changes(node)
    before = ast.unparse(node)
    return ast.unparse(ast.fix_missing_locations(Replace(node, changed).visit(tree))), (
        f"{before} -> {ast.unparse(changed)}"
    )


# ---------------------------------------------------------------- runs
class MutatedModule(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from given source."""

    def __init__(self, name: str, source: str) -> None:
        self.module = "riskmin." + name.removesuffix(".py").replace("/", ".")
        self.path, self.source = SOURCE / name, source

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the specification of the mutated module."""
        found = name == self.module
        return importlib.util.spec_from_file_location(name, self.path, loader=self) if found else None

    def exec_module(self, module: Any) -> None:
        """Run the mutated source."""
        exec(compile(self.source, str(self.path), "exec"), module.__dict__)


def run(name: str, index: int | None, seconds: int) -> bool:
    """Return whether the tests fail for a mutant, in this process; None is the file as it is."""
    import pytest

    if index is not None:
        sys.meta_path.insert(0, MutatedModule(name, mutated(name, index)[0]))
    signal.alarm(seconds)  # a mutant that does not end is noticed
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:randomly", "--no-header"]
    quick = ["-m", "not slow and not exhaustive", "-o", "addopts="]
    return pytest.main([*options, *quick, *(str(ROOT / path) for path in TARGETS[name])]) != 0


def forked(name: str, index: int | None, seconds: int) -> int:
    """Start a child for a mutant; it exits with 1 if the tests fail."""
    pid = os.fork()
    if pid == 0:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        code = 1
        try:
            code = int(run(name, index, seconds))
        finally:
            os._exit(code)
    return pid


def check_tests(seconds: int) -> None:
    """End the campaign if tests fail without a change."""
    for name in TARGETS:
        _, status = os.waitpid(forked(name, None, seconds), 0)
        if status:
            sys.exit(f"the tests of {name} fail or take more than {seconds} s without a change")


def campaign(sample: list[tuple[str, int, int]], jobs: int, seconds: int) -> list[dict[str, Any]]:
    """Run the mutants, `jobs` at a time; return a row for each."""
    rows: list[dict[str, Any]] = []
    running: dict[int, tuple[str, int, int]] = {}
    waiting = list(sample)
    while waiting or running:
        while waiting and len(running) < jobs:
            mutant = waiting.pop()
            running[forked(mutant[0], mutant[1], seconds)] = mutant
        pid, status = os.wait()
        name, index, line = running.pop(pid)
        change = mutated(name, index)[1]
        rows.append({"file": name, "line": line, "change": change, "killed": status != 0})
        print(len(rows), "killed  " if status else "SURVIVED", f"{name}:{line}", change, flush=True)
    return rows


def main() -> None:
    """Draw a sample of mutants with equal shares of the files, run it, and print the score."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--n", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=120, help="limit of the tests of a mutant")
    parser.add_argument("-o", "--output", default="mutants.json")
    arguments = parser.parse_args()
    import cvxpy  # noqa: F401
    import numba  # noqa: F401
    import pytest  # noqa: F401
    import scipy.optimize  # noqa: F401
    import sklearn.linear_model  # noqa: F401

    sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
    os.chdir(ROOT)
    rng, sample = random.Random(arguments.seed), []
    for name in TARGETS:
        found = mutants(name)
        sample += rng.sample(found, min(len(found), arguments.n // len(TARGETS)))
    check_tests(arguments.seconds)
    rows = campaign(sample, arguments.jobs, arguments.seconds)
    Path(arguments.output).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    killed = Counter(row["file"] for row in rows if row["killed"])
    total = Counter(row["file"] for row in rows)
    for name, n in total.items():
        print(f"{name:32s} {killed[name]:4d} of {n}")
    print(f"{sum(killed.values())} of {len(rows)} mutants are noticed")


if __name__ == "__main__":
    main()

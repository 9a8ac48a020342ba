"""Mutation testing: change one operator or constant of the source at a time, and count what the tests notice.

    python -m fuzz.mutants --n 600 --seed 0 --jobs 2 -o mutants.json
    python -m fuzz.mutants --like mutants.json -o later.json

A mutant that no test fails for survives. The tests run once without a change, which records the functions
that each of them calls. Each mutant then runs in a fork, with the changed code in place of its function's,
on the tests that call this function, the fastest first: it costs neither imports nor other tests.
"""

from __future__ import annotations

import argparse
import ast
import copy
import functools
import gc
import itertools
import json
import math
import os
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "riskmin"
TARGETS = [
    "losses/conjugate.py",
    "losses/margin.py",
    "losses/regression.py",
    "regularizers/norms.py",
    "regularizers/separable.py",
    "regularizers/entropy.py",
    "problem/rounding.py",
    "problem/objective.py",
    "driver/run.py",
    "driver/checkpoint.py",
    "owners/protection/guard.py",
    "data/formats/svmlight.py",
    "data/formats/text_table.py",
    "data/formats/npz.py",
]
"""Mutated files."""
TESTS = ["losses", "regularizers", "problem", "driver", "data", "owners/test_protection.py"]
"""The tests that are to notice."""
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


class Mutant(NamedTuple):
    """One change; the same one has the same fields in sources of the same function."""

    file: str
    function: str
    change: str
    ordinal: int
    """Which of the equal changes of the function it is."""


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the outermost functions and methods with their qualified names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")


def mutable_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes whose change has an effect: annotations have none."""
    for field, value in ast.iter_fields(tree):
        if field not in ("annotation", "returns", "decorator_list"):
            for node in value if isinstance(value, list) else [value]:
                if isinstance(node, ast.AST):
                    yield node
                    yield from mutable_nodes(node)


def mutants(file: str) -> Iterator[tuple[Mutant, ast.Module, ast.AST, ast.AST]]:
    """Yield every mutant of a file with the tree, the node, and what replaces it."""
    tree = ast.parse((SOURCE / file).read_text(encoding="utf-8"))
    for name, function in functions(tree):
        seen: Counter[str] = Counter()
        for node in itertools.chain.from_iterable(map(mutable_nodes, function.body)):
            for changed in changes(node):
                change = f"{ast.unparse(node)} -> {ast.unparse(changed)}"
                yield Mutant(file, name, change, seen[change]), tree, node, changed
                seen[change] += 1


class Replace(ast.NodeTransformer):
    """Replace one node."""

    def __init__(self, target: ast.AST, changed: ast.AST) -> None:
        self.target, self.changed = target, changed

    def visit(self, node: ast.AST) -> Any:
        """Return the changed node in place of the target."""
        return ast.copy_location(self.changed, node) if node is self.target else self.generic_visit(node)


def codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and all within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def key(code: CodeType) -> tuple[str, str, int]:
    """What a function keeps when the source of its body changes."""
    return code.co_filename, code.co_qualname, code.co_firstlineno


class Living(NamedTuple):
    """The functions of the mutated files in this process, and the caches of results."""

    functions: dict[tuple[str, str, int], list[FunctionType]]
    caches: list[Any]

    @classmethod
    def found(cls) -> Living:
        """Search the objects of this process."""
        functions, files = defaultdict(list), {str(SOURCE / file) for file in TARGETS}
        caches = []
        # the types themselves: proxies would answer for others
        for thing in gc.get_objects():
            if type(thing) is FunctionType and thing.__code__.co_filename in files:
                functions[key(thing.__code__)].append(thing)
            elif type(thing) is functools._lru_cache_wrapper:
                caches.append(thing)
        return cls(functions, caches)

    def apply(self, mutant: Mutant) -> int:
        """Give the functions the changed code, and forget what others computed; return how many changed."""
        _, tree, node, changed = next(found for found in mutants(mutant.file) if found[0] == mutant)
        tree = ast.fix_missing_locations(Replace(node, changed).visit(tree))
        n_changed = 0
        for code in codes(compile(tree, str(SOURCE / mutant.file), "exec")):
            for function in self.functions[key(code)]:
                n_changed += function.__code__ != code
                function.__code__ = code
        for cache in self.caches:
            cache.cache_clear()
        return n_changed


# ---------------------------------------------------------------- runs
NOT_APPLIED = 3
"""The exit code of a child in which no function has the changed code."""


def neighbors(items: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield each test with the next one, for which shared fixtures are kept."""
    return itertools.pairwise([*items, None])


class Campaign:
    """A plugin of pytest that runs the collected tests once, then the mutants."""

    def __init__(self, sample: list[Mutant], jobs: int, seconds: float) -> None:
        self.sample, self.jobs, self.seconds = sample, jobs, seconds
        self.failed: list[str] = []
        self.rows: list[dict[str, Any]] = []

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Leave out slow tests, except those of the owners' guard."""
        items[:] = [
            item
            for item in items
            if not item.get_closest_marker("exhaustive")
            and ("owners" in item.path.parts or not item.get_closest_marker("slow"))
        ]

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note a test that fails."""
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_runtestloop(self, session: Any) -> bool:
        """Run the tests without a change, and each mutant on the tests that call its function."""
        self.calls: dict[tuple[str, str], list[Any]] = defaultdict(list)
        self.seconds_of: dict[str, float] = {}
        files = {str(SOURCE / file): file for file in TARGETS}
        for item, following in neighbors(session.items):
            called: set[tuple[str, str]] = set()

            def note(frame: Any, event: str, arg: object, called: set[Any] = called) -> None:
                if frame.f_code.co_filename in files:
                    called.add((files[frame.f_code.co_filename], frame.f_code.co_qualname))

            start = time.process_time()
            sys.settrace(note)
            try:
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            finally:
                sys.settrace(None)
            self.seconds_of[item.nodeid] = time.process_time() - start
            for file, name in called:
                self.calls[file, name.partition(".<locals>")[0]].append(item)
        # a test that fails without a change would notice every mutant
        print("left out, since they fail without a change:", *self.failed or ["none"], flush=True)
        for items in self.calls.values():
            items[:] = [item for item in items if item.nodeid not in self.failed]
        self.failed.clear()
        print(f"{len(session.items)} tests, {sum(self.seconds_of.values()):.0f} s", flush=True)
        self.living = Living.found()
        gc.freeze()
        self.run_mutants()
        return True

    def chosen(self, mutant: Mutant) -> list[Any]:
        """Return the tests that call the function, the fastest first, as far as the seconds go."""
        items = sorted(
            self.calls[mutant.file, mutant.function], key=lambda item: self.seconds_of[item.nodeid]
        )
        total = itertools.accumulate(self.seconds_of[item.nodeid] for item in items)
        return [item for item, seconds in zip(items, total, strict=True) if seconds <= self.seconds]

    def forked(self, mutant: Mutant) -> int:
        """Start a child that exits with 1 as soon as a test fails, with 0 if none does."""
        items = self.chosen(mutant)
        pid = os.fork()
        if pid:
            return pid
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60 + int(10 * self.seconds))  # a mutant that does not end is noticed
            if not self.living.apply(mutant):
                os._exit(NOT_APPLIED)
            for item, following in neighbors(items):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if self.failed:
                    os._exit(1)
            os._exit(0)
        finally:
            os._exit(1)

    def run_mutants(self) -> None:
        """Run the sample, `jobs` at a time."""
        running: dict[int, Mutant] = {}
        waiting = list(self.sample)
        while waiting or running:
            while waiting and len(running) < self.jobs:
                mutant = waiting.pop()
                running[self.forked(mutant)] = mutant
            pid, status = os.wait()
            if pid in running:
                mutant = running.pop(pid)
                assert os.waitstatus_to_exitcode(status) != NOT_APPLIED, f"no function changes: {mutant}"
                n_tests = len(self.calls[mutant.file, mutant.function])
                self.rows.append({**mutant._asdict(), "tests": n_tests, "killed": status != 0})
                print(len(self.rows), "killed  " if status else "SURVIVED", *mutant, n_tests, flush=True)


def drawn(n: int, seed: int) -> list[Mutant]:
    """Return a sample of mutants with equal shares of the files."""
    rng, sample = random.Random(seed), []
    for file in TARGETS:
        found = [mutant for mutant, *_ in mutants(file)]
        sample += rng.sample(found, min(len(found), math.ceil(n / len(TARGETS))))
    return sample


def same_as(path: str) -> list[Mutant]:
    """Return the mutants of an earlier campaign whose functions are still there."""
    existing = {mutant for file in TARGETS for mutant, *_ in mutants(file)}
    rows = json.loads(Path(path).read_text(encoding="utf-8"))
    earlier = [Mutant(*(row[field] for field in Mutant._fields)) for row in rows]
    return [mutant for mutant in earlier if mutant in existing]


def main() -> None:
    """Run a sample of mutants, write one row for each, and print the score."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--n", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0, help="limit of the tests of a mutant")
    parser.add_argument("--like", help="take the mutants of this earlier campaign")
    parser.add_argument("-o", "--output", default="mutants.json")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    sample = same_as(arguments.like) if arguments.like else drawn(arguments.n, arguments.seed)
    campaign = Campaign(sample, arguments.jobs, arguments.seconds)
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:randomly", "-o", "addopts="]
    pytest.main([*options, *(str(ROOT / "tests" / path) for path in TESTS)], plugins=[campaign])
    Path(arguments.output).write_text(json.dumps(campaign.rows, indent=1) + "\n", encoding="utf-8")
    killed = Counter(row["file"] for row in campaign.rows if row["killed"])
    for file, n in Counter(row["file"] for row in campaign.rows).items():
        print(f"{file:32s} {killed[file]:4d} of {n}")
    print(f"{killed.total()} of {len(campaign.rows)} mutants are noticed")


if __name__ == "__main__":
    main()

"""Commands with random options on mutated files, each in a forked child; tracebacks and signals are failures.

    python -m fuzz.commands --n 20000 --seed 1

A command must end with a documented exit code, and with one line on stderr if the code is 2.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz import mutate, seeds

LIMIT = 60.0
"""Time limit of a command in seconds."""
EXIT_CODES = {0, 1, 2, 3, 130}
"""Documented exit codes."""

VALID_LOSSES = [
    "hinge", "logistic", "squared", "softmax", "ndcg", "ordinal", "novelty", "squared_hinge", "roc_area",
]  # fmt: skip
LOSSES = [
    "hinge", "squared_hinge", "logistic", "softmax", "squared", "absolute", "huber:delta=2",
    "quantile:level=0.9", "poisson", "novelty", "ordinal", "ndcg", "roc_area", "f1", "pairwise_hinge",
    "exponential", "hinge:margin=2", "chain_crf", "chain_max_margin", "nothing", "hinge:x=1",
    "huber:delta=nan", "\x1b[31m", "precision_at_k:k=2", "multiclass_hinge", "epsilon_insensitive",
]  # fmt: skip
REGS = [
    "l2",
    "l1",
    "elastic:eps=0.5",
    "entropy",
    "unnormalized_entropy",
    "qnorm:q=1.5",
    "none",
    "l1:x=2",
    "box",
]
SOLVERS = [
    "auto", "bundle", "bmrm", "line_search_bmrm", "newton", "lbfgs", "dual", "smoothing",
    "coordinate_descent", "owlqn", "proximal_gradient", "accelerated_gradient", "dual_accelerated",
    "chain_ascent", "x",
]  # fmt: skip
NUMBERS = ["1", "0", "-1", "1e-3", "nan", "inf", "1e999", "x", "", "1e-300", "1e300", "0.5", "3"]
COLUMNS = ["y", "0", "-1", "99", "class", "qid", "\x1b", "", "a"]


class Case:
    """One command, with its files in a separate folder."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng, self.folder, self.seed = random.Random(seed), folder, seed
        # a third of the commands have invalid options; the others reach later stages
        self.odd_options, self.odd_files = self.rng.random() < 0.33, self.rng.random() < 0.75

    def data(self, suitable: bool = False) -> Path:
        """A file of random format, mostly mutated; with `suitable`, often data that suit the models."""
        rng = self.rng
        if suitable and rng.random() < 0.7:
            arrays = rng.choice(seeds.npz_arrays())
            path = self.folder / "suitable.npz"
            path.write_bytes(mutate.archive({f"{name}.npy": mutate.npy(a) for name, a in arrays.items()}))
            return path
        kind = rng.choice(
            ["svmlight", "queries", "csv", "plain", "tsv", "npz", "parquet", "conll", "rsk", "odd"]
        )
        kind = "svmlight" if kind == "odd" and not self.odd_files else kind
        if kind == "odd" and self.odd_files:
            return self.odd()
        if kind == "rsk":
            return self.store()
        name, blob = {
            "svmlight": lambda: ("d.svm", seeds.SVMLIGHT),
            "queries": lambda: ("d.svm", seeds.QUERIES),
            "csv": lambda: ("d.csv", seeds.CSV),
            "plain": lambda: ("d.csv", seeds.PLAIN),
            "tsv": lambda: ("d.tsv", seeds.TSV),
            "conll": lambda: ("d.conll", seeds.CONLL),
            "parquet": lambda: ("d.parquet", seeds.parquet()),
            "npz": self.npz,
        }[kind]()
        if kind != "npz" and self.odd_files:
            blob = mutate.mutated(rng, blob)
        blob, suffix = seeds.compressed(rng, blob, damage=self.odd_files)
        if self.odd_files and rng.random() < 0.05:
            name = rng.choice(
                ["d.csv", "d.npz", "d.parquet", "d.svm", "d.conll", "\x1b[31m.csv", "d", "d.rsk"]
            )
        path = self.folder / f"{rng.randrange(10**6)}{name}{suffix}"
        path.write_bytes(blob)
        return path

    def npz(self) -> tuple[str, bytes]:
        """A .npz file."""
        arrays = self.rng.choice(seeds.npz_arrays())
        if self.odd_files:
            return "d.npz", mutate.odd_npz(self.rng, arrays)
        return "d.npz", mutate.archive({f"{name}.npy": mutate.npy(a) for name, a in arrays.items()})

    def store(self) -> Path:
        """A folder of stored data."""
        path = self.folder / f"{self.rng.randrange(10**6)}.rsk"
        path.mkdir()
        files = self.rng.choice(seeds.stores())
        if self.odd_files:
            files = mutate.odd_store(self.rng, files)
        for name, blob in files.items():
            (path / name).write_bytes(blob)
        return path

    def odd(self) -> Path:
        """A path that is not a regular file: a folder, a loop of links, nothing."""
        path = self.folder / f"odd{self.rng.choice(['', '.csv', '.npz', '.rsk', '.parquet', '.conll'])}"
        kind = self.rng.randrange(5)
        if kind == 0:
            path.mkdir(exist_ok=True)
        elif kind == 1 and not path.exists() and not path.is_symlink():
            path.symlink_to(path)
        elif kind == 2 and not path.exists():
            path.write_bytes(b"")
        elif kind == 3:
            return path / "below" / ("x" * self.rng.choice([1, 300]))
        return path

    def model(self) -> Path:
        """A model file, mostly mutated."""
        rng = self.rng
        if rng.random() < 0.04:
            return self.data()
        arrays, meta = rng.choice(list(seeds.models().values()))
        path = self.folder / f"{rng.randrange(10**6)}.riskmin"
        odd = rng.random() < 0.7
        path.write_bytes(mutate.odd_model(rng, arrays, meta) if odd else mutate.tensors(arrays, meta))
        return path

    def problem(self) -> list[str]:
        """Options of `fit`, `path` and `cv`."""
        rng, words = self.rng, ["--max-seconds", "2", "--max-iter", str(self.rng.choice([1, 20, 200]))]
        if not self.odd_options:
            chains = any(self.folder.glob("*.conll*"))
            words += ["--loss", rng.choice(["chain_crf", "chain_max_margin"] if chains else VALID_LOSSES)]
            return words + (["--reg", rng.choice(REGS[:4])] if rng.random() < 0.3 else [])
        for share, option, values in (
            (0.8, "--loss", LOSSES), (0.3, "--reg", REGS), (0.2, "--solver", SOLVERS),
            (0.2, "--tol", NUMBERS), (0.05, "--atol", NUMBERS),
            (0.15, "--target", COLUMNS), (0.1, "--qid", COLUMNS),
            (0.05, "--order", ["iris,rose", "rose,iris", "0,1,2", "a", ",", "1,nan"]),
            (0.1, "--max-memory", ["1", "0.001", "nan", "100"]), (0.05, "--jobs", ["1", "2", "0", "-1", "x"]),
            (0.05, "--class-weight", ["balanced", "x"]),
            (0.1, "--impute", ["mean", "median", "x"]), (0.05, "--drop", COLUMNS),
            (0.05, "--columns", COLUMNS),
            (0.05, "--categorical", COLUMNS), (0.05, "--weight", COLUMNS),
            (0.05, "--min-frequency", ["1", "9", "x"]),
        ):  # fmt: skip
            if rng.random() < share:
                words += [option, rng.choice(values)]
        for flag in ("--positive", "--standardize", "--no-intercept"):
            if rng.random() < 0.1:
                words.append(flag)
        return words

    def columns(self) -> list[str]:
        """Options of commands that take a model."""
        words: list[str] = []
        if not self.odd_options:
            return words
        for share, option in ((0.15, "--target"), (0.1, "--qid")):
            if self.rng.random() < share:
                words += [option, self.rng.choice(COLUMNS)]
        if self.rng.random() < 0.1:
            words += ["--max-memory", self.rng.choice(["1", "0.001", "x"])]
        return words

    def args(self) -> list[str]:
        """The arguments of the command."""
        rng, out = self.rng, str(self.folder / "out")
        kind = rng.choice(
            ["fit", "fit", "predict", "evaluate", "certify", "convert", "path", "cv", "check", "show"]
        )
        if kind == "fit":
            words = ["fit", str(self.data()), *self.problem(), "--quiet"]
            words += (
                ["--lam", rng.choice(["1e-3", "1", "1e-9", *(["nan", "0"] * self.odd_options)])]
                if rng.random() < 0.6
                else []
            )
            words += [str(self.data())] if rng.random() < 0.05 else []
            return [*words, "-o", out, *(["--json"] if rng.random() < 0.2 else [])]
        if kind in ("path", "cv"):
            lams = ["--lams", rng.choice(["1,0.1", "1", "0.1,1e-3", *(["x", "0", "nan"] * self.odd_options)])]
            lams += ["-o", out] if kind == "cv" or rng.random() < 0.3 else []
            folds = (
                ["--folds", rng.choice(["2", "3", "1", "99"])] if kind == "cv" and rng.random() < 0.8 else []
            )
            return [kind, str(self.data()), *self.problem(), *lams, *folds, "--quiet"]
        if kind == "convert":
            more = [o for o in ("--no-labels", "--sparse", "--dense", "--force") if rng.random() < 0.25]
            more += ["--n-features", rng.choice(["3", "1", "10000000", "0"])] if rng.random() < 0.1 else []
            return ["convert", str(self.data()), f"{out}.rsk", *more, *self.columns()]
        if kind == "show":
            return ["show", str(self.model()), *(["--json"] if rng.random() < 0.5 else [])]
        if kind == "check":
            return ["convert", "--check", str(self.store())]
        words = [kind, str(self.model()), str(self.data(suitable=rng.random() < 0.5)), *self.columns()]
        if kind == "predict":
            words += [o for o in ("--scores", "--proba") if rng.random() < 0.15]
        elif kind == "certify":
            words += ["--max-seconds", "2", "--max-iter", "50", "--quiet"]
        return words


def run(args: list[str], log: Path, command: Callable[[list[str]], int] | None = None) -> tuple[int, str]:
    """Run a command in a forked child; returns the exit code (negative for a signal) and its stderr."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about forking with threads: the child needs none
        child = os.fork()
    if child == 0:
        try:
            out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(out, 2)
            sys.stdout, sys.stderr = (os.fdopen(fd, "w", errors="backslashreplace") for fd in (1, 2))
            from riskmin.cli.main import main

            code = (command or main)(args)
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:  # an exception that leaves `main` is a bug
            import traceback

            traceback.print_exc()
            sys.stderr.flush()
            code = 99
        os._exit(code)
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status), log.read_text(errors="replace") if log.exists() else ""
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -999, "no end"


def failure_kind(code: int, stderr: str) -> str | None:
    """The kind of failure of a command, or None."""
    if code == -999:
        return "no end"
    if code < 0:
        return f"signal {-code}"
    if code not in EXIT_CODES or "Traceback" in stderr:
        return "traceback"
    lines = stderr.strip().split("\n")
    if code == 2 and not lines[-1].startswith("riskmin:"):
        return "no sentence"
    if any(not (c.isprintable() or c == "\n") for c in stderr):
        return "control characters"
    return None


def case(seed: int, top: Path) -> tuple[list[str], int, str]:
    """Run the command of a seed."""
    folder = top / str(seed)
    folder.mkdir()
    args = Case(seed, folder).args()
    code, stderr = run(args, top / "log")
    shutil.rmtree(folder, ignore_errors=True)
    return args, code, stderr


def main() -> int:
    """Run many commands, and print failures and counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=20, help="number of kinds of failures to show")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import riskmin.cli.main  # noqa: F401 - imported once for all children

    seeds.models(), seeds.stores(), seeds.npz_arrays(), seeds.parquet()
    codes: Counter[Any] = Counter()
    wrong: Counter[str] = Counter()
    shown: set[str] = set()
    with tempfile.TemporaryDirectory() as top:
        for k in range(options.n):
            args, code, stderr = case(options.seed + k, Path(top))
            codes[code] += 1
            failure = failure_kind(code, stderr)
            if failure is None:
                continue
            wrong[failure] += 1
            last = stderr.strip().split("\n")
            kind = failure + " " + " | ".join(line.strip() for line in last if "File " in line)[-300:]
            if kind not in shown and len(shown) < options.most:
                shown.add(kind)
                print(f"--- {options.seed + k}: {failure}, exit {code}: riskmin {' '.join(map(repr, args))}")
                print("\n".join(last[-12:]), flush=True)
    print(f"{options.n:,} commands from seed {options.seed}: exit codes {dict(sorted(codes.items()))}")
    print(f"wrong: {dict(wrong) or 'none'}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())

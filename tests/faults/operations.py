"""Operations that write files, each with its initial files and readers of its outputs."""

import contextlib
import io
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from riskmin import LinearClassifier, load_model, save_model
from riskmin.cli import main
from riskmin.data import convert, load, save, save_svmlight
from riskmin.report import write_text


class Refused(Exception):
    """A command failed with exit code 2 or above 3; the message is its stderr."""


def command(*args):
    """Run the command in this process without output."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(arg) for arg in args])
    if code not in (0, 3):
        raise (KeyboardInterrupt if code > 128 else Refused)(err.getvalue())


# ---------------------------------------------------------------- initial files
def numbers(seed):
    rng = np.random.default_rng(seed)
    X = np.round(rng.standard_normal((30, 4)), 2)
    return X, np.where(X[:, 0] + 0.3 * rng.standard_normal(30) > 0, 1.0, -1.0)


@cache
def model(seed):
    return LinearClassifier("logistic", alpha=0.1).fit(*numbers(seed))


def inputs(folder):
    """Input files: svmlight with a late index 0, a table with string labels, a .npz, a model."""
    X, y = numbers(0)
    save_svmlight(folder / "in.svm", X, y)
    with (folder / "in.svm").open("a") as file:
        file.write("1 0:2.5 3:1\n")
    lines = [
        ",".join(map(str, a)) + f",{'no' if b < 0 else 'yes'},{k % 3}"
        for k, (a, b) in enumerate(zip(X, y, strict=True))
    ]
    (folder / "in.csv").write_text("a,b,c,d,y,qid\n" + "\n".join(lines) + "\n")
    np.savez(folder / "in.npz", X=X, y=y)
    save_model(model(0), folder / "in.riskmin")


# ---------------------------------------------------------------- readers
def bytes_of(path):
    return path.read_bytes() if path.exists() else None


def weights_of(path):
    """The weights of a model; incomplete files do not load."""
    return load_model(path).coef_.tobytes() if path.exists() else None


def page_of(path):
    """Whether a page exists; its content has times, which differ between runs."""
    if not path.exists():
        return None
    text = path.read_text(encoding="utf-8")
    whole = text.startswith("<!doctype") and text.endswith("</html>\n")
    return "page" if whole else text


def rows_of(path):
    """Stored data, with verified checksums."""
    if not path.exists() and not path.with_name(f".{path.name}.old").exists():
        return None
    data = load(path)
    X = data.X.toarray() if sp.issparse(data.X) else np.asarray(data.X)
    return X.tobytes(), np.asarray(data.y).tobytes()


@dataclass(frozen=True)
class Operation:
    """An operation that writes files.

    Parameters
    ----------
    act : callable
        The operation, a function of the folder.
    reads : dict
        Output files by name, with the function that reads each.
    old : callable
        Creates the outputs that are replaced, a function of the folder.
    """

    act: object
    reads: dict
    old: object = lambda folder: None

    @cached_property
    def template(self):
        """A folder in its initial state, removed at the end of the process."""
        folder = tempfile.TemporaryDirectory()
        inputs(Path(folder.name))
        self.old(Path(folder.name))
        return folder

    @contextlib.contextmanager
    def folder(self):
        """A new copy of the initial folder."""
        with tempfile.TemporaryDirectory() as path:
            shutil.copytree(self.template.name, path, dirs_exist_ok=True)
            yield Path(path)

    def contents(self, folder):
        return {name: read(folder / name) for name, read in self.reads.items()}

    def rehearse(self):
        """Run the operation without failures."""
        with self.folder() as folder:
            self.act(folder)

    @cached_property
    def states(self):
        """The contents before and after the operation, without failures, and all permitted names."""
        with self.folder() as folder:
            before, names = self.contents(folder), self.names(folder)
            self.act(folder)
            return before, self.contents(folder), names | self.names(folder)

    def names(self, folder):
        """Names of all files in the folder, to find leftover files."""
        return {str(path.relative_to(folder)) for path in folder.rglob("*")}

    def check(self, folder, *, done, tidy):
        """Check that each file is complete, old or new (new after success), and that the next run works.

        Parameters
        ----------
        done : bool
            Whether the operation ended without an error.
        tidy : bool
            Whether leftover files are an error.
        """
        before, after, permitted_names = self.states
        contents = self.contents(folder)
        for name, content in contents.items():
            found = f"{name} is neither old nor new: {str(content)[:99]!r}"
            assert content in (before[name], after[name]), found
        if done:
            assert contents == after
        if tidy:
            assert self.names(folder) <= permitted_names
        self.act(folder)
        assert self.contents(folder) == after


def other_rows(folder):
    save(folder / "out.rsk", [numbers(1)], shard_mb=1e-4)


def converting(source, **settings):
    return Operation(
        lambda folder: convert(folder / source, folder / "out.rsk", force=True, shard_mb=1e-4, **settings),
        {"out.rsk": rows_of},
        other_rows,
    )


def new(source, **settings):
    """An operation without old outputs; if its output exists, it is the expected one."""

    def act(folder):
        if not (folder / "out.rsk").exists():
            convert(folder / source, folder / "out.rsk", shard_mb=1e-4, **settings)

    return Operation(act, {"out.rsk": rows_of})


def old_outputs(folder):
    save_model(model(1), folder / "out.riskmin")
    for name in ("out.html", "out.txt", "out.svm"):
        (folder / name).write_text("old page")


def fitting(name, *args, **reads):
    def act(folder):
        files = {name: folder / name for name in ("in.npz", "out.riskmin", "out.html")}
        command(name, files["in.npz"], *(files.get(arg, arg) for arg in args), "--quiet", "--tol", "1e-6")

    return Operation(act, {f"out.{kind}": read for kind, read in reads.items()}, old_outputs)


OPERATIONS = {
    "model": Operation(
        lambda folder: save_model(model(0), folder / "out.riskmin"), {"out.riskmin": weights_of}, old_outputs
    ),
    "new model": Operation(
        lambda folder: save_model(model(0), folder / "out.riskmin"), {"out.riskmin": weights_of}
    ),
    "text": Operation(
        lambda folder: write_text(folder / "out.txt", "x" * 99_999), {"out.txt": bytes_of}, old_outputs
    ),
    "svmlight": Operation(
        lambda folder: save_svmlight(folder / "out.svm", *numbers(0)), {"out.svm": bytes_of}, old_outputs
    ),
    "convert svmlight": new("in.svm"),
    "convert csv": new("in.csv"),
    "convert npz": new("in.npz"),
    "convert --force svmlight": converting("in.svm"),
    "convert --force csv": converting("in.csv"),
    "convert --force npz": converting("in.npz"),
    "predict": Operation(
        lambda folder: command("predict", folder / "in.riskmin", folder / "in.npz", "-o", folder / "out.txt"),
        {"out.txt": bytes_of},
        old_outputs,
    ),
    "fit": fitting("fit", "-o", "out.riskmin", "--report", "out.html", riskmin=weights_of, html=page_of),
    "path": fitting("path", "-o", "out.html", "--lams", "1,0.1", html=page_of),
    "cv": fitting(
        "cv", "-o", "out.riskmin", "--report", "out.html", "--lams", "1,0.1", "--folds", "2",
        riskmin=weights_of, html=page_of,
    ),
}  # fmt: skip

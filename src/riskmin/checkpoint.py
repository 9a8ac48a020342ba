"""Runs saved to a file and taken up again: what a killed process had found is not lost."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from riskmin.arrays import to_numpy
from riskmin.executors.company import company_of
from riskmin.objective import Objective
from riskmin.persist import FileError, load_arrays, save_arrays
from riskmin.solvers.auto import loss_of
from riskmin.types import Array, Solver

REALS = {"seconds", "value", "lower", "gap"}
"""The entries of a trace that are no counts."""


@dataclass(frozen=True)
class Checkpoint:
    """Where and how often to save a run.

    Parameters
    ----------
    path : path
        An existing file is resumed from; the file is replaced atomically.
    every : float
        Most seconds between two writes; at first they are fewer.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from riskmin import L2, Checkpoint, Hinge, Objective, linear_risk, minimize
    >>> J = Objective(linear_risk(np.eye(2), np.array([1.0, -1.0]), Hinge()), L2(), lam=0.1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save = Checkpoint(f"{folder}/run", every=1.0)
    ...     first = minimize(J, tol=1e-6, max_iter=2, checkpoint=save)
    ...     second = minimize(J, tol=1e-6, checkpoint=save)  # goes on where the first one stopped
    >>> first.status, second.status, second.n_iter > 2
    ('max_iter', 'converged', True)
    """

    path: str | os.PathLike[str]
    every: float = 30.0

    def check(self) -> None:
        """Raise a FileError if nothing could be written there: better now than after hours."""
        folder = Path(self.path).resolve().parent
        if not (folder.is_dir() and os.access(folder, os.W_OK)):
            raise FileError(f"{self.path} cannot be written: {folder} is no folder that can be written to")

    def write(self, obj: Objective, solver: Solver, arrays: dict[str, Array], found: dict[str, Any]) -> None:
        """Save a run: its arrays by name ("w" is the best point), its numbers, and its trace."""
        trace = found.pop("trace")
        keys = sorted({k for row in trace for k in row})
        table = np.array([[row.get(k, math.nan) for k in keys] for row in trace])
        # a solver may know its value up to a slack only, so J is computed from scratch to know the data by
        meta = {"keys": keys, "exact": _from_scratch(obj, arrays["w"])}
        held = {k: to_numpy(v) for k, v in arrays.items()} | {"trace": table}
        known = _problem(obj, solver) | found | meta
        company_of(obj.risk).once(lambda: save_arrays(self.path, held, known))

    def read(self, obj: Objective, solver: Solver) -> tuple[dict[str, Array], dict[str, Any]]:
        """What `write` saved, after a check that it belongs to this problem, this solver and these data."""
        meta = _problem(obj, solver)
        arrays, found = company_of(obj.risk).once(lambda: load_arrays(self.path, "checkpoint"))
        for what in ("problem", "solver"):
            if found.get(what) != meta[what]:
                raise FileError(
                    f"{self.path} belongs to another {what} ({found.get(what)}, not {meta[what]}): "
                    "delete it or give another checkpoint path"
                )
        value = _from_scratch(obj, arrays["w"])
        if not math.isclose(value, found["exact"], rel_tol=1e-6):
            raise FileError(
                f"{self.path} was written for other data: its point has objective {found['exact']!r} there "
                f"and {value!r} here; delete it or give another checkpoint path"
            )
        found["trace"] = [_row(found["keys"], row) for row in arrays.pop("trace").tolist()]
        return arrays, found


def _row(keys: list[str], numbers: list[float]) -> dict[str, float]:
    """A row of the trace as it was: counts are integers, and what a row did not have is NaN in the table."""
    row = {k: v for k, v in zip(keys, numbers, strict=True) if v == v}
    return {k: v if k in REALS or not v.is_integer() else int(v) for k, v in row.items()}


def _problem(obj: Objective, solver: Solver) -> dict[str, str]:
    """What a checkpoint must agree with."""
    loss = loss_of(obj.risk)
    parts = [
        _said(obj.risk if loss is None else loss),
        _said(obj.reg),
        f"lam={obj.lam!r}",
        f"dim={obj.risk.dim}",
    ]
    return {"kind": "checkpoint", "problem": ", ".join(parts), "solver": _said(solver)}


def _said(thing: object) -> str:
    """The repr, or what stands for it where that is an address, which no other process has."""
    kind = type(thing)
    if kind.__repr__ is not object.__repr__:
        return repr(thing)
    return f"{kind.__module__}.{kind.__qualname__}({', '.join(f'{k}={v!r}' for k, v in vars(thing).items())})"


def _from_scratch(obj: Objective, w: Array) -> float:
    """J(w), by a call that does not count: it serves no solver."""
    return float(obj.at(w, *obj.risk(w))[0])

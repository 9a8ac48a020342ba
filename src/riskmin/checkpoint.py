"""Runs saved to a file and taken up again: what a killed process had found is not lost."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from riskmin.arrays import to_numpy
from riskmin.executors.company import company_of
from riskmin.objective import Objective
from riskmin.persist import FileError, checksum, load_arrays, save_arrays
from riskmin.solvers.auto import loss_of
from riskmin.solvers.states import checked
from riskmin.types import Array, Cut, NDArray, Solver

NEEDED = {"iteration", "seconds", "calls", "value", "lower", "gap"}
"""The entries that every row of a trace has."""
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

    def write(
        self, obj: Objective, solver: Solver, arrays: dict[str, Array], found: dict[str, Any], data: str
    ) -> None:
        """Save a run: arrays by name ("w" is the best point), numbers, trace, and the data's fingerprint."""
        trace = found.pop("trace")
        keys = sorted({k for row in trace for k in row})
        held = {k: np.ascontiguousarray(to_numpy(v)) for k, v in arrays.items()}
        held["trace"] = np.array([[row.get(k, math.nan) for k in keys] for row in trace])
        # a solver may know its value up to a slack only, so J is computed from scratch to know the data by
        meta = _problem(obj, solver) | found | {"keys": keys, "exact": _from_scratch(obj, arrays["w"])}
        meta |= {"data": data}
        meta |= {"sha256": checksum(held, meta)}
        company_of(obj.risk).once(lambda: save_arrays(self.path, held, meta))

    def read(self, obj: Objective, solver: Solver, data: Callable[[], str]) -> Saved:
        """What `write` saved, after a check that it belongs to this problem, this solver and these data."""
        wanted = _problem(obj, solver)
        arrays, meta = company_of(obj.risk).once(lambda: load_arrays(self.path, "checkpoint"))
        if meta.pop("sha256", None) != checksum(arrays, meta):
            raise FileError(
                f"{self.path} is broken: its checksum is wrong, or it is of another version of riskmin; "
                "delete it or give another checkpoint path"
            )
        for what in ("problem", "solver"):
            if meta.get(what) != wanted[what]:
                raise FileError(
                    f"{self.path} belongs to another {what} ({meta.get(what)}, not {wanted[what]}): "
                    "delete it or give another checkpoint path"
                )
        if meta.get("data") != data():
            raise FileError(
                f"{self.path} was written for other data: X, y or weights differ; "
                "delete it or give another checkpoint path"
            )
        with self.trusted():
            saved = _saved(arrays, meta, obj.risk.dim)
        value = _from_scratch(obj, saved.w)
        if not math.isclose(value, saved.value, rel_tol=1e-6):
            raise FileError(
                f"{self.path} was written for other data: its point has objective {saved.value!r} there "
                f"and {value!r} here; delete it or give another checkpoint path"
            )
        return saved._replace(value=value)

    @contextmanager
    def trusted(self) -> Iterator[None]:
        """A block in which a ValueError says that the file is broken."""
        try:
            yield
        except FileError:
            raise
        except ValueError as error:
            raise FileError(
                f"{self.path} is broken: {error}; delete it or give another checkpoint path"
            ) from None


class Saved(NamedTuple):
    """A run that was saved. Its bound is not in it: that is computed anew, from the cut."""

    w: NDArray
    value: float
    cut: Cut
    noise: float
    idle: int
    trace: list[dict[str, float]]
    state: dict[str, NDArray]


def _saved(arrays: dict[str, NDArray], meta: dict[str, Any], dim: int) -> Saved:
    """The parts of a run, if each is what it must be; else a ValueError."""
    keys = meta.get("keys")
    if not isinstance(keys, list) or not all(isinstance(k, str) for k in keys) or not {*keys} >= NEEDED:
        raise ValueError("the names of its trace are missing")
    numbers: list[Any] = [meta.get(name) for name in ("exact", "b", "noise", "idle")]
    if not all(type(v) in (int, float) and math.isfinite(v) for v in numbers):
        raise ValueError("its numbers are missing, or are none")
    table = arrays.get("trace", np.zeros(0))
    if table.dtype != np.float64 or table.ndim != 2 or table.shape[1] != len(keys) or not len(table):
        raise ValueError(f"its trace has shape {table.shape}, not (rows, {len(keys)})")
    checked(arrays, {"w": "d", "cut": "d"}, d=dim)
    if names := [k for k in arrays if k not in ("w", "cut", "trace") and not k.startswith("state.")]:
        raise ValueError(f"it holds an array {names[0]!r} that no run saves")
    trace = [_row(keys, row) for row in table.tolist()]
    if not {*trace[-1]} >= NEEDED or not all(math.isfinite(trace[-1][k]) for k in NEEDED):
        raise ValueError("the last row of its trace is not whole")
    value, b, noise, idle = numbers
    state = {k.removeprefix("state."): v for k, v in arrays.items() if k.startswith("state.")}
    return Saved(arrays["w"], value, Cut(arrays["cut"], b), abs(noise), int(idle), trace, state)


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

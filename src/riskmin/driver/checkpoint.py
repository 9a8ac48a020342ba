"""Checkpoints: the state of a run in a file, from which a later process resumes."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from riskmin.arrays.namespace import to_numpy
from riskmin.core import Array, Cut, Evaluation, NDArray, Solver
from riskmin.core.persist import FileError, checksum, load_arrays, save_arrays
from riskmin.executors.base import coordination_of
from riskmin.problem.objective import Objective
from riskmin.solvers.base import loss_of
from riskmin.solvers.state_checks import check_state

CHECKPOINT_FORMAT = 1
"""A checkpoint serves one run of one riskmin: only the present format is resumed."""
TRACE_KEYS = {"iteration", "seconds", "calls", "value", "lower", "gap"}
"""Entries that every row of a trace has."""
REAL_TRACE_KEYS = {"seconds", "value", "lower", "gap", "significant_figures"}
"""Entries of a trace that are floats, not counts."""


@dataclass(frozen=True)
class Checkpoint:
    """File and interval of the checkpoints of a run.

    Parameters
    ----------
    path : path
        If the file exists, the run resumes from it; the file is replaced atomically.
    every : float
        The largest interval between two writes in seconds; at first it is shorter.

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
        """Raise a FileError if the file could not be written, before the run starts."""
        folder = Path(self.path).resolve().parent
        if not (folder.is_dir() and os.access(folder, os.W_OK)):
            raise FileError(f"{self.path} cannot be written: {folder} is not a writable folder")

    def write(
        self, obj: Objective, solver: Solver, arrays: dict[str, Array], fields: dict[str, Any], data: str
    ) -> None:
        """Save a run.

        Parameters
        ----------
        obj : Objective
        solver : Solver
        arrays : dict of arrays
            The best point "w", and the state of the solver.
        fields : dict
            Scalars of the run, and its "trace".
        data : str
            Fingerprint of the data.
        """
        # the trace is stored as a table with NaN for missing entries; solvers add different keys
        trace = fields.pop("trace")
        keys = sorted({k for row in trace for k in row})
        saved_arrays = {k: np.ascontiguousarray(to_numpy(v)) for k, v in arrays.items()}
        # float64, since whole numbers above 2^63 have no integer dtype
        saved_arrays["trace"] = np.array([[row.get(k, math.nan) for k in keys] for row in trace], np.float64)
        # a solver's value may be inexact, so J is recomputed: `read` compares it to recognize the data
        meta = _problem(obj, solver) | fields | {"keys": keys, "format": CHECKPOINT_FORMAT}
        meta |= {"exact": _evaluate(obj, arrays["w"]).value}
        meta |= {"data": data}
        meta |= {"sha256": checksum(saved_arrays, meta)}
        coordination_of(obj.risk).on_root(lambda: save_arrays(self.path, saved_arrays, meta))

    def read(
        self,
        obj: Objective,
        solver: Solver,
        data: Callable[[], str],
        probe: Callable[[], list[float | None]],
        chosen: bool,
    ) -> SavedRun:
        """Read what `write` saved, after checks that it belongs to this problem, solver and data.

        Where the solver was `chosen` for the problem and the tolerance, a file of another one serves as well:
        the run goes on from its point, without its state.
        """
        expected = _problem(obj, solver)
        arrays, meta = coordination_of(obj.risk).on_root(lambda: load_arrays(self.path, "checkpoint"))
        if meta.get("format") != CHECKPOINT_FORMAT:
            raise FileError(
                f"{self.path} is of format {meta.get('format')!r}, and this riskmin resumes format "
                f"{CHECKPOINT_FORMAT}: delete it or give another checkpoint path"
            )
        if meta.pop("sha256", None) != checksum(arrays, meta):
            raise FileError(
                f"{self.path} is broken: its checksum is wrong; delete it or give another checkpoint path"
            )
        # checks in order of cost: descriptions, then one pass over X, then an evaluation of J
        for field in ("problem", "solver"):
            if _without_addresses(str(meta.get(field))) != expected[field]:
                if chosen and field == "solver":
                    arrays = {k: a for k, a in arrays.items() if not k.startswith("state.")}
                    continue
                raise FileError(
                    f"{self.path} belongs to another {field} ({meta.get(field)}, not {expected[field]}): "
                    "delete it or give another checkpoint path"
                )
        if meta.get("data") != data() or not _same_values(meta.get("probe"), probe()):
            raise FileError(
                f"{self.path} was written for other data: X, y or weights differ; "
                "delete it or give another checkpoint path"
            )
        with self.trusted():
            saved = _saved(arrays, meta, obj.risk.dim)
        # rounding differs between machines and partitions, but not in the sixth digit
        value, _, cut = _evaluate(obj, saved.w)
        if not math.isclose(value, saved.value, rel_tol=1e-6):
            raise FileError(
                f"{self.path} was written for other data: its point has objective {saved.value!r} in the "
                f"file and {value!r} for these data; delete it or give another checkpoint path"
            )
        return saved._replace(value=float(value), cut=cut)

    @contextmanager
    def trusted(self) -> Iterator[None]:
        """Block in which an error of values is reported as a broken file."""
        try:
            yield
        except FileError:
            raise
        except (ArithmeticError, ValueError, IndexError) as error:
            raise FileError(
                f"{self.path} is broken: {error}; delete it or give another checkpoint path"
            ) from None


class SavedRun(NamedTuple):
    """Content of a checkpoint: points and settings, of which `Checkpoint.read` evaluates the best point.

    A cut in a file would prove nothing, since it cannot be checked on the data: files hold none.
    """

    w: NDArray
    value: float
    noise: float
    trace: list[dict[str, float]]
    state: dict[str, NDArray]
    variables: str | None = None
    """The name of the variables of the state, see `PreconditionedProblem`."""
    cut: Cut | None = None
    """The cut at w."""


def _saved(arrays: dict[str, NDArray], meta: dict[str, Any], dim: int) -> SavedRun:
    """Return the content of a checkpoint; raise a ValueError if a part is missing or malformed."""
    keys = meta.get("keys")
    if not isinstance(keys, list) or not all(isinstance(k, str) for k in keys) or not {*keys} >= TRACE_KEYS:
        raise ValueError("the names of its trace are missing")
    # exact: J at w; noise: see `RunState`
    scalars: list[Any] = [meta.get(name) for name in ("exact", "noise")]
    if not all(type(v) in (int, float) and math.isfinite(v) for v in scalars):
        raise ValueError("its numbers are missing or not finite")
    variables = meta.get("variables")
    if not isinstance(variables, str | None):
        raise ValueError("the name of its variables is no text")
    table = arrays.get("trace", np.zeros(0))
    if table.dtype != np.float64 or table.ndim != 2 or table.shape[1] != len(keys) or not len(table):
        raise ValueError(f"its trace has shape {table.shape}, not (rows, {len(keys)})")
    check_state(arrays, {"w": "d"}, d=dim)
    if names := [k for k in arrays if k not in ("w", "trace") and not k.startswith("state.")]:
        raise ValueError(f"it holds an array {names[0]!r} that no run saves")
    trace = [_row(keys, row) for row in table.tolist()]
    if not {*trace[-1]} >= TRACE_KEYS or not all(math.isfinite(trace[-1][k]) for k in TRACE_KEYS):
        raise ValueError("the last row of its trace is incomplete")
    value, noise = scalars
    prefix = "state."
    state = {k[len(prefix) :]: v for k, v in arrays.items() if k.startswith(prefix)}
    return SavedRun(arrays["w"], value, abs(noise), trace, state, variables)


def _same_values(saved: Any, present: list[float | None]) -> bool:
    """Whether the values of a user-defined risk are those in a file, up to rounding; others save none."""
    if not saved or saved == present:
        return True
    numeric = isinstance(saved, list) and len(saved) == len(present)
    pairs = zip(saved, present, strict=True) if numeric else [(None, None)]
    return all(type(v) is float and u is not None and math.isclose(u, v, rel_tol=1e-6) for v, u in pairs)


def _row(keys: list[str], values: list[float]) -> dict[str, float]:
    """Rebuild a row of the trace: counts become integers, and entries that are NaN are left out."""
    row = {k: v for k, v in zip(keys, values, strict=True) if v == v}
    return {k: v if k in REAL_TRACE_KEYS or not v.is_integer() else int(v) for k, v in row.items()}


def _problem(obj: Objective, solver: Solver) -> dict[str, str]:
    """Return the entries of the metadata that must match when a run resumes."""
    loss = loss_of(obj.risk)
    parts = [
        _describe(obj.risk if loss is None else loss),
        _describe(obj.reg),
        f"lam={obj.lam!r}",
        f"dim={obj.risk.dim}",
    ]
    return {"kind": "checkpoint", "problem": ", ".join(parts), "solver": _describe(solver)}


def _describe(obj: object) -> str:
    """Return the repr without memory addresses; where it has nothing else, the class and the attributes."""
    kind = type(obj)
    text = repr(obj)
    if kind.__repr__ is object.__repr__:
        settings = ", ".join(f"{k}={v!r}" for k, v in vars(obj).items())
        text = f"{kind.__module__}.{kind.__qualname__}({settings})"
    return _without_addresses(text)


def _without_addresses(text: str) -> str:
    """Return a description without memory addresses, which differ between processes."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def _evaluate(obj: Objective, w: Array) -> Evaluation:
    """Evaluate J(w) and the cut there without counting the call, which serves no solver."""
    calls = obj.count.calls
    evaluation = obj(w)
    obj.count.calls = calls
    return evaluation

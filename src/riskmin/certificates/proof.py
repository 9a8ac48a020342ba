r"""Proof files: a fitted model, and multipliers of its rows as integers, which anyone can check.

.. math:: J(w, b) - \min J \;\le\; \text{gap}

The integers are :math:`t_i = 2^k s_i u_i`, rounded such that :math:`u_i` stays in the domain of the conjugate
and :math:`\sum_i t_i = 0` exactly if there is an intercept. What they prove is found by the verifier itself,
`riskmin.verify`, in exact arithmetic. docs/proofs.md specifies the file.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import scipy.sparse as sp

from riskmin import losses, verify
from riskmin.certificates.multipliers import RowCuts
from riskmin.core import NDArray
from riskmin.core.atomic_files import atomic_write
from riskmin.data.formats.svmlight_writer import save_svmlight
from riskmin.problem.objective import Objective
from riskmin.regularizers import Separable

Row = tuple[float, float, list[int], list[float]]
"""The label or the index of the class, the weight, and columns and values of the nonzero entries."""

BITS = (12, 20, 28, 36, 44, 52)
"""The bits of the largest integer of a proof: the fewest that prove nearly the same gap."""
ACCEPTED_LOSS = 0.01
"""The share of the gap by which fewer bits may lower the bound."""
MAX_SHRINKS = 4
"""The most attempts to round multipliers such that Omega* stays finite."""
ROWS_PER_BLOCK = 4096


@dataclass(frozen=True)
class Proof:
    r"""A proof that :math:`J(w, b) - \min J \le` `gap`, in exact arithmetic.

    Attributes
    ----------
    record : dict
        The content of the file.
    value : float
        J at the weights and intercepts of the model, rounded up.
    gap : float
        How far J can be above its minimum, rounded up.

    Examples
    --------
    >>> import numpy as np, pathlib, tempfile
    >>> from riskmin import LinearRegressor
    >>> X, y = np.array([[0.0], [1.0], [2.0]]), np.array([0.0, 1.0, 5.0])
    >>> proof = LinearRegressor("squared", alpha=1.0).fit(X, y).prove(X, y)
    >>> proof.gap < 1e-9
    True
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     proof.save(pathlib.Path(folder, "model.proof"))
    """

    record: dict[str, Any] = field(repr=False)
    value: float
    problem: ProofProblem = field(repr=False)

    @property
    def gap(self) -> float:
        gap: float = self.record["gap"]
        return gap

    def save(self, path: str | Path) -> None:
        """Write the file, compressed and atomically.

        Parameters
        ----------
        path : path
        """
        text = json.dumps(self.record, allow_nan=False, separators=(",", ":"))
        with atomic_write(path) as file:
            file.write(gzip.compress(text.encode("ascii"), mtime=0))

    def save_rows(self, path: str | Path) -> None:
        """Write the rows that the proof is about as svmlight text, for the verifier.

        Labels of classes are written as numbers, those of text as the indices of the classes.

        Parameters
        ----------
        path : path
        """
        self.problem.save_rows(path)


class TableNames(NamedTuple):
    """The names of columns in a table of the rows; svmlight text needs none."""

    features: list[str] | None = None
    label: str | None = None
    weight: str | None = None
    """That of the weights; otherwise the proof holds them."""


NO_NAMES = TableNames()


@dataclass(frozen=True)
class ProofProblem:
    """What a proof states: the objective of a model, its rows, and the point that it returns."""

    obj: Objective
    X: Any
    labels: NDArray
    """As the loss takes them: -1 and +1, indices of classes, or numbers."""
    weights: NDArray | None
    """The weights s_i, which need not sum to one; None for ones."""
    classes: list[Any] | None
    coef: NDArray
    """One row per score."""
    intercept: NDArray | None
    names: TableNames = NO_NAMES

    @property
    def s(self) -> NDArray:
        """The weights of the rows."""
        return np.ones(len(self.labels)) if self.weights is None else self.weights

    def blocks(self) -> Iterator[tuple[slice, Any]]:
        """Blocks of rows, sparse."""
        sparse: Any = sp.csr_array  # whose types know no Any
        X = sparse(self.X) if sp.issparse(self.X) else self.X
        for start in range(0, len(self.labels), ROWS_PER_BLOCK):
            block = slice(start, start + ROWS_PER_BLOCK)
            part = sparse(X[block]).astype(np.float64)
            part.sum_duplicates()
            part.eliminate_zeros()
            yield block, part

    def rows(self) -> Iterator[Row]:
        """The rows, as the verifier takes them."""
        labels = self.labels if self.classes is None or self.several else (self.labels + 1) / 2
        for block, part in self.blocks():
            heads = zip(labels[block].tolist(), self.s[block].tolist(), strict=True)
            ends = part.indptr.tolist()
            for (label, weight), start, stop in zip(heads, ends[:-1], ends[1:], strict=True):
                columns, values = part.indices[start:stop].tolist(), part.data[start:stop].tolist()
                yield float(label), float(weight), columns, values

    def save_rows(self, path: str | Path) -> None:
        """Write the rows as svmlight text: numbers, or the indices of the classes if these are texts."""
        labels: Any = self.labels
        X = sp.vstack([part for _, part in self.blocks()])
        if self.classes is not None:
            codes = (labels if self.several else (labels + 1) / 2).astype(np.intp)
            is_text = any(isinstance(name, str) for name in self.classes)
            labels = codes if is_text else np.array(self.classes, np.float64)[codes]
        save_svmlight(path, X, labels)

    @property
    def x_bits(self) -> int:
        """The binary places of the entries."""
        return max((places(part.data) for _, part in self.blocks()), default=0)

    @property
    def several(self) -> bool:
        """Whether a row has one score per class."""
        return bool(cast(Any, self.obj.risk).multi_output)


def loss_record(loss: Any) -> dict[str, Any]:
    """The name and the settings of a loss; raise ValueError if the verifier has no formula of it.

    Examples
    --------
    >>> loss_record(losses.Huber(delta=2.0)), loss_record(losses.PowerHinge(p=2.0))
    ({'name': 'huber', 'delta': 2.0}, {'name': 'squared_hinge', 'margin': 1.0})
    """
    of_type = (name for name, known in losses.LOSSES.items() if type(known) is type(loss))
    name = next((name for name in of_type if name in verify.LOSSES), None)
    if name is None or (name == "multiclass_hinge" and loss != losses.MulticlassHinge()):
        raise ValueError(f"{loss!r} has no formula in proof files: docs/proofs.md lists those that have one")
    if name == "multiclass_hinge":
        return {"name": name}
    settings = {each.name: getattr(loss, each.name) for each in fields(loss)}
    if name in ("power_hinge", "epsilon_insensitive"):  # their powers 1 and 2 have names of their own
        p, base = settings.pop("p", None) or settings.pop("power"), name.removeprefix("power_")
        if p in (1, 2):
            return {"name": base if p == 1 else f"squared_{base}", **settings}
        return {"name": f"power_{base}", **settings, "p": p}
    return {"name": name, **settings}


def penalty_record(obj: Objective, p: int, k: int) -> dict[str, Any]:
    """The factors of a separable penalty, one per column or one for all; raise ValueError for others."""
    reg: Any = obj.reg.penalized_part
    reg = reg.without_sizes if reg.is_rescaled else reg
    if isinstance(reg, Separable):
        terms = reg.terms(np.zeros(p * k))
        factors = [np.broadcast_to(v, p * k).reshape(p, k) for v in (terms.absolute, terms.square)]
        if terms.unbounded and all((f == f[:, :1]).all() for f in factors):
            lists = (f[:, 0].tolist() for f in factors)
            return {
                name: v[0] if len(set(v)) == 1 else v for name, v in zip(("l1", "l2"), lists, strict=True)
            }
    raise ValueError(f"proof files have formulas of L1, L2 and Elastic without bounds, not of {reg!r}")


def places(x: NDArray) -> int:
    """The number of binary places with which all numbers can be written.

    Examples
    --------
    >>> places(np.array([0.0, 0.5, 12.25])), places(np.array([4.0]))
    (2, 0)
    """
    x = np.asarray(x, np.float64)
    mantissas, exponents = np.frexp(x[x != 0])
    integers = np.ldexp(mantissas, 53).astype(np.int64)
    lowest = np.frexp((integers & -integers).astype(np.float64))[1] - 1
    return max(int(np.max(53 - exponents - lowest, initial=0)), 0)


def prove(problem: ProofProblem, u: NDArray, gap: float, path: Path | None = None) -> Proof:
    """The proof that multipliers give, of as few bits as prove nearly the same; `gap` is that of the model.

    It is checked with the rows of the file `path`, or with those in memory.
    """
    cuts = RowCuts(problem.obj)
    best = problem.obj.lower(cuts.feasible(u)[1])
    for bits in BITS:
        integers, k, rounded = _rounded(problem, cuts, u, bits)
        if best - problem.obj.lower(cuts.feasible(rounded)[1]) <= ACCEPTED_LOSS * gap:
            break
    record = _record(problem, integers, k)
    try:
        rows = problem.rows() if path is None else verify.read_rows(str(path), record["data"])
        J, bound = verify.check(record, rows)
    except Exception as error:
        if path is None:
            raise
        raise ValueError(
            f"{path} does not hold the rows of the model as the verifier reads them ({error}): write them by "
            "--matrix, or by Proof.save_rows"
        ) from error
    # room for the last digits of another verifier's exp and ln
    claim = (J - bound) * (1 + Fraction(1, 2**40)) + J / 2**80
    return Proof(record | {"gap": _float_above(claim)}, _float_above(J), problem)


def _rounded(problem: ProofProblem, cuts: RowCuts, u: NDArray, bits: int) -> tuple[NDArray, int, NDArray]:
    """Integers of at most so many bits, their unit 2^-k, and the multipliers that they are.

    Where Omega* is infinite beyond some slopes, rounding may go there: then smaller ones are rounded.
    """
    smaller = 1.0
    for _ in range(MAX_SHRINKS):
        integers, k = _integers(problem, cuts, smaller * u, bits)
        rounded = np.ldexp(integers.astype(np.float64), -k) / np.where(problem.s > 0, problem.s, 1.0)[:, None]
        rounded = rounded if u.ndim == 2 else rounded[:, 0]
        scale = cuts.largest_scale(rounded)
        if scale >= 1:
            break
        smaller *= 1 - 2 * (1 - scale)
    return integers, k, rounded


def _float_above(x: Fraction) -> float:
    """The nearest float64 that is not below a number."""
    return float(x) if Fraction(float(x)) >= x else math.nextafter(float(x), math.inf)


# ---------------------------------------------------------------- integers
def _integers(problem: ProofProblem, cuts: RowCuts, u: NDArray, bits: int) -> tuple[NDArray, int]:
    """Integers t of at most so many bits, with t near 2^k s u, in the domain and balanced; and k."""
    s = problem.s
    scaled = s[:, None] * u if u.ndim == 2 else s * u
    k = min(max(bits - int(np.frexp(np.max(abs(scaled), initial=1e-300))[1]), 0), 1000)
    largest = float(np.ldexp(np.max(abs(scaled), initial=0.0), k))
    if largest > 2.0**53:
        raise ValueError(f"a multiplier is {np.max(abs(scaled)):.2g}, too large for a proof file: rescale y")
    balanced = problem.intercept is not None
    if problem.several:
        return _integers_of_classes(problem, np.ldexp(scaled, k), np.ldexp(s, k), balanced), k
    ends = [_end(side, s, k) for side in (cuts.dual.lower, cuts.dual.upper)]  # type: ignore[union-attr]
    t = np.clip(np.rint(np.ldexp(scaled, k)), *ends).astype(np.int64)
    return (_balanced(t, *ends) if balanced else t)[:, None], k


def _end(side: Any, s: NDArray, k: int) -> NDArray:
    """The end of the interval of each integer; a unit inside where 2^k s u may have been rounded."""
    exact = np.isin(side, (0.0, 1.0, -1.0))
    ends: NDArray = np.trunc(np.ldexp(s * np.nan_to_num(side, posinf=0.0, neginf=0.0), k))
    ends = np.where(exact, ends, np.sign(ends) * np.maximum(abs(ends) - 1, 0))
    return np.where(s > 0, np.where(np.isinf(side), side, ends), 0.0)


def _balanced(t: NDArray, low: NDArray, high: NDArray) -> NDArray:
    """The integers with a sum of zero: those farthest from the ends of their intervals move first."""
    excess = sum(t.tolist())
    room = np.minimum(t - low, high - t)
    for i in np.argsort(-room, kind="stable"):
        if not excess:
            break
        step = min(excess, t[i] - low[i]) if excess > 0 else max(excess, t[i] - high[i])
        t[i] -= int(step)
        excess -= int(step)
    return t


def _integers_of_classes(problem: ProofProblem, scaled: NDArray, units: NDArray, balanced: bool) -> NDArray:
    """The integers of each row and class: nonnegative but that of the label, which is minus their sum.

    They are shares of 2^k s; the label has what is left, which the squared hinge does not limit.
    """
    limited = not isinstance(cast(Any, problem.obj.risk).loss, losses.MulticlassSquaredHinge)
    own = np.arange(scaled.shape[1]) == problem.labels[:, None]
    whole = np.where(units > 0, np.floor(units) if limited else 2.0**53, 0.0).astype(np.int64)
    shares = np.where(own, 0, np.floor(np.clip(scaled, 0.0, whole[:, None])).astype(np.int64))
    excess = np.maximum(shares.sum(axis=1) - whole, 0)
    shares[np.arange(len(shares)), np.argmax(shares, axis=1)] -= excess
    shares[own] = whole - shares.sum(axis=1)
    if balanced:
        _balance_classes(shares, own, whole)
    others = np.where(own, 0, shares)
    return np.where(own, -others.sum(axis=1, keepdims=True), others)


def _balance_classes(shares: NDArray, own: NDArray, whole: NDArray) -> None:
    """Move shares from class to class in rows that have both, until all totals are those of the labels."""
    changes = shares - np.where(own, whole[:, None], 0)
    totals = [sum(column) for column in changes.T.tolist()]
    while any(totals):
        i, j = int(np.argmax(totals)), int(np.argmin(totals))
        both = np.minimum(shares[:, i], shares[:, j])
        row = int(np.argmax(both if both.any() else shares[:, i]))
        step = min(totals[i], -totals[j], int(shares[row, i]))
        shares[row, i] -= step
        shares[row, j] += step
        totals[i] -= step
        totals[j] += step


# ---------------------------------------------------------------- the record
def _record(problem: ProofProblem, integers: NDArray, k: int) -> dict[str, Any]:
    """The content of the file; its gap is not known yet."""
    (k_scores, p), labels = problem.coef.shape, problem.labels.astype(np.intp)
    weights = problem.names.weight or (None if problem.weights is None else problem.weights.tolist())
    digest = hashlib.sha256()
    for label, weight, columns, values in problem.rows():
        n = len(columns)
        digest.update(struct.pack(f"<2dI{n}I{n}d", label, weight, n, *columns, *values))
    if problem.several:
        multipliers = [
            [v for j, v in enumerate(row) if j != y] for row, y in zip(integers.tolist(), labels, strict=True)
        ]
    else:
        multipliers = integers[:, 0].tolist()
    return {
        "format": verify.FORMAT,
        "data": {
            "columns": p,
            "sha256": digest.hexdigest(),
            "classes": problem.classes,
            "weight": weights,
            "label": problem.names.label,
            "features": problem.names.features,
        },
        "loss": loss_record(cast(Any, problem.obj.risk).loss),
        "alpha": float(problem.obj.lam),
        **penalty_record(problem.obj, p, k_scores),
        "coef": problem.coef.tolist(),
        "intercept": None if problem.intercept is None else problem.intercept.tolist(),
        "bits": [problem.x_bits, places(problem.coef), places(problem.s), k],
        "multipliers": multipliers,
        "gap": sys.float_info.max,
    }

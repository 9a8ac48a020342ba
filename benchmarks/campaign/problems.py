"""Random problems, one per seed, most of them badly scaled, degenerate or irregularly stored."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, partial
from typing import Any

import numpy as np
import scipy.sparse as sp

import riskmin as rm
from benchmarks.campaign import exact

SINGLE_OUTPUT = [
    rm.Hinge(), rm.Hinge(margin=0.0), rm.SquaredHinge(), rm.PowerHinge(), rm.SmoothedHinge(),
    rm.Exponential(), rm.Logistic(), rm.Novelty(), rm.Squared(), rm.Absolute(), rm.Quantile(0.25),
    rm.EpsilonInsensitive(), rm.EpsilonInsensitive(power=2.0), rm.Huber(), rm.Poisson(),
]  # fmt: skip
NON_DECOMPOSABLE = [
    rm.RocArea(), rm.Prbep(), rm.FBeta(), rm.PrecisionAtK(k=2), rm.RecallAtK(k=2), rm.Ordinal(), rm.Ndcg(k=2),
    rm.Mrr(), rm.ExpectedRankUtility(), rm.PairwiseHinge(),
]  # fmt: skip
MULTI_OUTPUT = [
    rm.Softmax(), rm.MulticlassHinge(), rm.MulticlassHinge(rescaled=True), rm.MulticlassSquaredHinge(),
    rm.MultivariateSquared(), rm.ChainCrf(), rm.ChainMaxMargin(), rm.ChainMaxMargin(rescaled=True),
]  # fmt: skip
KERNELS = {"linear": rm.DotProduct(), "square": rm.Polynomial(degree=2, gamma=1.0, coef0=1.0)}


@dataclass(frozen=True, eq=False)
class Problem:
    """A problem as passed to riskmin, and in exact numbers."""

    seed: int
    loss: Any
    reg: Any
    lam: float
    X: Any
    y: Any
    weights: Any = None
    intercept: bool = False
    groups: Any = None
    """Query ids, one per row, or lengths of sequences."""
    kernel: str = ""
    tags: tuple[str, ...] = ()

    def __str__(self) -> str:
        shape, reg = "x".join(map(str, self.X.shape)), "kernel norm" if self.kernel else repr(self.reg)
        return f"{self.loss!r}, {reg}, lam={self.lam:.3g}, {shape}, {', '.join(self.tags)}"

    @cached_property
    def objective(self) -> rm.Objective:
        """The objective of riskmin."""
        task = getattr(self.loss, "task", None)
        more = {"qid": self.groups} if task == "ranking" else {}
        more |= {"lengths": self.groups} if task == "tagging" else {}
        common = {"sample_weight": self.weights, "fit_intercept": self.intercept}
        if self.kernel:
            X = self.X.astype(float)
            return rm.Objective(
                *rm.kernel_risk(X, self.y, self.loss, KERNELS[self.kernel], **common), lam=self.lam
            )
        return rm.Objective(rm.linear_risk(self.X, self.y, self.loss, **common, **more), self.reg, self.lam)

    # ------------------------------------------------------------ exact numbers
    @cached_property
    def q(self) -> type:
        """Type of the exact numbers."""
        return Fraction if self.kernel or exact.rational(self.loss, self.reg) else Decimal

    def _to_exact(self, values: Any) -> Any:
        if np.ndim(values) > 1:
            return [self._to_exact(row) for row in values]
        return [exact.number(v, self.q) for v in values]

    @cached_property
    def rows(self) -> Any:
        """X, or the kernel matrix, whose entries are integers."""
        X = self.X.toarray() if sp.issparse(self.X) else np.asarray(self.X)
        if self.kernel:
            X = X.astype(float)
            X = X @ X.T if self.kernel == "linear" else (1 + X @ X.T) ** 2
        return self._to_exact(X.astype(float))

    @cached_property
    def labels(self) -> Any:
        return self._to_exact(np.asarray(self.y, float))

    @cached_property
    def shares(self) -> Any:
        """Sample weights, which sum to one."""
        n = len(self.groups) if getattr(self.loss, "task", None) == "tagging" else self.X.shape[0]
        c = self._to_exact(np.ones(n) if self.weights is None else self.weights)
        return [v / sum(c) for v in c]

    def value(self, w: Any, b: Any = 0.0, nudge: Any = None) -> Any:
        """J at w and intercepts b; `nudge` moves each score by a share of the magnitude of its terms."""
        with exact.precise():
            w = self._to_exact(np.asarray(w, float))
            if self.kernel:
                half = sum(x * z for x, z in zip(w, self.scores(w, 0 * w[0]), strict=True)) / 2
                return self._lam * half + self._risk(w, b, nudge)
            w = exact.into_domain(self.reg, w)
            return self._lam * exact.omega(self.reg, w) + self._risk(w, b, nudge)

    @property
    def _lam(self) -> Any:
        return exact.number(self.lam, self.q)

    def scores(self, w: list[Any], b: Any, nudge: Any = None) -> list[Any]:
        """Scores of problems with one score per row."""
        scores = [sum(x * v for x, v in zip(row, w, strict=True) if x) + b for row in self.rows]
        if nudge is None:
            return scores
        size = [sum(abs(x * v) for x, v in zip(row, w, strict=True)) + abs(b) for row in self.rows]
        return [
            z + exact.number(nudge(i), self.q) * s for i, (z, s) in enumerate(zip(scores, size, strict=True))
        ]

    def _risk(self, w: list[Any], b: Any, nudge: Any) -> Any:
        k = self.columns
        if k == 1 and not np.ndim(b):
            z = self.scores(w, exact.number(b, self.q), None if nudge is None else partial(nudge, j=0))
            return exact.risk(self.loss, z, self.labels, self.shares, self.groups)
        b = self._to_exact(b) if np.ndim(b) else [self.q(0)] * k
        p = len(self.rows[0])
        columns = []
        for j in range(k):
            moved = None if nudge is None else partial(nudge, j=j)
            columns.append(self.scores(w[j : p * k : k], b[j], moved))
        Z = [list(row) for row in zip(*columns, strict=True)]
        if getattr(self.loss, "task", None) != "tagging":
            return exact.risk(self.loss, Z, self.labels, self.shares, None)
        edges, value, start = [w[i : i + k] for i in range(p * k, len(w), k)], self.q(0), 0
        for share, length in zip(self.shares, self.groups, strict=True):
            right = [int(v) for v in self.labels[start : start + length]]
            value += share * exact.chain(self.loss, Z[start : start + length], edges, right)
            start += length
        return value

    @cached_property
    def columns(self) -> int:
        """Number of scores per row."""
        if not self.loss.multi_output:
            return 1
        y = np.asarray(self.y)
        return int(y.shape[1]) if y.ndim == 2 else int(y.max()) + 1


# ---------------------------------------------------------------- drawing
def draw(seed: int) -> Problem:
    """The problem of a seed.

    Examples
    --------
    >>> problem = draw(3)
    >>> problem.objective.risk.dim > 0
    True
    """
    rng = np.random.default_rng([seed, 16])
    kind = rng.choice(["one", "list", "many", "kernel", "tiny"], p=[0.5, 0.17, 0.15, 0.08, 0.1])
    if kind == "kernel":
        return _kernel_problem(rng, seed)
    losses = {"list": NON_DECOMPOSABLE, "many": MULTI_OUTPUT}.get(str(kind), SINGLE_OUTPUT)
    loss = losses[rng.integers(len(losses))]
    max_rows = 3 if kind == "tiny" else 8 if kind == "list" else 24
    n, p = int(rng.integers(1, max_rows + 1)), int(rng.integers(1, 4 if kind == "tiny" else 7))
    if loss in NON_DECOMPOSABLE:
        n = max(n, 4)
    if kind == "many":
        n, p = max(min(n, 10), 2), min(p, 4)
    X, tags = _table(rng, n, p)
    y, groups = _labels(rng, loss, X, tags)
    weights = None
    if not (kind == "list" and type(loss).__name__ not in ("RocArea", "Ordinal")) and rng.random() < 0.3:
        n_weights = len(groups) if getattr(loss, "task", None) == "tagging" else n
        weights = rng.choice([0.0, 1.0, 2.5, 1e-3, 1e4], size=n_weights)
        weights[rng.integers(n_weights)] = 1.0
        tags.append("weights")
    intercept = getattr(loss, "task", None) != "tagging" and rng.random() < 0.4
    lam = float(10 ** rng.uniform(-12, 6) if rng.random() < 0.5 else 10 ** rng.uniform(-6, 0))
    k = _outputs(loss, y)
    reg = rm.L2() if kind == "tiny" else _regularizer(rng, k * p if groups is None else None)
    stored = _stored(rng, X, tags)
    tags += ["intercept"] * bool(intercept)
    return Problem(seed, loss, reg, lam, stored, y, weights, bool(intercept), groups, tags=tuple(tags))


def _outputs(loss: Any, y: Any) -> int:
    return 1 if not loss.multi_output else (y.shape[1] if np.ndim(y) == 2 else int(np.max(y)) + 1)


def _table(rng: Any, n: int, p: int) -> tuple[Any, list[str]]:
    """X with one or more kinds of numerical difficulty."""
    X, tags = rng.standard_normal((n, p)), []
    if rng.random() < 0.2:
        X = np.round(X * 2)
        tags.append("whole numbers")
    trouble = {
        "scale": lambda: X * 10.0 ** rng.uniform(-8, 8),
        "scales": lambda: X * 10.0 ** rng.uniform(-8, 8, size=p),
        "offset": lambda: X + 10.0 ** rng.uniform(0, 8),
        "offsets": lambda: X + rng.choice([-1, 1], size=p) * 10.0 ** rng.uniform(-2, 7, size=p),
        "columns twice": lambda: X[:, rng.integers(p, size=p)],
        "rows twice": lambda: X[rng.integers(n, size=n)],
        "a constant": lambda: np.where(np.arange(p) == rng.integers(p), 10.0 ** rng.uniform(-4, 4), X),
        "zeros": lambda: X * (rng.random((n, p)) < 0.4),
        "an outlier": lambda: np.where(rng.random((n, p)) < 0.05, 1e7, X),
    }
    for name in rng.permutation(list(trouble))[: rng.choice([0, 1, 2, 3], p=[0.25, 0.4, 0.25, 0.1])]:
        X = trouble[name]()
        tags.append(str(name))
    return X, tags


def _labels(rng: Any, loss: Any, X: Any, tags: list[str]) -> tuple[Any, Any]:
    """Labels that suit the loss, and query ids or lengths."""
    n, task, name = len(X), getattr(loss, "task", ""), type(loss).__name__
    size = np.abs(X).max() or 1.0
    z = X @ rng.standard_normal(X.shape[1]) / size + rng.choice([0.0, 0.1, 1.0]) * rng.standard_normal(n)
    if name == "MultivariateSquared":
        return np.column_stack([z, rng.standard_normal(n)]) * 10.0 ** rng.uniform(-3, 6), None
    if task == "tagging":
        ends = np.unique(np.append(rng.integers(1, n + 1, size=3), [*range(3, n, 3), n]))
        return np.append(rng.integers(2, size=n - 1), 1), np.diff(np.append(0, ends))
    if loss.multi_output:
        y = rng.integers(3, size=n).astype(float)
        y[rng.integers(n)] = 2.0
        return y, None
    if task == "ranking":
        ids = np.arange(n) // (n // 2) if rng.random() < 0.5 else np.arange(n) % 2
        y = rng.integers(3, size=n).astype(float)
        first = np.flatnonzero(ids == ids[0])
        y[first[0]], y[first[-1]] = 0.0, 2.0
        return y, ids
    if task == "ordinal":
        y = rng.integers(4, size=n).astype(float)
        y[:2] = [0.0, 1.0]
        return y, None
    if name == "Poisson":
        return rng.poisson(np.exp(np.clip(z, -3, 4))).astype(float), None
    if task == "regression":
        exactly = rng.random() < 0.25
        tags.extend(["a perfect fit"] * exactly)
        return (X[:, 0] if exactly else z) * 10.0 ** rng.uniform(-8, 8), None
    y = np.where(z > np.median(z), 1.0, -1.0)
    if loss in NON_DECOMPOSABLE:
        y[:2] = [1.0, -1.0]
    elif rng.random() < 0.08:
        y[:] = rng.choice([-1.0, 1.0])
        tags.append("one class")
    return y, None


def _regularizer(rng: Any, p: int | None) -> Any:
    """A random regularizer; without per-feature settings if some entries of w belong to no feature."""
    names = ["l2", "l1", "elastic", "entropy", "raw entropy", "qnorm", "quadratic", "box", "weights"]
    name = rng.choice(names, p=[0.4, 0.14, 0.08, 0.06, 0.06, 0.06, 0.06, 0.08, 0.06])
    if p is None and name in ("quadratic", "weights"):
        name = "l2"
    A = rng.standard_normal((p or 1, p or 1))
    return {
        "l2": rm.L2,
        "l1": rm.L1,
        "elastic": rm.Elastic,
        "entropy": lambda: rm.Entropy(balanced=True),
        "raw entropy": lambda: rm.Entropy(normalized=False, balanced=bool(rng.integers(2))),
        "qnorm": lambda: rm.QNorm(q=float(rng.choice([1.2, 1.5, 3.0])), power=float(rng.choice([1.5, 2.0]))),
        "quadratic": lambda: rm.Quadratic(np.round(A @ A.T + np.eye(len(A)), 3)),
        "box": lambda: rm.Box([rm.L2(), rm.L1(), rm.Elastic()][rng.integers(3)], lower=0.0),
        "weights": lambda: rm.L2(10.0 ** rng.uniform(-3, 3, size=p)),
    }[str(name)]()


def _stored(rng: Any, X: Any, tags: list[str]) -> Any:
    """X in one of the supported storage formats."""
    form = str(rng.choice(["dense", "Fortran", "float32", "csr", "csc", "messy csr"]))
    tags.append(form)
    if form == "messy csr":
        return _messy(rng, X)
    return {
        "dense": lambda: X,
        "Fortran": lambda: np.asfortranarray(X),
        "float32": lambda: X.astype(np.float32),
        "csr": lambda: sp.csr_array(X),
        "csc": lambda: sp.csc_array(X),
    }[form]()


def _messy(rng: Any, X: Any) -> Any:
    """A CSR matrix with unsorted columns, duplicate entries that sum to X, and stored zeros."""
    data, columns, ends = [], [], [0]
    for row in X:
        entries = [(j, v) for j, v in enumerate(row) if v or rng.random() < 0.3]
        entries += [(j, v / 2) for j, v in entries if rng.random() < 0.2]
        stored = [j for j, _ in entries]
        entries = [
            (j, v / 2 if stored.count(j) == 2 and i < len(row) else v) for i, (j, v) in enumerate(entries)
        ]
        for i in rng.permutation(len(entries)):
            columns.append(entries[i][0])
            data.append(entries[i][1])
        ends.append(len(data))
    return sp.csr_array((np.array(data, float), np.array(columns, np.int32), np.array(ends)), shape=X.shape)


def _kernel_problem(rng: Any, seed: int) -> Problem:
    """A kernel problem with an integer kernel matrix, which is exact in float64."""
    loss = (SINGLE_OUTPUT[:5] + SINGLE_OUTPUT[7:14])[rng.integers(12)]
    if isinstance(loss, rm.PowerHinge):
        loss = rm.Hinge()
    n, kernel = int(rng.integers(2, 16)), str(rng.choice(list(KERNELS)))
    X = np.round(rng.standard_normal((n, int(rng.integers(1, 4)))) * rng.choice([1, 3, 30]))
    y, _ = _labels(rng, loss, X, tags := [kernel])
    intercept = bool(rng.random() < 0.3)
    problem = Problem(seed, loss, None, float(10 ** rng.uniform(-6, 2)), X, y, None, intercept, kernel=kernel)
    return replace(problem, tags=(*tags, *["intercept"] * intercept))

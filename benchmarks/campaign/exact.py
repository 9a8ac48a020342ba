r"""J in exact arithmetic: every loss and regularizer by its definition, without code of riskmin.

Numbers are `fractions.Fraction` if loss and regularizer need the four operations only, and
`decimal.Decimal` with 80 digits if they need exponentials, logarithms or roots.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np

from riskmin import regularizers as regs

DIGITS = 80
"""Digits of decimals: far more than cancellation in float64 can lose."""
TRANSCENDENTAL = {
    "Exponential", "Logistic", "Poisson", "PowerHinge", "Softmax", "ChainCrf", "Ndcg", "ExpectedRankUtility"
}  # fmt: skip
"""Losses that need more than the four operations."""


def rational(loss: Any, reg: Any) -> bool:
    """Whether J is rational at rational points."""
    plain = (regs.L2, regs.L1, regs.Elastic, regs.Box, regs.Quadratic)
    return type(loss).__name__ not in TRANSCENDENTAL and isinstance(reg, plain)


def number(x: Any, exact: type) -> Any:
    """Convert a float64 exactly to the given type."""
    return exact(float(x)) if exact is Decimal else Fraction(float(x))


# ---------------------------------------------------------------- losses of one row
def _pos(t: Any) -> Any:
    return t if t > 0 else 0 * t


def _power(t: Any, p: float) -> Any:
    if p == 1:
        return t
    return t * t / 2 if p == 2 else (t ** Decimal(p) / Decimal(p) if t > 0 else 0 * t)


def _smoothed_hinge(t: Any, mu: Any) -> Any:
    return _pos(t) ** 2 / (2 * mu) if t < mu else t - mu / 2


def _huber(r: Any, delta: Any) -> Any:
    return r * r / 2 if abs(r) <= delta else delta * abs(r) - delta * delta / 2


def _logistic(t: Any) -> Any:
    """log(1 + e^t)."""
    return t + (1 + (-t).exp()).ln() if t > 0 else (1 + t.exp()).ln()


def single_output_row(loss: Any, z: Any, y: Any) -> Any:
    """The loss of one row with a single score."""
    q = type(z)

    def n(x: float) -> Any:
        return number(x, q)

    return {
        "Hinge": lambda: _pos(n(loss.margin) - y * z),
        "SquaredHinge": lambda: _pos(n(loss.margin) - y * z) ** 2 / 2,
        "PowerHinge": lambda: _power(_pos(n(loss.margin) - y * z), loss.p),
        "SmoothedHinge": lambda: _smoothed_hinge(1 - y * z, n(loss.mu)),
        "Exponential": lambda: (-y * z).exp(),
        "Logistic": lambda: _logistic(-y * z),
        "Novelty": lambda: _pos(1 - z),
        "Squared": lambda: (z - y) ** 2 / 2,
        "Absolute": lambda: abs(z - y),
        "Quantile": lambda: max(n(loss.level) * (y - z), (n(loss.level) - 1) * (y - z)),
        "EpsilonInsensitive": lambda: _power(_pos(abs(z - y) - n(loss.epsilon)), loss.power),
        "Huber": lambda: _huber(z - y, n(loss.delta)),
        "Poisson": lambda: z.exp() - y * z + (y * y.ln() - y if y > 0 else 0 * y),
    }[type(loss).__name__]()


# ---------------------------------------------------------------- non-decomposable losses
def _pairs(z: Sequence[Any], y: Sequence[Any], c: Sequence[Any]) -> Any:
    pairs = [(c[i] * c[j], _pos(1 - z[i] + z[j])) for i, j in _ordered(y) if c[i] * c[j] > 0]
    return sum(p * v for p, v in pairs) / sum(p for p, _ in pairs)


def _ordered(y: Sequence[Any]) -> list[tuple[int, int]]:
    return [(i, j) for i, j in itertools.permutations(range(len(y)), 2) if y[i] > y[j]]


def _tables(loss: Any, above: int, below: int, q: type) -> list[tuple[int, int, Any]]:
    """False negatives, false positives and the measure of each contingency table of the loss."""
    name, tables = type(loss).__name__, []
    for misses, alarms in itertools.product(range(above + 1), range(below + 1)):
        hits = above - misses
        if name == "FBeta":
            square = number(loss.beta, q) ** 2
            tables.append((misses, alarms, 1 - (1 + square) * hits / (square * above + hits + alarms)))
        elif name == "Prbep" and misses == alarms:
            tables.append((misses, alarms, q(misses) / above))
        elif name.endswith("AtK") and hits + alarms == loss.k:
            tables.append((misses, alarms, 1 - q(hits) / (above if name == "RecallAtK" else loss.k)))
    return tables + ([(0, 0, q(0))] if name.endswith("AtK") else [])


def _labellings(loss: Any, z: Sequence[Any], y: Sequence[Any]) -> Any:
    above = sorted(s for s, label in zip(z, y, strict=True) if label > 0)
    below = sorted((s for s, label in zip(z, y, strict=True) if label <= 0), reverse=True)
    tables = _tables(loss, len(above), len(below), type(z[0]))
    zero = 0 * z[0]
    return max(d + 2 * (sum(below[:j], zero) - sum(above[:i], zero)) / len(z) for i, j, d in tables)


def _utility(loss: Any, grades: Sequence[Any], q: type) -> Any:
    """The utility of a ranking, given its grades from top to bottom."""
    if type(loss).__name__ == "Mrr":
        return 1 / q(1 + next(i for i, g in enumerate(grades) if g > 0))
    two = q(2)
    if type(loss).__name__ == "Ndcg":
        return sum((two**g - 1) * two.ln() / q(i + 2).ln() for i, g in enumerate(grades[: loss.k]))
    half = number(loss.half_life, q) - 1
    return sum(g * two ** (-q(i) / half) for i, g in enumerate(grades))


def _query(loss: Any, z: Sequence[Any], y: Sequence[Any]) -> Any:
    """The loss of a query, by enumeration of all rankings."""
    grades = [type(g)(g > 0) for g in y] if type(loss).__name__ == "Mrr" else y
    pairs, q = _ordered(grades), type(z[0])
    if type(loss).__name__ == "PairwiseHinge":
        return sum(_pos(1 - z[i] + z[j]) for i, j in pairs) / len(pairs)
    best, losses = _utility(loss, sorted(grades, reverse=True), q), []
    for ranking in itertools.permutations(range(len(z))):
        place = {row: k for k, row in enumerate(ranking)}
        lead = sum((z[j] - z[i] for i, j in pairs if place[i] > place[j]), 0 * z[0]) / len(pairs)
        losses.append(1 - _utility(loss, [grades[i] for i in ranking], q) / best + lead)
    return max(losses)


def _queries(loss: Any, z: Sequence[Any], y: Sequence[Any], c: Sequence[Any], ids: Sequence[int]) -> Any:
    total = value = 0 * z[0]
    for query in dict.fromkeys(ids):
        rows = [i for i, k in enumerate(ids) if k == query]
        grades = [y[i] for i in rows]
        relevant = [g > 0 for g in grades] if type(loss).__name__ == "Mrr" else grades
        weight = sum(c[i] for i in rows) / len(rows)
        if len(set(relevant)) > 1 and weight > 0:
            value += weight * _query(loss, [z[i] for i in rows], grades)
            total += weight
    return value / total


def _multi_output_row(loss: Any, z: Sequence[Any], y: Any) -> Any:
    """The loss of one row with several scores."""
    q, k = type(z[0]), len(z)
    name = type(loss).__name__
    if name == "MultivariateSquared":
        M = np.eye(k) if loss.M is None else loss.M
        r = [s - t for s, t in zip(z, y, strict=True)]
        return sum(r[i] * number(M[i][j], q) * r[j] for i in range(k) for j in range(k)) / 2
    true = int(y)
    differences = [s - z[true] for s in z]
    if name == "Softmax":
        largest = max(differences)
        return largest + sum((a - largest).exp() for a in differences).ln()
    if name == "MulticlassSquaredHinge":
        return sum(_pos(1 + a) ** 2 for j, a in enumerate(differences) if j != true) / 2
    cost = [q(j != true) if loss.cost is None else number(loss.cost[true][j], q) for j in range(k)]
    both = zip(cost, differences, strict=True)
    return max(d * (1 + a) if loss.rescaled else d + a for d, a in both)


def chain(loss: Any, tokens: Any, edges: Any, right: Sequence[int]) -> Any:
    """The loss of a sequence, by enumeration; `edges` are the transition and end weights."""
    k, length = len(tokens[0]), len(tokens)
    T, ends = edges[:k], edges[k:]

    def score(path: Sequence[int]) -> Any:
        between = sum(T[a][b] for a, b in itertools.pairwise(path))
        return ends[0][path[0]] + ends[1][path[-1]] + sum(tokens[t][a] for t, a in enumerate(path)) + between

    paths, true_score = list(itertools.product(range(k), repeat=length)), score(right)
    differences = [score(path) - true_score for path in paths]
    if type(loss).__name__ == "ChainCrf":
        largest = max(differences)
        return largest + sum((a - largest).exp() for a in differences).ln()
    errors = [sum(a != b for a, b in zip(path, right, strict=True)) for path in paths]
    both = zip(errors, differences, strict=True)
    return max(d * (1 + a) if loss.rescaled else d + a for d, a in both)


# ---------------------------------------------------------------- regularizers
def _within(reg: Any, w: list[Any]) -> list[Any]:
    """The nearest point of the box: rounding may move w slightly outside."""
    lower, upper = (np.broadcast_to(side, len(w)) for side in (reg.lower, reg.upper))
    low = [x if lo == -np.inf else max(x, number(lo, type(x))) for x, lo in zip(w, lower, strict=True)]
    return [x if hi == np.inf else min(x, number(hi, type(x))) for x, hi in zip(low, upper, strict=True)]


def into_domain(reg: Any, w: list[Any]) -> list[Any]:
    """A point of the domain if rounding has moved w outside, else w itself."""
    if isinstance(reg, regs.Box):
        return _within(reg, w)
    if isinstance(reg, regs.Entropy):
        prior = [number(m, type(w[0])) for m in np.broadcast_to(reg.prior, len(w))]
        w = w if reg.balanced else [_pos(x) for x in w]
        if reg.normalized:
            total, size = sum(prior) * (2 if reg.balanced else 1), sum(abs(x) for x in w)
            if size > total or not reg.balanced:
                return [x * total / size for x in w]
    return w


def omega(reg: Any, w: list[Any]) -> Any:
    """The regularizer at a point of its domain."""
    q = type(w[0])
    if isinstance(reg, regs.Box):
        return omega(reg.reg, w)
    if isinstance(reg, regs.Entropy):
        return _entropy(reg, w)
    if isinstance(reg, regs.Quadratic):
        K = reg.K if isinstance(reg.K, np.ndarray) else reg.K.toarray()
        return sum(w[i] * number(K[i, j], q) * w[j] for i, j in np.argwhere(K)) / 2
    if isinstance(reg, regs.QNorm):
        size = sum(abs(x) ** Decimal(reg.q) for x in w if x)
        return size ** (Decimal(reg.power) / Decimal(reg.q)) / Decimal(reg.power) if size else size
    m = [number(v, q) for v in np.broadcast_to(reg.weights, len(w))]
    eps = number(reg.eps, q) if isinstance(reg, regs.Elastic) else q(isinstance(reg, regs.L1))
    half = q(not isinstance(reg, regs.L1)) / 2
    return sum(v * (eps * abs(x) + half * x * x) for v, x in zip(m, w, strict=True))


def _xlogx(w: Any, mu: Any) -> Any:
    return w * (w / mu).ln() if w > 0 else 0 * w


def _entropy(reg: Any, w: list[Any]) -> Any:
    mu = [number(m, Decimal) for m in np.broadcast_to(reg.prior, len(w))]
    if not reg.balanced:
        return sum(_xlogx(x, m) - x + m for x, m in zip(w, mu, strict=True))
    tau = _factor(w, mu) if reg.normalized else Decimal(1)  # the square of tau in riskmin
    value = Decimal(0)
    for x, m in zip(w, mu, strict=True):
        large = (abs(x) + (x * x + 4 * tau * m * m).sqrt()) / 2
        small = tau * m * m / large if large else large
        value += _xlogx(large, m) + _xlogx(small, m) - large - small + 2 * m
    return value


def _factor(w: list[Any], mu: list[Any]) -> Any:
    """The t for which the sum of sqrt(w^2 + 4 mu^2 t) is 2 sum mu, by bisection."""
    total, lo, hi = 2 * sum(mu), Decimal(0), Decimal(1)
    if sum(abs(x) for x in w) >= total:
        return lo
    for _ in range(200):
        middle = (lo * hi).sqrt() if lo and hi > 2 * lo else (lo + hi) / 2
        if not lo:
            middle = hi / 1024
        if sum((x * x + 4 * middle * m * m).sqrt() for x, m in zip(w, mu, strict=True)) > total:
            hi = middle
        else:
            lo = middle
        if hi < Decimal(10) ** -400:
            break
    return lo


def risk(loss: Any, scores: list[Any], y: Any, c: list[Any], groups: Any) -> Any:
    """The risk of scores: one number per row, or a list of numbers per row."""
    name = type(loss).__name__
    if name in ("RocArea", "Ordinal"):
        return _pairs(scores, y, c)
    if name in ("FBeta", "Prbep", "PrecisionAtK", "RecallAtK"):
        return _labellings(loss, scores, y)
    if groups is not None:
        return _queries(loss, scores, y, c, groups)
    row: Callable[..., Any] = _multi_output_row if isinstance(scores[0], list) else single_output_row
    return sum(ci * row(loss, z, yi) for z, yi, ci in zip(scores, y, c, strict=True) if ci)


def precise() -> Any:
    """A decimal context with 80 digits and an unlimited exponent."""
    return localcontext(prec=DIGITS, Emax=10**9, Emin=-(10**9))

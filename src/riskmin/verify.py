#!/usr/bin/env python3
r"""Check a proof that a linear model is nearly optimal: ``python verify.py PROOF DATA``.

A proof states J(w, b) - min J <= gap for

    J(w, b) = alpha sum_j (l_j |w_j| + m_j w_j^2 / 2) + sum_i c_i l(x_i w + b, y_i),   c_i = s_i / sum_i s_i.

Its evidence is one multiplier u_i per row. For any u_i where the conjugate l* is finite, and every v,

    sum_i c_i l(x_i v, y_i) >= a v + B,   a = sum_i c_i u_i x_i,   B = -sum_i c_i l*(u_i, y_i),

so that min J >= t B - alpha Omega*(-t a / alpha) for every t in [0, 1]. With an intercept, sum_i c_i u_i = 0.

Nothing in a proof is believed. Every number is read as the binary fraction that it is, and all sums are
exact; only exp, ln and quotients are rounded, always against the proof. The standard library suffices.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import math
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any

FORMAT, number = "riskmin proof 1", Fraction.from_float
UNIT, FINE = 160, 512  # exp is computed in units of 2^-UNIT, terms of J and of the bound in those of 2^-FINE
LN2 = sum((2 << UNIT + 32) // ((2 * i + 1) * 3 ** (2 * i + 1)) for i in range(80)) >> 32  # rounded down


# ---------------------------------------------------------------- numbers
def exact(x: Any, bits: int) -> int:
    """Return x 2^bits, which must be an integer."""
    n, d = x.as_integer_ratio()
    quotient, rest = divmod(n << bits, d)
    if rest:
        raise ValueError("a number has more binary places than the proof says")
    return int(quotient)


def above(x: Fraction, bits: int) -> int:
    """Return x in units of 2^-bits, rounded up."""
    return -((-x.numerator << bits) // x.denominator)


def exp_above(x: Fraction) -> Fraction:
    """Return an upper bound of exp(x); for x >= -3000, within 2^-140 of it."""
    k, r = divmod(above(max(x, Fraction(-3000)), UNIT), LN2)  # exp(x) = 2^k exp(r)
    if k > 1 << 14:
        raise ValueError("the exponential of a score is too large")
    # exp(r) = exp(r / 256)^256 by its series, each step rounded up; LN2 is less than two units too small
    s = (r + 2 * max(-k, 0) >> 8) + 1
    term, total = 1 << UNIT, (1 << UNIT) + 1  # 1 is more than the terms after the last
    for i in range(1, 15):
        term = term * s // (i << UNIT) + 1
        total += term
    for _ in range(8):
        total = (total * total >> UNIT) + 1
    return Fraction(total << max(k, 0), 1 << UNIT + max(-k, 0))


def ln_above(x: Fraction) -> Fraction:
    """Return an upper bound of ln x: ln x <= g + x exp(-g) - 1 for every g, here one near ln x."""
    g = Fraction(math.log(x.numerator) - math.log(x.denominator))
    return g + x * exp_above(-g) - 1


def x_ln_x(x: Fraction) -> Fraction:
    """Return an upper bound of x ln x for x >= 0."""
    return x * ln_above(x) if x else x


# ---------------------------------------------------------------- losses
LOSSES: dict[str, tuple[str, Callable[..., tuple[Any, ...]]]] = {
    "hinge": ("margin", lambda margin: (margin, 1, 0, 0, 0)),
    "squared_hinge": ("margin", lambda margin: (margin, None, 0, 0, 1)),
    "power_hinge": ("margin", lambda margin, p: (margin, None, 0, 0, None)),
    "smoothed_hinge": ("margin", lambda mu: (1, 1, 0, 0, mu)),
    "logistic": ("margin", lambda: (0, 1, 0, 0, 0)),
    "exponential": ("margin", lambda: (0, None, 0, 0, 0)),
    "squared": ("residual", lambda: (0, None, None, 0, 1)),
    "absolute": ("residual", lambda: (0, 1, 1, 0, 0)),
    "quantile": ("residual", lambda level: (0, level, 1 - level, 0, 0)),
    "huber": ("residual", lambda delta: (0, delta, delta, 0, 1)),
    "epsilon_insensitive": ("residual", lambda epsilon: (0, 1, 1, epsilon, 0)),
    "squared_epsilon_insensitive": ("residual", lambda epsilon: (0, None, None, epsilon, 1)),
    "power_epsilon_insensitive": ("residual", lambda epsilon, p: (0, None, None, epsilon, None)),
    "poisson": ("residual", lambda: (0, None, None, 0, 0)),
    "softmax": ("classes", lambda: (0, 0, 1, 0, 0)),
    "multiclass_hinge": ("classes", lambda: (0, 0, 1, 0, 0)),
    "multiclass_squared_hinge": ("classes", lambda: (0, 0, None, 0, 0)),
}
"""The argument z of a loss (y z, z with y, leads), and shift, low, high, epsilon, q by its settings.
l is the largest u r - epsilon |u| - q u^2 / 2 for -low <= u <= high and r = z - y - shift; None is infinity.
With q = None it is a power, max(0, |r| - epsilon)^p / p on the sides that are not 0. The others are below.
Leads are z_j - z_y, first that of the label; the other classes have multipliers u_j >= 0 of sum <= high.
"""
VALUES: dict[str, Callable[..., Any]] = {
    "logistic": lambda z, y: max(-z, 0) + ln_above(1 + exp_above(-abs(z))),
    "exponential": lambda z, y: exp_above(-z),
    "poisson": lambda z, y: exp_above(z) - y * z + x_ln_x(y) - y,
    "softmax": lambda z, y: max(z) + ln_above(sum((exp_above(v - max(z)) for v in z), Fraction(0))),
    "multiclass_hinge": lambda z, y: max(0, 1 + max(z[1:])),
    "multiclass_squared_hinge": lambda z, y: Fraction(sum(max(0, 1 + v) ** 2 for v in z[1:])) / 2,
}
CONJUGATES: dict[str, Callable[..., Any]] = {
    "logistic": lambda u, y: x_ln_x(-u) + x_ln_x(1 + u),
    "exponential": lambda u, y: x_ln_x(-u) + u,
    "poisson": lambda u, y: x_ln_x(y + u) - u + (y * ln_above(1 / y) if y else 0),
    "softmax": lambda u, y: sum(x_ln_x(v) for v in (1 - sum(u), *u)),
    "multiclass_hinge": lambda u, y: -sum(u),
    "multiclass_squared_hinge": lambda u, y: sum(v * v / 2 - v for v in u),
}


class Loss:
    """A loss l(z, y) and its conjugate l*(u, y), or upper bounds near them."""

    def __init__(self, name: str, settings: dict[str, Fraction]) -> None:
        self.name, self.p = name, settings.get("p", Fraction(2))
        if min(settings.values(), default=0) < 0 or settings.get("level", 0) > 1 or self.p <= 1:
            raise ValueError("a setting of the loss is out of range")
        self.shift, self.low, self.high, self.epsilon, self.q = LOSSES[name][1](**settings)

    def value(self, z: Any, y: Fraction) -> Any:
        if self.name in VALUES:
            return VALUES[self.name](z, y)
        r = z - y - self.shift
        m, end = max(0, abs(r) - self.epsilon), self.high if r > 0 else self.low
        if not m or end == 0:
            return 0
        if self.q is None:
            return exp_above(self.p * ln_above(m)) / self.p
        return m * m / (2 * self.q) if end is None or m <= self.q * end else end * (2 * m - self.q * end) / 2

    def conjugate(self, u: Any, y: Fraction) -> Any:
        least, most = (min(u), sum(u)) if isinstance(u, list) else (u, u)
        if (self.low is not None and least < -self.low) or (self.high is not None and most > self.high):
            raise ValueError("a multiplier is outside of the domain of the conjugate")
        if self.name in VALUES:
            return CONJUGATES[self.name](u, y)
        linear, q = (y + self.shift) * u + self.epsilon * abs(u), self.p / (self.p - 1)
        if self.q is None:
            return linear + (exp_above(q * ln_above(abs(u))) / q if u else 0)
        return linear + self.q * u * u / 2


# ---------------------------------------------------------------- the proof
class Proof:
    """The numbers of a proof, and sums over the rows: of the weights, of J and of the cut.

    Entries of X are integers in units of 2^-x_bits; so are w, weights s_i and multipliers s_i u_i in theirs.
    """

    def __init__(self, proof: Any) -> None:
        data, loss, p = proof["data"], proof["loss"], len(proof["coef"][0])
        self.kind, n_classes = LOSSES[loss["name"]][0], len(set(data["classes"] or ()))
        self.labels, self.k = range(n_classes), n_classes if self.kind == "classes" else 1
        suitable = {"margin": n_classes == 2, "classes": self.k > 1}.get(self.kind, n_classes == 0)
        self.loss = Loss(loss["name"], {name: number(v) for name, v in loss.items() if name != "name"})
        self.x_bits, w_bits, self.s_bits, self.u_bits = bits = [exact(v, 0) for v in proof["bits"]]
        W, b = [listed(w, p) for w in proof["coef"]], proof["intercept"]
        self.b = listed(0 if b is None else b, self.k)
        penalties = [[number(proof["alpha"]) * v for v in listed(proof[name], p)] for name in ("l1", "l2")]
        sizes = len(W) == self.k and p == data["columns"] and all(0 <= v <= 1074 for v in bits)
        if not suitable or not sizes or min(map(min, penalties)) < 0 or proof["format"] != FORMAT:
            raise ValueError("the format, the sizes, the classes or the penalty are not those of the loss")
        self.w, self.W = [v for w in W for v in w], [[exact(v, w_bits) for v in w] for w in W]
        self.z_unit = 1 << self.x_bits + w_bits
        self.penalties = list(zip(*penalties, strict=True)) * self.k
        self.intercept, self.weight, self.value, self.offset = proof["intercept"] is not None, 0, 0, 0
        self.mean, self.slope = [0] * self.k, [[0] * p for _ in range(self.k)]

    def add(self, label: float, weight: float, columns: list[int], values: list[float], given: Any) -> None:
        """Add a row and its multipliers."""
        s, x = exact(weight, self.s_bits), [exact(v, self.x_bits) for v in values]
        if s < 0 or (self.kind != "residual" and label not in self.labels):
            raise ValueError("a weight is negative, or a label is none of the classes")
        products = (sum(v * w[j] for j, v in zip(columns, x, strict=True)) for w in self.W)
        z = [Fraction(v, self.z_unit) + b for v, b in zip(products, self.b, strict=True)]
        integers = [exact(v, 0) for v in (given if self.kind == "classes" else [given])]
        u: Any = [Fraction(v << self.s_bits, s << self.u_bits) if v else Fraction(0) for v in integers]
        if self.kind == "classes":
            y = int(label)
            leads: Any = [v - z[y] for v in (z[y], *z[:y], *z[y + 1 :])]
            integers = [*integers[:y], -sum(integers), *integers[y:]]
        else:  # a loss of the margin depends on the score times the sign of the label
            sign = -1 if self.kind == "margin" and not label else 1
            leads, u = sign * z[0], sign * u[0]
        target = Fraction(label if self.kind == "residual" else 0)
        self.weight += s
        self.value += s * above(self.loss.value(leads, target), FINE)
        self.offset -= s * above(self.loss.conjugate(u, target), FINE)
        for k, v in zip(range(self.k), integers, strict=True):
            self.mean[k] += v
            for j, entry in zip(columns, x, strict=True) if v else ():
                self.slope[k][j] += v * entry

    def bounds(self) -> tuple[Fraction, Fraction]:
        """Return an upper bound of J and a lower bound of min J; without m_j, Omega* may be infinite."""
        if self.intercept and any(self.mean):
            raise ValueError("the multipliers do not sum to zero, which an intercept needs")
        unit = Fraction(1 << self.s_bits, self.weight << self.x_bits + self.u_bits)
        slopes, penalty, conjugate = [abs(v) * unit for a in self.slope for v in a], 0, 0
        terms = list(zip(slopes, self.w, self.penalties, strict=True))
        t = min([Fraction(1), *(l1 / a for a, _, (l1, l2) in terms if a > l1 and not l2)])
        for a, w, (l1, l2) in terms:
            penalty += above(l1 * abs(w) + l2 * w * w / 2, FINE)
            if (excess := t * a - l1) > 0:
                conjugate += above(excess * excess / (2 * l2), FINE)
        value, offset = (Fraction(v, self.weight << FINE) for v in (self.value, self.offset))
        lower = t * offset - Fraction(conjugate, 1 << FINE)
        return value + Fraction(penalty, 1 << FINE), max(lower, Fraction(0))  # no loss is negative


def listed(x: Any, n: int) -> list[Fraction]:
    """Return the n numbers of a list, or n times the same number."""
    if isinstance(x, list) and len(x) != n:
        raise ValueError(f"the proof has {len(x)} numbers where {n} are needed")
    return [number(v) for v in (x if isinstance(x, list) else [x] * n)]


def check(record: Any, rows: Iterable[Any]) -> tuple[Fraction, Fraction]:
    """Return an upper bound of J and a lower bound of min J; raise an error if the claim does not follow."""
    proof, digest = Proof(record), hashlib.sha256()
    for (label, weight, columns, values), multipliers in zip(rows, record["multipliers"], strict=True):
        layout = f"<2dI{len(columns)}I{len(values)}d"
        digest.update(struct.pack(layout, label, weight, len(columns), *columns, *values))
        proof.add(label, weight, columns, values, multipliers)
    if digest.hexdigest() != record["data"]["sha256"]:
        raise ValueError("the data are not those of the proof: their SHA-256 differs")
    value, lower = proof.bounds()
    if value - lower > number(record["gap"]):
        raise ValueError(f"the proved gap is {float(value - lower):.6g}, not {record['gap']:.6g} as claimed")
    return value, lower


# ---------------------------------------------------------------- files
def read_rows(path: str, data: Any) -> Iterator[tuple[float, float, list[int], list[float]]]:
    """Yield the label or the index of the class, the weight, and columns and values of nonzero entries."""
    table, weights, first = path.lower().endswith((".csv", ".tsv")), data["weight"], 0
    names = [v if table or not isinstance(v, str) else i for i, v in enumerate(data["classes"] or ())]
    codes: Any = {v if isinstance(v, str) else float(v): i for i, v in enumerate(names)}
    with open(path, encoding="utf-8-sig", newline="") as stream:  # noqa: PTH123
        if table:  # with a header, and a column of ones for equal weights
            header = stream.readline()
            delimiter = max(",;\t", key=header.count)
            head = {v.strip(): i for i, v in enumerate(next(csv.reader([header], delimiter=delimiter)))}
            columns, y = [head[name] for name in data["features"]], head[data["label"]]
            s = head[weights] if isinstance(weights, str) else -1
            cells = ([*row, "1"] for row in csv.reader(stream, delimiter=delimiter) if row)
            rows: Any = ((row[y].strip(), row[s], enumerate(row[c] for c in columns)) for row in cells)
        else:  # svmlight text, in which names of classes are their indices
            first = 0 if any(" 0:" in line for line in stream) else 1
            stream.seek(0)
            words = (line.partition("#")[0].split() for line in stream)
            rows = ((w[0], 1, (x.split(":") for x in w[1:] if x[:4] != "qid:")) for w in words if w)
        for i, (text, given, pairs) in enumerate(rows):
            entries = sorted(pair for pair in ((int(j) - first, float(v)) for j, v in pairs) if pair[1])
            if len({j for j, _ in entries}) < len(entries):
                raise ValueError("a row of the data holds a column twice")
            label = codes[text if text in codes else float(text)] if codes else text
            weight = weights[i] if isinstance(weights, list) else float(given)
            yield float(label), weight, [j for j, _ in entries], [v for _, v in entries]


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, whose names must differ."""
    if len(dict(pairs)) < len(pairs):
        raise ValueError("the proof has a field twice")
    return dict(pairs)


def main(arguments: Sequence[str]) -> int:
    """Check the proof in a file against the data in another: 0 if it holds, 1 if not, 2 without the files."""
    if len(arguments) != 2:
        print("usage: python verify.py PROOF DATA", file=sys.stderr)
        return 2
    try:
        with gzip.open(arguments[0], "rt", encoding="utf-8") as stream:
            proof = json.load(stream, object_pairs_hook=unique)
        value, lower = check(proof, read_rows(arguments[1], proof["data"]))
    except (OSError, EOFError, UnicodeDecodeError) as error:
        print(f"riskmin verify: {error}", file=sys.stderr)
        return 2
    except Exception as error:  # whatever is wrong with a proof, it proves nothing
        reason = str(error) if type(error) is ValueError else f"it is malformed ({error!r})"
        print(f"NOT PROVED: {reason}")
        return 1
    print(f"PROVED: J = {float(value):.15g} is at most {float(value - lower):.3g} above the minimum")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Claims about the exact optimum against the optimum itself, found in extended precision.

`python -m benchmarks.claims --settings 1000` draws random problems: losses, penalties, units from 1e-6 to
1e6, offsets, weights of rows, standardized columns, tolerances from 0.1 to 1e-8. For each it compares the
intervals, signs, zeros and predictions of `optimum_region`, the scores of `leave_one_out` and the bounds of
`alpha_range` with the minimizer that Newton's method finds in extended precision (`numpy.longdouble`). One
line of JSON per problem is appended to --lines, and problems that are there already are skipped.
"""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path
from typing import Any

import click
import numpy as np

from riskmin import (
    LinearClassifier,
    LinearClassifierCV,
    LinearRegressor,
    LinearRegressorCV,
    optimum_region,
)

LOSSES = {
    "logistic": LinearClassifier,
    "squared": LinearRegressor,
    "poisson": LinearRegressor,
    "hinge": LinearClassifier,
    "squared_hinge": LinearClassifier,
    "huber": LinearRegressor,
}
SMOOTH = ("logistic", "squared", "poisson")
LONG = np.longdouble


def slopes(loss: str, z: Any, y: Any) -> tuple[Any, Any]:
    """First and second derivatives of a loss in the scores."""
    if loss == "squared":
        return z - y, np.ones_like(z)
    if loss == "poisson":
        return np.exp(z) - y, np.exp(z)
    e = np.exp(-abs(z))
    return -y / (1 + np.exp(y * z)), e / (1 + e) ** 2


def minimum(
    loss: str, X: Any, y: Any, c: Any, square: Any, absolute: Any, w: Any, b: float, intercept: bool
) -> tuple[Any, Any] | None:
    """The minimizer in extended precision from weights near it; None if it violates the conditions."""
    mean = (c @ X).astype(LONG) if intercept else np.zeros(X.shape[1], LONG)
    Z = np.column_stack([np.full(len(X), LONG(intercept)), X.astype(LONG) - mean])
    c, y = c.astype(LONG), y.astype(LONG)
    theta = np.append(LONG(b) + mean @ w.astype(LONG), w.astype(LONG))
    q, a = np.append(LONG(0), square.astype(LONG)), np.append(LONG(0), absolute.astype(LONG))
    free = np.append(intercept, (w != 0) | (absolute == 0))
    for _ in range(60):
        u, h = slopes(loss, Z @ theta, y)
        g = Z.T @ (c * u) + q * theta + a * np.sign(theta)
        H = (Z[:, free].T * (c * h)) @ Z[:, free] + np.diag(q[free])
        d = np.sqrt(np.diag(H))
        step = np.linalg.solve((H / np.outer(d, d)).astype(float), (g[free] / d).astype(float)) / d
        change = np.zeros_like(theta)
        change[free] = step
        theta = theta - change
        if np.max(abs(step * d)) <= 1e-17:
            break
    signs = np.sign(theta[1:]) == np.sign(w)
    u, _ = slopes(loss, Z @ theta, y)
    g = Z.T @ (c * u) + q * theta
    size = abs(Z.T) @ (c * abs(u)) + q * abs(theta) + a
    at_zero = ~free
    at_zero[0] = False
    good = np.all(abs(g + a * np.sign(theta))[free] <= 1e-16 * size[free]) and np.all(
        abs(g)[at_zero] <= a[at_zero]
    )
    if not (good and (signs | (absolute == 0)).all()):
        return None
    return theta[1:], theta[0] - mean @ theta[1:]


def setting(seed: int) -> dict[str, Any]:
    """A random problem: data and parameters of the model."""
    rng = np.random.default_rng(seed)
    loss = str(rng.choice(list(LOSSES)))
    n, p = int(np.exp(rng.uniform(np.log(8), np.log(200)))), int(rng.integers(1, 9))
    Z = rng.standard_normal((n, p))
    if rng.random() < 0.3 and p > 1:  # nearly collinear columns
        Z[:, -1] = Z[:, 0] + 10.0 ** rng.uniform(-4, 0) * Z[:, -1]
    units, offsets = 10.0 ** rng.uniform(-6, 6, p), rng.choice([0.0, 1.0, 1e3], p)
    raw = bool(rng.random() < 0.6)
    X = (Z + offsets) * units if raw else Z
    z = Z @ rng.standard_normal(p) * rng.uniform(0.1, 2) + rng.standard_normal()
    y = {"poisson": rng.poisson(np.exp(np.minimum(z / 2, 5))).astype(float)}.get(
        loss, z + rng.standard_normal(n) * rng.uniform(0.1, 3)
    )
    if LOSSES[loss] is LinearClassifier:
        y = np.where(y > np.median(y) * rng.uniform(0, 1), 1.0, -1.0)
        y[:2] = 1.0, -1.0
    regularizer = str(rng.choice(["l2", "l2", "l2", "l1", "elastic:eps=1"]))
    if loss not in SMOOTH and regularizer == "l1":
        regularizer = "l2"
    weight = rng.uniform(0.1, 3, n) if rng.random() < 0.3 else None
    params = {
        "alpha": float(10.0 ** rng.uniform(-5, 0)),
        "regularizer": regularizer,
        "standardize": raw,
        "tol": float(10.0 ** rng.uniform(-8, -1)),
        "fit_intercept": bool(rng.random() < 0.8),
    }
    return {"loss": loss, "X": X, "y": y, "weight": weight, "params": params}


def optimum(made: dict[str, Any], X: Any, y: Any, weight: Any) -> tuple[Any, float, float] | None:
    """Weights and intercept of the optimum, and how far their scores may be from it; None if unknown."""
    tol = 1e-8 if made["loss"] in SMOOTH else 1e-10
    params = made["params"] | {"tol": tol, "atol": 0.0, "max_iter": 3000, "max_seconds": 1.0}
    tight = LOSSES[made["loss"]](made["loss"], **params).fit(X, y, weight)
    w, b = np.ravel(tight.coef_), float(np.ravel(tight.intercept_)[0])
    c = np.full(len(y), 1 / len(y)) if weight is None else weight / weight.sum()
    s = np.ones(X.shape[1]) if tight.scale_ is None else tight.scale_
    alpha, l1 = params["alpha"], params["regularizer"]
    square = alpha * s**2 if l1 == "l2" else (0 * s if l1 == "l1" else alpha * 1.0 * s**2)
    absolute = 0 * s if l1 == "l2" else alpha * s
    if made["loss"] not in SMOOTH:
        return w, b, 2 * np.sqrt(2 * max(tight.gap_, 1e-16) / alpha)
    found = minimum(made["loss"], X, y, c, square, absolute, w, b, params["fit_intercept"])
    return None if found is None else (*found, 0.0)


def outside(interval: Any, value: Any, slack: Any) -> int:
    """How many values are outside their intervals."""
    lower, upper = np.asarray(interval).T
    return int(np.sum((value < lower - slack) | (value > upper + slack)))


def check_region(made: dict[str, Any], model: Any, w: Any, b: Any, slack: float) -> dict[str, Any]:
    """Compare all claims of the region with the optimum."""
    X, y, weight = made["X"], made["y"], made["weight"]
    start = time.process_time()
    region = optimum_region(model, X, y, sample_weight=weight)
    seconds = time.process_time() - start
    s = np.ones(X.shape[1]) if model.scale_ is None else model.scale_
    size = np.linalg.norm((X - X.mean(0)) / s, axis=1) + 1
    z = (X.astype(LONG) @ w + b) if slack == 0 else X @ w + b
    intervals, scores = region.coef_interval(), region.decision_interval(X)
    wrong = outside(intervals, w, slack / s) + outside(scores, z, slack * size)
    wrong += int(np.any(w[region.zero] != 0))
    wrong += int(np.any(np.sign(w)[region.nonzero] != region.signs[region.nonzero])) if slack == 0 else 0
    if model.task == "classification" and slack == 0:
        labels, certain = region.predict_certain(X)
        wrong += int(np.sum(certain & (np.where(z > 0, 1.0, -1.0) != labels)))
    width = float(np.median(scores[:, 1] - scores[:, 0]))
    error = (
        float(np.median(abs(model.decision_function(X) - z))) if hasattr(model, "decision_function") else 0.0
    )
    return {
        "wrong": wrong,
        "claims": 2 * len(w) + 2 * len(z),
        "width": width,
        "error": error,
        "seconds": seconds,
    }


def check_left_out(made: dict[str, Any], model: Any, rng: Any) -> dict[str, Any]:
    """Compare the scores of some rows with those of optima without them."""
    X, y, weight = made["X"], made["y"], made["weight"]
    n = len(y)
    start = time.process_time()
    found = model.leave_one_out(X, y, weight)
    seconds, wrong, claims = time.process_time() - start, 0, 0
    for i in rng.choice(n, min(3, n), replace=False):
        rest = np.arange(n) != i
        best = optimum(made, X[rest], y[rest], None if weight is None else weight[rest])
        if best is None:
            continue
        w, b, slack = best
        s = X[rest].std(0) if model.standardize else np.ones(X.shape[1])
        z = X[i].astype(LONG) @ w + b
        slack *= 1 + np.linalg.norm((X[i] - X[rest].mean(0)) / np.where(s > 0, s, 1.0))
        claims += 1
        off = abs(z - found.scores[i]) > found.bounds[i] + slack
        if model.task == "classification" and abs(z) > slack:
            off |= (z > 0) != (found.labels[i] > 0)
        wrong += int(off)
    return {
        "loo_wrong": wrong,
        "loo_claims": claims,
        "loo_seconds": seconds,
        "refits": int(found.refitted.sum()),
    }


def check_range(made: dict[str, Any], rng: Any) -> dict[str, Any]:
    """Compare the bounds of a range of alpha with scores of optima in it."""
    loss, X, y, weight = made["loss"], made["X"], made["y"], made["weight"]
    n, params = len(y), {k: v for k, v in made["params"].items() if k != "alpha"}
    order = rng.permutation(n)
    train, test = order[: n // 2], order[n // 2 :]
    kind = LinearClassifierCV if loss == "logistic" else LinearRegressorCV
    scoring, eps = (
        (None, 0.0) if loss == "logistic" else ("neg_mean_squared_error", 0.05 * float(np.var(y)) + 1e-9)
    )
    search = kind(loss, alpha_range=(1e-3, 1.0), eps=eps, cv=[(train, test)], scoring=scoring, **params).fit(
        X, y, weight
    )
    wrong, claims = 0, 0
    t = np.ones(len(test)) if weight is None else weight[test]
    for alpha in np.exp(rng.uniform(np.log(1e-3), 0.0, 5)):
        at = made | {"params": made["params"] | {"alpha": float(alpha)}}
        best = optimum(at, X[train], y[train], None if weight is None else weight[train])
        if best is None:
            continue
        z = X[test].astype(LONG) @ best[0] + best[1]
        score = t @ (y[test] * z > 0) / t.sum() if loss == "logistic" else -t @ (z - y[test]) ** 2 / t.sum()
        piece = min(int(np.searchsorted(search.range_bounds_[:, 1], alpha)), len(search.range_bounds_) - 1)
        bound = search.range_bounds_[piece, 2]
        claims, wrong = claims + 1, wrong + int(score > bound + 1e-9 * (1 + abs(bound)))
    return {"range_wrong": wrong, "range_claims": claims, "values": len(search.alphas_)}


def check(seed: int) -> dict[str, Any]:
    """One random problem: what was claimed, and how much of it is wrong."""
    made = setting(seed)
    X, y, weight = made["X"], made["y"], made["weight"]
    record = {"seed": seed, "loss": made["loss"], **made["params"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = LOSSES[made["loss"]](made["loss"], **made["params"]).fit(X, y, weight)
            best = optimum(made, X, y, weight)
            if best is None:
                return record | {"skipped": "the reference does not satisfy the conditions"}
            rng = np.random.default_rng(seed + 10**6)
            record |= check_region(made, model, *best)
            one_step = made["loss"] in SMOOTH and made["params"]["regularizer"] == "l2"
            if one_step or len(y) <= 30:  # the others take a fit for most rows
                record |= check_left_out(made, model, rng)
            if made["loss"] in ("logistic", "squared") and made["params"]["regularizer"] == "l2":
                record |= check_range(made, rng)
            return record
        except ValueError as error:
            return record | {"refused": str(error)}


@click.command(help=__doc__)
@click.option("--settings", default=100, show_default=True, help="How many problems.")
@click.option("--first", default=0, show_default=True, help="The seed of the first one.")
@click.option(
    "--lines", type=click.Path(path_type=Path), help="A file of results, to which new ones are added."
)
def main(settings: int, first: int, lines: Path | None) -> None:
    done = [json.loads(line) for line in lines.read_text().splitlines()] if lines and lines.exists() else []
    known = {record["seed"] for record in done}
    for seed in range(first, first + settings):
        if seed in known:
            continue
        record = check(seed)
        done.append(record)
        if any(record.get(prefix + "wrong") for prefix in ("", "loo_", "range_")):
            click.echo(json.dumps(record))
        if lines:
            with lines.open("a") as file:
                file.write(json.dumps(record) + "\n")
    checked = [record for record in done if "wrong" in record]
    for key in ("refused", "skipped"):
        reasons = [record[key][:70] for record in done if key in record]
        for reason in sorted(set(reasons)):
            click.echo(f"{key}: {reasons.count(reason)} x {reason}")
    click.echo(f"{len(checked)} problems")
    for name, prefix in (("regions", ""), ("leave-one-out", "loo_"), ("ranges of alpha", "range_")):
        claims, wrong = (
            sum(record.get(prefix + key, 0) for record in checked) for key in ("claims", "wrong")
        )
        click.echo(f"{name}: {claims} claims, {wrong} wrong")


if __name__ == "__main__":
    main()

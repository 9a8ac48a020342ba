"""Starts on a sample of the rows: where these are many beside columns, few know most of the optimum."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from riskmin.executors import Serial
from riskmin.intercept import Profiled, without_intercept
from riskmin.matrices import as_matrix
from riskmin.objective import Count, Objective
from riskmin.solvers.passes import Passes
from riskmin.types import Array, Iterate, Memo, Shard

PARTS = (64, 16)
"""One row of so many is drawn, at first and then."""
ENOUGH = 50
"""Rows a column that a sample must have: of fewer, the optimum is another, and a start there costs more."""
CLOSE = 1e-2
"""The relative gap to which samples are solved."""
MOST_STEPS = 60
"""On a sample, should it get no nearer than that."""


def sample(obj: Objective, part: int, enough: int = ENOUGH) -> Objective | None:
    """The objective of one row of each `part`, drawn at random; None with fewer than `enough` a column.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, Hinge, Objective, linear_risk
    >>> X, y = np.ones((900, 1)), np.where(np.arange(900) % 3, 1.0, -1.0)
    >>> few = sample(Objective(linear_risk(X, y, Hinge()), L2(), lam=0.1), 16)
    >>> few.risk.rows.X.shape
    (56, 1)
    """
    risk = without_intercept(obj.risk)
    n, p = risk.table.shape
    size = n // part
    if size < enough * p or not risk.loss.separable:
        return None
    rng = np.random.default_rng(0)  # within runs of rows, so that any order of these is all right
    at = part * np.arange(size) + rng.integers(0, part, size)
    passes, c = Passes(risk), risk.table.c[at]
    total = float(c.sum())
    if not total > 0 or not passes.takes(size):
        return None
    shard = Shard(as_matrix(passes.take(at)), risk.table.y[at], c / total, Memo())
    inner = replace(risk, scorer=passes.scorer, executor=Serial([shard]), rows=shard, table=None)
    return replace(obj, risk=Profiled(inner) if isinstance(obj.risk, Profiled) else inner, count=Count())


def start(
    obj: Objective, w0: Array, steps: Callable[[Objective, Array, float], Iterator[Iterate]]
) -> tuple[Array, float]:
    """Where a run should begin, and with which mu (0 if its own): after runs on samples, if these pay.

    `steps` gives the iterates of an objective from a point and a mu on.
    """
    cold, mu = not w0.any(), 0.0
    for part in PARTS:
        few = sample(obj, part) if cold else None
        if few is None:
            continue
        best, lower = np.inf, 0.0
        with contextlib.suppress(ValueError):  # a sample of one class has no best intercept
            for it in islice(steps(few, w0, mu), MOST_STEPS):
                if it.value < best:
                    w, best = it.w, it.value
                lower = max(lower, few.lower(it.cut))
                if best - lower <= CLOSE * best:
                    break
            w0, mu = w, it.info["mu"]
    return w0, mu

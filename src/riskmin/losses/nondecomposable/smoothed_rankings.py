r"""Smoothed forms of ranking losses, whose raised tangents are cuts of the losses themselves.

With weights of positions equal to the discounts a of the metric, a ranking loss is a maximum over the
permutations p of the weights, which is one over their convex hull, the permutahedron:

.. math:: R_q(z) = \max_p\; \sum_d p_d (z_d - g_d) + \text{linear}, \qquad
          R_{q,\mu}(z) = \max_p\; \sum_d p_d (z_d - g_d) - \tfrac\mu2 |p - \bar a|^2 + \text{linear}

with the gains g. The maximizer is the projection of (z - g) / mu, by a sort and an isotonic regression
(M. Blondel, O. Teboul, Q. Berthet, J. Djolonga, Fast differentiable sorting and ranking, ICML 2020). It is in
the hull: the tangent plus :math:`\tfrac\mu2 |p - \bar a|^2` is a cut of :math:`R_q`, and the smoothing error
is at most :math:`\tfrac\mu2 |a - \bar a|^2`.

`Mrr` with equal weights of pairs is smoothed by entropy. It is the maximum over sets F of irrelevant rows in
front and over the orders :math:`\beta_{ij}` of all other pairs of a relevant row i and an irrelevant row j,

.. math:: R_q(z) = \max_{F, \beta}\; 1 - \frac{1}{|F| + 1} + \frac1P \sum_{i,\, j \in F} (z_j - z_i)
          + \frac1P \sum_{i,\, j \notin F} \beta_{ij} (z_j - z_i),

and with all orders independent of each other, given F, sums over all :math:`(2^{n_+} + 1)^{n_-}` pairs
:math:`(F, \beta)` are elementary symmetric polynomials, as for contingency tables.
"""

from __future__ import annotations

import math

import numpy as np

from riskmin.core import NDArray, UnsupportedProblem
from riskmin.core.deadline import check_each
from riskmin.losses.nondecomposable.by_query import QueryRows, lexsort_rows
from riskmin.losses.nondecomposable.entropy_smoothing import MAX_DP_STEPS_PER_EVALUATION, SubsetSums


def smoothed_by_projection(
    q: QueryRows, s: NDArray, gain: NDArray, discount: NDArray, mu: float
) -> tuple[float, NDArray, float]:
    """Return the smoothed loss with weights equal to the discounts, its slopes, and the minorant offset."""
    from riskmin._numba.sorting.permutahedron import permutahedron_projections

    difference, n = s - gain, len(s)
    order = lexsort_rows(-difference, q.query)
    sorted_p, p = np.empty(n), np.empty(n)
    workspaces = np.empty(n, np.int64), np.empty(n)
    permutahedron_projections(difference[order], q.starts, discount, float(mu), *workspaces, sorted_p)
    p[order] = sorted_p
    ideal, weight = discount[q.position], q.weight[q.query]
    # all points of the hull have the same mean, so its center is the nearest point to zero
    center = (q.query_sums(ideal) / np.diff(q.starts))[q.query]
    offset = float(0.5 * mu * (weight @ (p - center) ** 2))
    slopes = weight * (p - q.tie_means(ideal))
    return float(slopes @ s + weight @ ((ideal - p) * gain)) - offset, slopes, offset


def smoothed_first_rank(q: QueryRows, s: NDArray, mu: float) -> tuple[float, NDArray, float]:
    """Return the smoothed reciprocal rank of the first relevant row, its slopes, and the minorant offset.

    The temperature is such that the smoothing error is at most mu / 2. A query of n relevant and m irrelevant
    rows takes O(n m + m^2) steps.
    """
    splits, ends = q.group_starts[1:-1:2], q.starts[1:]
    steps = float(np.sum((ends - splits) * (ends - q.starts[:-1])))
    if steps > MAX_DP_STEPS_PER_EVALUATION:
        raise UnsupportedProblem(
            f"Mrr takes {steps:.1e} steps per evaluation to be smoothed, and at most "
            f"{MAX_DP_STEPS_PER_EVALUATION:.1e} are allowed: use Bundle"
        )
    value = offset = 0.0
    slopes = np.empty(len(s))
    for k in check_each(range(len(splits))):
        rows = slice(q.starts[k], ends[k])
        one, slope, raised = _first_rank(s[q.starts[k] : splits[k]], s[splits[k] : ends[k]], mu)
        value, offset = value + q.weight[k] * one, offset + q.weight[k] * raised
        slopes[rows] = q.weight[k] * slope
    return float(value), slopes, float(offset)


def _first_rank(relevant: NDArray, others: NDArray, mu: float) -> tuple[float, NDArray, float]:
    """Return the smoothed loss of one query, its slopes (relevant rows first), and the minorant offset."""
    n, m = len(relevant), len(others)
    log_count = m * float(np.logaddexp(0.0, n * math.log(2)))
    temperature = 0.5 * mu / log_count
    # log odds of an inverted pair, and of a row to be in front rather than in any order behind
    x = (others[:, None] - relevant) / (n * m * temperature)
    behind = np.logaddexp(0.0, x)
    front = SubsetSums((x - behind).sum(axis=1), m)
    delta = 1 - 1 / np.arange(1.0, m + 2)
    log_weights = delta / temperature + front.sums
    largest = float(log_weights.max())
    size = np.exp(log_weights - largest)
    total = float(size.sum())
    size /= total
    value = temperature * (float(behind.sum()) + largest + math.log(total) - log_count)
    # a pair is inverted if its irrelevant row is in front, or if it is not and the order behind is that
    in_front = front.inclusion_probabilities(size)[:, None]
    inverted = (in_front + (1 - in_front) * np.exp(x - behind)) / (n * m)
    slopes = np.concatenate([-inverted.sum(axis=0), inverted.sum(axis=1)])
    mean = float(size @ delta) + float(np.sum(inverted * (others[:, None] - relevant)))
    # the mean of the terms of the maximum; not below the value but for rounding
    return value, slopes, max(mean - value, 0.0)

"""The functions that run on a shard: top-level, so that any executor can send them to its workers.

An oracle call is one pass over X: for each block of rows the scores, the loss and the gradient are computed
while the rows are still in cache. Cursors keep the scores of a point in the cache of the shard instead, so
that a line search costs O(n) per step and no pass over X.

The state of a cursor on a shard is a dictionary: "z" and "dz", the scores of the point and of the direction,
or "w" and "d" where the scores are too many to be cached; and "evaluation", the last one along the line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from riskmin.arrays.compressed import Csr
from riskmin.arrays.dense import Dense, DenseFortran
from riskmin.arrays.finite import first_not_finite
from riskmin.arrays.memory_map import maps_exceed_budget, release_between
from riskmin.arrays.namespace import as_array_like, namespace, to_numpy
from riskmin.arrays.sequences import Sequences
from riskmin.core import Array, LinearMap, Shard, ShardStateLost
from riskmin.core.limits import LIMITS
from riskmin.losses.base import Loss
from riskmin.numerics.precision import CUT_ROUNDING
from riskmin.problem.compiled import device_loops, row_loops
from riskmin.problem.compiled.tracing import TracedLoss


def blocks(shard: Shard, linear_map: LinearMap) -> Iterable[tuple[int, int]]:
    """Ranges of rows to score together."""
    X: Any = shard.X
    if isinstance(X, Sequences):  # sequences, which can only be cut at their ends
        ranges: Iterable[tuple[int, int]] = X.blocks(linear_map.columns)
        return ranges
    n, step = X.shape[0], rows_per_block(X, linear_map.columns)
    return release_between((i, min(i + step, n)) for i in range(0, n, step))


def rows_per_block(X: Any, columns: int) -> int:
    """The rows of a block, which stay in cache between the scores and the pullback, as do their scores."""
    rows: int = X.block_rows
    if X.one_block:
        return rows
    if columns > 1 and isinstance(X, Dense | DenseFortran):
        n, p = X.shape
        rows = min(rows, max(LIMITS.small_product // (p * columns), 16))
        # blocks of equal size: a short last one would cost as many calls
        rows = -(-n // -(-n // rows)) if n else rows
    return max(min(rows, LIMITS.block_max_scores // columns), 16)


def product_blocks(shard: Shard, linear_map: LinearMap) -> Iterable[tuple[int, int]]:
    """Ranges of rows for a single product: all rows, if this changes no bit and no memory is to be released.

    Rows are added to the gradient one after the other in C order and in CSR, whatever the blocks.
    """
    if linear_map.is_identity and isinstance(shard.X, Csr | Dense) and not maps_exceed_budget():
        return ((0, shard.X.shape[0]),)
    return blocks(shard, linear_map)


def loops_of(shard: Shard) -> Any:
    """The module of the compiled loops: for rows on a GPU, or in this process."""
    return device_loops if shard.X.on_gpu else row_loops


def value_grad(shard: Shard, loss: Loss | TracedLoss, linear_map: LinearMap, w: Array) -> tuple[float, Array]:
    """The loss of the shard's rows and its gradient in w."""
    if isinstance(loss, TracedLoss):
        found: tuple[float, Array] = loops_of(shard).value_grad(shard, loss, linear_map, w)
        return found
    value, grad = 0.0, namespace(w).zeros_like(w)
    for i, j in blocks(shard, linear_map):
        v, dz = loss.value_grad(linear_map.scores(shard.X, w, i, j), shard.y[i:j], shard.c[i:j])
        value += float(v)
        linear_map.pullback(shard.X, dz, i, j, grad)
    return value, grad


def value(shard: Shard, loss: Loss, linear_map: LinearMap, w: Array) -> tuple[float]:
    """The loss of the rows, with the bits of `value_grad`."""
    total = 0.0
    for i, j in blocks(shard, linear_map):
        z = linear_map.scores(shard.X, w, i, j)
        total += float(loss.value_grad(z, shard.y[i:j], shard.c[i:j])[0])
    return (total,)


def scores(shard: Shard, linear_map: LinearMap, w: Array) -> Array:
    """The scores of all rows of the shard, followed by the rows of scores that all examples share, if any."""
    parts = [linear_map.scores(shard.X, w, i, j) for i, j in product_blocks(shard, linear_map)]
    if shared := linear_map.shared:
        # each block repeats the shared rows of scores: keep those of the last block only
        parts = [*(part[:-shared] for part in parts), parts[-1][-shared:]]
    return parts[0] if len(parts) == 1 else namespace(parts[0]).concat(parts)


def scores_into(shard: Shard, linear_map: LinearMap, w: Array, out: Array) -> None:
    """Set out to the scores of all rows of the shard."""
    out[:] = scores(shard, linear_map, w)


def labels(shard: Shard) -> tuple[Array, Array]:
    """Labels and weights."""
    return shard.y, shard.c


def scatter(shard: Shard, linear_map: LinearMap, w: Array, dz: Array) -> tuple[Array]:
    """The gradient in w, given the gradient dz in the scores."""
    grad = namespace(w).zeros_like(w)
    for i, j in product_blocks(shard, linear_map):
        linear_map.pullback(shard.X, dz[i:j], i, j, grad)
    return (grad,)


def hessian_product(shard: Shard, linear_map: LinearMap, d: Array, h: Array) -> tuple[Array]:
    """X' diag(h) X d, block by block, so that X is read from memory once."""
    if linear_map.is_identity and (product := shard.X.hessian_product(d, h)) is not None:
        return (product,)
    out = namespace(d).zeros_like(d)
    for i, j in blocks(shard, linear_map):
        linear_map.pullback(shard.X, h[i:j] * linear_map.scores(shard.X, d, i, j), i, j, out)
    return (out,)


def hessian_product_at(
    shard: Shard, key: int, loss: Loss, linear_map: LinearMap, d: Array, b: float
) -> tuple[Array]:
    """X' H X d, with the Hessian H of a loss of one score per row at the cached scores plus b."""
    z: Array = cursor_state(shard, key)["z"]
    hessian = loss.hessian(z + b if b else z, shard.y, shard.c)
    assert hessian is not None
    return hessian_product(shard, linear_map, d, hessian.diagonal)


def is_finite(shard: Shard) -> bool:
    """Whether the rows of a shard hold neither NaN nor infinity."""
    return first_not_finite(shard.X) is None


# ---------------------------------------------------------------- cached scores
def cache_scores(shard: Shard, key: int, live: set[int], linear_map: LinearMap, w: Array) -> float:
    """Cache the scores of w, drop those of dead cursors, and return the largest absolute score."""
    # too many scores to cache: keep w, and compute the scores again at each evaluation
    large = linear_map.columns > 1 and shard.X.shape[0] * linear_map.columns > LIMITS.cache_max_scores
    state = {"w": w} if large else {"z": scores(shard, linear_map, w)}
    keep_state(shard, key, live, state)
    return max_abs(state.get("z"))


def keep_state(shard: Shard, key: int, live: set[int], state: dict[str, Any]) -> None:
    """Cache the state of a cursor, and drop those of dead cursors."""
    cursors = shard.cache.setdefault("cursors", {})
    for dead in cursors.keys() - live:
        del cursors[dead]
    cursors[key] = state


def max_abs(z: Array) -> float:
    """The largest absolute score; 0 if there is none."""
    return 0.0 if z is None or 0 in z.shape else float(abs(z).max())


def cursor_state(shard: Shard, key: int) -> dict[str, Any]:
    """The cached state of a cursor; raises if the shard has lost it."""
    try:
        state: dict[str, Any] = shard.cache["cursors"][key]
    except KeyError:
        raise ShardStateLost("the scores of a point") from None
    return state


def set_direction(shard: Shard, key: int, linear_map: LinearMap, d: Array) -> None:
    """Cache the scores of the direction d."""
    state = cursor_state(shard, key)
    if "z" in state:
        state["dz"] = scores(shard, linear_map, d)
    else:
        state["d"] = d


def advance(shard: Shard, key: int, linear_map: LinearMap, t: float) -> float:
    """Step by t along the direction, and return the largest absolute score there."""
    state = cursor_state(shard, key)
    # both are linear: z + t dz, or w + t d
    point, direction = ("z", "dz") if "z" in state else ("w", "d")
    state[point] = state[point] + t * state[direction]
    # an evaluation at t is the evaluation at 0 of the new point
    evaluation = state.pop("evaluation", None)
    if evaluation is not None and evaluation.t == t:
        state["evaluation"] = evaluation._replace(t=0.0)
    return max_abs(state.get("z"))


def value_slopes(
    shard: Shard, key: int, loss: Loss | TracedLoss, linear_map: LinearMap, t: float, b: float
) -> tuple[float, float, float]:
    """The loss at scores z + t dz + b, with its derivatives in t and in b."""
    state = cursor_state(shard, key)
    if isinstance(loss, TracedLoss):
        sums = loops_of(shard).line_sums(shard, loss, state["z"], state.get("dz"), t, b)
        return float(sums[0]), float(sums[1]), float(sums[2])
    value = slope_t = slope_b = 0.0
    tangents: list[tuple[Any, Array, Any]] = []
    cacheable = has_score_matrix(linear_map) and "z" in state and not b
    for i, j in _line_blocks(shard, linear_map, state):
        z, dz = _line_scores(shard, linear_map, state, i, j)
        # the same additions in the same order as in `pull_back` and `advance`: at a nonsmooth point, the last
        # bit of a score decides on the slope, and all three must agree
        shifted = z + t * dz if t else z
        shifted = shifted + b if b else shifted
        v, g, offset = loss.offset_tangent(shifted, shard.y[i:j], shard.c[i:j])
        value += float(v)
        slope_b += float(g.sum())
        if dz is not None:
            slope_t += inner(g, dz)
        if cacheable:
            tangents.append((v, g, offset))
    if cacheable:
        state["evaluation"] = LineEvaluation(t, loss, tangents)
    return value, slope_t, slope_b


def line_sums(
    shard: Shard, loss: Loss | TracedLoss, t: float, b: float, rows: tuple[Array, Array | None]
) -> tuple[Array]:
    """The loss at scores z + t dz + b and its derivatives, for rows = (z, dz).

    The value, the slopes in t and b, the minorant offset, the sum of the absolute slopes, and the second
    derivatives in t t, t b and b b.
    """
    z: Array = rows[0]
    dz: Array = rows[1]
    if isinstance(loss, TracedLoss):
        return (loops_of(shard).line_sums(shard, loss, z, dz, t, b, second=True),)
    shifted = z + t * dz if t else z
    shifted = shifted + b if b else shifted
    value, g, offset = loss.offset_tangent(shifted, shard.y, shard.c)
    hessian = loss.hessian(shifted, shard.y, shard.c) if loss.smooth else None
    h, d = 0.0 * z if hessian is None else hessian.diagonal, 0.0 * z if dz is None else dz
    first = float(value), inner(g, d), float(g.sum()), float(offset), float(abs(g).sum())
    return (np.array([*first, inner(h * d, d), inner(h, d), float(h.sum())]),)


def line_values(
    shard: Shard, loss: Loss | TracedLoss, points: Array, rows: tuple[Array, Array]
) -> tuple[Array]:
    """The loss and its slope in t at z + t dz, for several numbers t: of shape (len, 2), in one launch."""
    if isinstance(loss, TracedLoss) and shard.X.on_gpu:
        return (device_loops.line_values(shard, loss, *rows, points),)
    return (np.array([line_sums(shard, loss, t, 0.0, rows)[0][:2] for t in points.tolist()]),)


def cached_line_values(shard: Shard, key: int, loss: Loss | TracedLoss, points: Array) -> tuple[Array]:
    """The loss and its slope along the direction of a cursor, for several steps."""
    state = cursor_state(shard, key)
    return line_values(shard, loss, points, (state["z"], state["dz"]))


def value_grad_of_shift(
    shard: Shard, key: int, loss: Loss, linear_map: LinearMap, b: Array
) -> tuple[float, Array]:
    """The loss at scores z + b, with one entry of b per output, and its gradient in b."""
    state = cursor_state(shard, key)
    value, slopes, tangents = 0.0, 0.0 * b, []
    for i, j in blocks(shard, linear_map):
        z, _ = _line_scores(shard, linear_map, state, i, j)
        v, g, offset = loss.offset_tangent(z + as_array_like(b, z), shard.y[i:j], shard.c[i:j])
        value, slopes = value + float(v), slopes + to_numpy(g.sum(0))
        tangents.append((v, g, offset))
    if "z" in state:
        state["shift"], state["evaluation"] = b, LineEvaluation(0.0, loss, tangents)
    return value, slopes


def shift_scores(shard: Shard, key: int, b: Array) -> None:
    """Add b to all scores; where they are not cached, to the intercepts at the end of w."""
    state = cursor_state(shard, key)
    if "z" not in state:
        # without cached scores, a shift of the scores is a change of the intercepts, the last entries of w
        state["w"] = namespace(state["w"]).concat(
            [state["w"][: -len(b)], state["w"][-len(b) :] + as_array_like(b, state["w"])]
        )
        return
    state["z"] = state["z"] + as_array_like(b, state["z"])
    if not np.array_equal(state.pop("shift", None), b):
        state.pop("evaluation", None)  # the last evaluation was at other scores


class LineEvaluation(NamedTuple):
    """The last evaluation of a multi-output loss: cached, because a line search usually stops there."""

    t: float
    loss: Loss
    tangents: list[tuple[Any, Array, Any]]
    """Value, gradient and minorant offset, one tuple per block of rows."""


def pull_back(
    shard: Shard,
    key: int,
    loss: Loss | TracedLoss,
    linear_map: LinearMap,
    w: Array,
    t: float,
    mix: list[tuple[float, float]],
) -> tuple[float, Array, float, float]:
    """sum_k m_k of (loss, gradient in w) at scores z + t dz + b_k, for the (b_k, m_k) of mix.

    Also returns a bound on the rounding error, by the size of the terms that cancel,
    sum_i |dz_i| (|z_i| + |b|), and the minorant offset.
    """
    state = cursor_state(shard, key)
    if isinstance(loss, TracedLoss):
        slopes, sums = loops_of(shard).mixed_tangent(shard, loss, state["z"], state.get("dz"), t, mix)
        value, offset, size, cancellation = sums.tolist()
        rounding = CUT_ROUNDING * (size + (cancellation if t else 0.0))
        return value, scatter(shard, linear_map, w, slopes)[0], rounding, offset
    # reuse the last evaluation if it was at the same t, under the same loss and without shifts
    evaluation = state.get("evaluation")
    if evaluation is not None and (evaluation.t != t or evaluation.loss != loss or mix != [(0.0, 1.0)]):
        evaluation = None
    value, rounding, offset, grad = 0.0, 0.0, 0.0, namespace(w).zeros_like(w)
    for block, (i, j) in enumerate(blocks(shard, linear_map)):
        before, dz = _line_scores(shard, linear_map, state, i, j)
        z = before + t * dz if t else before
        if evaluation is None:
            v, slope, error, raised = mix_tangents(loss, z, shard.y[i:j], shard.c[i:j], mix)
        else:
            v, slope, raised = evaluation.tangents[block]
            error = CUT_ROUNDING * inner(abs(slope), abs(z))
        # z + t dz may be small while z and t dz are large: their rounding errors remain
        if t:
            error += cancellation_error(slope, before, t * dz)
        value, rounding, offset = value + float(v), rounding + error, offset + float(raised)
        linear_map.pullback(shard.X, slope, i, j, grad)
    return value, grad, rounding, offset


def mix_tangents(
    loss: Loss, z: Array, y: Array, c: Array, mix: list[tuple[float, float]]
) -> tuple[float, Array, float, float]:
    """A mixed tangent, sum_k m_k of loss and gradient at scores z + b_k, for the (b_k, m_k) of mix.

    Returns the value, the gradient in z, a bound on the rounding error and the minorant offset.
    """
    value, offset = 0.0, 0.0
    dz: Array = 0.0
    for b, m in mix:
        v, g, raised = loss.offset_tangent(z + b if b else z, y, c)
        value, offset = value + m * float(v), offset + m * float(raised)
        # a mixture of one is the tangent itself
        dz = g if m == 1 else dz + m * g
    # the offset of the cut is value - dz'(z + b): its products may cancel, but their errors remain
    size = inner(abs(dz), abs(z) + max(abs(b) for b, _ in mix))
    return value, dz, CUT_ROUNDING * size, offset


def cancellation_error(slope: Array, z: Array, step: Array) -> float:
    """Bound on the rounding error of a cut at scores z + step, where z and step may cancel."""
    return CUT_ROUNDING * inner(abs(slope), abs(z) + abs(step))


def inner(a: Array, b: Array) -> float:
    """The inner product of two arrays of scores of the same shape."""
    return float(a @ b if a.ndim == 1 else a.reshape(-1) @ b.reshape(-1))


def _line_blocks(shard: Shard, linear_map: LinearMap, state: dict[str, Any]) -> Iterator[tuple[int, int]]:
    """Ranges of rows to evaluate together on a line."""
    if has_score_matrix(linear_map) or isinstance(shard.X, Sequences):
        yield from blocks(shard, linear_map)
        return
    z = state["z"]
    # a CPU is fastest on blocks that stay in cache; a GPU on all rows at once
    # rows per block with one cached score per row
    step = 4096 if namespace(z) is np else max(len(z), 1)
    yield from ((i, min(i + step, len(z))) for i in range(0, len(z), step))


def _line_scores(
    shard: Shard, linear_map: LinearMap, state: dict[str, Any], i: int, j: int
) -> tuple[Array, Array]:
    """The scores of the rows i to j, and those of the direction (None if there is no direction)."""
    if "z" in state:
        shared = linear_map.shared
        return _score_range(state["z"], i, j, shared), _score_range(state.get("dz"), i, j, shared)
    d = state.get("d")
    dz = None if d is None else linear_map.scores(shard.X, d, i, j)
    return linear_map.scores(shard.X, state["w"], i, j), dz


def _score_range(z: Array, i: int, j: int, shared: int) -> Array:
    """The scores of the rows i to j, followed by the shared rows of scores."""
    if z is None or not shared:
        return None if z is None else z[i:j]
    return namespace(z).concat([z[i:j], z[-shared:]])


def has_score_matrix(linear_map: LinearMap) -> bool:
    """Whether scores are two-dimensional: several outputs, or scores that examples share."""
    return linear_map.columns > 1 or linear_map.shared > 0

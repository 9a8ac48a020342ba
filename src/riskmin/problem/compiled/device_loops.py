"""The functions of `row_loops` for rows on a GPU: the same programs of a loss, as the source of CUDA kernels.

Labels, scores and slopes stay on the device; sums over rows are copied to this process, one copy per call.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from riskmin.arrays.devices.gpu import as_cupy, from_cupy, on_stream_of, to_library_of
from riskmin.arrays.namespace import as_array_like, to_numpy
from riskmin.core import Array, LinearMap, NDArray, Shard
from riskmin.core.deadline import check
from riskmin.problem.compiled.tracing import RowProgram, TracedLoss, sampled_rows


def _kernels() -> Any:
    from riskmin._cuda import kernels

    return kernels


@lru_cache(maxsize=64)
def _code(program: RowProgram) -> Any:
    return _kernels().LossCode.from_program(program)


def agrees_with_array_code(traced: TracedLoss, y: Array, c: Array) -> bool:
    """Whether a loss has the values, slopes and offsets of its array code on a sample of rows."""
    labels, weights = (to_numpy(a).astype(np.float64) for a in sampled_rows(y, c))
    try:
        with on_stream_of(y), np.errstate(all="ignore"):
            rows, mix = _kernels().Rows.from_arrays(as_cupy(labels), as_cupy(weights)), as_cupy([0.0, 1.0])

            def compiled(z: NDArray) -> NDArray:
                slopes, sums = _kernels().mixed_tangent(as_cupy(z), None, 0.0, mix, rows, _code(traced.first))
                return np.concatenate([sums.get()[:2], slopes.get()])

            return traced.agrees_with(compiled, labels, weights)
    # an operation that NVRTC does not compile, or scores that the array code refuses
    except Exception:
        return False


def labels(shard: Shard) -> Any:
    """Labels and weights as kernels read them; cached with the shard."""
    if "gpu_labels" not in shard.cache:
        shard.cache["gpu_labels"] = _kernels().Rows.from_arrays(as_cupy(shard.y), as_cupy(shard.c))
    return shard.cache["gpu_labels"]


def _optional(a: Any) -> Any:
    return None if a is None else as_cupy(a)


def line_sums(
    shard: Shard, traced: TracedLoss, z: Array, dz: Array | None, t: float, b: float, *, second: bool = False
) -> NDArray:
    """The loss at z + t dz + b and its derivatives in t and b, in the slots of `_numba.traced`."""
    check()
    with on_stream_of(shard.c):
        code = _code(traced.second if second else traced.first)
        sums = _kernels().line_sums(as_cupy(z), _optional(dz), t, b, labels(shard), code)
        return np.asarray(sums.get())


def line_values(shard: Shard, traced: TracedLoss, z: Array, dz: Array, points: NDArray) -> NDArray:
    """The loss and its slope in t at z + t dz, for up to 16 numbers t, in one launch: of shape (len, 2)."""
    check()
    k = _kernels()
    padded = np.resize(points, k.POINTS)
    with on_stream_of(shard.c):
        line = as_cupy(z), as_cupy(dz), as_cupy(padded)
        sums = k.many_points(*line, 0.0, labels(shard), _code(traced.first))
        return np.asarray(sums.get())[: len(points)]


def mixed_tangent(
    shard: Shard, traced: TracedLoss, z: Array, dz: Array | None, t: float, mix: list[tuple[float, float]]
) -> tuple[Array, NDArray]:
    """The mixture of gradients in the scores z + t dz + b, for the pairs (b, weight) of mix, and four sums.

    The sums are those of `row_loops.mixed_tangent`.
    """
    check()
    pairs = as_numbers(mix)
    with on_stream_of(shard.c):
        slopes, sums = _kernels().mixed_tangent(
            as_cupy(z), _optional(dz), t, as_cupy(pairs), labels(shard), _code(traced.first)
        )
        return from_cupy(slopes, shard.c), np.asarray(sums.get())


def as_numbers(mix: list[tuple[float, float]]) -> NDArray:
    """All shifts of a mixture, then all weights."""
    return np.array([b for b, _ in mix] + [m for _, m in mix])


def score_cut(
    shard: Shard, traced: TracedLoss, z: Array, b: float, unsmoothed: tuple[TracedLoss, Array] | None = None
) -> tuple[Array, Array, NDArray]:
    """Slopes and second derivatives of all rows at z + b, on the device, and the sums of the cut.

    The sums are in the slots of `_numba.newton.slots`. The value is that of the `unsmoothed` loss at its
    scores plus b, if it is given.
    """
    check()
    k, rows = _kernels(), labels(shard)
    with on_stream_of(shard.c):
        slopes, curvatures, sums = k.score_cut(as_cupy(z), b, rows, _code(traced.second))
        if unsmoothed is not None:
            loss, scores = unsmoothed
            sums[:1] = k.line_sums(as_cupy(scores), None, 0.0, b, rows, _code(loss.first))[:1]
        return from_cupy(slopes, shard.c), from_cupy(curvatures, shard.c), np.asarray(sums.get())


# ---------------------------------------------------------------- one pass over X
def value_grad(shard: Shard, traced: TracedLoss, linear_map: LinearMap, w: Array) -> tuple[float, Array]:
    """The loss of the shard's rows and its gradient in w: in one read of X where rows are not too long."""
    X: Any = shard.X
    inner: Any = linear_map
    one_pass = X.one_pass
    if one_pass and inner.is_identity:
        return _one_pass(shard, traced, w, 0.0)[:2]
    if one_pass and inner.standardized and inner.inner.is_identity:
        # shifted and scaled columns: z = X (s w) - m'(s w), with the adjoint s (X' dz - m (1' dz))
        scaled = inner.scaled(w)
        value, grad, slope = _one_pass(shard, traced, scaled, -float(inner.offset(scaled)))
        return value, inner.scaled(grad - slope * as_array_like(inner.shift, grad))
    z, grad = linear_map.scores(shard.X, w, 0, shard.X.shape[0]), 0.0 * w
    slopes, sums = mixed_tangent(shard, traced, z, None, 0.0, [(0.0, 1.0)])
    linear_map.pullback(shard.X, slopes, 0, len(slopes), grad)
    return float(sums[0]), grad


def _one_pass(shard: Shard, traced: TracedLoss, w: Array, b: float) -> tuple[float, Array, float]:
    """The loss at the scores X w + b, its gradient X' dz, and the sum of dz."""
    X: Any = shard.X
    check()
    with on_stream_of(X.X):
        out = X.kernels.value_grad(as_cupy(w)[None, :], b, labels(shard), _code(traced.first))[0]
        p = X.shape[1]
        if isinstance(w, np.ndarray):  # one copy, of gradient and sums
            host = out.get()
            return float(host[p]), host[:p], float(host[p + 1])
        sums = out[p:].get()
        return float(sums[0]), to_library_of(out[:p], w), float(sums[1])

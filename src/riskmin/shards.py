"""What runs on a shard: top-level functions, so that any executor can send them anywhere.

An oracle call is one pass over X: a block of rows is scored, its loss is taken, and its gradient is scattered
while the rows are still in cache. Cursors keep the scores of a point in the memo of the shard instead, so
that a line search costs O(n) a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from riskmin.arrays import like, namespace, to_numpy
from riskmin.maps import passing
from riskmin.scalar import ROUNDING
from riskmin.types import Array, Loss, Lost, Scorer, Shard

MOST_SCORES = 2**17
"""Blocks have at most so many scores, so that these stay in cache too."""
MOST_KEPT = 2**22
"""Where rows have many scores and a shard more than this, they are computed anew at each look, not kept."""
LOOK_ROWS = 4096
"""How many rows are looked at together, where they have one score each."""


def blocks(shard: Shard, scorer: Scorer) -> Iterable[tuple[int, int]]:
    """Ranges of rows to score together."""
    X: Any = shard.X
    if hasattr(X, "blocks"):  # of sequences, which cannot be cut anywhere
        found: Iterable[tuple[int, int]] = X.blocks(scorer.columns)
        return found
    n, step = X.shape[0], X.block_rows
    if not getattr(X, "whole", False):
        step = max(min(step, MOST_SCORES // scorer.columns), 16)
    return passing((i, min(i + step, n)) for i in range(0, n, step))


def value_grad(shard: Shard, loss: Loss, scorer: Scorer, w: Array) -> tuple[float, Array]:
    """The loss and its gradient in w."""
    value, grad = 0.0, namespace(w).zeros_like(w)
    for i, j in blocks(shard, scorer):
        v, dz = loss.value_grad(scorer.scores(shard.X, w, i, j), shard.y[i:j], shard.c[i:j])
        value += float(v)
        scorer.pullback(shard.X, dz, i, j, grad)
    return value, grad


def scores(shard: Shard, scorer: Scorer, w: Array) -> Array:
    """The scores of all rows, and once at their end those that rows share."""
    parts = [scorer.scores(shard.X, w, i, j) for i, j in blocks(shard, scorer)]
    if shared := _shared(scorer):
        parts = [*(part[:-shared] for part in parts), parts[-1][-shared:]]
    return parts[0] if len(parts) == 1 else namespace(parts[0]).concat(parts)


def labels(shard: Shard) -> tuple[Array, Array]:
    """Labels and weights."""
    return shard.y, shard.c


def scatter(shard: Shard, scorer: Scorer, w: Array, dz: Array) -> tuple[Array]:
    """The gradient in w, given that in the scores."""
    grad = namespace(w).zeros_like(w)
    for i, j in blocks(shard, scorer):
        scorer.pullback(shard.X, dz[i:j], i, j, grad)
    return (grad,)


# ---------------------------------------------------------------- kept scores
def place(shard: Shard, key: int, live: set[int], scorer: Scorer, w: Array) -> float:
    """Keep the scores of w, and forget those of the cursors that are gone; the largest of them."""
    cursors = shard.memo.setdefault("cursors", {})
    for gone in cursors.keys() - live:
        del cursors[gone]
    large = scorer.columns > 1 and shard.X.shape[0] * scorer.columns > MOST_KEPT
    cursors[key] = {"w": w} if large else {"z": scores(shard, scorer, w)}
    return largest(cursors[key].get("z"))


def largest(z: Array) -> float:
    """The largest absolute score; 0 of none."""
    return 0.0 if z is None or 0 in z.shape else float(abs(z).max())


def _kept(shard: Shard, key: int) -> dict[str, Any]:
    """What is kept for a cursor."""
    try:
        found: dict[str, Any] = shard.memo["cursors"][key]
    except KeyError:
        raise Lost("the scores of a point") from None
    return found


def aim(shard: Shard, key: int, scorer: Scorer, d: Array) -> None:
    """Keep the scores of a direction."""
    kept = _kept(shard, key)
    if "z" in kept:
        kept["dz"] = scores(shard, scorer, d)
    else:
        kept["d"] = d


def move(shard: Shard, key: int, t: float) -> float:
    """Go along it; the largest score there."""
    kept = _kept(shard, key)
    point, way = ("z", "dz") if "z" in kept else ("w", "d")
    kept[point] = kept[point] + t * kept[way]
    look = kept.pop("look", None)
    if look is not None and look.t == t:
        kept["look"] = look._replace(t=0.0)
    return largest(kept.get("z"))


def along(
    shard: Shard, key: int, loss: Loss, scorer: Scorer, t: float, b: float
) -> tuple[float, float, float]:
    """The loss at scores z + t dz + b, with its slopes in t and in b."""
    kept = _kept(shard, key)
    value = slope_t = slope_b = 0.0
    seen: list[tuple[Any, Array, Any]] = []
    keeps = _many(scorer) and "z" in kept and not b
    for i, j in _looks(shard, scorer, kept):
        z, dz = _line(shard, scorer, kept, i, j)
        here = z + t * dz if t else z  # added up as in `pull` and `move`: at a kink, the last bit decides on
        here = here + b if b else here  # the slope, and theirs must be the same
        v, g, *up = tangent(loss, here, shard.y[i:j], shard.c[i:j])
        value += float(v)
        slope_b += float(g.sum())
        if dz is not None:
            slope_t += inner(g, dz)
        if keeps:
            seen.append((v, g, sum(up)))
    if keeps:
        kept["look"] = Look(t, loss, seen)
    return value, slope_t, slope_b


def shifted(shard: Shard, key: int, loss: Loss, scorer: Scorer, b: Array) -> tuple[float, Array]:
    """The loss at scores z + b, b one number a column, and its slopes in b."""
    kept = _kept(shard, key)
    value, slopes, seen = 0.0, 0.0 * b, []
    for i, j in blocks(shard, scorer):
        z, _ = _line(shard, scorer, kept, i, j)
        v, g, *up = tangent(loss, z + like(b, z), shard.y[i:j], shard.c[i:j])
        value, slopes = value + float(v), slopes + to_numpy(g.sum(0))
        seen.append((v, g, sum(up)))
    if "z" in kept:
        kept["at"], kept["look"] = b, Look(0.0, loss, seen)
    return value, slopes


def shift(shard: Shard, key: int, b: Array) -> None:
    """Add b to all scores."""
    kept = _kept(shard, key)
    if "z" not in kept:
        kept["w"] = namespace(kept["w"]).concat(
            [kept["w"][: -len(b)], kept["w"][-len(b) :] + like(b, kept["w"])]
        )
        return
    kept["z"] = kept["z"] + like(b, kept["z"])
    if not np.array_equal(kept.pop("at", None), b):
        kept.pop("look", None)  # the last look was elsewhere


class Look(NamedTuple):
    """The last look of losses that cost more than to keep it: a step ends where it was looked at last."""

    t: float
    loss: Loss
    seen: list[tuple[Any, Array, Any]]
    """Value, gradient and lift, a block of rows each."""


def pull(
    shard: Shard, key: int, loss: Loss, scorer: Scorer, w: Array, t: float, mix: list[tuple[float, float]]
) -> tuple[float, Array, float, float]:
    """sum_k m_k of (loss, gradient in w) at scores z + t dz + b_k, for the (b_k, m_k) of mix.

    And what rounding may have added, by the size of what cancels, sum_i |dz_i| (|z_i| + |b|); and the lift.
    """
    kept = _kept(shard, key)
    look = kept.get("look")
    if look is not None and (look.t != t or look.loss != loss or mix != [(0.0, 1.0)]):
        look = None
    value, rounding, lift, grad = 0.0, 0.0, 0.0, namespace(w).zeros_like(w)
    for at, (i, j) in enumerate(blocks(shard, scorer)):
        before, dz = _line(shard, scorer, kept, i, j)
        z = before + t * dz if t else before
        if look is None:
            v, slope, more, up = mixture(loss, z, shard.y[i:j], shard.c[i:j], mix)
        else:
            v, slope, up = look.seen[at]
            more = ROUNDING * inner(abs(slope), abs(z))
        if t:
            more += cancelled(slope, before, t * dz)
        value, rounding, lift = value + float(v), rounding + more, lift + float(up)
        scorer.pullback(shard.X, slope, i, j, grad)
    return value, grad, rounding, lift


def tangent(loss: Loss, z: Array, y: Array, c: Array) -> tuple[Any, ...]:
    """Value and gradient, and the lift, if the loss has one."""
    lifted = getattr(loss, "tangent", None)  # that of `Lifted`, which to ask for costs more than a small loss
    found: tuple[Any, ...] = loss.value_grad(z, y, c) if lifted is None else lifted(z, y, c)
    return found


def mixture(
    loss: Loss, z: Array, y: Array, c: Array, mix: list[tuple[float, float]]
) -> tuple[float, Array, float, float]:
    """sum_k m_k of loss and gradient at scores z + b_k, for the (b_k, m_k) of mix, rounding and lift."""
    value, lift = 0.0, 0.0
    dz: Array = 0.0
    for b, m in mix:
        v, g, *up = tangent(loss, z + b if b else z, y, c)
        value, lift = value + m * float(v), lift + m * float(sum(up))
        dz = g if m == 1 else dz + m * g
    size = inner(abs(dz), abs(z) + max(abs(b) for b, _ in mix))
    return value, dz, ROUNDING * size, lift


def cancelled(slope: Array, z: Array, step: Array) -> float:
    """What rounding may have added to a cut at scores z + step, by their sizes before these cancelled."""
    return ROUNDING * inner(abs(slope), abs(z) + abs(step))


def inner(a: Array, b: Array) -> float:
    """The inner product of two arrays of scores."""
    return float(a @ b if a.ndim == 1 else a.reshape(-1) @ b.reshape(-1))


def _looks(shard: Shard, scorer: Scorer, kept: dict[str, Any]) -> Iterator[tuple[int, int]]:
    """Ranges of rows to look at together."""
    if _many(scorer) or hasattr(shard.X, "blocks"):
        yield from blocks(shard, scorer)
        return
    z = kept["z"]
    # what is in cache is fast on a processor; a GPU wants all of it at once
    step = LOOK_ROWS if isinstance(z, np.ndarray) else max(len(z), 1)
    yield from ((i, min(i + step, len(z))) for i in range(0, len(z), step))


def _line(shard: Shard, scorer: Scorer, kept: dict[str, Any], i: int, j: int) -> tuple[Array, Array]:
    """The scores of a range of rows, and how they change along the direction."""
    if "z" in kept:
        shared = _shared(scorer)
        return _range(kept["z"], i, j, shared), _range(kept.get("dz"), i, j, shared)
    d = kept.get("d")
    return scorer.scores(shard.X, kept["w"], i, j), None if d is None else scorer.scores(shard.X, d, i, j)


def _range(z: Array, i: int, j: int, shared: int) -> Array:
    if z is None or not shared:
        return None if z is None else z[i:j]
    return namespace(z).concat([z[i:j], z[-shared:]])


def _many(scorer: Scorer) -> bool:
    return scorer.columns > 1 or _shared(scorer) > 0


def _shared(scorer: Scorer) -> int:
    """How many rows of scores are no example's, but belong to all: those of transitions."""
    return getattr(scorer, "shared", 0)

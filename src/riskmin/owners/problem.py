r"""The owner's side of one fit: sums over its rows for a claimed problem, each behind the protections.

.. math:: J_k(w) = \lambda\,\Omega(w) + \sum_{i \in k} c_i\, l(z_i, y_i) / \sum_{i \in k} c_i

is the claimed objective on the owner's rows, which must fall over the points of the gradients.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from riskmin.core import NDArray, Shard
from riskmin.linear_maps.linear import Standardized
from riskmin.losses.base import Loss, OffsetSmoothed
from riskmin.losses.nondecomposable.by_query import QueryLoss, QueryRows, QuerySeparable
from riskmin.numerics.precision import CUT_ROUNDING
from riskmin.owners.protection.geometry import RevealedSpan
from riskmin.owners.protection.guard import (
    DescentCheck,
    GuardedTangents,
    Rounding,
    ScorePoint,
    ScoreTangent,
    sanitized_moments,
    too_small,
)
from riskmin.owners.protection.noise import GaussianNoise, PrivacyAccount
from riskmin.owners.protection.policy import AnswerRefused, Policy
from riskmin.owners.risk import constant_scores, in_units_of_rows
from riskmin.owners.wire.answers import Answer
from riskmin.owners.wire.codec import MessageError
from riskmin.owners.wire.operations import OPERATIONS
from riskmin.problem import shard_ops


class EvaluatedTangent(NamedTuple):
    """The tangent at some scores, and the one by which it is answered."""

    value: float
    z: NDArray
    answered: ScoreTangent
    is_own: bool


@dataclass(frozen=True, eq=False)
class Claim:
    """The problem that a coordinator claims to solve: J(w) = lam Omega(sizes * w) + R(w)."""

    loss: Loss
    reg: Any
    lam: float
    sizes: NDArray | None

    def penalty(self, w: NDArray) -> float:
        """Return lam Omega of weights in the units of X."""
        return self.lam * float(self.reg.value(w if self.sizes is None else self.sizes * w))

    def allows(self, loss: Loss) -> bool:
        """Whether a loss is the claimed one, or a smoothed form of it."""
        return loss == self.loss or (isinstance(loss, OffsetSmoothed) and loss.loss == self.loss)


class OwnerProblem:
    """The state of one fit at an owner.

    Parameters
    ----------
    shard : Shard
        The owner's rows, with labels as the loss takes them, and weights relative to those of all owners.
    policy : Policy
    account : PrivacyAccount, optional
        With it, answers get noise.
    span : RevealedSpan
        What all answers of the owner reveal.
    tangents : callable
        Returns the answers to a loss for these rows, labels and weights, which all runs share.
    column_sizes : callable
        Returns powers of two that are not below the largest absolute entry of each column.
    """

    MAX_POINTS = 64
    """Points whose scores are kept at the same time."""
    MAX_MAPS = 16
    ONCE_PER_STAGE = 64
    """How often sums that a run needs at its start and end only are answered: moments, sizes of terms."""

    def __init__(
        self,
        shard: Shard,
        policy: Policy,
        account: PrivacyAccount | None,
        span: RevealedSpan,
        tangents: Callable[[Loss, Shard], GuardedTangents],
        column_sizes: Callable[[], NDArray],
    ) -> None:
        self.shard, self.policy, self.account = shard, policy, account
        self.span, self.tangents, self.column_sizes = span, tangents, column_sizes
        self.noise: GaussianNoise | None = None
        self.share = float(shard.c.sum())
        self.maps: OrderedDict[str, Any] = OrderedDict()
        self.points: dict[int, tuple[NDArray, NDArray | None]] = {}
        self.claim: Claim | None = None
        self.coarse = False
        self.counts: dict[str, int] = {}
        self.rounding = Rounding(0, 0.0)

    def add_map(self, digest: str, linear_map: Any) -> None:
        """Keep a linear map, and drop the one that was used longest ago if there are too many."""
        self.maps[digest] = linear_map
        if len(self.maps) > self.MAX_MAPS:
            self.maps.popitem(last=False)

    def query_total(self, loss: Any) -> float:
        """Return the sum of the mean weights of the owner's queries, for a ranking loss."""
        y, c = self.shard.y, self.shard.c
        return float(QueryRows.from_labels(loss, y, c, relevant=loss.relevant, total=1.0).mean.sum())

    def set_claim(self, claim: Claim, outputs: int) -> tuple[float, float]:
        """Set the claimed problem; return the owner's risk at w = 0, rounded up, and the error."""
        n = self.shard.X.shape[0]
        shape = (n, outputs) if outputs else (n,)
        if self.claim is not None:
            raise AnswerRefused("a problem was claimed before: open another run")
        value = float(claim.loss.value_grad(np.zeros(shape), self.shard.y, self.shard.c)[0])
        if self.account is not None:
            largest = float(self.shard.c.max())
            self.noise = GaussianNoise(self.policy, claim.loss, largest, self.account)
        self.claim = claim
        self.rounding = Rounding(self.policy.digits, value)
        self.descent = DescentCheck(self.policy, value / self.share)
        return self.rounding.value(value)

    # ------------------------------------------------------------ operations
    def answer(self, name: str, args: dict[str, Any]) -> Answer:
        """Return the answer to an operation with checked arguments, or raise `AnswerRefused`."""
        if {"map", "w"} <= args.keys() and len(args["w"]) != args["map"].dim(self.shard.X.shape[1]):
            raise MessageError(f"w has {len(args['w'])} entries, which is not the length of its map")
        if "loss" in args:
            if self.claim is None:
                raise AnswerRefused("no problem was claimed: state loss, regularizer and lam first")
            if not self.claim.allows(args["loss"]):
                raise AnswerRefused("the loss is not that of the claimed problem")
        method = getattr(self, f"_{name}")
        answer: Answer = method(**args)
        return answer

    def _limited(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1
        if self.counts[name] > self.ONCE_PER_STAGE:
            raise AnswerRefused(
                f"{name} was answered {self.ONCE_PER_STAGE} times in this run: open another run"
            )

    def _cache_scores(self, key: int, live: set[int], map: Any, w: NDArray) -> Answer:
        self.points = {k: point for k, point in self.points.items() if k in live} | {key: (w, None)}
        # the oldest points are dropped: a coordinator that still needs one sends it again
        while len(self.points) > self.MAX_POINTS:
            del self.points[next(iter(self.points))]
        shard_ops.cache_scores(self.shard, key, set(self.points), map, w)
        # the largest score is that of one row: the norm of w, by which it grows and shrinks, stands for it
        norm = float(np.linalg.norm(w))
        return Answer((norm,), norm=norm)

    def _set_direction(self, key: int, map: Any, w: NDArray) -> Answer:
        shard_ops.set_direction(self.shard, key, map, w)
        self.points[key] = self.points[key][0], w
        return Answer(())

    def _advance(self, key: int, map: Any, t: float) -> Answer:
        point = self._point(key, t)
        shard_ops.advance(self.shard, key, map, t)
        self.points[key] = point, self.points[key][1]
        norm = float(np.linalg.norm(point))
        return Answer((norm,), norm=norm)

    def _shift_scores(self, key: int, shift: NDArray) -> Answer:
        point, d = self._point(key, 0.0), self.points[key][1]
        if len(shift) > len(point):
            raise MessageError("the shift has more entries than w")
        shard_ops.shift_scores(self.shard, key, shift)
        self.points[key] = np.concatenate([point[: -len(shift)], point[-len(shift) :] + shift]), d
        return Answer(())

    def _value_slopes(self, key: int, loss: Loss, map: Any, t: float, b: float) -> Answer:
        found = self._tangent(key, loss, map, t, b)
        if found.is_own:
            value, slope, shift_slope = shard_ops.value_slopes(self.shard, key, loss, map, t, b)
        else:
            u, dz = found.answered.slopes, shard_ops.cursor_state(self.shard, key).get("dz")
            value = found.answered.height(found.z) + found.answered.error
            slope, shift_slope = (0.0 if dz is None else float(u.ravel() @ dz.ravel())), float(u.sum())
        if self.noise is not None:
            self._require_no_shift([(b, 1.0)])
            value, slope = self.noise.line(value, slope, self._point(key, t), self.points[key][1])
            shift_slope = 0.0
        return Answer((self.rounding.value(value)[0], self.rounding.slope(slope), shift_slope), value=value)

    def _value_grad_of_shift(self, key: int, loss: Loss, map: Any, shift: NDArray) -> Answer:
        self._refuse_noise_free("a model with intercepts")
        found = self._tangent(key, loss, map, 0.0, shift)
        if found.is_own:
            value, slopes = shard_ops.value_grad_of_shift(self.shard, key, loss, map, shift)
        else:
            value, slopes = (
                found.answered.height(found.z) + found.answered.error,
                found.answered.slopes.sum(0),
            )
        return Answer((self.rounding.value(value)[0], slopes), value=value)

    def _pull_back(self, key: int, loss: Loss, map: Any, t: float, mix: list[tuple[float, float]]) -> Answer:
        assert self.claim is not None
        w = self._point(key, 0.0)
        if self.noise is not None:
            return self._noisy_pull_back(key, loss, map, t, mix)
        found = [(m, self._tangent(key, loss, map, t, b)) for b, m in mix]
        point = in_units_of_rows(self._point(key, t), map)
        value = sum(m * self._claimed_value(loss, each) for m, each in found) / self.share
        value += self.claim.penalty(point)
        exact = all(each.is_own for _, each in found)
        # points that follow from coarse answers may rise
        self.coarse = self.coarse or not exact
        if not self.coarse:
            self.descent.take(value)
        if exact:
            parts = shard_ops.pull_back(self.shard, key, loss, map, w, t, mix)
        else:
            parts = self._mixed_tangents(found, map, w)
        risk, grad, rounding, offset = parts
        risk, error = self.rounding.value(risk)
        grad, gradient_error = self.rounding.gradient(grad, map.n_intercepts)
        result = risk, grad, rounding + error, offset
        return Answer(result, gradient_error, value, float(np.linalg.norm(point)))

    def _noisy_pull_back(
        self, key: int, loss: Loss, map: Any, t: float, mix: list[tuple[float, float]]
    ) -> Answer:
        """Return value and gradient with noise; all that follows depends on the noisy numbers only."""
        assert self.claim is not None
        assert self.noise is not None
        self._require_no_shift(mix)
        if loss != self.claim.loss or not map.is_identity:
            raise AnswerRefused(
                "noise is for the claimed loss, and for columns as they are: choose bundle or lbfgs"
            )
        w, point = self._point(key, 0.0), self._point(key, t)
        risk, grad, rounding, offset = shard_ops.pull_back(self.shard, key, loss, map, w, t, mix)
        risk, grad, error, gradient_error = self.noise.tangent(risk, grad, point)
        value = risk / self.share + self.claim.penalty(point)
        self.descent.take(value)
        norm = float(np.linalg.norm(point))
        return Answer((risk, grad, rounding + error, offset), gradient_error, value, norm)

    def _require_no_shift(self, mix: list[tuple[float, float]]) -> None:
        """Raise if a model has an intercept: no bound of it is known, by which noise in its slope counts."""
        if any(b for b, _ in mix):
            raise AnswerRefused(
                "noise is for models without an intercept: fit without, or add a column of ones"
            )

    def _refuse_noise_free(self, name: str) -> None:
        if self.account is not None:
            raise AnswerRefused(f"{name} is not answered by an owner that adds noise")

    def _hessian_product(self, key: int, loss: Loss, map: Any, w: NDArray, b: float) -> Answer:
        self._refuse_noise_free("a product with the Hessian")
        state = shard_ops.cursor_state(self.shard, key)
        hessian = None if map.columns > 1 else loss.hessian(state["z"] + b, self.shard.y, self.shard.c)
        if hessian is None or hessian.low_rank or hessian.pair_blocks:
            raise AnswerRefused("the loss has no second derivatives that are one number per row")
        # X' h X d is a sum over rows with the coefficients h_i x_i'd, protected like slopes
        slopes = hessian.diagonal * shard_ops.scores(self.shard, map, w)
        self._reveal(slopes)
        (product,) = shard_ops.hessian_product_at(self.shard, key, loss, map, w, b)
        return Answer((self.rounding.gradient(product, 0)[0],))

    # ------------------------------------------------------------ sums at the start and end of a run
    def _column_moments(self, flag: bool) -> Answer:
        self._limited("column_moments")
        self._refuse_noise_free("moments of columns, for standardize,")
        if self.policy.min_owners:
            raise AnswerRefused("masks are for sums, and moments are none: fit without standardize")
        self._reveal(self.shard.c)
        moments = OPERATIONS["column_moments"].function(self.shard, flag)
        return Answer(() if moments is None else tuple(sanitized_moments(moments)))

    def _sampled_moments(self, t: float) -> Answer:
        self._limited("sampled_moments")
        if self.policy.min_owners or self.account is not None:
            return Answer(())  # no change of variables, which would only make a run faster
        self._reveal(self.shard.c)
        # all rows, whatever share was asked for: the moments of a sample of one row are that row
        moments = OPERATIONS["sampled_moments"].function(self.shard, 1.0)
        return Answer(() if moments is None else tuple(moments))

    def _class_sums(self, map: Any) -> Answer:
        self._limited("class_sums")
        self._refuse_noise_free("a sum over classes")
        self._reveal(self.shard.c[:, None] * (self.shard.y[:, None] == np.arange(map.columns)))
        return Answer(OPERATIONS["class_sums"].function(self.shard, map))

    def _score_moments(self, map: Any, w: NDArray) -> Answer:
        self._limited("score_moments")
        self._refuse_noise_free("a sum over scores")
        z = shard_ops.scores(self.shard, map, w).reshape(len(self.shard.c), -1)
        # sums of c_i z_i, and of their products with z_i
        self._reveal(self.shard.c[:, None] * np.column_stack([np.ones(len(z)), z]))
        return Answer(OPERATIONS["score_moments"].function(self.shard, map, w))

    def _term_sizes(self, loss: Loss, map: Any, w: NDArray, b: float, t: float) -> Answer:
        self._limited("term_sizes")
        if self.account is not None:
            # bounds that hold for any rows: slopes are at most one
            return Answer((np.full(len(w), self.share * self.policy.max_row_norm), self.share))
        # an estimate of rounding errors, by the sizes of columns alone: slopes count as one
        inner, sizes = map.without_intercepts, self.column_sizes()
        if isinstance(inner, Standardized):
            sizes = (sizes + np.abs(inner.shift)) / inner.scale
        columns = np.concatenate([np.repeat(sizes, map.columns), np.ones(map.n_intercepts)])
        return Answer((self.share * columns, self.share))

    # ------------------------------------------------------------ tangents
    def _tangent(self, key: int, loss: Loss, map: Any, t: float, b: Any) -> EvaluatedTangent:
        """Return the tangent at the scores z + t dz + b, and the one by which it is answered."""
        state = shard_ops.cursor_state(self.shard, key)
        z = state["z"] if "z" in state else shard_ops.scores(self.shard, map, state["w"])
        if t:
            if "dz" not in state and "d" not in state:
                raise MessageError("a step was asked for, but no direction was set")
            z = z + t * (state["dz"] if "dz" in state else shard_ops.scores(self.shard, map, state["d"]))
        if np.size(b) > 1 and np.shape(b) != z.shape[1:]:
            raise MessageError("the shift has another number of entries than there are outputs")
        z = z + b if np.any(b) else z
        own = tangent_at(loss, self.shard, z)
        value = own.height(z)
        if self.account is not None:
            return EvaluatedTangent(value, z, own, True)
        answered = self.tangents(loss, self.shard).answer(own, self._score_point(z, key, map, t, b))
        return EvaluatedTangent(value, z, answered, answered is own)

    def _score_point(self, z: NDArray, key: int, map: Any, t: float, b: Any) -> ScorePoint:
        w, p = self._point(key, t), self.shard.X.shape[1]
        weights = in_units_of_rows(w, map).reshape(p, -1)
        return ScorePoint(z, weights, constant_scores(w, map, p) + b)

    def _reveal(self, slopes: NDArray) -> None:
        """Count what an answer with these multipliers reveals; raise `AnswerRefused` if it exposes rows."""
        exposed = self.span.add(slopes)
        if exposed.any():
            raise AnswerRefused(too_small(int(exposed.sum()), len(exposed)))

    def _mixed_tangents(
        self, found: list[tuple[float, EvaluatedTangent]], map: Any, w: NDArray
    ) -> tuple[float, NDArray, float, float]:
        """Return what `shard_ops.pull_back` returns, with tangents of earlier answers."""
        slopes = sum(m * each.answered.slopes for m, each in found)
        value = sum(m * (each.answered.height(each.z) + each.answered.error) for m, each in found)
        rounding = sum(m * each.answered.error for m, each in found)
        # terms of the heights cancel, but their rounding errors remain
        rounding += CUT_ROUNDING * sum(
            m * (abs(each.answered.offset) + shard_ops.inner(abs(each.answered.slopes), abs(each.z)))
            for m, each in found
        )
        offset = sum(m * each.answered.minorant_offset for m, each in found)
        (grad,) = shard_ops.scatter(self.shard, map, w, slopes)
        return float(value), grad, float(rounding), float(offset)

    def _claimed_value(self, loss: Loss, found: EvaluatedTangent) -> float:
        assert self.claim is not None
        if loss == self.claim.loss:
            return found.value
        return float(self.claim.loss.value_grad(found.z, self.shard.y, self.shard.c)[0])

    def _point(self, key: int, t: float) -> NDArray:
        """Return w + t d of a point whose scores are kept."""
        if key not in self.points:
            shard_ops.cursor_state(self.shard, key)  # raises that the scores are lost
        w, d = self.points[key]
        if t and d is None:
            raise MessageError("a step was asked for, but no direction was set")
        return w if d is None or not t else w + t * d


def tangent_at(loss: Loss, shard: Shard, z: NDArray) -> ScoreTangent:
    """Return the tangent of a loss at some scores."""
    with np.errstate(over="ignore", invalid="ignore"):
        value, slopes, offset = loss.offset_tangent(z, shard.y, shard.c)
        return ScoreTangent(slopes, float(value) - shard_ops.inner(slopes, z), float(offset))


def separable_form(loss: Loss, total: float) -> Loss:
    """Return a loss as a sum over rows or queries; raise a ValueError with the reason if it is none."""
    if loss.separable and loss.task != "tagging":
        return loss
    if isinstance(loss, QueryLoss):
        return QuerySeparable(loss, total)
    what = "whole sequences" if loss.task == "tagging" else "the scores of all rows in one place"
    raise ValueError(
        f"{type(loss).__name__} needs {what}, which owners do not send: choose a loss that is a sum over "
        "rows or queries, such as hinge, logistic or ndcg"
    )


def finite_or_none(x: float | None) -> float | None:
    """Return a number for the log, which JSON can hold."""
    return x if x is not None and math.isfinite(x) else None

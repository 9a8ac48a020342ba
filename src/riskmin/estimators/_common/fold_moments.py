r"""Scores of a cross-validation of squared errors from second moments: X is read once in the whole search.

Rows of the same training and test sets have one matrix M. The moments of the training rows of a fold are a
sum of these, and so are those of its test rows, of which the squared errors of all weights are a quadratic
form.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.metrics import mean_squared_error, r2_score

from riskmin.core import NDArray
from riskmin.core.blas_threads import blas_thread_limit
from riskmin.driver.run import Limits
from riskmin.estimators._common.fit import resolve_loss, resolve_regularizer
from riskmin.estimators._common.scoring import default_score
from riskmin.estimators._common.standardize import rescale_to_standardized
from riskmin.losses import Squared
from riskmin.problem.second_moments import QuadraticRisk, SecondMoments, center_of, total
from riskmin.regularizers.base import Regularizer
from riskmin.solvers import Auto, CoordinateDescent, get_solver
from riskmin.solvers.coordinate.gram_path import gram_path, pays, terms_of

SCORE_TOL = 1e-6
"""Scores of neighboring alphas differ by less than a gap of 1e-3 may, and smaller gaps are nearly free."""
MAX_FOLDS = 31
"""Codes of the training and test sets of a row are integers of so many pairs of bits."""
MIN_VARIANCE_SHARE = 1e-4
"""Standard deviations are those of the moments where these are at least this share of the squares."""


def _r2(squares: NDArray, moments: SecondMoments) -> NDArray | None:
    """1 less the squared errors over those of the mean of y; None if that is rounding error."""
    M = moments.M
    spread = M[-1, -1] - M[0, -1] ** 2 / M[0, 0]
    trusted = moments.n_rows > 1 and spread > SCORE_TOL * M[-1, -1]
    return np.asarray(1 - squares / spread) if trusted else None


def _negative_mean(squares: NDArray, moments: SecondMoments) -> NDArray | None:
    return np.asarray(-squares / moments.M[0, 0])


def score_of_squares(scorer: Any) -> Callable[[NDArray, SecondMoments], NDArray | None] | None:
    """The function of squared errors and test moments that a scorer computes; None for other scorers."""
    if scorer is default_score:
        return _r2
    known = {r2_score: (1, _r2), mean_squared_error: (-1, _negative_mean)}
    sign, score = known.get(getattr(scorer, "_score_func", None), (0, None))
    plain = getattr(scorer, "_sign", 0) == sign and not getattr(scorer, "_kwargs", True)
    return score if plain else None


@dataclass(frozen=True)
class FoldMoments:
    """The moments of all rows of a search, by the folds whose training and test sets hold them."""

    template: Any
    alphas: NDArray
    score: Callable[[NDArray, SecondMoments], NDArray | None]
    parts: list[SecondMoments]
    codes: NDArray
    """Of each part: bit 2 k is set if fold k trains on its rows, bit 2 k + 1 if it tests them."""

    @classmethod
    def of(
        cls, template: Any, data: Any, folds: list[tuple[Any, Any]], alphas: NDArray, scorer: Any
    ) -> FoldMoments | None:
        """The moments for a search; None where it is of another kind, or passes over X cost less."""
        score, n = score_of_squares(scorer), len(data.y)
        if score is None or not _applies(template, data) or len(folds) > MAX_FOLDS:
            return None
        codes = np.zeros(n, np.int64)
        for k, sets in enumerate(folds):
            for bit, rows in zip((1 << 2 * k, 2 << 2 * k), sets, strict=True):
                index = np.arange(n)[rows]
                codes[index] |= bit
                # a row that is drawn twice counts twice
                if len(index) != np.count_nonzero(codes & bit):
                    return None
        kinds, kind_of_row = np.unique(codes, return_inverse=True)
        smallest = min(int(np.count_nonzero(codes & (1 << 2 * k))) for k in range(len(folds)))
        p = data.X.shape[1]
        if not pays(smallest, p, len(folds) * len(alphas)) or len(kinds) * p > 4 * n:
            return None
        center, parts = center_of(data.X, data.y, bool(template.fit_intercept)), []
        with blas_thread_limit(1):
            for kind in range(len(kinds)):
                index = np.flatnonzero(kind_of_row == kind)
                # contiguous rows are not copied
                whole = index[-1] - index[0] == len(index) - 1
                rows = slice(index[0], index[-1] + 1) if whole else index
                weight = None if data.weight is None else data.weight[rows]
                parts.append(SecondMoments.of_rows(data.X[rows], data.y[rows], weight, center))
        return cls(template, alphas, score, parts, kinds)

    def scores(self, k: int) -> list[float] | None:
        """The scores of all alphas in fold k; None if rounding, or a gap above tol, is in the way."""
        train, test = (self._with_bit(2 * k), self._with_bit(2 * k + 1))
        if train is None or test is None:
            return None
        with blas_thread_limit(1), np.errstate(all="ignore"):
            risk = train.risk(bool(self.template.fit_intercept))
            reg = self._regularizer(risk)
            if reg is None or not (np.isfinite(risk.G).all() and math.isfinite(risk.R0)):
                return None
            limits = Limits(self.template.tol, 1, math.inf, self.template.atol)
            atol = limits.absolute(risk.R0)
            order = np.argsort(-self.alphas)
            terms = terms_of(reg, self.alphas[order], len(risk.q))
            found = gram_path(risk, terms, min(limits.tol, SCORE_TOL), 0.0)
            b = risk.intercepts(found.W)[0]
            squares, error = test.squared_errors(found.W, b)
            if not found.accepted(limits.tol, atol).all() or not (error <= SCORE_TOL * squares).all():
                return None
            scores = self.score(squares, test)
        return None if scores is None else scores[np.argsort(order)].tolist()

    def _with_bit(self, bit: int) -> SecondMoments | None:
        """The moments of the rows whose code has a bit; None if their weights are zero."""
        chosen = [part for part, code in zip(self.parts, self.codes, strict=True) if code >> bit & 1]
        moments = total(chosen) if chosen else None
        return moments if moments is not None and moments.M[0, 0] > 0 else None

    def _regularizer(self, risk: QuadraticRisk) -> Regularizer | None:
        """The regularizer of weights in the units of X; None if deviations of columns are rounding errors."""
        reg: Regularizer = resolve_regularizer(self.template).penalized_part
        if not self.template.standardize:
            return reg
        variance = np.diag(risk.G)
        if risk.means is None or not (variance >= MIN_VARIANCE_SHARE * risk.sizes**2).all():
            return None
        scale = np.sqrt(variance)
        if not ((scale >= 1e-100) & (scale <= 1e100)).all():
            return None
        rescaled: Regularizer = rescale_to_standardized(reg, scale, len(scale)).without_sizes
        return rescaled if rescaled.separable else None


def _applies(template: Any, data: Any) -> bool:
    """Whether the fits are of squared errors of dense rows, by coordinate descent, without a time limit."""
    dense = isinstance(data.X, np.ndarray) and data.X.dtype.kind == "f"
    plain = data.y.ndim == 1 and data.qid is None and data.offset is None
    if not dense or not plain or template.max_seconds is not None:
        return False
    if type(resolve_loss(template)) is not Squared or not resolve_regularizer(template).separable:
        return False
    return isinstance(get_solver(template.solver), (Auto, CoordinateDescent))

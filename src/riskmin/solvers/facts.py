"""The facts of a problem on which the selection of a solver depends."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np

from riskmin.arrays.namespace import namespace
from riskmin.arrays.partitioned import RowMetadata
from riskmin.core import Shard
from riskmin.losses.base import Loss
from riskmin.losses.multiclass import Softmax
from riskmin.problem.design_operator import rows_exceed_memory
from riskmin.problem.objective import Objective
from riskmin.solvers.base import beside_another_library, bounded_curvature, loss_of
from riskmin.solvers.costs import COSTS
from riskmin.solvers.dual.chain import ChainAscent
from riskmin.solvers.dual.coordinate_ascent import DualCoordinateAscent
from riskmin.solvers.dual.proximal_intercepts import rms_row_norm
from riskmin.solvers.interior_point.contingency_tables import ContingencyTables
from riskmin.solvers.interior_point.interior_point import InteriorPoint
from riskmin.solvers.newton.newton import Newton
from riskmin.solvers.quasi_newton.whitening import Whitening
from riskmin.solvers.smoothing import Smoothing
from riskmin.solvers.transformed.separable_form import PairProblem


class Facts:
    """What a rule of `Auto` may ask of an objective; each fact is computed once, when it is needed."""

    loss: Loss | None
    """The loss that the user chose; None for an oracle that has none."""
    smooth: bool
    """Whether the loss is declared smooth: methods for nonsmooth losses are valid for all."""
    separable: bool
    """Whether the loss is a sum over rows."""
    multi_output: bool
    """Whether there are several scores per row."""
    kernel: bool
    """Whether the model is one of a kernel."""
    l2: bool
    """Whether the regularizer is `L2`, and w has no explicit intercepts."""
    l1: bool
    """Whether the regularizer is `L1` or `Elastic`, with or without explicit intercepts."""
    quadratic: bool
    """Whether the regularizer is a squared norm (`L2`, `Quadratic`) of all entries of w."""
    sparse: bool
    """Whether X is sparse."""
    direct = Newton.direct

    def __init__(self, obj: Objective) -> None:
        self.obj, self.risk, self.reg = obj, obj.risk, obj.reg
        self.loss = loss_of(obj.risk)
        self.smooth = self.loss is not None and self.loss.smooth
        self.separable = self.loss is None or self.loss.separable
        self.multi_output = bool(obj.risk.multi_output)
        reg, rows = obj.reg, obj.risk.row_metadata
        self.kernel, self.l2, self.quadratic = reg.halves, reg.diagonal, reg.smooth and reg.quadratic
        self.l1 = reg.penalized_part.sum_of_absolutes
        self.sparse = rows is not None and rows.sparse

    # ------------------------------------------------------------ names, for reasons
    @property
    def loss_name(self) -> str:
        """The class of the loss, or of the risk if it has none."""
        return type(self.risk.source if self.loss is None else self.loss).__name__

    @property
    def reg_name(self) -> str:
        """The class of the regularizer."""
        return type(self.reg.penalized_part).__name__

    # ------------------------------------------------------------ the loss
    @cached_property
    def smoothable(self) -> bool:
        """Whether the loss of a linear model has a smoothed form."""
        return self.risk.linear_map is not None and self.loss is not None and self.loss.can_be_smoothed

    @cached_property
    def conjugate(self) -> bool:
        """Whether the loss has a conjugate per row."""
        return self.loss is not None and self.loss.conjugate(np.ones(1)) is not None

    @property
    def interval_conjugate(self) -> bool:
        """Whether the conjugate is quadratic on an interval."""
        return self.risk.row_metadata is not None and self.risk.loss.quadratic_conjugate

    @cached_property
    def finite_curvature(self) -> bool:
        """Whether a smooth loss of one score per row has finite second derivatives."""
        return self.loss is not None and bounded_curvature(self.loss)

    @cached_property
    def smoothed_hessian(self) -> bool:
        """Whether a non-decomposable loss has second derivatives when it is smoothed."""
        loss = self.loss
        return (
            loss is not None and not loss.multi_output and not loss.quadratic_conjugate and loss.has_hessian
        )

    @property
    def master_problem(self) -> bool:
        """Whether bundle methods have a master problem for the regularizer."""
        return self.reg.penalized_part.has_master_problem

    # ------------------------------------------------------------ the rows
    @cached_property
    def rows(self) -> Shard | None:
        """The rows of a separable single-output risk, if all are local; else None.

        None, too, for sparse mapped rows that exceed the memory: solvers of local rows store more per row.
        """
        rows = self.risk.rows
        if rows is None or not self.risk.loss.separable or self.multi_output:
            return None
        return None if self.sparse and rows_exceed_memory(rows) else rows

    @property
    def local(self) -> bool:
        """Whether `rows` are there."""
        return self.rows is not None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of local X."""
        return self.risk.rows.X.shape  # type: ignore[no-any-return]

    @property
    def wide(self) -> bool:
        """Whether local X has too many columns for a factorization."""
        return self.shape[1] > self.direct

    @property
    def wide_weights(self) -> bool:
        """Whether w has too many entries for a factorization."""
        return self.risk.dim > self.direct

    @property
    def wider_than_long(self) -> bool:
        """Whether local X has fewer rows than columns."""
        return self.shape[0] < self.shape[1]

    @property
    def small_system(self) -> bool:
        """Whether dense X has few rows, fewer than columns, and the loss the same slope on both sides of y.

        For such losses (`Absolute`, `Huber`) hardly a multiplier is at a bound of its interval, so that a
        Newton step, a system of the rows, changes all of them at once.
        """
        n, p = self.shape
        if self.sparse or n >= p or n > COSTS.newton_max_rows or not self.interval_conjugate:
            return False
        rows = self.risk.loss.interval_conjugate(self.risk.row_metadata.y[:1])
        return not rows.epsilon and float(rows.lower[0]) == -float(rows.upper[0])

    @property
    def n_entries(self) -> float:
        """Stored entries of local X; infinite if X is not local."""
        return math.inf if self.risk.rows is None else max(1, self.risk.rows.X.nnz)

    @property
    def long(self) -> bool:
        """Whether Newton's method on samples of the local rows leaves few steps on all of them."""
        return self.shape[0] >= COSTS.sampled_start_rows_per_column * self.shape[1]

    @property
    def fits_in_memory(self) -> bool:
        """Whether local rows that are mapped from files fit into the memory."""
        return self.rows is not None and not rows_exceed_memory(self.rows)

    @property
    def profiled(self) -> bool:
        """Whether an intercept is minimized out inside the risk."""
        return self.risk.intercept.profiled

    @property
    def remote(self) -> RowMetadata | None:
        """The metadata of remote rows with one score each and a separable loss; None for other rows."""
        risk, rows = self.risk, self.risk.row_metadata
        if risk.rows is not None or rows is None or namespace(rows.y) is not np:
            return None
        return rows if risk.loss.separable and not self.multi_output else None

    @property
    def device(self) -> bool:
        """Whether X is an array of another library, such as on a GPU, with one score per row."""
        return beside_another_library(self.risk) and not self.multi_output

    # ------------------------------------------------------------ what methods support
    @cached_property
    def newton_device(self) -> bool:
        """Whether X is a dense array of another library whose Newton steps are factorized beside it."""
        if not self.device or self.sparse or (self.smooth and not self.finite_curvature):
            return False
        if Newton().supports(self.obj) is not None:
            return False
        # the matrix of the columns, or that of the rows
        return bool(min(self.risk.row_metadata.shape) <= self.direct)

    @cached_property
    def whitened(self) -> bool:
        """Whether a sample of rows beside X gives L-BFGS its metric."""
        return Whitening.applies(self.obj)

    @cached_property
    def newton_multi_output(self) -> bool:
        """Whether Newton's method supports this multi-output risk."""
        return self.multi_output and Newton().supports(self.obj) is None

    @cached_property
    def interior_point(self) -> bool:
        """Whether the interior-point method supports the loss and a regularizer that is not smooth."""
        return not self.quadratic and self.fits_in_memory and InteriorPoint().supports(self.obj) is None

    @cached_property
    def interior_point_multi_output(self) -> bool:
        """Whether the interior-point method supports the loss of several outputs, smoothed if necessary."""
        if self.quadratic or not self.multi_output or self.risk.rows is None:
            return False
        if rows_exceed_memory(self.risk.rows):
            return False
        solver: Any = InteriorPoint() if self.smooth else Smoothing(InteriorPoint())
        return solver.supports(self.obj) is None

    @property
    def cheap_weight_hessian(self) -> bool:
        """Whether the matrix of all weights of several outputs costs less than many gradients."""
        n, d = self.shape[0], self.risk.dim
        return d <= COSTS.interior_point_max_weights and n * d * d <= COSTS.interior_point_max_weight_work

    @property
    def slow_gram(self) -> bool:
        """Whether X has so many rows per column that cuts cost less than Gram matrices."""
        return self.shape[0] > COSTS.interior_point_rows_per_column * self.shape[1]

    @property
    def newton_small(self) -> bool:
        """Whether a factorization in each of Newton's steps costs little: few entries and columns."""
        n, p = self.shape
        small = n * p <= COSTS.newton_small_entries and p <= COSTS.newton_small_columns
        return small and self.l2 and self.interval_conjugate and not self.risk.loss.constant_curvature

    @property
    def newton_smooth_multi_output(self) -> bool:
        """Whether Newton's method is fast for this multi-output risk with a smooth loss."""
        if not self.newton_multi_output:
            return False
        if type(self.risk.loss) is Softmax and self.stores_scores:
            return True
        # with fewer rows than columns, conjugate gradients alone pay where calls cost as much as products
        if self.wider_than_long and not self.sparse and not self.risk.loss.constant_curvature:
            return bool(self.n_entries * self.risk.linear_map.columns <= COSTS.newton_max_wide_products)
        return self.sparse or self.risk.dim <= COSTS.newton_max_smooth_weights

    @cached_property
    def exact_steps(self) -> bool:
        """Whether the rows are local with one score each, and dual ascent has exact steps for them."""
        return self.local and DualCoordinateAscent().supports(self.obj) is None

    @cached_property
    def dual_multi_output(self) -> bool:
        """Whether dual ascent supports this multi-output risk, and its multipliers fit into memory."""
        risk = self.risk
        if DualCoordinateAscent().supports(self.obj) is not None or risk.rows is None:
            return False
        return self.stores_scores

    @property
    def stores_scores(self) -> bool:
        """Whether scores and multipliers of all rows and outputs fit into memory."""
        return bool(self.shape[0] * self.risk.linear_map.columns <= COSTS.max_stored_scores)

    @cached_property
    def chain_ascent(self) -> bool:
        """Whether block-coordinate ascent over sequences supports this risk."""
        is_chain = self.loss is not None and self.loss.task == "tagging"
        return is_chain and ChainAscent().supports(self.obj) is None

    @property
    def newton_remote(self) -> bool:
        """Whether remote rows and their features are few enough for Newton's method."""
        rows = self.remote
        return (
            rows is not None
            and rows.shape[0] <= COSTS.newton_max_remote_rows
            and rows.shape[1] <= self.direct
        )

    @property
    def dual_remote(self) -> bool:
        """Whether remote rows are sparse, without an intercept, and few enough for dual variables here."""
        rows = self.remote
        if rows is None:
            return False
        # sweeps of the shards use the columns as they are stored
        plain = self.l2 and not self.profiled and not self.risk.linear_map.standardized
        return plain and rows.sparse and rows.shape[0] <= COSTS.dual_max_remote_rows

    @property
    def interval_dual(self) -> bool:
        """Whether there is one multiplier per reachable row, with a quadratic conjugate and regularizer."""
        reachable = self.local or self.newton_remote or self.dual_remote
        return reachable and self.quadratic and self.interval_conjugate

    # ------------------------------------------------------------ how hard the problem is
    @cached_property
    def row_norm_ratio(self) -> float:
        """The mean |x_i|^2 relative to n lam: a visit moves a multiplier by about the inverse of it."""
        rows = self.risk.rows
        return rms_row_norm(rows) ** 2 / (len(rows.y) * self.obj.lam)

    @property
    def cheap_factorization(self) -> bool:
        """Whether a factorization of a matrix of the features costs a few passes over local X."""
        return self.shape[1] ** 3 <= COSTS.factorization_passes * self.n_entries

    @property
    def small_and_hard(self) -> bool:
        """Whether X is dense, w short, and dual ascent slow."""
        if self.sparse:
            return False
        if self.obj.n_intercepts:
            return self.risk.dim <= COSTS.newton_max_weights_with_intercepts
        return self.risk.dim <= COSTS.newton_max_weights and self.row_norm_ratio > COSTS.hard_row_norm_ratio

    @property
    def slow_intercepts(self) -> bool:
        """Whether dual ascent hardly moves explicit intercepts."""
        return bool(self.obj.n_intercepts) and self.row_norm_ratio > COSTS.intercept_row_norm_ratio

    @cached_property
    def tables(self) -> bool:
        """Whether the loss is a maximum over contingency tables, of few rows or columns."""
        return not self.separable and ContingencyTables().supports(self.obj) is None

    @cached_property
    def few_pairs(self) -> bool:
        """Whether the loss is a sum over few pairs of rows."""
        return not self.separable and PairProblem.pairs_of(self.obj) is not None

    @cached_property
    def large_lam(self) -> bool:
        """Whether lam is so large relative to the squared gradient of the risk at zero that cuts are few."""
        # with L2, J(0) - min J <= |grad R(0)|^2 / (2 lam), by convexity
        g = self.risk(np.zeros(self.risk.dim))[1]
        return float(g @ g) <= COSTS.bundle_max_slope_ratio * self.obj.lam

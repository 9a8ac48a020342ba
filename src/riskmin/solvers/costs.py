"""Cost models: up to which sizes, and from which ratios, one method is faster than another.

`python -m benchmarks.auto` runs all solvers on many problems, and prints where `Auto` is slower than the
fastest of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from riskmin.solvers.newton.subsampling import START_SAMPLE_ONE_ROW_IN, START_SAMPLE_ROWS_PER_COLUMN


@dataclass(frozen=True)
class CostModel:
    """Limits that the rules of `Auto` compare with the facts of a problem."""

    min_tol: float = 1e-12
    """The tolerance that replaces 0, which no run reaches."""
    sampled_start_rows_per_column: float = START_SAMPLE_ONE_ROW_IN[-1] * START_SAMPLE_ROWS_PER_COLUMN
    """Rows per column from which Newton's method starts on a sample, and is fast on sparse data too."""
    newton_small_columns: int = 128
    """Columns up to which a factorization in each of Newton's steps costs little."""
    newton_small_entries: int = 2**17
    """Entries of X up to which Newton's method takes milliseconds."""
    newton_max_remote_rows: int = 2**25
    """Remote rows whose scores Newton's method stores in this process: vectors of a quarter gigabyte."""
    newton_max_rows: int = 128
    """Rows, fewer than columns, up to which a system of the rows costs less than a pass over X."""
    newton_max_smooth_weights: int = 5000
    """Weights of several outputs up to which Newton's method is fast for smooth losses on dense X."""
    newton_max_wide_products: int = 2**20
    """Products of a pass over dense X of fewer rows than columns, with several outputs, up to which Newton's
    method is faster than L-BFGS: it makes fewer calls."""
    newton_max_weights: int = 1000
    """Multiclass weights up to which Newton's method is fast; for nonsmooth losses, if rows are long."""
    newton_max_weights_with_intercepts: int = 2000
    """The same with explicit intercepts, which dual ascent approaches slowly."""
    hard_row_norm_ratio: float = 2.0
    """Mean |x_i|^2 / (n lam) from which dual ascent needs many epochs for a multiclass loss."""
    slow_dual_row_norm_ratio: float = 50.0
    """Mean |x_i|^2 / (n lam) from which Newton's method is faster than dual ascent on few sparse columns."""
    factorization_passes: float = 100.0
    """Operations of a factorization, p^3, per entry of X up to which p columns are few."""
    intercept_row_norm_ratio: float = 1e7
    """Mean |x_i|^2 / (n lam) from which dual ascent hardly moves explicit intercepts."""
    max_stored_scores: int = 2**26
    """Rows times outputs up to which Newton's method stores scores, and dual ascent multipliers (half a
    gigabyte)."""
    dual_max_remote_rows: int = 2**22
    """Remote rows whose dual variables are stored in this process, a dozen numbers each."""
    bundle_max_slope_ratio: float = 500.0
    """|grad R(0)|^2 / lam up to which L-BFGS needs few steps, and `Bundle` few cuts, for losses on pairs."""
    lbfgs_min_rows_of_pairs: int = 1000
    """Rows from which a mean over their pairs is smooth enough for L-BFGS."""
    tables_max_rows: int = 2**12
    """Rows up to which a model of contingency tables is faster than `Bundle`."""
    tables_max_fallback_rows: int = 2**15
    """Rows up to which it continues where `Bundle` is slow."""
    interior_point_rows_per_column: float = 100.0
    """Rows per column up to which the interior-point method is faster than `Bundle`."""
    interior_point_max_weights: int = 500
    """Weights up to which it is the first choice for several outputs."""
    interior_point_max_weight_work: float = 2e9
    """Rows times squared weights up to which it is."""
    trial_work: float = 100.0
    """The work after which a solver is judged, in passes over X."""
    newton_trial_entries: float = 5e8
    """The same of Newton's method in entries of X, where that is more: passes over small X cost little."""
    dual_trial_work: float = 2000.0
    """The work after which dual ascent is judged: its bound rises slowly at first, and the solvers that would
    continue are slower."""
    sparse_weights_trial_work: float = 2000.0
    """The work after which coordinate descent is judged for `L1`: its bounds improve in its last steps."""
    interior_point_trial_work: float = 200.0
    """The same where the interior-point method would continue."""
    interior_point_trial_factor: float = 2.0
    """The least work there, per row or column of X, whichever are fewer."""
    multi_output_trial_work: float = 1000.0
    """The work after which L-BFGS is judged where Newton's method would solve for all weights at once."""


@dataclass(frozen=True)
class ProductCosts:
    """Costs relative to one operation of a large dense matrix product."""

    thin_product: float = 6.0
    """One operation of a product of thin matrices."""
    elementwise: float = 40.0
    """One operation of elementwise work."""
    sparse_entry: float = 25.0
    """One operation of a sparse product."""
    triangular_entry: float = 50.0
    """One entry of a triangular solve."""
    inverse: float = 4.0
    """p^-3 times an inverse of a p by p matrix."""
    numpy_call: float = 2e5
    """One call of NumPy."""


COSTS = CostModel()
PRODUCT_COSTS = ProductCosts()

r"""Dual ascent for max-margin chain models: block-coordinate steps, one sequence at a time.

The dual variable of a sequence is a distribution over label sequences; only those of positive weight are
stored ("atoms"). Together they define the cut
:math:`a = \sum_s c_s E[\psi(y') - \psi(y)],\; b = \sum_s c_s E[\Delta]`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import scipy.sparse as sp

from riskmin._numba import lazy_module
from riskmin.arrays.matrix import as_matrix, as_row_matrix
from riskmin.arrays.sequences import Sequences
from riskmin.core import Array, Cut, Iterate, NDArray, Solver
from riskmin.core.deadline import chunk_ranges
from riskmin.core.messages import check_whole
from riskmin.linear_maps.chain import ChainMap
from riskmin.losses.chain import ChainMaxMargin
from riskmin.problem.certificate import lowered_cut
from riskmin.problem.objective import Objective
from riskmin.solvers.state_checks import check_state

_kernels = lazy_module("chain.block_ascent")


_atom_kernels = lazy_module("chain.active_sequences")


@dataclass(frozen=True)
class ChainAscent(Solver):
    """Dual ascent for `ChainMaxMargin` with `L2`: exact steps, one sequence at a time.

    Block-coordinate Frank-Wolfe with memory: a visit to a sequence finds the labels of the largest margin
    violation, as in the paper, and also re-optimizes the weights of all label sequences found before. The
    inner products between the tokens of a sequence are cached, so that a visit can decode several times
    for one pass over its rows of X.

    Parameters
    ----------
    atoms : int
        Initial number of label sequences stored per sequence; it doubles when they run out.
    turns : int
        Maximum number of decodings per visit.
    seed : int
        Seed of the random visiting orders.

    References
    ----------
    S. Lacoste-Julien, M. Jaggi, M. Schmidt, P. Pletscher, Block-coordinate Frank-Wolfe optimization for
    structural SVMs, ICML 2013. N. Shah, V. Kolmogorov, C. Lampert, A multi-plane block-coordinate Frank-Wolfe
    algorithm for training structural SVMs with a costly max-oracle, CVPR 2015.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, ChainAscent, ChainMaxMargin, Objective, linear_risk, minimize
    >>> X, y = np.eye(3)[[0, 1, 2, 0, 2]], [0, 1, 1, 0, 1]
    >>> risk = linear_risk(X, y, ChainMaxMargin(), lengths=[3, 2])
    >>> minimize(Objective(risk, L2(), lam=0.1), ChainAscent(), tol=1e-6).status
    'converged'
    """

    MAX_TOKEN_PRODUCTS = 2**27
    """Largest total number of inner products between the tokens of a sequence that are cached: 1 GiB."""

    atoms: int = 12
    turns: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name, minimum in (("atoms", 2), ("turns", 1), ("seed", 0)):
            check_whole(self, name, minimum)

    def supports(self, obj: Objective) -> str | None:
        """None for `ChainMaxMargin` with an `L2` of equal weights, and local sequences of moderate length."""
        risk: Any = obj.risk
        X = None if risk.rows is None else risk.rows.X
        if isinstance(risk.loss, ChainMaxMargin) and isinstance(X, Sequences) and obj.reg.diagonal:
            # A sequence of m tokens needs an m x m Gram matrix.
            fits = np.sum(np.diff(X.ends, prepend=0) ** 2) <= self.MAX_TOKEN_PRODUCTS
            # inner products of tokens are those of all labels only if all pairs have a weight
            if fits and obj.reg.unweighted and type(risk.linear_map) is ChainMap:
                return None
        return (
            "ChainAscent needs ChainMaxMargin() and L2(), weights for all pairs of feature and label, all "
            "rows in this process, and sequences of at most a few thousand tokens: use Auto, Smoothing or "
            "Bundle"
        )

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield a certified point every few epochs."""
        run = _ChainRun.create(self, obj)
        value, _, cut = obj(w0)
        yield run.iterate(w0, value, cut)
        yield from run.run()

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Continue from a saved state."""
        return _ChainRun.create(self, obj, state).run()

    def warm_start(self, obj: Objective, state: dict[str, Array], before: Objective) -> Iterator[Iterate]:
        """Start from the distributions of a run on the same risk: its cut is valid for every lam."""
        return _ChainRun.create(self, obj, state).run()


@dataclass
class _ChainRun:
    """State of a run: the distributions over label sequences, and the w of their cut."""

    CERTIFY_AT_GAP_RATIO = 0.5
    """Yield a certified point once the sum of the block gaps has fallen to this fraction of its value at the
    previous point."""
    MAX_EPOCHS_BETWEEN_POINTS = 10
    """Yield a certified point after at most this many epochs."""
    DECODE_OPS_PER_TOKEN, VISIT_OPS_PER_ATOM = 8, 4
    """Elementary operations of one decoding, per token and pair of labels; and of one visit, per token and
    atom."""

    solver: ChainAscent
    obj: Objective
    rows: Any
    problem: Any
    atoms: Any
    w: NDArray
    epochs: int = 0
    last_gap_sum: float = np.inf
    """Sum of the block gaps in the epoch before the last point."""

    @classmethod
    def create(cls, solver: ChainAscent, obj: Objective, state: dict[str, Array] | None = None) -> _ChainRun:
        """Start a run with empty distributions, or restore one from a saved state."""
        risk: Any = obj.risk
        solver.check_supports(obj)
        rows, problem = _kernel_data(risk.rows)
        m, n = len(problem.c), len(problem.y)
        if state is None:
            # Slots in use per sequence, labels (slot, token), and weights (sequence, slot) of the atoms.
            blank = (
                np.zeros(m, np.int64),
                np.zeros((solver.atoms, n), np.int64),
                np.zeros((m, solver.atoms)),
            )
            gram = np.zeros((m, solver.atoms, solver.atoms))
            return cls(solver, obj, rows, problem, _allocate_atoms(*blank, gram), np.zeros(risk.dim))
        shapes = {"used": "m", "labels": "q n", "alpha": "m q", "gram": "m q q", "epochs": "1", "last": "1"}
        limits = {"used": len(state.get("labels", ())) + 1, "labels": risk.linear_map.k, "epochs": 2**62}
        # Labels and counts are used as indices: check their ranges before a kernel reads them.
        check_state(state, shapes, limits, m=m, n=n)
        atoms = _allocate_atoms(*(state[name].copy() for name in ("used", "labels", "alpha", "gram")))
        _restore_costs(problem, atoms, risk.loss)
        run = cls(solver, obj, rows, problem, atoms, np.zeros(risk.dim))
        run.epochs, run.last_gap_sum = int(state["epochs"][0]), float(state["last"][0])
        run.w = obj.argmin(run.cut())
        return run

    def run(self) -> Iterator[Iterate]:
        """Run epochs; yield a certified point every few of them."""
        kernels, risk = _kernels(), cast(Any, self.obj.risk)
        weighted, gaps = np.flatnonzero(self.problem.c > 0), np.zeros(len(self.problem.c))
        W, powers = self.w.reshape(-1, risk.linear_map.k), _error_powers(self.problem, risk.loss)
        # None instead of a default value: the kernel is then compiled without that branch.
        turns = self.solver.turns if self.solver.turns > 1 else None
        workspace = self.workspace(risk.linear_map.k)
        while True:
            for _ in range(self.MAX_EPOCHS_BETWEEN_POINTS):
                # Seeded by the epoch, so that a resumed run visits the sequences in the same order.
                order = np.random.default_rng([self.solver.seed, self.epochs]).permutation(weighted)
                kernel_state = *self.rows, *self.problem, *self.atoms, *workspace
                # Kernels are called on short ranges so that deadlines and interrupts are checked in between.
                for i, j in chunk_ranges(0, len(order), self.epoch_operations):
                    kernels.ascend_sequences(*kernel_state, W, self.obj.lam, order[i:j], powers, turns, gaps)
                self.epochs += 1
                # Some visit found no free slot for a new label sequence.
                if self.atoms.n_dropped[0]:
                    self.double_capacity()
                    workspace = self.workspace(risk.linear_map.k)
                # Each gap is that of its last visit: the sum estimates the duality gap, without a proof.
                if gaps.sum() <= self.CERTIFY_AT_GAP_RATIO * self.last_gap_sum:
                    break
            self.last_gap_sum = float(gaps.sum())
            cut = self.cut()
            # Recomputed from the cut, so that the rounding errors of the updates do not accumulate.
            self.w[:] = self.obj.argmin(cut)
            w = self.w.copy()
            yield self.iterate(w, self.obj.value(w), cut)

    @property
    def epoch_operations(self) -> float:
        """Elementary operations of one epoch: scores, decodings, and atoms."""
        n, risk = len(self.problem.y), cast(Any, self.obj.risk)
        k = risk.linear_map.k
        # Rescaled slacks add the number of errors to the states, up to the length of the sequence.
        decode = (
            self.DECODE_OPS_PER_TOKEN
            * n
            * k
            * k
            * (len(self.problem.gram) / n if risk.loss.rescaled else 1.0)
        )
        scores, atoms = 2.0 * len(self.rows.data) * k, self.VISIT_OPS_PER_ATOM * self.atoms.labels.size
        return float(scores + self.solver.turns * decode + atoms)

    def double_capacity(self) -> None:
        """Double the number of atoms that can be stored per sequence."""
        used, labels, alpha, gram = self.atom_arrays()
        extra = len(labels)
        padded = np.pad(alpha, ((0, 0), (0, extra))), np.pad(gram, ((0, 0), (0, extra), (0, extra)))
        self.atoms = _allocate_atoms(used, np.pad(labels, ((0, extra), (0, 0))), *padded)
        _restore_costs(self.problem, self.atoms, cast(Any, self.obj.risk).loss)

    def atom_arrays(self) -> tuple[NDArray, ...]:
        """Return copies of what defines the atoms: their number, labels, weights and inner products."""
        # The last slot of each sequence belongs to its true labels and is not saved.
        alpha, gram = self.atoms.alpha[:, :-1], self.atoms.gram[:, :-1, :-1]
        return self.atoms.used.copy(), self.atoms.labels.copy(), alpha.copy(), gram.copy()

    def workspace(self, k: int) -> Any:
        """Allocate the scratch arrays of a visit."""
        # Score arrays have one row per token, k for the transitions, and one each for first and last labels.
        m, n_atoms = int(np.diff(self.problem.ends, prepend=0).max()), self.atoms.alpha.shape[1]
        scores, best, path = (np.zeros((m + k + 2, k)) for _ in range(3)), np.zeros((m, k)), np.zeros(m, int)
        return _atom_kernels().ChainWorkspace(*scores, best, path, np.zeros(n_atoms), np.zeros(n_atoms))

    def cut(self) -> Cut:
        """Return the cut of the distributions, lowered by a bound on its rounding error."""
        from riskmin._numba.chain.viterbi import add_count_differences

        risk: Any = self.obj.risk
        n, k, atoms = len(self.problem.y), risk.linear_map.k, self.atoms
        dz, a, cost = np.zeros((n + k + 2, k)), np.zeros(risk.dim), float(np.sum(atoms.alpha * atoms.cost))
        # dz accumulates weight * (psi(labels_q) - psi(y)) per token and label; the pullback maps it to w.
        for q in range(int(atoms.used.max())):
            add_count_differences(
                self.problem.y, atoms.labels[q], self.problem.ends, atoms.alpha[:, q] * atoms.factor[:, q], dz
            )
        risk.linear_map.pullback(risk.rows.X, dz, 0, n, a)
        # The offset b = sum_s c_s E[Delta] has nonnegative terms only.
        return lowered_cut(a, cost, cost)

    def iterate(self, w: NDArray, value: float, cut: Cut) -> Iterate:
        """Return the point as an iterate with the state to resume from."""
        state = dict(zip(("used", "labels", "alpha", "gram"), self.atom_arrays(), strict=True))
        state |= {"epochs": np.array([self.epochs]), "last": np.array([self.last_gap_sum])}
        mean_atoms = float(np.count_nonzero(state["alpha"])) / len(state["used"])
        info = {"epochs": float(self.epochs), "atoms": mean_atoms}
        return Iterate(w, value, cut, info, lambda: state)


def _allocate_atoms(used: NDArray, labels: NDArray, alpha: NDArray, gram: NDArray) -> Any:
    """Allocate atoms with one extra slot for the true labels; costs and factors are not yet set."""
    alpha, gram = np.pad(alpha, ((0, 0), (0, 1))), np.pad(gram, ((0, 0), (0, 1), (0, 1)))
    zeros = np.zeros_like(alpha), np.zeros_like(alpha)
    return _atom_kernels().Atoms(np.zeros(1, np.int64), used, labels, alpha, *zeros, gram)


def _error_powers(problem: Any, loss: Any) -> Any:
    """Return the powers of the number of errors by which the loss rescales margins, or None."""
    from riskmin._numba.chain.viterbi import error_powers

    return error_powers(int(np.diff(problem.ends, prepend=0).max()), float(loss.rescaled))


def _restore_costs(problem: Any, atoms: Any, loss: Any) -> None:
    """Compute the costs and factors of atoms from their labels."""
    begins = np.append(0, problem.ends[:-1])
    # Hamming distance of each atom to the true labels, per sequence.
    errors = np.add.reduceat(atoms.labels != problem.y, begins, axis=1, dtype=np.int64).T
    powers = _error_powers(problem, loss)
    atoms.cost[:, :-1] = problem.c[:, None] * errors
    atoms.factor[:, :-1] = problem.c[:, None] * (1.0 if powers is None else powers[errors])


def _kernel_data(shard: Any) -> tuple[Any, Any]:
    """Return the tokens and sequences as the kernels take them, with the inner products of the tokens."""
    kernels, ends = _kernels(), shard.X.ends
    X = as_row_matrix(shard.X.tokens)
    n, p = X.shape
    # if fewer than half of its entries are nonzero, X is converted to CSR
    if not X.sparse and np.count_nonzero(X.X) < 0.5 * n * p:
        X = as_row_matrix(as_matrix(sp.csr_array(X.X)))
    # Dense rows use the same arrays: row i starts at i p, and all have the column indices 0 to p - 1.
    columns = X.indices.astype(np.int64) if X.sparse else np.arange(p)
    rows = kernels.TokenRows(X.row_ends.astype(np.int64), columns, X.values, int(not X.sparse))
    # gram holds one m x m block per sequence of m tokens; offsets are the starts of the blocks.
    sizes = np.diff(ends, prepend=0) ** 2
    offsets, gram = np.cumsum(sizes) - sizes, np.empty(int(sizes.sum()))
    nnz_per_row, x = len(rows.data) / max(1, n), np.zeros(p)
    for i, j in chunk_ranges(0, len(ends), len(gram) * nnz_per_row):
        kernels.token_gram_matrices(*rows, ends, i, j, int(offsets[i]), x, gram)
    # All tokens of a sequence have the weight of the sequence.
    c = np.ascontiguousarray(shard.c[ends - 1], dtype=np.float64)
    return rows, kernels.ChainData(shard.y[:, 0].astype(np.int64), ends, c, gram, offsets)

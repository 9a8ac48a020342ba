r"""Dual ascent for margins of chains: block-coordinate steps, a sequence at a time.

The dual variable of a sequence is a distribution of label sequences, of which only those with some weight
are kept. Together they make the cut :math:`a = \sum_s c_s E[\psi(y') - \psi(y)],\; b = \sum_s c_s E[\Delta]`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import scipy.sparse as sp

from riskmin.deadline import pieces
from riskmin.losses.chain import ChainMaxMargin
from riskmin.matrices import Dense, as_matrix, by_rows
from riskmin.objective import Objective
from riskmin.regularizers import L2
from riskmin.risk import Risk
from riskmin.scalar import ROUNDING
from riskmin.sequences import Sequences
from riskmin.solvers.states import checked
from riskmin.types import Array, Cut, Iterate, NDArray, Unsuited

MOST_PRODUCTS = 2**27
"""Inner products of tokens are kept for all sequences, up to a gigabyte of them."""
SPARSE = 0.5
"""X is stored as sparse where fewer of its numbers than this part are not zero."""
CALM = 0.5
"""A point is made and certified once the gaps that visits find are this part of those before it."""
MOST_EPOCHS = 10
"""Or after so many epochs."""
TURN, VISIT = 8, 4
"""Elementary operations of a token and two labels in a turn, and of a token and an atom in a visit."""


def _kernels() -> Any:
    from riskmin.kernels import chain_ascent

    return chain_ascent


def _kept() -> Any:
    from riskmin.kernels import chain_atoms

    return chain_atoms


@dataclass(frozen=True)
class ChainAscent:
    """Dual ascent for `ChainMaxMargin` with `L2`: exact steps, a sequence at a time.

    Block-coordinate Frank-Wolfe with memory: a visit to a sequence finds its worst labels, as in the paper,
    but the weights of all that it has found before are made the best again, too. Inner products of the
    tokens of a sequence are kept, so that a visit may find worst labels several times for one look at X.

    Parameters
    ----------
    atoms : int
        For how many label sequences there is room at first, for each sequence.
    turns : int
        How often a visit finds worst labels, at most.
    seed : int
        The seed of the random orders of visits.

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

    atoms: int = 12
    turns: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("atoms", 2), ("turns", 1), ("seed", 0)):
            value = getattr(self, name)
            if not (isinstance(value, int) and value >= least):
                raise ValueError(f"{name} must be a whole number >= {least}, not {value!r}")

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield a certified point every few epochs."""
        run = _Run.of(self, obj)
        value, _, cut = obj(w0)
        yield run.iterate(w0, value, cut)
        yield from run.go()

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Go on from a saved state."""
        return _Run.of(self, obj, state).go()

    def warm(self, obj: Objective, state: dict[str, Array], before: Objective) -> Iterator[Iterate]:
        """Start with the distributions of a run on the same risk: its cut holds for every lam."""
        return _Run.of(self, obj, state).go()


def suited(risk: Any, reg: Any) -> bool:
    """Whether `ChainAscent` is for them.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L1, L2, ChainMaxMargin, linear_risk
    >>> risk = linear_risk(np.eye(3), [0, 1, 1], ChainMaxMargin(), lengths=[2, 1])
    >>> suited(risk, L2()), suited(risk, L1())
    (True, False)
    """
    if not (isinstance(risk, Risk) and isinstance(risk.loss, ChainMaxMargin) and isinstance(reg, L2)):
        return False
    if risk.rows is None or not isinstance(risk.rows.X, Sequences):
        return False
    return reg.plain and bool(np.sum(np.diff(risk.rows.X.ends, prepend=0) ** 2) <= MOST_PRODUCTS)


@dataclass
class _Run:
    """A run: the distributions, and the w that belongs to them."""

    solver: ChainAscent
    obj: Objective
    rows: Any
    known: Any
    atoms: Any
    w: NDArray
    epochs: int = 0
    last: float = np.inf
    """The sum of the gaps that the visits before the last point found."""

    @classmethod
    def of(cls, solver: ChainAscent, obj: Objective, state: dict[str, Array] | None = None) -> _Run:
        """A run from nothing, or from a saved state."""
        risk: Any = obj.risk
        if not suited(risk, obj.reg):
            raise Unsuited(
                "ChainAscent is for ChainMaxMargin() and L2(), with all rows here and sequences of no more "
                "than some thousand tokens: use Auto, Smoothing or Bundle"
            )
        rows, known = _data(risk.rows)
        m, n = len(known.c), len(known.y)
        if state is None:
            room = np.zeros(m, np.int64), np.zeros((solver.atoms, n), np.int64), np.zeros((m, solver.atoms))
            gram = np.zeros((m, solver.atoms, solver.atoms))
            return cls(solver, obj, rows, known, _atoms(*room, gram), np.zeros(risk.dim))
        shapes = {"used": "m", "labels": "q n", "alpha": "m q", "gram": "m q q", "epochs": "1", "last": "1"}
        most = {"used": len(state.get("labels", ())) + 1, "labels": risk.scorer.k, "epochs": 2**62}
        checked(state, shapes, most, m=m, n=n)
        atoms = _atoms(*(state[name].copy() for name in ("used", "labels", "alpha", "gram")))
        _revive(known, atoms, risk.loss.rescaled)
        run = cls(solver, obj, rows, known, atoms, np.zeros(risk.dim))
        run.epochs, run.last = int(state["epochs"][0]), float(state["last"][0])
        run.w = obj.argmin(run.cut())
        return run

    def go(self) -> Iterator[Iterate]:
        """Epochs, and now and then a point."""
        kernels, risk = _kernels(), cast(Any, self.obj.risk)
        some, gaps = np.flatnonzero(self.known.c > 0), np.zeros(len(self.known.c))
        W, slack = self.w.reshape(-1, risk.scorer.k), True if risk.loss.rescaled else None
        turns = self.solver.turns if self.solver.turns > 1 else None
        room = self.room(risk.scorer.k)
        while True:
            for _ in range(MOST_EPOCHS):
                order = np.random.default_rng([self.solver.seed, self.epochs]).permutation(some)
                where = *self.rows, *self.known, *self.atoms, *room
                for i, j in pieces(0, len(order), self.work):
                    kernels.ascend(*where, W, self.obj.lam, order[i:j], slack, turns, gaps)
                self.epochs += 1
                if self.atoms.full[0]:
                    self.grow()
                    room = self.room(risk.scorer.k)
                if gaps.sum() <= CALM * self.last:
                    break
            self.last = float(gaps.sum())
            cut = self.cut()
            self.w[:] = self.obj.argmin(cut)  # anew, so that rounding does not add up
            w = self.w.copy()
            yield self.iterate(w, self.obj.value(w), cut)

    @property
    def work(self) -> float:
        """Elementary operations of an epoch: scores, best paths, and atoms."""
        n, risk = len(self.known.y), cast(Any, self.obj.risk)
        k = risk.scorer.k
        turn = TURN * n * k * k * (len(self.known.gram) / n if risk.loss.rescaled else 1.0)
        scores, atoms = 2.0 * len(self.rows.data) * k, VISIT * self.atoms.labels.size
        return float(scores + self.solver.turns * turn + atoms)

    def grow(self) -> None:
        """Twice the room for atoms."""
        used, labels, alpha, gram = self.kept()
        more = len(labels)
        wide = np.pad(alpha, ((0, 0), (0, more))), np.pad(gram, ((0, 0), (0, more), (0, more)))
        self.atoms = _atoms(used, np.pad(labels, ((0, more), (0, 0))), *wide)
        _revive(self.known, self.atoms, cast(Any, self.obj.risk).loss.rescaled)

    def kept(self) -> tuple[NDArray, ...]:
        """All that need be known of atoms: how many, labels, weights and products."""
        alpha, gram = self.atoms.alpha[:, :-1], self.atoms.gram[:, :-1, :-1]
        return self.atoms.used.copy(), self.atoms.labels.copy(), alpha.copy(), gram.copy()

    def room(self, k: int) -> Any:
        """For what visits compute."""
        m, many = int(np.diff(self.known.ends, prepend=0).max()), self.atoms.alpha.shape[1]
        scores, best, path = (np.zeros((m + k + 2, k)) for _ in range(3)), np.zeros((m, k)), np.zeros(m, int)
        return _kept().Room(*scores, best, path, np.zeros(many), np.zeros(many))

    def cut(self) -> Cut:
        """That of the distributions, less what rounding may add."""
        from riskmin.kernels.chain_max import counts

        risk: Any = self.obj.risk
        n, k, atoms = len(self.known.y), risk.scorer.k, self.atoms
        dz, a, cost = np.zeros((n + k + 2, k)), np.zeros(risk.dim), float(np.sum(atoms.alpha * atoms.cost))
        for q in range(int(atoms.used.max())):
            counts(self.known.y, atoms.labels[q], self.known.ends, atoms.alpha[:, q] * atoms.factor[:, q], dz)
        risk.scorer.pullback(risk.rows.X, dz, 0, n, a)
        return Cut(a, cost * (1 - ROUNDING))

    def iterate(self, w: NDArray, value: float, cut: Cut) -> Iterate:
        """The point, and how to go on from it."""
        state = dict(zip(("used", "labels", "alpha", "gram"), self.kept(), strict=True))
        state |= {"epochs": np.array([self.epochs]), "last": np.array([self.last])}
        many = float(np.count_nonzero(state["alpha"])) / len(state["used"])
        info = {"epochs": float(self.epochs), "atoms": many}
        return Iterate(w, value, cut, info, lambda: state)


def _atoms(used: NDArray, labels: NDArray, alpha: NDArray, gram: NDArray) -> Any:
    """Room for atoms, with one more place for the right labels; costs and factors are yet to be found."""
    alpha, gram = np.pad(alpha, ((0, 0), (0, 1))), np.pad(gram, ((0, 0), (0, 1), (0, 1)))
    zeros = np.zeros_like(alpha), np.zeros_like(alpha)
    return _kept().Atoms(np.zeros(1, np.int64), used, labels, alpha, *zeros, gram)


def _revive(known: Any, atoms: Any, rescaled: bool) -> None:
    """Costs and factors of atoms of which the labels are known."""
    begins = np.append(0, known.ends[:-1])
    errors = np.add.reduceat(atoms.labels != known.y, begins, axis=1, dtype=np.float64).T
    atoms.cost[:, :-1] = known.c[:, None] * errors
    atoms.factor[:, :-1] = known.c[:, None] * (errors if rescaled else 1.0)


def _data(shard: Any) -> tuple[Any, Any]:
    """The tokens and sequences as the kernel takes them, with inner products of tokens."""
    kernels, ends = _kernels(), shard.X.ends
    X = by_rows(shard.X.tokens)
    n, p = X.shape
    if isinstance(X, Dense) and np.count_nonzero(X.X) < SPARSE * n * p:
        X = by_rows(as_matrix(sp.csr_array(X.X)))
    if isinstance(X, Dense):
        ptr = np.arange(0, n * p + 1, p, dtype=np.int64)
        rows = kernels.Tokens(ptr, np.arange(p), X.X.reshape(-1), 1)
    else:
        rows = kernels.Tokens(X.indptr.astype(np.int64), X.indices.astype(np.int64), X.data, 0)
    sizes = np.diff(ends, prepend=0) ** 2
    places, gram = np.cumsum(sizes) - sizes, np.empty(int(sizes.sum()))
    each, x = len(rows.data) / max(1, n), np.zeros(p)
    for i, j in pieces(0, len(ends), len(gram) * each):
        kernels.grams(*rows, ends, i, j, int(places[i]), x, gram)
    c = np.ascontiguousarray(shard.c[ends - 1], dtype=np.float64)
    return rows, kernels.Problem(shard.y[:, 0].astype(np.int64), ends, c, gram, places)

r"""Losses of label sequences (linear chains): the conditional random field and the structured hinge.

.. math:: s(y) = start_{y_1} + \sum_t E_{t, y_t} + \sum_t T_{y_t, y_{t+1}} + end_{y_n}

The scores z of a batch of sequences are one array of shape (tokens + k + 2, k): one row of emission scores E
per token, then the k rows of the transition scores T, then start, then end. Labels y have two columns, the
label of each token and the number of its sequence; the weight of a token is that of its sequence. Sums and
maxima over all label sequences are computed exactly by dynamic programs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from riskmin._numba import lazy_module
from riskmin.core import Array, NDArray, UnsupportedProblem
from riskmin.core.messages import check_rescaling
from riskmin.linear_maps.chain import ChainMap
from riskmin.losses.base import Loss
from riskmin.losses.labels import check_finite

_forward_backward = lazy_module("chain.forward_backward")
_viterbi = lazy_module("chain.viterbi")


class SequenceBatch(NamedTuple):
    """The sequences of a block of tokens, in the form that the kernels expect.

    `z` are the scores, `y` the integer labels, `ends` the end of each sequence (exclusive) and `c` the weight
    of each sequence.
    """

    z: NDArray
    y: NDArray
    ends: NDArray
    c: NDArray

    @classmethod
    def from_arrays(cls, loss: object, z: Array, y: Array, c: Array) -> SequenceBatch:
        """Build the batch from scores, labels and weights.

        Shapes and labels are checked first, because the kernels use them as unchecked memory indices.
        """
        name = type(loss).__name__
        if not isinstance(z, np.ndarray):
            raise ValueError(f"{name} is computed by NumPy, not by {type(z).__module__}: give NumPy arrays")
        # z has n token rows, k transition rows and the rows of start and end
        n, k = len(z) - z.shape[1] - 2, z.shape[1]
        if y.shape != (n, 2) or n < 1:
            raise ValueError(
                f"{name} takes labels of shape (tokens, 2) and scores of shape (tokens + k + 2, k), but they "
                f"have {y.shape} and {z.shape}: call linear_risk with lengths, the tokens of each sequence"
            )
        labels = y[:, 0].astype(np.int64)
        if labels.min() < 0 or labels.max() >= k:
            raise ValueError(
                f"y holds label {labels.max()}, but scores are of labels 0 to {k - 1}: give n_outputs"
            )
        # a sequence ends where the sequence number of the next token differs
        ends = np.append(np.flatnonzero(np.diff(y[:, 1])) + 1, n)
        return cls(np.ascontiguousarray(z, dtype=np.float64), labels, ends, c[ends - 1].astype(np.float64))


class _TaggingLoss(Loss):
    """Label check and linear map shared by the chain losses."""

    task = "tagging"

    def check_labels(self, y: Array) -> None:
        """Require labels numbered from 0, in the first column if there are two."""
        check_finite(self, y)
        labels = np.asarray(y)[:, 0] if np.ndim(y) == 2 else np.asarray(y)
        if np.any(labels < 0) or np.any(labels != np.floor(labels)):
            raise ValueError(
                f"{type(self).__name__} needs labels numbered 0, 1, 2, ..., but y holds others: number them, "
                "or use ChainTagger, which takes any labels"
            )

    def linear_map(self, y: NDArray, n_outputs: int | None = None) -> ChainMap:
        """Return the chain map of n_outputs labels; by default, of the labels 0 to the largest one in y."""
        largest = int(np.asarray(y)[:, 0].max())
        if n_outputs is not None and n_outputs <= largest:
            raise ValueError(
                f"y holds label {largest}, but n_outputs is {n_outputs}: give {largest + 1} or more"
            )
        k = n_outputs or largest + 1
        if k < 2:
            raise ValueError("y holds a single label, but two are needed: add sequences with others")
        return ChainMap(k)


@dataclass(frozen=True)
class ChainCrf(_TaggingLoss):
    r"""The linear-chain conditional random field: the negative log-likelihood of the true labels,

    .. math:: -\log p(y) = \log \sum_{y'} e^{s(y')} - s(y).

    Its gradient is the marginal probabilities of labels and of pairs of adjacent labels, minus their counts
    in y.

    References
    ----------
    J. Lafferty, A. McCallum, F. Pereira, Conditional random fields, ICML 2001.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, ChainCrf, Objective, linear_risk, minimize
    >>> X, y = np.eye(3)[[0, 1, 2, 0, 2]], [0, 1, 1, 0, 1]
    >>> risk = linear_risk(X, y, ChainCrf(), lengths=[3, 2])
    >>> value, _ = risk(np.zeros(risk.dim))
    >>> round(value, 6)  # (3 log 2 + 2 log 2) / 2
    1.732868
    >>> minimize(Objective(risk, L2(), lam=0.1), tol=1e-6).status
    'converged'
    """

    smooth = True
    probabilistic = True
    formula = "log sum_y' exp s(y') - s(y)"

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return the weighted sum over sequences and its gradient."""
        batch = SequenceBatch.from_arrays(self, z, y, c)
        # marginals minus label counts, weighted by sequence
        value, dz = _expectations(batch)
        return float(batch.c @ value), dz.astype(z.dtype, copy=False)


@dataclass(frozen=True)
class ChainMaxMargin(_TaggingLoss):
    r"""The structured hinge loss of chains, with the Hamming distance as the cost,

    .. math:: \max_{y'}\; \Delta(y, y') + s(y') - s(y), \qquad \Delta(y, y') = \#\{t : y'_t \ne y_t\}.

    With slack rescaling (`rescaled`) it is :math:`\max_{y'}\; \Delta(y, y') (1 + s(y') - s(y))`, and with a
    power :math:`\beta` in between, :math:`\max_{y'}\; \Delta^\beta (s(y') - s(y)) + \Delta`. Both are
    computed exactly by a dynamic program over the tokens and the number of errors so far.

    Smoothed, the maximum is over distributions of :math:`y'`, minus :math:`\mu` times their Kullback-Leibler
    divergence from the uniform distribution: the log partition function of a conditional random field at
    temperature :math:`\mu`. Only margin rescaling (the default) can be smoothed.

    Parameters
    ----------
    rescaled : bool or float
        Whether the cost scales the margin (slack rescaling) or is added to it (margin rescaling); or
        :math:`\beta`, of which True and False are 1 and 0.

    References
    ----------
    B. Taskar, C. Guestrin, D. Koller, Max-margin Markov networks, NIPS 2003. I. Tsochantaridis, T. Joachims,
    T. Hofmann, Y. Altun, Large margin methods for structured and interdependent output variables, JMLR 6,
    2005. C. H. Teo, Q. Le, A. Smola, S. V. N. Vishwanathan, A scalable modular convex solver for regularized
    risk minimization, KDD 2007, section 3.3.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import ChainMaxMargin, linear_risk
    >>> X, y = np.eye(3)[[0, 1, 2, 0, 2]], [0, 1, 1, 0, 1]
    >>> for rescaled in (False, True):
    ...     risk = linear_risk(X, y, ChainMaxMargin(rescaled), lengths=[3, 2])
    ...     print(round(risk(np.zeros(risk.dim))[0], 6))
    2.5
    2.5
    """

    rescaled: bool | float = False

    def __post_init__(self) -> None:
        check_rescaling(self.rescaled)
        lead, errors = "s(y') - s(y)", "errors(y, y')"
        between = f"{errors}^{float(self.rescaled):g} ({lead}) + {errors}"
        term = {0.0: f"{errors} + {lead}", 1.0: f"{errors} (1 + {lead})"}.get(float(self.rescaled), between)
        object.__setattr__(self, "formula", f"max_y' {term}")

    @property
    def can_be_smoothed(self) -> bool:
        """Whether the loss has a smoothed form: slack rescaling has none."""
        return not self.rescaled

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return the weighted sum over sequences and a subgradient."""
        batch, kernels = SequenceBatch.from_arrays(self, z, y, c), _viterbi()
        # the kernel maximizes over label sequences and adds the subgradients of all sequences into dz
        path, dz = np.empty_like(batch.y), np.zeros_like(batch.z)
        losses = kernels.most_violating_paths(*batch, 1.0, float(self.rescaled), path, dz)
        return float(batch.c @ losses), dz.astype(z.dtype, copy=False)

    def smoothed_value_grad(
        self, z: Array, y: Array, c: Array, mu: float, center: Array | None = None
    ) -> tuple[Any, Array, Any]:
        r"""Return the smoothed loss, its gradient, and the minorant offset.

        With q the maximizing distribution, the tangent plus the offset is the expectation under q of
        :math:`\Delta(y, y') + s(y') - s(y)`, which is a cut of the loss.
        """
        if self.rescaled:
            raise UnsupportedProblem(f"{self!r} cannot be smoothed: use Bundle")
        batch = SequenceBatch.from_arrays(self, z, y, c)
        tokens, n = np.arange(len(y)), len(y)
        # scores over temperature, with the Hamming cost of 1 added to every wrong label of a token
        tempered = batch.z / mu
        tempered[:n] += 1 / mu
        tempered[tokens, batch.y] -= 1 / mu
        value, dz = _expectations(batch._replace(z=tempered))
        # minus mu log k^n, the number of label sequences: relative to the uniform distribution
        sizes = np.diff(batch.ends, prepend=0)
        value_mu = mu * float(batch.c @ (value - sizes * math.log(z.shape[1])))
        # the gradient at the true label of a token is -c (1 - its probability)
        cost = -float(dz[tokens, batch.y].sum())
        # expectation of Delta + s(y') - s(y) under q, minus the smoothed value
        offset = cost + float(dz.ravel() @ batch.z.ravel()) - value_mu
        return value_mu, dz.astype(z.dtype, copy=False), offset


def _expectations(batch: SequenceBatch) -> tuple[NDArray, NDArray]:
    """Return log Z - s(y) per sequence, and the weighted sum of marginals minus label counts."""
    value, dz = np.zeros(len(batch.c)), np.zeros_like(batch.z)
    _forward_backward().expectations(batch.z, batch.y, batch.ends, batch.c, dz, value)
    return value, dz

r"""Losses of label sequences with scores of neighbouring labels: the conditional random field, and margins.

.. math:: s(y) = start_{y_1} + \sum_t E_{t, y_t} + \sum_t T_{y_t, y_{t+1}} + end_{y_n}

The scores z of some sequences are one array: a row of E a token, then the k rows of T, then start, then end.
Labels y have two columns, the label of each token and the number of its sequence; a token weighs what its
sequence does. Sums and maxima over all label sequences are dynamic programs, exact for any length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from riskmin.losses.labels import check_finite
from riskmin.sequences import Chain
from riskmin.types import Array, NDArray


@cache
def _kernels() -> tuple[Any, Any]:
    from riskmin.kernels import chain, chain_max  # Numba is imported by the first use, not with the package

    return chain, chain_max


class Chains(NamedTuple):
    """The sequences of a block of tokens, as the kernels take them.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.array([[1.0, 5], [0, 5], [1, 7]])
    >>> chains = Chains.of(None, np.zeros((3 + 2 + 2, 2)), y, np.array([0.25, 0.25, 0.75]))
    >>> chains.y.tolist(), chains.ends.tolist(), chains.c.tolist()
    ([1, 0, 1], [2, 3], [0.25, 0.75])
    """

    z: NDArray
    y: NDArray
    ends: NDArray
    c: NDArray

    @classmethod
    def of(cls, loss: object, z: Array, y: Array, c: Array) -> Chains:
        """Of scores, labels and weights; nothing is trusted that memory would be written by."""
        name = type(loss).__name__
        if not isinstance(z, np.ndarray):
            raise ValueError(f"{name} is computed by NumPy, not by {type(z).__module__}: give NumPy arrays")
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
        ends = np.append(np.flatnonzero(np.diff(y[:, 1])) + 1, n)
        return cls(np.ascontiguousarray(z, dtype=np.float64), labels, ends, c[ends - 1].astype(np.float64))


class _Tagging:
    """What losses of chains share."""

    separable = True
    task = "tagging"

    def check_labels(self, y: Array) -> None:
        """Labels numbered from 0 on, in the first column if there are two."""
        check_finite(self, y)
        labels = np.asarray(y)[:, 0] if np.ndim(y) == 2 else np.asarray(y)
        if np.any(labels < 0) or np.any(labels != np.floor(labels)):
            raise ValueError(
                f"{type(self).__name__} needs labels numbered 0, 1, 2, ..., but y holds others: number them, "
                "or use ChainTagger, which takes any"
            )

    def scorer(self, y: NDArray, n_outputs: int | None = None) -> Chain:
        """Chains of as many labels as y holds, if no more are asked for."""
        most = int(np.asarray(y)[:, 0].max())
        if n_outputs is not None and n_outputs <= most:
            raise ValueError(f"y holds label {most}, but n_outputs is {n_outputs}: give {most + 1} or more")
        k = n_outputs or most + 1
        if k < 2:
            raise ValueError("y holds a single label, but two are needed: add sequences with others")
        return Chain(k)


@dataclass(frozen=True)
class ChainCrf(_Tagging):
    r"""The conditional random field of chains: minus the log-probability of the right labels,

    .. math:: -\log p(y) = \log \sum_{y'} e^{s(y')} - s(y).

    Its gradient is the marginals of labels, and of neighbouring ones, less what y counts.

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
    formula = "log sum_y' exp s(y') - s(y)"

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """The weighted sum over sequences, and its gradient."""
        chains = Chains.of(self, z, y, c)
        value, dz = _expectations(chains)
        return float(chains.c @ value), dz.astype(z.dtype, copy=False)


@dataclass(frozen=True)
class ChainMaxMargin(_Tagging):
    r"""The structured hinge of chains, with the number of wrong labels for the cost,

    .. math:: \max_{y'}\; \Delta(y, y') + s(y') - s(y), \qquad \Delta(y, y') = \#\{t : y'_t \ne y_t\}.

    `rescaled` scales margins in place of shifting them: :math:`\max_{y'}\; \Delta(y, y') (1 + s(y') - s(y))`,
    exactly, by a dynamic program over tokens and errors so far.

    Smoothed, the maximum becomes one over distributions of :math:`y'`, with :math:`\mu` times their
    Kullback-Leibler divergence from the uniform distribution taken off: the log partition function of a
    conditional random field, at temperature :math:`\mu`.

    Parameters
    ----------
    rescaled : bool

    References
    ----------
    B. Taskar, C. Guestrin, D. Koller, Max-margin Markov networks, NIPS 2003. I. Tsochantaridis, T. Joachims,
    T. Hofmann, Y. Altun, Large margin methods for structured and interdependent output variables, JMLR 6,
    2005.

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

    rescaled: bool = False

    smooth = False

    def __post_init__(self) -> None:
        if not self.rescaled:  # else it cannot be smoothed, and shall not look as if
            object.__setattr__(self, "soft", self._soft)

    @property
    def formula(self) -> str:
        """The loss in one line."""
        cost = "errors(y, y')"
        return f"max_y' {cost} (1 + s(y') - s(y))" if self.rescaled else f"max_y' {cost} + s(y') - s(y)"

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """The weighted sum over sequences, and a subgradient."""
        chains, kernels = Chains.of(self, z, y, c), _kernels()[1]
        path, dz = np.empty_like(chains.y), np.zeros_like(chains.z)
        losses = kernels.worst_paths(*chains, 1.0, self.rescaled, path, dz)
        return float(chains.c @ losses), dz.astype(z.dtype, copy=False)

    def _soft(self, z: Array, y: Array, c: Array, mu: float) -> tuple[Any, Array, Any]:
        r"""The smoothed loss, its gradient, and its lift.

        With q the distribution that attains it, the tangent, lifted, is the expectation under q of
        :math:`\Delta(y, y') + s(y') - s(y)`: a cut of the loss.
        """
        chains = Chains.of(self, z, y, c)
        tokens, n = np.arange(len(y)), len(y)
        at = chains.z / mu
        at[:n] += 1 / mu
        at[tokens, chains.y] -= 1 / mu
        value, dz = _expectations(chains._replace(z=at))
        sizes = np.diff(chains.ends, prepend=0)
        total = mu * float(chains.c @ (value - sizes * math.log(z.shape[1])))
        cost = -float(dz[tokens, chains.y].sum())  # c (1 - probability of the right label), token by token
        lift = cost + float(dz.ravel() @ chains.z.ravel()) - total
        return total, dz.astype(z.dtype, copy=False), lift


def _expectations(chains: Chains) -> tuple[NDArray, NDArray]:
    """Of each sequence log Z - s(y), and the weighted sum of marginals less counts."""
    value, dz = np.zeros(len(chains.c)), np.zeros_like(chains.z)
    _kernels()[0].expectations(chains.z, chains.y, chains.ends, chains.c, dz, value)
    return value, dz

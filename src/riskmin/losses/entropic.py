r"""Losses of the contingency table, smoothed by entropy: the worst labelling becomes a distribution of them.

.. math:: R_T(z) = T \log \frac1N \sum_{y'} \exp \frac{\Delta(y', y) + \sum_i z_i (y'_i - y_i) / n}T
          \;\le\; R(z)

over N labellings. Its gradient is the mean of :math:`(y' - y) / n` under the distribution p that the
exponentials make, and p's mean of what stands in them is :math:`R_T(z) + T (\log N - H(p))`: no more than
their largest, so that the tangent, lifted by :math:`T (\log N - H(p))`, is a cut of R. A table is known by
its misses and alarms, so that sums over all labellings are sums over tables of products of elementary
symmetric polynomials (Zhang, Saha and Vishwanathan, NIPS 2010, section 5.1).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from riskmin.arrays import like, namespace, to_numpy
from riskmin.types import Array, NDArray, Unsuited

MOST_WORK = 5000**2
"""So many steps are taken in an evaluation at most: about half a second."""


def _kernels() -> Any:
    from riskmin.kernels import subsets  # Numba is imported by the first sum, not with the package

    return subsets


def entropic(loss: Any, z: Array, y: Array, temperature: float) -> tuple[float, Array, float]:
    r"""The loss smoothed by the entropy of labellings, its gradient in z, and its lift.

    It costs :math:`O(n_+^2 + n_-^2)`, less where few misses or alarms are possible.

    Parameters
    ----------
    loss : FBeta, Prbep, PrecisionAtK, RecallAtK or one of your own
        With a method ``tables(n_above, n_below)``: the misses, the alarms and the :math:`\Delta` of each
        table that a labelling may have.
    z, y : (n,) arrays
        Scores, and labels -1 and +1; all rows weigh the same.
    temperature : float
        T > 0: at most :math:`T \log N` is taken off.

    Returns
    -------
    value : float
    dz : (n,) array
    lift : float
        :math:`T (\log N - H(p)) \ge 0`.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import FBeta
    >>> z, y = np.array([1.0, -1.0, 0.5]), np.array([1.0, 1.0, -1.0])
    >>> value, dz, lift = entropic(FBeta(), z, y, temperature=0.1)
    >>> round(float(FBeta().value_grad(z, y, np.ones(3) / 3)[0]), 4), round(value, 4), round(value + lift, 4)
    (1.5, 1.3105, 1.4682)
    """
    scores, up = np.asarray(to_numpy(z), np.float64), np.asarray(to_numpy(y)) > 0
    n = len(scores)
    misses, alarms, delta = loss.tables(int(up.sum()), int(n - up.sum()))
    steps = int(up.sum()) * int(misses.max()) + int(n - up.sum()) * int(alarms.max())
    if steps > MOST_WORK:
        raise Unsuited(
            f"{type(loss).__name__} takes {steps:.1e} steps a look to be smoothed on {n} rows, and at most "
            f"{MOST_WORK:.1e} are taken: use Bundle"
        )
    pull = 2 / (n * temperature) * scores
    above, below = Side(-pull[up], int(misses.max())), Side(pull[~up], int(alarms.max()))
    weights = delta / temperature + above.sums[misses] + below.sums[alarms]
    high = float(weights.max())
    chance = np.exp(weights - high)
    total = float(chance.sum())
    chance /= total
    value = temperature * (high + math.log(total) - log_labellings(misses, alarms, len(above), len(below)))
    dz = np.empty(n)
    dz[up] = -2 / n * above.chances(np.bincount(misses, chance))
    dz[~up] = 2 / n * below.chances(np.bincount(alarms, chance))
    lift = float(chance @ delta) + float(dz @ scores) - value
    return value, namespace(z).astype(like(dz, z), z.dtype), lift


class Side:
    """The rows of one label, of which some are on the wrong side: their log odds, and sums over subsets."""

    def __init__(self, odds: NDArray, most: int) -> None:
        self.odds, self.step = odds, max(1, math.isqrt(len(odds)))
        self.kept = _kernels().sizes(odds, most, self.step)
        self.sums = self.kept[0]

    def __len__(self) -> int:
        return len(self.odds)

    def chances(self, size: NDArray) -> NDArray:
        """How likely each row is to be on the wrong side, where the distribution of their number is given."""
        found: NDArray = _kernels().chances(self.odds, self.kept, self.step, size)
        return found


def log_labellings(misses: NDArray, alarms: NDArray, n_above: int, n_below: int) -> float:
    """The logarithm of how many labellings have one of these tables.

    Examples
    --------
    >>> import numpy as np
    >>> round(float(np.exp(log_labellings(np.array([0, 1]), np.array([0, 1]), 2, 3))), 6)  # 1 + 2 * 3
    7.0
    """
    factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, max(n_above, n_below) + 1)))])
    many = factorial[n_above] - factorial[misses] - factorial[n_above - misses]
    many = many + factorial[n_below] - factorial[alarms] - factorial[n_below - alarms]
    high = float(many.max())
    return high + math.log(float(np.exp(many - high).sum()))


def soft_by_entropy(loss: Any, z: Array, y: Array, mu: float) -> tuple[float, Array, float]:
    """The same with a temperature for which at most mu / 2 is taken off, as where it is a square.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import PrecisionAtK
    >>> z, y = np.array([1.0, -1.0, 0.5]), np.array([1.0, 1.0, -1.0])
    >>> value, dz, lift = soft_by_entropy(PrecisionAtK(k=1), z, y, mu=0.5)
    >>> true, _ = PrecisionAtK(k=1).value_grad(z, y, np.ones(3) / 3)
    >>> bool(true - 0.25 <= value <= true), bool(0 <= lift <= 0.25)
    (True, True)
    """
    up = int((np.asarray(to_numpy(y)) > 0).sum())
    misses, alarms, _ = loss.tables(up, len(y) - up)
    many = log_labellings(misses, alarms, up, len(y) - up)
    return entropic(loss, z, y, 0.5 * mu / many if many > 0 else mu)

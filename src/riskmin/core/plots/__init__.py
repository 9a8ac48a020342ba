"""Drawing with Matplotlib, which is imported on the first plot: the axes, and the plot of a result."""

from __future__ import annotations

from typing import Any

from riskmin.core.messages import extra_hint


def new_axes(n: int = 1) -> tuple[Any, ...]:
    """Return the axes of a new figure, side by side.

    Parameters
    ----------
    n : int
        The number of axes.

    Raises
    ------
    ImportError
        If Matplotlib is not installed; the message names the extra.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(f"plots need Matplotlib ({error}): {extra_hint('plot')}") from None
    # 5.2 x 3.6 inches per plot: legible at half the width of a page
    _, axes = plt.subplots(1, n, figsize=(5.2 * n, 3.6), layout="constrained", squeeze=False)
    return tuple(axes[0])

"""Array namespaces and devices: the only place that knows which array libraries there are."""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.types import Array


def namespace(*arrays: Array) -> Any:
    """The array-API namespace of the arrays.

    NumPy is its own (it follows the standard since 2.1), which spares the wrappers on small blocks.

    Examples
    --------
    >>> import numpy as np
    >>> namespace(np.zeros(2)) is np
    True
    """
    if all(isinstance(a, np.ndarray) for a in arrays):
        return np
    from array_api_compat import array_namespace  # torch, CuPy and the rest pay for their own import

    return array_namespace(*arrays)


def like(a: Array, b: Array) -> Array:
    """The numbers of a in the library, the dtype and on the device of b."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a
    if isinstance(b, np.ndarray):
        return to_numpy(a)
    from array_api_compat import device

    return namespace(b).asarray(a, dtype=b.dtype, device=device(b))


def to_numpy(a: Array) -> np.ndarray[Any, Any]:
    """The numbers of a in NumPy, wherever a is."""
    if isinstance(a, np.ndarray):
        return a
    from array_api_compat import is_cupy_array, to_device

    return np.asarray(a.get() if is_cupy_array(a) else to_device(a, "cpu"))


def largest_exponent(z: Array) -> float:
    """Half the logarithm of the largest number of z's dtype: exp stays far from overflow below it."""
    return 0.5 * float(np.log(float(namespace(z).finfo(z.dtype).max)))

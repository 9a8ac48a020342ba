"""Memory-mapped, read-only arrays from .npy files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from riskmin.arrays import memory_map
from riskmin.data.base import DataError


def map_npy(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Map the array of a .npy file; raise a DataError unless it has this dtype and shape."""
    try:
        with path.open("rb") as file:
            if np.lib.format.read_magic(file) != (1, 0):
                raise ValueError("it is of another version of the format")
            actual = np.lib.format.read_array_header_1_0(file)
            # the size of the file must be that of the header and of all entries
            header_size, size, count = file.tell(), os.fstat(file.fileno()).st_size, int(np.prod(shape))
            expected = header_size + count * dtype.itemsize
            if actual != (shape, False, dtype):
                raise ValueError(f"{actual[2]} of shape {actual[0]}, not {dtype} of shape {shape}")
            if size != expected:
                defect = "truncated" if size < expected else "too long"
                problem = f"the file is {defect}, {size} bytes instead of {expected}; convert the data anew"
                raise DataError(path, None, problem)
            # without entries there is nothing to map
            if count == 0:
                return np.empty(shape, dtype)
            return np.frombuffer(memory_map.map_file(file), dtype, count, header_size).reshape(shape)
    except DataError:
        raise
    except OSError as error:
        problem = f"it cannot be read ({error.strerror or error}); convert the data anew"
        raise DataError(path, None, problem) from error
    except Exception as error:  # NumPy's parser of headers raises errors of many types
        problem = f"it is not the array that was written ({error}); convert the data anew"
        raise DataError(path, None, problem) from error

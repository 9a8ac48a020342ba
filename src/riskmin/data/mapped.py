"""Arrays of NumPy's format that stay on disk: mapped into memory, read-only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from riskmin import maps
from riskmin.data.base import DataError


def mapped(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """The array in a .npy file, which is not read before its numbers are; a DataError if it is another."""
    try:
        with path.open("rb") as file:
            if np.lib.format.read_magic(file) != (1, 0):
                raise ValueError("it is of another version of the format")
            found = np.lib.format.read_array_header_1_0(file)
            head, size, count = file.tell(), os.fstat(file.fileno()).st_size, int(np.prod(shape))
            wanted = head + count * dtype.itemsize
            if found != (shape, False, dtype):
                raise ValueError(f"{found[2]} of shape {found[0]}, not {dtype} of shape {shape}")
            if size != wanted:
                short = "truncated" if size < wanted else "too long"
                problem = f"the file is {short}, {size} bytes instead of {wanted}; convert the data anew"
                raise DataError(path, None, problem)
            if count == 0:
                return np.empty(shape, dtype)
            return np.frombuffer(maps.mapped(file), dtype, count, head).reshape(shape)
    except DataError:
        raise
    except OSError as error:
        problem = f"it cannot be read ({error.strerror or error}); convert the data anew"
        raise DataError(path, None, problem) from error
    except Exception as error:  # NumPy's parser of headers has many ways to fail
        problem = f"it is not the array that was written ({error}); convert the data anew"
        raise DataError(path, None, problem) from error

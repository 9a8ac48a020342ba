"""All Numba code: module-level compiled functions of arrays, cached on disk, imported on first use."""

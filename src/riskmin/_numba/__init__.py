"""All Numba code: module-level compiled functions of arrays, cached on disk and imported on first use."""

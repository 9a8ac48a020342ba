"""CUDA kernels, compiled by CuPy when they are first called."""

"""Matrices of other array libraries than NumPy, and on GPUs."""

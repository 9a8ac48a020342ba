"""Kernel machines, the kernels by name, and kernel features by incomplete Cholesky factors."""

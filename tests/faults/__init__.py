"""Fault injection: the k-th system call fails, or the process is killed at it, for every k."""

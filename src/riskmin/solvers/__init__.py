"""Solvers: generators of iterates."""

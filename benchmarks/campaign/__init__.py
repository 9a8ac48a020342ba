"""A campaign of random problems against the certificates: every bound is held against exact arithmetic.

``python -m benchmarks.campaign --n 1000 --seed 0`` draws a problem for each seed, solves it by every
solver that takes it, and writes what was counted, and each failure with its seed, to a JSON file. See
docs/reliability.md.
"""

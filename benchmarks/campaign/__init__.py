"""Random problems that test the certificates: every bound is compared with exact arithmetic.

``python -m benchmarks.campaign --n 1000 --seed 0`` draws one problem per seed, solves it with every
applicable solver, and writes counts, and each failure with its seed, to a JSON file. See docs/reliability.md.
"""

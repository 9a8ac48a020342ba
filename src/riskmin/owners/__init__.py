"""Data owners who share nothing: each answers sums over its own rows, a coordinator fits the pooled risk.

.. math:: R(w) = \\sum_k R_k(w), \\qquad R_k(w) = \\sum_{i \\in \\text{owner } k} c_i\\, l(x_i^\\top w, y_i).

`wire/` holds messages, operations and certificates; `protection/` what an owner refuses, rounds and records.
"""

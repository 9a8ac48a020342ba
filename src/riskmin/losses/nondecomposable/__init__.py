"""Losses that are not sums over rows: pairs, contingency tables, rankings, and the nu-trick."""

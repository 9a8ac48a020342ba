"""Compiled sums over rows for Newton's method."""

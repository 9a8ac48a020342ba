"""Compiled sweeps of dual ascent, and the checks of their results."""

"""Compiled loops of coordinate descent."""

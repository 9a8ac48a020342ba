"""Convex losses of the scores: each is written once, in the array namespace of its scores."""

"""Coordinate descent over columns: quadratic models of the loss, working sets, scored points."""

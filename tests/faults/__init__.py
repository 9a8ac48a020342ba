"""Failure by count: the k-th call to the system fails, or the process ends at it, for every k there is."""

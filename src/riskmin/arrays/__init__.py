"""Storage of X: array namespaces, matrices, partitions, memory maps, and their checks."""

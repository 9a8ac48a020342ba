"""L-BFGS for smooth objectives and OWL-QN for L1, with the memory of curvature pairs."""

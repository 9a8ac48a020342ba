"""Model files: what is saved of each estimator, and the checks when it is loaded."""

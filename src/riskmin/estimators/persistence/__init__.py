"""Model files: the saved parts of each estimator, and the checks on loading."""

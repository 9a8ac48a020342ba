"""The problem of a model and its data: its objective, a dry run, and early stopping on other rows."""

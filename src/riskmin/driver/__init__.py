"""The run: the loop of `minimize`, its state and stopping, checkpoints, and regularization paths."""

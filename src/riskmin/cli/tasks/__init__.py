"""Behavior of the commands for each task: labels, predictions, metrics."""

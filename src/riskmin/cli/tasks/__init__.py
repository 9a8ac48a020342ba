"""What each kind of task needs in the command: labels, predictions, metrics."""

"""Linear maps from the weights w to the scores of a row, and their adjoints."""

"""The problem: from arrays to a risk, and from a risk to an objective."""

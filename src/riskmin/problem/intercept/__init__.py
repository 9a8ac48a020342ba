"""Intercepts: profiled out of the risk, or explicit entries of w."""

"""Risks in the feature space of a Mercer kernel."""

"""Risks without a penalty."""

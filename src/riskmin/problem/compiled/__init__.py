"""Losses compiled from their array code."""

"""Minimize any regularized convex risk, and prove how close you came."""

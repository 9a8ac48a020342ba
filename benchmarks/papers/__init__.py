"""Reproductions of tables of the papers whose methods riskmin implements."""

"""Dual coordinate ascent: exact steps, CoCoA+, multiclass, kernel machines and chains."""

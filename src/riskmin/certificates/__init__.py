"""What the multipliers of the rows prove about a model."""

"""Constrained forms: hard margins, basis pursuit and maximum entropy, with proofs of infeasibility."""

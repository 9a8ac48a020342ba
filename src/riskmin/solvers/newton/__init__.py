"""Newton's method on smooth and on smoothed losses: score problems, Newton systems, subsampled starts."""

"""Each optional mechanism switched off in turn, on real sets: see `python -m benchmarks.ablation --help`."""

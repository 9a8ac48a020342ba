"""The first fit, at its defaults, on raw tables that nothing was tuned to: `benchmarks.tables.__main__`."""

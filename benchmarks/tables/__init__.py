"""The first fit, at its defaults, on raw tables that nothing was tuned to. See `benchmarks.tables.__main__`."""

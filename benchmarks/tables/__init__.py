"""First fits with default settings on raw tables: see `benchmarks.tables.__main__`."""

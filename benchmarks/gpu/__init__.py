"""The GPU: checks against double precision on the CPU, the bandwidth of the oracle, and whole fits."""

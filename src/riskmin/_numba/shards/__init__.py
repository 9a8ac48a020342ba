"""Compiled loops over several shards."""

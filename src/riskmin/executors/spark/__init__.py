"""Shards in the tasks of one barrier stage of Spark."""

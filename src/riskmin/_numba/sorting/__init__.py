"""Compiled sorting, sums over subsets, and ranked lists."""

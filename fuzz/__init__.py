"""Attacks on all that reads files, kept: seeds, mutations, targets, whole commands.

`python -m fuzz` drives the targets by coverage (atheris), `python -m fuzz.commands` runs fuzzed commands, and
tests/data/test_fuzz.py runs a bounded part of both, with tests/corpus/, what was found.
"""

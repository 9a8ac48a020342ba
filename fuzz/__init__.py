"""Fuzzing of everything that reads files: seeds, mutations, targets, whole commands.

`python -m fuzz` runs coverage-guided fuzzing of the targets (atheris), `python -m fuzz.commands` runs fuzzed
commands, and tests/data/test_fuzz.py runs a bounded part of both and all former failures, tests/corpus/.
"""

"""What the scripts share: a parser whose help is their docstring, and the head of a table."""

from __future__ import annotations

import argparse


def script_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser that prints the docstring of the script as it is written."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def print_head(names: str) -> None:
    """Print the head of a Markdown table: its names, written as ``a | b``, and the rule below them."""
    print(f"| {names} |\n|{'---|' * (names.count('|') + 1)}", flush=True)

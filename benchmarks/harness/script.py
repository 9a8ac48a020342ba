"""What the scripts share: a parser whose help is their docstring, the head of a table, memory in use."""

from __future__ import annotations

import argparse
from pathlib import Path


def script_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser that prints the docstring of the script as it is written."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def memory_bytes(field: str) -> int:
    """Return a memory field of this process in /proc, in bytes: VmRSS (present), VmHWM (peak), RssAnon."""
    line = next(s for s in Path("/proc/self/status").read_text().splitlines() if s.startswith(field))
    return 1024 * int(line.split()[1])


def print_head(names: str) -> None:
    """Print the head of a Markdown table: its names, written as ``a | b``, and the rule below them."""
    print(f"| {names} |\n|{'---|' * (names.count('|') + 1)}", flush=True)

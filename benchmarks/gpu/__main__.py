"""The commands: python -m benchmarks.gpu check | oracle | lists | streaming | solvers | fits | calls."""

from __future__ import annotations

import importlib
import sys

COMMANDS = "check", "oracle", "lists", "streaming", "solvers", "fits", "calls"

if __name__ == "__main__":
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in COMMANDS:
        sys.exit(f"python -m benchmarks.gpu {' | '.join(COMMANDS)} [options]")
    sys.exit(importlib.import_module(f"benchmarks.gpu.{name}").main(sys.argv[2:]))

"""Kills at counted points, and every file call failing once: `python -m benchmarks.faults --kills 200`.

It runs all cases of tests/faults/; the test suite runs a sample of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from faults.kills import main

    sys.exit(main())

"""Puts the tests' own modules on the path, also for the processes that the tests start."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

"""Puts the tests' own modules on the path, also for processes that tests start; and lets Ctrl-C through."""

import signal
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

# A shell starts jobs in the background with SIGINT ignored, and tests of interruption would wait in vain.
if (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) == signal.SIG_IGN
):
    signal.signal(signal.SIGINT, signal.default_int_handler)

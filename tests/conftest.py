"""The tests' own modules on the path, also for processes that tests start; Ctrl-C; the command."""

import signal
import sys
import threading
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

# A shell starts jobs in the background with SIGINT ignored, and tests of interruption would wait in vain.
if (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) == signal.SIG_IGN
):
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def run(capsys):
    """Run the command in this process: its exit code, stdout and stderr."""
    from riskmin.cli import main

    def call(*args):
        code = main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return code, out, err

    return call

"""Put the tests' modules on the path, restore SIGINT, and define the `run` fixture."""

import signal
import sys
import threading
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

# A shell starts background jobs with SIGINT ignored; tests of interruption would then wait forever.
if (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) == signal.SIG_IGN
):
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def run(capsys):
    """Run the command in this process; return its exit code, stdout and stderr."""
    from riskmin.cli import main

    def call(*args):
        code = main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return code, out, err

    return call

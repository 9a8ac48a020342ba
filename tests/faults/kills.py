"""Processes killed at counted points by SIGKILL, SIGTERM or SIGINT, and the conditions that must hold then.

Each is a fork of this process, which has imported and compiled everything, so that a kill costs some
milliseconds. No kill is timed: the signal is sent before or after the k-th call that touches files, or in the
k-th iteration.
"""

import argparse
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from functools import cache, partial
from multiprocessing import resource_tracker
from pathlib import Path

from faults.failures import checkpoint_points, fail, fail_checkpoint, points, sample
from faults.families import FAMILIES, rows_of
from faults.operations import OPERATIONS
from faults.shim import Disk, Faults
from riskmin.core import signals

SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT}
PATIENCE = 30.0
"""Seconds after which processes that are still there hang."""


def forked(run):
    """Run a function in a fork; returns its exit code and the messages of it and its children."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(run, theirs)
    os.close(theirs)
    messages = b""
    while True:  # until the fork and all its children have ended
        ready, _, _ = select.select([ours], [], [], PATIENCE)
        assert ready, "processes are still there"
        chunk = os.read(ours, 4096)
        if not chunk:
            break
        messages += chunk
    os.close(ours)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), messages


def _child(run, pipe):
    code = 70
    try:
        with signals.as_interrupts(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = run(pipe) or 0
    except KeyboardInterrupt:
        code = 128 + signals.last_signal()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def striking(pipe, number):
    """A function that reports to the pipe and sends a signal to its own process."""

    def strike(name=""):
        os.write(pipe, b"x")
        os.kill(os.getpid(), number)

    return strike


def check_end(code, number, messages):
    """Whether the signal was sent; checks that nothing else ended the process."""
    assert code != 70, "it ended by an error"
    if b"x" in messages and number == signal.SIGKILL:
        assert code == -signal.SIGKILL
    return b"x" in messages


# ---------------------------------------------------------------- operations
@cache
def calls(rehearse):
    """Number of calls that touch files."""
    rehearse()  # the initial files are written now, and do not count
    with Faults().installed() as faults:
        rehearse()
    return len(faults.calls)


def kill_operation(name, number, chance):
    """Kill an operation at a random call; returns whether the call was reached."""
    operation, _ = OPERATIONS[name], OPERATIONS[name].states
    call_number, after = chance.randint(1, calls(operation.rehearse)), chance.random() < 0.5

    def run(pipe):
        with Faults(call_number, striking(pipe, number), after=after).installed():
            operation.act(folder)

    with operation.folder() as folder:
        code, messages = forked(run)
        operation.check(folder, done=code == 0, tidy=number != signal.SIGKILL)
    return check_end(code, number, messages)


def cut_power(name, chance):
    """Simulate a power loss at a random call: unsynced data are lost."""
    operation, _ = OPERATIONS[name], OPERATIONS[name].states
    call_number, names = chance.randint(1, calls(operation.rehearse)), chance.random() < 0.5

    def run(pipe):
        def strike(call):
            os.write(pipe, b"x")
            disk.lose_power(names=names)
            os._exit(1)

        disk = Disk(call_number, strike)
        with disk.installed():
            operation.act(folder)

    with operation.folder() as folder:
        code, messages = forked(run)
        assert code in (0, 1)
        operation.check(folder, done=False, tidy=False)
    return b"x" in messages


# ---------------------------------------------------------------- checkpoints
def kill_family(name, number, chance):
    """Kill a run at an iteration or at a call that writes its checkpoint, then resume it."""
    family = FAMILIES[name]
    by_call = chance.random() < 0.5
    call_number = chance.randint(1, calls(family.rehearse) if by_call else family.undisturbed.n_iter)
    after = chance.random() < 0.5

    def run(pipe):
        strike = striking(pipe, number)

        def note(it, row):
            os.write(pipe, b".")
            if not by_call and row["iteration"] == call_number:
                strike()

        with Faults(call_number if by_call else 0, strike, after=after).installed():
            return 0 if family.run(path, callback=note).status == "converged" else 3

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run")
        code, messages = forked(run)
        rows, done = rows_of(path), messages.count(b".")
        if number == signal.SIGKILL:
            assert rows >= done - 1, (rows, done)
        else:  # the last checkpoint has every iteration, and no other file remains
            assert rows == done, (rows, done)
            assert [p.name for p in Path(folder).iterdir()] == ["run"]
        again = family.run(path)
        family.check(again)
        assert again.n_iter >= rows
    return check_end(code, number, messages)


# ---------------------------------------------------------------- all of them
def kinds():
    """The kinds of kills by name: functions of the signal and a random generator."""
    families = {f"checkpoint {name}": partial(kill_family, name) for name in FAMILIES}
    return {name: partial(kill_operation, name) for name in OPERATIONS} | families


def kill_many(wanted, kills, seed=0, names=None):
    """Kill until `kills` signals were sent per kind and signal; returns the numbers of intact results."""
    resource_tracker.ensure_running()
    chosen = [(name, sign, partial(kill, SIGNALS[sign])) for name, kill in kinds().items() for sign in wanted]
    chosen += [(name, "power", partial(cut_power, name)) for name in OPERATIONS]
    for name, sign, kill in chosen:
        if names is None or name in names:
            chance, struck, began = random.Random(f"{seed} {name} {sign}"), 0, time.perf_counter()
            while struck < kills:
                struck += kill(chance)
            yield {"kind": name, "signal": sign, "struck": struck, "seconds": time.perf_counter() - began}


def fail_all(max_calls):
    """Let every call of every operation fail once in each way, and up to `max_calls` calls of checkpoints."""
    for name, operation in OPERATIONS.items():
        struck = Counter(fail(operation, settings) for settings in points(operation.rehearse))
        yield {"kind": name, "failures": sum(struck.values()), "calls": dict(struck)}
    for name, family in FAMILIES.items():
        with tempfile.TemporaryDirectory() as folder:
            failures = sample(checkpoint_points(family), max_calls, seed=0)
            places = (Path(folder, f"{name} {k}") for k in range(len(failures)))
            struck = Counter(
                fail_checkpoint(family, s, place) for s, place in zip(failures, places, strict=True)
            )
        yield {"kind": f"checkpoint {name}", "failures": sum(struck.values()), "calls": dict(struck)}


def main(args=None):
    """Run all kills and failures and print their numbers; the first error ends the program."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument(
        "--kills", type=int, default=200, help="signals that strike, for each kind and signal"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", help="these only")
    parser.add_argument("--failures", action="store_true", help="every file call fails once, too")
    options = parser.parse_args(args)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start jobs with SIGINT ignored
    os.fsync = lambda handle: None
    total = Counter()
    for row in kill_many(SIGNALS, options.kills, options.seed, options.kind):
        total[row["signal"]] += row["struck"]
        print(json.dumps(row), flush=True)
    for row in fail_all(options.kills) if options.failures else ():
        total["failures"] += row["failures"]
        print(json.dumps(row), flush=True)
    print(json.dumps({"struck, and all intact or resumed": dict(total)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A failing system call, and the conditions that must hold afterwards."""

import random
import warnings

from faults.families import rows_of
from faults.operations import Refused
from faults.shim import REMOVING, Faults, broken, full, out_of_memory, over_quota

STRIKES = [full, over_quota, broken, out_of_memory]


def points(rehearse, strikes=STRIKES, lasting=True):
    """All failures of the calls of a function, as settings of `Faults`; a full disk may stay full."""
    rehearse()  # the initial files are written now, and do not count
    failures = []
    for strike in strikes:
        counted = {"strike": strike, "allocations": strike is out_of_memory}
        with Faults(allocations=strike is out_of_memory).installed() as faults:
            rehearse()
        for k in range(1, len(faults.calls) + 1):
            failures.append({"at": k, **counted})
            if strike is full and lasting:  # starting before or after the call
                always = {"at": k, "strike": strike, "lasting": True}
                failures += [always | {"after": after} for after in (False, True)]
    return failures


def sample(points, n, seed):
    """A reproducible random sample of the points."""
    return random.Random(seed).sample(points, min(n, len(points)))


def fail(operation, settings):
    """Run the operation with a failure and check it; returns the name of the failed call."""
    with operation.folder() as folder:
        error, faults = None, Faults(**settings)
        try:
            with faults.installed():
                operation.act(folder)
        except (ValueError, OSError, MemoryError, Refused) as caught:
            error = caught
        operation.check(folder, done=error is None, tidy=faults.struck not in REMOVING)
        if error is not None and faults.strike is not out_of_memory:
            check_message(error, operation)
    return faults.struck


def check_message(error, operation):
    """Check that the error is one sentence that names the path."""
    text = str(error).strip()
    assert "\n" not in text
    assert "cannot be written" in text or isinstance(error, OSError)
    assert any(name in text for name in operation.reads), text


# ---------------------------------------------------------------- checkpoints
def checkpoint_points(family):
    """All calls of a run that writes a checkpoint after every iteration."""
    return points(family.rehearse, (full, broken, out_of_memory), lasting=False)


def fail_checkpoint(family, settings, folder):
    """After a failed call, the run ends normally and the checkpoint is the old or the new one."""
    folder.mkdir()
    path, faults = folder / "run", Faults(**settings)
    with warnings.catch_warnings(record=True) as heard, faults.installed():
        warnings.simplefilter("always")
        family.check(family.run(path))
    assert {p.name for p in folder.iterdir()} <= {"run"}
    if faults.struck not in ("chmod", "chown"):  # the file is written without them
        assert any("the run goes on without a checkpoint" in str(w.message) for w in heard), faults.struck
    rows = rows_of(path)
    again = family.run(path)
    family.check(again)
    assert again.n_iter >= rows
    return faults.struck

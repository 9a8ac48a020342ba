"""After a failed system call, the old or the new content is complete, and nothing else remains.

These tests sample the calls; `make kills` runs all of them.
"""

import pytest

from faults.failures import checkpoint_points, fail, fail_checkpoint, points, sample
from faults.families import FAMILIES
from faults.operations import OPERATIONS
from faults.shim import Disk, full


@pytest.mark.parametrize("name", OPERATIONS)
def test_failing_calls(name):
    operation = OPERATIONS[name]
    failures = points(operation.rehearse)
    assert len(failures) > 20
    for settings in sample(failures, 5, seed=1):
        assert fail(operation, settings) is not None


def test_every_failing_call_of_a_replacement():
    """All calls of the operation that replaces existing data."""
    operation = OPERATIONS["convert --force npz"]
    once = [point for point in points(operation.rehearse) if point["strike"] is full and len(point) == 3]
    struck = [fail(operation, point) for point in once]
    assert {"mkdir", "open", "write", "fsync", "exchange", "unlink", "rmdir"} <= set(struck)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FAMILIES)
def test_failing_calls_of_checkpoints(name, tmp_path):
    family = FAMILIES[name]
    failures = checkpoint_points(family)
    assert len(failures) > 30
    for k, settings in enumerate(sample(failures, 2, seed=2)):
        fail_checkpoint(family, settings, tmp_path / str(k))


# ---------------------------------------------------------------- power loss
@pytest.mark.parametrize("name", OPERATIONS)
def test_completed_operations_survive_a_power_loss(name):
    """After an operation returns, its output is on the disk and complete."""
    operation = OPERATIONS[name]
    for names in (True, False):
        with operation.folder() as folder:
            with Disk().installed() as disk:
                operation.act(folder)
            disk.lose_power(names=names)
            operation.check(folder, done=True, tidy=False)

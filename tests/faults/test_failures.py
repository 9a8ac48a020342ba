"""After a failed system call, the old or the new content is complete, and nothing else remains.

These tests sample the calls; `make kills` runs all of them.
"""

import pytest

from faults.failures import checkpoint_points, fail, fail_checkpoint, points, sample
from faults.families import FAMILIES
from faults.operations import OPERATIONS
from faults.shim import Disk, Faults, full, out_of_memory
from riskmin.core import atomic_files

QUICK = {"model", "text", "convert svmlight", "convert --force csv", "Bundle", "Newton"}


def each(names):
    marked = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]
    return pytest.mark.parametrize("name", marked)


@each(OPERATIONS)
def test_failing_calls(name):
    operation = OPERATIONS[name]
    failures = points(operation)
    assert len(failures) > 20
    for settings in sample(failures, 5, seed=1):
        assert fail(operation, settings) is not None


@pytest.mark.slow
def test_every_failing_call_of_a_replacement():
    """All calls of the operation that replaces existing data."""
    operation = OPERATIONS["convert --force npz"]
    struck = [
        fail(operation, point) for point in points(operation) if point["strike"] is full and len(point) == 3
    ]
    assert {"mkdir", "open", "write", "fsync", "exchange", "unlink", "rmdir"} <= set(struck)


@pytest.mark.exhaustive
@each(FAMILIES)
def test_failing_calls_of_checkpoints(name, tmp_path):
    family = FAMILIES[name]
    failures = checkpoint_points(family, tmp_path)
    assert len(failures) > 30
    for k, settings in enumerate(sample(failures, 2, seed=2)):
        fail_checkpoint(family, settings, tmp_path / str(k))


@pytest.mark.parametrize("strike", [full, out_of_memory], ids=lambda f: f.__name__)
def test_no_checkpoint_can_be_written(strike, tmp_path):
    family, faults = FAMILIES["Bundle"], Faults(1, strike, lasting=True)
    with pytest.warns(RuntimeWarning, match="the run goes on without a checkpoint"), faults.installed():
        family.check(family.run(tmp_path / "run"))
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- power loss
@each(OPERATIONS)
def test_completed_operations_survive_a_power_loss(name):
    """After an operation returns, its output is on the disk and complete."""
    operation = OPERATIONS[name]
    for names in (True, False):
        with operation.folder() as folder:
            with Disk().installed() as disk:
                operation.act(folder)
            disk.lose_power(names=names)
            operation.check(folder, done=True, tidy=False)


def test_missing_sync_is_detected(tmp_path, monkeypatch):
    """The simulation detects a missing sync."""
    operation = OPERATIONS["text"]
    for name, instead in (("sync", lambda file: file.flush()), ("sync_folder", lambda path: None)):
        with monkeypatch.context() as patch, operation.folder() as folder:
            patch.setattr(atomic_files, name, instead)
            with Disk().installed() as disk:
                operation.act(folder)
            disk.lose_power(names=True)
            with pytest.raises(AssertionError):
                operation.check(folder, done=True, tidy=False)

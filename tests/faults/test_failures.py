"""After a failed system call, the old or the new content is complete, and nothing else remains.

These tests sample the calls; `make kills` runs all of them.
"""

import pytest

from faults.failures import checkpoint_points, fail, fail_checkpoint, points, sample
from faults.families import FAMILIES
from faults.operations import OPERATIONS, Operation, bytes_of, old_outputs
from faults.shim import Disk, Faults, full, out_of_memory
from riskmin.core.atomic_files import create


@pytest.mark.parametrize("name", OPERATIONS)
def test_failing_calls(name):
    operation = OPERATIONS[name]
    failures = points(operation)
    assert len(failures) > 20
    for settings in sample(failures, 5, seed=1):
        assert fail(operation, settings) is not None


def test_every_failing_call_of_a_replacement():
    """All calls of the operation that replaces existing data."""
    operation = OPERATIONS["convert --force npz"]
    once = [point for point in points(operation) if point["strike"] is full and len(point) == 3]
    struck = [fail(operation, point) for point in once]
    assert {"mkdir", "open", "write", "fsync", "exchange", "unlink", "rmdir"} <= set(struck)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FAMILIES)
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


class Forgetful(Disk):
    """A disk that does not sync files, or folders."""

    def __init__(self, folders):
        super().__init__()
        self.folders = folders

    def call(self, name, f, *args, **settings):
        if name == "fsync" and self.opened[args[0]].is_dir() == self.folders:
            return None
        return super().call(name, f, *args, **settings)


@pytest.mark.parametrize("folders", [False, True])
def test_missing_sync_is_detected(folders):
    """The simulation detects a missing sync."""
    operation = OPERATIONS["text"]
    with operation.folder() as folder:
        with Forgetful(folders).installed() as disk:
            operation.act(folder)
        disk.lose_power(names=True)
        with pytest.raises(AssertionError):
            operation.check(folder, done=True, tidy=False)


def write_in_place(folder):
    (folder / "out.txt").unlink(missing_ok=True)
    with create(folder / "out.txt") as file:
        file.write(b"x" * 99_999)


IN_PLACE = Operation(write_in_place, {"out.txt": bytes_of}, old_outputs)


def test_content_written_in_place_is_detected():
    """A file that is not replaced at the end is neither old nor new after a failure."""
    write = 2  # after its opening
    with pytest.raises(AssertionError, match=r"out.txt is neither old nor new"):
        fail(IN_PLACE, {"at": write, "strike": full})

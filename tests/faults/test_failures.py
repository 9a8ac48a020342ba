"""A call to the system fails: then the old content is there or the new, whole, and nothing else.

Here it is a sample of all calls; `make kills` has every one of them fail.
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
def test_calls_that_fail(name):
    operation = OPERATIONS[name]
    found = points(operation)
    assert len(found) > 20
    for settings in sample(found, 5, seed=1):
        assert fail(operation, settings) is not None


@pytest.mark.slow
def test_every_call_of_a_replacement_fails():
    """All of them once, where most is at stake."""
    operation = OPERATIONS["convert --force npz"]
    struck = [
        fail(operation, found) for found in points(operation) if found["strike"] is full and len(found) == 3
    ]
    assert {"mkdir", "open", "write", "fsync", "exchange", "unlink", "rmdir"} <= set(struck)


@each(FAMILIES)
def test_checkpoints_that_fail(name, tmp_path):
    family = FAMILIES[name]
    found = checkpoint_points(family, tmp_path)
    assert len(found) > 30
    for k, settings in enumerate(sample(found, 2, seed=2)):
        fail_checkpoint(family, settings, tmp_path / str(k))


@pytest.mark.parametrize("strike", [full, out_of_memory], ids=lambda f: f.__name__)
def test_no_checkpoint_can_be_written(strike, tmp_path):
    family, faults = FAMILIES["Bundle"], Faults(1, strike, lasting=True)
    with pytest.warns(RuntimeWarning, match="the run goes on without a checkpoint"), faults.installed():
        family.check(family.run(tmp_path / "run"))
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- what is not synced
@each(OPERATIONS)
def test_what_was_done_survives_a_loss_of_power(name):
    """Whatever has returned is on the disk, and what is on the disk is whole."""
    operation = OPERATIONS[name]
    for names in (True, False):
        with operation.folder() as folder:
            with Disk().installed() as disk:
                operation.act(folder)
            disk.lose_power(names=names)
            operation.check(folder, done=True, tidy=False)


def test_what_is_not_synced_is_lost(tmp_path, monkeypatch):
    """The simulation notices a sync that is left out."""
    operation = OPERATIONS["text"]
    for name, instead in (("sync", lambda file: file.flush()), ("sync_folder", lambda path: None)):
        with monkeypatch.context() as patch, operation.folder() as folder:
            patch.setattr(atomic_files, name, instead)
            with Disk().installed() as disk:
                operation.act(folder)
            disk.lose_power(names=True)
            with pytest.raises(AssertionError):
                operation.check(folder, done=True, tidy=False)

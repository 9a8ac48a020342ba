"""The formats, each with or without pyarrow."""

import os
import sys

import pytest
from data_sets import FORMATS


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture(params=FORMATS)
def file_format(request, monkeypatch):
    """Every format in turn."""
    chosen = FORMATS[request.param]
    if not chosen.pyarrow:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
    return chosen


@pytest.fixture(params=["pyarrow", "own reader"])
def table(tmp_path, request, monkeypatch):
    """Writes a table, which is read by pyarrow, unless that does not accept it, or without it."""
    if request.param == "own reader":
        monkeypatch.setitem(sys.modules, "pyarrow", None)

    def write(text, name="a.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write

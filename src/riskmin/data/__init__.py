"""Readers and writers of data files: svmlight text, CSV, TSV, .npz and Parquet, all loaded as a `Dataset`.

Stored data (.rsk), which `convert` and `save` write, are memory-mapped and need not fit into memory.
`load_conll` reads sentences for taggers from CoNLL files.
"""

from __future__ import annotations

from riskmin.data.base import DataError as DataError
from riskmin.data.base import Dataset as Dataset
from riskmin.data.formats.conll import Sentences as Sentences
from riskmin.data.formats.conll import load_conll as load_conll
from riskmin.data.formats.conll import window_features as window_features
from riskmin.data.formats.svmlight import load_svmlight as load_svmlight
from riskmin.data.formats.svmlight_writer import save_svmlight as save_svmlight
from riskmin.data.loading import format_of as format_of
from riskmin.data.loading import load as load
from riskmin.data.partitions import load_partitioned as load_partitioned
from riskmin.data.store.convert import convert as convert
from riskmin.data.store.convert import save as save
from riskmin.data.store.reader import check as check

__all__ = [
    "DataError",
    "Dataset",
    "Sentences",
    "check",
    "convert",
    "load",
    "load_conll",
    "load_data",
    "load_partitioned",
    "load_svmlight",
    "save",
    "save_svmlight",
    "window_features",
]

load_data = load
"""The name of `load` in `riskmin`."""

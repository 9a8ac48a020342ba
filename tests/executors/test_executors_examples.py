"""Small examples of the parts of `riskmin.executors`."""

import numpy as np
import pytest

from riskmin import Hinge, Threads, linear_risk
from riskmin.executors.base import as_backend
from riskmin.executors.coordination import blas_threads_of
from riskmin.executors.dask.client import dask_client
from riskmin.executors.dask.collections import is_dask, to_local_array
from riskmin.executors.errors import portable


def test_as_backend():
    assert repr(as_backend(Threads(n_workers=2))) == "Threads(n_workers=2)"


def test_blas_threads_of():
    assert blas_threads_of(linear_risk(np.eye(2), np.array([1.0, -1.0]), Hinge(), fit_intercept=True)) == 1


def test_portable():
    assert repr(portable(ValueError("no such column"), "rank 1")) == "ValueError('no such column')"


def test_dask_client():
    message = "'host:8786' is not the address of a Dask scheduler: write tcp://HOST:PORT or tls://HOST:PORT"
    with pytest.raises(ValueError, match=message), dask_client("host:8786"):
        pass


def test_is_dask():
    assert not (is_dask([1.0, 2.0]))
    assert not (is_dask([]))


def test_to_local_array():
    assert to_local_array([1.0, -1.0]).tolist() == [1.0, -1.0]

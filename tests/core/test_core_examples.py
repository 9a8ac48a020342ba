"""Small examples of the parts of `riskmin.core`."""

import math
import pickle

import numpy as np
import pytest

from riskmin.core.blas_threads import cho_factor, inverse, scipy_module
from riskmin.core.deadline import (
    MAX_KERNEL_OPERATIONS,
    OutOfTime,
    TimeLimit,
    check,
    chunk_ranges,
    interruptible_call,
    interruptible_matmul,
)
from riskmin.core.interfaces import as_solver
from riskmin.core.messages import format_label, is_number, is_whole, is_whole_number, one_line, printable
from riskmin.core.records import Hessian, PairBlock, ShardCache, ShardStateLost
from riskmin.core.registry import adapted, is_trusted, names_class, parse_settings


def test_scipy_module():
    assert scipy_module("special").gammaln(1.0) == 0.0


def test_cho_factor():
    assert cho_factor(np.array([[4.0]]))[0].tolist() == [[2.0]]


def test_inverse():
    assert inverse(np.array([[2.0]])).tolist() == [[0.5]]


def test_time_limit():
    TimeLimit().call(check)
    with pytest.raises(OutOfTime):
        TimeLimit(deadline=0.0).call(check)


def test_chunk_ranges():
    assert list(chunk_ranges(0, 10, 10.0)) == [(0, 10)]
    assert list(chunk_ranges(0, 10, 2.5 * MAX_KERNEL_OPERATIONS, multiple=2)) == [(0, 4), (4, 8), (8, 10)]


def test_interruptible_call():
    assert interruptible_call(1e12, sum, [1, 2]) == 3


def test_interruptible_matmul():
    assert interruptible_matmul(np.eye(2), np.ones((2, 1))).tolist() == [[1.0], [1.0]]


def test_as_solver():
    class Mine:
        def iterates(self, obj, w0):
            yield from ()

    assert as_solver(Mine()).name == "Mine"


def test_printable():
    assert printable("red\x1b[31m.csv\n") == "red\\x1b[31m.csv\\n"


def test_one_line():
    assert one_line("two\n  lines\t\x07") == "two lines \\x07"


def test_format_label():
    assert format_label(1.0) == "1"
    assert format_label("spam") == "spam"


def test_shard_cache():
    assert pickle.loads(pickle.dumps(ShardCache(k=1))) == {}


def test_shard_state_lost():
    with pytest.raises(ShardStateLost, match="the scores of a point"):
        raise ShardStateLost("the scores of a point")


def test_pair_block():
    above, below = np.array([0, 1]), np.array([2, 3])
    assert PairBlock(
        above, np.ones(2), below, np.ones(2), np.array([0, 1]), np.array([1, 2])
    ).last.tolist() == [1, 2]


def test_hessian():
    assert Hessian(np.ones(2), (np.full(2, 0.5**0.5),)).diagonal.tolist() == [1.0, 1.0]


def test_names_class():
    assert names_class("package.module:Class,level=0.9")
    assert not (names_class("huber:delta=2"))
    assert not (names_class("huber"))


def test_is_trusted():
    assert is_trusted("package.module", ["package"])
    assert not (is_trusted("package", []))
    assert is_trusted("package", None)


def test_parse_settings():
    assert parse_settings("huber:delta=2", "loss", "huber:delta=2") == {"delta": 2.0}


def test_adapted():
    class Base:
        smooth = False

    class Mine:
        scale = 2.0

    mine = adapted(Mine(), Base, lambda thing: thing)
    assert type(mine).__name__ == "Mine"
    assert mine.scale == 2.0
    assert not (mine.smooth)
    assert isinstance(mine, Mine)


def test_is_number():
    assert is_number(0.5)
    assert not is_number(True)
    assert not is_number("1")


def test_is_whole():
    assert is_whole(3.0, at_least=1)
    assert not is_whole(2.5, at_least=1)
    assert not is_whole(math.inf, at_least=1)


def test_is_whole_number():
    assert is_whole_number(3)
    assert not is_whole_number(0, at_least=1)
    assert not is_whole_number(3.0)
    assert not is_whole_number(True)

"""Small examples of the parts of `riskmin.core`."""

import math
import pickle

import pytest

from riskmin.core import ShardCache
from riskmin.core.messages import format_label, is_number, is_whole, is_whole_number, one_line, printable


def test_caches_are_not_sent():
    assert pickle.loads(pickle.dumps(ShardCache(k=1))) == {}


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: printable("red\x1b[31m.csv\n"), "red\\x1b[31m.csv\\n"),
        (lambda: one_line("two\n  lines\t\x07"), "two lines \\x07"),
        (lambda: format_label(1.0), "1"),
        (lambda: format_label("spam"), "spam"),
        (lambda: [is_number(v) for v in (0.5, True, "1")], [True, False, False]),
        (lambda: [is_whole(v, at_least=1) for v in (3.0, 2.5, math.inf)], [True, False, False]),
        (lambda: [is_whole_number(v) for v in (3, 3.0, True)], [True, False, False]),
        (lambda: is_whole_number(0, at_least=1), False),
    ],
)
def test_messages_and_numbers(call, expected):
    assert call() == expected

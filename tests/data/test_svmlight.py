"""Svmlight text: bitwise equal to scikit-learn's reader, and errors that name the exact location.

Small and large files are parsed by different code, so that most tests read each text twice: alone, and after
a long comment.
"""

import io
import re
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from data_sets import bits
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_svmlight_file

from helpers import refusals
from riskmin.data import DataError, load_svmlight

COMMENT = b"#" + b" " * 2**18 + b"\n"
AWKWARD = (
    b"# a comment first\r\n"
    b"\n"
    b"1 1:0.5 3:-2 10:+.25\r\n"
    b"  -1.5e0\t2:1e-3   4:5.\t\n"
    b"+3\n"
    b"   \t \n"
    b"0 1:0 2:-0.0 3:00012.5 # explicit zeros\n"
    b"2#no space\n"
    b"1e2 7:1E+5#glued\n"
    b"1 1:123456789012345678901234567890 2:0.1000000000000000055511151231257827 3:9007199254740993\n"
    b"1 1:4.9e-324 2:2.2250738585072011e-308 3:1.7976931348623157e308 4:1_000\n"
    b"1 1:0.000000000000000000000000123 2:1e-400 3:9007199254740992e22 4:1e23 5:8.5e-23\n"
    b"-0 99:1e0"
)
ROWS = [b"%d qid:%d %d:0.5 # row\n\n" % (i, i // 3, i + 1) for i in range(50)]


def read(text, **options):
    return load_svmlight(io.BytesIO(text), **options)


def error(text, **options):
    """The message of a text, which is that of a large file but for the number of the line."""
    messages = []
    for whole in (text, COMMENT + text):
        with pytest.raises(DataError) as caught:
            read(whole, **options)
        messages.append(str(caught.value))
    small, large = messages
    assert re.sub(r"line (\d+)", lambda m: f"line {int(m[1]) - 1}", large) == small
    assert ";" in small  # the part after the semicolon is the remedy
    return small


# ---------------------------------------------------------------- as scikit-learn reads it
def check_same(data, expected):
    X, y, qid = expected
    assert (data.X.shape, data.X.dtype) == (X.shape, X.dtype)
    np.testing.assert_array_equal(data.X.indptr, X.indptr)
    np.testing.assert_array_equal(data.X.indices, X.indices)
    assert bits(data.X.data) == bits(X.data)
    assert data.X.has_canonical_format
    data.X.check_format(full_check=True)
    assert data.y == y if isinstance(y, list) else bits(data.y) == bits(y)
    assert (data.qid is None) == (len(qid) == 0)
    if data.qid is not None:
        np.testing.assert_array_equal(data.qid, qid)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (AWKWARD, {}),
        (AWKWARD, {"dtype": np.float64, "n_features": 200}),
        (AWKWARD, {"zero_based": True}),
        (AWKWARD, {"zero_based": False}),
        (b"1 0:1 5:2\n2 3:4\n", {}),
        (b"1 0:1 5:2\n2 3:4\n", {"n_features": 6}),
        (b"1 1:1 5:2\n2 3:4\n", {"n_features": 5}),
        (b"1\n2\n", {}),
        (b"1 qid:3 1:2\n0 qid:-12 4:1\n", {}),
        (b"".join(ROWS[:6]), {}),
        (b"0,5,7 1:2\n2:3\n7,1.5 1:1\n3\n", {"multilabel": True}),
        (b"1 1:0.1 2:16777217 3:1e-40\n", {"dtype": np.float32}),
        (b"1\x0b1:2\x0c2:3\r3:4\n", {}),
    ],
)
def test_same_as_sklearn(text, options):
    expected = load_svmlight_file(io.BytesIO(text), query_id=True, **options)
    for whole in (text, COMMENT + text):
        check_same(read(whole, **options), expected)
    for chunk in [*range(1, 40), *range(40, len(text) + 2, 11)]:
        check_same(read(text, chunk_bytes=chunk, **options), expected)


def test_indices_beyond_those_of_sklearn():
    for whole in (b"1 3000000000:1\n", COMMENT + b"1 3000000000:1\n"):
        X = read(whole, zero_based=True).X
        assert (X.indices.tolist(), X.shape) == ([3000000000], (1, 3000000001))


TOKENS = [
    *(b"1", b"-1.5e0", b"1:0.5", b"2:1e-3", b"3:-7", b"9:3.14159265358979", b"0:1", b"qid:3", b"# c", b"5:"),
    *(b"7:nan", b":3", b"1_0", b"4:1_0", b"2:0x1p3", b"9:1e400", b"6:1:2", b"99999999999:1", b"12:1e-320"),
    *(b"", b"\t", b"\r", b"\n", b"\n1 1:2"),
]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from(TOKENS), max_size=12),
    st.fixed_dictionaries(
        {},
        optional={
            "n_features": st.integers(1, 12),
            "zero_based": st.booleans(),
            "require_labels": st.just(False),
            "dtype": st.just(np.float32),
            "chunk_bytes": st.integers(1, 20),
        },
    ),
)
def test_small_and_large_files_are_read_alike(tokens, options):
    """The same bits, and the same errors."""

    def outcome(first):
        try:
            X, y, qid, _ = read(first + b" ".join(tokens), **options)
        except DataError as error:
            return re.sub(r"line (\d+)", lambda m: f"line {int(m[1]) - len(first[:1])}", str(error))
        arrays = (X.data, X.indices, X.indptr, y, qid)
        return X.shape, [None if a is None else (a.dtype, a.tobytes()) for a in arrays]

    assert outcome(b"") == outcome(COMMENT)


# ---------------------------------------------------------------- numbers
def printed_floats(rng):
    """Floats of all exponents in several formats."""
    formats = repr, "{:.17g}".format, "{:.16g}".format, "{:.3e}".format, "{:.20e}".format, "{:+.8E}".format
    floats = rng.integers(0, 2**63, 2000).view(np.float64)
    return [formats[k % len(formats)](x) for k, x in enumerate(floats.tolist())]


def decimals(rng):
    """Up to 42 digits, a point anywhere or nowhere, an exponent or none."""
    tokens = []
    for left, right in rng.integers(0, 22, (3000, 2)):
        digits = "".join(map(str, rng.integers(0, 10, left + right)))
        point = "." if right or rng.random() < 0.5 else ""
        exponent = rng.choice(["", "e", "E+", "e-"])
        power = str(rng.integers(0, 330)) if exponent else ""
        sign = rng.choice(["", "+", "-"])
        tokens.append(f"{sign}{digits[:left] or '0' * (not right)}{point}{digits[left:]}{exponent}{power}")
    return tokens


def near_halfway(rng):
    """Decimals next to the midpoint of two neighbouring floats."""
    tokens = []
    for x in rng.integers(1, 2**52, 1500) * 2.0 ** rng.integers(-60, 60, 1500):
        half = (Fraction(x) + Fraction(np.nextafter(x, np.inf))) / 2
        scale = 18 - len(str(int(half)))
        digits = int(half * 10**scale) if scale >= 0 else int(half / 10**-scale)
        tokens += [f"{digits + step}e{-scale}" for step in (-1, 0, 1)]
    return tokens


@pytest.mark.parametrize("draw", [printed_floats, decimals, near_halfway])
def test_numbers_are_parsed_as_by_python(draw):
    tokens = [token for token in draw(np.random.default_rng(0)) if np.isfinite(float(token))]
    assert len(tokens) > 1000
    numbers = bits([float(token) for token in tokens])
    text = "".join(f"{t} " + f"1:{t}\n" for t in tokens).encode()
    for whole in (text, COMMENT + text):
        data = read(whole)
        assert bits(data.X.data) == numbers
        assert bits(data.y) == numbers


# ---------------------------------------------------------------- errors and their locations
@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        (b"abc 1:2", {}, "'abc' is not a number"),
        (b"1:2 2:3", {}, "'1:2' is where the label should be"),
        (b"0,5 1:2", {}, "multilabel=True"),
        (b"0,x 1:2", {"multilabel": True}, "'0,x' is not a number"),
        (b"1 1:abc 2:3", {}, "'abc' is not a number"),
        (b"1 1: 2:3", {}, "'' is not a number"),
        (b"1 1:2:3", {}, "'2:3' is not a number"),
        (b"1 1:0x1p3", {}, "'0x1p3' is not a number"),
        (b"1 1:1e", {}, "'1e' is not a number"),
        (b"1 1:-", {}, "'-' is not a number"),
        (b"1 1:.", {}, "'.' is not a number"),
        (b"1 word", {}, "'word' is not index:value"),
        (b"1 -1:2", {}, "'-1:2' is not index:value"),
        (b"1 1.5:2", {}, "'1.5:2' is not index:value"),
        (b"1 12345678901234567890:2", {}, "is not index:value"),
        (b"1 3:1 2:1", {}, "the index in '2:1' is not above"),
        (b"1 2:1 2:1", {}, "the index in '2:1' is not above"),
        (b"1 6:1", {"n_features": 5}, "the index 6, counted from 1, is beyond n_features=5"),
        (b"1 0:1 5:1", {"n_features": 5}, "the index 5, counted from 0, is beyond n_features=5"),
        (b"1 5:1", {"n_features": 5, "zero_based": True}, "the index 5, counted from 0"),
        (b"1 0:1", {"zero_based": False}, "the index 0 in a file that counts from 1"),
        (b"1 1:nan", {}, "'nan' is not finite"),
        (b"1 1:-Infinity", {}, "'-Infinity' is not finite"),
        (b"1 1:1e999", {}, "'1e999' is not finite"),
        (b"nan 1:1", {}, "'nan' is not finite"),
        (b"1e999 1:1", {}, "'1e999' is not finite"),
        (b"1 1:1e39", {"dtype": np.float32}, "too large for float32"),
        (b"1 qid:3 1:1", {}, "the row has 'qid:3', unlike"),
        (b"\x00\xff\xfe binary", {}, "is not a number"),
        (b"1 1:" + b"x" * 500, {}, "...' is not a number"),
    ],
)
def test_errors_name_the_line(row, options, message):
    text = b"1 1:1\n# comment\n\n2 1:2 3:1\n" + row + b"\n3 1:1\n4 oops\n"
    for chunk in (1, 1 << 20):
        text_of_error = error(text, **options, chunk_bytes=chunk)
        assert text_of_error.startswith("<stream>, line 5: ")
        assert message in text_of_error
        assert len(text_of_error) < 200
        assert "\n" not in text_of_error


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        # the first of several errors
        (b"1 1:1\n1 1:a\n1 2:1 1:1\n", {}, "line 2: 'a' is not a number"),
        (b"1 1:1\n1 2:1 1:1\n1 1:a\n", {}, "line 2: the index in '1:1'"),
        (b"a 2:1 1:1\n", {}, "line 1: 'a' is not a number"),
        # a late index 0 makes an earlier one too large
        (b"1 3:1\n1 1:1\n1 0:1\n", {"n_features": 3}, "line 1: the index 3, counted from 0"),
        # labels and query ids of some rows only
        (b"1 1:2\n1:2\n", {"require_labels": False}, "line 2: the row has no label, unlike"),
        (b"1:2\n1:1\n5 1:2\n", {"require_labels": False}, "line 3: the row has a label, unlike"),
        (b"1 qid:1 1:2\n# c\n1 1:2\n", {}, "line 3: the row has no qid"),
        (b"".join(ROWS) + b"1 qid:9 x:1\n", {}, ", line 101: 'x:1'"),
        (b"1 1:2 qid:2\n", {}, "'qid:2' is not index:value"),
        (b"1 qid:9223372036854775808 1:2\n", {}, "a whole id (of 64 bits)"),
        (b"1 qid:12345678901234567890 1:2\n", {}, "a whole id (of 64 bits)"),
        *(
            (b"1 %b 1:2\n" % bad, {}, f"line 1: '{bad.decode()}' is not qid:id")
            for bad in (b"qid:", b"qid:x", b"qid", b"qidx:3", b"qid:1.5", b"qid:-")
        ),
        (b"", {}, "it has no rows"),
        (b"\n\n", {}, "it has no rows"),
        (b"# only a comment", {}, "it has no rows"),
    ],
)
def test_errors_of_whole_files(text, options, message):
    for chunk in (4, 1 << 20):
        assert message in error(text, **options, chunk_bytes=chunk)


def test_query_ids_have_64_bits_and_labels_are_optional_for_prediction():
    ids = read(b"1 qid:9223372036854775807 1:2\n0 qid:-9223372036854775807 1:1\n").qid
    assert ids.tolist() == [2**63 - 1, -(2**63) + 1]
    data = read(b"1:2 3:4\n2:1\n", require_labels=False)
    assert data.y is None
    assert data.X.toarray().tolist() == [[2, 0, 4], [0, 1, 0]]
    assert read(b"qid:4 1:2\nqid:4 2:1\n", require_labels=False).qid.tolist() == [4, 4]
    assert read(b"3 1:2\n", require_labels=False).y.tolist() == [3]


VALUES = [
    (lambda: read(b"1 1:1\n", dtype=np.int32), "use float32 or float64"),
    (lambda: read(b"1 1:1\n", zero_based="yes"), "zero_based is 'yes'"),
]
TYPES = [(lambda: load_svmlight(io.StringIO("1 1:1\n")), "open it as binary")]
test_refusals = refusals((VALUES, ValueError), (TYPES, TypeError))


def test_memory_is_little_more_than_the_result():
    file = io.BytesIO(b"1 1:0.5 2:1 3:2.25 4:8 5:1 6:1 7:1 8:1\n" * 100_000)
    read(COMMENT + b"1 1:1\n")
    tracemalloc.start()
    X = load_svmlight(file, chunk_bytes=2**16).X
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    result = X.data.nbytes + X.indices.nbytes + 2 * X.indptr.nbytes
    assert peak < 1.25 * result + 3e6

r"""A byte parser for rows of svmlight text, ``label [qid:id] index:value ... [# comment]``.

A decimal token :math:`m \cdot 10^q` becomes the double nearest to it. If :math:`m \le 2^{53}` and
:math:`|q| \le 22` both factors are doubles, so that one multiplication or division rounds once and
correctly. Else `_eisel_lemire` multiplies m by 128 bits of :math:`10^q` and rounds whenever those bits
decide the result. What is left (over 19 digits, subnormals, ``inf``, ``0x1p3``, plain errors) is noted
in `slow`, and the caller reads those tokens with Python's `float`.

References
----------
Lemire, Number parsing at a gigabyte per second, 2021, doi:10.1002/spe.2984.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from riskmin.kernels.compiled import njit

# Codes that `parse` returns.
OK, NO_LABEL, BAD_PAIR, UNSORTED, TOO_LARGE, BAD_QID, QID_MISSING, QID_EXTRA = range(8)
# How the first token of a row is read.
NUMBER, OPTIONAL, TEXT = range(3)
# Slots of `state`: what goes on from chunk to chunk, and where an error is.
LINE, QID, LEAST, LARGEST, LARGEST_LINE, ROWS, VALUES, SLOW, START, STOP, N_STATE = range(11)

# Numba makes a float of uint64 + int64, and checks signed indices for wraparound: unsigned throughout.
_U0, _U1, _U3, _U4, _U9, _U10, _U52, _U53, _U63, _U64 = (
    np.uint64(i) for i in (0, 1, 3, 4, 9, 10, 52, 53, 63, 64)
)
_U32, _ZERO_CHAR, _LOW32, _LOW9, _LOW52 = (np.uint64(i) for i in (32, 48, 2**32 - 1, 2**9 - 1, 2**52 - 1))
_EXACT_INT, _MAX_EXP = np.uint64(2**53), np.uint64(2046)
_NEWLINE, _SPACE, _TAB, _HASH, _COLON, _MINUS, _PLUS, _DOT = (np.uint64(ord(c)) for c in "\n \t#:-+.")
_LETTER_E, _LETTER_Q, _LETTER_I, _LETTER_D = (np.uint64(ord(c)) for c in "eqid")

_MIN_POWER, _MAX_POWER = -342, 308


def powers_of_ten() -> tuple[NDArray[np.float64], NDArray[np.uint64]]:
    """10^0 .. 10^22 as doubles, and 10^-342 .. 10^308 as 128-bit mantissas [high, low], rounded down."""
    table = []
    for q in range(_MIN_POWER, _MAX_POWER + 1):
        m = 10**q << 128 if q >= 0 else (1 << 1400) // 10**-q
        m = m >> (m.bit_length() - 128)
        table.append((m >> 64, m & (2**64 - 1)))
    return np.array([10.0**q for q in range(23)]), np.array(table, np.uint64)


@njit()
def _is_space(ch: Any) -> Any:
    """Whether bytes.split() would split at it: a blank, or 9 to 13."""
    return ch == _SPACE or ch - _TAB <= _U4


@njit()
def _skip(text: Any, p: Any) -> Any:
    """Where the blanks that start at p end, at a newline at the latest."""
    ch = np.uint64(text[p])
    while ch != _NEWLINE and _is_space(ch):
        p += _U1
        ch = np.uint64(text[p])
    return p


@njit()
def _token_end(text: Any, p: Any) -> Any:
    """Where the token that starts at p ends."""
    ch = np.uint64(text[p])
    while not _is_space(ch) and ch != _HASH:
        p += _U1
        ch = np.uint64(text[p])
    return p


@njit()
def _digits(text: Any, p: Any, m: Any) -> Any:
    """Append the digits from p on to m; return it and where they end. It wraps after 19 digits."""
    d = np.uint64(text[p]) - _ZERO_CHAR
    while d <= _U9:
        m = m * _U10 + d
        p += _U1
        d = np.uint64(text[p]) - _ZERO_CHAR
    return m, p


@njit()
def _multiply(a: Any, b: Any) -> Any:
    """The 128-bit product of two 64-bit numbers, as [high, low]."""
    a1, a0, b1, b0 = a >> _U32, a & _LOW32, b >> _U32, b & _LOW32
    low = a0 * b0
    mid = a1 * b0 + (low >> _U32)
    mid2 = a0 * b1 + (mid & _LOW32)
    return a1 * b1 + (mid >> _U32) + (mid2 >> _U32), (mid2 << _U32) | (low & _LOW32)


@njit()
def _eisel_lemire(m: Any, q: Any, table: Any) -> Any:
    """Return (True, the double nearest to m 10^q), or (False, 0) where 128 bits do not decide it."""
    if q < _MIN_POWER or q > _MAX_POWER:
        return False, 0.0
    shift = _U0
    while m >> _U63 == _U0:
        m <<= _U1
        shift += _U1
    row = np.uint64(q - _MIN_POWER)
    high, low = _multiply(m, table[row, _U0])
    # The table is rounded down: the true product is less than m above [high, low], and only a carry
    # through all nine bits below the mantissa could change it.
    if high & _LOW9 == _LOW9 and low + m < m:
        high2, low2 = _multiply(m, table[row, _U1])
        low += high2
        if low < high2:
            high += _U1
        if high & _LOW9 == _LOW9 and low + _U1 == _U0 and low2 + m < m:
            return False, 0.0
    top = high >> _U63
    mantissa = high >> (top + _U9)
    exponent = ((217706 * q) >> 16) + 1087 - np.int64(shift) - np.int64(_U1 ^ top)  # 217706 / 2^16 = log2(10)
    if low == _U0 and high & _LOW9 == _U0 and mantissa & _U3 == _U1:
        return False, 0.0  # perhaps half-way between two doubles
    mantissa = (mantissa + (mantissa & _U1)) >> _U1
    if mantissa >> _U53 != _U0:
        mantissa >>= _U1
        exponent += 1
    if exponent < 1 or np.uint64(exponent) > _MAX_EXP:
        return False, 0.0  # subnormal, or infinite
    return True, np.uint64((np.uint64(exponent) << _U52) | (mantissa & _LOW52)).view(np.float64)


@njit()
def _exponent(text: Any, p: Any) -> Any:
    """Read ``[sign]digits`` after an e: whether it is one and short, the number, and where it ends."""
    sign = np.uint64(text[p])
    if sign in (_MINUS, _PLUS):
        p += _U1
    m, end = _digits(text, p, _U0)
    n = end - p
    return n >= _U1 and n <= _U9, -np.int64(m) if sign == _MINUS else np.int64(m), end


@njit()
def _significant(text: Any, p: Any, end: Any) -> Any:
    """How many of the digits in text[p:end] are left when zeros in front do not count."""
    count = _U0
    for i in range(p, end):
        d = np.uint64(text[i]) - _ZERO_CHAR
        if d <= _U9 and (count > _U0 or d > _U0):
            count += _U1
    return count


@njit()
def _number(text: Any, p: Any, tens: Any, table: Any) -> Any:
    """Read a decimal at p: whether value is its nearest double, the value, and where the token ends."""
    start, sign = p, np.uint64(text[p])
    if sign in (_MINUS, _PLUS):
        p += _U1
    m, end = _digits(text, p, _U0)
    n = end - p
    q = np.int64(0)
    if np.uint64(text[end]) == _DOT:
        dot = end + _U1
        m, end = _digits(text, dot, m)
        n += end - dot
        q = np.int64(dot) - np.int64(end)
    good = n > _U0 and (n < np.uint64(20) or _significant(text, p, end) < np.uint64(20))
    if np.uint64(text[end]) | _U32 == _LETTER_E:
        fine, e, end = _exponent(text, end + _U1)
        good &= fine
        q += e
    ch = np.uint64(text[end])
    if not _is_space(ch) and ch != _HASH:
        return False, 0.0, _token_end(text, start)
    value = 0.0
    if m <= _EXACT_INT and -22 <= q <= 22:
        value = np.float64(m) / tens[np.uint64(-q)] if q < 0 else np.float64(m) * tens[np.uint64(q)]
    elif good and m != _U0:
        good, value = _eisel_lemire(m, q, table)
    return good, -value if sign == _MINUS else value, end


@njit()
def _fail(state: Any, code: Any, start: Any, stop: Any) -> Any:
    state[START], state[STOP] = start, stop
    return code, stop


@njit()
def _note(slow: Any, state: Any, where: Any, start: Any, stop: Any) -> None:
    """Leave text[start:stop] to Python: the value at `where`, or the label of row -1 - where."""
    i = state[SLOW]
    slow[i, 0], slow[i, 1], slow[i, 2] = where, start, stop
    state[SLOW] = i + 1


@njit()
def _label(text: Any, p: Any, mode: Any, tens: Any, table: Any, labels: Any, slow: Any, state: Any) -> Any:
    """Read the first token of a row; the code, and where what follows starts."""
    row = state[ROWS]
    good, labels[row], end = _number(text, p, tens, table)
    if good and mode != TEXT:
        return OK, end
    for i in range(p, end):
        if np.uint64(text[i]) == _COLON:  # a feature: the row has no label
            labels[row] = np.nan
            return _fail(state, NO_LABEL, p, end) if mode == NUMBER else (OK, p)
    _note(slow, state, -1 - row, p, end)
    return OK, end


@njit()
def _query(text: Any, p: Any, qids: Any, state: Any) -> Any:
    """Read ``qid:id``, if that is what stands at p; the code, and where what follows starts."""
    if (
        np.uint64(text[p]) != _LETTER_Q
        or np.uint64(text[p + _U1]) != _LETTER_I
        or np.uint64(text[p + _U1 + _U1]) != _LETTER_D
    ):
        if state[QID] == 1:
            return _fail(state, QID_MISSING, p, p)
        state[QID] = 0
        return OK, p
    end = _token_end(text, p)
    start = p + _U3 + _U1
    if state[QID] == 0:
        return _fail(state, QID_EXTRA, p, end)
    state[QID] = 1
    negative = start < end and np.uint64(text[start]) == _MINUS
    if negative:
        start += _U1
    if start >= end or np.uint64(text[p + _U3]) != _COLON:
        return _fail(state, BAD_QID, p, end)
    m, stop = _digits(text, start, _U0)
    if stop != end or end - start > np.uint64(19) or m >> _U63 != _U0 or stop == start:
        return _fail(state, BAD_QID, p, end)
    qids[state[ROWS]] = -np.int64(m) if negative else np.int64(m)
    return OK, end


@njit()
def _features(
    text: Any,
    p: Any,
    base: Any,
    limit: Any,
    tens: Any,
    table: Any,
    values: Any,
    indices: Any,
    slow: Any,
    state: Any,
) -> Any:
    """Read ``index:value`` pairs up to a newline or a comment; the code, and where they end."""
    k = np.uint64(state[VALUES])
    last = np.int64(base - 1)
    while True:
        p = _skip(text, p)
        ch = np.uint64(text[p])
        if ch in (_NEWLINE, _HASH):
            break
        m, end = _digits(text, p, _U0)
        if end == p or np.uint64(text[end]) != _COLON or end - p > np.uint64(18):
            return _fail(state, BAD_PAIR, p, _token_end(text, p))
        index = np.int64(m)
        if index <= last:
            return _fail(state, UNSORTED, p, _token_end(text, p))
        if index > limit:
            return _fail(state, TOO_LARGE, p, end)
        if last < base and index < state[LEAST]:
            state[LEAST] = index
        last = index
        start = end + _U1
        good, values[k], p = _number(text, start, tens, table)
        if not good:
            _note(slow, state, np.int64(k), start, p)
        indices[k] = index
        k += _U1
    if last > state[LARGEST]:
        state[LARGEST], state[LARGEST_LINE] = last, state[LINE]
    state[VALUES] = k
    return OK, p


@njit()
def parse(
    text: Any,
    size: Any,
    mode: Any,
    base: Any,
    limit: Any,
    tens: Any,
    table: Any,
    values: Any,
    indices: Any,
    ends: Any,
    labels: Any,
    qids: Any,
    lines: Any,
    slow: Any,
    state: Any,
) -> Any:
    """Parse text[:size], whose last byte is a newline; a code, with the place of an error in `state`.

    Indices lie in [base, limit]. Row i has ``values[ends[i - 1]:ends[i]]`` and their `indices`, its
    label, its query id, and the line it stands on. The arrays must have room for size // 3 + 1 values
    and size // 2 + 1 rows.
    """
    state[ROWS] = state[VALUES] = state[SLOW] = 0
    p, stop = _U0, np.uint64(size)
    while p < stop:
        p = _skip(text, p)
        ch = np.uint64(text[p])
        if ch not in (_NEWLINE, _HASH):
            code, p = _label(text, p, mode, tens, table, labels, slow, state)
            if code == OK:
                code, p = _query(text, _skip(text, p), qids, state)
            if code == OK:
                code, p = _features(text, p, base, limit, tens, table, values, indices, slow, state)
            if code != OK:
                return code
            row = state[ROWS]
            ends[row], lines[row] = state[VALUES], state[LINE]
            state[ROWS] = row + 1
        while np.uint64(text[p]) != _NEWLINE:  # the comment
            p += _U1
        p += _U1
        state[LINE] += 1
    return OK

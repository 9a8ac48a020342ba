r"""A byte parser for rows of svmlight text, ``label [qid:id] index:value ... [# comment]``.

A decimal token :math:`m \cdot 10^q` becomes the double nearest to it. If :math:`m \le 2^{53}` and
:math:`|q| \le 22` both factors are doubles, so that one multiplication or division rounds once and
correctly. Otherwise `_eisel_lemire` multiplies m by 128 bits of :math:`10^q` and rounds if those bits
decide the result. The remaining tokens (over 19 digits, subnormals, ``inf``, ``0x1p3``, errors) are listed
in `slow`, and the caller reads them with Python's `float`.

References
----------
Lemire, Number parsing at a gigabyte per second, 2021, doi:10.1002/spe.2984.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from riskmin._numba.compile_cache import njit
from riskmin._numba.svmlight_codes import (
    BAD_PAIR,
    BAD_QID,
    ERROR_START,
    ERROR_STOP,
    HAS_QID,
    LABEL_NUMBER,
    LABEL_TEXT,
    LARGEST_INDEX,
    LARGEST_INDEX_LINE,
    LINE_NUMBER,
    N_ROWS,
    N_SLOW,
    N_VALUES,
    NO_LABEL,
    OK,
    QID_EXTRA,
    QID_MISSING,
    SMALLEST_INDEX,
    TOO_LARGE,
    UNSORTED,
)

# Numba promotes uint64 + int64 to float, and checks signed indices for wraparound: unsigned throughout.
_U0, _U1, _U3, _U4, _U9, _U10, _U52, _U53, _U63, _U64 = (
    np.uint64(i) for i in (0, 1, 3, 4, 9, 10, 52, 53, 63, 64)
)
_U32, _ZERO_CHAR, _LOW32, _LOW9, _LOW52 = (np.uint64(i) for i in (32, 48, 2**32 - 1, 2**9 - 1, 2**52 - 1))
_EXACT_INT, _MAX_EXP = np.uint64(2**53), np.uint64(2046)
_NEWLINE, _SPACE, _TAB, _HASH, _COLON, _MINUS, _PLUS, _DOT = (np.uint64(ord(c)) for c in "\n \t#:-+.")
_CHAR_E, _CHAR_Q, _CHAR_I, _CHAR_D = (np.uint64(ord(c)) for c in "eqid")

_MIN_POWER, _MAX_POWER = -342, 308


def powers_of_ten() -> tuple[NDArray[np.float64], NDArray[np.uint64]]:
    """Return 10^0 .. 10^22 as doubles, and 10^-342 .. 10^308 as 128-bit mantissas [high, low], cut off."""
    table = []
    for q in range(_MIN_POWER, _MAX_POWER + 1):
        # 10^q, scaled by a power of two, then its 128 most significant bits
        m = 10**q << 128 if q >= 0 else (1 << 1400) // 10**-q
        m = m >> (m.bit_length() - 128)
        table.append((m >> 64, m & (2**64 - 1)))
    return np.array([10.0**q for q in range(23)]), np.array(table, np.uint64)


@njit()
def _is_space(ch: Any) -> Any:
    """Whether bytes.split() splits at this byte: a blank, or 9 to 13."""
    return ch == _SPACE or ch - _TAB <= _U4


@njit()
def _skip(text: Any, p: Any) -> Any:
    """Return the end of the blanks that start at p, which is at a newline at the latest."""
    ch = np.uint64(text[p])
    while ch != _NEWLINE and _is_space(ch):
        p += _U1
        ch = np.uint64(text[p])
    return p


@njit()
def _token_end(text: Any, p: Any) -> Any:
    """Return the end of the token that starts at p."""
    ch = np.uint64(text[p])
    while not _is_space(ch) and ch != _HASH:
        p += _U1
        ch = np.uint64(text[p])
    return p


@njit()
def _digits(text: Any, p: Any, m: Any) -> Any:
    """Append the digits from p on to m; return m, which wraps after 19 digits, and their end."""
    d = np.uint64(text[p]) - _ZERO_CHAR
    while d <= _U9:
        m = m * _U10 + d
        p += _U1
        d = np.uint64(text[p]) - _ZERO_CHAR
    return m, p


@njit()
def _multiply(a: Any, b: Any) -> Any:
    """Return the 128-bit product of two 64-bit numbers, as [high, low]."""
    # schoolbook multiplication of 32-bit halves
    a1, a0, b1, b0 = a >> _U32, a & _LOW32, b >> _U32, b & _LOW32
    low = a0 * b0
    mid = a1 * b0 + (low >> _U32)
    mid2 = a0 * b1 + (mid & _LOW32)
    return a1 * b1 + (mid >> _U32) + (mid2 >> _U32), (mid2 << _U32) | (low & _LOW32)


@njit()
def _eisel_lemire(m: Any, q: Any, table: Any) -> Any:
    """Return (True, the double nearest to m 10^q), or (False, 0) if 128 bits do not decide it."""
    if q < _MIN_POWER or q > _MAX_POWER:
        return False, 0.0
    shift = _U0
    # normalize m to 64 significant bits
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
    # 54 significant bits: the mantissa of 53 bits and one more, for rounding
    top = high >> _U63
    mantissa = high >> (top + _U9)
    exponent = ((217706 * q) >> 16) + 1087 - np.int64(shift) - np.int64(_U1 ^ top)  # 217706 / 2^16 = log2(10)
    if low == _U0 and high & _LOW9 == _U0 and mantissa & _U3 == _U1:
        return False, 0.0  # possibly half-way between two doubles
    # round half to even; a carry may need one more shift
    mantissa = (mantissa + (mantissa & _U1)) >> _U1
    if mantissa >> _U53 != _U0:
        mantissa >>= _U1
        exponent += 1
    if exponent < 1 or np.uint64(exponent) > _MAX_EXP:
        return False, 0.0  # subnormal, or infinite
    return True, np.uint64((np.uint64(exponent) << _U52) | (mantissa & _LOW52)).view(np.float64)


@njit()
def _exponent(text: Any, p: Any) -> Any:
    """Read ``[sign]digits`` after an e; return whether it is valid and short, its value, and its end."""
    sign = np.uint64(text[p])
    if sign in (_MINUS, _PLUS):
        p += _U1
    m, end = _digits(text, p, _U0)
    n = end - p
    return n >= _U1 and n <= _U9, -np.int64(m) if sign == _MINUS else np.int64(m), end


@njit()
def _significant(text: Any, p: Any, end: Any) -> Any:
    """Return the number of digits in text[p:end] without leading zeros."""
    count = _U0
    for i in range(p, end):
        d = np.uint64(text[i]) - _ZERO_CHAR
        if d <= _U9 and (count > _U0 or d > _U0):
            count += _U1
    return count


@njit()
def _number(text: Any, p: Any, tens: Any, table: Any) -> Any:
    """Read a decimal at p; return whether value is its nearest double, the value, and the token's end."""
    start, sign = p, np.uint64(text[p])
    if sign in (_MINUS, _PLUS):
        p += _U1
    m, end = _digits(text, p, _U0)
    # n digits so far; q is the exponent of ten, minus the number of decimals
    n = end - p
    q = np.int64(0)
    if np.uint64(text[end]) == _DOT:
        dot = end + _U1
        m, end = _digits(text, dot, m)
        n += end - dot
        q = np.int64(dot) - np.int64(end)
    # up to 19 digits fit into 64 bits; leading zeros do not count
    exact = n > _U0 and (n < np.uint64(20) or _significant(text, p, end) < np.uint64(20))
    # e or E: setting bit 5 gives the lower case
    if np.uint64(text[end]) | _U32 == _CHAR_E:
        valid, e, end = _exponent(text, end + _U1)
        exact &= valid
        q += e
    ch = np.uint64(text[end])
    if not _is_space(ch) and ch != _HASH:
        return False, 0.0, _token_end(text, start)
    value = 0.0
    # fast path: m and the power of ten are exact doubles, so one operation rounds once
    if m <= _EXACT_INT and -22 <= q <= 22:
        value = np.float64(m) / tens[np.uint64(-q)] if q < 0 else np.float64(m) * tens[np.uint64(q)]
    elif exact and m != _U0:
        exact, value = _eisel_lemire(m, q, table)
    return exact, -value if sign == _MINUS else value, end


@njit()
def _fail(state: Any, code: Any, start: Any, stop: Any) -> Any:
    """Store the range of the erroneous token; return the code.

    It is given as an int64: of a literal, Numba would compile a version for each.
    """
    state[ERROR_START], state[ERROR_STOP] = start, stop
    return code, stop


@njit()
def _note(slow: Any, state: Any, where: Any, start: Any, stop: Any) -> None:
    """Leave text[start:stop] to Python: it is value number `where`, or the label of row -1 - where."""
    i = state[N_SLOW]
    slow[i, 0], slow[i, 1], slow[i, 2] = where, start, stop
    state[N_SLOW] = i + 1


@njit()
def _label(text: Any, p: Any, mode: Any, tens: Any, table: Any, labels: Any, slow: Any, state: Any) -> Any:
    """Read the first token of a row; return the code, and where the next token may start."""
    row = state[N_ROWS]
    exact, labels[row], end = _number(text, p, tens, table)
    if exact and mode != LABEL_TEXT:
        return OK, end
    # a colon marks a feature or a query id in place of the label
    for i in range(p, end):
        if np.uint64(text[i]) == _COLON:
            # the row has no label: it is NaN, and the token is read again
            labels[row] = np.nan
            return _fail(state, np.int64(NO_LABEL), p, end) if mode == LABEL_NUMBER else (OK, p)
    _note(slow, state, -1 - row, p, end)
    return OK, end


@njit()
def _query(text: Any, p: Any, qids: Any, state: Any) -> Any:
    """Read ``qid:id``, if it is at p; return the code, and where the next token may start."""
    if (
        np.uint64(text[p]) != _CHAR_Q
        or np.uint64(text[p + _U1]) != _CHAR_I
        or np.uint64(text[p + _U1 + _U1]) != _CHAR_D
    ):
        # state[HAS_QID]: -1 unknown, 1 if all rows have a qid, 0 if none has
        if state[HAS_QID] == 1:
            return _fail(state, np.int64(QID_MISSING), p, p)
        state[HAS_QID] = 0
        return OK, p
    end = _token_end(text, p)
    start = p + _U3 + _U1
    if state[HAS_QID] == 0:
        return _fail(state, np.int64(QID_EXTRA), p, end)
    state[HAS_QID] = 1
    negative = start < end and np.uint64(text[start]) == _MINUS
    if negative:
        start += _U1
    if start >= end or np.uint64(text[p + _U3]) != _COLON:
        return _fail(state, np.int64(BAD_QID), p, end)
    # only digits, at most 19 of them, and below 2^63
    m, stop = _digits(text, start, _U0)
    if stop != end or end - start > np.uint64(19) or m >> _U63 != _U0 or stop == start:
        return _fail(state, np.int64(BAD_QID), p, end)
    qids[state[N_ROWS]] = -np.int64(m) if negative else np.int64(m)
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
    """Read ``index:value`` pairs up to a newline or a comment; return the code, and their end."""
    k = np.uint64(state[N_VALUES])
    last = np.int64(base - 1)
    while True:
        p = _skip(text, p)
        ch = np.uint64(text[p])
        if ch in (_NEWLINE, _HASH):
            break
        m, end = _digits(text, p, _U0)
        # at most 18 digits fit into int64
        if end == p or np.uint64(text[end]) != _COLON or end - p > np.uint64(18):
            return _fail(state, np.int64(BAD_PAIR), p, _token_end(text, p))
        index = np.int64(m)
        # increasing indices, the first one at least `base`
        if index <= last:
            return _fail(state, np.int64(UNSORTED), p, _token_end(text, p))
        if index > limit:
            return _fail(state, np.int64(TOO_LARGE), p, end)
        # the first index of the row is its smallest one
        if last < base and index < state[SMALLEST_INDEX]:
            state[SMALLEST_INDEX] = index
        last = index
        start = end + _U1
        exact, values[k], p = _number(text, start, tens, table)
        if not exact:
            _note(slow, state, np.int64(k), start, p)
        indices[k] = index
        k += _U1
    if last > state[LARGEST_INDEX]:
        state[LARGEST_INDEX], state[LARGEST_INDEX_LINE] = last, state[LINE_NUMBER]
    state[N_VALUES] = k
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
    """Parse text[:size], whose last byte is a newline; return a code, with the place of an error in `state`.

    Indices must lie in [base, limit]. Row i has ``values[ends[i - 1]:ends[i]]`` and their `indices`, its
    label, its query id, and its line number. The arrays must have length size // 3 + 1 (values) and
    size // 2 + 1 (rows).
    """
    state[N_ROWS] = state[N_VALUES] = state[N_SLOW] = 0
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
            row = state[N_ROWS]
            ends[row], lines[row] = state[N_VALUES], state[LINE_NUMBER]
            state[N_ROWS] = row + 1
        while np.uint64(text[p]) != _NEWLINE:  # skip the comment
            p += _U1
        p += _U1
        state[LINE_NUMBER] += 1
    return OK

"""Text from files and file names for use in messages: on one line, and without control sequences."""

from __future__ import annotations

import numbers


def printable(text: object) -> str:
    r"""Return the text with unprintable characters escaped, so that no file can control the terminal.

    Parameters
    ----------
    text : object
        Converted by `str`.

    Returns
    -------
    str
    """
    string = str(text)
    if string.isprintable():
        return string
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in string)


def one_line(text: object) -> str:
    r"""Return the text on one line, with whitespace collapsed and unprintable characters escaped."""
    return printable(" ".join(str(text).split()))


def format_label(label: object) -> str:
    """Return a class label as in a data file, where 1.0 is "1"."""
    # floats of NumPy are registered as real numbers, too
    if isinstance(label, numbers.Real) and not isinstance(label, numbers.Integral):
        return str(int(float(label))) if float(label).is_integer() else str(label)
    return str(label)

"""Text from files and their names, as messages show it: on one line, and without a word to the terminal."""

from __future__ import annotations


def printable(text: object) -> str:
    r"""The same text with all that is not printable escaped: what a file holds must not steer a terminal.

    Parameters
    ----------
    text : object
        Anything with a `str`.

    Returns
    -------
    str

    Examples
    --------
    >>> printable("red\x1b[31m.csv\n")
    'red\\x1b[31m.csv\\n'
    """
    found = str(text)
    if found.isprintable():
        return found
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in found)


def one_line(text: object) -> str:
    r"""The same text on one line, and printable.

    Examples
    --------
    >>> one_line("two\n  lines\t\x07")
    'two lines \\x07'
    """
    return printable(" ".join(str(text).split()))

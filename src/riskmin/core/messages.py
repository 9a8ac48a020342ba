"""Text from files and file names for use in messages: on one line, and without control sequences."""

from __future__ import annotations


def printable(text: object) -> str:
    r"""Return the text with unprintable characters escaped, so that no file can control the terminal.

    Parameters
    ----------
    text : object
        Converted by `str`.

    Returns
    -------
    str

    Examples
    --------
    >>> printable("red\x1b[31m.csv\n")
    'red\\x1b[31m.csv\\n'
    """
    string = str(text)
    if string.isprintable():
        return string
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in string)


def one_line(text: object) -> str:
    r"""Return the text on one line, with whitespace collapsed and unprintable characters escaped.

    Examples
    --------
    >>> one_line("two\n  lines\t\x07")
    'two lines \\x07'
    """
    return printable(" ".join(str(text).split()))

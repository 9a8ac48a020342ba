"""Which labels may follow which: the rules of BIO and its kin, or the user's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from riskmin.types import NDArray

FORBIDDEN = -1e30
"""Added to what is forbidden: more than any scores make up for, and exact sums of allowed ones stay exact."""


class Rules(NamedTuple):
    """What is forbidden: a first label, a last label, and a label after another."""

    start: NDArray
    end: NDArray
    pairs: NDArray

    def check(self, lengths: NDArray) -> None:
        """Raise if no labels of a sequence of one of these lengths keep to the rules."""
        reached, wanted = ~self.start, set(lengths[lengths > 0].tolist())
        for length in range(1, max(wanted, default=0) + 1):
            if length in wanted and not (reached & ~self.end).any():
                raise ValueError(
                    f"a sequence has {length} token{'s' if length > 1 else ''}, but no labels of so many "
                    "keep to constraints: choose others"
                )
            reached = np.any(~self.pairs[reached], axis=0)

    def penalties(self) -> NDArray:
        """What to add to transitions, start and end scores, one above the other."""
        return FORBIDDEN * np.vstack([self.pairs, self.start, self.end])


def rules_of(constraints: Any, classes: Sequence[Any]) -> Rules | None:
    """The rules that the parameter `constraints` of a tagger stands for, if there are any.

    Parameters
    ----------
    constraints : None, str or iterable of pairs
        See `ChainTagger`.
    classes : sequence
        The labels.

    Returns
    -------
    Rules or None
    """
    if constraints is None:
        return None
    if isinstance(constraints, str):
        if constraints not in SCHEMES:
            raise ValueError(
                f"constraints={constraints!r} is not known: use {', '.join(SCHEMES)}, or pairs of labels"
            )
        may_follow = SCHEMES[constraints]
        ends = [None, *(_parsed(label, constraints) for label in classes)]
        table = np.array([[not may_follow(a, b) for b in ends] for a in ends])
    else:
        table = _from_pairs(constraints, list(classes))
    rules = Rules(table[0, 1:], table[1:, 0], table[1:, 1:])
    if rules.start.all() or rules.end.all():
        where = "begin" if rules.start.all() else "end"
        raise ValueError(
            f"constraints={constraints!r} lets no sequence {where}, whichever label it has there: "
            "choose others"
        )
    return rules


def _from_pairs(pairs: Iterable[Any], classes: list[Any]) -> NDArray:
    """A table of what is forbidden; None, in the first row and column, is what lies beyond the sequence."""
    place = {None: 0} | {label: j for j, label in enumerate(classes, 1)}
    table: NDArray = np.zeros((len(place), len(place)), bool)
    for pair in pairs:
        if isinstance(pair, (str, bytes)) or not hasattr(pair, "__len__") or len(pair) != 2:
            raise ValueError(
                f"constraints holds {pair!r}: give pairs (label, next label) that are forbidden, "
                "None for the start and the end"
            )
        if all(label in place for label in pair):  # what no sequence can have needs no rule
            table[place[pair[0]], place[pair[1]]] = True
    return table


# ---------------------------------------------------------------- schemes
_Part = tuple[str, str] | None
"""A letter and a type; None beyond the ends of a sequence."""


def _bio(a: _Part, b: _Part) -> bool:
    """I-X comes after B-X or I-X."""
    return b is None or b[0] != "I" or (a is not None and a[0] in "BI" and a[1] == b[1])


def _iob1(a: _Part, b: _Part) -> bool:
    """B-X comes after B-X or I-X: between two chunks of one type."""
    return b is None or b[0] != "B" or (a is not None and a[0] in "BI" and a[1] == b[1])


def _bioes(a: _Part, b: _Part) -> bool:
    """B-X and I-X are followed by I-X or E-X, and by nothing else."""
    open_, goes_on = a is not None and a[0] in "BI", b is not None and b[0] in "IE"
    if not open_ and not goes_on:
        return True
    return open_ and goes_on and a is not None and b is not None and a[1] == b[1]


SCHEMES: dict[str, Callable[[_Part, _Part], bool]] = {
    "bio": _bio,
    "iob1": _iob1,
    "bioes": _bioes,
    "bilou": _bioes,
}
_LETTERS = {"bio": "BIO", "iob1": "BIO", "bioes": "BIOES", "bilou": "BILOU"}


def _parsed(label: Any, scheme: str) -> tuple[str, str]:
    letter, _, kind = str(label).partition("-")
    if len(letter) != 1 or letter not in _LETTERS[scheme] or (letter == "O" and kind):
        some = ", ".join("O" if one == "O" else f"{one}-X" for one in _LETTERS[scheme])
        raise ValueError(
            f"constraints={scheme!r} is for labels {some}, but there is {label!r}: choose another"
        )
    return {"L": "E", "U": "S"}.get(letter, letter), kind

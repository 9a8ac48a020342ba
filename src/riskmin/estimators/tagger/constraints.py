"""Constraints on adjacent labels: BIO and related schemes, or forbidden pairs given by the user."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from riskmin.core import NDArray
from riskmin.estimators.tagger.sequences_input import is_collection


class TransitionRules(NamedTuple):
    """Masks of forbidden labels."""

    start: NDArray
    """Labels that may not be the first."""
    end: NDArray
    """Labels that may not be the last."""
    pairs: NDArray
    """Forbidden pairs: ``pairs[a, b]`` if b may not follow a."""

    def check(self, lengths: NDArray) -> None:
        """Raise if there is no allowed labeling for one of these lengths."""
        # reached: labels at which an allowed labeling of the current length can end
        reached, wanted = ~self.start, set(lengths[lengths > 0].tolist())
        for length in range(1, max(wanted, default=0) + 1):
            if length in wanted and not (reached & ~self.end).any():
                raise ValueError(
                    f"a sequence has {length} token{'s' if length > 1 else ''}, but no labeling of this "
                    "length satisfies constraints: choose others"
                )
            # one token more: labels that may follow a reached one
            reached = np.any(~self.pairs[reached], axis=0)

    def penalties(self) -> NDArray:
        """Return the penalties of transition, start and end scores, stacked as k + 2 rows."""
        # exceeds any sum of scores in magnitude; allowed scores are not changed
        return -1e30 * np.vstack([self.pairs, self.start, self.end])


def transition_rules(constraints: Any, classes: Sequence[Any]) -> TransitionRules | None:
    """Return the rules that the parameter `constraints` of a tagger denotes; None if there are none.

    Parameters
    ----------
    constraints : None, str or iterable of pairs
        See `ChainTagger`.
    classes : sequence
        The labels.

    Returns
    -------
    TransitionRules or None
    """
    if constraints is None:
        return None
    if isinstance(constraints, str):
        if constraints not in SCHEMES:
            raise ValueError(
                f"constraints={constraints!r} is not known: use {', '.join(SCHEMES)}, or pairs of labels"
            )
        may_follow = SCHEMES[constraints]
        # row and column 0 stand for the start and the end of a sequence
        tags = [None, *(_parse_label(label, constraints) for label in classes)]
        forbidden = np.array([[not may_follow(a, b) for b in tags] for a in tags])
    else:
        forbidden = _from_pairs(constraints, list(classes))
    rules = TransitionRules(forbidden[0, 1:], forbidden[1:, 0], forbidden[1:, 1:])
    if rules.start.all() or rules.end.all():
        where = "begin" if rules.start.all() else "end"
        raise ValueError(
            f"constraints={constraints!r} lets no sequence {where}, since every label is forbidden there: "
            "choose others"
        )
    return rules


def _from_pairs(pairs: Iterable[Any], classes: list[Any]) -> NDArray:
    """Return a mask of forbidden pairs; its first row and column, for None, are the ends of a sequence."""
    index = {None: 0} | {label: j for j, label in enumerate(classes, 1)}
    forbidden: NDArray = np.zeros((len(index), len(index)), bool)
    for pair in pairs:
        if not is_collection(pair) or len(pair) != 2:
            raise ValueError(
                f"constraints holds {pair!r}: give pairs (label, next label) that are forbidden, "
                "None for the start and the end"
            )
        if all(label in index for label in pair):  # pairs with unknown labels cannot occur
            forbidden[index[pair[0]], index[pair[1]]] = True
    return forbidden


# ---------------------------------------------------------------- schemes
_Tag = tuple[str, str] | None
"""Prefix and type of a label, such as ("B", "NP"); None beyond the ends of a sequence."""


def _bio(a: _Tag, b: _Tag) -> bool:
    """Whether b may follow a: I-X only follows B-X or I-X."""
    return b is None or b[0] != "I" or (a is not None and a[0] in "BI" and a[1] == b[1])


def _iob1(a: _Tag, b: _Tag) -> bool:
    """Whether b may follow a: B-X only follows B-X or I-X, between two chunks of one type."""
    return b is None or b[0] != "B" or (a is not None and a[0] in "BI" and a[1] == b[1])


def _bioes(a: _Tag, b: _Tag) -> bool:
    """Whether b may follow a: I-X and E-X follow B-X or I-X, which nothing else may follow."""
    is_open, continues = a is not None and a[0] in "BI", b is not None and b[0] in "IE"
    if not is_open and not continues:
        return True
    return is_open and continues and a is not None and b is not None and a[1] == b[1]


SCHEMES: dict[str, Callable[[_Tag, _Tag], bool]] = {
    "bio": _bio,
    "iob1": _iob1,
    "bioes": _bioes,
    "bilou": _bioes,
}
_PREFIXES = {"bio": "BIO", "iob1": "BIO", "bioes": "BIOES", "bilou": "BILOU"}


def _parse_label(label: Any, scheme: str) -> tuple[str, str]:
    prefix, _, kind = str(label).partition("-")
    if len(prefix) != 1 or prefix not in _PREFIXES[scheme] or (prefix == "O" and kind):
        expected = ", ".join("O" if p == "O" else f"{p}-X" for p in _PREFIXES[scheme])
        raise ValueError(
            f"constraints={scheme!r} is for labels {expected}, but there is {label!r}: choose another"
        )
    # BILOU's L(ast) and U(nit) are the E(nd) and S(ingle) of BIOES
    return {"L": "E", "U": "S"}.get(prefix, prefix), kind

"""Names of earlier versions that files still hold, so that models and checkpoints written with them load."""

from __future__ import annotations

import re

FORMER_CLASSES = {
    "HandOver": "Switching",
    "Relay": "Fallback",
    "Free": "UnpenalizedTail",
    "FreeSmooth": "UnpenalizedTail",
    "FreeSquare": "UnpenalizedTail",
    "SmoothUnpenalizedTail": "UnpenalizedTail",
    "QuadraticUnpenalizedTail": "UnpenalizedTail",
    "RescaledSmooth": "Rescaled",
    "RescaledWithConjugateHessian": "Rescaled",
    "RescaledSmoothWithConjugateHessian": "Rescaled",
    "ByQuery": "QuerySeparable",
    "digit": "passes_per_digit",
    "SemismoothNewton": "Newton",
    "lagrangian": "algorithm",
}
"""Former name -> present name, of classes and parameters in the descriptions of problems and solvers."""
FORMER_TRACE_KEYS = {"looks": "evaluations", "fall": "decrease", "turn": "solver_index"}
"""Former key -> present key of the rows of a trace."""
FORMER_STATE_KEYS = {"bends": "hessian_diagonal", "centre": "center"}
"""Former key -> present key of the arrays of a solver's state; keys of inner solvers end in these."""
FINGERPRINT_ATTRIBUTES = {"row_metadata": "table", "linear_map": "scorer"}
"""Present attribute -> the name that fingerprints hash, since a hash cannot be translated."""


FORMER_SOLVER_NAMES = {"semismooth_newton": "newton"}
"""Former name -> present name of a solver, as commands and estimators give it."""
DUAL = "DualCoordinateAscent", "DualGaussSeidel", "AugmentedLagrangian"
"""The solvers that `DualGaussSeidel` was before."""
OMITTED_SETTINGS = {
    "Newton": ("direct=2500", "sampled=True"),
    "DualGaussSeidel": ("step='exact'", "step='gradient'"),
}
"""Settings that descriptions of before contain, and present ones leave out: defaults."""


def present_names(text: str) -> str:
    """Return the description of a problem or solver with former names replaced by the present ones."""
    # words before "(" are classes, words before "=" parameters
    text = re.sub(r"\w+(?=[(=])", lambda word: FORMER_CLASSES.get(word[0], word[0]), text)
    return re.sub(r"(\w+)\(([^()]*)\)", _without_omitted_settings, text)


def same_description(saved: str, present: str) -> bool:
    """Whether a description in a file, which may have former names, is that of a present object.

    `DualGaussSeidel` was one class for three methods; its states tell which of them it was.
    """
    names = present_names(saved)
    return saved == present or any(names.replace("DualGaussSeidel(", f"{name}(") == present for name in DUAL)


def _without_omitted_settings(call: re.Match[str]) -> str:
    name, omitted = call[1], OMITTED_SETTINGS.get(call[1], ())
    return f"{name}({', '.join(part for part in call[2].split(', ') if part not in omitted)})"


def present_state_key(key: str) -> str:
    """Return the present name of an array of a solver's state."""
    prefix, dot, last = key.rpartition(".")
    return prefix + dot + FORMER_STATE_KEYS.get(last, last)

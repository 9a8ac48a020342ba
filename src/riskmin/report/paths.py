"""Pages of paths and of searches: what changes with the strength of the regularizer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from riskmin.progress import duration, relative_gap
from riskmin.report.chart import Line, draw, linear_axis, log_axis
from riskmin.report.page import badge, facts, table, write_page
from riskmin.types import NDArray, Result

MOST_WEIGHTS = 30
"""A picture shows the path of so many weights, the largest."""

_PATH = (
    "One fit for each strength lam of the regularizer, each with a proof of its own: the least objective for "
    "that lam lies in the shaded band between the two curves."
)
_SEARCH = (
    "The score of each strength lam on the rows that a fold left out: the mean over the folds, and one "
    "standard deviation to both sides. Each fit of each fold has a proof of its own of how good it is."
)


def _span(lams: Sequence[float]) -> Any:
    return log_axis(min(lams), max(lams))


def _curves(results: Sequence[Result], lams: Sequence[float]) -> str:
    """The two bounds of the least objective along lam."""
    value, lower = ([getattr(r, name) for r in results] for name in ("value", "lower"))
    lines = [
        Line("value", "objective J(w)", list(zip(lams, value, strict=True))),
        Line("lower", "lower bound of min J", list(zip(lams, lower, strict=True))),
    ]
    y = linear_axis(min(0.0, *lower), 1.04 * max(value))
    return draw("Objective and lower bound", _span(lams), y, lines, band=True, label="lam")


def _gaps(results: Sequence[Result], lams: Sequence[float], tol: float) -> str:
    gaps = [max(relative_gap(r.trace[-1]), 1e-16) for r in results]
    least = min(g for g in [*gaps, tol] if g > 0)
    line = Line("gap", "certified gap / J(w)", list(zip(lams, gaps, strict=True)))
    y = log_axis(0.7 * least, max(1.0, *gaps) if max(gaps) > 0.1 else 0.1)
    return draw("Certified relative gap", _span(lams), y, [line], rule=tol, label="lam")


def _counts(results: Sequence[Result], lams: Sequence[float]) -> str:
    count = [float(np.count_nonzero(r.w)) for r in results]
    line = Line("gap", "weights that are not zero", list(zip(lams, count, strict=True)))
    top = linear_axis(0.0, 1.04 * max(*count, 1.0), whole=True)
    return draw("Nonzero weights", _span(lams), top, [line], label="lam")


def _weights(results: Sequence[Result], lams: Sequence[float], names: Sequence[str] | None) -> str:
    """The largest weights along lam, three of them by name."""
    W: NDArray = np.array([np.asarray(r.w) for r in results])
    largest = np.argsort(-np.abs(W).max(axis=0), kind="stable")[:MOST_WEIGHTS]
    kinds = ("value", "lower", "gap")
    lines = []
    for rank, j in enumerate(largest.tolist()):
        named = rank < len(kinds)
        name = (names[j] if names is not None else f"column {j}") if named else ""
        points = list(zip(lams, W[:, j].tolist(), strict=True))
        lines.append(Line(kinds[rank] if named else "other", name, points))
    lines = lines[3:] + lines[:3]  # those with a name above the others
    lo, hi = 1.04 * min(0.0, float(W.min())), 1.04 * max(0.0, float(W.max()))
    title = "Weights" if W.shape[1] <= MOST_WEIGHTS else f"The {MOST_WEIGHTS} largest weights"
    return draw(title, _span(lams), linear_axis(lo, hi if hi > lo else 1.0), lines, label="lam")


def write_path(
    path: str | os.PathLike[str],
    results: Sequence[Result],
    lams: Sequence[float],
    *,
    title: str = "riskmin path",
    about: dict[str, Any] | None = None,
    names: Sequence[str] | None = None,
    sparse: bool = False,
) -> None:
    """Write one HTML page about a regularization path. It needs no other file, no network and no script.

    Parameters
    ----------
    path : path
        Written whole or not at all.
    results : sequence of Result
        What `riskmin.path` returned.
    lams : sequence of float
        Their strengths.
    title : str
    about : dict, optional
        What shall be said of the problem; of it, "tol" is in the picture of the gaps.
    names : sequence of str, optional
        Of the features.
    sparse : bool
        Show how many weights are not zero.

    Examples
    --------
    >>> import numpy as np, pathlib, tempfile
    >>> from riskmin import L2, Hinge, linear_risk, path
    >>> results = path(linear_risk(np.eye(2), np.array([1.0, -1.0]), Hinge()), L2(), [0.1, 1.0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_path(pathlib.Path(folder, "path.html"), results, [0.1, 1.0])
    ...     pathlib.Path(folder, "path.html").read_text(encoding="utf-8").count("<svg class")
    3
    """
    order = np.argsort(np.asarray(lams), kind="stable")[::-1].tolist()
    results, lams = [results[k] for k in order], [float(lams[k]) for k in order]
    tol = float((about or {}).get("tol", 0.0))
    pictures = _curves(results, lams) + _gaps(results, lams, tol) + _weights(results, lams, names)
    pictures += _counts(results, lams) if sparse else ""
    rows = [
        [
            f"{lam:.3g}",
            f"{r.value:.6g}",
            f"{r.lower:.6g}",
            f"{relative_gap(r.trace[-1]):.1e}",
            f"{np.count_nonzero(r.w):,}",
            f"{int(r.trace[-1]['calls']):,}",
            duration(r.trace[-1]["seconds"]),
            badge(r),
        ]
        for lam, r in zip(lams, results, strict=True)
    ]
    head = ["lam", "objective", "lower bound", "relative gap", "nonzeros", "oracle calls", "time", "status"]
    said = facts(_about(about))
    write_page(path, title, _PATH, [_figure(pictures, said), table(head, rows)])


def write_search(
    path: str | os.PathLike[str],
    lams: Sequence[float],
    scores: NDArray,
    best: float,
    *,
    title: str = "riskmin cross-validation",
    about: dict[str, Any] | None = None,
) -> None:
    """Write one HTML page about a cross-validation along lam.

    Parameters
    ----------
    path : path
        Written whole or not at all.
    lams : sequence of float
        The strengths.
    scores : (folds, len(lams)) array
        The score of each in each fold.
    best : float
        The strength that was chosen.
    title : str
    about : dict, optional
        What shall be said of the problem.

    Examples
    --------
    >>> import numpy as np, pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = pathlib.Path(folder, "cv.html")
    ...     write_search(page, [1.0, 0.1], np.array([[0.8, 0.9], [0.7, 0.9]]), 0.1)
    ...     page.read_text(encoding="utf-8").count("<svg class")
    1
    """
    order = np.argsort(np.asarray(lams), kind="stable")[::-1].tolist()
    lams, scores = [float(lams[k]) for k in order], np.asarray(scores)[:, order]
    mean, sd = scores.mean(axis=0), scores.std(axis=0)
    lo, hi = float((mean - sd).min()), float((mean + sd).max())
    room = 0.04 * (hi - lo) or 0.01 * (abs(hi) or 1.0)
    lo, hi = lo - room, hi + room
    lines = [
        Line("other", "", list(zip(lams, (mean + sd).tolist(), strict=True))),
        Line("other", "", list(zip(lams, (mean - sd).tolist(), strict=True))),
        Line("value", "mean score", list(zip(lams, mean.tolist(), strict=True))),
        Line("tol", f"best lam = {best:.3g}", [(best, lo), (best, hi)]),
    ]
    picture = draw(
        "Score of the rows left out", _span(lams), linear_axis(lo, hi), lines, band=True, label="lam"
    )
    rows = [
        [f"{lam:.3g}", f"{m:.6g}", f"{s:.2g}", *(f"{v:.4g}" for v in scores[:, k])]
        for k, (lam, m, s) in enumerate(zip(lams, mean, sd, strict=True))
    ]
    head = ["lam", "mean score", "sd", *(f"fold {k + 1}" for k in range(len(scores)))]
    said = facts(_about(about))
    write_page(path, title, _SEARCH, [_figure(picture, said), table(head, rows)])


def _about(given: dict[str, Any] | None) -> list[tuple[str, str]]:
    more = dict(given or {})
    rows: list[tuple[str, Any]] = []
    if "rows" in more and "columns" in more:
        rows.append(("data", f"{more.pop('rows'):,} rows × {more.pop('columns'):,} columns"))
    rows += more.items()
    return [(name, f"{fact:g}" if isinstance(fact, float) else str(fact)) for name, fact in rows]


def _figure(pictures: str, said: str) -> str:
    return f'<section><div class="charts">{pictures}</div>{said}</section>'

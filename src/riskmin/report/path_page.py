"""HTML pages of regularization paths and of cross-validations along lam."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from riskmin.core import NDArray, Result
from riskmin.report.chart import ChartLine, draw_chart, linear_axis, log_axis
from riskmin.report.page import (
    fact_rows,
    html_details,
    html_facts,
    html_section,
    html_table,
    status_badge,
    write_page,
)
from riskmin.report.progress import duration, relative_gap

_PATH_INTRODUCTION = (
    "One fit for each regularization strength lam, each with its own proof: the minimal objective for that "
    "lam lies in the shaded band between the two curves."
)
_SEARCH_INTRODUCTION = (
    "The score for each regularization strength lam on the held-out rows: the mean over the folds, plus and "
    "minus one standard deviation. Each fit of each fold has its own proof of the optimality gap."
)


def _lam_axis(lams: Sequence[float]) -> Any:
    return log_axis(min(lams), max(lams))


def _bounds_chart(results: Sequence[Result], lams: Sequence[float]) -> str:
    """Chart of the objective and the lower bound along lam."""
    value, lower = ([getattr(r, name) for r in results] for name in ("value", "lower"))
    lines = [
        ChartLine("value", "objective J(w)", list(zip(lams, value, strict=True))),
        ChartLine("lower", "lower bound of min J", list(zip(lams, lower, strict=True))),
    ]
    y = linear_axis(min(0.0, *lower), 1.04 * max(value))
    return draw_chart("Objective and lower bound", _lam_axis(lams), y, lines, band=True, label="lam")


def _gap_chart(results: Sequence[Result], lams: Sequence[float], tol: float) -> str:
    # a gap of zero has no place on a logarithmic axis
    gaps = [max(relative_gap(r.trace[-1]), 1e-16) for r in results]
    smallest = min(g for g in [*gaps, tol] if g > 0)
    line = ChartLine("gap", "certified gap / J(w)", list(zip(lams, gaps, strict=True)))
    y = log_axis(0.7 * smallest, max(1.0, *gaps) if max(gaps) > 0.1 else 0.1)
    return draw_chart("Certified relative gap", _lam_axis(lams), y, [line], rule=tol, label="lam")


def _sparsity_chart(results: Sequence[Result], lams: Sequence[float]) -> str:
    count = [float(np.count_nonzero(r.w)) for r in results]
    line = ChartLine("gap", "weights that are not zero", list(zip(lams, count, strict=True)))
    top = linear_axis(0.0, 1.04 * max(*count, 1.0), whole=True)
    return draw_chart("Nonzero weights", _lam_axis(lams), top, [line], label="lam")


def _weights_chart(results: Sequence[Result], lams: Sequence[float], names: Sequence[str] | None) -> str:
    """Chart of the largest weights along lam; the three largest have names in the legend."""
    # one row per lam, one column per weight; ranked by the largest absolute value along the path
    W: NDArray = np.array([np.asarray(r.w) for r in results])
    most = 30
    largest = np.argsort(-np.abs(W).max(axis=0), kind="stable")[:most]
    kinds = ("value", "lower", "gap")
    lines = []
    for rank, j in enumerate(largest.tolist()):
        in_legend = rank < len(kinds)
        name = (names[j] if names is not None else f"column {j}") if in_legend else ""
        points = list(zip(lams, W[:, j].tolist(), strict=True))
        lines.append(ChartLine(kinds[rank] if in_legend else "other", name, points))
    # draw the named lines last, on top of the others
    lines = lines[3:] + lines[:3]
    lo, hi = 1.04 * min(0.0, float(W.min())), 1.04 * max(0.0, float(W.max()))
    title = "Weights" if W.shape[1] <= most else f"The {most} largest weights"
    return draw_chart(title, _lam_axis(lams), linear_axis(lo, hi if hi > lo else 1.0), lines, label="lam")


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
        Written atomically: completely or not at all.
    results : sequence of Result
        The results of `riskmin.path`.
    lams : sequence of float
        Their regularization strengths.
    title : str
    about : dict, optional
        Facts about the problem to show; "tol" is also drawn in the chart of the gaps.
    names : sequence of str, optional
        The names of the weights.
    sparse : bool
        Show the number of nonzero weights.

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
    # from the largest lam to the smallest
    order = np.argsort(np.asarray(lams), kind="stable")[::-1].tolist()
    results, lams = [results[k] for k in order], [float(lams[k]) for k in order]
    tol = float((about or {}).get("tol", 0.0))
    charts = _bounds_chart(results, lams) + _gap_chart(results, lams, tol)
    charts += _weights_chart(results, lams, names)
    charts += _sparsity_chart(results, lams) if sparse else ""
    rows = [
        [
            f"{lam:.3g}",
            f"{r.value:.6g}",
            f"{r.lower:.6g}",
            f"{relative_gap(r.trace[-1]):.1e}",
            f"{np.count_nonzero(r.w):,}",
            f"{int(r.trace[-1]['calls']):,}",
            duration(r.trace[-1]["seconds"]),
            status_badge(r),
        ]
        for lam, r in zip(lams, results, strict=True)
    ]
    head = ["lam", "objective", "lower bound", "relative gap", "nonzeros", "oracle calls", "time", "status"]
    problem = html_facts(fact_rows(about or {}))
    table = html_section(html_table("All fits, from the largest lam to the smallest", head, rows))
    write_page(path, title, _PATH_INTRODUCTION, [_figure(charts, problem), table])


def write_search(
    path: str | os.PathLike[str],
    lams: Sequence[float],
    scores: dict[str, NDArray],
    best: float,
    *,
    title: str = "riskmin cross-validation",
    about: dict[str, Any] | None = None,
) -> None:
    """Write one HTML page about a cross-validation along lam.

    Parameters
    ----------
    path : path
        Written atomically: completely or not at all.
    lams : sequence of float
        The regularization strengths.
    scores : dict of (folds, len(lams)) arrays
        By the name of the metric, the score for each lam in each fold. The first metric has chosen lam.
    best : float
        The chosen lam.
    title : str
    about : dict, optional
        Facts about the problem to show.

    Examples
    --------
    >>> import numpy as np, pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = pathlib.Path(folder, "cv.html")
    ...     write_search(page, [1.0, 0.1], {"accuracy": np.array([[0.8, 0.9], [0.7, 0.9]])}, 0.1)
    ...     page.read_text(encoding="utf-8").count("<svg class")
    1
    """
    order = np.argsort(np.asarray(lams), kind="stable")[::-1].tolist()
    lams = [float(lams[k]) for k in order]
    scores = {name: np.asarray(folds)[:, order] for name, folds in scores.items()}
    charts = "".join(_score_chart(name, lams, folds, best) for name, folds in scores.items())
    by_metric = html_table(
        "Mean and standard deviation over the folds",
        ["lam", *(cell for name in scores for cell in (name, "sd"))],
        [
            [_mark_best(lam, best), *(cell for folds in scores.values() for cell in _mean_sd(folds[:, k]))]
            for k, lam in enumerate(lams)
        ],
    )
    first, folds = next(iter(scores.items()))
    by_fold = html_table(
        f"{first} of each fold",
        ["lam", *(f"fold {k + 1}" for k in range(len(folds)))],
        [[_mark_best(lam, best), *(f"{v:.4g}" for v in folds[:, k])] for k, lam in enumerate(lams)],
    )
    chosen = {"chosen lam": f"{best:.4g}, by {first}"}
    # beside a single chart, the facts fill the card
    facts = html_facts(fact_rows((about or {}) | chosen))
    figure = _figure(charts + f"<div>{facts}</div>", "") if len(scores) % 2 else _figure(charts, facts)
    tables = html_section(by_metric, html_details("Scores of each fold", by_fold))
    write_page(path, title, _SEARCH_INTRODUCTION, [figure, tables])


def _mark_best(lam: float, best: float) -> str:
    return f"{lam:.3g} (chosen)" if lam == best else f"{lam:.3g}"


def _mean_sd(scores: NDArray) -> tuple[str, str]:
    return f"{scores.mean():.6g}", f"{scores.std():.2g}"


def _score_chart(name: str, lams: Sequence[float], scores: NDArray, best: float) -> str:
    """Chart of the mean of a metric over the folds along lam, plus and minus one standard deviation."""
    # a metric may be undefined in some folds
    is_defined = np.atleast_1d(np.isfinite(scores).all(axis=0))
    if not is_defined.any():
        return ""
    lams = [lam for lam, defined in zip(lams, is_defined.tolist(), strict=True) if defined]
    mean, sd = scores[:, is_defined].mean(axis=0), scores[:, is_defined].std(axis=0)
    lo, hi = float((mean - sd).min()), float((mean + sd).max())
    # the axis extends 4 % beyond the band
    margin = 0.04 * (hi - lo) or 0.01 * (abs(hi) or 1.0)
    lo, hi = lo - margin, hi + margin
    # the band is drawn between the first two lines
    lines = [
        ChartLine("other", "", list(zip(lams, (mean + sd).tolist(), strict=True))),
        ChartLine("other", "", list(zip(lams, (mean - sd).tolist(), strict=True))),
        ChartLine("value", f"mean {name}", list(zip(lams, mean.tolist(), strict=True))),
        ChartLine("tol", f"chosen lam = {best:.3g}", [(best, lo), (best, hi)]),
    ]
    title = f"{name} of the held-out rows"
    return draw_chart(title, _lam_axis(lams), linear_axis(lo, hi), lines, band=True, label="lam")


def _figure(charts: str, description: str) -> str:
    return f'<section><div class="charts">{charts}</div>{description}</section>'

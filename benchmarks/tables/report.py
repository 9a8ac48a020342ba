"""Failures of a fit, and the summary of many fits."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import starmap
from typing import Any

import numpy as np

from benchmarks.tables.fits import ROUNDING, SMALL_GAP

Fit = dict[str, Any]
WITHIN = 1e-3
"""The relative accuracy at which a problem counts as solved, the default tol of riskmin."""
BEHIND = 1.01
"""A fit is behind if its value exceeds this factor times the value of another solver."""


def others(fit: Fit) -> list[Fit]:
    """The fits of riskmin's other solvers."""
    return [one for one in fit.get("solvers", {}).values() if "value" in one]


def finish(fit: Fit) -> Fit:
    """Add the derived fields."""
    if "value" not in fit:
        return fit
    zero, other_fits = fit["at_zero"], others(fit)
    values = [fit["value"], *(one["value"] for one in other_fits)]
    values += [one["value"] for one in fit.get("peers", {}).values() if "value" in one and "ours" not in one]
    lowers = [fit["lower"], *(one["lower"] for one in other_fits)]
    proved = [one["cpu"] for one in other_fits if one["certified"]]
    solvers = fit.get("solvers", {})
    fit["certified_by"] = sorted(name for name, one in solvers.items() if one.get("certified"))
    fit["best_value"], fit["best_lower"] = min(values), max(lowers)
    fit["best_cpu"] = min([*proved, *([fit["cpu"]] if fit["certified"] else [])], default=None)
    fit["regret"] = (
        fit["cpu"] / fit["best_cpu"] if fit["certified"] else None
    )  # without a certificate there is no time
    fit["false_bound"] = fit["best_lower"] > fit["best_value"] + ROUNDING * zero
    fit["worse_than_zero"] = fit["value"] > zero * (1 + ROUNDING)
    fit["behind"] = fit["value"] > BEHIND * min(values[: 1 + len(other_fits)]) + ROUNDING * zero
    fit["wrong_value"] = abs(fit["value"] - fit["recomputed"]) > 1e-6 * abs(fit["value"]) + ROUNDING * zero
    return fit


def troubles(fit: Fit) -> list[str]:
    """Descriptions of the failures of a fit."""
    if fit["status"] == "error":
        return [fit["error"]]
    failures = []
    if not fit["certified"]:
        tiny = " (of a J that is nearly zero)" if fit["gap"] <= ROUNDING * fit["at_zero"] else ""
        failures = [f"{fit['status']}, gap {fit['gap'] / max(fit['value'], 1e-300):.1e}{tiny}"]
    more = fit["value"] / fit["at_zero"] - 1 if fit["at_zero"] else 0.0
    descriptions = {"worse_than_zero": f"worse than w = 0 by {more:.1e}", "behind": "behind another solver"}
    descriptions |= {"false_bound": "FALSE BOUND", "wrong_value": "value is not J"}
    return failures + [words for key, words in descriptions.items() if fit.get(key)]


def line(fit: Fit) -> str:
    """A fit as one line of text."""
    head = f"{fit['table']} {tuple(fit['shape'])} {fit['loss']}: {'; '.join(troubles(fit)) or 'certified'}"
    if "value" not in fit:
        return f"{head}; {fit['cpu']:.2f} s"
    values = f"J {fit['value']:.6g}, at least {fit['best_lower']:.6g}, at w = 0 {fit['at_zero']:.6g}"
    return f"{head}; {values}, {fit['n_iter']} steps, {fit['cpu']:.2f} s, {fit['solver'].split(':')[0]}"


def share(part: int, total: int) -> str:
    return f"{part} ({100 * part / max(total, 1):.1f}%)"


def row(name: str, fits: list[Fit]) -> str:
    """A row of the table of losses."""
    cpu = np.array([fit["cpu"] for fit in fits])
    proved = [fit for fit in fits if fit.get("certified")]
    cells = [
        name,
        str(len(fits)),
        share(len(proved), len(fits)),
        share(sum(fit["cpu"] <= 2 for fit in proved), len(fits)),
        *(
            str(sum(bool(fit.get(key)) for fit in fits))
            for key in ("worse_than_zero", "behind", "false_bound")
        ),
        str(sum(fit["status"] == "error" for fit in fits)),
        f"{cpu.sum():.1f} / {np.median(cpu):.3g} / {cpu.max():.3g}",
    ]
    regret = [fit["regret"] for fit in fits if fit.get("regret") and "solvers" in fit]
    cells.append(f"{np.median(regret):.2g} / {max(regret):.3g}" if regret else "")
    return f"| {' | '.join(cells)} |"


def summary(fits: Iterable[Fit]) -> str:
    """Counts of all fits, and of each loss."""
    fits = list(fits)
    kinds = {fit["kind"]: [one for one in fits if one["kind"] == fit["kind"]] for fit in fits}
    heads = ("", "fits", "certified", "within 2 s", "worse than 0", "behind", "false bounds", "errors")
    heads += ("CPU s: all / median / worst", "regret: median / worst")
    lines = [
        f"{len({fit['table'] for fit in fits})} tables, {len(fits)} fits",
        "",
        f"| {' | '.join(heads)} |",
        "|---" * len(heads) + "|",
    ]
    saved = sum(bool(fit.get("certified_by")) and not fit["certified"] for fit in fits)
    if saved:
        lines.insert(1, f"{saved} fits that were not certified by default were by another solver of ours")
    return "\n".join(
        [*lines, row("all", fits), *(row(kind, those) for kind, those in kinds.items()), *peers(fits)]
    )


def peers(fits: list[Fit]) -> list[str]:
    """A table of the problems that riskmin proves, and those that scikit-learn solves, at the defaults.

    Solved is a J within `WITHIN` of the best that is known, which need not be proved.
    """
    heads = ("scikit-learn", "problems", "riskmin: proved", "scikit-learn: solved", "its CPU time over ours")
    by_name = {
        name: [
            (fit["peers"][name].get("ours", fit), fit["peers"][name], fit["at_zero"])
            for fit in fits
            if name in fit.get("peers", {})
        ]
        for name in sorted({name for fit in fits for name in fit.get("peers", {})})
    }
    if not by_name:
        return []
    by_name["all"] = [one for those in by_name.values() for one in those]
    lines = ["", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, those in by_name.items():
        proved = sum(bool(ours.get("certified")) for ours, _, _ in those)
        shares = (share(part, len(those)) for part in (proved, sum(starmap(is_solved, those))))
        ratio = np.median([peer["cpu"] / ours["cpu"] for ours, peer, _ in those])
        lines.append(f"| {' | '.join([name, str(len(those)), *shares, f'{ratio:.2g}'])} |")
    return lines


def is_solved(ours: Fit, peer: Fit, at_zero: float) -> bool:
    """Whether a J of scikit-learn is within `WITHIN` of the best that is known."""
    best = min(ours.get("best_value", ours.get("value", np.inf)), peer.get("value", np.inf))
    return bool(peer.get("value", np.inf) - best <= max(WITHIN * best, SMALL_GAP * at_zero))

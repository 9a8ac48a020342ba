"""Paper E: Tables 1 and 2, and figures 1 to 7."""

from __future__ import annotations

from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import riskmin as rm
from benchmarks.papers.e_tables import (
    MARGIN,
    ONLINE,
    PAPER_1,
    PAPER_2,
    RATE,
    artificial,
    at_break_even,
    break_even,
    choose_lam,
    large_margin,
    reuters,
)
from benchmarks.papers.page import Lab, Panel, Part, table

DRAWS, PASSES = 5, 200
PERCEPTRONS = 50
"""Draws for the Perceptron at d = 5000, whose accuracy in the paper is higher than here."""
TEXT_LAM = 1e-3
"""The lam of the convergence curves on Reuters; the paper does not print its own."""
LAMS = 10.0 ** np.arange(-2, 1.1, 0.5)
WINNOW_LAMS = 10.0 ** np.arange(-3, -0.9, 0.5)


# ---------------------------------------------------------------- Table 1 and figure 1
def drawn(d: int, seed: int) -> Any:
    """Training, validation and test rows with their labels."""
    rng = np.random.default_rng([d, seed])
    return [artificial(d, rng) for _ in range(3)]


def percent(w: Any, rows: Any) -> float:
    """The accuracy in %."""
    A, b = rows
    return 100 * float(np.mean(np.where(A @ w > 0, 1, -1) == b))


def learned(train: Any, name: str, passes: int = PASSES) -> Any:
    """The weights of an online learner."""
    return rm.online(*train, ONLINE[name], rate=RATE, epochs=passes).w


def accuracies(
    d: int, seed: int, passes: int = PASSES, lams: Any = LAMS, winnow_lams: Any = WINNOW_LAMS
) -> dict[str, Any]:
    """Test accuracy of each method in %; for large margins, at the validated lam and for all lam."""
    train, held_out, test = drawn(d, seed)
    out: dict[str, Any] = {name: percent(learned(train, name, passes), test) for name in ONLINE}
    for name, grid in (("LM-Perc", lams), ("LM-UWin", winnow_lams), ("LM-NWin", winnow_lams)):
        fits = {lam: large_margin(*train, MARGIN[name], lam, passes) for lam in grid}
        best = max(fits, key=lambda lam: percent(fits[lam], held_out))
        out[name] = percent(fits[best], test)
        out[f"{name} curve"] = [(float(lam), percent(w, test)) for lam, w in fits.items()]
    return out


def perceptrons(d: int) -> list[float]:
    """Test accuracy of the Perceptron in %, on many draws."""
    out = []
    for seed in range(PERCEPTRONS):
        train, _, test = drawn(d, seed)
        out.append(percent(learned(train, "Perceptron"), test))
    return out


def draws_of(lab: Lab, d: int) -> list[dict[str, Any]]:
    return [lab.once(f"d={d} draw {k}", lambda k=k: accuracies(d, k)) for k in range(DRAWS)]


def table_1(lab: Lab) -> str:
    rows, panels = [], []
    for d, paper in PAPER_1.items():
        draws = draws_of(lab, d)
        for name, theirs in paper.items():
            ours = np.array([draw[name] for draw in draws])
            error = ours.std(ddof=1) / np.sqrt(len(ours))
            rows.append([d, name, f"{ours.mean():.1f} ± {error:.1f}", theirs])
        curves = {}
        for name in ("LM-Perc", "LM-UWin", "LM-NWin"):
            points = np.mean([draw[f"{name} curve"] for draw in draws], axis=0)
            curves[name] = [tuple(point) for point in points]
        panels.append(Panel(f"d = {d}: test accuracy, %", curves, "lam", log_y=False))
    many = np.array(lab.once("Perceptrons, d=5000", lambda: perceptrons(5000)))
    theirs, mean, spread = PAPER_1[5000]["Perceptron"], many.mean(), many.std(ddof=1)
    return (
        f"Test accuracy in %, mean and standard error of {DRAWS} draws. lam is chosen on a further "
        "thousand rows here, "
        "in the paper on the test set itself. Figure 1 is the accuracy against lam.\n\n"
        f"The paper's {theirs} for the Perceptron at d = 5000 is {(theirs - mean) / spread:.1f} standard "
        f"deviations above the mean of {len(many)} draws with the learning rate, the passes and the number "
        f"of rows that it states: their mean is {mean:.1f}, their standard deviation {spread:.1f}, and the "
        f"highest accuracy {many.max():.1f}.\n\n"
        + table(["d", "method", "ours", "paper"], rows) + "\n" + lab.figure("Accuracy against lam", panels)
    )  # fmt: skip


# ---------------------------------------------------------------- Reuters
@cache
def documents(folder: Path) -> Any:
    return reuters(folder)


def table_2(lab: Lab) -> str:
    def cell(name: str) -> Any:
        X, Y, n, _ = documents(lab.folder())
        X, Y, T, S = X[:n], Y[:n], X[n:], Y[n:]
        if name in ONLINE:
            bep, W, _ = break_even(
                lambda A, y: rm.online(A, y, ONLINE[name], rate=RATE, epochs=PASSES // 4).w, X, Y, T, S
            )
        else:
            lam = choose_lam(MARGIN[name], X, Y, 10.0 ** np.arange(-4.5, -1.9, 0.5), 20)
            bep, W, _ = break_even(
                lambda A, y: large_margin(A, y, MARGIN[name], lam, PASSES // 4), X, Y, T, S
            )
        return {"bep": bep, "nonzero": float(np.mean([np.count_nonzero(w) for w in W]))}

    done = {name: lab.once(name, lambda n=name: cell(n)) for name in PAPER_2}
    rows = [[name, f"{done[name]['bep']:.1f}", theirs] for name, theirs in PAPER_2.items()]
    return (
        f"Micro-averaged break-even point in %, {PASSES // 4} passes over the rows (the paper makes "
        f"{PASSES}); lam is "
        "chosen on a held-out third of the training documents. "
        f"Spars has {done['Spars']['nonzero']:.0f} nonzero weights on average, 400 in the paper.\n\n"
        + table(["method", "ours", "paper"], rows)
    )


def curve(lab: Lab, topic: str, reg: Any, solver: Any, n_steps: int = 60) -> dict[str, Any]:
    """The gap relative to J(0) and the break-even point on the test documents, after each pass."""
    X, Y, n, topics = documents(lab.folder())
    y, s = Y[:n, topics.index(topic)], Y[n:, topics.index(topic)]
    obj = rm.Objective(rm.linear_risk(X[:n], y, rm.Hinge()), reg, TEXT_LAM)
    start = reg.conjugate_grad(np.zeros(X.shape[1]))
    top, gaps, scores = obj.value(np.zeros(X.shape[1])), [], []
    for k, it in enumerate(islice(solver.iterates(obj, start), n_steps), 1):
        # the gap of this iterate itself, as in the paper; that of the best point would never increase
        gaps.append((k, (it.value - obj.lower(it.cut)) / top))
        scores.append((k, 100 * at_break_even(X[n:] @ it.w, s) / np.sum(s > 0)))
    return {"gap": gaps, "score": scores}


def two_panels(title: str, curves: dict[str, Any]) -> list[Panel]:
    gaps = {name: [tuple(p) for p in done["gap"]] for name, done in curves.items()}
    scores = {name: [tuple(p) for p in done["score"]] for name, done in curves.items()}
    return [
        Panel(f"{title}: duality gap", gaps, "pass", lowest=1e-5),
        Panel(f"{title}: break-even point, %", scores, "pass", log_y=False),
    ]


def figures_2_and_3(lab: Lab) -> str:
    methods = {
        "LM-Perc": (rm.L2(), rm.DualGaussSeidel(shuffle=False)),
        "LM-NWin": (MARGIN["LM-NWin"], rm.DualGaussSeidel(rate=RATE, shuffle=False)),
        "Spars": (MARGIN["Spars"], rm.DualGaussSeidel(rate=RATE, shuffle=False)),
    }
    panels = []
    for topic in ("acq", "trade"):
        curves = {
            name: lab.once(f"{topic} {name}", lambda t=topic, m=method: curve(lab, t, *m))
            for name, method in methods.items()
        }
        panels += two_panels(topic, curves)
    return (
        "The gap falls in the first few passes, and the score settles with it. In the paper the gap of "
        "LM-Perc, "
        f"with exact steps, rises at times; here, at lam = {TEXT_LAM:g}, it never does, that of Spars "
        "does.\n\n" + lab.figure("Convergence on acq and trade", panels)
    )


def figures_4_to_6(lab: Lab) -> str:
    cases = {
        "LM-Perc": (rm.L2(), "t", (0.01, 0.1, 1.0, 10.0), lambda t: {"damping": t}),
        "Spars": (MARGIN["Spars"], "rate", (1e-4, 1e-3, 1e-2, 1e-1), lambda r: {"rate": r}),
        "LM-UWin": (MARGIN["LM-UWin"], "rate", (1e-4, 1e-3, 1e-2, 1e-1), lambda r: {"rate": r}),
    }
    panels = []
    for name, (reg, what, values, settings) in cases.items():
        curves = {
            f"{what} {value:g}": lab.once(
                f"{name} {value:g}",
                lambda reg=reg, make=settings, v=value: curve(
                    lab, "trade", reg, rm.DualGaussSeidel(shuffle=False, **make(v)), 40
                ),
            )
            for value in values
        }
        panels += two_panels(f"{name} on trade", curves)
    return (
        "Steps of t times the exact one (figure 4) and learning rates (figures 5 and 6) on trade. Ten "
        "times the "
        "exact step, or a rate of 0.1 for Spars, oscillates, as in the paper. A tenth of the exact step was "
        "smoother there and about as fast; here the exact step is smooth as well, and faster.\n\n"
        + lab.figure("Learning rates", panels)
    )


def figure_7(lab: Lab) -> str:
    def cell(rate: float) -> Any:
        X, Y, n, topics = documents(lab.folder())
        y = Y[:n, topics.index("trade")]
        # without the constant column: the bias is not penalized
        risk = rm.linear_risk(X[:n, :-1].tocsr(), y, rm.Hinge(), fit_intercept=True)
        obj = rm.Objective(risk, rm.L2(), TEXT_LAM)
        solver = rm.AugmentedLagrangian(damping=0.1, mu=1.0, bias_rate=rate)
        best, out = np.inf, []
        for k, it in enumerate(islice(solver.iterates(obj, np.zeros(risk.dim)), 40), 1):
            best = min(best, it.value)
            out.append((k, max(best - obj.lower(it.cut), 1e-12)))
        return out

    curves = {f"rate {r:g}": lab.once(f"{r:g}", lambda r=r: cell(r)) for r in (0.01, 0.1, 1.0, 10.0)}
    panel = Panel("trade: duality gap, bias by multipliers", curves, "pass", lowest=1e-5)
    return (
        "The bias by an augmented Lagrangian with mu = 1 and steps of a tenth: rates of the multiplier up "
        "to 1 do "
        "equally well, 10 does not converge; the paper recommends 0.1. The gap here is proved: the cut has "
        "slope zero in the bias.\n\n" + lab.figure("Augmented Lagrangian", [panel])
    )


PARTS = (
    Part("e-table-1", "Table 1 and figure 1: artificial data", table_1),
    Part("e-table-2", "Table 2: Reuters", table_2),
    Part("e-figures-2-3", "Figures 2 and 3: convergence", figures_2_and_3),
    Part("e-figures-4-6", "Figures 4 to 6: learning rates", figures_4_to_6),
    Part("e-figure-7", "Figure 7: augmented Lagrangian", figure_7),
)

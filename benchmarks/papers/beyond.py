"""What the papers left open, each question with an experiment."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.metrics import f1_score, roc_auc_score

import riskmin as rm
from benchmarks.papers import lower_bounds
from benchmarks.papers.bundle_methods import classification
from benchmarks.papers.page import Lab, Panel, Part, seconds, table
from benchmarks.watch import Sms, paper_mu, run
from riskmin.metrics import prbep_score

LIMIT = 4.0


def objective_of(lab: Lab, name: str, loss: Any, lam: float) -> rm.Objective:
    data = classification(name, lab.folder())
    return rm.Objective(rm.linear_risk(data.X, data.y, loss), rm.L2(), lam)


def certified_smoothing(lab: Lab) -> str:
    rows = []
    for name in ("a9a", "w8a"):
        for loss in ("roc_area", "prbep"):

            def cell(name: str = name, loss: str = loss) -> Any:
                obj = objective_of(lab, name, loss, 1e-4)
                fixed = run(obj, lambda watch: Sms(paper_mu(loss), watch=watch), LIMIT, tol=1e-3)
                chosen = run(obj, lambda watch: rm.Smoothing(), LIMIT, tol=1e-3)
                best = min(fixed.result.value, chosen.result.value)
                arrived = fixed.reached(1.001 * best)
                proved = chosen.proved(1e-3)
                gap = fixed.result.gap / fixed.result.value
                return [arrived and arrived.seconds, gap, proved and proved.seconds, chosen.result.status]

            arrived, gap, proved, status = lab.once(f"{name} {loss}", cell)
            rows.append([name, loss, seconds(arrived), f"{gap:.1e}", seconds(proved), status])
    head = ["data", "loss", "fixed mu: to 1e-3", "gap it proves", "mu by the proof: proved 1e-3", "status"]
    return (
        "The paper fixes mu from a wished accuracy; the smoothed gradient, lowered by what smoothing "
        "adds, is a cut of "
        "the true risk, so that `Smoothing` can decrease mu only as far as the proof needs it. lam = "
        "1e-4.\n\n" + table(head, rows)
    )


def newton_beats_the_bound(lab: Lab) -> str:
    rows, curves = [], {}
    for name, loss in (("a9a", "hinge"), ("rcv1 CCAT", "hinge"), ("covtype", "hinge")):
        for solver in (rm.Bmrm(), rm.Bundle(), rm.Newton()):

            def cell(name: str = name, loss: str = loss, solver: Any = solver) -> Any:
                steps = run(objective_of(lab, name, loss, 1e-5), lambda watch: solver, LIMIT, tol=1e-6).rows
                return [(r.calls, r.seconds, (r.value - r.lower) / r.value) for r in steps]

            label = type(solver).__name__
            steps = lab.once(f"{name} {label}", cell)
            for tol in (1e-3, 1e-6):
                arrived = next(((c, t) for c, t, gap in steps if gap <= tol), None)
                entry = f"{arrived[0]} calls, {arrived[1]:.2g} s" if arrived else f"- ({steps[-1][2]:.0e})"
                rows.append([name, label, f"{tol:g}", entry])
            if name == "a9a":
                curves[label] = [(c, max(gap, 1e-7)) for c, _, gap in steps]
    return (
        "Paper C proves that bundle methods need on the order of 1 / eps steps on some problems. Newton's "
        "method on a "
        "smoothed hinge, with multipliers that stay feasible, gives cuts of the same kind and the same "
        "certificate. "
        f"Oracle calls and CPU seconds until the gap is proved, hinge at lam = 1e-5, {LIMIT:g} s at most.\n\n"
        + table(["data", "solver", "proved gap", "effort"], rows) + "\n"
        + lab.figure("Gap against calls", [Panel("a9a: proved gap", curves, "oracle calls", lowest=1e-7)])
    )  # fmt: skip


def shared_certificates(lab: Lab) -> str:
    lams = np.geomspace(1e-1, 1e-5, 9)

    def cell() -> Any:
        data = classification("a9a", lab.folder())
        risk = rm.linear_risk(data.X, data.y, "hinge")
        few = rm.path(risk, rm.L2(), lams[::4])
        own = rm.path(risk, rm.L2(), lams)
        out = []
        for lam, exact in zip(lams, own, strict=True):
            obj = rm.Objective(risk, rm.L2(), float(lam))
            upper = min(obj.value(s * result.w) for result in few for s in (0.5, 1.0, 2.0))
            lower = max(obj.lower(result.cut) for result in few)
            out.append([float(lam), exact.value, lower, upper])
        return out

    rows = [
        [f"{lam:.1e}", f"{value:.5f}", f"{lower:.5f}", f"{upper:.5f}", f"{(upper - lower) / upper:.1e}"]
        for lam, value, lower, upper in lab.once("a9a", cell)
    ]
    return (
        "A cut bounds the risk, not J, so that the certificate of one lam is one for all others. Three "
        "fits of the hinge "
        "on a9a, at the first, fifth and ninth lam, bound J at all nine:\n\n"
        + table(["lam", "J of its own fit", "lower bound", "upper bound", "relative gap"], rows)
    )


def bundle_on_the_constructions(lab: Lab) -> str:
    cases = {
        "four points": lambda eps: lower_bounds.four_points(rm.Bundle(), eps),
        "hinge construction": lambda eps: lower_bounds.hinge_construction(rm.Bundle(), eps),
        "hinge, a subgradient of the library": lambda eps: lower_bounds.hinge_construction(
            rm.Bundle(), eps, chosen=False
        ),
        "F1 construction": lambda eps: lower_bounds.f1_construction(rm.Bundle(), eps),
    }
    rows = []
    for name, steps in cases.items():
        points = [
            (1 / eps, lab.once(f"{name} {eps:g}", lambda eps=eps, steps=steps: steps(eps)))
            for eps in (0.1, 0.05, 0.02, 0.01)
        ]
        reached = [(x, max(k, 1)) for x, k in points if k is not None]
        exponent = f"{lower_bounds.slope(reached):.2f}" if len(reached) > 2 else "-"
        rows.append([name, *("-" if k is None else k for _, k in points), exponent])
    head = ["construction", "eps 0.1", "0.05", "0.02", "0.01", "fitted exponent"]
    return (
        "Does the line search of `Bundle` escape the constructions of paper C, on which `Bmrm` needs 1 / eps "
        "steps? On the first three it does, in a step or two; on that of F1 it needs as many as `Bmrm`. "
        "Steps "
        "until J is within eps of the minimum, and the exponent fitted to them:\n\n" + table(head, rows)
    )


def metrics_and_bounds(lab: Lab) -> str:
    scores = {
        "roc_area": lambda y, z: roc_auc_score(y > 0, z),
        "prbep": prbep_score,
        "f1": lambda y, z: f1_score(y > 0, z > 0),
    }
    rows = []
    for name in ("a9a", "w8a", "moneyfx", "hiva"):

        def cell(name: str = name) -> Any:
            data = classification(name, lab.folder())
            out = {}
            for loss in ("hinge", *scores):
                model = rm.LinearClassifierCV(loss, alphas=np.geomspace(1e-5, 1e-1, 5), cv=3, max_seconds=10)
                model.fit(data.X, data.y)
                z = model.decision_function(data.T)
                out[loss] = {metric: float(score(data.t, z)) for metric, score in scores.items()}
            return out

        done = lab.once(name, cell)
        for metric in scores:
            rows.append(
                [name, metric, f"{100 * done['hinge'][metric]:.1f}", f"{100 * done[metric][metric]:.1f}"]
            )
    return (
        "Does training for a metric's own convex bound pay on real sets? Test scores in %, alpha chosen "
        "by three folds "
        "and the metric of the loss:\n\n"
        + table(["data", "metric", "trained by hinge", "trained by its own bound"], rows)
    )


PARTS = (
    Part("beyond-smoothing", "Certified smoothing: mu chosen by the proof", certified_smoothing),
    Part(
        "beyond-newton",
        "The bundle method's bound, and Newton with the same certificate",
        newton_beats_the_bound,
    ),
    Part("beyond-path", "One certificate for every lam", shared_certificates),
    Part("beyond-bundle", "Bundle on the adversarial constructions", bundle_on_the_constructions),
    Part("beyond-metrics", "Metrics and their convex bounds", metrics_and_bounds),
)

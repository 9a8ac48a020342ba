"""The qualitative claims of the papers' experiments, on small data, and `make papers` itself."""

from itertools import islice

import numpy as np
import pytest
from benchmarks.papers import dual, lower_bounds, multivariate
from benchmarks.papers.__main__ import PAGES, main
from benchmarks.papers.line_search import gaps
from benchmarks.papers.page import Lab, Panel
from benchmarks.watch import Sms, paper_mu, run

import riskmin as rm
from helpers import problem


def objective(loss, lam):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((160, 8))
    y = np.where(X @ rng.standard_normal(8) + 2 * rng.standard_normal(160) > 0, 1.0, -1.0)
    return rm.Objective(rm.linear_risk(X, y, loss), rm.L2(), lam)


# ---------------------------------------------------------------- C, Table 1
@pytest.mark.parametrize(
    ("steps", "accuracies", "exponent", "error"),
    [
        (lambda eps: lower_bounds.four_points(rm.LineSearchBmrm(), eps), [1e-2, 1e-3, 1e-4], 1.0, 0.1),
        (lambda eps: lower_bounds.hinge_construction(rm.Bmrm(), eps), [0.1, 0.05, 0.02], 1.0, 0.1),
        # all n steps only for small eps
        (lambda eps: lower_bounds.f1_construction(rm.Bmrm(), eps), [0.1, 0.05, 0.025], 1.0, 0.15),
        (lambda eps: lower_bounds.chain(eps, n=300), [0.3, 0.1, 0.03], 0.5, 0.1),
    ],
    ids=["line search", "hinge", "f1", "accelerated dual"],
)
def test_steps_grow_by_the_exponents_of_paper_c(steps, accuracies, exponent, error):
    points = [(1 / eps, steps(eps)) for eps in accuracies]
    assert lower_bounds.slope(points) == pytest.approx(exponent, abs=error)


# ---------------------------------------------------------------- A, figure 7, and B, figure 2
@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_a_smaller_lam_takes_more_iterations(loss):
    counts = []
    for lam in (1e-1, 1e-2, 1e-3):
        curve = gaps(objective(loss, lam), rm.Bmrm(), 300)
        counts.append(next(k for k, gap in curve if gap <= 1e-2))
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


# ---------------------------------------------------------------- D, figures 27 to 32
@pytest.mark.parametrize("loss", ["roc_area", "prbep"])
def test_a_large_mu_ends_above_the_minimum(loss):
    obj = objective(loss, 1e-3)
    best = rm.minimize(obj, rm.Bundle(), tol=1e-6).value
    mu = paper_mu(loss)
    above = [
        run(obj, lambda watch, c=c: Sms(c * mu, watch=watch), 5.0).result.value - best for c in (1, 10, 100)
    ]
    assert -1e-9 <= above[0] <= 1e-3  # the accuracy for which the paper chooses mu
    assert above[0] < above[2]


def test_accelerated_gradients_take_more_calls_than_lbfgs():
    obj, calls = objective("roc_area", 1e-4), []
    goal = 1.01 * rm.minimize(obj, rm.Bundle(), tol=1e-5).value
    for inner in (rm.Lbfgs(), rm.AcceleratedGradient()):
        timed = run(obj, lambda watch, i=inner: Sms(paper_mu("roc_area"), i, watch), 20.0, goal)
        calls.append(timed.reached(goal).calls)
    assert 2 * calls[0] < calls[1]


# ---------------------------------------------------------------- D, figures 2 to 26
def test_every_iterate_has_a_test_score_beside_its_objective():
    X, y, _ = problem(rm.Hinge(), n=160, p=8)

    def accuracy(w):
        return 100 * float(np.mean(np.sign(X @ w) == y))

    solvers = {"ours": lambda watch: None, "BMRM": lambda watch: rm.Bmrm()}
    done = multivariate.curves_of(objective("roc_area", 1e-2), solvers, accuracy)
    left, right = multivariate.panel("roc", done), multivariate.score_panel("roc", done, "")
    assert left.curves.keys() == right.curves.keys() == solvers.keys()
    for name in solvers:
        assert [t for t, _ in left.curves[name]] == [t for t, _ in right.curves[name]]
        assert all(0 <= score <= 100 for _, score in right.curves[name])
    lowest = min(done["runs"]["ours"], key=lambda step: step[1])
    assert right.title.endswith(f"test score {lowest[2]:.1f}")


# ---------------------------------------------------------------- E, Table 1 and figure 4
def test_winnow_is_ahead_for_sparse_targets():
    accuracy = dual.accuracies(500, 0, passes=15, lams=[0.1, 1.0], winnow_lams=[1e-2])
    assert accuracy["LM-UWin"] > accuracy["LM-Perc"] + 3
    assert accuracy["LM-NWin"] > accuracy["LM-Perc"] + 3
    assert accuracy["LM-Perc"] > accuracy["Perceptron"]


def test_steps_of_ten_times_the_exact_length_do_not_converge():
    obj, gap = objective("hinge", 1e-2), {}
    for t in (0.1, 1.0, 10.0):
        last = list(islice(rm.DualGaussSeidel(damping=t, shuffle=False).iterates(obj, np.zeros(8)), 60))[-1]
        gap[t] = last.value - obj.lower(last.cut)
    assert max(gap[0.1], gap[1.0]) < 0.05 < gap[10.0]


# ---------------------------------------------------------------- the pages
def test_finished_cells_are_not_computed_again(tmp_path):
    lab, calls = Lab("part", None, tmp_path, tmp_path), []
    for _ in range(2):
        assert lab.once("cell", lambda: calls.append(0) or [1.0, None]) == [1.0, None]
    assert len(calls) == 1


def test_figures_show_every_curve(tmp_path):
    lab = Lab("part", None, tmp_path, tmp_path)
    panels = [Panel("one", {"a": [(1, 0.5), (2, 0.1)], "b": [(1, 0.4), (2, 0.0)]}, "step", lowest=1e-6)] * 3
    text = lab.figure("A figure", panels)
    assert text == "![A figure](part.svg)\n"
    svg = (tmp_path / "part.svg").read_text()
    assert svg.count('class="c0"') == svg.count('class="c1"') == 6  # a curve and a mark of the legend
    assert "nan" not in svg


def test_an_unknown_part_is_refused_with_the_names_of_the_parts(capsys):
    with pytest.raises(SystemExit):
        main(["--only", "d-table-2", "nosuch"])
    message = capsys.readouterr().err.splitlines()[-1]
    assert "'nosuch'" in message
    assert all(part.name in message for _, parts in PAGES.values() for part in parts)


def test_parts_without_data_are_skipped(tmp_path, capsys):
    main(["--only", "a-figure-7", "--out", str(tmp_path / "out"), "--cells", str(tmp_path / "cells")])
    assert capsys.readouterr().out == "a-figure-7: skipped, no --data folder was given\n"

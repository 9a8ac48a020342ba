"""First fits with default settings on raw tables of other packages, and the readers of the tables."""

import json

import numpy as np
import pytest

pd = pytest.importorskip("pandas")

from benchmarks.tables import __main__ as command  # noqa: E402
from benchmarks.tables import compare, fits, report, sources  # noqa: E402
from benchmarks.tables.table import Table, all_of, cleaned, table  # noqa: E402

SAMPLE = 6
SMALL = ("sklearn", "statsmodels", "vega", "penguins")
"""Packages whose tables are read within a second."""


def synthetic(task="classes", k=2, n=80, name="made"):
    rng = np.random.default_rng(k)
    X = rng.normal(size=(n, 3)) * [1.0, 100.0, 0.01]
    z = X[:, 0] + 0.5 * rng.normal(size=n)
    y = np.digitize(z, np.linspace(-1, 1, k + 1)[1:-1]) if task == "classes" else np.round(np.exp(z) * 3)
    return Table(name, X, y, task)


# ---------------------------------------------------------------- the fits
def test_first_fits_of_raw_tables_are_certified():
    packages = {name: sources.PACKAGES[name] for name in SMALL}
    tables = sources.sample(sources.tables(packages=packages), SAMPLE, seed=0)
    if len(tables) < SAMPLE:
        pytest.skip("there are too few tables here: pip install riskmin[tables]")
    finished = []
    for one in tables:
        for loss in {"hinge", "logistic", "huber"}.intersection(fits.losses(one)):
            fit = fits.fit(one, loss, max_seconds=5.0) | {"table": one.name, "loss": loss}
            fit |= {"shape": one.X.shape, "at_zero": fits.at_zero(one, loss)}
            finished.append(report.finish(fit))
    assert len(finished) >= SAMPLE
    failed = [report.line(fit) for fit in finished if report.troubles(fit)]
    assert not failed, f"{len(failed)} of {len(finished)} fits:\n" + "\n".join(failed)


def test_objective_at_zero_has_the_best_intercept():
    two, many, numbers = synthetic(), synthetic(k=4), synthetic("numbers")
    p, y = two.y.mean(), numbers.y
    for table_, loss, value in (
        (two, "hinge", 2 * min(p, 1 - p)),
        (two, "logistic", -p * np.log(p) - (1 - p) * np.log(1 - p)),
        (two, "squared_hinge", 2 * p * (1 - p)),
        (two, "roc_area", 1),
        (numbers, "squared", np.var(y) / 2),
        (numbers, "absolute", np.abs(y - np.median(y)).mean()),
    ):
        assert fits.at_zero(table_, loss) == pytest.approx(value)
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


def test_duplicate_tables_are_skipped():
    one, other = synthetic(), synthetic(k=3)
    order = np.random.default_rng(0).permutation(len(one.y))
    shuffled = Table("again", one.X[order][:, ::-1], np.array(["b", "a"])[one.y[order]], "classes")
    packages = {"a": lambda: iter([one, None]), "b": lambda: iter([shuffled, other])}
    assert [one.name for one in sources.tables(packages=packages)] == ["made", "made"]


def test_samples_depend_on_names_and_seed_only():
    made = [synthetic(name=f"t{i}") for i in range(20)]
    names = {one.name for one in sources.sample(iter(made), 5, 0)}
    assert len(names) == 5
    assert names == {one.name for one in sources.sample(iter(made[::-1]), 5, 0)}
    assert names != {one.name for one in sources.sample(iter(made), 5, 1)}


@pytest.mark.parametrize("y", [[0.0, 1.0, 1.0], [0.5, 3.0, 1.0], [-1.0, 3.0, 1.0]])
def test_counts_are_integers_above_one(y):
    assert synthetic("numbers").counts
    assert not Table("t", np.ones((3, 1)), np.array(y), "numbers").counts


# ---------------------------------------------------------------- the report
def fake(**changes):
    problem = {"table": "t", "shape": [9, 2], "loss": "hinge", "kind": "hinge", "at_zero": 1.0, "cpu": 0.5}
    result = {"status": "converged", "certified": True, "n_iter": 3, "solver": "Newton(): why"}
    values = {"value": 0.5, "recomputed": 0.5, "lower": 0.4999, "gap": 1e-4}
    return report.finish(problem | result | values | changes)


BETTER = {"lbfgs": {"value": 0.49, "lower": 0.1, "certified": False, "cpu": 0.1}}
PROOF = {"bundle": {"value": 0.5, "lower": 0.4999, "certified": True, "cpu": 0.1}}
BROKEN = {"status": "error", "error": "ValueError: no", "certified": False}


@pytest.mark.parametrize(
    ("changes", "troubles"),
    [
        ({}, []),
        (
            {"status": "stalled", "certified": False, "value": 1.5, "recomputed": 1.5, "gap": 1.0},
            ["stalled, gap 6.7e-01", "worse than w = 0 by 5.0e-01"],
        ),
        ({"solvers": BETTER}, ["behind another solver", "FALSE BOUND"]),
        ({"recomputed": 0.6}, ["value is not J"]),
        (BROKEN, ["ValueError: no"]),
    ],
)
def test_failures_are_described(changes, troubles):
    assert report.troubles(fake(**changes)) == troubles


def test_failures_are_counted():
    broken = fake(**BROKEN)
    assert "ValueError" in report.line(broken)
    text = report.summary([fake(solvers=BETTER), broken])
    assert text.startswith("1 tables, 2 fits")
    assert "| all | 2 | 1 (50.0%) | 1 (50.0%) | 0 | 1 | 1 | 1 |" in text
    fit = fake(status="stalled", certified=False, gap=0.1, lower=0.4, solvers=PROOF)
    assert fit["certified_by"] == ["bundle"]
    assert fit["regret"] is None
    assert "1 fits that were not certified by default were by another" in report.summary([fit])
    assert fake(solvers=PROOF)["regret"] == pytest.approx(5)


def test_peers_minimize_the_same_objective():
    classes, numbers = synthetic(), synthetic("numbers")
    cases = [(synthetic(k=3), "logistic")]
    cases += [(classes, loss) for loss in ("logistic", "hinge", "squared_hinge")]
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


def test_command_writes_results_and_reruns_failures(tmp_path, capsys):
    out, again = tmp_path / "all.json", tmp_path / "again.json"
    chosen = ["--package", "sklearn", "--table", "sklearn/breast_cancer", "sklearn/linnerud:0"]
    chosen += ["--max-seconds", "1"]
    command.main([*chosen, "--solvers", "--peers", "--loss", "hinge", "huber", "--json", str(out)])
    assert "2 tables, 2 fits" in capsys.readouterr().out
    saved = json.loads(out.read_text())["fits"]
    expected = [("sklearn/breast_cancer", "hinge"), ("sklearn/linnerud:0", "huber")]
    assert [(fit["table"], fit["loss"]) for fit in saved] == expected
    assert {"bundle", "newton"} <= set(saved[1]["solvers"])
    assert saved[0]["regret"] > 0
    assert "SVC" in saved[0]["peers"]
    saved[1]["certified"] = False
    out.write_text(json.dumps({"fits": saved}))
    command.main([*chosen, "--failed", str(out), "--json", str(again), "--regularizer", "l1"])
    (fit,) = json.loads(again.read_text())["fits"]
    assert (fit["table"], fit["loss"]) == ("sklearn/linnerud:0", "huber")
    assert fit["certified"]
    assert fit["recomputed"] == pytest.approx(fit["value"], rel=1e-9)
    assert fit["value"] != saved[1]["value"]

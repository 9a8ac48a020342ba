"""The command with all regularizers and values of lam: fit, certify, path, cv."""

import json

import numpy as np
import pytest

from helpers import ClosedElements, check_sentence
from riskmin import L2, Entropy, Hinge, Objective, linear_risk, load_model, minimize, save_model
from riskmin.data import load, save_svmlight
from riskmin.estimators import LinearClassifier, LinearRegressor
from riskmin.estimators.certification import certify, cut_lower_bound
from riskmin.regularizers import REGULARIZERS
from riskmin.solvers import SOLVERS


def rows(n=120, p=5, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p)).round(3)
    return X, np.where(X[:, 0] - X[:, 1] + 0.8 * rng.normal(size=n) > 0.3, 1.0, -1.0)


@pytest.fixture
def svm(tmp_path):
    save_svmlight(tmp_path / "train.svm", *rows())
    return tmp_path / "train.svm"


@pytest.fixture
def csv(tmp_path):
    X, _ = rows()
    y = 2 * X[:, 0] + np.sin(X[:, 1])
    names = [*(f"x{j}" for j in range(5)), "price"]
    np.savetxt(
        tmp_path / "houses.csv", np.column_stack([X, y]), delimiter=",", header=",".join(names), comments=""
    )
    return tmp_path / "houses.csv"


def read_page(path):
    """The text of a page whose elements are closed, and in which no number is NaN."""
    page = path.read_text(encoding="utf-8")
    ClosedElements().check(page)
    assert "nan" not in page
    return page


# ---------------------------------------------------------------- every regularizer
NAMES = ["l2", "l1", "elastic:eps=2", "entropy:prior=0.3", "unnormalized_entropy", "qnorm:q=1.2"]


@pytest.mark.parametrize("reg", [*NAMES, "l1 --positive", "elastic --positive", "l2 --positive"])
@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_models_are_certified_with_their_regularizer(svm, tmp_path, run, reg, loss):
    model = tmp_path / "model"
    code, out, _ = run(
        "fit", svm, "--loss", loss, "--lam", 1e-2, "--json", "--quiet", "-o", model, "--reg", *reg.split()
    )
    facts = json.loads(out)
    assert code == 0
    assert facts["reg"] == reg.replace(" --", ", ")
    assert (facts["nonzeros"] is not None) == ("l1" in reg or "elastic" in reg or "positive" in reg)
    code, out, _ = run("certify", model, svm, "--json", "--quiet")
    assert (code, json.loads(out)["verdict"]) == (0, "certified")
    assert run("evaluate", model, svm)[0] == 0
    if "positive" in reg:
        assert (load_model(model).coef_ >= 0).all()


def test_summary_prints_the_number_of_nonzero_weights(svm, tmp_path, run):
    code, out, _ = run(
        "fit", svm, "--reg", "l1", "--lam", 0.1, "-o", tmp_path / "m", "--report", tmp_path / "r"
    )
    assert code == 0
    few = np.count_nonzero(load_model(tmp_path / "m").coef_)
    assert few < 5
    assert f"nonzero weights  {few} of 5\n" in out
    assert "lam 0.1 l1\n" in out
    page = read_page(tmp_path / "r")
    assert f"<dt>nonzero weights</dt><dd>{few} of 5</dd>" in page
    assert "<dd>l1: |w|_1</dd>" in page
    _, out, _ = run("fit", svm, "--lam", 0.1, "-o", tmp_path / "m")
    assert "nonzero" not in out


@pytest.mark.parametrize("reg", ["l1", "elastic", "entropy", "qnorm"])
def test_two_computations_of_the_bound_agree(reg):
    X, y = rows()
    model = LinearClassifier(regularizer=reg, alpha=1e-2).fit(X, y)
    assert cut_lower_bound(model) == pytest.approx(model.lower_bound_, rel=1e-10)


def test_claim_with_another_regularizer_is_refuted():
    """The claim for one regularizer is false for another one, and for another lam."""
    X, y = rows()
    model = LinearClassifier(regularizer="l1", alpha=1e-2).fit(X, y)
    assert certify(model, X, y).status == "certified"
    for change in ({"regularizer": "elastic"}, {"alpha": 2e-2}):
        other = LinearClassifier(regularizer="l1", alpha=1e-2).fit(X, y).set_params(**change)
        assert certify(other, X, y).status == "refuted"


def test_lists(run):
    code, out, _ = run("regularizers")
    assert code == 0
    assert all(name in out for name in REGULARIZERS)
    _, out, _ = run("regularizers", "--json")
    assert {row["name"]: row["zeros"] for row in json.loads(out)} == {
        name: name in ("l1", "elastic") for name in REGULARIZERS
    }
    code, out, _ = run("solvers")
    assert ":math:" not in out
    assert code == 0
    assert all(name in out for name in SOLVERS)
    assert [row["name"] for row in json.loads(run("solvers", "--json")[1])] == list(SOLVERS)


# ---------------------------------------------------------------- path
def test_path_prints_one_line_per_lam(svm, tmp_path, run):
    page = tmp_path / "path.html"
    code, out, err = run("path", svm, "--lams", "0.01,1,0.1", "-o", page)
    assert (code, err) == (0, "")
    head, titles, *lines, total, last = out.splitlines()
    assert head == "hinge on train.svm, 120 rows x 5 columns, l2"
    assert titles.split() == ["lam", "objective", "certified", "gap", "nonzeros", "calls", "time", "status"]
    assert [line.split()[0] for line in lines] == ["0.01", "1", "0.1"]
    assert all(line.endswith("converged") for line in lines)
    assert total.split()[0] == "all"
    assert last == f"  page  {page}"
    text = read_page(page)
    assert text.count("<svg class") == 3
    assert ">column 0</text>" in text


def test_path_as_json_agrees_with_minimize(svm, tmp_path, run):
    code, out, _ = run("path", svm, "--lams", "1,0.01", "--no-intercept", "--json", "--quiet")
    output = json.loads(out)
    assert code == 0
    data = load(svm)
    risk = linear_risk(data.X, data.y, Hinge())
    for row in output["path"]:
        best = minimize(Objective(risk, L2(), row["lam"]), tol=1e-6)
        assert row["lower_bound"] <= best.value * (1 + 1e-9)
        assert best.lower <= row["objective"] <= best.value * (1 + 2e-3)
        assert row["status"] == "converged"


def test_path_starts_where_all_weights_are_zero(csv, tmp_path, run):
    code, out, err = run(
        "path", csv, "--loss", "squared", "--reg", "l1", "--n-lams", 4, "--json", "-o", tmp_path / "p.html"
    )
    output = json.loads(out)
    assert code == 0
    assert output["path"][0]["nonzeros"] == 0
    assert output["path"][-1]["lam"] == pytest.approx(output["path"][0]["lam"] / 1000)
    assert {"lam", "gap_rel"} <= json.loads(err.splitlines()[0]).keys()
    text = read_page(tmp_path / "p.html")
    assert text.count("<svg class") == 4
    assert ">x0</text>" in text


def test_path_of_other_tasks_and_threads(csv, svm, run):
    for args in (["--loss", "novelty"], ["--class-weight", "balanced"], ["--jobs", "2"], ["--jobs", "-1"]):
        assert run("path", svm, "--lams", "1,0.1", "--quiet", *args)[0] == 0
    assert run("path", csv, "--loss", "quantile:level=0.9", "--lams", "1,0.1", "--quiet")[0] == 0


def test_path_reports_fits_that_did_not_converge(svm, run):
    code, _, err = run("path", svm, "--lams", "1,0.0001", "--max-iter", 3, "--tol", 1e-9)
    assert code == 3
    assert "did not reach the certified gap of 1e-09: raise --max-iter" in err


def test_interrupted_path_is_printed(svm, run, monkeypatch):
    def interrupt(self, iterate, row):
        if row["lam"] < 0.1:
            raise KeyboardInterrupt

    monkeypatch.setattr("riskmin.report.progress.Progress.__call__", interrupt)
    code, out, err = run("path", svm, "--lams", "1,0.01,0.001")
    assert code == 3
    assert out.count("interrupted") == 2
    assert err == "riskmin: interrupted, with 2 of 3 fits not done\n"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--lams", "1,x"], ["'1,x' is no list of numbers: write 1,0.1,0.01"]),
        (["--lams", "1,-1"], ["must hold finite numbers > 0"]),
        (["--lams", "nan"], ["must hold finite numbers > 0"]),
        (["--lams", "1", "--n-lams", "3"], ["--lams and --n-lams exclude each other"]),
        (["--reg", "lasso"], ["there is no regularizer named 'lasso'", "elastic"]),
        (["--reg", "entropy", "--positive"], ["positive=True bounds L1, L2 and Elastic"]),
        (["--solver", "nope"], ["there is no solver named 'nope'"]),
        (["-o", "no/such/page.html"], ["cannot be written"]),
        (["--solver", "owlqn"], ["OwlQn needs a smooth loss", "use Bundle"]),
        (["--solver", "owlqn", "--loss", "logistic"], ["OwlQn is for L1() and Elastic()"]),
        (["--solver", "lbfgs", "--loss", "logistic", "--reg", "l1"], ["Lbfgs needs a smooth regularizer"]),
        (["--solver", "dual", "--reg", "l1"], ["DualCoordinateAscent takes exact steps, which need L2()"]),
        (["--solver", "coordinate_descent", "--reg", "l1"], ["second derivative"]),
        (
            ["--solver", "line_search_bmrm", "--reg", "l1"],
            ["LineSearchBmrm needs a differentiable conjugate"],
        ),
    ],
)
def test_errors_of_path(svm, run, args, words):
    check_sentence(run("path", svm, *args), *words)


# ---------------------------------------------------------------- cv
def test_cv_chooses_lam_saves_the_model_and_writes_a_report(svm, tmp_path, run):
    model, page = tmp_path / "best", tmp_path / "cv.html"
    code, out, err = run(
        "cv", svm, "--lams", "100,0.1,0.01", "--folds", 3, "-o", model, "--report", page, "--loss", "logistic"
    )
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "logistic on train.svm, 120 rows x 5 columns, l2, 3 folds"
    assert [line.split()[0] for line in lines[2:5]] == ["100", "0.1", "0.01"]
    (best,) = [line for line in lines[2:5] if line.endswith("best")]
    saved = load_model(model)
    assert f"{saved.alpha:g}" == best.split()[0]
    assert saved.alpha < 100
    assert run("certify", model, svm, "--quiet")[0] == 0
    assert read_page(page).count("<svg class") == 1


def test_cv_as_json(csv, tmp_path, run):
    code, out, _ = run(
        *("cv", csv, "--loss", "huber", "--reg", "l1", "--n-lams", 3, "--folds", 2, "--jobs", 2),
        *("--scoring", "neg_mean_absolute_error", "--json", "-o", tmp_path / "best"),
    )
    output = json.loads(out)
    assert code == 0
    assert len(output["cv"]) == 3
    assert all(len(row["scores"]) == 2 for row in output["cv"])
    best = max(output["cv"], key=lambda row: row["mean"])
    assert output["best_lam"] == best["lam"] == output["lam"]
    assert output["best_score"] == pytest.approx(best["mean"])
    assert load_model(tmp_path / "best").feature_names_in_.tolist() == [f"x{j}" for j in range(5)]


def test_cv_reports_fits_that_did_not_converge(svm, tmp_path, run):
    code, _, err = run(
        "cv", svm, "--lams", "0.0001", "--folds", 2, "--max-iter", 2, "--tol", 1e-9, "-o", tmp_path / "m"
    )
    assert code == 3
    assert "2 of 2 fits of the folds did not reach the certified gap of 1e-09" in err
    assert "the last fit is not converged (max_iter): the certified gap is" in err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--loss", "novelty"], ["novelty has no labels to score by"]),
        (["--scoring", "nope"], ["nope"]),
        (["--scoring", "neg_log_loss"], ["needs probabilities, which hinge does not give"]),
        (["--solver", "coordinate_descent"], ["CoordinateDescent needs a loss"]),
        (["--folds", "1"], ["--folds"]),
        (["--loss", "squared", "--class-weight", "balanced"], ["--class-weight is for classification"]),
    ],
)
def test_errors_of_cv(svm, tmp_path, run, args, words):
    check_sentence(run("cv", svm, "-o", tmp_path / "m", *args), *words)
    assert not (tmp_path / "m").exists()


def test_outputs_do_not_overwrite_data(svm, run):
    check_sentence(run("path", svm, "-o", svm), "--output and DATA are the same file")
    check_sentence(run("cv", svm, "-o", svm), "--output and DATA are the same file")


# ---------------------------------------------------------------- files
def test_model_files_keep_the_regularizer(tmp_path):
    X, y = rows()
    regularizers = [
        "l1",
        "elastic:eps=2",
        Entropy(prior=[0.1, 0.2, 0.3, 0.4, 0.5], balanced=True),
        L2(weights=2.0),
    ]
    for reg in regularizers:
        model = LinearRegressor("absolute", regularizer=reg, alpha=0.1).fit(X, y)
        save_model(model, tmp_path / "model")
        back = load_model(tmp_path / "model")
        assert back.regularizer == reg
        assert certify(back, X, y).status == "certified"
    model = LinearRegressor(regularizer="l1", positive=True).fit(X, y)
    save_model(model, tmp_path / "model")
    assert load_model(tmp_path / "model").positive

"""`riskmin certify`: honest models of every kind are certified, and every false claim is refuted."""

import dataclasses
import shutil

import numpy as np
import pytest
from command_files import altered, refuted, rows, run_json

import riskmin as rm
from helpers import check_sentence, edit
from riskmin.core.persist import load_arrays, save_arrays
from riskmin.data import save_svmlight

X, Y, GRADE, QID = rows()
LAM = 1e-2
TABLES = ["roc_area", "prbep", "f1", "precision_at_k:k=15"]
MODELS = {
    "hinge": rm.LinearClassifier(alpha=LAM),
    "loose": rm.LinearClassifier(alpha=LAM, tol=0.2),
    "standardized": rm.LinearClassifier(alpha=LAM, standardize=True, tol=1e-6),
    "l1": rm.LinearClassifier(regularizer="l1", alpha=LAM),
    "classes": rm.LinearClassifier("softmax", alpha=LAM),
    "kernel": rm.KernelClassifier(alpha=LAM, tol=0.05),
    "kernel of counts": rm.KernelRegressor("poisson", alpha=LAM),
    **{loss: rm.LinearClassifier(loss, alpha=0.1) for loss in TABLES},
    "no intercept": rm.LinearClassifier("prbep", alpha=LAM, fit_intercept=False),
    "ordinal": rm.OrdinalClassifier(alpha=LAM),
    "grades as numbers": rm.OrdinalClassifier("absolute", alpha=LAM),
    "ranker": rm.LinearRanker("ndcg", alpha=LAM),
}
GRADED = ("classes", "kernel of counts", "ordinal", "grades as numbers", "ranker")


@pytest.fixture(scope="module")
def saved(files):
    """Saves a model of the table, which is fitted once."""

    def save(name):
        path = files / f"{name.replace(':', '-')}.saved"
        if not path.exists():
            extra = {"qid": QID} if name == "ranker" else {}
            rm.save_model(MODELS[name].fit(X, GRADE if name in GRADED else Y, **extra), path)
        data = "ranked.svm" if name == "ranker" else "graded.svm" if name in GRADED else "two.svm"
        return path, files / data

    return save


# ---------------------------------------------------------------- honest models
# those of every kind are certified in tests/estimators, and those that the command fits with its other tests
@pytest.mark.parametrize("name", ["kernel", "kernel of counts"])
def test_files_are_certified_and_predict_as_the_models(name, saved, run):
    path, data = saved(name)
    model = rm.load_model(path)
    code, facts = run_json(run, "certify", path, data, "--quiet")
    assert (code, facts["verdict"]) == (0, "certified")
    assert facts["objective"] == pytest.approx(model.objective_, rel=1e-9)
    assert facts["cut_lower_bound"] == pytest.approx(model.lower_bound_, rel=1e-9)
    assert facts["gap_rel"] <= model.gap_ / model.objective_ + 1e-6
    scores = model.decision_function(X) if name == "kernel" else np.log(model.predict(X))
    for option, expected in (((), model.predict(X)), (("--scores",), scores)):
        code, out, err = run("predict", path, data, *option)
        assert (code, err) == (0, "")
        np.testing.assert_allclose([float(line) for line in out.split()], expected, atol=1e-9)
    metric, y = ("accuracy", Y) if name == "kernel" else ("R^2", GRADE)
    assert run_json(run, "evaluate", path, data)[1][metric] == pytest.approx(model.score(X, y))


def test_all_four_numbers_are_printed(saved, run):
    path, data = saved("hinge")
    code, out, err = run("certify", path, data)
    fitted = rm.load_model(path)
    assert (code, err) == (0, "")
    assert out.count(f"{fitted.objective_:.9g}") == 2
    assert f"{fitted.lower_bound_:.9g}" in out
    assert "lower bound, proved" in out
    assert out.splitlines()[-1].startswith("certified: ")


def test_looser_tol_does_not_certify_the_claim(files, tmp_path, run):
    data = files / "two.svm"
    tight = rm.LinearClassifier(alpha=LAM, tol=1e-7).fit(X, Y)
    rm.save_model(tight, tmp_path / "tight")
    code, _, err = run("certify", tmp_path / "tight", data, "--max-iter", "1")
    assert code == 3
    assert err.startswith("riskmin: open: ")
    loosely = ("certify", tmp_path / "tight", data, "--tol", "1.0", "--max-iter", "1")
    code, out, err = run(*loosely)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1].startswith("bounded: the objective is within ")
    assert f"the model's own claim of {tight.gap_ / tight.objective_:.2e} was not checked" in out
    assert "certified" not in out
    facts = run_json(run, *loosely)[1]
    assert facts["verdict"] == "bounded"
    assert facts["claimed_gap_rel"] < facts["gap_rel"] <= 1


# ---------------------------------------------------------------- false claims
def with_cut(model, a, b, lower=None):
    """Another cut, and the bound b - |a|^2 / (2 lam) that it would prove."""
    cut = rm.Cut(np.asarray(a, dtype=float), float(b))
    bound = b - cut.a @ cut.a / (2 * LAM) if lower is None else lower
    return {"result_": dataclasses.replace(model.result_, cut=cut), "lower_bound_": bound}


def inflated(model):
    """A cut that touches the risk at w, and would prove the bound J(w)."""
    w, J = np.ravel(model.coef_), model.objective_
    return with_cut(model, -LAM * w, J + LAM / 2 * (w @ w) - 1e-8 * J)


def without_products(model):
    """Half of a kernel's cut holds products with K: a slope of norm zero would prove the bound b."""
    a, b = model.result_.cut.a, model.result_.cut.b
    cut = rm.Cut(np.concatenate([a[: len(X)], 0.0 * a[len(X) :]]), b)
    result = dataclasses.replace(model.result_, cut=cut, lower=min(b, model.result_.value))
    return {"result_": result, "lower_bound_": result.lower}


def tilted(model):
    """A cut with a slope in an intercept bounds nothing."""
    a, b = model.result_.cut.a, model.result_.cut.b
    cut = rm.Cut(a + np.r_[np.zeros(len(a) - 2), -1e-3, 1e-3], b)
    return {"result_": dataclasses.replace(model.result_, cut=cut)}


PROVES, CUTS = "the cut proves a lower bound of", ("cuts its scores at", "best cut at")
FALSEHOODS = [
    ("hinge", lambda m: {"coef_": m.coef_ * [1.01, 1, 1, 1]}, ["the objective is"]),
    ("hinge", lambda m: {"intercept_": m.intercept_ + 0.1}, ["the objective is"]),
    ("hinge", lambda m: {"objective_": m.objective_ * 0.999}, ["the objective is"]),
    ("hinge", lambda m: {"n_samples_fit_": 3}, ["fitted to 3 rows, but the data"]),
    ("hinge", lambda m: {"tol": 1e-9}, ["it claims to have converged to 1e-09, but its gap is"]),
    ("hinge", lambda m: with_cut(m, np.full(4, 5.0), 123.0, m.lower_bound_), [PROVES]),
    (
        "hinge",
        lambda m: with_cut(m, np.zeros(4), m.lower_bound_),  # proves the bound, but is no cut of the risk
        ["the cut is not valid: at the model's weights it exceeds the risk"],
    ),
    ("loose", lambda m: {"lower_bound_": m.objective_ * (1 - 1e-8)}, [PROVES, "as claimed"]),
    ("loose", lambda m: {"lower_bound_": m.lower_bound_ * (1 + 1e-7)}, [PROVES, "as claimed"]),
    ("loose", lambda m: {"lower_bound_": m.lower_bound_ / 2}, [PROVES, "as claimed"]),
    ("loose", inflated, ["exceeds an objective"]),
    ("l1", lambda m: {"regularizer": "elastic"}, []),
    ("l1", lambda m: {"alpha": 2 * LAM}, []),
    ("standardized", lambda m: {"scale_": m.scale_ * [1, 1, 1 + 1e-5, 1]}, []),
    ("standardized", lambda m: {"standardize": False}, ["contradict its parameter standardize"]),
    ("kernel", without_products, [PROVES]),
    ("classes", lambda m: {"lower_bound_": m.lower_bound_ + 0.01}, [PROVES]),
    ("classes", tilted, []),
    ("ordinal", lambda m: {"thresholds_": m.thresholds_ + 0.01}, CUTS),
    ("ordinal", lambda m: {"intercept_": 0.5}, []),
    ("ordinal", lambda m: {"coef_": m.coef_ * 1.01}, []),
    ("grades as numbers", lambda m: {"thresholds_": m.thresholds_ - 0.1}, ["cuts"]),
    ("ranker", lambda m: {"coef_": m.coef_ * 1.01}, ["the objective is"]),
    ("ranker", lambda m: {"intercept_": 0.5}, ["intercept"]),
    ("no intercept", lambda m: {"intercept_": m.intercept_ + 0.1}, []),
    # J does not detect a changed threshold: most of these losses do not depend on an intercept
    *((loss, lambda m: {"intercept_": m.intercept_ + 0.1}, []) for loss in TABLES),
    *(
        (loss, lambda m: {"intercept_": m.intercept_ + 0.1, "threshold_": m.threshold_ - 0.1}, CUTS)
        for loss in TABLES
    ),
    *((loss, lambda m: {"coef_": m.coef_ * 1.01}, []) for loss in TABLES[::2]),
]


@pytest.mark.parametrize(("name", "change", "words"), FALSEHOODS, ids=[f[0] for f in FALSEHOODS])
def test_false_claims_are_refuted(name, change, words, saved, tmp_path, run):
    path, data = saved(name)
    changed = altered(path, tmp_path / "changed", **change(rm.load_model(path)))
    refuted(run("certify", changed, data), *words)


def scaled(name, part, factor):
    def change(arrays, meta):
        n = len(arrays["coef"]) // 2
        arrays[name][slice(None, n) if part == 0 else slice(n, None)] *= factor

    return change


def claims(**factors):
    def change(arrays, meta):
        meta["claim"].update({name: factor * meta["claim"][name] for name, factor in factors.items()})

    return change


FILES = [
    ("kernel", scaled("coef", 1, 1.01), "the objective is"),
    ("kernel", scaled("cut", 0, 0.9), PROVES),
    ("kernel", claims(lower_bound=1.0001), PROVES),
    ("kernel", claims(objective=0.99), "the objective is"),
    ("kernel", lambda arrays, meta: arrays["vectors"].__iadd__(0.01), "the objective is"),
    ("classes", lambda arrays, meta: arrays["coef"].__setitem__(3, 9.0), "the objective is"),
    ("classes", lambda arrays, meta: arrays["coef"].__setitem__(-1, 9.0), "the objective is"),  # an intercept
]


@pytest.mark.parametrize(("name", "change", "words"), FILES)
def test_changed_files_are_refuted(name, change, words, saved, tmp_path, run):
    path, data = saved(name)
    edit(changed := shutil.copy(path, tmp_path / "changed"), change)
    refuted(run("certify", changed, data), words)


def test_changed_coefficients_with_equal_objective_are_refuted(tmp_path, run):
    """Moving a residual inside the tube does not change the objective, but changes the function."""
    points, y = np.array([[1.0], [0.0]]), np.array([1.0, 0.0])
    data, model = tmp_path / "two.svm", tmp_path / "m"
    save_svmlight(data, points, y)
    tight = {"kernel": "linear", "alpha": 0.1, "fit_intercept": False, "tol": 1e-10}
    rm.save_model(rm.KernelRegressor("epsilon_insensitive:epsilon=0.5", **tight).fit(points, y), model)
    assert run("certify", model, data)[0] == 0
    edit(model, lambda arrays, meta: arrays["vectors"].__imul__(1.1))
    refuted(run("certify", model, data), "its support vectors are not rows of these data")


def test_a_changed_file_is_refuted(saved, tmp_path, run):
    path, data = saved("hinge")
    arrays, meta = load_arrays(path, "model")
    claims(lower_bound=1.0001)(arrays, meta)
    save_arrays(changed := tmp_path / "changed", arrays, meta)
    code, _, err = run("certify", changed, data)
    assert (code, "was changed" in err) == (1, True)
    check_sentence(run("predict", changed, data), "checksum")


# ---------------------------------------------------------------- other data
@pytest.mark.parametrize("name", ["hinge", "kernel"])
def test_other_data_are_refuted(name, saved, tmp_path, run):
    path, data = saved(name)
    save_svmlight(tmp_path / "fewer.svm", X[:40], Y[:40])
    refuted(run("certify", path, tmp_path / "fewer.svm"), "fitted to 60 rows, but the data have 40")
    code, facts = run_json(run, "certify", path, tmp_path / "fewer.svm")
    assert (code, facts["verdict"]) == (1, "refuted")
    model = rm.load_model(path).fit(X, Y, sample_weight=np.arange(1.0, 61.0))
    rm.save_model(model, tmp_path / "weighted")
    check_sentence(run("certify", tmp_path / "weighted", data), "weights")


def test_other_queries_are_refuted(saved, tmp_path, run):
    path, _ = saved("ranker")
    save_svmlight(tmp_path / "other.svm", X, GRADE, QID // 2)
    refuted(run("certify", path, tmp_path / "other.svm"), "objective")
    order = np.random.default_rng(0).permutation(len(X))
    save_svmlight(tmp_path / "mixed.svm", X[order], GRADE[order], QID[order] + 10**15)
    assert run("certify", path, tmp_path / "mixed.svm")[0] == 0  # only the grouping of rows matters

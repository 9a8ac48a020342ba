"""Warnings of fits with trivial models, with a remedy; other fits do not warn."""

import json
import warnings

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler

import riskmin
from everywhere import RemoteExecutor
from riskmin import (
    ChainTagger,
    HierarchicalClassifier,
    InMemoryPartition,
    KernelClassifier,
    KernelRegressor,
    LinearClassifier,
    LinearClassifierCV,
    LinearRanker,
    LinearRegressor,
    LinearRegressorCV,
    NoveltyDetector,
    OrdinalClassifier,
    PartitionedMatrix,
    TrivialModelWarning,
)
from riskmin.estimators._common.trivial import _label_spread


def rare(n=2000, apart=0.6, share=0.05, seed=1):
    """Two classes that overlap, one of them rare."""
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < share).astype(int)
    X = rng.normal(size=(n, 10))
    X[y == 1, :3] += apart
    return X, y


@pytest.fixture(scope="module")
def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    return StandardScaler().fit_transform(X), y


@pytest.fixture(scope="module")
def diabetes():
    X, y = load_diabetes(return_X_y=True, scaled=False)
    return StandardScaler().fit_transform(X), y


def trivial_warning(model, *data, **more):
    """The only warning of a fit: one sentence, attributed to the line that called `fit`."""
    with pytest.warns(TrivialModelWarning) as caught:
        model.fit(*data, **more)
    (warning,) = caught
    text = str(warning.message)
    assert warning.filename == __file__
    assert "\n" not in text
    assert text == f"{type(model).__name__} learned nothing: {model.result_.note}"
    assert issubclass(warning.category, UserWarning)
    return text


# ---------------------------------------------------------------- losses of a metric
@pytest.mark.parametrize(
    "loss", ["f1", "f_beta:beta=2", "prbep", "precision_at_k:k=100", "recall_at_k:k=100"]
)
@pytest.mark.parametrize("alpha", [1e-6, 1.0])
def test_metric_losses_with_minimum_at_zero(loss, alpha):
    X, y = rare()
    text = trivial_warning(LinearClassifier(loss, alpha=alpha), X, y)
    assert (
        "J is least at w = 0 within tol: this bound of the metric is loose where positives (4.85% here)"
        in text
    )
    assert f"or alpha={alpha:g} is too large" in text
    assert "; use loss='roc_area', a smaller alpha, or loss='hinge' with class_weight='balanced' or a" in text


@pytest.mark.parametrize("loss", ["f1", "prbep", "precision_at_k:k=100", "recall_at_k:k=100", "roc_area"])
def test_nontrivial_metric_models_do_not_warn(loss):
    X, y = rare(apart=1.5)
    assert LinearClassifier(loss, alpha=1e-5).fit(X, y).result_.note == ""


def test_recommended_change_helps():
    X, y = rare()
    area = LinearClassifier("roc_area", alpha=1e-4).fit(X, y)
    assert riskmin.get_scorer("roc_area")(area, X, y) > 0.7
    hinge = LinearClassifier("hinge", alpha=1e-4, class_weight="balanced").fit(X, y)
    assert 0.1 < hinge.predict(X).mean() < 0.9


def test_roc_area_needs_a_smaller_alpha():
    X, y = rare()
    text = trivial_warning(LinearClassifier("roc_area", alpha=1e4), X, y)
    assert "alpha=10000 is too large for the units of X (it must shrink with them), or X carries no" in text


# ---------------------------------------------------------------- classes
def test_class_too_rare_for_the_hinge():
    X, y = rare()
    text = trivial_warning(LinearClassifier("hinge", alpha=1e-3), X, y)
    assert (
        "all rows get the same class, as J is least at w = 0 within tol: a class of 4.85% of the weight"
        in text
    )
    assert "use class_weight='balanced', loss='roc_area', a tuned threshold, or a smaller alpha" in text
    text = trivial_warning(KernelClassifier("hinge", kernel="linear", alpha=1e-1), X[:300], y[:300])
    assert "units" not in text


@pytest.mark.parametrize("loss", ["hinge", "logistic", "squared_hinge", "smoothed_hinge", "exponential"])
def test_too_large_alpha_for_classes(loss):
    X, y = rare(share=0.3)
    text = trivial_warning(LinearClassifier(loss, alpha=1e5), X, y)
    assert "alpha=100000 is too large for the units of X (it must shrink with them)" in text
    assert "rare" not in text
    assert LinearClassifier(loss, alpha=1e-2).fit(X, y).result_.note == ""


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
@pytest.mark.parametrize("alpha", [1e-3, 1.0, 1e3, 1e6])
def test_small_weights_that_separate_classes(loss, alpha):
    """With balanced classes, any correct direction suffices, however short."""
    rng = np.random.default_rng(0)
    y = np.tile([0, 1], 100)
    X = rng.standard_normal((200, 3)) + 2.0 * y[:, None]
    model = LinearClassifier(loss, alpha=alpha, tol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        warnings.simplefilter("ignore", TrivialModelWarning)
        model.fit(X, y)
    if len(np.unique(model.predict(X))) > 1:
        assert model.result_.note == ""


def test_classes_of_weight_zero_do_not_warn():
    X, y = rare(share=0.4)
    model = LinearClassifier(class_weight={0: 1000.0, 1: 1e-4}).fit(X, y)
    assert (model.predict(X) == 0).all()
    model = LinearClassifier().fit(X, y, sample_weight=np.where(y == 0, 1.0, 1e-7))
    assert (model.predict(X) == 0).all()


def test_several_classes():
    X, _ = rare(600)
    y = np.digitize(X[:, 0], [-0.5, 1.2])
    for loss, alpha in (("hinge", 1e4), ("logistic", 1e4)):
        text = trivial_warning(LinearClassifier(loss, alpha=alpha), X, y)
        assert "all rows get the same class" in text
        assert "roc_area" not in text
        assert LinearClassifier(loss, alpha=1e-3).fit(X, y).result_.note == ""
    rng = np.random.default_rng(0)
    few = np.where(rng.random(600) < 0.02, 2, np.where(rng.random(600) < 0.02, 1, 0))
    assert "is too rare for this loss" in trivial_warning(LinearClassifier("hinge", alpha=1e-1), X, few)
    names = np.array(["a/x", "a/y", "b"])[y]
    trivial_warning(HierarchicalClassifier("softmax", alpha=1e4), X, names)
    assert HierarchicalClassifier(alpha=1e-3).fit(X, names).result_.note == ""


def test_a_loss_without_a_margin():
    X, y = rare(share=0.4)
    assert "J is zero there already, so the loss asks for too little" in trivial_warning(
        LinearClassifier("perceptron"), X, y
    )


# ---------------------------------------------------------------- numbers
@pytest.mark.parametrize(
    "loss",
    [
        "squared",
        "absolute",
        "quantile:level=0.9",
        "epsilon_insensitive",
        "huber",
        "squared_epsilon_insensitive",
    ],
)
@pytest.mark.parametrize("solver", [None, "bundle"])
def test_units_of_X_in_which_alpha_is_too_large(diabetes, loss, solver):
    X, y = diabetes
    y = y / y.std()
    text = trivial_warning(LinearRegressor(loss, alpha=1e-2, solver=solver), 1e-4 * X, y)
    assert "the scores vary by " in text
    assert (
        " where y varies by 1: alpha=0.01 is too large for the units of X (it must shrink with them)" in text
    )
    assert text.endswith("set standardize=True, or use a smaller alpha")
    assert LinearRegressor(loss, alpha=1e-2, solver=solver).fit(X, y).result_.note == ""
    scaled = LinearRegressor(loss, alpha=1e-2, solver=solver, standardize=True)
    assert scaled.fit(1e-4 * X, y).result_.note == ""
    assert trivial_warning(scaled.set_params(alpha=1e6), X, y).endswith(
        "alpha=1e+06 is too large, or X carries no information on y; use a smaller alpha"
    )
    assert LinearRegressor(loss, alpha=1e-10, solver=solver, tol=1e-2).fit(1e-4 * X, y).result_.note == ""


@pytest.mark.slow
def test_constant_labels(diabetes):
    X, _ = diabetes
    for loss in ("squared", "absolute", "huber", "poisson"):
        text = trivial_warning(LinearRegressor(loss), X, np.full(len(X), 3.0))
        assert text.endswith("y is 3 in every row, and so is every prediction; check y")
    trivial_warning(KernelRegressor("absolute", kernel="linear"), X[:50], np.full(50, 3.0))


def test_outlying_labels_do_not_set_the_scale(diabetes):
    X, y = diabetes
    far = np.append(y[1:], 1e6)
    assert LinearRegressor("absolute", alpha=1e-3).fit(X, far).result_.note == ""
    np.testing.assert_allclose(_label_spread(np.array([[0.0], [0.0], [0.0], [9.0]])), np.std([0, 0, 0, 9.0]))


def test_scores_of_counts_are_logarithms(diabetes):
    X, y = diabetes
    trivial_warning(LinearRegressor("poisson", alpha=1e9), X, y)
    assert LinearRegressor("poisson", alpha=1e-2).fit(X, y).result_.note == ""


def test_tube_wider_than_all_labels(diabetes):
    X, y = diabetes
    text = trivial_warning(LinearRegressor("epsilon_insensitive:epsilon=1000"), X, y)
    assert "give it a margin, or a smaller epsilon" in text


def test_too_large_tol(cancer):
    text = trivial_warning(LinearClassifier(alpha=1e-3, tol=1.0), *cancer)
    assert text.endswith("tol=1 lets no weights at all pass; use a smaller tol")


def test_several_outputs(diabetes):
    X, y = diabetes
    Y = np.stack([y, -2 * y], axis=1) / y.std()
    for loss in ("squared", "absolute"):
        trivial_warning(LinearRegressor(loss, alpha=1e-2), 1e-5 * X, Y)
        assert LinearRegressor(loss, alpha=1e-2).fit(X, Y).result_.note == ""
        with_constant = np.stack([y / y.std(), np.ones(len(y))], axis=1)
        assert LinearRegressor(loss, alpha=1e-2).fit(X, with_constant).result_.note == ""


# ---------------------------------------------------------------- other estimators
def test_grades_and_rankings(diabetes):
    X, y = diabetes
    grades = np.digitize(y, [100, 200])
    assert "carry no information" in trivial_warning(OrdinalClassifier(alpha=1e6), X, grades)
    assert OrdinalClassifier(alpha=1e-2).fit(X, grades).result_.note == ""
    trivial_warning(OrdinalClassifier("squared", alpha=1e9), X, grades)
    qid = np.arange(len(y)) // 10
    text = trivial_warning(LinearRanker("ndcg", alpha=1e6), X, grades, qid=qid)
    assert "the scores of Ndcg(k=10) carry no information" in text
    assert "loss='pairwise_hinge', or other weights of positions" in text
    assert LinearRanker("ndcg", alpha=1e-3).fit(X, grades, qid=qid).result_.note == ""


def test_novelty_and_taggers():
    X, _ = rare(200)
    text = trivial_warning(NoveltyDetector(), X - X.mean(axis=0))
    assert "rows lie on all sides of the origin" in text
    assert NoveltyDetector().fit(X + 5).result_.note == ""
    words = [[{"word": "the"}, {"word": "cat"}], [{"word": "a"}, {"word": "dog"}]]
    labels = [["D", "N"], ["D", "N"]]
    trivial_warning(ChainTagger("crf", alpha=1e6), words, labels)
    assert ChainTagger("crf", alpha=1e-2).fit(words, labels).result_.note == ""


def test_searches_warn_only_about_the_final_fit():
    X, y = rare(500)
    with pytest.warns(TrivialModelWarning) as caught:
        LinearClassifierCV("prbep", alphas=[1.0, 1e-1], cv=3).fit(X, y)
    assert len(caught) == 1
    rng = np.random.default_rng(0)
    y = X[:, 0] + 0.1 * rng.standard_normal(500)
    model = LinearRegressorCV("absolute", alphas=[1e6, 1e-3], cv=3).fit(
        X, y
    )  # the first alpha gives a trivial model
    assert model.alpha_ == 1e-3
    assert model.result_.note == ""


def test_only_the_convergence_warning_without_convergence(cancer):
    with pytest.warns(ConvergenceWarning) as caught:
        LinearClassifier(max_iter=1, solver="bundle").fit(*cancer)
    assert len(caught) == 1


def test_warm_starts_do_not_hide_trivial_models(cancer):
    X, y = cancer
    model = LinearClassifier(alpha=1e-2, warm_start=True).fit(X, y)
    assert "is too large" in trivial_warning(model.set_params(alpha=1e7), X, y)


def test_remote_rows():
    X, y = rare(400)
    remote = PartitionedMatrix(
        [InMemoryPartition(X[:150]), InMemoryPartition(X[150:])], executor=RemoteExecutor()
    )
    trivial_warning(LinearClassifier("hinge", alpha=1e-2), remote, y)


def test_sparse_regularizers(diabetes):
    X, y = diabetes
    trivial_warning(LinearRegressor(regularizer="l1", alpha=1e3), X, y)
    assert LinearRegressor(regularizer="l1", alpha=1.0).fit(X, y).result_.note == ""
    text = trivial_warning(LinearRegressor(positive=True), np.abs(X[:, :1]), -np.abs(X[:, 0]))
    assert "positive=True leaves out the weights that would help" in text
    assert LinearRegressor(regularizer=riskmin.Entropy(balanced=True), alpha=1.0).fit(X, y).result_.note == ""


# ---------------------------------------------------------------- the command
def write(path, X, y):
    rows = (",".join(map(repr, [*row.tolist(), label.item()])) for row, label in zip(X, y, strict=True))
    path.write_text("\n".join([",".join([*(f"x{j}" for j in range(X.shape[1])), "y"]), *rows]))


def test_warning_of_the_command(run, tmp_path):
    X, y = rare(1000)
    write(tmp_path / "rare.csv", X, y)
    fit = ("fit", tmp_path / "rare.csv", "-o", tmp_path / "model", "--loss")
    code, out, err = run(*fit, "f1", "--lam", "1e-3")
    assert code == 0
    (line,) = [line for line in err.splitlines() if "learned nothing" in line]
    assert line.startswith(
        "riskmin: the model learned nothing: the scores of FBeta(beta=1.0) carry no information"
    )
    assert "--lam 0.001 is too large" in line
    assert "; use --loss roc_area, a smaller --lam, or --loss hinge with --class-weight balanced or a" in line
    assert "alpha" not in line
    code, out, err = run(*fit, "f1", "--lam", "1e-3", "--json")
    assert "learned nothing" not in err
    assert "J is least at w = 0" in json.loads(out)["note"]
    code, out, err = run(*fit, "roc_area", "--lam", "1e-3")
    assert "learned nothing" not in err
    code, out, err = run(
        "cv", tmp_path / "rare.csv", "-o", tmp_path / "model", "--loss", "f1", "--lams", "1,0.1"
    )
    assert err.count("learned nothing") == 1

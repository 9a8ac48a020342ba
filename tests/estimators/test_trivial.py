"""Warnings of fits with trivial models, with a remedy; other fits do not warn."""

import json
import warnings

import numpy as np
import pytest
from estimator_cases import BOTH, GRADE, KINDS, QID, N, RemoteExecutor, X, Z, partitioned
from sklearn.calibration import CalibratedClassifierCV

import riskmin as rm


def rare(n=400, apart=0.6, share=0.05, seed=1):
    """Two classes that overlap, one of them rare."""
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < share).astype(int)
    X = rng.normal(size=(n, 5))
    X[y == 1, :3] += apart
    return X, y


RARE, FEW = rare()
FREQUENT, MANY = rare(share=0.3)
THREE = np.array(["a/x", "a/y", "b"])[np.digitize(FREQUENT[:, 0], [-0.5, 1.2])]
CENTERED = X - X.mean(axis=0)
UNIT = Z / Z.std()
WORDS = [[{"word": "the"}, {"word": "cat"}], [{"word": "a"}, {"word": "dog"}]]
TAGS = [["D", "N"], ["D", "N"]]
UNITS = "is too large for the units of X (it must shrink with them)"
RARE_POSITIVES = "J is least at w = 0 within tol: this bound of the metric is loose where positives ("
INSTEAD = "; use loss='roc_area', a smaller alpha, or loss='hinge' with class_weight='balanced' or a"
HINGE_OF_RARE = "use class_weight='balanced', loss='roc_area', a tuned threshold, or a smaller alpha"
POSITIONS = "loss='pairwise_hinge', or other weights of positions"
NO_INFORMATION = "is too large, or X carries no information on y; use a smaller alpha"
CONSTANT_LABELS = "y is 3 in every row, and so is every prediction; check y"
SAME_CLASS = "all rows get the same class"
VARIES = f"the scores vary by ... where y varies by 1: alpha=0.01 {UNITS} ... set standardize=True, or use"
SCALED = ("squared", "absolute", "quantile:level=0.9", "huber", "squared_epsilon_insensitive")
SMALL, CONSTANT = (1e-4 * X, UNIT), (X, np.full(N, 3.0))


def of_classes(loss, data, words, alpha, kind=rm.LinearClassifier, **settings):
    return kind(loss, alpha=alpha, **settings), data, words


def of_numbers(loss, data, words, kind=rm.LinearRegressor, **settings):
    return kind(loss, **settings), data, words


RARE_ROWS, FREQUENT_ROWS, RANKED = (RARE, FEW), (FREQUENT, MANY), (X, GRADE, QID)
TRIVIAL = [
    *(
        of_classes(loss, RARE_ROWS, f"{RARE_POSITIVES} ... or alpha={alpha:g} is ... {INSTEAD}", alpha)
        for loss, alpha in [("f1", 1), ("prbep", 1e-3), ("precision_at_k:k=20", 1), ("recall_at_k:k=20", 1)]
    ),
    of_classes("roc_area", RARE_ROWS, f"alpha=10000 {UNITS}, or X carries no", 1e4),
    of_classes("hinge", RARE_ROWS, f"{SAME_CLASS}, as J is least at w = 0 within ... {HINGE_OF_RARE}", 0.1),
    of_classes("hinge", RARE_ROWS, "is too rare for this loss", 1.0, rm.KernelClassifier, kernel="linear"),
    *(
        of_classes(loss, FREQUENT_ROWS, f"alpha=100000 {UNITS}", 1e5)
        for loss in ("hinge", "logistic", "squared_hinge", "smoothed_hinge", "exponential")
    ),
    of_classes("hinge", (FREQUENT, THREE), SAME_CLASS, 1e4, solver="bundle"),
    of_classes("logistic", (FREQUENT, THREE), SAME_CLASS, 1e4),
    of_classes("logistic", (X, np.digitize(X[:, 0], [0.3, 1.8])), SAME_CLASS, 1e4),
    of_classes("softmax", (FREQUENT, THREE), SAME_CLASS, 1e4, rm.HierarchicalClassifier),
    of_classes("perceptron", FREQUENT_ROWS, "so the loss asks for too little", 1e-4),
    of_classes("hinge", (X, Z > 0), "tol=1 lets no weights at all pass; use", 1e-3, tol=1.0),
    *(of_numbers(loss, SMALL, VARIES, alpha=1e-2) for loss in SCALED),
    of_numbers("absolute", (X, UNIT), f"alpha=1e+06 {NO_INFORMATION}", alpha=1e6, standardize=True),
    *(of_numbers(loss, CONSTANT, CONSTANT_LABELS) for loss in ("squared", "huber")),
    of_numbers("absolute", CONSTANT, "check y", rm.KernelRegressor, kernel="linear"),
    of_numbers("poisson", (X, np.exp(Z)), "is too large", alpha=1e9),
    of_numbers("epsilon_insensitive:epsilon=1000", (X, Z), "a margin, or a smaller epsilon"),
    of_numbers("absolute", (1e-5 * X, BOTH), "alpha=0.01 is too large", alpha=1e-2),
    of_numbers("squared", (1e-5 * X, BOTH), "alpha=0.01 is too large", alpha=1e-2),
    of_numbers("squared", (X, Z), "is too large", regularizer="l1", alpha=1e3),
    of_numbers("squared", (np.abs(X[:, :1]), -np.abs(X[:, 0])), "leaves out the weights that", positive=True),
    (rm.OrdinalClassifier(alpha=1e6), (X, GRADE), "carry no information"),
    (rm.OrdinalClassifier("squared", alpha=1e9), (X, GRADE), "is too large"),
    (rm.LinearRanker("ndcg", alpha=1e6), RANKED, f"scores of Ndcg(k=10) carry no info ... {POSITIONS}"),
    (rm.NoveltyDetector(), (CENTERED,), "rows lie on all sides of the origin"),
    (rm.ChainTagger("crf", alpha=1e6), (WORDS, TAGS), "is too large"),
]


def trivial_warning(model, *data):
    """The only warning of a fit: one sentence, attributed to the line that called `fit`."""
    with pytest.warns(rm.TrivialModelWarning) as caught:
        model.fit(*data)
    (warning,) = caught
    text = str(warning.message)
    assert warning.filename == __file__
    assert "\n" not in text
    assert text == f"{type(model).__name__} learned nothing: {model.result_.note}"
    return text


@pytest.mark.parametrize(("model", "data", "words"), TRIVIAL)
def test_a_model_without_information_is_named_with_the_remedy(model, data, words):
    text = trivial_warning(model, *data)
    for word in words.split(" ... "):
        assert word in text


INFORMATIVE = [
    *(
        (rm.LinearClassifier(loss, alpha=1e-3), rare(apart=1.5))
        for loss in ("f1", "prbep", "precision_at_k:k=20", "roc_area")
    ),
    (rm.LinearClassifier("hinge", alpha=1e-2), FREQUENT_ROWS),
    (rm.LinearClassifier("exponential", alpha=1e-2), FREQUENT_ROWS),
    (rm.LinearClassifier("logistic", alpha=1e-3), (X, KINDS)),
    # w = 0 is right where few rows have no more signal than by chance
    (rm.LinearClassifier("logistic", alpha=1e4), (RARE[:N], KINDS)),
    (rm.HierarchicalClassifier(alpha=1e-2), (X, KINDS)),
    *((rm.LinearRegressor(loss, alpha=1e-2), (X, UNIT)) for loss in SCALED),
    (rm.LinearRegressor("absolute", alpha=1e-2, standardize=True), SMALL),
    (rm.LinearRegressor("absolute", alpha=1e-10, tol=1e-2), SMALL),
    # an outlying label does not set the scale
    (rm.LinearRegressor("absolute", alpha=1e-3), (X, np.append(Z[1:], 1e6))),
    (rm.LinearRegressor("poisson", alpha=1e-2), (X, np.exp(Z))),
    (rm.LinearRegressor("absolute", alpha=1e-2), (X, np.c_[UNIT, np.ones(N)])),
    (rm.OrdinalClassifier(alpha=1e-2), (X, GRADE)),
    (rm.LinearRanker("ndcg", alpha=1e-1), RANKED),
    (rm.NoveltyDetector(), (X + 5,)),
    (rm.ChainTagger("crf", alpha=1e-2), (WORDS, TAGS)),
    (rm.LinearRegressor(regularizer="l1", alpha=0.1), (X, Z)),
    (rm.LinearRegressor(regularizer=rm.Entropy(balanced=True), alpha=0.1), (X, Z)),
    # classes whose rows weigh nothing to speak of
    (rm.LinearClassifier(class_weight={0: 1000.0, 1: 1e-4}), FREQUENT_ROWS),
    (rm.LinearClassifier(), (FREQUENT, MANY, np.where(MANY == 0, 1.0, 1e-7))),
]


@pytest.mark.parametrize(("model", "data"), INFORMATIVE)
def test_other_models_do_not_warn(model, data):
    assert model.fit(*data).result_.note == ""


@pytest.mark.parametrize("alpha", [1.0, 1e6])
@pytest.mark.filterwarnings("ignore::riskmin.TrivialModelWarning")
def test_small_weights_that_separate_classes(alpha):
    """With balanced classes, any correct direction suffices, however short."""
    y = np.tile([0, 1], 100)
    rows = np.random.default_rng(0).standard_normal((200, 3)) + 2.0 * y[:, None]
    for loss in ("hinge", "logistic"):
        model = rm.LinearClassifier(loss, alpha=alpha, tol=1e-6).fit(rows, y)
        assert len(np.unique(model.predict(rows))) == 1 or model.result_.note == ""


def test_the_recommended_change_helps():
    area = rm.LinearClassifier("roc_area", alpha=1e-2).fit(RARE, FEW)
    assert rm.get_scorer("roc_area")(area, RARE, FEW) > 0.7
    hinge = rm.LinearClassifier("hinge", alpha=1e-2, class_weight="balanced").fit(RARE, FEW)
    assert 0.1 < hinge.predict(RARE).mean() < 0.9
    # that for the probabilities of a hinge, too
    proba = CalibratedClassifierCV(rm.LinearClassifier("hinge", alpha=1e-2), cv=3).fit(X, X[:, 0] > 0)
    assert np.mean((proba.predict_proba(X)[:, 1] > 0.5) == (X[:, 0] > 0)) > 0.9


def test_searches_warn_only_about_the_final_fit():
    with pytest.warns(rm.TrivialModelWarning) as caught:
        rm.LinearClassifierCV("prbep", alphas=[1.0, 0.5], cv=2).fit(RARE, FEW)
    assert len(caught) == 1
    model = rm.LinearRegressorCV("absolute", alphas=[1e6, 1e-3], cv=3).fit(X, Z)
    assert (model.alpha_, model.result_.note) == (1e-3, "")


def test_warm_starts_and_remote_rows_hide_nothing():
    model = rm.LinearClassifier(alpha=1e-2, warm_start=True).fit(FREQUENT, MANY)
    assert "is too large" in trivial_warning(model.set_params(alpha=1e7), FREQUENT, MANY)
    remote = partitioned(RARE, RemoteExecutor(), [0, 150, 400])
    trivial_warning(rm.LinearClassifier("hinge", alpha=1e-1), remote, FEW)


def test_warning_of_the_command(run, tmp_path):
    rows = (",".join(map(repr, [*x.tolist(), y.item()])) for x, y in zip(RARE, FEW, strict=True))
    (tmp_path / "rare.csv").write_text("\n".join(["a,b,c,d,e,y", *rows]))
    fit = ("fit", tmp_path / "rare.csv", "-o", tmp_path / "model", "--loss")
    code, out, err = run(*fit, "prbep", "--lam", "1.0")
    assert code == 0
    (line,) = [line for line in err.splitlines() if "learned nothing" in line]
    assert line.startswith("riskmin: the model learned nothing: the scores of Prbep() carry no info")
    assert "--lam 1 is too large" in line
    assert "; use --loss roc_area, a smaller --lam, or --loss hinge with --class-weight balanced or a" in line
    assert "alpha" not in line
    code, out, err = run(*fit, "prbep", "--lam", "1.0", "--json")
    assert "learned nothing" not in err
    assert "J is least at w = 0" in json.loads(out)["note"]
    assert "learned nothing" not in run(*fit, "roc_area", "--lam", "1e-2")[2]
    cv = ("cv", tmp_path / "rare.csv", "-o", tmp_path / "model", "--loss", "prbep", "--lams", "3,1")
    assert run(*cv)[2].count("learned nothing") == 1


def test_a_search_says_at_once_that_no_alpha_learns():
    """The bound at the smallest alpha is one for all, so that no fold is fitted for each of them."""
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(5000, 4))
    z = Z @ [1.5, 1.0, 0.0, 0.0] + rng.normal(size=5000)
    few, half = z > np.quantile(z, 0.99), z > 0
    settings = {"alphas": [1.0, 0.1, 1e-2, 1e-3], "cv": 2}
    with pytest.warns(rm.TrivialModelWarning) as caught:
        model = rm.LinearClassifierCV("f1", **settings).fit(Z, few)
    (warning,) = caught
    assert "for every alpha from 0.001 to 1: " in str(warning.message)
    assert "use loss='roc_area', or loss='hinge' with class_weight='balanced'" in str(warning.message)
    assert (model.alphas_.tolist(), model.scores_.shape) == ([1.0], (2, 1))
    # it is true: J at zero is 1, and the minimum for each of them
    for alpha in settings["alphas"]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert rm.LinearClassifier("f1", alpha=alpha).fit(Z, few).lower_bound_ >= 0.998
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learned = rm.LinearClassifierCV("f1", **settings).fit(Z, half)
    assert learned.scores_.shape == (2, 4)
    assert learned.best_score_ > 0.8


def test_without_a_penalty_alpha_is_no_cause():
    rng = np.random.default_rng(0)
    rows = rng.uniform(size=(100, 2))
    with pytest.warns(
        rm.TrivialModelWarning, match="positive=True leaves out .* try positive=False"
    ) as caught:
        rm.LinearRegressor("squared", alpha=0, positive=True).fit(rows, -rows.sum(axis=1))
    assert "alpha" not in str(caught[0].message)

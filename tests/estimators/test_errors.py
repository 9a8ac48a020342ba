"""What estimators refuse: one sentence, which names the cause and the remedy."""

import estimator_cases as cases
import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from estimator_cases import GRADE, HIGH, KINDS, LENGTHS, QID, N, X, Z
from sklearn.model_selection import GridSearchCV, cross_val_score

import riskmin as rm
from helpers import refusals

ROWS, LABELS, THREE = np.array([[1.0, 2.0], [0.0, 1.0], [2.0, 0.5]]), np.array([0, 1, 1]), np.arange(3)
BOTH = np.c_[Z, -Z]


def with_entry(value, rows=ROWS):
    rows = rows.copy()
    rows[1, 0] = value
    return rows


TREE = rm.Tree.from_parents({"a": None, "b": None, "c": None}, ["a", "b", "c"])
INCREASING = rm.LinearConstraints(rm.L2(), np.diff(np.eye(2), axis=0), lower=0)
PLACE = r"X holds NaN or infinity \(row 1, column 0\)"
FRAME = {"size": [1.0, 2.0, 3.0], "city": ["Rome", "Oslo", "Rome"]}
CITY = r"column 'city' of X holds text \('Rome'\).*make_column_transformer.*\['city'\]"
COMPLEX = "complex numbers; give their real and imaginary parts"
TEXT_BESIDE_INTEGERS = pd.DataFrame(
    {"a": pd.array([1, 2, 3], dtype="Int64"), "c": pd.Categorical(list("xyx"))}
)
COMPLEX_FRAME = pd.DataFrame({"a": ROWS[:, 0], "b": ROWS[:, 1] + 1j})
POLARS_COMPLEX = pl.DataFrame({"a": ROWS[:, 0], "b": [complex(v) for v in ROWS[:, 1]]}, strict=False)
COUNTED = r"counts rows, so all must weigh the same"


OF_INPUTS = [
    (rm.LinearClassifier(), with_entry(np.nan), LABELS, PLACE),
    (rm.LinearClassifier(), sp.csr_array(with_entry(np.inf)), LABELS, PLACE),
    (rm.LinearClassifier(), np.r_[ROWS, ROWS, with_entry(np.nan)], np.arange(9) % 2, r"\(row 7, column 0\)"),
    (rm.LinearRegressor(), ROWS, [1.0, np.nan, 2.0], "Input y contains NaN"),
    (rm.LinearRegressor(), ROWS, ["a", "b", "c"], "y holds 'a', 'b', 'c'"),
    (rm.LinearRegressor(), ROWS, sp.csr_array(ROWS), "y is a sparse matrix: give an array"),
    (rm.LinearRegressor("poisson"), ROWS, [1, -2, 3], "Poisson needs y >= 0, but y holds -2"),
    (rm.LinearRegressor("poisson"), ROWS, -ROWS, "Poisson needs y >= 0"),
    (rm.LinearClassifier(), ROWS, [3, 3, 3], "y holds only one class, 3, but two are needed"),
    (rm.LinearClassifier(), ROWS, [0.1, 0.2, 0.3], "Unknown label type: continuous"),
    (rm.LinearClassifier(), ROWS, np.array(["a", 1, None], object), r"kinds \(NoneType, int, str\): make"),
    (rm.LinearClassifier(), np.empty((0, 2)), [], r"0 sample\(s\)"),
    (rm.LinearClassifier(), pd.DataFrame(FRAME), LABELS, CITY),
    (rm.LinearClassifier(), pd.DataFrame(FRAME).astype({"city": "category"}), LABELS, CITY),
    (rm.LinearClassifier(), pd.DataFrame(FRAME).astype(object), LABELS, CITY),
    (rm.LinearClassifier(), pl.DataFrame(FRAME), LABELS, CITY),
    (rm.LinearClassifier(), TEXT_BESIDE_INTEGERS, LABELS, "column 'c' of X holds text"),
    (rm.LinearClassifier(), np.array([[1, "a"], [2, "b"]], dtype=object), [0, 1], "column 1 of X holds text"),
    (rm.LinearClassifier(), [["a", 1.0], ["c", 2.0]], [0, 1], r"column 0 of X holds text \('a'\)"),
    (rm.LinearClassifier(), (("a", 1.0), ("c", 2.0)), [0, 1], r"column 0 of X holds text \('a'\)"),
    (rm.LinearClassifier(), [("1", "b"), ("2", "c")], [0, 1], r"column 1 of X holds text \('b'\)"),
    (rm.LinearClassifier(), ROWS + 1j, LABELS, f"X holds {COMPLEX}"),
    (rm.LinearClassifier(), (ROWS + 1j).astype(object), LABELS, f"X holds {COMPLEX}"),
    (rm.LinearClassifier(), [[1.0, 2.0], [3.0, 1j]], [0, 1], f"X holds {COMPLEX}"),
    (rm.LinearClassifier(), sp.csr_array(ROWS + 1j), LABELS, f"X holds {COMPLEX}"),
    (rm.LinearClassifier(), COMPLEX_FRAME, LABELS, f"column 'b' of X holds {COMPLEX}"),
    (rm.LinearClassifier(), COMPLEX_FRAME.astype({"b": object}), LABELS, f"column 'b' of X holds {COMPLEX}"),
    (rm.LinearClassifier(), POLARS_COMPLEX, LABELS, f"column 'b' of X holds {COMPLEX}"),
    (
        rm.LinearClassifier(standardize=True),
        pd.DataFrame({"a": ROWS[:, 0], "b": 1e-150 * ROWS[:, 1]}),
        LABELS,
        r"'b' has a standard deviation of .*e-1\d\d, too extreme to divide by",
    ),
    (rm.OrdinalClassifier(), ROWS, [1, 1, 1], "y holds only one class, 1, but two are needed"),
    (rm.OrdinalClassifier(), ROWS, [0.1, 0.2, 0.3], "Unknown label type: continuous"),
]
OF_PARAMETERS = [
    (rm.LinearClassifier("exponential"), "Only binary.*two classes, not 3; use 'hinge', .*wrap.*OneVsRest"),
    (rm.LinearClassifier("squared_hinge:margin=2"), r"SquaredHinge\(margin=2.0\) takes two classes"),
    (rm.LinearClassifier("roc_area"), "takes two classes, not 3"),
    (rm.LinearClassifier(rm.MulticlassHinge(1 - np.eye(4))), "cost is for 4 classes, but y has 3"),
    (rm.LinearClassifier("squared"), "Squared is a loss for regression.*: use LinearRegressor"),
    (rm.LinearClassifier(rm.Novelty()), "for novelty.*: use NoveltyDetector"),
    (rm.LinearClassifier(rm.HierarchicalSoftmax(TREE)), "use HierarchicalClassifier"),
    (rm.LinearClassifier("hinges"), "no loss named 'hinges'.* The names are hinge, "),
    (rm.LinearClassifier(rm.Hinge), "Hinge is a class"),
    (rm.LinearClassifier("logistic", solver="dual"), "Dual"),
    (rm.LinearClassifier(solver="sgd"), "no solver named 'sgd'.* The names are accelerated_gradient, aug"),
    (rm.LinearClassifier(solver=rm.Bundle), "Bundle is a class, not a solver"),
    (
        rm.LinearClassifier(regularizer="lasso"),
        "there is no regularizer named 'lasso'.* The names are l2, l1",
    ),
    (rm.LinearClassifier(regularizer=rm.L1), r"L1 is a class, not a regularizer; give an instance: L1\(\)"),
    (rm.LinearClassifier(regularizer=3), r"3 is not a regularizer: pass an object such as L1\(\)"),
    (rm.LinearClassifier(regularizer=rm.L1(weights=[1.0, 2.0, 3.0])), "weights has shape"),
    (
        rm.LinearClassifier(regularizer=rm.L2([1.0, 2.0, 3.0]), standardize=True),
        r"weights has shape \(3,\), but w has 6 entries: give a number, or one per entry",
    ),
    (rm.LinearClassifier(regularizer="entropy", positive=True), "bounds L1, L2 and Elastic, not Entropy"),
    (rm.LinearClassifier(regularizer=INCREASING, positive=True), r"as LinearConstraints\(Box\(L2\(\), 0\)"),
    (rm.LinearClassifier(alpha=-1), "alpha=-1, but LinearClassifier needs alpha to be a finite"),
    (rm.LinearClassifier(tol=-1.0), "tol=-1.0, but"),
    *((rm.LinearClassifier(atol=a), "needs atol to be None or a number >= 0") for a in (-1, "small", np.nan)),
    (rm.LinearClassifier(max_iter=0), "max_iter=0, but"),
    (rm.LinearClassifier(max_iter=np.inf), "max_iter=inf, but"),
    (rm.LinearClassifier(n_jobs="a"), "n_jobs='a', but .* None or an integer other than 0"),
    (rm.LinearClassifier(n_jobs=0), "n_jobs=0, but"),
    (rm.LinearClassifier(max_seconds="1"), "max_seconds='1', but"),
    (rm.LinearClassifier(class_weight={0: 0.0}), "all classes a finite weight > 0"),
    (rm.LinearClassifier(device="tpu"), "device='tpu' is no device: give 'cuda'"),
    (rm.LinearRegressor("hinge"), "a loss for classification.*: use LinearClassifier"),
    (rm.LinearRegressor("softmax"), "Softmax is a loss for multiclass.*use LinearClassifier"),
    (rm.LinearRegressor("ordinal"), "a loss for ordinal, not for regression: use OrdinalClassifier"),
    (rm.LinearRegressor("ndcg"), "a loss for ranking, not for regression: use LinearRanker"),
    (rm.KernelClassifier("softmax"), "Softmax is a loss for multiclass, not for classification"),
    (rm.KernelClassifier("roc_area"), "Only binary.*wrap the model in sklearn.multiclass"),
    (rm.KernelRegressor(rm.MultivariateSquared()), "a multi-output loss: use LinearRegressor"),
    (rm.NoveltyDetector(contamination=0.6), r"contamination to be a number in \(0, 0.5\]"),
    (rm.OrdinalClassifier(rm.MultivariateSquared()), "a multi-output loss"),
    (rm.OrdinalClassifier("hinge"), "a loss for classification, not for ordinal: use LinearClass"),
    (rm.OrdinalClassifier(metric="squared"), "the metrics are absolute and zero_one"),
    (rm.OrdinalClassifier(order=[0, 1]), "must name every grade once, but y holds 2"),
    (rm.OrdinalClassifier(order=[0, 1, 2, 1]), "must name every grade once, but one occurs twice"),
    (rm.OrdinalClassifier(rm.Ordinal(costs=[[0], [1, 0]])), "costs has 2 rows, but y holds 3 grades"),
    (rm.LinearRegressorCV(cv=2, alphas=[]), "needs finite numbers > 0"),
    (rm.LinearRegressorCV(cv=2, alphas=[1.0, -1.0]), "needs finite numbers > 0"),
    (rm.LinearRegressorCV(cv=2, n_alphas=0), "n_alphas=0, but .* needs n_alphas to be an integer >= 1"),
    (rm.LinearRegressorCV(cv=2, tol=-1.0), "tol=-1.0"),
    (rm.LinearRegressorCV(cv=2, loss="hinge"), "use LinearClassifier"),
]
QUERIES = [1, 1, 1]
OF_RANKINGS = [
    (rm.LinearRanker(), THREE, None, "PairwiseHinge ranks the rows of each query: give qid"),
    (rm.LinearRanker(), THREE, [1, 1], r"qid has shape \(2,\), but there are 3 rows"),
    (rm.LinearRanker(), THREE, [1.0, 1.0, np.nan], "qid holds NaN"),
    (rm.LinearRanker(), THREE, [1, 1, None], "qid holds ids that cannot be compared"),
    (rm.LinearRanker(), THREE, np.array([1, 1, "a"], object), "or every row a string"),
    (rm.LinearRanker(), THREE, [1, 2, 3], "no query has rows of two different grades"),
    (rm.LinearRanker(), [1, 1, 2], [1, 1, 3], "no query has rows of two different grades"),
    (rm.LinearRanker("ndcg"), [-1, 1, 2], QUERIES, "grades >= 0"),
    (rm.LinearRanker("hinge"), THREE, QUERIES, "not for ranking: use LinearClassifier"),
    (rm.LinearRanker("squared"), THREE, [1, 1], r"qid has shape \(2,\), but there are 3 rows"),
]
ONE, AB = [[{"a": 1}, {"b": 2}]], [["A", "B"]]
OF_SEQUENCES = [
    ([[{"a": 1}], []], [["A"], []], {}, "sequence 1 is empty: leave it out"),
    ([], [], {}, "X holds no sequences: give at least one"),
    ([[{"a": 1}]], [["A"], ["B"]], {}, "X has 1 sequences, but y has 2"),
    ([[{"a": 1}], [{"a": 1}] * 2], [["A"], ["B"]], {}, "sequence 1 has 2 tokens, but 1 labels"),
    ([[{"a": 1}, {"a": np.nan}]], AB, {}, "token 1 of sequence 0 has the weight nan for the feature 'a'"),
    (ONE, [["A", "A"]], {}, "y holds one class only, 'A'"),
    (ONE, [["A", 3]], {}, "y holds labels of several kinds"),
    ([[{"a": 1}, {"a": None}]], AB, {}, "the value None for the feature 'a'"),
    ([[{"a": 1}, 7]], AB, {}, "sequence 0 has the token 7: give a dict of features"),
    ([[{}, {}]], AB, {}, "no token has a feature that counts"),
    ([[{3: 1}, {}]], AB, {}, "features are named by strings"),
    (np.eye(2), ["A", "B"], {}, "X is a matrix: give lengths"),
    (np.eye(2), ["A", "B"], {"lengths": [1, 2]}, "lengths sum to 3, but X has 2 rows"),
    (np.eye(2), ["A"], {"lengths": [2]}, "y has 1 labels, but X has 2 rows"),
    (np.eye(2), ["A", "B"], {"lengths": [2.5]}, "lengths must be whole numbers"),
    (ONE, AB, {"sample_weight": [1, 1]}, "but there are 1 sequences"),
    ("text", ["A"], {}, "X is 'text': give a list of sequences"),
    (ONE, ["A", "B"], {}, "y must hold a list of labels for each sequence"),
]
NOT_BEGUN = [(None, "A"), (None, "B")]
OF_TAGGERS = [
    ({"loss": "hinge"}, "Hinge is a loss for classification, not for tagging: use LinearClassifier"),
    ({"constraints": "bio"}, "constraints='bio' is for labels B-X, I-X, O, but there is 'A'"),
    ({"constraints": "iobes"}, "constraints='iobes' is not known: use bio"),
    ({"constraints": ["AB"]}, "give pairs"),
    ({"constraints": NOT_BEGUN}, "lets no sequence begin"),
    ({"template": "windows"}, "template='windows' is not known"),
    ({"template": "window"}, "template='window' takes the columns of tokens.*but sequence 0 has others"),
    ({"min_count": 0}, "min_count=0, but ChainTagger needs min_count to be an integer >= 1"),
    ({"alpha": 0}, "alpha=0, but ChainTagger needs alpha"),
]


def remote(rows, ends=(0, 10, 40, N)):
    return cases.partitioned(rows, cases.RemoteExecutor(), ends)


def started(loss, y):
    return rm.LinearClassifier(loss, warm_start=True).fit(X, y)


def no_score(model, X, y):
    raise ValueError("no score")


ONE_CLASS_IN_A_FOLD = r"y holds only one class.*\(in fold 1 of 1; fewer folds may do\)"
NO_SCORE = r"^no score \(in fold 1 of 2\)$"
fitted, WEIGHTED = cases.fitted, cases.WEIGHTED
THIRD, TAGGER = rm.MultivariateSquared(np.eye(3)), rm.ChainTagger().fit(ONE, AB)
NAN = X.copy()
NAN[45, 2] = np.nan
LINE = rm.LinearRegressor().fit(ROWS, LABELS)
OF_FRAME = rm.LinearRegressor().fit(pd.DataFrame(ROWS, columns=list(FRAME)), LABELS)
STEEP = rm.LinearRegressor(alpha=1e-9).fit(ROWS, 1e9 * LABELS)
ONE_BY_ONE = TAGGER.predict_single, TAGGER.predict_marginals_single
ROUTED = r"routing only: call sklearn\.set_config\("
WORDS = "give a dict of features, or a list of strings, per token"
CALLS = [
    (lambda: LINE.predict(with_entry(np.nan)), PLACE),
    (lambda: STEEP.predict(with_entry(1e308)), r"X holds numbers too large to score \(row 1\)"),
    (lambda: LINE.predict(ROWS + 1j), "real and imaginary parts"),
    (lambda: OF_FRAME.predict(COMPLEX_FRAME), "real and imaginary parts"),
    (lambda: OF_FRAME.predict(pd.DataFrame(FRAME)), CITY),
    (lambda: rm.LinearClassifier().fit(ROWS, LABELS, [1.0, 0, 0]), "only one class, 0, in the rows whose"),
    (lambda: rm.LinearClassifier(class_weight={0: 0}).fit(ROWS, LABELS), "both classes a finite weight > 0"),
    (lambda: rm.LinearRegressor(THIRD).fit(X, BOTH), "M is for 3 outputs, but y has 2"),
    (lambda: rm.LinearClassifier("prbep").fit(X, HIGH, 1 + HIGH), f"{COUNTED}: fit without sample_weight"),
    (lambda: rm.LinearClassifier("f1", class_weight="balanced").fit(X, HIGH), f"{COUNTED}.*class_weight"),
    (lambda: rm.LinearClassifierCV("f1", class_weight="balanced").fit(X, HIGH), "use the loss 'roc_area'"),
    (lambda: rm.LinearClassifierCV(scoring="ndcg").fit(X, HIGH), "no measure for classification: choose roc"),
    (lambda: rm.LinearRegressorCV(cv=2, scoring=lambda *_: np.nan).fit(X, Z), "no alpha has a score in any"),
    (lambda: rm.LinearClassifierCV(alphas=[0.1], cv=[(~HIGH, HIGH)]).fit(X, HIGH), ONE_CLASS_IN_A_FOLD),
    # fewer folds do not help where all classes are in all folds, nor regressions
    (lambda: rm.LinearClassifierCV(alphas=[0.1], cv=2, scoring=no_score).fit(X, HIGH), NO_SCORE),
    (lambda: rm.LinearRegressorCV(alphas=[0.1], cv=2, scoring=no_score).fit(X, Z), NO_SCORE),
    (lambda: rm.LinearClassifier().fit(remote(X), HIGH[:-1]), r"inconsistent numbers of samples: \[60, 59\]"),
    (lambda: rm.LinearClassifier().fit(remote(X), None), "requires y to be passed"),
    (lambda: rm.LinearClassifier().fit(remote(X), HIGH, np.ones(3)), "sample_weight has shape"),
    (lambda: rm.LinearClassifier().fit(remote(X), np.ones(N)), "only one class"),
    (lambda: rm.LinearClassifier().fit(remote(NAN), HIGH), r"part 2: .*NaN"),
    (lambda: fitted("hinge").predict(remote(X[:, :3])), "X has 3 features, but .* is expecting 4"),
    (lambda: fitted("hinge").predict(remote(1e308 * np.sign(X))), "too large to score"),
    (lambda: rm.LinearRanker().fit(remote(X[:1], [0, 1]), [1.0], qid=[0]), "minimum of 2"),
    (lambda: rm.ChainTagger().fit(remote(X, [0, 11, N]), GRADE, lengths=LENGTHS), "ends within a sequence"),
    (lambda: started("hinge", HIGH).fit(X[:, :-1], HIGH), "4 features, but X has 3"),
    (lambda: started("softmax", GRADE).fit(X, HIGH), "which had 15 weights, but this one has 10"),
    (lambda: rm.certify(fitted("logistic"), X, HIGH), "give sample_weight"),
    (lambda: rm.certify(fitted("regression by folds"), X, Z), "has no certificate of its own"),
    (lambda: rm.certify(fitted("outputs apart"), X, BOTH), "separate problems"),
    (lambda: rm.certify(fitted("kernel of classes"), X, KINDS, **WEIGHTED), r"certify model\.estimators_"),
    (lambda: rm.certify(fitted("ranking"), X, GRADE), "give qid"),
    (
        lambda: rm.ChainTagger("max_margin").fit(ONE, AB).predict_marginals(ONE),
        "has no probabilities: fit with",
    ),
    *((lambda m=m: m(ONE), r"takes one sequence: give x\[0\]") for m in ONE_BY_ONE),
    *((lambda m=m: m(["the", "dog"]), WORDS) for m in ONE_BY_ONE),
    (lambda: TAGGER.predict(np.eye(3), lengths=[3]), "was fitted to feature dicts"),
    (lambda: rm.certify(TAGGER, ONE, [["A", "D"]]), r"label 'D', which is none of the model's \(A, B\)"),
    (lambda: GridSearchCV(rm.LinearRanker(), {"alpha": [0.1]}, cv=2).fit(X, GRADE, qid=QID), ROUTED),
    (lambda: cross_val_score(rm.LinearRanker(), X, GRADE, params={"qid": QID}), ROUTED),
    (lambda: cross_val_score(rm.LinearRanker("ndcg"), X, GRADE), ROUTED),
    (lambda: fitted("ranking").score(X, GRADE), "rankings are evaluated per query: give qid"),
    (lambda: rm.get_scorer("ndcg")(fitted("ranking"), X, GRADE), "are evaluated per query: give qid"),
    (lambda: rm.certify(fitted("classes"), X, QID), "label 0 is none of the model's, a/b, a/c, d: check"),
    (
        lambda: rm.LinearRegressor(alpha=[0.1]).fit(X, Z),
        "alpha has the shape .1,., but y has .*give a number",
    ),
    (lambda: rm.LinearRegressor(alpha=[0.1, -1.0]).fit(X, np.c_[Z, Z]), "alpha=-1.0, but LinearRegressor"),
    (
        lambda: rm.LinearRegressor(rm.MultivariateSquared(), alpha=[0.1, 1.0]).fit(X, np.c_[Z, Z]),
        "all targets as one problem: give one number",
    ),
    (lambda: rm.get_scorer("accuracies"), "no scorer named 'accuracies'.* The names are roc_area, prbep, f1"),
    (lambda: rm.get_scorer("f1")(fitted("classes"), X, KINDS), "F-beta is for two classes"),
    (lambda: rm.get_scorer("average_precision")(fitted("classes"), X, KINDS), "two classes"),
    (lambda: rm.get_scorer("prbep:k=3"), "Prbep has no parameter k; it has none"),
    (lambda: rm.get_scorer("ndcg:m=3"), "Ndcg has no parameter m; it has k"),
    (lambda: rm.get_scorer("ndcg:k"), "does not read as a scorer; write it like 'precision_at_k:k=50'"),
    (lambda: rm.get_loss("Hinge"), r"named 'Hinge': did you mean 'hinge'\? The"),
    (lambda: rm.get_loss("squared-hinge"), r": did you mean 'squared_hinge'\? The names are"),
    (lambda: rm.get_loss("poison"), r": did you mean 'poisson'\? The names are"),
    (lambda: rm.get_loss("zzz"), r"chain_max_margin$"),
    (lambda: rm.get_regularizer("L1"), r": did you mean 'l1'\? The names are"),
    (lambda: rm.get_regularizer("ElasticNet"), r": did you mean 'elastic'\? The names are"),
    (lambda: rm.get_solver("L-BFGS-B"), r": did you mean 'lbfgs'\? The names are"),
    (lambda: rm.get_scorer("auc"), r": did you mean 'roc_auc'\? The names are"),
    (lambda: rm.get_scorer("acuracy"), r": did you mean 'accuracy'\? The names are"),
    (lambda: rm.LinearClassifier(C=1.0), r"LinearClassifier has no parameter 'C'.*give alpha = 1 / \(C n\)"),
    (lambda: rm.LinearRegressor(lam=1.0), "LinearRegressor has no parameter 'lam'.*give alpha"),
    (lambda: rm.ChainTagger(c2=1.0), "ChainTagger has no parameter 'c2'.*alpha = 2 c2 / n"),
    (lambda: rm.LinearClassifier(aplha=1.0), "has no parameter 'aplha': did you mean 'alpha'"),
    (lambda: rm.LinearClassifier("hinge").predict_proba, r"CalibratedClassifierCV\(LinearClassifier\('hinge"),
]


SYNONYMS = {
    rm.get_loss: "log_loss=logistic mse=squared svm=hinge pinball=quantile one_class=novelty crf=chain_crf",
    rm.get_regularizer: "lasso=l1 ridge=l2 elastic_net=elastic",
    rm.get_solver: "liblinear=dual l_bfgs_b=lbfgs sgd=pegasos fista=proximal_gradient cd=coordinate_descent",
}
"""Names in other libraries, none of which is a name here, each with the one that it suggests."""


def fits():
    """The calls of all tables of fits and of names."""
    for lookup, names in SYNONYMS.items():
        for other, name in (pair.split("=") for pair in names.split()):
            yield (
                lambda f=lookup, other=other: f(other),
                rf"'{other}': did you mean '{name}'\? The names are ",
            )
    for model, rows, y, words in OF_INPUTS:
        yield lambda m=model, X=rows, y=y: m.fit(X, y), words
    for model, words in OF_PARAMETERS:
        yield lambda m=model: m.fit(ROWS, THREE), words
    for model, y, qid, words in OF_RANKINGS:
        yield lambda m=model, y=y, qid=qid: m.fit(np.eye(3), y, qid=qid), words
    for rows, y, more, words in OF_SEQUENCES:
        yield lambda X=rows, y=y, more=more: rm.ChainTagger().fit(X, y, **more), words
    for settings, words in OF_TAGGERS:
        yield lambda settings=settings: rm.ChainTagger(**settings).fit(ONE, AB), words


test_refusals = refusals(([*fits(), *CALLS], (ValueError, TypeError, AttributeError)))


@pytest.mark.parametrize("form", [np.asarray, np.asfortranarray, sp.csr_array, sp.csc_array])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_columns_of_weight_zero_are_validated(form, bad):
    rows = np.column_stack([ROWS, np.zeros(3)])  # a feature that is always zero has weight zero
    model = rm.LinearClassifier(alpha=0.1).fit(form(rows), LABELS)
    assert model.coef_[0, 2] == 0
    rows[1, 2] = bad
    with pytest.raises(ValueError, match=r"X holds NaN or infinity \(row 1, column 2\)"):
        model.predict(form(rows))

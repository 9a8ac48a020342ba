"""Taggers: named features, label constraints, probabilities, CRFsuite, errors, files, the command."""

import gzip
import itertools
import json
import pickle

import numpy as np
import pytest
import sklearn
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import make_scorer
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import _num_samples

from riskmin import ChainCrf, ChainTagger, certify, linear_risk
from riskmin.data import DataError, load_conll, window_features
from riskmin.estimators import load_model, save_model
from riskmin.estimators.tagger.constraints import transition_rules
from riskmin.estimators.tagger.features import FeatureEncoder
from riskmin.estimators.tagger.seen_pairs import with_seen_pairs
from riskmin.linear_maps.chain import ChainMap
from riskmin.metrics import ChunkCount, chunk_counts, chunk_f1
from riskmin.metrics.chunks import chunks

BIO = ["B-NP", "B-VP", "I-NP", "I-VP", "O"]

TEXT = """\
He PRP B-NP
reckons VBZ B-VP
the DT B-NP
current JJ I-NP
deficit NN I-NP
will MD B-VP
narrow VB I-VP
. . O

Rain NN B-NP
fell VBD B-VP
"""


def sentences(n=12, seed=0, labels=("A", "B", "C")):
    """Sequences whose words determine their labels approximately."""
    rng = np.random.default_rng(seed)
    X, y = [], []
    for _ in range(n):
        tags = rng.integers(len(labels), size=rng.integers(1, 7))
        words = np.where(rng.random(len(tags)) < 0.8, tags, rng.integers(len(labels), size=len(tags)))
        X.append([{"word": f"w{word}", "bias": 1.0, "odd": bool(word % 2)} for word in words])
        y.append([labels[tag] for tag in tags])
    return X, y


@pytest.fixture(scope="module")
def fitted():
    X, y = sentences()
    return ChainTagger("crf", alpha=1e-2).fit(X, y)


# ---------------------------------------------------------------- features
def test_feature_names_follow_crfsuite():
    token = {
        "word": "the",
        "bias": 1.0,
        "width": 2.5,
        "is_upper": True,
        "is_digit": False,
        "shape": {"first": "X", "n": 3},
        "parts": ["th", "he"],
    }
    encoder = FeatureEncoder()
    row = encoder.rows([[token]])
    weights = dict(zip(encoder.index, row.toarray()[0].tolist(), strict=True))
    assert weights == {
        "word:the": 1.0,
        "bias": 1.0,
        "width": 2.5,
        "is_upper": 1.0,
        "shape:first:X": 1.0,
        "shape:n": 3.0,
        "parts:th": 1.0,
        "parts:he": 1.0,
    }


def test_names_agree_with_python_crfsuite():
    pycrfsuite = pytest.importorskip("pycrfsuite")
    tokens = [
        {"a": "x", "b": 2, "c": True, "d": {"e": "f", "g": 0.5}, "h": ["i", "j"]},
        ["k", "l"],
        {"k": 3.0},
    ]
    encoder = FeatureEncoder()
    rows = encoder.rows([tokens]).toarray()
    theirs = pycrfsuite.ItemSequence(tokens).items()
    for row, items in zip(rows, theirs, strict=True):
        assert {name: row[j] for name, j in encoder.index.items() if row[j]} == items


def test_labels_that_training_has_not_seen_are_errors_of_score_not_exceptions():
    X, y = [[["a"], ["b"]], [["c"], ["a"], ["b"]]] * 4, [["x", "y"], ["y", "x", "y"]] * 4
    model = ChainTagger().fit(X, y)
    assert model.score([[["a"], ["b"]]], [["x", "NEW"]]) == 0.5
    assert model.score(X, [[f"new {label}" for label in labels] for labels in y]) == 0.0
    # the only sequence with a label is in a test fold
    search = GridSearchCV(ChainTagger(), {"alpha": [0.01, 0.1]}, cv=3).fit([*X, [["a"]]], [*y, ["only"]])
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_unknown_features_are_ignored_and_repeated_ones_summed():
    encoder = FeatureEncoder()
    assert encoder.rows([[["a", "b", "a"]], [{"a": 2, "c": "d"}]]).toarray().tolist() == [
        [2, 1, 0],
        [2, 0, 1],
    ]
    again = FeatureEncoder(encoder.index)
    assert again.rows([[{"z": "y", "b": 3}, ["q"]]]).toarray().tolist() == [[0, 3, 0], [0, 0, 0]]


def test_rare_features_are_left_out():
    X, y = [[{"w": "a"}, {"w": "b"}], [{"w": "a"}, {"w": "a", "x": "c"}]], [["A", "B"], ["A", "A"]]
    model = ChainTagger(min_count=2).fit(X, y)
    assert list(model.features_) == ["w:a"]
    assert model.coef_.shape == (2, 1)


# ---------------------------------------------------------------- the model, by brute force
def scores(model, x, ways):
    """Scores of labellings of a sequence, given as label indices."""
    z, y = model.decision_function([x]), np.array(ways)
    total = model.start_[y[:, 0]] + model.end_[y[:, -1]] + z[np.arange(len(x)), y].sum(axis=1)
    return total + model.transitions_[y[:, :-1], y[:, 1:]].sum(axis=1)


@pytest.mark.parametrize("constraints", [None, [("A", "A"), ("B", "C"), (None, "B"), ("C", None)]])
def test_predictions_and_marginals_agree_with_enumeration(fitted, constraints):
    model = clone(fitted).set_params(constraints=constraints)
    model.__dict__.update({k: v for k, v in vars(fitted).items() if k.endswith("_")})
    forbidden = {tuple(None if a is None else "ABC".index(a) for a in pair) for pair in constraints or []}
    X = sentences(8, seed=1)[0]
    predicted, chances = model.predict(X), model.predict_marginals(X)
    for x, labels, rows in zip(X, predicted, chances, strict=True):
        ways = [
            y
            for y in itertools.product(range(3), repeat=len(x))
            if not any(pair in forbidden for pair in itertools.pairwise((None, *y, None)))
        ]
        s = scores(model, x, ways)
        assert labels == ["ABC"[a] for a in ways[int(np.argmax(s))]]
        p = np.exp(s - s.max())
        p /= p.sum()
        for t, row in enumerate(rows):
            brute = [p[[y[t] == a for y in ways]].sum() for a in range(3)]
            np.testing.assert_allclose(list(row.values()), brute, atol=1e-12)
            assert list(row) == ["A", "B", "C"]
            assert abs(sum(row.values()) - 1) < 1e-12


def test_objective_is_the_mean_over_sequences(fitted):
    X, y = sentences()
    total = 0.0
    for x, labels in zip(X, y, strict=True):
        ways = list(itertools.product(range(3), repeat=len(x)))
        s = scores(fitted, x, ways)
        total += np.logaddexp.reduce(s) - s[ways.index(tuple("ABC".index(label) for label in labels))]
    w = fitted.result_.w
    assert fitted.objective_ == pytest.approx(0.5e-2 * w @ w + total / len(X), rel=1e-9)
    assert 0 <= fitted.gap_ <= fitted.tol * fitted.objective_


@pytest.mark.parametrize(("c2", "possible_states"), [(0.05, True), (1.0, True), (0.05, False)])
def test_objective_and_weights_agree_with_crfsuite(c2, possible_states, tmp_path):
    """CRFsuite minimizes the sum of the losses plus c2 |w|^2; BOS and EOS stand for start and end."""
    pycrfsuite = pytest.importorskip("pycrfsuite")
    X, y = sentences(20)
    # a word of one label only: most of its pairs do not occur
    X[0][0]["word"] = X[2][0]["word"] = "once"
    model = ChainTagger("crf", alpha=2 * c2 / len(X), tol=1e-7, possible_states=possible_states).fit(X, y)
    trainer = pycrfsuite.Trainer(algorithm="lbfgs", verbose=False)
    trainer.set_params(
        {
            "c1": 0.0,
            "c2": c2,
            "feature.possible_states": possible_states,
            "feature.possible_transitions": True,
            "epsilon": 1e-9,
            "delta": 1e-12,
            "max_iterations": 1000,
        }
    )
    for x, labels in zip(X, y, strict=True):
        tokens = [dict(token) for token in x]
        tokens[0]["BOS"] = tokens[-1]["EOS"] = 1.0
        trainer.append(pycrfsuite.ItemSequence(tokens), labels)
    trainer.train(str(tmp_path / "model.crfsuite"))
    theirs = trainer.logparser.last_iteration["loss"]
    assert model.objective_ * len(X) == pytest.approx(theirs, rel=1e-4)
    assert model.lower_bound_ * len(X) <= theirs * (1 + 1e-6)
    tagger = pycrfsuite.Tagger()
    tagger.open(str(tmp_path / "model.crfsuite"))
    states = {key: v for key, v in tagger.info().state_features.items() if key[0] not in ("BOS", "EOS")}
    assert set(model.state_features_) == set(states)
    assert len(model.state_features_) == (18 if possible_states else 16)
    assert all(v == pytest.approx(states[key], abs=2e-3) for key, v in model.state_features_.items())
    pairs = tagger.info().transitions
    assert all(v == pytest.approx(pairs[key], abs=2e-3) for key, v in model.transition_features_.items())


@pytest.mark.exhaustive
@pytest.mark.parametrize("loss", ["crf", "max_margin", "max_margin_rescaled"])
def test_every_loss_is_certified(loss):
    X, y = sentences(6)
    model = ChainTagger(loss, alpha=0.1, tol=1e-3).fit(X, y)
    assert model.lower_bound_ <= model.objective_ <= model.lower_bound_ * (1 + 2e-3)
    assert model.score(X, y) > 0.6
    if loss != "crf":
        with pytest.raises(ValueError, match="has no probabilities: fit with loss='crf'"):
            model.predict_marginals(X)


def test_pairs_that_do_not_occur_have_no_weight(tmp_path):
    """The minimum is that with all pairs, with the weights of the others fixed at 0 by a box."""
    X, y = sentences(20)
    X[0][0]["word"] = "once"
    weight = np.r_[np.ones(19), 0.0]  # pairs of a sequence of weight 0 do not occur
    X[-1][0]["word"] = "never"
    X[-1][0]["bias"] = 2.0
    model = ChainTagger(possible_states=False, alpha=0.05, tol=1e-8).fit(X, y, sample_weight=weight)
    every = ChainTagger(alpha=0.05).fit(X, y)
    features, labels = every.features_, every.classes_.tolist()
    seen = np.zeros((len(features), 3), bool)
    for x, tags in zip(X[:-1], y[:-1], strict=True):
        for token, tag in zip(x, tags, strict=True):
            for key, value in token.items():
                name = f"{key}:{value}" if isinstance(value, str) else key
                if value:
                    seen[features[name], labels.index(tag)] = True
    assert 0 < seen.sum() < seen.size
    assert model.coef_.nnz == seen.sum() == len(model.result_.w) - 5 * 3
    np.testing.assert_array_equal(model.coef_.toarray() != 0, seen.T)
    # an independent minimization of all weights, by SciPy, with the other weights at 0
    rows = FeatureEncoder(features).rows(X)
    codes = np.array([labels.index(tag) for tags in y for tag in tags], dtype=float)
    risk = linear_risk(rows, codes, ChainCrf(), lengths=[len(x) for x in X], sample_weight=weight)
    free = np.r_[seen.ravel(), np.ones(15, bool)]

    def J(v):
        w = np.zeros(risk.dim)
        w[free] = v
        value, grad = risk(w)
        return value + 0.025 * v @ v, grad[free] + 0.05 * v

    best = minimize(J, np.zeros(free.sum()), jac=True, tol=1e-9)
    assert model.objective_ == pytest.approx(best.fun, rel=1e-6)
    assert model.lower_bound_ <= best.fun
    np.testing.assert_allclose(model.result_.w, best.x, atol=1e-3)
    assert certify(model, X, y, sample_weight=weight)
    # matrices, dense and sparse, and shards give the same weights
    lengths, flat = [len(x) for x in X], [tag for tags in y for tag in tags]
    for M in (rows.toarray(), rows):
        other = clone(model).fit(M, flat, lengths=lengths, sample_weight=weight)
        np.testing.assert_allclose(other.result_.w, model.result_.w, atol=1e-4)
        assert other.predict(M, lengths=lengths).tolist() == [
            tag for tags in model.predict(X) for tag in tags
        ]
    sharded = with_seen_pairs(linear_risk(rows, codes, ChainCrf(), lengths=lengths, n_shards=3))
    one = with_seen_pairs(linear_risk(rows, codes, ChainCrf(), lengths=lengths))
    np.testing.assert_allclose(sharded(np.ones(one.dim))[1], one(np.ones(one.dim))[1], atol=1e-12)


def test_files_and_warm_starts_keep_the_pairs(tmp_path):
    X, y = sentences(20)
    model = ChainTagger(possible_states=False, alpha=0.05).fit(X, y)
    save_model(model, tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    assert (loaded.coef_ != model.coef_).nnz == 0
    assert loaded.predict_marginals(X) == model.predict_marginals(X)
    assert loaded.set_params(warm_start=True).fit(X, y).n_iter_ <= 2
    assert ChainTagger("max_margin", alpha=0.5, possible_states=False).fit(X, y).result_.status == "converged"
    assert model.predict_single(X[0]) == model.predict(X)[0]
    assert model.predict_marginals_single(X[0]) == model.predict_marginals(X)[0]
    for method in (model.predict_single, model.predict_marginals_single):
        with pytest.raises(ValueError, match=r"takes one sequence: give x\[0\]"):
            method(X)
        with pytest.raises(ValueError, match="give a dict of features, or a list of strings, per token"):
            method(["the", "dog"])


# ---------------------------------------------------------------- constraints
def follows_bio(labels):
    before = "O"
    for label in labels:
        if label[0] == "I" and before not in (f"B{label[1:]}", label):
            return False
        before = label
    return True


def follows_bioes(labels):
    open_ = None
    for label in labels:
        part, _, kind = label.partition("-")
        if (part in "IE") != (open_ is not None) or (part in "IE" and kind != open_):
            return False
        open_ = kind if part in "BI" else None
    return open_ is None


def random_tagger(classes, constraints, seed):
    """A model with random weights: constraints must hold for all weights."""
    rng = np.random.default_rng(seed)
    model, k = ChainTagger(constraints=constraints), len(classes)
    model._set_fitted(ChainMap(k).split(3 * rng.normal(size=(4 + k + 2) * k)), np.array(classes), None, 4)
    model.result_ = None
    return model, rng


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(1, 7), min_size=1, max_size=6))
def test_constraints_are_never_violated(seed, lengths):
    bioes = [*BIO, "E-NP", "E-VP", "S-NP", "S-VP"]
    for classes, scheme, follows in ((BIO, "bio", follows_bio), (bioes, "bioes", follows_bioes)):
        model, rng = random_tagger(classes, scheme, seed)
        predicted = model.predict([rng.normal(size=(length, 4)) for length in lengths])
        assert all(follows(labels) for labels in predicted)
        assert [len(labels) for labels in predicted] == lengths


@pytest.mark.parametrize(
    ("scheme", "classes", "allowed", "forbidden"),
    [
        ("bio", BIO, ["B-NP I-NP I-NP", "O B-NP B-NP"], ["I-NP", "O I-NP", "B-VP I-NP", "I-VP I-NP"]),
        ("iob1", BIO, ["I-NP B-NP I-NP", "O I-NP I-VP"], ["B-NP", "O B-NP", "I-VP B-NP"]),
        (
            "bilou",
            ["B-X", "I-X", "L-X", "O", "U-X"],
            ["B-X I-X L-X", "U-X O"],
            ["B-X", "O L-X", "B-X O", "B-X U-X"],
        ),
    ],
)
def test_schemes(scheme, classes, allowed, forbidden):
    rules = transition_rules(scheme, classes)
    for text in allowed + forbidden:
        path = [classes.index(label) for label in text.split()]
        broken = rules.start[path[0]] or rules.end[path[-1]]
        broken = broken or any(rules.pairs[a, b] for a, b in itertools.pairwise(path))
        assert broken == (text in forbidden)


def test_unsatisfiable_constraints_are_refused():
    model, rng = random_tagger(["B-X", "E-X"], "bioes", 0)
    assert model.predict([rng.normal(size=(2, 4))]) == [["B-X", "E-X"]]
    with pytest.raises(
        ValueError, match="a sequence has 1 token, but no labeling of this length satisfies constraints"
    ):
        model.predict([rng.normal(size=(1, 4))])


# ---------------------------------------------------------------- inputs
def test_matrices_give_the_same_model(fitted):
    X, y = sentences()
    lengths = [len(x) for x in X]
    M = FeatureEncoder(fitted.features_).rows(X)
    flat = np.array([label for labels in y for label in labels])
    for matrix in (M, M.toarray(), csr_matrix(M)):
        model = ChainTagger("crf", alpha=1e-2).fit(matrix, flat, lengths=lengths)
        assert model.objective_ == pytest.approx(fitted.objective_, rel=1e-9)
        predicted = model.predict(matrix, lengths=lengths)
        assert isinstance(predicted, np.ndarray)
        assert predicted.tolist() == [label for labels in fitted.predict(X) for label in labels]
        assert model.predict_marginals(matrix, lengths=lengths).shape == (len(flat), 3)
        assert model.score(matrix, flat, lengths=lengths) == fitted.score(X, y)
    rows = np.split(M.toarray(), np.cumsum(lengths)[:-1])
    model = ChainTagger("crf", alpha=1e-2).fit(rows, y)
    assert model.predict(rows) == fitted.predict(X)


def test_sample_weights_apply_to_sequences():
    X, y = sentences(6)
    weight = np.array([2.0, 1, 0, 1, 1, 1])
    again = [i for i, w in enumerate(weight) for _ in range(int(w))]
    one = ChainTagger(alpha=0.1, tol=1e-8).fit(X, y, sample_weight=weight)
    two = ChainTagger(alpha=0.1, tol=1e-8).fit([X[i] for i in again], [y[i] for i in again])
    assert one.objective_ == pytest.approx(two.objective_, rel=1e-7)
    assert one.weighted_
    assert not two.weighted_


def test_empty_sequences_in_predict(fitted):
    assert fitted.predict([[], [{"word": "w0"}], []]) == [[], ["A"], []]
    assert fitted.predict([[]]) == [[]]
    assert fitted.predict_marginals([[]]) == [[]]


def test_labels_may_be_numbers():
    X, y = sentences(labels=(3, 7, 11))
    model = ChainTagger(alpha=1e-2).fit(X, y)
    assert model.classes_.tolist() == [3, 7, 11]
    assert set(itertools.chain(*model.predict(X))) <= {3, 7, 11}


@pytest.mark.parametrize(
    ("X", "y", "more", "message"),
    [
        ([[{"a": 1}], []], [["A"], []], {}, "sequence 1 is empty: leave it out"),
        ([], [], {}, "X holds no sequences: give at least one"),
        ([[{"a": 1}]], [["A"], ["B"]], {}, "X has 1 sequences, but y has 2"),
        ([[{"a": 1}], [{"a": 1}] * 2], [["A"], ["B"]], {}, "sequence 1 has 2 tokens, but 1 labels"),
        (
            [[{"a": 1}, {"a": np.nan}]],
            [["A", "B"]],
            {},
            "token 1 of sequence 0 has the weight nan for the feature 'a'",
        ),
        ([[{"a": 1}, {"a": 2}]], [["A", "A"]], {}, "y holds one class only, 'A'"),
        ([[{"a": 1}, {"a": 2}]], [["A", 3]], {}, "y holds labels of several kinds"),
        ([[{"a": 1}, {"a": None}]], [["A", "B"]], {}, "the value None for the feature 'a'"),
        ([[{"a": 1}, 7]], [["A", "B"]], {}, "sequence 0 has the token 7: give a dict of features"),
        ([[{}, {}]], [["A", "B"]], {}, "no token has a feature that counts"),
        ([[{3: 1}, {}]], [["A", "B"]], {}, "features are named by strings"),
        (np.eye(2), ["A", "B"], {}, "X is a matrix: give lengths"),
        (np.eye(2), ["A", "B"], {"lengths": [1, 2]}, "lengths sum to 3, but X has 2 rows"),
        (np.eye(2), ["A"], {"lengths": [2]}, "y has 1 labels, but X has 2 rows"),
        (np.eye(2), ["A", "B"], {"lengths": [2.5]}, "lengths must be whole numbers"),
        ([[{"a": 1}, {"b": 2}]], [["A", "B"]], {"sample_weight": [1, 1]}, "but there are 1 sequences"),
        ("text", ["A"], {}, "X is 'text': give a list of sequences"),
        ([[{"a": 1}, {"b": 2}]], ["A", "B"], {}, "y must hold a list of labels for each sequence"),
    ],
)
def test_errors(X, y, more, message):
    with pytest.raises(ValueError, match=message) as caught:
        ChainTagger().fit(X, y, **more)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"loss": "hinge"}, "Hinge is a loss for classification, not for tagging: use LinearClassifier"),
        ({"constraints": "bio"}, "constraints='bio' is for labels B-X, I-X, O, but there is 'A'"),
        ({"constraints": "iobes"}, "constraints='iobes' is not known: use bio"),
        ({"constraints": ["AB"]}, "give pairs"),
        ({"constraints": [(None, "A"), (None, "B"), (None, "C")]}, "lets no sequence begin"),
        ({"template": "windows"}, "template='windows' is not known"),
        ({"template": "window"}, "template='window' takes the columns of tokens.*but sequence 0 has others"),
        ({"min_count": 0}, "min_count=0, but ChainTagger needs min_count to be an integer >= 1"),
        ({"alpha": 0}, "alpha=0, but ChainTagger needs alpha"),
    ],
)
def test_parameters_are_checked(parameters, message):
    with pytest.raises(ValueError, match=message):
        ChainTagger(**parameters).fit(*sentences(4))


def test_a_new_label_is_named(fitted):
    with pytest.raises(ValueError, match=r"y holds the label 'D', which is none of the model's \(A, B, C\)"):
        certify(fitted, [[{"word": "w0"}]], [["D"]])


def test_unfitted_and_inconsistent_models_raise(fitted):
    with pytest.raises(NotFittedError):
        ChainTagger().predict([[{"a": 1}]])
    with pytest.raises(ValueError, match="was fitted to feature dicts"):
        fitted.predict(np.eye(3), lengths=[3])


# ---------------------------------------------------------------- scikit-learn
class OneSequence(ChainTagger):
    """A tagger of one sequence, for checks that pass the rows of a matrix without lengths."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        return tags

    def fit(self, X, y):
        return super().fit(X, y, lengths=[_num_samples(X)])

    def predict(self, X):
        return super().predict(X, lengths=[_num_samples(X)])

    def decision_function(self, X):
        return super().decision_function(X, lengths=[_num_samples(X)])

    def score(self, X, y):
        return super().score(X, y, lengths=[_num_samples(X)])


NOT_OF_SEQUENCES = dict.fromkeys(
    ["check_methods_sample_order_invariance", "check_methods_subset_invariance"],
    "the labels of tokens depend on their neighbors",
)


@parametrize_with_checks(
    [OneSequence(alpha=0.1, possible_states=False)], expected_failed_checks=lambda m: NOT_OF_SEQUENCES
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def test_metadata_routing_passes_weights_of_sequences():
    X, y = sentences(12)
    weight = np.r_[np.ones(11), 0.0]
    with sklearn.config_context(enable_metadata_routing=True):
        tagger = ChainTagger().set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        scores = cross_val_score(tagger, X, y, params={"sample_weight": weight}, cv=2)
    halves = [(slice(6, 12), slice(0, 6)), (slice(0, 6), slice(6, 12))]
    for (train, test), score in zip(halves, scores, strict=True):
        model = ChainTagger().fit(X[train], y[train], weight[train])
        assert score == pytest.approx(model.score(X[test], y[test], weight[test]))


def test_clone_pickle_and_parameters(fitted):
    X, _ = sentences(seed=2)
    assert clone(fitted).get_params() == fitted.get_params()
    assert pickle.loads(pickle.dumps(fitted)).predict(X) == fitted.predict(X)
    assert ChainTagger(ChainCrf()).get_params()["loss"] == ChainCrf()


@pytest.mark.slow
def test_grid_search_over_lists():
    X, y = sentences(18, labels=("B-X", "I-X", "O"))
    search = GridSearchCV(
        ChainTagger(constraints="bio"), {"alpha": [100.0, 1e-2]}, cv=3, scoring=make_scorer(chunk_f1)
    ).fit(X, y)
    assert search.best_params_["alpha"] == 1e-2
    assert GridSearchCV(ChainTagger(), {"alpha": [100.0, 1e-2]}, cv=3).fit(X, y).best_score_ > 0.5


def test_warm_start_keeps_common_features(fitted):
    X, y = sentences()
    again = pickle.loads(pickle.dumps(fitted)).set_params(warm_start=True, max_iter=1, tol=1.0).fit(X, y)
    assert again.objective_ <= fitted.objective_ * (1 + 1e-9)
    renamed = [["D" if label == "C" else label for label in labels] for labels in y]
    more = [[{**token, "new": 1.0} for token in x] for x in X]
    other = pickle.loads(pickle.dumps(fitted)).set_params(warm_start=True).fit(more, renamed)
    assert other.classes_.tolist() == ["A", "B", "D"]
    assert other.gap_ <= other.tol * other.objective_


def test_files_keep_the_model(fitted, tmp_path):
    X, _ = sentences(seed=3)
    fitted_names = dict(fitted.features_)
    save_model(fitted, tmp_path / "m")
    model = load_model(tmp_path / "m")
    assert model.features_ == fitted_names
    assert model.predict(X) == fitted.predict(X)
    assert model.predict_marginals(X) == fitted.predict_marginals(X)
    assert (model.loss, model.objective_, model.lower_bound_) == (
        "crf",
        fitted.objective_,
        fitted.lower_bound_,
    )
    np.testing.assert_array_equal(model.transitions_, fitted.transitions_)
    strange = pickle.loads(pickle.dumps(fitted)).set_params(template=len)
    with pytest.raises(ValueError, match="not plain data"):
        save_model(strange, tmp_path / "m")


# ---------------------------------------------------------------- chunks
@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("O I-NP I-NP O", [(1, 3, "NP")]),
        ("I-NP B-NP I-NP", [(0, 1, "NP"), (1, 3, "NP")]),
        ("B-NP I-VP I-VP", [(0, 1, "NP"), (1, 3, "VP")]),
        ("B-NP B-NP O B-NP", [(0, 1, "NP"), (1, 2, "NP"), (3, 4, "NP")]),
        ("S-NP B-NP E-NP E-NP O", [(0, 1, "NP"), (1, 3, "NP"), (3, 4, "NP")]),
        ("B-A-B I-A-B", [(0, 2, "A-B")]),
        ("B I O", [(0, 2, "")]),
        ("", []),
    ],
)
def test_chunks_agree_with_conlleval(labels, expected):
    assert chunks(labels.split()) == expected


def test_chunks_are_counted_by_type():
    true = [["B-NP", "I-NP", "O", "B-VP"], ["B-NP", "B-NP"]]
    predicted = [["B-NP", "I-NP", "I-NP", "B-VP"], ["B-NP", "I-NP"]]
    # predicted: NP(0-3), VP(3), NP(0-2); only VP is correct
    assert chunk_counts(true, predicted) == {"NP": ChunkCount(3, 2, 0), "VP": ChunkCount(1, 1, 1)}
    assert chunk_f1(true, predicted) == 2 * 1 / (4 + 3)
    assert chunk_f1(true, true) == 1
    assert chunk_f1([["O"]], [["O"]]) == 0
    count = ChunkCount(4, 3, 1)
    assert (count.precision, count.recall) == (1 / 3, 1 / 4)
    assert count.f1 == pytest.approx(2 / (3 + 4))


@pytest.mark.parametrize(
    ("true", "predicted", "message"),
    [
        ([["O"]], [], "y_true has 1 sequences and y_pred 0"),
        ([["O"]], [["O", "O"]], "sequence 0 has 1 true labels and 2 predicted"),
        ([["NN"]], [["O"]], "'NN' marks no part of a chunk"),
        (["O"], ["O"], "must come in sequences"),
    ],
)
def test_labels_without_chunks_are_refused(true, predicted, message):
    with pytest.raises(ValueError, match=message):
        chunk_f1(true, predicted)


# ---------------------------------------------------------------- files of sentences
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_sentences_are_read(tmp_path, ending):
    text = "# text = He\n\n\n" + TEXT.replace(" ", "\t", 1) + "\n# # B-NP\n# a longer comment\n6 CD I-NP"
    (tmp_path / "a.conll").write_bytes(text.replace("\n", ending).encode())
    (tmp_path / "b.conll.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("a.conll", "b.conll.gz"):
        tokens, labels = load_conll(tmp_path / name)
        assert [len(sentence) for sentence in tokens] == [8, 2, 2]
        assert tokens[1] == [("Rain", "NN"), ("fell", "VBD")]
        assert tokens[2] == [("#", "#"), ("6", "CD")]
        assert labels[1:] == [["B-NP", "B-VP"], ["B-NP", "I-NP"]]
    tokens, labels = load_conll(tmp_path / "a.conll", comments=True, target=0)
    assert tokens[0][0] == ("PRP", "B-NP")
    assert labels[-1] == ["6"]
    assert load_conll(tmp_path / "a.conll", n_columns=3).labels is None
    assert load_conll(tmp_path / "a.conll", n_columns=2).labels is not None


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        (TEXT + "and CC", {}, "line 12: 2 columns where other tokens have 3: 'and CC'; add the missing"),
        (TEXT + "and CC O x", {}, "line 12: 4 columns where other tokens have 3.*remove the extra columns"),
        ("\n\n", {}, "it has no tokens"),
        (TEXT, {"target": 3}, "there is no column 3: it has 3 columns"),
        (TEXT, {"n_columns": 1}, "it has 3 columns where 1 columns, or 2 with labels are expected"),
        ("a\nb\n", {}, "it has one column"),
        ("caf\xe9 NN O", {}, "it is not text in utf-8"),
    ],
)
def test_errors_in_files_name_the_line(tmp_path, text, more, message):
    path = tmp_path / "a.conll"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=message) as caught:
        load_conll(path, **more)
    assert str(path) in str(caught.value)


def test_truncated_files_are_refused(tmp_path):
    path = tmp_path / "a.conll.gz"
    path.write_bytes(gzip.compress(TEXT.encode() * 50)[:-20])
    with pytest.raises(DataError, match="truncated"):
        load_conll(path)


def test_window_features_follow_crfsuite():
    sentence = [(word, tag) for word, tag in zip("abcde", "vwxyz", strict=True)]
    features = window_features(sentence)
    assert len(features[2]) == 19
    assert features[2]["w[-2]"] == "a"
    assert features[2]["w[-1]|w[0]"] == "b|c"
    assert features[2]["pos[0]|pos[1]|pos[2]"] == "x|y|z"
    assert set(features[0]) == {
        *("w[0]", "w[1]", "w[2]", "w[0]|w[1]", "pos[0]", "pos[1]", "pos[2]"),
        *("pos[0]|pos[1]", "pos[1]|pos[2]", "pos[0]|pos[1]|pos[2]"),
    }
    assert [set(one) for one in window_features([("a",)])] == [{"w[0]"}]
    assert window_features([]) == []


# ---------------------------------------------------------------- the command
@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "train.conll"
    path.write_text(TEXT)
    return path


@pytest.mark.slow
def test_command_with_a_tagger(tmp_path, corpus, run):
    model = tmp_path / "m.riskmin"
    code, out, _ = run(
        "fit", corpus, "--loss", "chain_crf", "--lam", 1e-2, "--constraints", "bio", "-o", model
    )
    assert code == 0
    assert "2 sentences of 10 tokens" in out
    bare = tmp_path / "bare.conll"
    bare.write_text("\n".join(" ".join(line.split()[:2]) for line in TEXT.splitlines()))
    code, out, _ = run("predict", model, bare)
    assert (code, out) == (0, TEXT)
    code, out, _ = run("predict", model, corpus)
    assert out.splitlines()[0] == "He PRP B-NP B-NP"
    code, out, _ = run("predict", model, corpus, "--proba")
    rows = [[float(cell) for cell in line.split()] for line in out.splitlines()]
    assert [len(row) for row in rows] == [5] * 8 + [0] + [5] * 2
    assert all(sum(row) == pytest.approx(1) for row in rows if row)
    code, out, _ = run("evaluate", model, corpus, "--json")
    metrics = json.loads(out)
    assert metrics["accuracy"] == 1
    assert metrics["chunks"]["all"]["F1"] == 1
    assert metrics["chunks"]["NP"] == {
        "precision": 1,
        "recall": 1,
        "F1": 1,
        "true": 3,
        "predicted": 3,
        "correct": 3,
    }
    code, out, _ = run("evaluate", model, corpus)
    assert " 100.00%" in out
    assert run("certify", model, corpus, "--quiet")[0] == 0
    other = tmp_path / "other.conll"
    other.write_text(TEXT.replace("narrow VB I-VP", "narrow VB B-VP"))
    code, _, err = run("certify", model, other, "--quiet")
    assert code == 1
    assert "not" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss", [pytest.param("chain_max_margin", marks=pytest.mark.exhaustive), "chain_max_margin:rescaled=1"]
)
def test_command_certifies_max_margin_taggers(tmp_path, corpus, run, loss):
    model = tmp_path / "m.riskmin"
    assert run("fit", corpus, "--loss", loss, "--lam", 0.1, "-o", model, "--quiet")[0] == 0
    assert run("certify", model, corpus, "--quiet")[0] == 0
    code, out, _ = run("evaluate", model, corpus, "--json")
    assert code == 0
    assert json.loads(out)["mean loss"] >= 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["fit", "DATA", "-o", "m"], "holds sentences, which are for taggers: fit one by --loss chain_crf"),
        (["fit", "DATA", "--constraints", "bio", "-o", "m"], "--constraints is for tagging"),
        (["fit", "DATA", "--loss", "chain_crf", "--target", "pos", "-o", "m"], "columns have no names"),
        (["fit", "DATA", "--loss", "chain_crf", "--positive", "-o", "m"], "--positive is for models of rows"),
        (["path", "DATA", "--loss", "chain_crf"], "path is for models of rows"),
        (["cv", "DATA", "--loss", "chain_crf", "-o", "m"], "cv is for models of rows"),
    ],
)
def test_errors_of_the_command(tmp_path, corpus, run, monkeypatch, args, message):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(*[corpus if arg == "DATA" else arg for arg in args])
    assert code == 2
    assert message in err


def test_pairs_of_many_shards_are_found():
    X, y = csr_matrix(np.tile(np.eye(2), (256, 1))), np.tile([0, 1], 256)
    found = [
        with_seen_pairs(linear_risk(X, y, ChainCrf(), lengths=[2] * 256, n_outputs=2, n_shards=n)).dim
        for n in (1, 256)
    ]
    assert found[0] == found[1]

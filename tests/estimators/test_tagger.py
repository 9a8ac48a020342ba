"""Taggers: named features, label constraints, probabilities, CRFsuite and the command."""

import copy
import itertools
import json
from functools import cache

import numpy as np
import pytest
import sklearn
from estimator_cases import RemoteExecutor, close_minima, partitioned
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score

from riskmin import ChainTagger, certify, load_model, save_model

BIO = ["B-NP", "B-VP", "I-NP", "I-VP", "O"]
BIOES = [*BIO, "E-NP", "E-VP", "S-NP", "S-VP"]
BILOU = ["B-X", "I-X", "L-X", "O", "U-X"]

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


def flat(sequences):
    return [label for labels in sequences for label in labels]


def encoded(model, X):
    """The tokens as rows of a matrix, by the names of their features."""
    rows = np.zeros((len(flat(X)), len(model.features_)))
    for row, token in zip(rows, flat(X), strict=True):
        for key, value in token.items():
            name = f"{key}:{value}" if isinstance(value, str) else key
            if name in model.features_:
                row[model.features_[name]] = 1.0 if isinstance(value, str) else value
    return rows


@pytest.fixture(scope="module")
def fitted():
    return ChainTagger("crf", alpha=1e-2).fit(*sentences())


# ---------------------------------------------------------------- features
TOKENS = [
    {"a": "x", "b": 2, "c": True, "no": False, "d": {"e": "f", "g": 0.5}, "h": ["i", "j"]},
    ["k", "l", "k"],
    {"k": 3.0},
]
ITEMS = [
    {"a:x": 1.0, "b": 2.0, "c": 1.0, "d:e:f": 1.0, "d:g": 0.5, "h:i": 1.0, "h:j": 1.0},
    {"k": 2.0, "l": 1.0},
    {"k": 3.0},
]
"""The names and weights of the features of the tokens, as of CRFsuite; repeated ones are summed."""


def test_names_and_weights_of_features_follow_crfsuite():
    model = ChainTagger(alpha=0.1).fit([TOKENS], [["A", "B", "A"]])
    assert set(model.features_) == set().union(*ITEMS)
    unknown = [{"z": "y", "b": 3}, ["q"]]
    z = model.decision_function([TOKENS, unknown])
    for row, items in zip(z, [*ITEMS, {"b": 3.0}, {}], strict=True):
        expected = sum(v * model.coef_[:, model.features_[name]] for name, v in items.items())
        np.testing.assert_allclose(row, expected + np.zeros(2), atol=1e-12)
    pycrfsuite = pytest.importorskip("pycrfsuite")
    theirs = pycrfsuite.ItemSequence([TOKENS[0], TOKENS[2]]).items()
    assert [{k: v for k, v in items.items() if v} for items in theirs] == [ITEMS[0], ITEMS[2]]


def test_rare_features_are_left_out():
    X, y = [[{"w": "a"}, {"w": "b"}], [{"w": "a"}, {"w": "a", "x": "c"}]], [["A", "B"], ["A", "A"]]
    model = ChainTagger(min_count=2).fit(X, y)
    assert list(model.features_) == ["w:a"]
    assert model.coef_.shape == (2, 1)


def test_labels_that_training_has_not_seen_are_errors_of_score_not_exceptions():
    X, y = [[["a"], ["b"]], [["c"], ["a"], ["b"]]] * 4, [["x", "y"], ["y", "x", "y"]] * 4
    model = ChainTagger().fit(X, y)
    assert model.score([[["a"], ["b"]]], [["x", "NEW"]]) == 0.5
    assert model.score(X, [[f"new {label}" for label in labels] for labels in y]) == 0.0
    # the only sequence with a label is in a test fold
    search = GridSearchCV(ChainTagger(), {"alpha": [0.01, 0.1]}, cv=3).fit([*X, [["a"]]], [*y, ["only"]])
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


# ---------------------------------------------------------------- the model, by brute force
def scores(model, x, ways):
    """Scores of labellings of a sequence, given as label indices."""
    z, y = model.decision_function([x]), np.array(ways)
    total = model.start_[y[:, 0]] + model.end_[y[:, -1]] + z[np.arange(len(x)), y].sum(axis=1)
    return total + model.transitions_[y[:, :-1], y[:, 1:]].sum(axis=1)


@pytest.mark.parametrize("constraints", [None, [("A", "A"), ("B", "C"), (None, "B"), ("C", None)]])
def test_predictions_and_marginals_agree_with_enumeration(fitted, constraints):
    model = copy.deepcopy(fitted).set_params(constraints=constraints)
    forbidden = {tuple(None if a is None else "ABC".index(a) for a in pair) for pair in constraints or []}
    X = sentences(6, seed=1)[0]
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


def test_pairs_that_do_not_occur_have_no_weight(tmp_path):
    """The comparison with CRFsuite says that the minimum is that of the others."""
    X, y = sentences(20)
    X[0][0]["word"] = "once"
    weight = np.r_[np.ones(19), 0.0]  # pairs of a sequence of weight 0 do not occur
    X[-1][0]["word"] = "never"
    model = ChainTagger(possible_states=False, alpha=0.05, tol=1e-8).fit(X, y, sample_weight=weight)
    every = ChainTagger(alpha=0.05).fit(X, y)
    rows, labels, lengths = encoded(every, X), every.classes_.tolist(), [len(x) for x in X]
    codes = np.array([labels.index(tag) for tag in flat(y)])
    counted = slice(len(codes) - lengths[-1])
    seen = np.stack([(rows[counted][codes[counted] == k] != 0).any(axis=0) for k in range(3)], axis=1)
    assert 0 < seen.sum() < seen.size
    assert model.coef_.nnz == seen.sum() == len(model.result_.w) - 5 * 3
    np.testing.assert_array_equal(model.coef_.toarray() != 0, seen.T)
    assert certify(model, X, y, sample_weight=weight)
    # matrices, dense and sparse, and partitions give the same weights
    ends = np.cumsum([0, *lengths])[[0, 7, 13, 20]]
    for matrix in (rows, csr_matrix(rows), partitioned(csr_matrix(rows), RemoteExecutor(), ends)):
        other = clone(model).fit(matrix, flat(y), lengths=lengths, sample_weight=weight)
        np.testing.assert_allclose(other.result_.w, model.result_.w, atol=1e-3)
    save_model(model, tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    assert (loaded.coef_ != model.coef_).nnz == 0
    assert loaded.features_ == model.features_
    assert loaded.predict_marginals(X) == model.predict_marginals(X)
    again = loaded.set_params(warm_start=True).fit(X, y, sample_weight=weight)
    assert again.n_iter_ <= 2


def test_one_sequence_is_predicted_as_one_of_many(fitted):
    X, _ = sentences(3)
    assert fitted.predict_single(X[0]) == fitted.predict(X)[0]
    assert fitted.predict_marginals_single(X[0]) == fitted.predict_marginals(X)[0]
    assert fitted.predict([[], [{"word": "w0"}], []]) == [[], ["A"], []]
    assert fitted.predict_marginals([[]]) == [[]]


# ---------------------------------------------------------------- constraints
@cache
def by_word(*classes):
    """A model without constraints, which gives to the word of a label that label."""
    words = [*itertools.product(classes, repeat=2)]
    X = [[{"word": label} for label in pair] for pair in words]
    return ChainTagger(alpha=1e-4).fit(X, [list(pair) for pair in words])


def constrained(scheme, classes):
    return copy.deepcopy(by_word(*classes)).set_params(constraints=scheme)


@pytest.mark.parametrize(
    ("scheme", "classes", "allowed", "forbidden"),
    [
        ("bio", BIO, ["B-NP I-NP I-NP", "O B-NP B-NP"], ["I-NP", "O I-NP", "B-VP I-NP", "I-VP I-NP"]),
        ("iob1", BIO, ["I-NP B-NP I-NP", "O I-NP I-VP"], ["B-NP", "O B-NP", "I-VP B-NP"]),
        ("bilou", BILOU, ["B-X I-X L-X", "U-X O"], ["B-X", "O L-X", "B-X O", "B-X U-X"]),
        ("bioes", BIOES, ["B-NP I-NP E-NP", "S-VP O B-VP E-VP"], ["B-NP", "I-NP", "B-NP E-VP", "O E-NP"]),
    ],
)
def test_schemes_allow_and_forbid_labels(scheme, classes, allowed, forbidden):
    """What is predicted instead of a forbidden labeling is allowed."""
    model = constrained(scheme, classes)
    for text in allowed + forbidden:
        labels = text.split()
        predicted = model.predict_single([{"word": label} for label in labels])
        assert (predicted == labels) == (text in allowed)
        again = model.predict_single([{"word": label} for label in predicted])
        assert again == predicted


def test_unsatisfiable_constraints_are_refused():
    model = constrained("bioes", ["B-X", "E-X"])
    assert model.predict_single([{"word": "B-X"}] * 2) == ["B-X", "E-X"]
    words = "a sequence has 1 token, but no labeling of this length satisfies constraints"
    with pytest.raises(ValueError, match=words):
        model.predict_single([{"word": "B-X"}])


# ---------------------------------------------------------------- inputs
def test_matrices_give_the_same_model(fitted):
    X, y = sentences()
    lengths, rows, labels = [len(x) for x in X], encoded(fitted, X), np.array(flat(y))
    for matrix in (rows, csr_matrix(rows)):
        model = ChainTagger("crf", alpha=1e-2).fit(matrix, labels, lengths=lengths)
        assert model.objective_ == pytest.approx(fitted.objective_, rel=1e-6)
        predicted = model.predict(matrix, lengths=lengths)
        assert isinstance(predicted, np.ndarray)
        assert predicted.tolist() == flat(fitted.predict(X))
        assert model.predict_marginals(matrix, lengths=lengths).shape == (len(labels), 3)
        assert model.score(matrix, labels, lengths=lengths) == fitted.score(X, y)
    split = np.split(rows, np.cumsum(lengths)[:-1])
    assert ChainTagger("crf", alpha=1e-2).fit(split, y).predict(split) == fitted.predict(X)


def test_weights_of_sequences_are_repetitions_and_routed():
    X, y = sentences(6, labels=(3, 7, 11))  # labels may be numbers
    weight = np.array([2.0, 1, 0, 1, 1, 1])
    again = [i for i, w in enumerate(weight) for _ in range(int(w))]
    one = ChainTagger(alpha=0.1, tol=1e-8).fit(X, y, sample_weight=weight)
    two = ChainTagger(alpha=0.1, tol=1e-8).fit([X[i] for i in again], [y[i] for i in again])
    assert one.objective_ == pytest.approx(two.objective_, rel=1e-7)
    assert (one.weighted_, two.weighted_) == (True, False)
    assert set(flat(one.predict(X))) <= {3, 7, 11}
    X, y, weight = *sentences(12), np.r_[np.ones(11), 0.0]
    with sklearn.config_context(enable_metadata_routing=True):
        tagger = ChainTagger().set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        found = cross_val_score(tagger, X, y, params={"sample_weight": weight}, cv=2)
    for (train, test), score in zip([(slice(6, 12), slice(6)), (slice(6), slice(6, 12))], found, strict=True):
        model = ChainTagger().fit(X[train], y[train], weight[train])
        assert score == pytest.approx(model.score(X[test], y[test], weight[test]))


def test_a_warm_start_keeps_common_features(fitted):
    X, y = sentences()
    renamed = [["D" if label == "C" else label for label in labels] for labels in y]
    more = [[{**token, "new": 1.0} for token in x] for x in X]
    other = copy.deepcopy(fitted).set_params(warm_start=True).fit(more, renamed)
    assert other.classes_.tolist() == ["A", "B", "D"]
    close_minima(other, ChainTagger("crf", alpha=1e-2).fit(more, renamed))


# ---------------------------------------------------------------- the command
@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "train.conll"
    path.write_text(TEXT)
    return path


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
    rates, counts = ("precision", "recall", "F1"), ("true", "predicted", "correct")
    assert metrics["chunks"]["NP"] == dict.fromkeys(rates, 1) | dict.fromkeys(counts, 3)
    code, out, _ = run("evaluate", model, corpus)
    assert " 100.00%" in out

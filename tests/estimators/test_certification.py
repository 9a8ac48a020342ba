"""`riskmin.certify`: every estimator's certificate holds on its data, and a false claim is refuted."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import clone

import riskmin
from riskmin import certify

RNG = np.random.default_rng(3)
N, P = 90, 4
X = RNG.standard_normal((N, P)) + 0.5
SCORE = X @ np.array([1.0, -0.5, 0.2, 0.0]) + 0.3 * RNG.standard_normal(N)
HIGH = np.where(SCORE > 0.1, "yes", "no")
THREE = np.digitize(SCORE, [-0.3, 0.6])
QID = np.repeat(np.arange(9), 10)
WEIGHT = RNG.integers(0, 3, N).astype(float)
WORDS = [[{"word": w} for w in sentence.split()] for sentence in ("a b a", "b a", "a", "b b a")]
TAGS = [["A", "B", "A"], ["B", "A"], ["A"], ["B", "B", "A"]]

CASES = {
    "hinge": (riskmin.LinearClassifier(alpha=1e-2), HIGH, {}),
    "weighted": (riskmin.LinearClassifier("logistic", alpha=1e-2), HIGH, {"sample_weight": WEIGHT}),
    "balanced": (riskmin.LinearClassifier(alpha=1e-2, class_weight="balanced", standardize=True), HIGH, {}),
    "balanced and weighted": (
        riskmin.LinearClassifier(alpha=1e-2, class_weight="balanced", standardize=True),
        HIGH,
        {"sample_weight": WEIGHT},
    ),
    "f1": (riskmin.LinearClassifier("f1", alpha=1e-1), HIGH, {}),
    "f1 weighted": (riskmin.LinearClassifier("f1", alpha=1e-1), HIGH, {"sample_weight": (WEIGHT > 0) * 1.0}),
    "three classes": (riskmin.LinearClassifier("logistic", alpha=1e-2), THREE, {}),
    "regression": (riskmin.LinearRegressor("huber", alpha=1e-2), SCORE, {}),
    "outputs": (riskmin.LinearRegressor(alpha=1e-2), np.stack([SCORE, X[:, 0]], axis=1), {}),
    "nu": (riskmin.LinearRegressor(riskmin.Nu(riskmin.Absolute(), 0.3), alpha=1e-2), SCORE, {}),
    "novelty": (riskmin.NoveltyDetector(alpha=1e-1), None, {}),
    "ordinal": (riskmin.OrdinalClassifier(alpha=1e-2), THREE, {"sample_weight": WEIGHT}),
    "ranking": (riskmin.LinearRanker(alpha=1e-2), THREE, {"qid": QID}),
    "tree": (riskmin.HierarchicalClassifier(alpha=1e-2), np.array(["a/x", "a/y", "b"])[THREE], {}),
    "kernel": (riskmin.KernelClassifier(alpha=1e-2), HIGH, {}),
    "kernel weighted": (riskmin.KernelRegressor(alpha=1e-2), SCORE, {"sample_weight": WEIGHT}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_certificate_of_every_estimator_holds(name):
    model, y, more = CASES[name]
    model = clone(model).fit(X, y, **more)
    certification = certify(model, X, y, **more)
    assert certification.status == "certified", certification.reason
    assert certification
    assert certification.value == pytest.approx(model.objective_, rel=1e-9)
    assert certification.lower <= certification.value
    assert certification.gap <= max(model.gap_, 1e-6 * certification.value) * (1 + 1e-6)


def test_taggers_are_certified_with_sequences_and_with_a_matrix():
    model = riskmin.ChainTagger(alpha=1e-2).fit(WORDS, TAGS)
    assert certify(model, WORDS, TAGS).status == "certified"
    rows, lengths = sp.csr_array(np.eye(2)[[0, 1, 0, 1, 0, 0, 1, 1, 0]]), [3, 2, 1, 3]
    flat = [tag for tags in TAGS for tag in tags]
    weight = np.array([1.0, 2.0, 1.0, 0.5])
    model = riskmin.ChainTagger(alpha=1e-2).fit(rows, flat, weight, lengths)
    assert certify(model, rows, flat, sample_weight=weight, lengths=lengths).status == "certified"


def test_frames_and_loaded_models(tmp_path):
    frame = pd.DataFrame(X, columns=list("abcd"))
    model = riskmin.LinearClassifier(alpha=1e-2, standardize=True).fit(frame, HIGH)
    riskmin.save_model(model, tmp_path / "model")
    assert certify(riskmin.load_model(tmp_path / "model"), frame, pd.Series(HIGH))


def test_a_looser_gap_is_bounded_and_limits_leave_it_open():
    model = riskmin.LinearClassifier(alpha=1e-3, tol=1e-5).fit(X, HIGH)
    assert certify(model, X, HIGH, tol=0.5, solver="bmrm").status in ("bounded", "certified")
    certification = certify(model, X, HIGH, solver="bmrm", max_iter=1)
    assert certification.status == "open"
    assert not certification
    assert certification.proof.n_iter == 1


def test_false_claims_are_refuted_without_a_proof():
    model = riskmin.LinearClassifier(alpha=1e-2).fit(X, HIGH)
    certification = certify(model, X, HIGH[::-1])
    assert certification.status == "refuted"
    assert "as claimed" in certification.reason
    assert (certification.proof, certification.lower) == (None, -np.inf)
    model.result_ = dataclasses.replace(model.result_, cut=riskmin.Cut(np.zeros(P), 0.9 * model.objective_))
    model.lower_bound_ = 0.9 * model.objective_
    assert certify(model, X, HIGH).status == "refuted"


def test_what_cannot_be_certified_raises():
    with pytest.raises(ValueError, match="give sample_weight"):
        certify(riskmin.LinearClassifier().fit(X, HIGH, WEIGHT), X, HIGH)
    with pytest.raises(ValueError, match="LinearRegressorCV has no certificate of its own"):
        certify(riskmin.LinearRegressorCV(alphas=[0.1], cv=2).fit(X, SCORE), X, SCORE)
    targets = np.stack([SCORE, X[:, 0]], axis=1)
    with pytest.raises(ValueError, match="separate problems"):
        certify(riskmin.LinearRegressor("huber").fit(X, targets), X, targets)
    with pytest.raises(ValueError, match="give qid"):
        certify(riskmin.LinearRanker(alpha=1e-2).fit(X, THREE, qid=QID), X, THREE)
    with pytest.raises(ValueError, match="the label maybe is none of the model's, no and yes"):
        certify(riskmin.LinearClassifier().fit(X, HIGH), X, np.where(HIGH == "yes", "maybe", "no"))


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"atol": 1e-8}, {"atol": 0.0}, {"alpha": 0}], ids=repr)
@pytest.mark.parametrize(("loss", "count"), [("poisson", 7), ("poisson", 3e6), ("squared", 7)])
def test_objectives_that_are_zero_up_to_rounding_are_certified(loss, count, settings):
    """The terms of the loss cancel, so that J has no relative precision: it may be negative."""
    for seed in range(2):
        rng = np.random.default_rng(seed)
        rows = rng.standard_normal((int(rng.integers(3, 60)), 3))
        y, weight = np.full(len(rows), float(count)), rng.integers(0, 3, len(rows)) + 0.0
        for more in ({}, {"sample_weight": np.append(weight[1:], 1.0)}):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = riskmin.LinearRegressor(loss, **({"alpha": 1e-3} | settings)).fit(rows, y, **more)
            certification = certify(model, rows, y, **more)
            assert certification.status == "certified", certification.reason
            # no relative gap of an objective of 0 is proved, but nothing is refuted
            assert certify(model, rows, y, tol=1e-3, **more).status != "refuted"


def test_false_claims_of_a_zero_objective_are_refuted():
    rows, y = np.random.default_rng(0).standard_normal((40, 3)), np.full(40, 5.0)
    with pytest.warns(match="learned nothing"):
        model = riskmin.LinearRegressor("poisson", alpha=1e-3).fit(rows, y)
    model.coef_, model.result_ = (
        model.coef_ + 0.01,
        dataclasses.replace(model.result_, w=model.result_.w + 0.01),
    )
    assert certify(model, rows, y).status == "refuted"

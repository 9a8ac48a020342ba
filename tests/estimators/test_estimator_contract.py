"""The contract of estimators, for each of `estimator_cases`.

Certificates, copies, files, weights, storages, partitions, standardized columns, limits and warm starts.
"""

import pickle

import estimator_cases as cases
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import sklearn
from estimator_cases import CASES, CERTIFIED, FAR, OF_ROWS, ONE_OF_EACH, SEARCHES, SINGLE, WEIGHT, N, P, X
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import StandardScaler

import riskmin as rm
from reference import optimum

SAVED = [name for name in CERTIFIED if name not in SEARCHES]
PROVED = [name for name in SAVED if name not in ("outputs apart", "kernel of classes")]
"""Those with one certificate: the others are several problems."""
REMOTE = [*SINGLE, "tagging"]
"""Those that fit rows of which this process has none."""


WEIGHED_BY_ROW = [n for n in ONE_OF_EACH if n in CERTIFIED and "lengths" not in CASES[n].more]


def of(names):
    return pytest.mark.parametrize("name", names)


def test_every_public_estimator_has_a_case():
    public = {getattr(rm.estimators, name) for name in rm.__all__ if hasattr(rm.estimators, name)}
    assert {kind for kind in public if hasattr(kind, "fit")} == {type(case.model) for case in CASES.values()}


# ---------------------------------------------------------------- the certificate
@of(CERTIFIED)
def test_the_gap_is_within_tol(name):
    model, more = cases.fitted(name), CASES[name].more
    assert model.gap_ == model.objective_ - model.lower_bound_
    assert 0 <= model.gap_ <= model.tol * model.objective_
    assert model.result_.status == "converged"
    assert isinstance(model.n_iter_, int)
    assert model.n_features_in_ == P
    assert model.n_samples_fit_ == len(more.get("lengths", X))
    assert model.weighted_ == ("sample_weight" in more)
    assert "task" not in model.get_params()
    assert model.task == clone(model).task
    assert model.get_params()["atol"] == (0.0 if name == "novelty" else None)


@pytest.mark.parametrize("case", cases.PROGRAMS, ids=lambda case: repr(case.model))
def test_the_bounds_enclose_the_minimum_of_another_program(case):
    model, (loss, labels) = case.fit(), case.program
    without = loss.task in ("ordinal", "ranking", "tagging", "novelty") or loss == rm.RocArea()
    intercept = not without and model.fit_intercept
    reg = rm.get_regularizer(getattr(model, "regularizer", "l2"))
    reg = rm.Box(reg, 0.0) if getattr(model, "positive", False) else reg
    given = [case.more.get(key) for key in ("sample_weight", "qid", "lengths")]
    best = optimum(loss, reg, X, labels, given[0], model.alpha, intercept, *given[1:])
    assert model.lower_bound_ - 1e-8 <= best <= model.objective_ + 1e-8
    assert model.result_.status == "converged"
    weights = getattr(model, "coef_", np.zeros(0))
    assert not getattr(model, "positive", False) or (weights >= 0).all()


@of(PROVED)
def test_the_certificate_holds_on_the_data(name):
    case, model = CASES[name], cases.fitted(name)
    found = rm.certify(model, X, case.y, **case.more)
    assert (found.status, bool(found)) == ("certified", True), found.reason
    assert found.value == pytest.approx(model.objective_, rel=1e-9)
    assert found.lower <= found.value
    assert found.gap <= max(model.gap_, 1e-6 * found.value) * (1 + 1e-6)


# ---------------------------------------------------------------- copies and files
@of(CASES)
def test_copies_are_the_same_model(name):
    model, case = cases.fitted(name), CASES[name]
    expected = cases.outputs(name, model)
    assert clone(model).get_params() == model.get_params() == case.model.get_params()
    cases.assert_same(expected, cases.outputs(name, pickle.loads(pickle.dumps(model))))
    again = case.fit(**case.model.get_params())
    cases.assert_same(expected, cases.outputs(name, again))
    assert getattr(again, "gap_", 0) == getattr(model, "gap_", 0)
    method = "transform" if name == "incomplete Cholesky" else "predict"
    with pytest.raises(NotFittedError):
        getattr(clone(model), method)(X)


@pytest.mark.parametrize("case", [*(CASES[name] for name in SAVED), *cases.PARAMETERS])
def test_files_keep_the_model(case, tmp_path):
    model = case.fit()
    rm.save_model(model, tmp_path / "one")
    loaded = rm.load_model(tmp_path / "one")
    assert type(loaded) is type(model)
    assert loaded.get_params() == model.get_params()
    for key in ("loss", "regularizer", "solver"):
        assert type(getattr(loaded, key, None)) is type(getattr(model, key, None))
    cases.assert_same(case.outputs(model), case.outputs(loaded))
    cases.assert_same_attributes(model, loaded)
    ours, theirs = model.result_, loaded.result_
    for key in ("value", "lower", "status", "solver", "n_iter", "criterion", "note"):
        assert getattr(theirs, key) == getattr(ours, key)
    np.testing.assert_array_equal(theirs.cut.a, ours.cut.a)
    assert (theirs.cut.b, theirs.trace) == (ours.cut.b, ours.trace[-1:])
    rm.save_model(loaded, tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    if not case.several:
        assert rm.certify(loaded, X, case.y, **case.more).status == "certified"
    again = loaded.set_params(warm_start=True).fit(X, case.y, **case.more)
    assert again.result_.trace[0]["value"] <= model.objective_ * (1 + 1e-3)
    cases.close_minima(model, again)


# ---------------------------------------------------------------- weights
@of([name for name in SAVED if "sample_weight" in CASES[name].more])
def test_weights_are_repetitions(name):
    case = CASES[name]
    again = np.repeat(np.arange(N), case.more["sample_weight"].astype(int))
    weighted = case.fit(tol=1e-8)
    repeated = clone(case.model).set_params(tol=1e-8)
    beside = {name: value[again] for name, value in case.more.items() if name == "offset"}
    repeated.fit(X[again], None if case.y is None else case.y[again], **beside)
    assert weighted.objective_ == pytest.approx(repeated.objective_, rel=3e-8)
    assert (weighted.predict(X) == repeated.predict(X)).mean() > 0.95 or case.model.task in (
        "regression",
        "quantiles",
    )
    assert weighted.weighted_
    assert not repeated.weighted_
    assert (weighted.n_samples_fit_, repeated.n_samples_fit_) == (N, len(again))


NO_CLASS_WEIGHTS = "balanced", "f1", "counted", "area"
"""One has them, and losses that count rows, or pairs of classes, do not take them."""


@of([name for name in SAVED if name in cases.with_parameter("class_weight") and name not in NO_CLASS_WEIGHTS])
def test_weights_of_classes_are_weights_of_rows(name):
    model, y = clone(CASES[name].model).set_params(tol=1e-8), CASES[name].y
    if "gamma" in model.get_params():  # the default depends on the weights of rows
        model.set_params(gamma=0.3)
    classes, codes = np.unique(y, return_inverse=True)
    factors = np.array([3.0, 1.0, 0.5])
    given = {label: factors[k] for k, label in enumerate(classes) if factors[k] != 1}
    even = (codes.max() + 1) * np.bincount(codes, WEIGHT)
    for class_weight, row in ((given, factors), ("balanced", WEIGHT.sum() / even)):
        by_class = clone(model).set_params(class_weight=class_weight).fit(X, y, sample_weight=WEIGHT)
        by_row = clone(model).fit(X, y, sample_weight=WEIGHT * row[codes])
        assert by_class.objective_ == pytest.approx(by_row.objective_, rel=3e-8)
        np.testing.assert_allclose(by_class.decision_function(X), by_row.decision_function(X), atol=2e-3)
    assert not clone(model).set_params(class_weight="balanced").fit(X, y).weighted_


@of(["classes", "hinge of classes", "kernel of classes", "tree", "grades"])
def test_classes_without_weight_are_left_out(name):
    model, y = clone(CASES[name].model).set_params(tol=1e-8), CASES[name].y
    keep = y != np.unique(y)[1]
    two, alone = clone(model).fit(X, y, sample_weight=2.0 * keep), model.fit(X[keep], y[keep])
    assert two.classes_.tolist() == alone.classes_.tolist() == np.unique(y[keep]).tolist()
    assert two.objective_ == pytest.approx(alone.objective_, rel=3e-8)
    assert two.predict(X).tolist() == alone.predict(X).tolist()


@of([name for name in CASES if hasattr(CASES[name].model, "predict_proba")])
def test_probabilities_are_those_of_the_predictions(name):
    model = cases.fitted(name)
    p = model.predict_proba(X)
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), p)
    np.testing.assert_array_equal(model.classes_[np.argmax(p, axis=1)], model.predict(X))
    assert np.isfinite(model.predict_log_proba(1e4 * X)).all()


BAD_WEIGHTS = [
    (np.ones(N - 1), "sample_weight has shape|sample_weight.shape"),
    (np.r_[-1.0, np.ones(N - 1)], "weights must be >= 0"),
    (np.r_[np.nan, np.ones(N - 1)], "sample_weight holds NaN, infinite or negative numbers"),
    (np.r_[np.inf, np.ones(N - 1)], "sample_weight holds NaN, infinite or negative numbers"),
    (np.zeros(N), "sample_weight is zero for every row"),
    (0, "at least one weight must be > 0"),
]


@of(WEIGHED_BY_ROW)
def test_weights_that_are_none_are_refused(name):
    case = CASES[name]
    for weight, words in BAD_WEIGHTS:
        with pytest.raises(ValueError, match=words):
            clone(case.model).fit(X, case.y, **case.more | {"sample_weight": weight})


@of(WEIGHED_BY_ROW)
def test_a_number_as_weight_counts_for_every_row(name):
    case = CASES[name]
    models = [
        clone(case.model).fit(X, case.y, **case.more | {"sample_weight": weight})
        for weight in (2.5, np.full(N, 2.5))
    ]
    cases.assert_same(*(cases.outputs(name, model) for model in models))
    assert models[0].weighted_


@of(["logistic", "squares", "grades", "tree", "kernel regression", "classes by folds"])
def test_weights_are_routed(name):
    case = CASES[name]
    with sklearn.config_context(enable_metadata_routing=True):
        model = clone(case.model).set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        search = GridSearchCV(model, {"tol": [1e-3]}, cv=2).fit(X, case.y, sample_weight=WEIGHT)
    assert search.best_estimator_.weighted_
    cases.assert_same(cases.outputs(name, cases.fitted(name)), cases.outputs(name, search.best_estimator_))


# ---------------------------------------------------------------- storages and partitions
def frame(rows):
    return pd.DataFrame(rows, columns=list("abcd"))


def single(rows):
    return sp.csr_array(rows.astype(np.float32))


FORMS = sp.csr_array, sp.csc_matrix, np.asfortranarray, np.float32, single
"""One of them for each case, in turn."""


@of([name for name in CERTIFIED if "lengths" not in CASES[name].more])
def test_all_forms_of_rows_give_the_same_minimum(name):
    model = cases.fitted(name)
    k = list(CASES).index(name) % len(FORMS)
    for form in (FORMS[k], frame) if name in ONE_OF_EACH else (FORMS[k],):
        rows = form(X)
        other = CASES[name].fit(rows)
        if name not in SEARCHES:  # folds may choose another alpha
            assert other.objective_ == pytest.approx(model.objective_, rel=2e-3)
        assert hasattr(other, "feature_names_in_") == (form is frame)
        if form is not frame and not name.startswith("grades"):
            expected = cases.outputs(name, model)
            cases.assert_same(expected, cases.outputs(name, model, rows), rtol=1e-5, atol=1e-5)
        if form in (np.float32, single) and hasattr(other, "coef_") and "tree" not in name:
            assert other.coef_.dtype == np.float32
            assert name in SEARCHES or other.gap_ <= other.tol * other.objective_
            if name in PROVED:  # the certificate is about these weights
                assert rm.certify(other, rows, CASES[name].y, **CASES[name].more).status == "certified"
        if form is frame:
            assert other.feature_names_in_.tolist() == list("abcd")
            with pytest.raises(ValueError, match="feature names should match"):
                other.predict(frame(X)[list("dcba")])
    with pytest.raises(ValueError, match="X has 3 features"):
        model.predict(X[:, :3])


@of(REMOTE)
def test_rows_of_local_partitions_give_the_same_bits(name):
    executors = (None, rm.Serial, rm.Threads(n_workers=2), rm.Threads)
    other = CASES[name].fit(cases.partitioned(X, executors[REMOTE.index(name) % 4]))
    cases.assert_same_attributes(cases.fitted(name), other)


@of(REMOTE)
def test_rows_of_remote_partitions_give_certified_models(name):
    case, remote = CASES[name], cases.partitioned(X, cases.RemoteExecutor())
    local, model = cases.fitted(name), case.fit(remote)
    assert model.result_.status == "converged"
    cases.close_minima(local, model)
    for key in ("n_samples_fit_", "n_features_in_", "weighted_"):
        assert getattr(model, key) == getattr(local, key)
    cases.assert_same(cases.outputs(name, model), cases.outputs(name, model, remote), rtol=1e-12, atol=1e-12)
    if case.y is not None:
        assert np.isclose(model.score(X, case.y, **case.more), model.score(remote, case.y, **case.more))


@of(["counted", "grades", "tree"])
def test_remote_rows_without_weight_have_no_effect(name):
    case = CASES[name]
    weight = case.more["sample_weight"].copy()
    weight[:10] = 0  # a partition without remaining rows
    keep = weight > 0
    ends = [0, int(keep[:40].sum()), int(keep.sum())]
    less = clone(case.model).fit(
        cases.partitioned(X[keep], cases.RemoteExecutor(), ends), case.y[keep], weight[keep]
    )
    more = clone(case.model).fit(cases.partitioned(X, cases.RemoteExecutor()), case.y, weight)
    cases.assert_same(cases.outputs(name, less), cases.outputs(name, more))
    assert (less.objective_, less.lower_bound_) == (more.objective_, more.lower_bound_)


@of([*SEARCHES, "kernel"])
def test_estimators_that_need_all_rows_say_so(name):
    with pytest.raises(ValueError, match=r"needs all rows in this process: give X\.whole\(\)"):
        CASES[name].fit(cases.partitioned(X, cases.RemoteExecutor()))


@pytest.mark.parametrize("form", [sp.csr_matrix, sp.csc_array, np.float32, frame])
def test_partitions_in_any_form(form):
    parts = [rm.InMemoryPartition(form(X[:20])), rm.InMemoryPartition(form(X[20:]))]
    remote, case = rm.PartitionedMatrix(parts, cases.RemoteExecutor()), CASES["hinge"]
    model = case.fit(remote)
    cases.close_minima(model, case.fit(form(X)))
    assert list(getattr(model, "feature_names_in_", [])) == (list("abcd") if form is frame else [])
    np.testing.assert_allclose(
        model.decision_function(remote), model.decision_function(form(X)), rtol=1e-5, atol=1e-6
    )
    if form is frame:
        with pytest.raises(ValueError, match="feature names should match"):
            model.predict(
                rm.PartitionedMatrix([rm.InMemoryPartition(frame(X)[list("dcba")])], cases.RemoteExecutor())
            )


# ---------------------------------------------------------------- standardized columns
def scaled_by_a_pipeline(name, rows, with_mean, **settings):
    """scikit-learn's scaler, and the model of its columns."""
    case = CASES[name]
    scaler = StandardScaler(with_mean=with_mean).fit(rows, sample_weight=case.more.get("sample_weight"))
    return scaler, case.fit(scaler.transform(rows), **settings)


TIGHT = {"tol": 1e-6}


@of(SINGLE)
def test_standardized_models_are_those_of_a_pipeline_kept_certified_and_spread(name, tmp_path):
    case = CASES[name]
    ours = case.fit(FAR, standardize=True, **TIGHT)
    centered = getattr(case.model, "fit_intercept", False)
    cases.agree(ours, *scaled_by_a_pipeline(name, FAR, centered, **TIGHT), FAR)
    rm.save_model(ours, tmp_path / "m")
    again = rm.load_model(tmp_path / "m")
    np.testing.assert_array_equal(again.scale_, ours.scale_)
    np.testing.assert_array_equal(again.coef_, ours.coef_)
    assert again.standardize
    if name in PROVED:
        assert rm.certify(again, FAR, case.y, **case.more).status == "certified"
    remote = case.fit(cases.partitioned(FAR, cases.RemoteExecutor()), standardize=True)
    np.testing.assert_allclose(remote.scale_, ours.scale_, rtol=1e-13)
    cases.close_minima(remote, ours)


@of(["hinge", "logistic", "classes", "hinge of classes", "squares", "tree", "area"])
def test_constant_columns_get_no_weight(name):
    without = CASES[name].fit(FAR, standardize=True, **TIGHT)
    for level in (0.0, -3.7, 1e9):
        wide = np.insert(FAR, 2, level, axis=1)
        ours = CASES[name].fit(wide, standardize=True, **TIGHT)
        assert not np.any(ours.coef_[..., 2])
        assert ours.scale_[2] == 1
        assert ours.objective_ == pytest.approx(without.objective_, rel=5e-6)


@of(["hinge", "classes", "no intercept", "squares", "novelty", "tree"])
def test_sparse_columns_are_scaled_but_not_centered(name):
    sparse = sp.random(N, P, 0.6, random_state=1, format="csr") @ sp.diags_array([1e-3, 20.0, 3e4, 1.0])
    inner = scaled_by_a_pipeline(name, sp.csr_matrix(sparse), False, **TIGHT)
    for form in (sp.csr_matrix, sp.csc_array):
        cases.agree(CASES[name].fit(form(sparse), standardize=True, **TIGHT), *inner, sparse.toarray())


# ---------------------------------------------------------------- limits and warm starts
@of([name for name in CERTIFIED if name not in SEARCHES])
def test_a_fit_that_did_not_converge_warns_once(name):
    model = clone(CASES[name].model).set_params(max_iter=1, tol=1e-13, atol=0.0)
    with pytest.warns(ConvergenceWarning, match=rf"{type(model).__name__} stopped with status") as caught:
        model.fit(X, CASES[name].y, **CASES[name].more)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert model.lower_bound_ <= cases.fitted(name).objective_
    assert len(model.predict(X, **{k: v for k, v in CASES[name].more.items() if k == "lengths"})) == N


@of([name for name in CERTIFIED if name not in SEARCHES])
def test_a_warm_start_begins_at_the_weights(name):
    case = CASES[name]
    settings = {"warm_start": True} | ({"standardize": True} if name in OF_ROWS else {})
    model = case.fit(FAR if name in OF_ROWS else X, **settings)
    objective = model.objective_
    model.fit(FAR if name in OF_ROWS else X, case.y, **case.more)
    assert model.result_.trace[0]["value"] <= objective * (1 + 1e-3)
    assert model.gap_ <= model.tol * model.objective_

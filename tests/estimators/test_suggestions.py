"""Errors that point users of other libraries to the name, the parameter or the step that they need."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from riskmin import (
    LOSSES,
    REGULARIZERS,
    SOLVERS,
    ChainTagger,
    LinearClassifier,
    LinearRegressor,
    get_loss,
    get_regularizer,
    get_scorer,
    get_solver,
)
from riskmin import losses as losses_room
from riskmin import regularizers as regularizers_room
from riskmin import solvers as solvers_room


@pytest.mark.parametrize(
    ("find", "name", "guess"),
    [
        (get_loss, "log_loss", "logistic"),
        (get_loss, "Hinge", "hinge"),
        (get_loss, "squared-hinge", "squared_hinge"),
        (get_loss, "auc", "roc_area"),
        (get_loss, "poison", "poisson"),
        (get_regularizer, "L1", "l1"),
        (get_regularizer, "ElasticNet", "elastic"),
        (get_solver, "L-BFGS-B", "lbfgs"),
        (get_scorer, "auc", "roc_auc"),
        (get_scorer, "acuracy", "accuracy"),
    ],
)
def test_the_nearest_name_is_suggested(find, name, guess):
    with pytest.raises(ValueError, match=f"named {name!r}.*; did you mean {guess!r}\\?$"):
        find(name)


def test_nothing_is_suggested_for_a_name_that_is_like_no_other():
    with pytest.raises(ValueError, match=r"chain_max_margin$"):
        get_loss("zzz")


def test_synonyms_are_no_names_and_mean_names():
    rooms = {losses_room: LOSSES, regularizers_room: REGULARIZERS, solvers_room: SOLVERS}
    for room, registry in rooms.items():
        assert not set(room._SYNONYMS) & set(registry)
        assert set(room._SYNONYMS.values()) <= set(registry)


def test_parameters_of_other_libraries():
    for kind, name, hint in [
        (LinearClassifier, "C", r"give alpha = 1 / \(C n\)"),
        (LinearRegressor, "lam", "give alpha"),
        (ChainTagger, "c2", "alpha = 2 c2 / n"),
        (LinearClassifier, "aplha", "did you mean 'alpha'"),
    ]:
        with pytest.raises(TypeError, match=f"{kind.__name__} has no parameter {name!r}.*{hint}"):
            kind(**{name: 1.0})


def test_c_of_liblinear_is_one_over_alpha_n():
    """The hint is true: both objectives have one minimizer."""
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    X, C = rng.normal(size=(80, 3)), 0.7
    y = X[:, 0] + rng.normal(size=80) > 0
    ours = LinearClassifier("logistic", alpha=1 / (C * len(y)), tol=1e-10).fit(X, y)
    theirs = LogisticRegression(C=C, tol=1e-10, max_iter=1000).fit(X, y)
    assert ours.coef_ == pytest.approx(theirs.coef_, rel=1e-4)


FRAME = {"size": [1.0, 2.0, 3.0, 4.0], "city": ["Rome", "Oslo", "Rome", "Oslo"]}


@pytest.mark.parametrize(
    "X",
    [
        pd.DataFrame(FRAME),
        pd.DataFrame(FRAME).astype({"city": "category"}),
        pd.DataFrame(FRAME).astype(object),
        pl.DataFrame(FRAME),
    ],
    ids=["str", "category", "object", "polars"],
)
def test_a_column_of_text_is_named_with_the_remedy(X):
    message = "column 'city' of X holds text \\('Rome'\\).*make_column_transformer.*\\['city'\\]"
    with pytest.raises(ValueError, match=message):
        LinearClassifier().fit(X, [0, 1, 0, 1])
    fitted = LinearClassifier().fit(pd.DataFrame(FRAME)[["size"]].assign(city=0.0), [0, 1, 0, 1])
    with pytest.raises(ValueError, match=message):
        fitted.predict(X)
    # the remedy works
    encoder = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["city"]), remainder="passthrough"
    )
    if isinstance(X, pd.DataFrame):
        model = make_pipeline(encoder, LinearClassifier(alpha=1e-3)).fit(X, [0, 1, 0, 1])
        assert model.predict(X).tolist() == [0, 1, 0, 1]


def test_text_of_arrays_and_numbers_as_text():
    with pytest.raises(ValueError, match="column 1 of X holds text"):
        LinearClassifier().fit(np.array([[1, "a"], [2, "b"]], dtype=object), [0, 1])
    for X in ([["a", 1.0], ["c", 2.0]], (("a", 1.0), ("c", 2.0)), [("1", "b"), ("2", "c")]):
        with pytest.raises(ValueError, match=r"column [01] of X holds text \('[ab]'\)"):
            LinearClassifier().fit(X, [0, 1])
    model = LinearClassifier().fit(np.array([["1", "2"], ["3.5", "0"]], dtype=object), [0, 1])
    assert model.n_features_in_ == 2


def test_probabilities_of_a_hinge_come_from_calibration():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 2))
    y = X[:, 0] > 0
    model = LinearClassifier("hinge", alpha=1e-2)
    with pytest.raises(AttributeError, match=r"CalibratedClassifierCV\(LinearClassifier\('hinge'\)\)"):
        _ = model.predict_proba
    proba = CalibratedClassifierCV(model, cv=3).fit(X, y).predict_proba(X)
    assert np.mean((proba[:, 1] > 0.5) == y) > 0.9

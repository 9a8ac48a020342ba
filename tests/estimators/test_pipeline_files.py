"""`save_model` and `load_model` of pipelines: the same predictions, no pickle, and no code from a file."""

import numpy as np
import pytest
import sklearn.utils
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.datasets import load_iris
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

import riskmin as rm
from helpers import check_sentence, customers

pytest.importorskip("skops.io", reason="pipelines in model files need skops")

KINDS = make_column_selector(dtype_exclude="number")
NUMBERS = make_column_selector(dtype_include="number")


class Twice(TransformerMixin, BaseEstimator):
    """A step of this module, which a file may import only if it is trusted."""

    def fit(self, X, y=None):
        self.fitted_ = True
        return self

    def transform(self, X):
        return 2 * np.asarray(X)


def same(pipeline, X, path, **trust):
    rm.save_model(pipeline, path)
    loaded = rm.load_model(path, **trust)
    assert [name for name, _ in loaded.steps] == [name for name, _ in pipeline.steps]
    np.testing.assert_array_equal(loaded.predict(X), pipeline.predict(X))
    assert (loaded[-1].gap_, loaded[-1].tol) == (pipeline[-1].gap_, pipeline[-1].tol)
    return loaded


def test_a_raw_table_and_its_certificate(tmp_path):
    table = customers()
    X, y = table.drop(columns=["bought", "since", "id"]), table["bought"]
    encode = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore"))
    prepare = make_column_transformer((SimpleImputer(strategy="median"), NUMBERS), (encode, KINDS))
    pipeline = make_pipeline(prepare, StandardScaler(with_mean=False), rm.LinearClassifier("logistic"))
    X = X.astype({"plan": object}).where(X.notna(), np.nan)
    loaded = same(pipeline.fit(X, y), X, tmp_path / "m")
    np.testing.assert_array_equal(loaded.predict_proba(X), pipeline.predict_proba(X))
    assert rm.certify(loaded[-1], loaded[:-1].transform(X), y)
    assert loaded.fit(X, y).score(X, y) == pipeline.score(X, y)


def test_texts_and_a_pipeline_of_one_step(tmp_path):
    texts, y = ["good work", "bad work", "very good", "so bad"] * 5, [1, 0, 1, 0] * 5
    same(make_pipeline(TfidfVectorizer(), rm.LinearClassifier()).fit(texts, y), texts, tmp_path / "texts")
    X, y = load_iris(return_X_y=True)
    same(make_pipeline(rm.LinearRegressor()).fit(X, y), X, tmp_path / "one")


def test_steps_of_others_have_to_be_trusted(tmp_path):
    X, y = load_iris(return_X_y=True)
    pipeline = make_pipeline(Twice(), rm.LinearRegressor()).fit(X, y)
    rm.save_model(pipeline, tmp_path / "m")
    with pytest.raises(ValueError, match=r"needs .*Twice, and a file imports no code by itself"):
        rm.load_model(tmp_path / "m")
    same(pipeline, X, tmp_path / "m", trust=[Twice.__module__])
    # functions that execute their argument, also in packages whose types hold data
    for function in (eval, np.testing.runstring, sklearn.utils.shuffle):
        evil = make_pipeline(FunctionTransformer(function), rm.LinearRegressor())
        evil[-1].fit(X, y)
        rm.save_model(evil, tmp_path / "evil")
        with pytest.raises(ValueError, match="a file imports no code by itself"):
            rm.load_model(tmp_path / "evil")


def test_a_file_that_was_changed_or_has_no_model_is_refused(tmp_path, run):
    X, y = load_iris(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), rm.LinearRegressor()).fit(X, y)
    rm.save_model(pipeline, tmp_path / "m")
    content = (tmp_path / "m").read_bytes()
    at = content.index(b"schema.json")
    (tmp_path / "m").write_bytes(content[:at] + b"Schema" + content[at + 6 :])
    with pytest.raises(ValueError, match="damaged"):
        rm.load_model(tmp_path / "m")
    (tmp_path / "m").write_bytes(content)
    np.savetxt(tmp_path / "t.csv", np.c_[X, y], delimiter=",")
    for command in ("predict", "evaluate", "certify"):
        check_sentence(run(command, tmp_path / "m", tmp_path / "t.csv"), "holds a pipeline of scikit-learn")
    check_sentence(run("show", tmp_path / "m"), "holds a pipeline of scikit-learn")
    with pytest.raises(ValueError, match="StandardScaler cannot be saved"):
        rm.save_model(make_pipeline(rm.IncompleteCholesky(), StandardScaler()).fit(X), tmp_path / "m")

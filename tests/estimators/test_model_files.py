"""Model files: round trips, and one-sentence errors."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import safetensors.numpy
import scipy.sparse as sp
from estimator_cases import GRADE, HIGH, KINDS, X, Z
from sklearn.exceptions import NotFittedError
from sklearn.preprocessing import StandardScaler

import riskmin as rm
from helpers import altered, edit
from riskmin.core.persist import load_arrays, save_arrays
from riskmin.estimators import estimator

Y = HIGH.astype(int)


def test_kernel_machines_of_sparse_rows_and_of_matrices(tmp_path):
    rows = sp.csr_array(np.where(abs(X) > 0.7, X, 0.0))
    model = rm.KernelClassifier(alpha=0.01).fit(rows, Y)
    rm.save_model(model, tmp_path / "sparse")
    loaded = rm.load_model(tmp_path / "sparse")
    assert loaded.kernel_ == model.kernel_
    assert (loaded.support_vectors_ != model.support_vectors_).nnz == 0
    for other in (rows, rows.toarray()):
        np.testing.assert_array_equal(loaded.decision_function(other), model.decision_function(other))
    K = rm.Rbf(0.2)(X, X)
    model = rm.KernelClassifier(kernel="precomputed", alpha=0.01).fit(K, Y)
    rm.save_model(model, tmp_path / "matrix")
    loaded = rm.load_model(tmp_path / "matrix")
    assert loaded.kernel_ == "precomputed"
    np.testing.assert_array_equal(loaded.decision_function(K), model.decision_function(K))
    assert set(load_arrays(tmp_path / "matrix", "model")[0]) == {"coef", "cut"}


def test_process_specific_parameters_are_not_saved(tmp_path):
    class Mine(rm.Bundle):
        pass

    model = rm.LinearClassifier(
        alpha=0.1, callback=lambda *_: None, checkpoint=tmp_path / "run", solver=Mine(keep=3)
    )
    rm.save_model(model.fit(X, Y), tmp_path / "model")
    loaded = rm.load_model(tmp_path / "model")
    assert (loaded.callback, loaded.checkpoint, loaded.solver) == (None, None, None)


# ---------------------------------------------------------------- unsupported models
class Configured:
    """A loss whose parameters are not known."""

    separable = True

    def __init__(self, scale):
        self.scale = scale

    def value_grad(self, z, y, c):
        r = z - y
        return c @ (r * r), 2 * c * r


OWN, OWN_L1 = altered(rm.Squared()), altered(rm.L1())
OWN_CODE = "of your own, and code is not written to files"
UNSUPPORTED = [
    (lambda: rm.LinearRegressor(OWN).fit(X, Y), f"Altered is a loss {OWN_CODE}"),
    (
        lambda: rm.LinearRegressor(rm.Nu(OWN, 0.5)).fit(X, Y),
        "Altered is a loss of your own",
    ),
    (lambda: rm.LinearRegressor(Configured(2.0)).fit(X, Y), "whose parameters are not known: make it a data"),
    (
        lambda: rm.KernelClassifier(kernel=lambda A, B: A @ B.T).fit(X, Y),
        "its kernel is a function of your own",
    ),
    (lambda: rm.LinearRegressor(regularizer=rm.Quadratic(np.eye(4))).fit(X, Y), "Quadratic holds a matrix"),
    (
        lambda: rm.LinearRegressor(regularizer=OWN_L1).fit(X, Y),
        f"Altered is a regularizer {OWN_CODE}",
    ),
    (lambda: rm.LinearRegressorCV(alphas=[1.0], cv=2).fit(X, Z), "cannot be saved: save its best_estimator_"),
    (lambda: rm.ChainTagger(template=list).fit([[{"a": 1}, {}]], [["A", "B"]]), "not plain data"),
    (lambda: StandardScaler(), "StandardScaler cannot be saved: only .*LinearClassifier, "),
    (lambda: rm.LinearRegressor(), "not fitted"),
]


@pytest.mark.parametrize(("make", "words"), UNSUPPORTED)
def test_unsupported_models_are_not_saved(make, words, tmp_path):
    with pytest.raises((ValueError, NotFittedError), match=words):
        rm.save_model(make(), tmp_path / "model")
    assert not list(tmp_path.iterdir())


@estimator
class DoubledRegressor(rm.LinearRegressor):
    """An estimator of a third party, with a parameter and a fitted attribute of its own."""

    factor: float = 2.0

    def fit(self, X, y, sample_weight=None):
        super().fit(X, y, sample_weight)
        self.largest_ = float(np.max(y))
        return self

    def predict(self, X):
        return self.factor * np.minimum(super().predict(X), self.largest_)

    def _state(self):
        arrays, fitted = super()._state()
        return arrays, fitted | {"largest": self.largest_}

    def _restore(self, w, fitted, arrays):
        super()._restore(w, fitted, arrays)
        self.largest_ = fitted["largest"]


def test_an_estimator_of_a_third_party_is_saved(tmp_path):
    model = DoubledRegressor("huber", factor=3.0, alpha=0.1).fit(X, Y)
    rm.save_model(model, tmp_path / "model")
    loaded = rm.load_model(tmp_path / "model")
    assert type(loaded) is DoubledRegressor
    assert loaded.get_params() == model.get_params()
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))


# ---------------------------------------------------------------- invalid files
BASES = {
    "hinge": lambda: rm.LinearClassifier(alpha=0.1).fit(pd.DataFrame(X, columns=list("abcd")), Y),
    "kernel": lambda: rm.KernelClassifier(alpha=1.0).fit(X, Y),
    "classes": lambda: rm.LinearClassifier("logistic", alpha=0.1).fit(X, np.array(["a", "b", "c"])[GRADE]),
    "grades": lambda: rm.OrdinalClassifier(alpha=0.1).fit(X, GRADE),
    "standardized": lambda: rm.LinearClassifier(standardize=True).fit(X, Y),
    "tree": lambda: rm.HierarchicalClassifier("softmax", alpha=0.1).fit(X, KINDS),
    "tagger": lambda: rm.ChainTagger(template="window").fit([[("He", "P"), ("sits", "V")]], [["B-x", "O"]]),
    "sparse kernel": lambda: rm.KernelClassifier(alpha=1.0).fit(sp.csr_array(X), Y),
}


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """A file of each base."""
    folder = tmp_path_factory.mktemp("models")
    for name, make in BASES.items():
        rm.save_model(make(), folder / name)
    return folder


@pytest.fixture
def file(originals, tmp_path):
    return Path(shutil.copy(originals / "hinge", tmp_path / "model"))


def refused(path, match=None):
    with pytest.raises(rm.FileError, match=match) as caught:
        rm.load_model(path)
    assert str(path) in str(caught.value)
    assert str(caught.value).isprintable()  # one line, without control characters


def test_truncated_files(file):
    content = file.read_bytes()
    for size in {*range(0, 64, 5), *range(64, len(content), 61), len(content) - 1}:
        file.write_bytes(content[:size])
        refused(file)
    file.write_bytes(content + b"\0")
    refused(file)


def test_flipped_bits_are_detected_or_harmless(file):
    content, model = file.read_bytes(), rm.load_model(file)
    rng = np.random.default_rng(0)
    survived = 0
    for position in range(0, len(content), 5):
        blob = bytearray(content)
        blob[position] ^= 1 << int(rng.integers(8))
        file.write_bytes(blob)
        try:
            loaded = rm.load_model(file)
        except rm.FileError:
            continue
        survived += 1  # for example in the padding after the header
        assert loaded.objective_ == model.objective_
        np.testing.assert_array_equal(loaded.coef_, model.coef_)
    assert survived <= 4


def put(*keys_and_value):
    *keys, last, value = keys_and_value

    def change(arrays, meta):
        for key in keys:
            meta = meta[key]
        meta[last] = value

    return change


def drop(*keys):
    def change(arrays, meta):
        for key in keys[:-1]:
            meta = meta[key]
        del meta[keys[-1]]

    return change


MODULES = "antigravity:Model", "os:system", "riskmin.estimators.cv:LinearClassifierCV", 7
"""No module is imported for a file."""
EDITS = [
    (lambda arrays, meta: arrays.pop("coef"), "'coef' is missing"),
    (lambda arrays, meta: arrays.pop("cut"), "'cut' is missing"),
    (lambda arrays, meta: arrays.update(coef=np.ones(5)), r"coef is float64\(5,\), not float64\(4,\)"),
    (lambda arrays, meta: arrays.update(coef=np.ones(4, dtype=np.float32)), "coef is float32"),
    (lambda arrays, meta: arrays.update(coef=np.full(4, np.nan)), "coef holds NaN or infinity"),
    (lambda arrays, meta: arrays.update(cut=np.full(4, np.inf)), "cut holds NaN or infinity"),
    (put("estimator", "RandomForest"), "unknown kind of model, 'RandomForest'"),
    *((put("estimator", name), "an unknown kind of model") for name in MODULES),
    (put("estimator", "LinearRegressor"), "Hinge is a loss for classification"),
    (put("format", 999), r"written by riskmin 0.* in format 999, which is newer than \d+: upgrade"),
    (put("format", "one"), "not a sound riskmin model: its format is 'one'"),
    (put("fitted", "intercept", None), "intercept is None, not a list of 1 numbers"),
    (put("fitted", "intercept", [None]), "intercept is None, not a finite number"),
    (put("fitted", "intercept", [1.0, 2.0]), "not a list of 1 numbers"),
    (put("fitted", "intercept", [float("nan")]), "intercept is nan"),
    (put("fitted", "cuts", [float("nan")]), "cuts is nan"),
    (drop("fitted", "cuts"), "'cuts' is missing"),
    (put("fitted", "labels", "values", [0, 1, 2]), "coef is float64"),
    (put("fitted", "labels", "values", ["a", "b"]), "not a sound riskmin model"),
    (put("fitted", "labels", "dtype", "V8"), "not a sound riskmin model"),
    (put("fitted", "feature_names", ["a"]), "names 1 features, but has 4"),
    (put("claim", "status", "great"), "its status is 'great'"),
    (put("claim", "objective", "0.1"), "objective is '0.1'"),
    (put("claim", "alpha", 77.0), "it claims alpha, which models do not"),
    (put("claim", "last", {}), "'iteration' is missing"),
    (put("params", "loss", "name", "Secret"), "Secret is not a loss of riskmin"),
    (put("params", "loss", "params", {"width": 2}), "Hinge has no parameter width"),
    (put("params", "plain", "depth", 3), "depth"),
    (put("params", "solver", {"name": "Sgd", "params": {}}), "'Sgd' is missing"),
    (drop("claim"), "'claim' is missing"),
    (drop("fitted", "n_features"), "'n_features' is missing"),
    (put("fitted", []), "not a sound riskmin model"),
    (put("estimator", ["LinearClassifier"]), None),
    (put("format", True), None),
    *((put("params", "plain", "tol", value), None) for value in ("1e-3", [1])),
    (put("params", "plain", "max_iter", -1), None),
    (put("params", "plain", "fit_intercept", 1), None),
    (put("params", "plain", "n_jobs", "two"), None),
    (put("params", "solver", {"name": "Bundle", "params": {"x": 1}}), None),
    (put("params", "solver", "none such"), None),
    (put("params", "class_weight", [[1, "x"]]), None),
    (put("params", "loss", "params", {"margin": "x"}), None),
    (put("params", "regularizer", "name", "Quadratic"), None),
    *((put("fitted", "n_features", value), None) for value in (4.0, 10**30)),
    *((put("fitted", "labels", "values", value), None) for value in ([1.0, 1.0], [1.0, -1.0], [1.0, "a"])),
    (put("fitted", "feature_names", ["a", 1, "c", "d"]), None),
    *((put("claim", key, value), "claims") for key, value in (("tol", 1e-9), ("n_features", 3))),
    (put("claim", "n_rows", "8"), None),
    (put("claim", "weighted", None), None),
    *((put("claim", "last", value), None) for value in ({"seconds": "x"}, 3)),
]


KERNEL_EDITS = [
    (put("fitted", "gamma", -1.0), "gamma=-1.0"),
    (put("fitted", "gamma", "big"), "gamma is 'big', not a finite number"),
    (put("params", "kernel", "sigmoid"), "no Mercer kernel"),
    (put("params", "kernel", {"name": "Mine", "params": {}}), "Mine is not a kernel of riskmin"),
    (put("claim", "n_rows", 7), r"coef is float64\(120,\), not float64\(14,\)"),
    (lambda arrays, meta: arrays["vectors"].fill(np.nan), "its support vectors hold NaN"),
    (lambda arrays, meta: arrays.update(vectors=arrays["vectors"][1:]), "its support vectors are float64"),
    (lambda arrays, meta: arrays.pop("vectors"), "'vectors.data' is missing"),
    (lambda arrays, meta: arrays.update(sparse(arrays.pop("vectors"), 1)), "not a sound riskmin model"),
    (put("params", "plain", "cache_size", -1), None),
    (put("params", "plain", "gamma", [1]), None),
]


def sparse(rows, shift):
    """The parts of a sparse matrix, with column indices shifted by `shift`."""
    matrix = sp.csr_array(rows)
    parts = {"data": matrix.data, "indices": matrix.indices + shift, "indptr": matrix.indptr}
    return {f"vectors.{name}": array for name, array in parts.items()}


EDITS_OF_CLASSES = [
    (put("fitted", "labels", "values", ["a", "b"]), "coef is float64"),
    (put("fitted", "labels", "values", ["a", "b", "c", "d"]), "coef is float64"),
    (put("fitted", "labels", "values", ["a"]), "not two or more"),
    (put("fitted", "intercept", [1.0]), "not a list of 0 numbers"),
    (put("fitted", "labels", "values", ["b", "a", "c"]), "not sorted"),
]
EDITS_OF_GRADES = [
    (put("fitted", "cuts", [2.0, 1.0]), "is not a sound riskmin model: its cuts decrease"),
    (put("fitted", "cuts", [0.0]), "not a list of 2 numbers"),
    (put("fitted", "cuts", [0.0, None]), "cuts is None, not a finite number"),
    (put("params", "plain", "order", ["a", 1]), None),
]
EDITS_OF_SCALES = [
    (lambda arrays, meta: arrays.update(scale=np.ones(3)), r"scale is float64\(3,\), not float64\(4,\)"),
    (lambda arrays, meta: arrays.update(scale=np.arange(4.0)), "scale holds numbers that are not > 0"),
]
ALL_EDITS = {
    "hinge": EDITS,
    "kernel": KERNEL_EDITS,
    "classes": EDITS_OF_CLASSES,
    "grades": EDITS_OF_GRADES,
    "standardized": EDITS_OF_SCALES,
    "tree": [(put("fitted", "labels", "parents", [0, 0, 0, 0]), None)],
    "tagger": [
        (put("fitted", "labels", "values", ["B-x", 1]), None),
        (put("params", "plain", "template", "other"), None),
        (lambda arrays, meta: arrays.pop("feature_ends"), None),
        (lambda arrays, meta: arrays.update(feature_ends=arrays["feature_ends"].astype(float)), None),
    ],
    "sparse kernel": [
        (lambda arrays, meta: arrays["vectors.indices"].__iadd__(9), None),
        (lambda arrays, meta: arrays.update({"vectors.indptr": arrays["vectors.indptr"][::-1].copy()}), None),
    ],
}


@pytest.mark.parametrize(
    ("base", "change", "words"), [(base, *one) for base, edits in ALL_EDITS.items() for one in edits]
)
def test_invalid_models_are_refused(originals, base, change, words, tmp_path):
    path = Path(shutil.copy(originals / base, tmp_path / "model"))
    edit(path, change)
    refused(path, words)
    assert "antigravity" not in sys.modules


def test_foreign_files(tmp_path):
    path = tmp_path / "model"
    refused(path, "does not exist")
    for blob in (b"", b"PK\x03\x04 not a model", b"\0" * 100, json.dumps({"kind": "model"}).encode()):
        path.write_bytes(blob)
        refused(path)
    path.write_bytes(safetensors.numpy.save({"w": np.ones(3)}))
    refused(path, "is not a riskmin model file")
    save_arrays(path, {"w": np.ones(3)}, {"kind": "checkpoint"})
    refused(path, "is not a riskmin model file")
    refused(tmp_path)


# ---------------------------------------------------------------- permissions, names and links of files
@pytest.mark.skipif(os.name != "posix", reason="permissions of this system are others")
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_new_files_respect_the_umask(umask, mode, tmp_path):
    before = os.umask(umask)
    try:
        save_arrays(tmp_path / "file", {"w": np.ones(3)}, {"kind": "model"})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.name != "posix", reason="permissions of this system are others")
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o444, 0o755])
def test_replaced_file_keeps_its_permissions(mode, tmp_path, monkeypatch):
    """The temporary file never has wider permissions than the target."""
    path, modes, fsync = tmp_path / "file", [], os.fsync
    path.touch()
    path.chmod(mode)

    def record_modes(*args):
        modes.extend(stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir())
        return fsync(*args)

    monkeypatch.setattr(os, "fsync", record_modes)
    monkeypatch.setattr(os, "chown", lambda *args: modes.append(os.fstat(args[0]).st_mode & 0o777))
    before = os.umask(0o002)
    try:
        save_arrays(path, {"w": np.ones(3)}, {"kind": "model"})
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert modes
    assert all(seen_mode & ~mode == 0 for seen_mode in modes)


@pytest.mark.skipif(os.name != "posix", reason="permissions of this system are others")
def test_group_permissions_if_the_group_cannot_be_set(tmp_path, monkeypatch):
    path, real = tmp_path / "file", os.stat
    path.touch()
    path.chmod(0o664)

    def not_ones_own(*args):
        raise PermissionError(1, "Operation not permitted")

    def of_another_group(place, **settings):
        status = real(place, **settings)
        if isinstance(place, Path) and place.name == "file" and not settings:
            return os.stat_result((*status[:5], status.st_gid + 1, *status[6:]))
        return status

    monkeypatch.setattr(os, "chown", not_ones_own)
    monkeypatch.setattr(os, "stat", of_another_group)
    save_arrays(path, {"w": np.ones(3)}, {"kind": "model"})
    monkeypatch.undo()
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_longest_file_names(tmp_path):
    path = tmp_path / ("x" * 255)
    save_arrays(path, {"w": np.ones(3)}, {"kind": "model"})
    assert load_arrays(path, "model")[0]["w"].tolist() == [1.0] * 3


@pytest.mark.skipif(os.name != "posix", reason="links of this system need privileges")
def test_target_of_a_link_is_written(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to("far/file")
    for value in (1.0, 2.0):  # the target is created, then replaced
        save_arrays(tmp_path / "link", {"w": np.full(3, value)}, {"kind": "model"})
        assert (tmp_path / "link").is_symlink()
        assert load_arrays(tmp_path / "far" / "file", "model")[0]["w"].tolist() == [value] * 3
    assert [path.name for path in (tmp_path / "far").iterdir()] == ["file"]

"""Every public estimator with data it fits: the instances of the contract of estimators.

All arrays are read only, so that every fit, prediction and certificate shows that it writes to none.
"""

import pickle
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import riskmin as rm
from helpers import COST
from riskmin.executors.base import call_arguments

N, P = 60, 4
ENDS = [0, 10, 40, N]


def read_only(a):
    a.flags.writeable = False
    return a


RNG = np.random.default_rng(3)
X = read_only(RNG.normal(size=(N, P)) + 0.5)
Z = read_only(X @ [1.0, -1.0, 0.5, 0.0] + 0.7 * RNG.normal(size=N))
HIGH, GRADE = read_only(Z > 0.4), read_only(np.digitize(Z, [-0.6, 1.0]))
FAR = X * [1e-3, 20.0, 3e4, 1.0] + [1.0, -5.0, 1e5, 0.0]
"""The same columns in other units, far from zero."""
SIGNS = np.where(HIGH, 1.0, -1.0)
BOTH = read_only(np.c_[Z, -2 * Z])
WEIGHT = read_only(RNG.integers(0, 3, N).astype(float))
ONCE = read_only(np.minimum(WEIGHT, 1))
QID, LENGTHS = read_only(np.repeat(np.arange(N // 5), 5)), read_only(np.tile([2, 3], N // 5))
KINDS = read_only(np.array(["a/b", "a/c", "d"])[GRADE])
NUMBERS, TREE = GRADE.astype(float), rm.Tree.from_paths(["a/b", "a/c", "d"])


METHODS = "predict", "predict_proba", "predict_log_proba", "decision_function", "score_samples", "transform"


@dataclass
class Case:
    """An estimator, labels, and further arguments of `fit`."""

    model: object
    y: object
    more: dict = field(default_factory=dict)
    program: tuple = ()
    """The loss and the labels of the same problem for the reference optimizer, where it has the loss."""

    def fit(self, rows=X, wrap=np.asarray, **settings):
        """A fitted clone, with labels, weights and ids converted by `wrap`."""
        y = None if self.y is None else wrap(self.y)
        model = clone(self.model).set_params(**settings)
        return model.fit(rows, y, **{name: wrap(value) for name, value in self.more.items()})

    def outputs(self, model, rows=X):
        """All predictions of a model."""
        lengths = {key: value for key, value in self.more.items() if key == "lengths"}
        return {name: getattr(model, name)(rows, **lengths) for name in METHODS if hasattr(model, name)}

    @property
    def several(self):
        """Whether these are separate problems, without a common certificate."""
        joint = isinstance(self.model.loss, rm.MultivariateSquared) or self.model.loss == "squared"
        return (np.ndim(self.y) == 2 and not joint) or self is CASES["kernel of classes"]


WEIGHTED, TUBE = {"sample_weight": WEIGHT}, rm.Nu(rm.Absolute(), 0.3)
CASES = {
    "hinge": Case(rm.LinearClassifier(alpha=1e-2), HIGH, {}, (rm.Hinge(), SIGNS)),
    "logistic": Case(rm.LinearClassifier("logistic", alpha=1e-2), HIGH, WEIGHTED, (rm.Logistic(), SIGNS)),
    "offset": Case(rm.LinearClassifier("logistic", alpha=1e-2), HIGH, WEIGHTED | {"offset": -Z}),
    "classes": Case(rm.LinearClassifier("logistic", alpha=1e-2), KINDS, {}, (rm.Softmax(), NUMBERS)),
    "hinge of classes": Case(
        rm.LinearClassifier(alpha=0.2), KINDS, WEIGHTED, (rm.MulticlassHinge(), NUMBERS)
    ),
    "costs": Case(
        rm.LinearClassifier(rm.MulticlassHinge(COST), alpha=0.2),
        KINDS,
        {},
        (rm.MulticlassHinge(COST), NUMBERS),
    ),
    "balanced": Case(rm.LinearClassifier(alpha=0.1, class_weight="balanced"), HIGH, WEIGHTED),
    "two scores": Case(
        rm.LinearClassifier("softmax", alpha=0.1), HIGH, {}, (rm.Softmax(), HIGH.astype(float))
    ),
    "no intercept": Case(rm.LinearClassifier(alpha=1e-2, fit_intercept=False), HIGH, {}, (rm.Hinge(), SIGNS)),
    "area": Case(rm.LinearClassifier("roc_area", alpha=0.1), HIGH, WEIGHTED, (rm.RocArea(), SIGNS)),
    "f1": Case(rm.LinearClassifier("f1", alpha=2.0), HIGH),
    "counted": Case(rm.LinearClassifier("prbep", alpha=0.1), HIGH, {"sample_weight": ONCE}),
    "squares": Case(rm.LinearRegressor(alpha=1e-2), Z, WEIGHTED, (rm.Squared(), Z)),
    "quantile": Case(rm.LinearRegressor("quantile:level=0.8", alpha=1e-2), Z, {}, (rm.Quantile(0.8), Z)),
    "l1": Case(rm.LinearRegressor("huber", alpha=1e-2, regularizer=rm.L1()), Z, {}, (rm.Huber(), Z)),
    "outputs together": Case(
        rm.LinearRegressor(alpha=1e-2), BOTH, WEIGHTED, (rm.MultivariateSquared(), BOTH)
    ),
    "outputs apart": Case(rm.LinearRegressor("absolute", alpha=1e-2), BOTH),
    "quantiles": Case(rm.LinearQuantiles((0.2, 0.5, 0.7), alpha=1e-2), Z, WEIGHTED),
    "quantiles in a box": Case(
        rm.LinearQuantiles((0.4, 0.5), box=np.c_[X.min(0), X.max(0)].tolist(), alpha=1e-3), Z
    ),
    "nu": Case(rm.LinearRegressor(TUBE, alpha=0.1), Z, {}, (TUBE, Z)),
    "classes by folds": Case(rm.LinearClassifierCV("logistic", alphas=[0.1, 1e-2], cv=2), KINDS, WEIGHTED),
    "regression by folds": Case(rm.LinearRegressorCV(alphas=[0.1, 1e-2], cv=2), Z),
    "grades by folds": Case(rm.OrdinalClassifierCV(alphas=[0.1, 1e-2], cv=2), GRADE, WEIGHTED),
    "ranking by folds": Case(rm.LinearRankerCV(alphas=[1.0, 0.1], cv=2), GRADE, {"qid": QID}),
    "tagging by folds": Case(rm.ChainTaggerCV(alphas=[0.1, 1e-2], cv=2), GRADE, {"lengths": LENGTHS}),
    "novelty": Case(rm.NoveltyDetector(alpha=0.1), None, WEIGHTED, (rm.Novelty(), np.ones(N))),
    "grades": Case(rm.OrdinalClassifier(alpha=0.1), GRADE, WEIGHTED, (rm.Ordinal(), NUMBERS)),
    "grades as numbers": Case(
        rm.OrdinalClassifier("squared", alpha=1e-2), GRADE, {}, (rm.Squared(), NUMBERS)
    ),
    "ranking": Case(rm.LinearRanker(alpha=0.1), GRADE, {"qid": QID}, (rm.PairwiseHinge(), NUMBERS)),
    "ndcg": Case(rm.LinearRanker("ndcg", alpha=1.0), GRADE, {"qid": QID}),
    "tree": Case(
        rm.HierarchicalClassifier("softmax", alpha=1e-2),
        KINDS,
        WEIGHTED,
        (rm.HierarchicalSoftmax(TREE), NUMBERS),
    ),
    "hinge of a tree": Case(
        rm.HierarchicalClassifier(alpha=0.5), KINDS, {}, (rm.HierarchicalHinge(TREE), NUMBERS)
    ),
    "tagging": Case(rm.ChainTagger(alpha=0.1), GRADE, {"lengths": LENGTHS}, (rm.ChainCrf(), NUMBERS)),
    "kernel": Case(rm.KernelClassifier(alpha=1e-2), HIGH),
    "kernel of classes": Case(rm.KernelClassifier("logistic", alpha=0.1), KINDS, WEIGHTED),
    "kernel regression": Case(rm.KernelRegressor(alpha=1e-2), Z, WEIGHTED),
    "online": Case(rm.OnlineClassifier(), HIGH),
    "incomplete Cholesky": Case(rm.IncompleteCholesky(rank=3), None),
}


def of_hinge(regularizer):
    return Case(rm.LinearClassifier(alpha=0.05, regularizer=regularizer), HIGH, {}, (rm.Hinge(), SIGNS))


def of_tree(**rescaled):
    """The margins of the tree are rescaled as those of the given loss."""
    flat, meant = rm.MulticlassHinge(**rescaled), rm.HierarchicalHinge(TREE, **rescaled)
    return Case(rm.HierarchicalClassifier(flat, alpha=0.2), KINDS, {}, (meant, NUMBERS))


def of_grades(loss, meant, **settings):
    return Case(rm.LinearClassifier(loss, **({"alpha": 0.1} | settings)), GRADE, {}, (meant, NUMBERS))


ADAPTED, METRIC = rm.Nu(rm.Hinge(), 0.6), rm.MultivariateSquared(np.array([[2.0, 1.0], [1.0, 2.0]]))
MEANT = [("hinge", rm.MulticlassHinge()), ("logistic", rm.Softmax())]
BOUNDED = {"alpha": 0.01, "regularizer": "l1", "positive": True, "fit_intercept": False}
PROGRAMS = [
    *(case for case in CASES.values() if case.program),
    *(of_hinge(name) for name in ("elastic", "qnorm", "entropy")),
    *(of_hinge(reg) for reg in (rm.Box(rm.L2(), -0.1, 0.1), rm.Quadratic(np.diag([1.0, 2, 3, 4])))),
    of_hinge(rm.L1([1.0, 2, 3, 4])),
    # losses of two classes mean those of several
    of_grades("hinge:margin=2", rm.MulticlassHinge(2 * (1 - np.eye(3)))),
    of_grades("squared_hinge", rm.MulticlassSquaredHinge()),
    of_grades(*2 * [rm.MulticlassHinge(COST, rescaled=True)]),
    *(of_grades(*pair, regularizer="l1", alpha=0.05) for pair in MEANT),
    *(of_grades(*pair, positive=True, alpha=0.01) for pair in MEANT),
    *(of_grades(*pair, **BOUNDED) for pair in MEANT),
    Case(rm.LinearRegressor(METRIC, alpha=0.1), BOTH, {}, (METRIC, BOTH)),
    Case(rm.LinearClassifier(ADAPTED, alpha=0.05), HIGH, {}, (ADAPTED, SIGNS)),
    of_tree(rescaled=0.5),
    of_tree(rescaled=True, scaled_margin=True),
]
"""Those with another program for the same minimum: cases, regularizers, and losses of several classes."""


COUNT, HIERARCHY = HIGH.astype(int), {"a": None, "a/b": "a", "a/c": "a", "d": None, "unseen": "d"}
PARAMETERS = [
    Case(rm.LinearClassifier("logistic", alpha=0.01, class_weight={0: 2.0, 1: 1.5}), COUNT),
    Case(rm.LinearClassifier(rm.Hinge(margin=2.0), alpha=0.1, class_weight="balanced"), HIGH),
    Case(
        rm.LinearClassifier(alpha=0.1, class_weight={"no": 3}, solver="bmrm"), np.array(["no", "yes"])[COUNT]
    ),
    Case(rm.LinearClassifier(alpha=0.1), pd.Series(np.array(["no", "yes"])[COUNT], dtype=object)),
    Case(rm.LinearClassifier(rm.Nu(rm.Hinge(margin=2.0), 0.4), alpha=0.1), COUNT),
    Case(rm.LinearClassifier(rm.MulticlassHinge(COST, rescaled=True), alpha=0.1, fit_intercept=False), GRADE),
    Case(rm.LinearClassifier(rm.Smoothed(rm.RocArea(), mu=0.1), alpha=0.1), COUNT),
    Case(rm.LinearClassifier("recall_at_k:k=20", alpha=1.0), COUNT),
    Case(rm.LinearRegressor("huber:delta=2", solver=rm.Lbfgs(memory=4), max_seconds=9.0), Z),
    Case(rm.LinearRegressor("poisson", fit_intercept=False, n_jobs=2), COUNT),
    Case(rm.LinearRegressor(rm.EpsilonInsensitive(epsilon=np.float64(0.25)), alpha=np.float32(0.125)), Z),
    Case(rm.LinearRegressor(rm.MultivariateSquared(np.diag([1.0, 2.0]))), BOTH),
    Case(rm.LinearRegressor(regularizer="elastic:eps=2", alpha=0.1), Z),
    Case(rm.LinearRegressor(regularizer=rm.Box(rm.L1(weights=2.0), -1.0), alpha=0.1), Z),
    Case(rm.LinearRegressor(regularizer=rm.Entropy(balanced=True), alpha=0.1), Z),
    Case(rm.NoveltyDetector(contamination=0.2), None),
    Case(rm.OrdinalClassifier(rm.Ordinal(costs=[[0], [1, 0], [1, 1, 0]]), metric="zero_one"), GRADE),
    Case(rm.OrdinalClassifier("huber:delta=0.5", solver=rm.Bundle(keep=50)), GRADE),
    Case(rm.LinearRanker("squared", alpha=0.1), GRADE),
    Case(rm.KernelClassifier(alpha=0.01, class_weight={"no": 2.0}), np.array(["no", "yes"])[COUNT]),
    Case(rm.KernelClassifier("logistic", kernel="laplacian", alpha=0.1, gamma="auto"), COUNT),
    Case(rm.KernelClassifier(kernel="cosine", alpha=0.1, solver="bundle"), COUNT * 2.0),
    Case(rm.KernelRegressor("absolute", kernel="poly", degree=2, coef0=1.0, alpha=0.1, max_seconds=60.0), Z),
    Case(rm.KernelRegressor(kernel=rm.Rbf(0.3), alpha=0.1, solver=rm.KernelDual(block=64)), Z),
    Case(rm.KernelRegressor("poisson", kernel="linear", alpha=0.1, fit_intercept=False), COUNT),
    Case(rm.KernelRegressor(TUBE, alpha=0.1), Z),
    Case(rm.HierarchicalClassifier(hierarchy=HIERARCHY, alpha=0.1), KINDS),
    Case(rm.HierarchicalClassifier(hierarchy=rm.Tree.from_parents(HIERARCHY), alpha=0.1), KINDS),
    Case(rm.HierarchicalClassifier(hierarchy={5: None, 0: 5, 1: 5, 2: None}, alpha=0.1), GRADE),
]
"""Other parameters, which files keep."""


def with_parameter(parameter):
    return [name for name, case in CASES.items() if parameter in case.model.get_params()]


CERTIFIED = with_parameter("atol")
"""Those that minimize an objective."""
SEARCHES = with_parameter("alphas")
OF_ROWS = with_parameter("standardize")
"""Those of linear functions of the columns of X."""
SINGLE = [name for name in OF_ROWS if name not in SEARCHES]
ONE_OF_EACH = list({type(CASES[name].model): name for name in reversed(CASES)}.values())
"""A case of each class."""


@cache
def fitted(name):
    """The fitted model of a case, which tests share and do not change."""
    return CASES[name].fit()


def outputs(name, model, rows=X):
    return CASES[name].outputs(model, rows)


def assert_same(one, other, **close):
    """Check that all predictions agree: to the last bit, or as close as stated."""
    assert one.keys() == other.keys()
    for method, value in one.items():
        assert type(other[method]) is np.ndarray
        if value.dtype.kind != "f" or not close:
            np.testing.assert_array_equal(value, other[method], err_msg=method)
        else:
            np.testing.assert_allclose(value, other[method], err_msg=method, **close)


def assert_same_attributes(one, other):
    """Check that all fitted attributes but the trace and the command line are the same."""
    # the machines of the classes of a kernel are in no file
    names, others = ({k for k in vars(model) if k.endswith("_")} - {"estimators_"} for model in (one, other))
    assert names == others
    for key in names - {"result_", "tree_", "command_"}:
        a, b = getattr(one, key), getattr(other, key)
        if callable(a):
            assert repr(a) == repr(b)
        else:
            np.testing.assert_array_equal(a, b, err_msg=key)
            assert np.asarray(a).dtype == np.asarray(b).dtype


def close_minima(one, other):
    """Check that two models have certificates of the same problem: each bound is below both objectives."""
    rounding = 1e-12 * abs(one.objective_)
    assert max(one.lower_bound_, other.lower_bound_) <= min(one.objective_, other.objective_) + rounding


def agree(ours, scaler, inner, rows):
    """Check that J, bounds, weights in units of the data and predictions agree."""
    assert ours.objective_ == pytest.approx(inner.objective_, rel=5e-6)
    close_minima(ours, inner)
    np.testing.assert_allclose(ours.scale_, scaler.scale_, rtol=1e-12)
    np.testing.assert_allclose(
        ours.coef_ * ours.scale_, inner.coef_, atol=5e-3 * (1 + abs(inner.coef_).max())
    )
    method = "decision_function" if hasattr(ours, "decision_function") else "predict"
    z, expected = getattr(ours, method)(rows), getattr(inner, method)(scaler.transform(rows))
    if z.ndim == 2 or ours.task == "ranking":  # these scores are only compared
        z, expected = z - z.mean(axis=-1, keepdims=True), expected - expected.mean(axis=-1, keepdims=True)
    np.testing.assert_allclose(z, expected, atol=1e-2 * (1 + abs(expected).max()))


class RemoteExecutor(rm.Executor):
    """An executor with remote shards: arguments are pickled, and the rows are not accessible locally."""

    def __init__(self, shards=()):
        self.shards = [pickle.loads(pickle.dumps(shard)).load() for shard in shards]

    def __call__(self, shards):
        return RemoteExecutor(shards)

    def map(self, f, *args, each=()):
        todo = pickle.loads(pickle.dumps(call_arguments(len(self.shards), args, each)))
        return [f(shard, *one) for shard, one in zip(self.shards, todo, strict=True)]


def partitioned(X, executor=None, ends=ENDS):
    parts = [rm.InMemoryPartition(X[i:j], f"part {k}") for k, (i, j) in enumerate(pairwise(ends))]
    return rm.PartitionedMatrix(parts, executor)

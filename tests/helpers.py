"""Shared by several test modules: losses, small problems, and functions that run on shards."""

import contextlib
import os
import signal
import threading
import time
from dataclasses import dataclass, field
from functools import cached_property
from html.parser import HTMLParser
from unittest import mock

import numpy as np
import pytest
from scipy import sparse

from riskmin import (
    L2,
    LOSSES,
    Absolute,
    ChainMaxMargin,
    EpsilonInsensitive,
    ExpectedRankUtility,
    Expectile,
    Exponential,
    FBeta,
    Gamma,
    HierarchicalHinge,
    HierarchicalSoftmax,
    Hinge,
    Huber,
    HuberScale,
    Logistic,
    Mrr,
    MulticlassHinge,
    MultivariateSquared,
    Ndcg,
    NegativeBinomial,
    Novelty,
    Objective,
    Ordinal,
    Poisson,
    PositionWeights,
    PowerHinge,
    PrecisionAtK,
    Quantile,
    RecallAtK,
    Shard,
    SmoothedHinge,
    Squared,
    SquaredHinge,
    Tree,
    Tweedie,
    as_matrix,
    linear_risk,
)

ALL_LOSSES = [
    *(loss for loss in LOSSES.values() if loss.separable and not loss.multi_output),
    Hinge(margin=2.5),
    SquaredHinge(margin=0.0),
    PowerHinge(p=1.0),
    PowerHinge(p=3.0, margin=2.0),
    SmoothedHinge(mu=1e-3),
    SmoothedHinge(mu=2.0),
    Quantile(level=0.05),
    Quantile(level=0.9),
    EpsilonInsensitive(epsilon=0.0),
    EpsilonInsensitive(epsilon=0.2, power=1.5),
    EpsilonInsensitive(epsilon=0.0, power=3.0),
    Huber(delta=0.05),
    Huber(delta=10.0),
    Expectile(level=0.95),
    Tweedie(power=1.05),
    Tweedie(power=1.95),
    NegativeBinomial(dispersion=0.01),
    NegativeBinomial(dispersion=30.0),
]
"""Every registered separable loss with a single score per row, and some with extreme parameters."""

K = 3
"""The number of classes, targets or token labels of multi-output problems."""
COST = ((0.0, 2.0, 1.0), (0.5, 0.0, 3.0), (1.0, 0.0, 0.0))
"""An asymmetric cost matrix with one mistake that costs nothing."""
MANY_LOSSES = [
    *(loss for loss in LOSSES.values() if loss.multi_output),
    MulticlassHinge(COST),
    MulticlassHinge(COST, rescaled=True),
    MultivariateSquared([[2.0, 1.0, 0.0], [1.0, 0.5, 0.0], [0.0, 0.0, 3.0]]),  # of rank two
    ChainMaxMargin(rescaled=True),
]
"""Every registered multi-output loss, sequence losses included, and some with extreme parameters."""

TREE = Tree.from_parents({"C": None, "C15": "C", "C151": "C15", "M": None}, ["M", "C151", "C"])
"""Two trees side by side, of unequal depth; an inner node is a label, too."""
TREE_LOSSES = [
    HierarchicalSoftmax(TREE),
    HierarchicalHinge(TREE),
    HierarchicalHinge(TREE, "zero one"),
    HierarchicalHinge(TREE, COST),
    HierarchicalHinge(TREE, rescaled=True),
]

LIST_LOSSES = [
    *{loss for loss in LOSSES.values() if not loss.separable and not isinstance(loss, PrecisionAtK)},
    FBeta(beta=3.0),
    HuberScale(epsilon=1.1),
    PrecisionAtK(k=1),
    PrecisionAtK(k=6),
    RecallAtK(k=3),
    Ordinal(costs=[[], [1.0], [0.0, 2.0]]),
]
LIST_LOSSES.sort(key=repr)
"""Every non-decomposable loss, set up for the eight rows whose labellings and rankings are enumerated."""

RANKED = [
    Ndcg(weights=0.5),
    Ndcg(k=2, weights=PositionWeights(power=1, shift=1)),
    Ndcg(k=3, weights=PositionWeights(power=0.5, k=2)),
    Ndcg(k=3, weights="discount"),
    Mrr(weights=PositionWeights(power=1, shift=1)),
    Mrr(weights="discount"),
    ExpectedRankUtility(weights=PositionWeights(power=0.5, k=3)),
    ExpectedRankUtility(1.5, weights="discount"),
]
"""Rankings with weights of positions."""

TRACED_LOSSES = [
    Hinge(),
    Hinge(margin=0.3),
    SquaredHinge(),
    PowerHinge(1.5),
    PowerHinge(3),
    SmoothedHinge(0.3),
    Exponential(),
    Logistic(),
    Novelty(),
    Squared(),
    Absolute(),
    Quantile(0.9),
    EpsilonInsensitive(),
    EpsilonInsensitive(power=2),
    EpsilonInsensitive(0.2, power=2.5),
    Huber(0.7),
    Poisson(),
    Expectile(0.8),
    Gamma(),
    Tweedie(1.3),
    NegativeBinomial(0.5),
    Hinge().smoothed(0.3),
    EpsilonInsensitive().smoothed(0.2),
]
"""Losses whose array code is traced and compiled."""


class TickingClock:
    """A clock that advances by a millisecond per reading, so that limits pass after a number of checks."""

    TICK = 1e-3
    readings = 0

    def __call__(self):
        self.readings += 1
        return self.readings * self.TICK


@contextlib.contextmanager
def ticking_clock():
    """Replace the clock of this process."""
    clock = TickingClock()
    with mock.patch.object(time, "perf_counter", clock):
        yield clock


class Ridge:
    """|w|^2 / 2 with the four required methods only."""

    def value(self, w):
        return 0.5 * float(w @ w)

    def prox(self, v, step):
        return v / (1 + step)

    def conjugate(self, u):
        return 0.5 * float(u @ u)

    def conjugate_grad(self, u):
        return u


class ClosedElements(HTMLParser):
    """Checks of an HTML page."""

    def check(self, page):
        """Check that every opened element is closed, in order."""
        self.open = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        pass


def check_sentence(completed, *words):
    """Check that a command failed with one sentence on stderr, which holds the words, and nothing else."""
    code, out, err = completed
    assert (code, out) == (2, "")
    assert err.startswith("riskmin: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err


def refusals(*tables):
    """A test of tables of (call, words of the sentence), each table with the exception that it raises."""
    rows = [(*row, error) for table, error in tables for row in table]

    @pytest.mark.parametrize(("call", "words", "error"), rows, ids=[f"{k}" for k in range(len(rows))])
    def test_refusals_name_the_cause_and_a_remedy_in_one_line(call, words, error):
        with pytest.raises(error, match=words) as caught:
            call()
        assert "\n" not in str(caught.value)

    return test_refusals_name_the_cause_and_a_remedy_in_one_line


def edit(path, change):
    """Change the arrays and the metadata of a model file, with a valid checksum, as another program might."""
    from riskmin.core.persist import checksum, load_arrays, save_arrays

    arrays, meta = load_arrays(path, "model")
    arrays = {name: array.copy() for name, array in arrays.items()}
    meta.pop("sha256")
    change(arrays, meta)
    save_arrays(path, arrays, meta | {"sha256": checksum(arrays, meta)})


def name_of(value):
    """An id of a parameter that is the same in every process: functions have addresses in theirs."""
    return getattr(value, "__name__", None) or repr(value)


def labels(loss, z, rng):
    """Labels valid for the loss, near the scores z, of at least two classes."""
    if loss.task == "classification":
        y = np.where(z + 0.5 * rng.standard_normal(len(z)) > 0, 1.0, -1.0)
        y[:2] = 1.0, -1.0
        return y
    if loss.task in ("multiclass", "tagging"):
        y = np.digitize(z + 0.5 * rng.standard_normal(len(z)), [-0.5, 0.7]).astype(float)
        y[:K] = np.arange(K)[: len(y)]
        return y
    if loss.multi_output_targets:
        return np.outer(z, [1.0, -1.0, 0.3]) + 0.5 * rng.standard_normal((len(z), K))
    if loss.log_link:  # amounts, of which some losses take zeros
        y = np.append(1.0, rng.poisson(np.exp(np.clip(0.7 * z[1:], -5, 3)))).astype(float)
        return y + 0.5 * isinstance(loss, Gamma)
    return z + 0.5 * rng.standard_normal(len(z))


def problem(loss, n=30, p=4, seed=0):
    """X, y and sample weights (one per row or per sequence), some of them zero."""
    if not loss.separable:
        return _list_problem(loss, p, seed)
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    y = labels(loss, X @ rng.standard_normal(p) + 0.3, rng)
    m = len(lengths(n)) if loss.task == "tagging" else n
    weights = rng.integers(0, 4, m) * rng.random(m)
    weights[: K if loss.multi_output else 2] = 1.0
    return X, y, weights


def lengths(n):
    """Lengths of sequences with n tokens in total."""
    result = []
    while sum(result) < n:
        result.append(min([3, 1, 2][len(result) % 3], n - sum(result)))
    return result


def risk_of(loss, X, y, weights=None, **settings):
    """The risk on a `problem`, with the query ids or sequence lengths that the loss requires."""
    extra = {"ranking": {"qid": QUERIES}, "tagging": {"lengths": lengths(len(y))}}.get(loss.task, {})
    return linear_risk(X, y, loss, sample_weight=weights, **extra, **settings)


def _list_problem(loss, p, seed):
    """Eight rows of two classes, three grades, or two queries with rows of different grades."""
    rng = np.random.default_rng(seed)
    X, weights = rng.standard_normal((8, p)), rng.uniform(0.5, 2.0, 8)
    y = np.array([1.0, -1.0, -1.0, 1.0, -1.0, -1.0, 1.0, -1.0])
    if loss.task in ("ordinal", "ranking"):
        y = np.array([0.0, 1.0, 2.0, 0.0, 2.0, 1.0, 0.0, 0.0])
    return X, y, weights if loss.task == "ordinal" or loss == LOSSES["roc_area"] else None


QUERIES = np.array(["b", "b", "b", "a", "a", "a", "b", "a"])
"""The queries of the eight rows."""


@dataclass
class Problem:
    """min lam Omega(w) + R(w) on drawn rows: its data, its objective, and its minimum by another program.

    For example, ``problem.check(minimize(problem.objective()))``.
    """

    loss: object = field(default_factory=Hinge)
    reg: object = field(default_factory=L2)
    lam: float = 1e-2
    n: int = 40
    p: int = 4
    seed: int = 0
    intercept: bool = False
    weighted: bool = False
    sparse: bool = False
    units: object = 1.0
    """What the columns are multiplied by."""
    offset: object = 0.0
    """What is added to the columns afterwards."""
    data: object = None
    """X, y and sample weights, where they are not drawn."""

    def __post_init__(self):
        drawn = self.data or problem(self.loss, self.n, self.p, self.seed)
        self.X, self.y, self.weights = drawn
        self.X = self.X * self.units + self.offset
        if not self.weighted:
            self.weights = None

    def objective(self, **settings):
        """The objective; the settings are those of `linear_risk`."""
        X = sparse.csr_array(self.X) if self.sparse else self.X
        risk = risk_of(self.loss, X, self.y, self.weights, fit_intercept=self.intercept, **settings)
        return Objective(risk, self.reg, self.lam)

    @cached_property
    def optimum(self):
        """The minimum by cvxpy and Clarabel; the test is skipped where they fail."""
        from reference import optimum

        data = self.X, self.y, self.weights
        best = optimum(self.loss, self.reg, *data, self.lam, self.intercept, *self._parts)
        if np.isnan(best):
            pytest.skip("Clarabel does not solve the problem")
        return best

    def check(self, result, tol=1e-6, status="converged"):
        """Check that the bounds of a result enclose the minimum, and are as close as they should be."""
        slack = 1e-8 * max(1.0, abs(self.optimum))  # the accuracy of Clarabel
        assert result.status == status
        assert result.lower - slack <= self.optimum <= result.value + slack
        assert result.value - result.lower <= tol * max(1.0, abs(result.value))

    def value(self, w, lam):
        """lam Omega(w) + R(w) by the formulas of the other program, without intercept."""
        from reference import value

        return value(self.loss, self.reg, self.X, self.y, self.weights, lam, w, *self._parts)

    @property
    def _parts(self):
        """The queries of a ranking, and the lengths of sequences."""
        queries = QUERIES if self.loss.task == "ranking" else None
        return queries, lengths(self.n) if self.loss.task == "tagging" else None


# ---------------------------------------------------------------- shards, and functions that run on one
def shards(n=5):
    """Shards with 1 to n rows."""
    rows = [np.ones(k + 1) for k in range(n)]
    return [Shard(as_matrix(np.ones((len(c), 2))), c, c, {}) for c in rows]


def size(shard, *args):
    return shard.X.shape[0]


def fail(shard, n_rows):
    if shard.X.shape[0] == n_rows or n_rows < 0:
        raise ValueError("on purpose")
    return shard.X.shape[0]


def die(shard):
    os.kill(os.getpid(), 9)


def doze(shard, seconds):
    time.sleep(seconds)
    return "rested"


def interrupt(shard, pid):
    """Send SIGINT to a process during a call, from the shard with one row, which works on afterwards."""
    if len(shard.y) == 1:
        os.kill(pid, signal.SIGINT)
    return doze(shard, 0.3)


def echo(shard, thing):
    return thing


def pids(shard):
    return os.getpid()


class Needy(Exception):
    """An error that can be pickled but cannot be reconstructed from its message alone."""

    def __init__(self, what, where):
        super().__init__(f"{what} is missing at {where}")


class Stuck(Exception):
    """An error that does not pickle."""

    def __init__(self, message):
        super().__init__(message)
        self.hook = lambda: None


def need(shard):
    raise Needy("bread", "home")


def stick(shard):
    raise Stuck("in the mud")


def unsendable(shard):
    return threading.Lock()


def trapped(shard):
    return Trap(os.getpid())


class Trap:
    """An object that can be pickled but fails to unpickle in another process."""

    def __init__(self, home):
        self.home = home

    def __setstate__(self, state):
        if os.getpid() != state["home"]:
            raise ImportError("there is no such module here")
        self.__dict__ = state


def spin(shard, seconds=60.0):
    """Run for `seconds` with checks of the deadline; if negative, fail on the shard with one row instead."""
    from riskmin.core.deadline import check

    if seconds < 0 and len(shard.y) == 1:
        raise ValueError("no such shard")
    end = time.perf_counter() + abs(seconds)
    while time.perf_counter() < end:
        check()
        time.sleep(0.005)
    return len(shard.y)


def blas_thread_counts(*_):
    """The number of threads of each BLAS library in this process, after SciPy's has been loaded too."""
    import scipy.linalg  # noqa: F401
    from threadpoolctl import threadpool_info

    return [info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"]


def customers(n=240, seed=0):
    """Rows with an identifier, categories, missing cells, weights and a date."""
    import pandas as pd

    rng = np.random.default_rng(seed)
    city, age = rng.choice(["Rome", "Oslo", "Bonn"], n), rng.integers(18, 80, n).astype(float)
    z = 1.5 * (city == "Rome") + (age - 50) / 15 + rng.normal(size=n)
    age[rng.random(n) < 0.1] = np.nan
    return pd.DataFrame(
        {
            "id": [f"c{i}" for i in range(n)],
            "city": city,
            "age": age,
            "plan": rng.choice(["basic", "plus", None], n),
            "times": rng.integers(1, 4, n),
            "since": "2024-03-01",
            "bought": np.where(z > 0.5, "yes", "no"),
        }
    )


def altered(base, **changes):
    """A copy of a loss or a regularizer whose methods return ``change(result, *arguments)``."""

    def method(name, change):
        return lambda self, *args: change(getattr(super(type(self), self), name)(*args), *args)

    methods = {name: method(name, change) for name, change in changes.items()}
    made = type("Altered", (type(base),), methods)
    return made(**{name: getattr(base, name) for name in base.__dataclass_fields__})

"""The instances of the contract of solvers: every registered solver on problems of each kind, and others."""

from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import cycle

import numpy as np
import scipy.sparse as sp

import riskmin as rm
from everywhere import RemoteExecutor
from helpers import ALL_LOSSES, COST, Problem, labels


@dataclass
class Case:
    """A solver, a problem for it, and how accurately it is to be solved."""

    solver: object
    problem: Problem
    tol: float = 1e-6
    settings: dict = field(default_factory=dict)
    """Those of `Problem.objective`: where the rows are."""
    name: str = ""

    def __repr__(self):
        p = self.problem
        places = {"executor": "remote"} if "executor" in self.settings else self.settings
        parts = [repr(self.solver), repr(p.loss), repr(p.reg)[:30], f"lam={p.lam:g}", *places]
        parts += [word for word in ("intercept", "weighted", "sparse") if getattr(p, word)]
        return self.name or ", ".join(parts)

    @cached_property
    def objective(self):
        return self.problem.objective(**self.settings)


def raw_bound(J, it):
    """The lower bound of the cut of an iterate, without scaling it."""
    return it.cut.b - J.lam * J.reg.conjugate(-it.cut.a / J.lam)


# ---------------------------------------------------------------- registered solvers
SETTINGS = {
    "accelerated_gradient": (1.0, 1e-4),
    "augmented_lagrangian": (0.5, 1e-4),
    "bmrm": (0.5, 1e-5),
    "dual_accelerated": (1.0, 1e-4),
    "dual_gauss_seidel": (0.5, 1e-5),
    "excessive_gap": (1.0, 1e-4),
    "line_search_bmrm": (10.0, 1e-4),
    "pegasos": (1.0, 3e-3),
    "smoothing": (0.05, 1e-4),
}
"""lam and tol where they are not 0.05 and 1e-6: these methods are slow for small lam, as theorems state."""
KINDS = {
    "squared": Problem(rm.Squared(), n=30),
    "hinge": Problem(rm.Hinge(), n=30, weighted=True),
    "logistic": Problem(rm.Logistic(), n=30, intercept=True, weighted=True),
    "absolute": Problem(rm.Absolute(), n=30, intercept=True),
    "squared, L1": Problem(rm.Squared(), rm.L1(), n=30, intercept=True),
    "hinge, L1": Problem(rm.Hinge(), rm.L1(), n=30),
    "absolute, L1": Problem(rm.Absolute(), rm.L1(), n=30, intercept=True),
    "logistic, L1": Problem(rm.Logistic(), rm.L1(), n=30, intercept=True),
    "softmax": Problem(rm.Softmax(), n=24, p=3, intercept=True),
    "multiclass hinge": Problem(rm.MulticlassHinge(), n=24, p=3, weighted=True),
    "chains": Problem(rm.ChainMaxMargin(), n=12, p=2),
    "F-beta": Problem(rm.FBeta(), p=3),
    "break-even point": Problem(rm.Prbep(), p=3),
    "ROC area": Problem(rm.RocArea(), p=3, weighted=True),
}
"""Problems of each kind of loss and regularizer, with and without an intercept."""
DESCENT = {"lbfgs", "scipy"}
"""Methods that accept nonsmooth losses, and may end at a point where the slope jumps."""
_SHARED = {}


def _problem(kind, lam):
    """The same object for the same problem, so that its optimum is computed once."""
    return _SHARED.setdefault((kind, lam), replace(KINDS[kind], lam=lam))


def _registered(name):
    solver, (lam, tol) = rm.SOLVERS[name], SETTINGS.get(name, (0.05, 1e-6))
    for kind in KINDS:
        case = Case(solver, _problem(kind, lam), tol, name=f"{name} on {kind}")
        smooth_enough = name not in DESCENT or case.problem.loss.smooth
        if smooth_enough and solver.supports(case.objective) is None:
            yield case


REGISTERED = {name: list(_registered(name)) for name in rm.SOLVERS}
"""The cases of each registered solver."""


@cache
def regularizers(dim):
    """Regularizers for w of this length."""
    W = np.resize([0.5, 1.0, 2.0, 0.7], dim)
    special = [
        *(rm.L2(), rm.L1(), rm.Elastic(0.3), rm.Box(rm.L2()), rm.Box(rm.L1()), rm.Box(rm.L1(), -1.0, 1.0)),
        *(rm.Box(rm.Elastic(0.2), -0.5, 0.3), rm.Quadratic(np.diag(W) + np.full((dim, dim), 0.4))),
        *(rm.QNorm(1.5, 2.0), rm.QNorm(3.0, 1.5), rm.Entropy(W), rm.Entropy(1.0, normalized=False)),
        *(rm.Entropy(W, balanced=True), rm.Entropy(0.5, normalized=False, balanced=True)),
    ]
    others = [reg for reg in rm.REGULARIZERS.values() if type(reg) not in {type(known) for known in special}]
    return [*special, *others]


# ---------------------------------------------------------------- other settings
def each(solver, problems, tol=1e-6, **settings):
    return [Case(solver, problem, tol, settings) for problem in problems]


def _on(solver, tol, *cases):
    """Other settings of a solver, on (kind, lam)."""
    return each(solver, [_problem(kind, lam) for kind, lam in cases], tol)


REMOTE = {"executor": RemoteExecutor(), "n_shards": 3}
COMBINED = [
    *_on(rm.Portfolio((rm.Lbfgs(), rm.Bundle()), 1e-6), 1e-6, ("absolute", 0.05), ("softmax", 0.05)),
    *_on(rm.Smoothing(rm.OwlQn()), 1e-4, ("hinge, L1", 0.05)),
    *_on(rm.Smoothing(rm.ProximalGradient()), 1e-3, ("hinge", 0.05), ("ROC area", 0.05)),
    *_on(
        rm.Portfolio((rm.DualCoordinateAscent(), rm.Newton())),
        1e-6,
        ("hinge", 0.05),
        ("absolute", 0.05),
    ),
    *each(
        rm.Portfolio((rm.DualCoordinateAscent(local_epochs=1), rm.Bundle()), trial=4.0),
        [_problem("hinge", 0.05)],
        **REMOTE,
    ),
]
"""Solvers made of others."""
W4 = np.array([0.5, 1.0, 2.0, 0.7])
METRIC = np.diag([0.1, 1.0, 2.0, 5.0]) + 0.05
FREE = rm.Equality(rm.L2(), np.array([[1.0, 1.0, 0.0, 0.0], [0.0, 1.0, -1.0, 2.0]]))
"""Directions without a penalty."""
ROWS = [
    *(rm.Logistic(), rm.SquaredHinge(), rm.SmoothedHinge(0.3), rm.Squared(), rm.Huber(0.5), rm.Huber(0.01)),
    *(rm.Poisson(), rm.Exponential(), rm.EpsilonInsensitive(0.2, 2.0), rm.PowerHinge(3.0)),
    *(rm.Hinge(), rm.Absolute(), rm.Quantile(0.3), rm.EpsilonInsensitive(0.4)),
]
OUTPUTS = [
    *(rm.Softmax(), rm.MulticlassSquaredHinge(), rm.MultivariateSquared(np.eye(3) + 1)),
    *(rm.MulticlassHinge(), rm.MulticlassHinge(COST), rm.MulticlassHinge(COST, rescaled=True)),
    *(rm.MulticlassHinge(COST, rescaled=0.5), rm.MulticlassHinge(COST, rescaled=0.7, scaled_margin=True)),
]
LISTS = [rm.RocArea(), rm.Ordinal(), rm.Ordinal(costs=[[0], [1, 0], [2, 0.5, 0], [3, 0, 1, 0]]), rm.Prbep()]
TABLES = [rm.FBeta(2.0), rm.PrecisionAtK(3), rm.RecallAtK(5)]
CORNERS = [
    *(rm.Hinge(), rm.Hinge(margin=2.5), rm.Novelty(), rm.Absolute(), rm.Quantile(0.9)),
    rm.EpsilonInsensitive(0.3),
]
BUNDLE_REGS = [
    *(rm.L2(W4), rm.L1(), rm.L1(W4), rm.Elastic(0.7), rm.Elastic(2.0, W4), rm.Elastic(0.0)),
    *(rm.Box(rm.L2()), rm.Box(rm.L1(), -0.2, W4)),
    *(rm.Box(rm.L1(), 0.3, 2.0), rm.Box(rm.Elastic(0.3), -np.inf, 0.1), rm.Entropy(0.25)),
    *(rm.Entropy(W4, normalized=False), rm.Entropy(0.25, balanced=True)),
    *(rm.Entropy(0.1, normalized=False, balanced=True), rm.QNorm(1.5), rm.QNorm(1.1), rm.QNorm(3.0, 1.5)),
    rm.Quadratic(METRIC),
]
EXACT_LOSSES = [
    loss
    for loss in ALL_LOSSES
    if isinstance(loss, rm.Logistic) or loss.interval_conjugate(np.ones(1)) is not None
]
"""Those of which dual ascent takes exact steps."""


def list_rows(loss, n=25):
    """Rows of four grades or two classes, far more than those whose rankings are enumerated."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 4))
    z = X @ rng.standard_normal(4)
    if loss.task != "ordinal":
        return X, labels(rm.Hinge(), z - 0.5, rng), None
    return X, np.append(np.arange(4.0), np.clip(np.floor(z[4:] + 2), 0, 3)), rng.random(n) + 0.1


def classes(**settings):
    """Rows of three classes with weights, some of them zero, and one without entries."""
    made = Problem(rm.MulticlassHinge(COST), p=6, weighted=True, **settings)
    made.X[np.abs(made.X) < 0.4] = 0.0
    made.X[3] = 0.0
    return made


class Classes:
    """A structured model of k classes of rows with p entries."""

    def __init__(self, k, p):
        self.k, self.dim = k, k * p

    def joint_feature(self, x, y):
        return np.outer(np.eye(self.k)[y], x).ravel()

    def cost(self, y, other):
        return float(y != other)

    def loss_augmented_argmax(self, x, y, w):
        return int(np.argmax(w.reshape(self.k, -1) @ x + (np.arange(self.k) != y)))


def _newton():
    yield from each(rm.Newton(), [Problem(a, intercept=True, weighted=True) for a in [*ROWS, *OUTPUTS]], 1e-7)
    # no matrix is factorized
    yield from each(rm.Newton(direct=1), [Problem(a, sparse=True, lam=1e-3) for a in ROWS[::2]], 1e-7)
    yield from each(rm.Newton(direct=1), [Problem(a, data=list_rows(a), lam=0.1) for a in LISTS[2:]], 1e-7)
    yield from each(rm.Newton(), [Problem(a, sparse=True, lam=1e-4) for a in OUTPUTS], 1e-7)
    lists = [Problem(a, data=list_rows(a), weighted=True, lam=1e-4) for a in LISTS]
    # more columns than rows
    wide = (rm.Hinge(), rm.Logistic(), rm.Squared(), rm.Softmax())
    columns = [Problem(a, n=30, p=50, intercept=True, lam=1e-3) for a in wide]
    # weights per feature, and a metric
    penalties = [
        (rm.Hinge(), rm.L2([0.1, 1.0, 2.0, 5.0])),
        (rm.Hinge(), rm.Quadratic(METRIC)),
        (rm.Logistic(), rm.L2([0.1, 1.0, 2.0, 5.0])),
        (rm.Logistic(), rm.Quadratic(sp.csr_array(METRIC))),
        (rm.Squared(), rm.Quadratic(METRIC)),
        (rm.Huber(0.3), rm.Quadratic(METRIC)),
    ]
    weighted = [Problem(*pair, lam=1e-3, weighted=True, intercept=True) for pair in penalties]
    yield from each(rm.Newton(), [*lists, Problem(rm.Novelty(), weighted=True), *columns, *weighted], 1e-7)
    area = Problem(rm.RocArea(), rm.Quadratic(METRIC), data=list_rows(rm.RocArea()), lam=1e-3)
    yield from each(rm.Newton(direct=1), [area], 1e-7)


def _first_order():
    for k, reg in enumerate(BUNDLE_REGS):
        sparse = isinstance(reg, rm.L1 | rm.Elastic)
        loss = rm.Poisson() if k % 2 and sparse else rm.Logistic()
        problem = Problem(loss, reg, lam=0.02, n=30, weighted=True, intercept=k % 3 == 0)
        for solver in (rm.ProximalGradient(), rm.OwlQn()) if sparse else (rm.ProximalGradient(),):
            yield Case(solver, problem, 1e-7)
        yield Case(rm.AcceleratedGradient(), Problem(rm.Logistic(), reg, 0.1, n=30, weighted=True))
    for solver in (rm.ProximalGradient(), rm.OwlQn()):
        yield Case(solver, Problem(rm.Huber(), rm.Elastic(0.3), 0.02, intercept=True), 1e-8, REMOTE)
    for memory in (1, 3, 20):
        yield Case(rm.Lbfgs(memory=memory), Problem(rm.Poisson(), weighted=True, intercept=True), 1e-8)
    for loss, reg, intercept in (
        (rm.SmoothedHinge(1e-3), rm.L1(), True),
        (rm.SmoothedHinge(1e-3), rm.Elastic(0.3), False),
        (rm.Huber(0.05), rm.L2(), True),
    ):
        # where the risk is linear, curvature is only rounding error and must not raise L
        yield Case(rm.AcceleratedGradient(), Problem(loss, reg, 0.1, n=30, intercept=intercept), 1e-4)
    for method in list(rm.ScipyMinimizer.LIMITS)[1:]:
        problem = Problem(rm.Logistic(), rm.Quadratic(METRIC), n=60, intercept=True)
        yield Case(rm.ScipyMinimizer(method), problem)


def _smoothing():
    for loss in [*CORNERS, *LISTS[:2], rm.Ordinal(((), (1.0,), (4.0, 2.0))), rm.Prbep(), *TABLES]:
        # novelty with an intercept has no minimum but zero
        intercept = loss.separable and loss != rm.Novelty()
        yield Case(rm.Smoothing(), Problem(loss, lam=0.05, n=24, intercept=intercept), 1e-4)
    for inner, loss, reg, lam, tol, intercept in (
        (rm.ProximalGradient(), rm.RocArea(), rm.L1(), 0.05, 1e-3, False),
        (rm.OwlQn(), rm.Hinge(), rm.Elastic(0.3), 0.05, 1e-4, False),
        (rm.OwlQn(), rm.RocArea(), rm.L1(), 0.05, 1e-4, False),
        (rm.AcceleratedGradient(), rm.Hinge(), rm.L2(), 0.5, 1e-3, True),
        (rm.AcceleratedGradient(), rm.Hinge(), rm.Elastic(0.3), 0.5, 1e-3, True),
        (rm.AcceleratedGradient(), rm.RocArea(), rm.L2(), 0.5, 1e-3, False),
        (rm.AcceleratedGradient(), rm.Prbep(), rm.L2(), 0.5, 1e-3, False),
    ):
        yield Case(rm.Smoothing(inner), Problem(loss, reg, lam, n=24, intercept=intercept), tol)
    for loss in (rm.Hinge(), rm.RocArea()):
        yield Case(rm.Smoothing(), Problem(loss, lam=0.05, n=24), 1e-4, REMOTE)


def _coordinates():
    losses = [
        *ROWS[:5],
        *(rm.Huber(0.05), rm.Poisson(), rm.Exponential(), rm.EpsilonInsensitive(power=2.0)),
        *(rm.PowerHinge(p=2.0), rm.PowerHinge(p=3.0, margin=2.0)),
    ]
    regs = [
        *(rm.L1(), rm.L1(np.linspace(0.5, 2.0, 6)), rm.Elastic(), rm.Box(rm.L1())),
        *(rm.Box(rm.Elastic(), -0.5, 0.3), rm.L2(), rm.Box(rm.L2(), np.linspace(-0.3, 0.0, 6), 0.1)),
    ]
    for k, (loss, reg) in enumerate(zip(losses, cycle(regs), strict=False)):
        problem = Problem(loss, reg, lam=0.03, p=6, intercept=bool(k % 2), weighted=bool(k % 3))
        yield Case(rm.CoordinateDescent(start=1 if k < 2 else 64), problem, 1e-9)
    box = rm.Box(rm.Elastic(0.5, 0.8), -0.3, np.inf)
    for k, loss in enumerate([*CORNERS, *ROWS[:2], *ROWS[3:5], rm.Poisson(), rm.Exponential()]):
        problem = Problem(loss, box, lam=0.05, n=30, p=5, weighted=True, intercept=bool(k % 2))
        yield Case(rm.InteriorPoint(), problem, 1e-8)


def _bundles():
    for k, reg in enumerate(BUNDLE_REGS):
        loss, lam = (rm.Hinge(), 0.5) if k % 2 else (rm.Absolute(), 0.02)
        yield Case(rm.Bundle(), Problem(loss, reg, lam, weighted=True, intercept=k % 3 == 0))
    yield from each(rm.Bundle(keep=2), [_problem(kind, 0.05) for kind in ("hinge", "logistic")])
    # an intercept per class, which matters where the mean of the rows is far from zero
    for loss, lam in zip(OUTPUTS[3:6], (1e-3, 1e-1, 1e-2), strict=True):
        yield Case(rm.Bundle(), Problem(loss, lam=lam, intercept=True, weighted=True, offset=3.0), 1e-7)
    for reg in (rm.L1(), rm.Elastic()):
        yield Case(rm.Bundle(), Problem(OUTPUTS[3], reg, intercept=True, weighted=True, offset=3.0))
    for loss, intercept, p in (
        (rm.FBeta(), False, 2),
        (rm.FBeta(), True, 20),
        (rm.FBeta(2.0), True, 2),
        (rm.PrecisionAtK(4), False, 20),
        (rm.RecallAtK(3), False, 2),
    ):
        yield Case(rm.ContingencyTables(), Problem(loss, p=p, intercept=intercept))


def _duals():
    dual = rm.DualCoordinateAscent()
    for k, loss in enumerate(EXACT_LOSSES):
        reg = rm.L2([0.5, 1.0, 2.0, 8.0]) if k % 2 else rm.L2()
        problem = Problem(loss, reg, 0.05, n=30, weighted=True, intercept=not k % 2, sparse=bool(k % 2))
        yield Case(dual, problem, 1e-8)
    for options in ({"damping": 0.3}, {"damping": 1.5}, {"shrink": False}, {"shuffle": False}):
        for problem in (_problem("hinge", 0.05), _problem("logistic", 0.05), classes(sparse=True)):
            yield Case(rm.DualCoordinateAscent(**options), problem)
    for lam, intercept in ((0.3, False), (1e-3, False), (0.02, True)):
        for sparse in (False, True):
            yield Case(dual, classes(lam=lam, intercept=intercept, sparse=sparse), 1e-7)
    for loss, n_shards in zip(
        (rm.Hinge(), rm.Logistic(), rm.EpsilonInsensitive(0.2)), (1, 3, 7), strict=True
    ):
        reg = rm.L2(W4) if n_shards > 1 else rm.L2()
        problem, remote = Problem(loss, reg, 0.05, n=30, weighted=True), REMOTE | {"n_shards": n_shards}
        yield Case(dual, problem, settings=remote)
        yield Case(rm.DualCoordinateAscent(local_epochs=1), problem, settings=remote)
    for loss in (rm.Prbep(), rm.RocArea(), rm.Ordinal(), rm.PairwiseHinge()):
        for p, sparse in ((30, False), (30, True), (5, False)):
            reg = rm.L2() if loss == rm.Prbep() else rm.L2(np.linspace(0.5, 2.0, p))
            yield Case(
                rm.SeparableForm(dual), Problem(loss, reg, 0.3, p=p, weighted=True, sparse=sparse), 1e-7
            )
    for loss, turns in ((rm.ChainMaxMargin(), 1), (rm.ChainMaxMargin(rescaled=True), 3)):
        problem = Problem(loss, lam=0.1, n=12, p=2, weighted=True, sparse=True)
        yield Case(rm.ChainAscent(turns=turns), problem, 1e-5, {"n_shards": 2})


def _papers():
    for reg in BUNDLE_REGS:
        if isinstance(reg, rm.L1) or isinstance(getattr(reg, "reg", None), rm.L1):
            continue  # it has no transfer function
        yield Case(rm.DualGaussSeidel(), Problem(rm.SquaredHinge(), reg, 0.2, n=30, weighted=True))
    powers = rm.PowerHinge(p=1.5), rm.PowerHinge(p=3.0), rm.EpsilonInsensitive(0.2, power=2.5)
    for loss in (rm.Hinge(), rm.Logistic(), rm.Exponential(), rm.Poisson(), ROWS[-1], *powers):
        yield Case(rm.DualGaussSeidel(), Problem(loss, rm.Elastic(0.1), 0.3, n=30, weighted=True))
    kinds = {"intercept": True}, {"sparse": True}, {"intercept": True, "reg": rm.L2(W4)}
    losses = [*CORNERS, rm.Huber(0.3), rm.SmoothedHinge(0.5)]
    losses.remove(rm.Novelty())
    for loss, kind in zip(losses, cycle(kinds), strict=False):
        yield Case(rm.DualAccelerated(), Problem(loss, lam=0.2, n=30, weighted=True, **kind), 1e-7)
    for loss, intercept in ((rm.Hinge(), False), (rm.SquaredHinge(), True)):
        yield Case(rm.AugmentedLagrangian(), Problem(loss, FREE, 0.2, intercept=intercept))
    for loss, b in (
        (rm.Squared(), False),
        (rm.Logistic(), True),
        (rm.Hinge(), True),
        (rm.SquaredHinge(), False),
    ):
        yield Case(rm.Auto(), Problem(loss, FREE, 0.1, intercept=b))
    yield Case(rm.DualAccelerated(), Problem(lam=0.2, n=30, weighted=True, intercept=True), 1e-10)
    yield Case(rm.DualAccelerated(restart=4.0), Problem(lam=0.05, n=30, weighted=True), 1e-4)
    yield Case(rm.DualConjugateGradient(preconditioned=False), _problem("squared", 0.05))
    yield Case(rm.Pegasos(batch_size=10), _problem("hinge", 1.0), 0.03)
    yield Case(rm.Bmrm(floor=True), _problem("hinge", 0.5), 1e-5)


NEWTON, DUALS = list(_newton()), list(_duals())
OTHERS = [
    *COMBINED,
    *NEWTON,
    *_first_order(),
    *_smoothing(),
    *_coordinates(),
    *_bundles(),
    *DUALS,
    *_papers(),
]
CASES = [*(case for cases in REGISTERED.values() for case in cases), *OTHERS]
FIRST = [*(cases[0] for cases in REGISTERED.values()), *COMBINED]
"""One case of each registered solver, and those of solvers made of others."""

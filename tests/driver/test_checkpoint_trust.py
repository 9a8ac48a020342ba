"""A checkpoint is a hint: its data must match and its contents be valid, and no status or bound is false."""

import re
import shutil
import warnings
from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp

import riskmin as rm
from riskmin.core.persist import checksum, load_arrays, save_arrays
from solver_cases import DUALS, FIRST, NEWTON, REGISTERED, Classes

RNG = np.random.default_rng(0)
X = RNG.standard_normal((31, 5)) * (RNG.random((31, 5)) < 0.7)
SIGN = np.where(X[:, 0] + 0.5 * RNG.standard_normal(31) > 0, 1.0, -1.0)
CLASS = RNG.integers(0, 3, 31)
TOL = 1e-4


def problem(y, loss, reg=None, lam=1e-2, X=X, **settings):
    return rm.Objective(rm.linear_risk(X, y, loss, **settings), reg or rm.L2(), lam)


def kernel(X=X, gamma=0.2):
    return rm.Objective(*rm.kernel_risk(X, SIGN, rm.Hinge(), rm.Rbf(gamma)), 1e-2)


def structured(X=X, y=CLASS, lam=0.3):
    return rm.Objective(rm.Structured(Classes(3, 5)).risk(X, y), rm.L2(), lam)


SOLVED = {repr(case): case for case in [*FIRST, *NEWTON[::6], *DUALS[::6]]}
"""A case of each solver, and some of those whose states differ by the loss and the place of the rows."""
OTHERS = {"kernel dual": (kernel, rm.KernelDual()), "working set": (structured, rm.WorkingSet())}
"""Solvers of risks of another kind."""
FAMILIES = [*SOLVED, *OTHERS]


def family(name):
    """The objective and the solver of a family."""
    if name in OTHERS:
        make, solver = OTHERS[name]
        return make(), solver
    case = SOLVED[name]
    return case.problem.objective(**case.settings), case.solver


@cache
def saved_run(name, folder):
    """A run of some iterations, its file, and bounds of the minimum."""
    J, solver = family(name)
    path = folder / f"{FAMILIES.index(name)}.checkpoint"
    rm.minimize(J, solver, tol=0.0, max_iter=3, checkpoint=path)
    return J, solver, load_arrays(path, "checkpoint"), rm.minimize(J, tol=1e-8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


# ---------------------------------------------------------------- other data
class OwnRisk:
    """A risk whose data are in a list, and which has no repr of its own."""

    dim = 3

    def __init__(self, targets):
        self.targets = list(targets)

    def __call__(self, w):
        differences = [w - t for t in self.targets]
        return sum(0.5 * float(d @ d) for d in differences), sum(differences)


class OwnLoss:
    """A loss without a repr of its own: the default one has an address."""

    def __init__(self, power):
        self.power = power

    def value_grad(self, z, y, c):
        r = abs(z - y)
        return c @ r**self.power, c * self.power * r ** (self.power - 1) * np.sign(z - y)


def hidden(target):
    """A risk of the user's own whose data are in a closure."""

    class Hidden:
        dim = 2

        def __call__(self, w):
            return 0.5 * float((w - target) @ (w - target)), w - target

    return rm.Objective(Hidden(), rm.L2(), 0.5)


def changed_bit():
    """X with one bit changed."""
    other = X.copy()
    other[np.nonzero(X[:, 1])[0][0], 1] *= 1 + 2**-52
    return other


def queries(k):
    return problem(CLASS, rm.Ndcg(), lam=50.0, qid=np.repeat(np.arange(k), -(-31 // k))[:31])


def hinge(y=SIGN, reg=None, X=X, **settings):
    """A large lam keeps w at 0, where J does not depend on X: the bound must not be inherited."""
    return problem(y, rm.Hinge(), reg, 50.0, X, **settings)


ANOTHER = {
    "rows": (hinge, lambda: hinge(X=3 * X)),
    "a bit": (hinge, lambda: hinge(X=changed_bit())),
    "order": (hinge, lambda: hinge(SIGN[::-1], X=X[::-1])),
    "labels": (hinge, lambda: hinge(-SIGN)),
    "one label": (hinge, lambda: hinge(np.where(np.arange(31) == 7, -SIGN, SIGN))),
    "sample weights": (hinge, lambda: hinge(sample_weight=np.linspace(1, 2, 31))),
    "queries": (lambda: queries(4), lambda: queries(5)),
    "kernel rows": (kernel, lambda: kernel(changed_bit())),
    "kernel": (kernel, lambda: kernel(gamma=2.0)),
    "examples": (lambda: structured(lam=50.0), lambda: structured(X + 0.5, lam=50.0)),
    "structured labels": (lambda: structured(lam=50.0), lambda: structured(y=(CLASS + 1) % 3, lam=50.0)),
    "own risk": (
        lambda: rm.Objective(OwnRisk([0.0, 1.0, 2.0]), rm.L2(), 0.5),
        lambda: rm.Objective(OwnRisk([0.0, 1.5, 2.0]), rm.L2(), 0.5),
    ),
    "closure": (lambda: hidden(1.0), lambda: hidden(1.5)),
    "strength": (hinge, lambda: problem(SIGN, rm.Hinge(), lam=49.0)),
    "loss": (hinge, lambda: problem(SIGN, rm.Huber(), lam=50.0)),
    "columns": (hinge, lambda: hinge(X=X[:, 1:])),
    "intercept": (hinge, lambda: hinge(fit_intercept=True)),
    "penalties": (
        lambda: hinge(reg=rm.L2(np.arange(1.0, 6.0))), lambda: hinge(reg=rm.L2(np.arange(2.0, 7.0)))
    ),
    "own loss": (lambda: problem(SIGN, OwnLoss(1.5)), lambda: problem(SIGN, OwnLoss(1.7))),
    "lengths": tuple(
        lambda n=n: problem(CLASS, rm.ChainMaxMargin(), lengths=n) for n in ([10, 11, 10], [11, 10, 10])
    ),
}  # fmt: skip
"""Objectives by what is other in the second one."""


BROKEN = "is broken: .*; delete it or give another checkpoint path$"


def check_refused(path, J, solver, words=BROKEN):
    with pytest.raises(rm.FileError, match=f"^{re.escape(str(path))} {words}") as caught:
        rm.minimize(J, solver, tol=1e-9, max_iter=9, checkpoint=path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ANOTHER)
def test_other_data_and_settings_are_refused(name, tmp_path):
    make, make_other = ANOTHER[name]
    path = tmp_path / "run"
    rm.minimize(make(), rm.Bundle(), tol=1e-2, max_iter=2, checkpoint=path)
    settings = name in ("strength", "loss", "columns", "kernel", "penalties", "own loss", "lengths")
    words = ".*(another problem|other data)" if settings else "was written for other data.*delete it"
    check_refused(path, make_other(), rm.Bundle(), words)
    for solver in (rm.Bmrm(), rm.Bundle(keep=3)):
        check_refused(path, make(), solver, ".*another solver")
    # the same data in other objects, whose memory addresses differ
    assert rm.minimize(make(), rm.Bundle(), tol=1e-3, checkpoint=path).status == "converged"


@pytest.mark.parametrize("store", [np.asfortranarray, sp.csr_array, sp.csc_array, sp.csr_matrix])
def test_the_same_data_in_another_storage_resume(store, folder, tmp_path):
    path = tmp_path / "run"
    first = rm.minimize(problem(SIGN, rm.Hinge()), rm.Bundle(), tol=1e-2, max_iter=3, checkpoint=path)
    for settings in ({}, {"n_shards": 3, "executor": rm.Threads(n_workers=2)}):
        copy = shutil.copy(path, tmp_path / "copy")
        resumed = rm.minimize(problem(SIGN, rm.Hinge(), X=store(X), **settings), rm.Bundle(), checkpoint=copy)
        assert resumed.status == "converged"
        assert resumed.trace[:3] == first.trace


# ---------------------------------------------------------------- other contents
def forge(path, arrays, meta):
    """Write a checkpoint with a valid checksum."""
    meta = {k: v for k, v in meta.items() if k != "sha256"}
    save_arrays(path, arrays, meta | {"sha256": checksum(arrays, meta)})


def test_bounds_in_a_file_do_not_count(tmp_path):
    J, path = problem(SIGN, rm.Hinge()), tmp_path / "run"
    first = rm.minimize(J, rm.Bundle(), tol=0.5, checkpoint=path)
    best = rm.minimize(J, tol=1e-9)
    arrays, meta = load_arrays(path, "checkpoint")
    assert not {"lower", "b"} & meta.keys()
    assert "cut" not in arrays
    arrays["trace"][-1, meta["keys"].index("lower")] = first.value  # a gap of zero
    forge(path, arrays, meta)
    for tol in (1e-2, 1e-6):
        resumed = rm.minimize(J, rm.Bundle(), tol=tol, checkpoint=path)
        assert resumed.status == "converged"
        assert resumed.lower <= best.value
        assert all(row["lower"] <= best.value for row in resumed.trace)
        assert resumed.value - best.value <= tol * resumed.value


def test_changed_or_invalid_metadata_and_arrays_are_refused(folder, tmp_path):
    J, solver, (arrays, meta), _ = saved_run(repr(REGISTERED["bmrm"][0]), folder)
    path, w = tmp_path / "run", arrays["w"]
    for changed in ((arrays, meta | {"noise": 1.0}), (arrays | {"w": arrays["w"] + 1e-9}, meta)):
        save_arrays(path, *changed)  # with the checksum of before
        check_refused(path, J, solver)
    for invalid in (
        {"keys": meta["keys"][1:]}, {"keys": "seconds"}, {"keys": None}, {"noise": "0"}, {"noise": None},
        {"noise": 1e999}, {"noise": float("nan")}, {"exact": True},
    ):  # fmt: skip
        forge(path, arrays, meta | invalid)
        check_refused(path, J, solver)
    for invalid in (
        {"w": w[1:]}, {"w": w[:, None]}, {"w": np.nan * w}, {"w": w.astype(np.int64)},
        {"trace": np.zeros((0, len(meta["keys"])))},
        {"trace": np.full_like(arrays["trace"], np.nan)}, {"trace": np.zeros(3)}, {"more": np.zeros(3)},
    ):  # fmt: skip
        forge(path, arrays | invalid, meta)
        check_refused(path, J, solver)
    forge(path, arrays, meta)
    assert rm.minimize(J, solver, tol=1e-2, checkpoint=path).status == "converged"


FREE = ".order", "rows"
"""Arrays of the rows still to visit, which may be shorter."""


def invalid_versions(name, a):
    """Versions of an array from which no solver may resume."""
    for axis in range(a.ndim):
        longer = np.zeros((*a.shape[:axis], 9, *a.shape[axis + 1 :]))
        yield np.concatenate([a, a], axis) if a.shape[axis] else longer
        if a.shape[axis] and not (name.endswith(FREE) and a.ndim == 1):
            yield np.delete(a, 0, axis)
    yield a[None]
    if not a.size:
        return
    if a.dtype.kind == "f":
        yield np.full_like(a, np.nan)
        yield np.zeros(a.shape, np.int64)
    else:
        yield a.astype(np.float64)
        if a.dtype.kind == "i":
            yield a - 1000
    if name.endswith(("order", "rows", "labels", "used")):
        yield a + a.dtype.type(1000)


CHECKED = [
    *(f"{name} on squared" for name in ("bundle", "dual", "lbfgs")),
    next(
        name
        for name, case in SOLVED.items()
        if isinstance(case.solver, rm.Newton) and case.problem.loss.multi_output
    ),
]
"""Families whose states have arrays of all kinds."""


@pytest.mark.parametrize(
    "name", [pytest.param(k, marks=[] if k in CHECKED else pytest.mark.slow) for k in FAMILIES]
)
def test_states_of_invalid_shape_dtype_or_range_are_refused(name, folder, tmp_path):
    J, solver, (arrays, meta), _ = saved_run(name, folder)
    path = tmp_path / "run"
    for k, key in enumerate(k for k in arrays if k.startswith("state.")):
        for invalid in list(invalid_versions(key, arrays[key]))[k % 2 :: 2]:
            forge(path, arrays | {key: invalid}, meta)
            check_refused(path, J, solver)
    forge(path, {k: a for k, a in arrays.items() if k != "w"}, meta)
    check_refused(path, J, solver)


# ---------------------------------------------------------------- false hints
def mutated(a, rng):
    """An array of the same shape and dtype with other numbers."""
    if a.dtype.kind != "f":
        return rng.permutation(a) if a.ndim else a
    size = float(np.abs(a).max(initial=0.0)) or 1.0
    return [
        lambda: a * rng.choice([-1.0, 0.0, 0.5, 0.99, 1.01, 2.0, 1e3, 1e9]),
        lambda: a + size * 10.0 ** rng.integers(-6, 3) * rng.standard_normal(a.shape),
        lambda: np.full_like(a, size * rng.choice([0.0, 1.0, -1.0, 1e6, 1e-6])),
        lambda: rng.permutation(a.ravel()).reshape(a.shape),
        lambda: np.where(np.arange(a.size).reshape(a.shape) == a.size - 1, a + rng.uniform(0, 2), a),
    ][rng.integers(5)]()


def mutation(arrays, meta, rng):
    """Other contents for one to all arrays of a file, and for some of its numbers."""
    arrays, meta = dict(arrays), dict(meta)
    states = sorted(k for k in arrays if k.startswith("state."))
    for key in rng.permutation(states)[: rng.choice([1, 1, 2, len(states)])] if states else ():
        arrays[key] = mutated(arrays[key], rng)
    if rng.random() < 0.2:
        trace = arrays["trace"].copy()
        column = meta["keys"].index(rng.choice(["value", "lower", "gap", "seconds", "calls"]))
        trace[:, column] = rng.choice([0.0, 1.0, meta["exact"], 2.0**70, 1e300])
        arrays["trace"] = trace
    if rng.random() < 0.2:
        meta["noise"] = float(rng.choice([0.0, -1e3, 1e-3]))
    return arrays, meta


def check_hints(name, folder, n, seed):
    """Resume from n changed files: no status and no bound may be false."""
    J, solver, (arrays, meta), best = saved_run(name, folder)
    path = folder / "run"
    for k in range(n):
        rng = np.random.default_rng([seed, k, sum(map(ord, name))])
        with np.errstate(all="ignore"):  # states hold infinite bounds
            changed = mutation(arrays, meta, rng)
        forge(path, *changed)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = rm.minimize(J, solver, tol=TOL, max_iter=15, max_seconds=1e6, checkpoint=path)
        except rm.FileError:
            continue
        truth = J.value(result.w)
        assert result.lower <= best.value * (1 + 1e-9), k
        assert abs(result.value - truth) <= 1e-9 * max(abs(truth), best.value), k
        assert result.status != "converged" or truth - best.lower <= (TOL + 1e-7) * truth + 1e-9, k


@pytest.mark.parametrize("name", FAMILIES)
def test_changed_checkpoints_give_no_false_status(name, folder):
    """The unchanged file resumes: a run changes nothing of its data."""
    _, solver, (arrays, meta), _ = saved_run(name, folder)
    forge(folder / "same", arrays, meta)
    assert rm.minimize(family(name)[0], solver, tol=0.0, max_iter=4, checkpoint=folder / "same").n_iter >= 3
    check_hints(name, folder, 1, seed=0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FAMILIES)
def test_many_changed_checkpoints_give_no_false_status(name, folder):
    check_hints(name, folder, 50, seed=1)


# ---------------------------------------------------------------- infinite objectives
@pytest.mark.parametrize("y", [1e200 * X[:, 0], np.full(31, 1e160)])
@pytest.mark.parametrize("settings", [{}, {"solver": "lbfgs"}, {"fit_intercept": False}], ids=str)
def test_overflowing_objectives_raise(y, settings):
    with pytest.raises(ValueError, match="scale"):
        rm.LinearRegressor("squared", **settings).fit(X, y)


def test_overflowing_columns_do_not_converge():
    with pytest.warns(match="certified relative gap of 1"):
        model = rm.LinearRegressor("squared").fit(1e200 * X, X[:, 0])
    assert model.result_.status != "converged"
    assert np.isfinite(model.objective_)

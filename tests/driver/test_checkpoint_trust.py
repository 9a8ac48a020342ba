"""Validation of checkpoints: the data must match, the file must be unchanged, and its contents valid."""

import numpy as np
import pytest
import scipy.sparse as sp

from riskmin import (
    L1,
    L2,
    AugmentedLagrangian,
    Bmrm,
    Bundle,
    ChainAscent,
    ChainMaxMargin,
    CoordinateDescent,
    DualAccelerated,
    DualCoordinateAscent,
    DualGaussSeidel,
    Entropy,
    Hinge,
    KernelDual,
    Lbfgs,
    LinearRegressor,
    Logistic,
    MulticlassHinge,
    Ndcg,
    Newton,
    Objective,
    OwlQn,
    ProximalGradient,
    Smoothing,
    Softmax,
    Squared,
    Structured,
    Threads,
    kernel_risk,
    linear_risk,
    minimize,
)
from riskmin.core.persist import FileError, checksum, load_arrays, save_arrays
from riskmin.driver.fingerprint import fingerprint

RNG = np.random.default_rng(0)
X = RNG.standard_normal((31, 5)) * (RNG.random((31, 5)) < 0.7)
SIGN = np.where(X[:, 0] + 0.5 * RNG.standard_normal(31) > 0, 1.0, -1.0)
CLASS = RNG.integers(0, 3, 31)


def problem(y, loss, reg=None, lam=1e-2, X=X, **settings):
    return Objective(linear_risk(X, y, loss, **settings), reg or L2(), lam)


def kernel():
    risk, norm = kernel_risk(X, SIGN, Hinge(), "rbf")
    return Objective(risk, norm, 1e-2)


def remote_problem(y, loss, **settings):
    """A problem whose rows solvers treat as remote."""
    from dataclasses import replace

    J = problem(y, loss, executor=Threads(n_workers=2), n_shards=2, **settings)
    return Objective(replace(J.risk, rows=None), J.reg, J.lam)


CASES = {
    "newton": lambda: (problem(SIGN, Logistic(), fit_intercept=True), Newton()),
    "newton, classes": lambda: (problem(CLASS, Softmax(), fit_intercept=True), Newton()),
    "newton, smoothed": lambda: (problem(SIGN, Hinge(), fit_intercept=True), Newton()),
    "newton, smoothed classes": lambda: (problem(CLASS, MulticlassHinge()), Newton()),
    "lbfgs": lambda: (problem(SIGN, Logistic()), Lbfgs()),
    "owlqn": lambda: (problem(SIGN, Logistic(), L1()), OwlQn()),
    "proximal": lambda: (problem(SIGN, Logistic(), L1()), ProximalGradient()),
    "coordinate": lambda: (problem(SIGN, Squared(), L1()), CoordinateDescent()),
    "smoothing": lambda: (problem(SIGN, Hinge()), Smoothing()),
    "bundle": lambda: (problem(SIGN, Hinge(), fit_intercept=True), Bundle()),
    "bundle, classes": lambda: (problem(CLASS, MulticlassHinge(), fit_intercept=True), Bundle()),
    "bundle, L1": lambda: (problem(SIGN, Hinge(), L1()), Bundle()),
    "bundle, entropy": lambda: (problem(SIGN, Hinge(), Entropy(0.5, balanced=True)), Bundle()),
    "bmrm": lambda: (problem(SIGN, Hinge()), Bmrm()),
    "dual": lambda: (problem(SIGN, Hinge()), DualCoordinateAscent()),
    "dual, logistic": lambda: (problem(SIGN, Logistic()), DualCoordinateAscent()),
    "dual, intercept": lambda: (problem(SIGN, Hinge(), fit_intercept=True), AugmentedLagrangian()),
    "dual, gradient": lambda: (problem(SIGN, Hinge()), DualGaussSeidel()),
    "dual, classes": lambda: (problem(CLASS, MulticlassHinge(), fit_intercept=True), DualCoordinateAscent()),
    "dual, weights": lambda: (
        problem(CLASS, MulticlassHinge(), L2(np.repeat(np.arange(1.0, 6.0), 3))),
        DualCoordinateAscent(),
    ),
    "dual, remote rows": lambda: (remote_problem(SIGN, Hinge()), DualCoordinateAscent()),
    "dual accelerated": lambda: (problem(SIGN, Hinge()), DualAccelerated()),
    "kernel dual": lambda: (kernel(), KernelDual()),
    "chains": lambda: (problem(CLASS, ChainMaxMargin(), lengths=[10, 11, 10]), ChainAscent()),
    "auto": lambda: (problem(SIGN, Hinge(), fit_intercept=True), None),
}


# ---------------------------------------------------------------- other data
def test_checkpoint_of_other_data_with_equal_objective_is_refused(tmp_path):
    """A large lam keeps w at 0, where J does not depend on X: the bound must not be inherited."""
    path = tmp_path / "run"
    minimize(problem(SIGN, Hinge(), lam=50.0), Bundle(), tol=1e-2, checkpoint=path)
    for other in (
        problem(SIGN, Hinge(), lam=50.0, X=3 * X),
        problem(-SIGN, Hinge(), lam=50.0),
        problem(SIGN, Hinge(), lam=50.0, sample_weight=np.linspace(1, 2, 31)),
    ):
        with pytest.raises(FileError, match=r"was written for other data.*delete it"):
            minimize(other, Bundle(), tol=1e-9, checkpoint=path)
    assert minimize(problem(SIGN, Hinge(), lam=50.0), Bundle(), checkpoint=path).status == "converged"


def test_bounds_in_a_file_do_not_count(tmp_path):
    J, path = problem(SIGN, Hinge()), tmp_path / "run"
    first = minimize(J, Bundle(), tol=0.5, checkpoint=path)
    best = minimize(J, tol=1e-9)
    arrays, meta = load_arrays(path, "checkpoint")
    assert not {"lower", "b"} & meta.keys()
    assert "cut" not in arrays
    arrays["trace"][-1, meta["keys"].index("lower")] = first.value  # a gap of zero
    forge(path, arrays, meta)
    for tol in (1e-2, 1e-6):
        resumed = minimize(J, Bundle(), tol=tol, checkpoint=path)
        assert resumed.status == "converged"
        assert resumed.lower <= best.value
        assert all(row["lower"] <= best.value for row in resumed.trace)
        assert resumed.value - best.value <= tol * resumed.value


class OwnRisk:
    """A risk whose data are in a list, and which has no repr of its own."""

    dim = 3

    def __init__(self, targets):
        self.targets = list(targets)

    def __call__(self, w):
        differences = [w - t for t in self.targets]
        return sum(0.5 * float(d @ d) for d in differences), sum(differences)


class ThreeClasses:
    dim = 15

    def joint_feature(self, x, y):
        return np.outer(np.eye(3)[y], x).ravel()

    def cost(self, y, other):
        return float(y != other)

    def loss_augmented_argmax(self, x, y, w):
        return int(np.argmax(w.reshape(3, 5) @ x + (np.arange(3) != y)))


OWN = {
    "risk": lambda shift: Objective(OwnRisk([0.0, 1.0 + shift, 2.0]), L2(), 0.5),
    "closure": lambda shift: Objective(linear_like(1.0 + shift), L2(), 0.5),
    "examples": lambda shift: Objective(Structured(ThreeClasses()).risk(X + shift, CLASS), L2(), 50.0),
    "labels": lambda shift: Objective(
        Structured(ThreeClasses()).risk(X, (CLASS + int(shift > 0)) % 3), L2(), 50.0
    ),
}


def linear_like(target):
    """A risk of the user's own whose data are in a closure."""

    class Hidden:
        dim = 2

        def __call__(self, w):
            return 0.5 * float((w - target) @ (w - target)), w - target

    return Hidden()


@pytest.mark.parametrize("name", OWN)
def test_data_of_user_defined_objects_are_recognized(name, tmp_path):
    path = tmp_path / "run"
    minimize(OWN[name](0.0), Bundle(), tol=1e-2, max_iter=2, checkpoint=path)
    with pytest.raises(FileError, match="other data"):
        minimize(OWN[name](0.5), Bundle(), tol=1e-6, checkpoint=path)
    # the same data in other objects, whose memory addresses differ
    assert minimize(OWN[name](0.0), Bundle(), tol=1e-6, checkpoint=path).status == "converged"


@pytest.mark.parametrize("store", [np.asfortranarray, sp.csr_array, sp.csc_array, sp.csr_matrix])
def test_fingerprint_does_not_depend_on_storage(store):
    one = fingerprint(problem(SIGN, Hinge()))
    assert fingerprint(problem(SIGN, Hinge(), X=store(X))) == one
    assert fingerprint(problem(SIGN, Hinge(), X=store(X), n_shards=3, executor=Threads(n_workers=2))) == one


def test_fingerprint_depends_on_every_bit_and_the_order():
    fingerprints = {fingerprint(problem(SIGN, Hinge()))}
    other, flipped = X.copy(), SIGN.copy()
    other[np.nonzero(X[:, 1])[0][0], 1] *= 1 + 2**-52
    flipped[7] *= -1
    fingerprints.add(fingerprint(problem(SIGN, Hinge(), X=other)))
    fingerprints.add(fingerprint(problem(flipped, Hinge())))
    fingerprints.add(fingerprint(problem(SIGN[::-1], Hinge(), X=X[::-1])))
    fingerprints.add(fingerprint(problem(SIGN, Hinge(), L2(np.arange(1.0, 6.0)))))
    fingerprints.add(fingerprint(problem(SIGN, Hinge(), L2(np.arange(2.0, 7.0)))))
    queries = [np.repeat(np.arange(k), -(-31 // k))[:31] for k in (4, 5)]
    fingerprints |= {fingerprint(problem(CLASS, Ndcg(), qid=q)) for q in queries}
    chains = [[10, 11, 10], [11, 10, 10]]
    fingerprints |= {fingerprint(problem(CLASS, ChainMaxMargin(), lengths=k)) for k in chains}
    assert len(fingerprints) == 10
    kernels = {fingerprint(Objective(*kernel_risk(Z, SIGN, Hinge(), "rbf"), 1.0)) for Z in (X, other)}
    assert len(kernels) == 2


@pytest.mark.parametrize("name", CASES)
def test_fingerprint_is_unchanged_by_a_run(name):
    J, solver = CASES[name]()
    before = fingerprint(J)
    minimize(J, solver, max_iter=5)
    assert fingerprint(J) == before == fingerprint(CASES[name]()[0])


# ---------------------------------------------------------------- other contents
def forge(path, arrays, meta):
    """Write a checkpoint with a valid checksum."""
    meta = {k: v for k, v in meta.items() if k != "sha256"}
    save_arrays(path, arrays, meta | {"sha256": checksum(arrays, meta)})


def check_refused(path, J, solver):
    with pytest.raises(FileError) as caught:
        minimize(J, solver, tol=1e-9, max_iter=9, checkpoint=path)
    message = str(caught.value)
    assert message.startswith(f"{path} is broken: ")
    assert message.endswith("; delete it or give another checkpoint path")
    assert "\n" not in message


def test_changed_checkpoints_are_refused(tmp_path):
    J, path = problem(SIGN, Hinge()), tmp_path / "run"
    minimize(J, Bundle(), tol=1e-2, checkpoint=path)
    arrays, meta = load_arrays(path, "checkpoint")
    save_arrays(path, arrays, meta | {"noise": 1.0})
    check_refused(path, J, Bundle())
    save_arrays(path, arrays | {"w": arrays["w"] + 1e-9}, meta)
    check_refused(path, J, Bundle())


def test_invalid_metadata_and_arrays_are_refused(tmp_path):
    J, path = problem(SIGN, Hinge()), tmp_path / "run"
    minimize(J, Bundle(), tol=1e-2, checkpoint=path)
    arrays, meta = load_arrays(path, "checkpoint")
    for invalid in (
        {"keys": meta["keys"][1:]}, {"keys": "seconds"}, {"keys": None}, {"noise": "0"}, {"noise": None},
        {"noise": 1e999}, {"noise": float("nan")}, {"near": [1]}, {"exact": True},
    ):  # fmt: skip
        forge(path, arrays, meta | invalid)
        check_refused(path, J, Bundle())
    for invalid in (
        {"w": np.zeros(4)}, {"w": np.zeros((5, 1))}, {"w": np.full(5, np.nan)}, {"w": np.zeros(5, np.int64)},
        {"trace": np.zeros((0, len(meta["keys"])))},
        {"trace": np.full_like(arrays["trace"], np.nan)}, {"trace": np.zeros(3)}, {"more": np.zeros(3)},
    ):  # fmt: skip
        forge(path, arrays | invalid, meta)
        check_refused(path, J, Bundle())
    forge(path, arrays, meta)
    assert minimize(J, Bundle(), tol=1e-9, checkpoint=path).status == "converged"


FREE = ".order", ".rows"
"""Arrays of the rows still to visit, which may be shorter."""


def mutations(name, a):
    """Invalid versions of an array, from which no solver may resume."""
    for axis in range(a.ndim):
        if a.shape[axis]:
            yield np.delete(a, 0, axis)
        yield (
            np.concatenate([a, a], axis)
            if a.shape[axis]
            else np.zeros((*a.shape[:axis], 9, *a.shape[axis + 1 :]))
        )
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


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_states_of_invalid_shape_dtype_or_range_are_refused(name, tmp_path):
    J, solver = CASES[name]()
    path = tmp_path / "run"
    minimize(J, solver, tol=0.0, max_iter=4, checkpoint=path)
    arrays, meta = load_arrays(path, "checkpoint")
    states = [k for k in arrays if k.startswith("state.")]
    assert states
    for key in states:
        free = key.endswith(FREE)
        for invalid in mutations(key, arrays[key]):
            if free and invalid.ndim == 1 and len(invalid) < len(arrays[key]):
                continue  # fewer rows are valid
            forge(path, arrays | {key: invalid}, meta)
            check_refused(path, J, solver)
    forge(path, {k: a for k, a in arrays.items() if k != "w"}, meta)
    check_refused(path, J, solver)


# ---------------------------------------------------------------- infinite objectives
def test_overflowing_objective_raises():
    for y in (1e200 * X[:, 0], np.full(31, 1e160)):
        for settings in ({}, {"solver": "lbfgs"}, {"fit_intercept": False}):
            with pytest.raises(ValueError, match="scale"):
                LinearRegressor("squared", **settings).fit(X, y)


def test_overflowing_columns_do_not_converge():
    with pytest.warns(match="certified relative gap of 1"):
        model = LinearRegressor("squared").fit(1e200 * X, X[:, 0])
    assert model.result_.status != "converged"
    assert np.isfinite(model.objective_)


def test_risk_that_returns_nan_raises():
    class Own:
        dim = 3

        def __call__(self, w):
            return float("nan"), np.zeros(3)

    with pytest.raises(ValueError, match="nan where the run starts: return finite numbers"):
        minimize(Objective(Own(), L2(), 0.1))

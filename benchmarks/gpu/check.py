"""Check kernels and certificates of a GPU against double precision on the CPU of the same machine.

    python -m benchmarks.gpu check

Every loss of one score per row, every storage of X, torch and CuPy, and row lengths that use each layout of
the kernels. Bounds: relative to the largest entry, 1e-12. Exits with 1 if a check fails.
"""

from __future__ import annotations

import numpy as np

import riskmin as rm
from riskmin.arrays.matrix import as_matrix
from riskmin.arrays.namespace import to_numpy
from riskmin.problem.compiled import device_loops
from riskmin.problem.compiled.tracing import trace_loss, trial_scores
from riskmin.problem.risk import Risk
from riskmin.solvers.newton.devices.row_model import CurvedSmoothing

LOSSES = [
    rm.Hinge(),
    rm.SquaredHinge(),
    rm.PowerHinge(1.5),
    rm.SmoothedHinge(0.3),
    rm.Exponential(),
    rm.Logistic(),
    rm.Novelty(),
    rm.Squared(),
    rm.Absolute(),
    rm.Quantile(0.9),
    rm.EpsilonInsensitive(),
    rm.Huber(0.7),
    rm.Poisson(),
    rm.Hinge().smoothed(0.3),
]
COLUMNS = 1, 3, 13, 28, 100, 499, 512, 1000, 2048, 5000, 16384, 20000
failures = []


def report(name, found, expected, tol=1e-12):
    found = np.asarray(found if isinstance(found, float) else to_numpy(found), dtype=float)
    expected = np.asarray(expected, dtype=float)
    error = np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-300)
    if not error <= tol:
        failures.append(name)
        print(f"FAILED {name}: relative error {error:.1e}", flush=True)
    return error


def on_devices(X):
    """X in every library and storage, and its entries in double precision."""
    import cupy
    import torch

    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        stored = torch.asarray(X, device="cuda").to(dtype)
        yield f"torch {dtype}", stored, stored.double().cpu().numpy()
    for kind in (cupy.float32, cupy.float64):
        stored = cupy.asarray(X, dtype=kind)
        yield f"CuPy {kind.__name__}", stored, stored.astype(float).get()


def labels_of(loss, n, rng):
    if loss.task == "regression":
        return rng.poisson(2.0, n).astype(float)
    return np.where(rng.random(n) < 0.4, 1.0, -1.0)


def check_losses(rng):
    """One pass, two passes and array code agree for every loss."""
    worst, n, p = 0.0, 3001, 40
    X = rng.standard_normal((n, p))
    for loss in LOSSES:
        y, c = labels_of(loss, n, rng), rng.random(n)
        w = 0.3 * rng.standard_normal(p)
        for name, stored, D in list(on_devices(X))[:1]:
            expected = rm.linear_risk(D, y, loss, sample_weight=c)(w)
            for entries in (0, 2**62):  # traced kernels, and array code
                Risk.COMPILE_FROM_ENTRIES = entries
                risk = rm.linear_risk(stored, y, loss, sample_weight=c)
                traced = type(risk.compiled(loss)).__name__ == "TracedLoss"
                if traced != (entries == 0):
                    failures.append(f"{loss!r} is{'' if traced else ' not'} traced")
                value, grad = risk(w)
                kind = f"{loss!r}, {name}, {'one pass' if entries == 0 else 'array code'}"
                worst = max(worst, report(kind + ", value", value, expected[0]))
                worst = max(worst, report(kind + ", gradient", grad, expected[1]))
        z = trial_scores(y)
        shard = risk.executor.shards[0]
        d = rng.standard_normal(n)
        slots = device_loops.line_sums(shard, trace_loss(loss), z, d, 0.5, -0.25, second=True)
        value, g, offset = loss.offset_tangent(z + 0.5 * d - 0.25, y, to_numpy(shard.c))
        worst = max(worst, report(f"{loss!r}, line", slots[[0, 3]], [value, offset]))
        report(f"{loss!r}, slope", slots[1], g @ d, 1e-12 * np.abs(g * d).sum() / abs(g @ d))
        if np.isfinite(value):
            many = device_loops.line_values(shard, trace_loss(loss), z - 0.25, d, np.array([0.5, 0.1]))
            worst = max(worst, report(f"{loss!r}, many points", many[0], [value, g @ d], 1e-11))
        worst = max(worst, check_cut(shard, loss, np.clip(z, -9, 9), y))
    Risk.COMPILE_FROM_ENTRIES = 0
    print(f"{len(LOSSES)} losses: largest relative error {worst:.1e}", flush=True)


def check_cut(shard, loss, z, y):
    """Slopes, second derivatives and sums of a cut, of a smooth loss or of a smoothed one."""
    if loss.has_offset:  # without second derivatives
        return 0.0
    loss = loss if loss.smooth else CurvedSmoothing(loss, 0.3)
    found = device_loops.score_cut(shard, trace_loss(loss), z, -0.25)
    s, c = z - 0.25, to_numpy(shard.c)
    value, g, offset = loss.offset_tangent(s, y, c)
    h, terms = loss.hessian(s, y, c).diagonal, abs(g) @ (abs(z) + 0.25)
    sums = [value, value + offset - g @ s, abs(value) + offset + terms, g.sum(), abs(g).sum(), h.sum()]
    for some in (g > 0, g < 0):  # the cut of these rows alone
        value, slopes, offset = loss.offset_tangent(s, y, c * (some & (h > 0)))
        sums += [abs(slopes.sum()), value + offset - slopes @ s]
    expected = g, h, np.array([float(v) for v in sums])
    # the offset of a cut is a difference of larger sums
    size = np.maximum(np.abs(expected[2]), expected[2][2])
    report(f"{loss!r}, sums of a cut", found[2] / size, expected[2] / size)
    return max(report(f"{loss!r}, slopes and curvatures", found[i], expected[i]) for i in (0, 1))


def check_layouts(rng):
    """Products and one pass for every row length and storage."""
    worst, loss = 0.0, rm.Logistic()
    for p in COLUMNS:
        n = 1001
        X, y = rng.standard_normal((n, p)), labels_of(loss, n, rng)
        w, g = rng.standard_normal(p) / p**0.5, rng.standard_normal(n)
        for name, stored, D in on_devices(X):
            kind, M, out = f"p = {p}, {name}", as_matrix(stored), np.zeros(p)
            if not M.on_gpu:
                failures.append(f"{kind}: no kernels")
            M.pullback(g, 0, n, out)
            value, grad = rm.linear_risk(D, y, loss)(w)
            found = rm.linear_risk(stored, y, loss)(w)
            errors = [
                report(kind + ", scores", M.scores(w, 0, n), D @ w),
                report(kind + ", rows 7 to 99", M.scores(w, 7, 99), D[7:99] @ w),
                report(kind + ", pullback", out, D.T @ g),
                report(kind + ", value", found[0], value),
                report(kind + ", gradient", found[1], grad),
            ]
            if M.one_pass:
                errors.append(report(kind + ", product", M.hessian_product(w, g), D.T @ (g * (D @ w))))
            worst = max(worst, *errors)
    print(f"{len(COLUMNS)} row lengths: largest relative error {worst:.1e}", flush=True)


def check_certificates(rng):
    """Bounds of fits on a GPU bracket the optimum that a CPU proves in double precision."""
    n, p = 20_000, 30
    X = rng.standard_normal((n, p)) * np.logspace(-2, 2, p)
    y = np.where(X @ (rng.standard_normal(p) / np.logspace(-2, 2, p)) + rng.standard_normal(n) > 0, 1.0, -1.0)
    for loss in (rm.Logistic(), rm.Hinge(), rm.SquaredHinge(), rm.Quantile(0.7)):
        for name, stored, D in on_devices(X):
            # the solver of `Auto`, and another one
            other = rm.Newton() if loss.smooth else rm.Bundle()
            for intercept, solver in ((False, None), (True, None), (False, other)):
                arguments = {"fit_intercept": intercept}
                exact = rm.minimize(
                    rm.Objective(rm.linear_risk(D, y, loss, **arguments), rm.L2(), 1e-3), tol=1e-9
                )
                found = rm.minimize(
                    rm.Objective(rm.linear_risk(stored, y, loss, **arguments), rm.L2(), 1e-3),
                    solver,
                    tol=1e-5,
                    max_seconds=20,
                )
                kind = f"{loss!r}, {name}, intercept {intercept}"
                sound = found.lower <= exact.value * (1 + 1e-12) and exact.lower <= found.value * (1 + 1e-12)
                if not sound or found.status != "converged":
                    failures.append(kind)
                    print(f"FAILED {kind}: {found.status}, [{found.lower!r}, {found.value!r}] for "
                          f"[{exact.lower!r}, {exact.value!r}] by {found.solver}", flush=True)  # fmt: skip
    print("certificates: bounds compared with those of the CPU", flush=True)


def sparse_on_devices(X):
    """A SciPy matrix in every library and storage, and its entries in double precision."""
    import cupy
    import cupyx.scipy.sparse as cusp
    import torch

    for kind in (np.float32, np.float64):
        given = X.astype(kind)
        parts = [cupy.asarray(a) for a in (given.data, given.indices, given.indptr)]
        csr = cusp.csr_matrix((parts[0], parts[1], parts[2]), shape=X.shape)
        yield f"CuPy CSR {kind.__name__}", csr, given.astype(float)
        yield f"CuPy CSC {kind.__name__}", csr.tocsc(), given.astype(float)
        tensors = (torch.asarray(a, device="cuda") for a in (given.indptr, given.indices, given.data))
        yield f"torch CSR {kind.__name__}", torch.sparse_csr_tensor(*tensors, X.shape), given.astype(float)


def check_sparse(rng):
    """Products and risks of sparse rows: few and many columns, empty rows and columns, long rows."""
    import scipy.sparse as sp

    worst = 0.0
    for n, p, density in (
        (2, 5, 0.5),
        (300, 7, 0.3),
        (5000, 300, 0.05),
        (3000, 100_000, 2e-3),
        (40, 70_000, 0.4),
    ):
        X = sp.random_array((n, p), density=density, format="csr", rng=rng, data_sampler=rng.standard_normal)
        # columns of very different frequencies, and rows of very different lengths
        keep = rng.random(X.nnz) < (1 / (1 + np.arange(n) % 50))[np.repeat(np.arange(n), np.diff(X.indptr))]
        X.data *= keep
        X.eliminate_zeros()
        X = (X + sp.csr_array((np.ones(n), (np.arange(n), np.zeros(n, int))), shape=(n, p))).tocsr()
        y, w = np.where(np.arange(n) % 3, 1.0, -1.0), rng.standard_normal(p)
        g = rng.standard_normal(n)
        for name, stored, D in sparse_on_devices(X):
            kind, M, out = f"{n} x {p}, {name}", as_matrix(stored), np.zeros(p)
            M.pullback(g, 0, n, out)
            sizes = abs(D).T @ abs(g)
            errors = [
                report(kind + ", scores", M.scores(w, 0, n), D @ w),
                report(kind + ", pullback", out, D.T @ g),
                # relative to the size of its own terms, in each column
                float((abs(out - D.T @ g) / np.maximum(sizes, 1e-300)).max()),
                report(kind + ", absolute", M.absolute(0, n).scores(abs(w), 0, n), abs(D) @ abs(w)),
            ]
            if errors[2] > 1e-9:
                failures.append(f"{kind}: error {errors[2]:.1e} relative to the terms of a column")
            again = np.zeros(p)
            M.pullback(g, 0, n, again)
            if not np.array_equal(out, again):
                failures.append(f"{kind}: two calls differ")
            if abs(M.as_scipy() - D).max() > 0:
                failures.append(f"{kind}: other entries")
            value, grad = rm.linear_risk(D, y, rm.Logistic())(0.1 * w)
            found = rm.linear_risk(stored, y, rm.Logistic())(0.1 * w)
            errors += [report(kind + ", value", found[0], value), report(kind + ", gradient", found[1], grad)]
            worst = max(worst, *errors[:2], *errors[3:])
    print(f"sparse: largest relative error {worst:.1e}", flush=True)


def check_lists(rng):
    """Losses of whole lists, and softmax, on the GPU and by torch on the CPU, which needs no kernels."""
    import cupy
    import torch

    worst, n = 0.0, 20_000
    z = np.round(rng.standard_normal(n), 3)
    grades, queries = rng.integers(0, 4, n).astype(float), rng.integers(0, 500, n).astype(float)
    for loss in (
        rm.RocArea(), rm.Ordinal(), rm.Prbep(), rm.FBeta(), rm.PrecisionAtK(100), rm.RecallAtK(100),
        rm.Ndcg(), rm.Ndcg(weights="discount"), rm.Softmax(), rm.MulticlassHinge(),
    ):  # fmt: skip
        for share in (0.1, 0.9):
            y, scores = np.where(rng.random(n) < share, 1.0, -1.0), z
            y = grades if loss.task in ("ordinal", "multiclass") else y
            y = np.column_stack([grades, queries]) if loss.task == "ranking" else y
            scores = rng.standard_normal((n, 4)) if loss.task == "multiclass" else z
            c = np.full(n, 1 / n)
            value, dz = loss.value_grad(*map(torch.asarray, (scores, y, c)))
            for name, move in (("torch", lambda a: torch.asarray(a, device="cuda")), ("CuPy", cupy.asarray)):
                found, slopes = loss.value_grad(move(scores), move(y), move(c))
                kind = f"{loss!r}, {name}, {share:g}"
                worst = max(worst, report(kind + ", value", float(found), float(value)))
                worst = max(worst, report(kind + ", gradient", slopes, to_numpy(dz)))
    # many classes, and pairs far from zero
    for k in (2, 3, 33, 100, 1000, 1025):
        scores, y = 30 * rng.standard_normal((501, k)), rng.integers(0, k, 501).astype(float)
        c = rng.dirichlet(np.ones(501))
        expected = rm.Softmax().value_grad(scores, y, c)
        found = rm.Softmax().value_grad(*(torch.asarray(a, device="cuda") for a in (scores, y, c)))
        worst = max(worst, report(f"softmax, {k} classes, value", float(found[0]), expected[0]))
        worst = max(worst, report(f"softmax, {k} classes, gradient", found[1], expected[1]))
    print(f"lists: largest relative error {worst:.1e}", flush=True)


def check_streamed(rng):
    """Rows that are copied in every pass give the risk of rows that stay on the device."""
    import cupy
    import torch

    from riskmin.arrays.devices.streamed import StreamedRows

    worst, X = 0.0, rng.standard_normal((50_000, 40)).astype(np.float32)
    y, w = np.where(rng.random(len(X)) < 0.4, 1.0, -1.0), 0.3 * rng.standard_normal(40)
    for loss in (rm.Logistic(), rm.RocArea(), rm.Hinge()):
        expected = rm.linear_risk(torch.asarray(X), y, loss)(w)
        for resident in (0, 20_000):
            rows = StreamedRows(X, resident, cupy.empty(0), block_bytes=2**20)
            if not rows.pinned:
                failures.append("host memory is not pinned")
            risk = rm.linear_risk(rows, y, loss)
            for _ in range(3):  # buffers are used again
                found = risk(w)
                worst = max(worst, report(f"streamed, {loss!r}, value", found[0], expected[0]))
                worst = max(worst, report(f"streamed, {loss!r}, gradient", found[1], expected[1]))
            del risk, rows
    rows = StreamedRows(X, 20_000, cupy.empty(0), block_bytes=2**20)
    fitted = rm.minimize(rm.Objective(rm.linear_risk(rows, y, rm.Logistic()), rm.L2(), 1e-3), tol=1e-5)
    whole = rm.linear_risk(cupy.asarray(X), y, rm.Logistic())
    exact = rm.minimize(rm.Objective(whole, rm.L2(), 1e-3), tol=1e-9)
    if not (fitted.status == "converged" and fitted.lower <= exact.value and exact.lower <= fitted.value):
        failures.append(f"a fit of streamed rows: {fitted.status}")
    print(f"streamed: largest relative error {worst:.1e}", flush=True)


def check_repeatable(rng):
    """Two calls give the same bits."""
    import torch

    X = torch.randn(200_000, 100, device="cuda")
    y = np.where(rng.random(200_000) < 0.5, 1.0, -1.0)
    risk, w = rm.linear_risk(X, y, rm.Logistic()), 0.1 * rng.standard_normal(100)
    first, second = risk(w), risk(w)
    if first[0] != second[0] or not np.array_equal(first[1], second[1]):
        failures.append("two calls differ")
    print("two calls: the same bits", flush=True)


def main(arguments):
    rng = np.random.default_rng(0)
    checks = (
        check_lists,
        check_streamed,
        check_losses,
        check_layouts,
        check_sparse,
        check_repeatable,
        check_certificates,
    )
    for check in checks:
        check(rng)
    print(f"{len(failures)} failures" + "".join(f"\n  {name}" for name in failures))
    return 1 if failures else 0

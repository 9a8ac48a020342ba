"""Chain losses: brute force over all label sequences, stability, optima by cvxpy, certified runs."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
import scipy.sparse as sp

from riskmin import (
    L1,
    L2,
    Auto,
    Bundle,
    ChainAscent,
    ChainCrf,
    ChainMaxMargin,
    Lbfgs,
    Objective,
    Processes,
    Smoothing,
    Threads,
    check_loss,
    get_loss,
    linear_risk,
    minimize,
)
from riskmin.arrays.matrix import as_matrix
from riskmin.arrays.sequences import Sequences
from riskmin.linear_maps.chain import ChainMap, decode, marginals

LOSSES = [ChainCrf(), ChainMaxMargin(), ChainMaxMargin(rescaled=True), ChainMaxMargin(rescaled=0.4)]
LENGTHS = [1, 3, 2, 6]


def draw(rng, k=3, lengths=LENGTHS, scale=1.0):
    """Scores, labels and weights of some sequences; one has weight zero."""
    n, sequence = sum(lengths), np.repeat(np.arange(len(lengths)), lengths)
    z = scale * rng.standard_normal((n + k + 2, k))
    weight = rng.random(len(lengths)) * (np.arange(len(lengths)) != 2)
    return z, np.column_stack([rng.integers(0, k, n), 5 + 2 * sequence]).astype(float), weight[sequence]


def sequences(z, y, c):
    """The tokens, labels and weight of each sequence."""
    for sequence in np.unique(y[:, 1]):
        tokens = np.flatnonzero(y[:, 1] == sequence)
        yield tokens, y[tokens, 0].astype(int), c[tokens[0]]


def counts(z, tokens, path):
    """The gradient of the score of a path."""
    n = len(z) - z.shape[1] - 2
    slope = np.zeros_like(z)
    slope[tokens, list(path)] = 1
    slope[-2, path[0]] = slope[-1, path[-1]] = 1
    for a, b in itertools.pairwise(path):
        slope[n + a, b] += 1
    return slope


def enumerate_paths(z, tokens, y):
    """All label sequences: their counts and scores minus those of y, and their errors."""
    paths = list(itertools.product(range(z.shape[1]), repeat=len(y)))
    slopes = np.array([counts(z, tokens, path) for path in paths]) - counts(z, tokens, y)
    return (
        slopes,
        np.tensordot(slopes, z),
        np.array([sum(a != b for a, b in zip(p, y, strict=True)) for p in paths]),
    )


def brute(loss, z, y, c, mu=0.0):
    """The value, the gradient and the expected cost, by enumeration of all label sequences."""
    value, dz, cost = 0.0, np.zeros_like(z), 0.0
    for tokens, labels, weight in sequences(z, y, c):
        slopes, lead, errors = enumerate_paths(z, tokens, labels)
        if isinstance(loss, ChainMaxMargin) and not mu:
            factor = np.power(errors, float(loss.rescaled)) * (errors > 0)
            worst = factor * lead + errors
            best = int(np.argmax(worst))
            value += weight * worst[best]
            dz += weight * factor[best] * slopes[best]
            continue
        s, temperature = (errors + lead, mu) if mu else (lead, 1.0)
        p = np.exp((s - s.max()) / temperature)
        value += weight * (s.max() + temperature * np.log(p.mean() if mu else p.sum()))
        p /= p.sum()
        dz += weight * np.tensordot(p, slopes, 1)
        cost += weight * float(p @ errors)
    return value, dz, cost


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("scale", [0.3, 1000.0])
def test_losses_equal_brute_force(loss, scale):
    """With small transitions, computed with scaling, and with large ones, computed in logarithms."""
    rng = np.random.default_rng(0)
    for k in (2, 3):
        z, y, c = draw(rng, k, scale=scale)
        value, dz = loss.value_grad(z, y, c)
        expected, slope, _ = brute(loss, z, y, c)
        np.testing.assert_allclose(value, expected, rtol=1e-12)
        np.testing.assert_allclose(dz, slope, atol=1e-12 * scale + 1e-14)


@pytest.mark.parametrize("mu", [1e-3, 0.1, 2.0])
def test_the_smoothed_margin_loss_equals_brute_force(mu):
    z, y, c = draw(np.random.default_rng(1))
    loss = ChainMaxMargin()
    value, dz, offset = loss.smoothed_value_grad(z, y, c, mu)
    expected, slope, cost = brute(loss, z, y, c, mu)
    np.testing.assert_allclose([value, *dz.ravel()], [expected, *slope.ravel()], rtol=1e-10, atol=1e-12)
    # the tangent plus the minorant offset is the expectation of errors + s(y') - s(y), a cut of the loss
    np.testing.assert_allclose(value + offset - np.sum(dz * z), cost, atol=1e-12)
    assert offset >= 0


def test_gradients_of_the_crf_are_marginals_minus_counts():
    rng = np.random.default_rng(2)
    z, y, _ = draw(rng, 4)
    _, dz = ChainCrf().value_grad(z, y, np.ones(len(y)))
    n, k = len(y), 4
    ends = np.cumsum(LENGTHS)
    p = marginals(z[:n], z[n : n + k], z[-2], z[-1], ends)
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-14)
    observed = np.zeros((n, k))
    observed[np.arange(n), y[:, 0].astype(int)] = 1
    np.testing.assert_allclose(dz[:n], p - observed, atol=1e-14)
    firsts = np.append(0, ends[:-1])
    np.testing.assert_allclose(
        dz[-2:], [(p - observed)[firsts].sum(0), (p - observed)[ends - 1].sum(0)], atol=1e-14
    )
    # pairs: row sums are over tokens with a successor, column sums over tokens with a predecessor
    inner = np.ones(n, bool)
    inner[ends - 1] = False
    np.testing.assert_allclose(dz[n : n + k].sum(1), (p - observed)[inner].sum(0), atol=1e-13)
    inner = np.ones(n, bool)
    inner[firsts] = False
    np.testing.assert_allclose(dz[n : n + k].sum(0), (p - observed)[inner].sum(0), atol=1e-13)


@pytest.mark.parametrize("wide", [1.0, 1000.0])
def test_ten_thousand_tokens_with_scores_of_a_thousand(wide):
    """Cut at a token with a certain label, a chain is two independent chains: both values must agree."""
    rng = np.random.default_rng(3)
    n, k = 10_000, 3
    E, T = rng.uniform(-1000, 1000, (n, k)), wide * rng.uniform(-0.1, 0.1, (k, k))
    T *= 10 if wide > 1 else 1
    E[5000] = [0.0, 5e6, 0.0]
    z, y = np.vstack([E, T, np.zeros((2, k))]), np.zeros((n, 2))
    y[:, 0] = np.argmax(E, axis=1)
    value, dz = ChainCrf().value_grad(z, y, np.ones(n))
    assert np.isfinite(value)
    assert np.isfinite(dz).all()
    parts = 0.0
    for tokens in (slice(0, 5001), slice(5001, n)):
        scores = np.vstack([E[tokens], T, T[1] if tokens.start else np.zeros(k), np.zeros(k)])
        v, slope = ChainCrf().value_grad(scores, y[tokens], np.ones(len(y[tokens])))
        parts += v
        np.testing.assert_allclose(dz[tokens], slope[: -k - 2], atol=1e-9)
    np.testing.assert_allclose(value, parts, rtol=1e-10, atol=1e-9)
    np.testing.assert_allclose(dz[:n].sum(1), 0, atol=1e-12)
    margin, _ = ChainMaxMargin().value_grad(z, y, np.ones(n))
    assert 0 <= margin < np.inf


def test_a_path_that_falls_behind_and_recovers():
    """Ahead by e^800, behind by e^1700, then ahead again: scaling underflows, logarithms do not."""
    k, n_tokens = 2, 40
    E = np.zeros((3 * n_tokens, k))
    E[:n_tokens, 0] = E[2 * n_tokens :, 0] = 800 / n_tokens
    E[n_tokens : 2 * n_tokens, 1] = 1700 / n_tokens
    T = np.array([[0.0, -1e5], [-1e5, 0.0]])
    p = marginals(E, T, np.zeros(k), np.zeros(k), np.array([len(E)]))
    np.testing.assert_allclose(p[:, 1], 1.0)
    np.testing.assert_array_equal(decode(E, T, np.zeros(k), np.zeros(k), np.array([len(E)])), 1)


def test_decoding_and_marginals_with_forbidden_transitions():
    rng = np.random.default_rng(4)
    ends = np.cumsum(LENGTHS)
    z, y, _ = draw(rng, 3)
    n, T = len(y), z[len(y) : len(y) + 3].copy()
    T[0, 1] = T[2, 2] = -np.inf
    start = np.array([0.0, -np.inf, 0.0])
    best, p = decode(z[:n], T, start, z[-1], ends), marginals(z[:n], T, start, z[-1], ends)
    for i, j in itertools.pairwise([0, *ends]):
        paths = [
            q
            for q in itertools.product(range(3), repeat=j - i)
            if q[0] != 1 and not {(0, 1), (2, 2)} & set(itertools.pairwise(q))
        ]
        s = np.array(
            [
                z[np.arange(i, j), q].sum() + z[-1, q[-1]] + sum(T[a, b] for a, b in itertools.pairwise(q))
                for q in map(list, paths)
            ]
        )
        assert tuple(best[i:j]) == paths[int(np.argmax(s))]
        mass = np.exp(s - s.max()) / np.exp(s - s.max()).sum()
        for t in range(j - i):
            np.testing.assert_allclose(p[i + t], [mass[[q[t] == b for q in paths]].sum() for b in range(3)])
    with pytest.raises(ValueError, match="sequence 1 has no label sequence that is allowed"):
        decode(z[:n], np.full((3, 3), -np.inf), start, z[-1], ends)
    assert decode(z[:0], T, start, z[-1], ends[:0]).shape == (0,)
    assert marginals(z[:0], T, start, z[-1], ends[:0]).shape == (0, 3)


def test_single_tokens_need_no_transition():
    p = marginals(np.zeros((2, 2)), np.full((2, 2), -np.inf), np.zeros(2), np.zeros(2), np.array([1, 2]))
    np.testing.assert_allclose(p, 0.5)


@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_the_rescaled_path_does_not_depend_on_the_stored_tokens(beta):
    from riskmin._numba.chain import viterbi

    rng = np.random.default_rng(5)
    z, y, _ = draw(rng, 3, [37])
    labels, paths = y[:, 0].astype(np.int64), []
    for spell in (37, 7, 6, 1, 0):
        paths.append(np.empty(37, np.int64))
        viterbi.rescaled_path(z[:37], z[37:], labels, viterbi.error_powers(37, beta), spell, paths[-1])
    assert all(np.array_equal(path, paths[0]) for path in paths)


def test_exponentials():
    from riskmin._numba.chain.log_space import exp_in_place

    x = np.concatenate([np.linspace(-707, 700, 10_001), [0.0, -709.0, -1e300, -np.inf]])
    e = x.copy()
    exp_in_place(e)
    np.testing.assert_allclose(e[:-3], np.exp(x[:-3]), rtol=5e-16)
    np.testing.assert_array_equal(e[-3:], 0)


# ---------------------------------------------------------------- the parts of a risk
def problem(seed=0, sparse=False, k=3, m=12):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 6, m)
    n = int(lengths.sum())
    X = (rng.random((n, 5)) < 0.5) * rng.standard_normal((n, 5))
    y = np.argmax(X @ rng.standard_normal((5, k)) + rng.standard_normal((n, k)), axis=1)
    y[:k] = np.arange(k)
    return (sp.csr_array(X) if sparse else X), y, lengths, rng.random(m)


def test_sequences_are_cut_at_their_ends():
    ends = np.cumsum([3, 1, 4, 1, 5, 9, 2])
    X = Sequences(as_matrix(np.random.default_rng(0).standard_normal((25, 2000))), ends)
    blocks = X.blocks(3)
    assert {end for _, end in blocks} <= set(ends.tolist())
    assert [i for i, _ in blocks] == [0, *(j for _, j in blocks[:-1])]
    assert blocks[-1][1] == 25
    wide = Sequences(as_matrix(np.zeros((25, 10**5))), ends)
    assert len(wide.blocks(1)) < len(wide.blocks(10**5)) == 7  # a sequence is never cut
    for n_parts in (1, 2, 3, 7, 20):
        cut = X.shard_ends(n_parts)
        assert cut[0] == 0
        assert cut[-1] == 25
        assert set(cut[1:]) <= set(ends)
        assert len(cut) <= min(n_parts, 7) + 1
    part = X.rows(4, 14)
    assert part.shape == (10, 2000)
    assert part.ends.tolist() == [4, 5, 10]
    with pytest.raises(ValueError, match="a token each"):
        Sequences(as_matrix(np.eye(3)), np.array([0, 3]))


def test_the_linear_map_and_its_adjoint():
    X, _, lengths, _ = problem()
    rng = np.random.default_rng(1)
    matrix, linear_map = Sequences(as_matrix(X), np.cumsum(lengths)), ChainMap(3)
    w, v, out = rng.standard_normal((3, linear_map.dim(5)))
    out[:] = 0
    z = linear_map.scores(matrix, w, 2, 9)
    W = w.reshape(-1, 3)
    np.testing.assert_allclose(z, np.vstack([X[2:9] @ W[:5], W[5:]]))
    dz = rng.standard_normal(z.shape)
    linear_map.pullback(matrix, dz, 2, 9, out)
    np.testing.assert_allclose(out @ v, np.sum(dz * linear_map.scores(matrix, v, 2, 9)))


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_shards_threads_and_formats_agree(loss):
    X, y, lengths, weight = problem()
    w = np.random.default_rng(2).standard_normal(ChainMap(3).dim(5))
    sequences = {"lengths": lengths, "sample_weight": weight}
    value, grad = linear_risk(X, y, loss, **sequences)(w)
    for data in (sp.csr_array(X), sp.csc_array(X), np.asfortranarray(X)):
        v, g = linear_risk(data, y, loss, n_shards=4, **sequences)(w)
        np.testing.assert_allclose([v, *g], [value, *grad], rtol=1e-12, atol=1e-14)
    one, two = (
        linear_risk(X, y, loss, n_shards=4, executor=e, **sequences)(w) for e in (None, Threads(n_workers=2))
    )
    assert one[0] == two[0]
    assert np.array_equal(one[1], two[1])
    # a weight of two equals the sequence repeated
    ends = np.cumsum(lengths)
    rows = np.concatenate([np.arange(len(y)), np.arange(ends[2], ends[3])])
    repeated = linear_risk(X[rows], y[rows], loss, lengths=[*lengths, lengths[3]])(w)[0]
    weighted = linear_risk(X, y, loss, lengths=lengths, sample_weight=1 + (np.arange(len(lengths)) == 3))(w)[
        0
    ]
    np.testing.assert_allclose(repeated, weighted, rtol=1e-12)


@pytest.mark.exhaustive
def test_processes_agree():
    X, y, lengths, _ = problem()
    w = np.random.default_rng(2).standard_normal(ChainMap(3).dim(5))
    serial, parallel = (
        linear_risk(X, y, ChainMaxMargin(), lengths=lengths, n_shards=3, executor=e)(w)
        for e in (None, Processes(n_workers=2))
    )
    assert serial[0] == parallel[0]
    assert np.array_equal(serial[1], parallel[1])


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_the_contract_of_losses(loss):
    check_loss(loss)


def test_names_and_smoothability():
    assert get_loss("chain_crf") == ChainCrf()
    assert get_loss("chain_max_margin:rescaled=1").rescaled
    assert get_loss("chain_max_margin:rescaled=0.5").formula.startswith("max_y' errors(y, y')^0.5 (")
    with pytest.raises(ValueError, match="rescaled must be False, True or a number from 0 to 1"):
        ChainMaxMargin(rescaled=-0.1)
    assert ChainMaxMargin().can_be_smoothed
    assert not ChainMaxMargin(rescaled=True).can_be_smoothed
    for loss in LOSSES:
        loaded = pickle.loads(pickle.dumps(loss))
        assert loaded == loss
        assert loaded.can_be_smoothed == loss.can_be_smoothed


def test_invalid_labels_and_scores_are_refused():
    X, y, lengths, _ = problem()
    with pytest.raises(ValueError, match="labels numbered 0, 1, 2"):
        linear_risk(X, y - 1, ChainCrf(), lengths=lengths)
    with pytest.raises(ValueError, match="single label"):
        linear_risk(X, 0 * y, ChainCrf(), lengths=lengths)
    with pytest.raises(ValueError, match="n_outputs is 2: give 3 or more"):
        linear_risk(X, y, ChainCrf(), lengths=lengths, n_outputs=2)
    assert linear_risk(X, y, ChainCrf(), lengths=lengths, n_outputs=4).dim == ChainMap(4).dim(5)
    z, labels, c = draw(np.random.default_rng(0))
    for loss in LOSSES:
        with pytest.raises(ValueError, match="call linear_risk with lengths"):
            loss.value_grad(z, labels[:, 0], c)
        with pytest.raises(ValueError, match="labels 0 to 2"):
            loss.value_grad(z, labels + 1, c)
        with pytest.raises(ValueError, match="computed by NumPy"):
            loss.value_grad(z.tolist(), labels, c)


# ---------------------------------------------------------------- certified minima
@pytest.mark.parametrize(
    ("loss", "solver"),
    [
        (ChainCrf(), Lbfgs()),
        (ChainMaxMargin(), Smoothing()),
        pytest.param(ChainMaxMargin(), ChainAscent(), marks=pytest.mark.exhaustive),
        pytest.param(ChainMaxMargin(rescaled=True), ChainAscent(turns=3), marks=pytest.mark.exhaustive),
    ],
    ids=repr,
)
def test_minima_are_certified_and_runs_resume(loss, solver, tmp_path):
    X, y, lengths, weight = problem(sparse=True)
    J = Objective(linear_risk(X, y, loss, lengths=lengths, sample_weight=weight), L2(), 0.1)
    file = tmp_path / "run"
    minimize(J, solver, tol=1e-6, max_iter=5, checkpoint=file)
    result = minimize(J, solver, tol=1e-6, checkpoint=file)
    assert result.status == "converged"
    reference = minimize(J, Bundle(), tol=1e-5)
    assert reference.status == "converged"
    np.testing.assert_allclose(reference.value, result.value, rtol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("reg", [L2(), L1()], ids=repr)
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_minima_equal_cvxpy(loss, reg):
    """All label sequences as rows of one program."""
    import cvxpy as cp

    X, y, lengths, weight = problem(3, k=2, m=6)
    c = weight / weight.sum()
    linear_map, ends = ChainMap(2), np.cumsum(lengths)
    w, terms = cp.Variable(linear_map.dim(5)), []
    columns = np.array(
        [linear_map.scores(as_matrix(X), e, 0, len(X)).ravel() for e in np.eye(linear_map.dim(5))]
    )
    shape = (len(X) + 4, 2)
    for i, j, c_i in zip([0, *ends[:-1]], ends, c, strict=True):
        slopes, _, errors = enumerate_paths(np.zeros(shape), np.arange(i, j), y[i:j])
        lead = (slopes.reshape(len(slopes), -1) @ columns.T) @ w
        if isinstance(loss, ChainCrf):
            terms.append(c_i * cp.log_sum_exp(lead))
        else:
            factor = np.power(errors, float(loss.rescaled)) * (errors > 0)
            terms.append(c_i * cp.max(errors + cp.multiply(factor, lead)))
    lam = 0.05
    omega = 0.5 * cp.sum_squares(w) if isinstance(reg, L2) else cp.norm1(w)
    best = cp.Problem(cp.Minimize(lam * omega + sum(terms))).solve(solver="CLARABEL")
    J = Objective(linear_risk(X, y, loss, lengths=lengths, sample_weight=weight), reg, lam)
    result = minimize(J, tol=1e-6)
    assert result.status == "converged"
    np.testing.assert_allclose(result.value, best, rtol=3e-6)
    assert result.lower <= best * (1 + 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_gradients_by_differences_and_subgradient_inequality(loss):
    rng = np.random.default_rng(6)
    for scale in (0.5, 3.0, 40.0):
        z, y, c = draw(rng, 4, [1, 4, 2, 9, 30], scale)
        value, dz = loss.value_grad(z, y, c)
        for _ in range(20):
            step = rng.standard_normal(z.shape)
            for distance in (0.1, 10.0):
                other = loss.value_grad(z + distance * step, y, c)[0]
                assert other >= value + distance * np.sum(dz * step) - 1e-9 * (1 + abs(other))
            h = 1e-7  # along a random line, dz is almost surely the gradient at z
            forward, backward = (loss.value_grad(z + s * h * step, y, c)[0] for s in (1, -1))
            np.testing.assert_allclose(
                (forward - backward) / (2 * h), np.sum(dz * step), rtol=1e-5, atol=1e-5
            )


# ---------------------------------------------------------------- dual ascent
@pytest.mark.exhaustive
@pytest.mark.parametrize("loss", LOSSES[1:], ids=repr)
@pytest.mark.parametrize("turns", [1, 4])
def test_iterates_of_chain_ascent_are_valid(loss, turns):
    """Values equal J, cuts lie below R, bounds never decrease, and a saved state continues as the run did."""
    rng = np.random.default_rng(7)
    for sparse in (False, True):
        X, y, lengths, weight = problem(4, sparse)
        weight[3] = 0.0
        J = Objective(linear_risk(X, y, loss, lengths=lengths, sample_weight=weight, n_shards=2), L2(), 0.02)
        solver = ChainAscent(atoms=4, turns=turns, seed=3)
        points = rng.standard_normal((20, J.risk.dim)) * rng.choice([0.1, 1.0, 10.0], (20, 1))
        risks = np.array([J.risk(v)[0] for v in points])
        steps = list(itertools.islice(solver.iterates(J, np.zeros(J.risk.dim)), 8))
        bounds = [J.lower(it.cut) for it in steps]
        assert np.all(np.diff(bounds[1:]) >= -1e-12)
        assert bounds[1] < bounds[-1]
        for it, after in itertools.pairwise(steps):
            np.testing.assert_allclose(it.value, J.value(it.w), rtol=1e-12)
            assert np.all(points @ it.cut.a + it.cut.b <= risks + 1e-10 * (1 + risks))
            resumed = next(solver.resume(J, it.state()))
            np.testing.assert_allclose(resumed.w, after.w, rtol=1e-6, atol=1e-9)


def test_auto_chooses_chain_ascent_where_supported():
    X, y, lengths, _ = problem()
    risk = linear_risk(X, y, ChainMaxMargin(rescaled=True), lengths=lengths)
    assert isinstance(Auto().choose(Objective(risk, L2(), 0.1))[0], ChainAscent)
    for other in (
        Objective(risk, L1(), 0.1),
        Objective(linear_risk(X, y, ChainCrf(), lengths=lengths), L2(), 0.1),
    ):
        assert not isinstance(Auto().choose(other)[0], ChainAscent)
        with pytest.raises(TypeError, match="ChainAscent needs ChainMaxMargin"):
            minimize(other, ChainAscent())
    with pytest.raises(ValueError, match="turns to be a whole number >= 1"):
        ChainAscent(turns=0)


@pytest.mark.slow
def test_chain_ascent_starts_warm_from_another_lam():
    X, y, lengths, _ = problem()
    risk = linear_risk(X, y, ChainMaxMargin(), lengths=lengths)
    one, two = (Objective(risk, L2(), lam) for lam in (0.1, 0.09))
    *_, last = itertools.islice(ChainAscent().iterates(one, np.zeros(risk.dim)), 20)
    first = next(ChainAscent().warm_start(two, last.state(), one))
    cold = next(itertools.islice(ChainAscent().iterates(two, np.zeros(risk.dim)), 1, None))
    assert first.value - two.lower(first.cut) < 0.5 * (cold.value - two.lower(cold.cut))

"""Chain losses: brute force over all label sequences, stability, decoding, certified dual ascent."""

import itertools

import numpy as np
import pytest

from helpers import Problem
from reference import chains
from riskmin import L2, ChainAscent, ChainCrf, ChainMaxMargin, Objective, linear_risk
from riskmin.linear_maps.chain import decode, marginals

LOSSES = [ChainCrf(), ChainMaxMargin(), ChainMaxMargin(rescaled=True), ChainMaxMargin(rescaled=0.4)]
LENGTHS = [1, 3, 2, 6]
ENDS = np.cumsum(LENGTHS)


def draw(rng, k=3, lengths=LENGTHS, scale=1.0):
    """Scores, labels and weights of some sequences; one has weight zero."""
    n, sequence = sum(lengths), np.repeat(np.arange(len(lengths)), lengths)
    z = scale * rng.standard_normal((n + k + 2, k))
    weight = rng.random(len(lengths)) * (np.arange(len(lengths)) != 2)
    return z, np.column_stack([rng.integers(0, k, n), 5 + 2 * sequence]).astype(float), weight[sequence]


def brute(loss, z, y, c):
    """The value, by enumeration of all label sequences."""
    return chains(loss, np.eye(len(y)), y[:, 0], z.shape[1], LENGTHS)(z.ravel()).value @ c[ENDS - 1]


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("scale", [0.3, 1000.0])
def test_values_and_tangents_are_those_of_all_label_sequences(loss, scale):
    """With small transitions, computed with scaling, and with large ones, computed in logarithms."""
    rng = np.random.default_rng(0)
    for k in (2, 3):
        z, y, c = draw(rng, k, scale=scale)
        value, dz = loss.value_grad(z, y, c)
        np.testing.assert_allclose(value, brute(loss, z, y, c), rtol=1e-12)
        for step in (1e-3, 0.1, 1.0, 10.0):
            u = z + step * scale * rng.standard_normal(z.shape)
            tangent = value + np.sum(dz * (u - z))
            assert brute(loss, u, y, c) >= tangent - 1e-12 * (1 + scale + abs(tangent))


@pytest.mark.parametrize("mu", [1e-3, 0.1, 2.0])
def test_the_smoothed_margin_loss_is_that_of_scores_and_errors_over_mu(mu):
    """mu times the logarithm of the mean over all paths of exp((errors + s(y') - s(y)) / mu)."""
    z, y, c = draw(np.random.default_rng(1))
    value, dz, offset = ChainMaxMargin().smoothed_value_grad(z, y, c, mu)
    wrong, with_errors = np.arange(3) != y[:, :1], z.copy()
    with_errors[: len(y)] += wrong
    total, slope = ChainCrf().value_grad(with_errors / mu, y, c)
    np.testing.assert_allclose(value, mu * (total - c.sum() * np.log(3)), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(dz, slope, rtol=1e-10, atol=1e-12)
    # the tangent plus the minorant offset is the expectation of errors + s(y') - s(y), a cut of the loss
    np.testing.assert_allclose(value + offset - np.sum(dz * z), np.sum(slope[: len(y)][wrong]), atol=1e-12)
    assert offset >= 0


def by_errors(z, labels, beta):
    """max_e e^beta (the best score with e errors - s(y)) + e, by a table over errors and labels."""
    n, k = len(labels), z.shape[1]
    E, T, start, end = z[:n], z[n : n + k], z[-2], z[-1]
    best = np.full((n + 1, k), -np.inf)
    for b in range(k):
        best[int(b != labels[0]), b] = start[b] + E[0, b]
    for t in range(1, n):
        reached = np.max(best[:, :, None] + T, axis=1) + E[t]
        best = np.full((n + 1, k), -np.inf)
        best[1:] = reached[:-1]
        best[:, labels[t]] = reached[:, labels[t]]
    score = E[np.arange(n), labels].sum() + start[labels[0]] + end[labels[-1]]
    score += sum(T[a, b] for a, b in itertools.pairwise(labels))
    lead = np.max(best + end, axis=1) - score
    errors = np.arange(1, n + 1)
    return max(0.0, np.max(errors**beta * lead[1:] + errors))


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("n", [37, 300])
def test_margin_losses_of_long_sequences(n, beta):
    z, y, _ = draw(np.random.default_rng(5), 3, [n], scale=0.3)
    value, dz = ChainMaxMargin(rescaled=beta).value_grad(z, y, np.ones(n))
    labels = y[:, 0].astype(int)
    assert value == pytest.approx(by_errors(z, labels, beta), rel=1e-12)
    # the gradient is e^beta times the counts of a path with e errors less those of the labels
    factor = abs(dz[:n]).max()
    errors = np.sum(abs(dz[:n]).max(axis=1) > 0)
    assert factor == pytest.approx(errors**beta, rel=1e-12)
    assert value == pytest.approx(np.sum(dz * z) + errors, rel=1e-9)


@pytest.mark.parametrize("wide", [0.1, 1000.0])
def test_ten_thousand_tokens_with_scores_of_a_thousand(wide):
    """Cut at a token with a certain label, a chain is two independent chains: both values must agree."""
    rng = np.random.default_rng(3)
    n, k = 10_000, 3
    E, T = rng.uniform(-1000, 1000, (n, k)), wide * rng.uniform(-1, 1, (k, k))
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


# ---------------------------------------------------------------- decoding
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


def test_sequences_of_one_token_and_none():
    T, zero = np.full((2, 2), -np.inf), np.zeros(2)
    np.testing.assert_allclose(marginals(np.zeros((2, 2)), T, zero, zero, np.array([1, 2])), 0.5)
    assert decode(np.zeros((0, 2)), T, zero, zero, np.zeros(0, int)).shape == (0,)
    assert marginals(np.zeros((0, 2)), T, zero, zero, np.zeros(0, int)).shape == (0, 2)


# ---------------------------------------------------------------- dual ascent
@pytest.mark.slow
def test_chain_ascent_starts_warm_from_another_lam():
    risk = Problem(ChainMaxMargin(), n=36).objective().risk
    one, two = (Objective(risk, L2(), lam) for lam in (0.1, 0.09))
    *_, last = itertools.islice(ChainAscent().iterates(one, np.zeros(risk.dim)), 20)
    first = next(ChainAscent().warm_start(two, last.state(), one))
    cold = next(itertools.islice(ChainAscent().iterates(two, np.zeros(risk.dim)), 1, None))
    assert first.value - two.lower(first.cut) < 0.5 * (cold.value - two.lower(cold.cut))


def test_more_labels_than_in_the_rows():
    X, y = np.eye(4), np.array([0, 1, 1, 0])
    assert linear_risk(X, y, ChainCrf(), lengths=[4], n_outputs=3).dim == 4 * 3 + 3 * 3 + 2 * 3

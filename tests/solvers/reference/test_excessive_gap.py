"""The excessive gap method: its steps with all label sequences written out, its rate, and other losses."""

import itertools
from itertools import islice

import numpy as np
import pytest

import riskmin as rm
from reference import chain_scores

RNG = np.random.default_rng(5)
K, LENGTHS, LAM = 3, [3, 2, 4, 1], 0.3
N = sum(LENGTHS)
X, Y = RNG.standard_normal((N, 2)), RNG.integers(0, K, N)
SIGNS = np.where(X[:, 0] + 0.5 * RNG.standard_normal(N) > 0, 1.0, -1.0)


def chains(lam=LAM):
    return rm.Objective(rm.linear_risk(X, Y, rm.ChainMaxMargin(), lengths=LENGTHS, n_outputs=K), rm.L2(), lam)


def written_out():
    """For each sequence: phi(y') - phi(y) and the number of errors of all y'."""
    start, sequences = 0, []
    for length in LENGTHS:
        rows, true = X[start : start + length], tuple(Y[start : start + length])
        outputs = list(itertools.product(range(K), repeat=length))
        phi = chain_scores(rows, outputs, K)
        errors = (np.array(outputs) != true).sum(axis=1).astype(float)
        sequences.append((phi - phi[outputs.index(true)], errors))
        start += length
    return sequences


def expectations(sequences, distributions):
    """The cut (a, b) of one distribution per sequence."""
    pairs = [(p @ phi, p @ cost) for (phi, cost), p in zip(sequences, distributions, strict=True)]
    return np.mean([a for a, _ in pairs], axis=0), np.mean([b for _, b in pairs])


def gibbs(sequences, w, A):
    """The maximizer of A (cost + phi w)'p - KL(p, uniform) for each sequence."""
    results = []
    for phi, cost in sequences:
        t = A * (cost + phi @ w)
        p = np.exp(t - t.max())
        results.append(p / p.sum())
    return results


def test_steps_are_those_of_the_method_with_all_label_sequences_written_out():
    """Nesterov's two averages, with explicit distributions: the weights and the bounds are the same."""
    obj = chains()
    sequences = written_out()
    a, b = expectations(sequences, gibbs(sequences, np.zeros(obj.risk.dim), 0.0))
    w, x, v, A = -a / LAM, (a, b), (a, b), 0.0
    for iterate in islice(rm.ExcessiveGap().iterates(obj, np.zeros(obj.risk.dim)), 40):
        L = iterate.info["L"]
        step = (1 / L + np.sqrt(1 / L**2 + 4 * A / L)) / 2
        share, A = step / (A + step), A + step
        w_hat = -((1 - share) * x[0] + share * v[0]) / LAM
        w = (1 - share) * w + share * w_hat
        v = expectations(sequences, gibbs(sequences, w, A))
        x = tuple((1 - share) * old + share * new for old, new in zip(x, v, strict=True))
        np.testing.assert_allclose(iterate.w, w, rtol=1e-4, atol=1e-6)  # the first center is 1e-5 off
        assert obj.lower(iterate.cut) == pytest.approx(x[1] - x[0] @ x[0] / (2 * LAM), abs=1e-5)
        assert iterate.info["A"] == pytest.approx(A)


@pytest.mark.parametrize("lam", [1.0, 0.03])
def test_gap_falls_as_the_theorem_says(lam):
    """J(w_k) - D_k <= d / A_k <= 6 L d / (k + 1)^2, d = mean log K^length, L = max diameter^2 / (4 lam)."""
    obj = chains(lam)
    d = np.mean(LENGTHS) * np.log(K)
    diameters = [np.linalg.norm(phi[:, None] - phi[None], axis=2).max() for phi, _ in written_out()]
    L = max(diameters) ** 2 / (4 * lam)
    for k, iterate in enumerate(islice(rm.ExcessiveGap().iterates(obj, np.zeros(obj.risk.dim)), 80)):
        gap = iterate.value - obj.lower(iterate.cut)
        assert gap <= d / iterate.info["A"] * (1 + 1e-9)
        assert 1 / iterate.info["A"] <= 6 * L / (k + 1) ** 2


@pytest.mark.parametrize(
    ("loss", "labels"),
    [(rm.FBeta(), SIGNS), (rm.Hinge(), SIGNS), (rm.RocArea(), SIGNS), (rm.MulticlassHinge(), Y)],
    ids=lambda value: type(value).__name__,
)
def test_the_excessive_gap_condition_holds_with_the_prox_function_of_each_loss(loss, labels):
    """lam Omega(w) + R_mu(w) <= D for mu = 1 / A, and the optimum is that of another solver."""
    risk = rm.linear_risk(X, labels, loss)
    obj = rm.Objective(risk, rm.Quadratic(np.eye(risk.dim) + 0.3), 0.1)
    best = rm.minimize(obj, tol=1e-9).value
    result = rm.minimize(obj, rm.ExcessiveGap(), tol=1e-2, max_iter=3000)
    assert result.status == "converged"
    assert result.lower <= best * (1 + 1e-9) <= result.value * (1 + 2e-9)
    for iterate in islice(rm.ExcessiveGap().iterates(obj, np.zeros(risk.dim)), 20):
        smoothed = rm.linear_risk(X, labels, loss.smoothed(1 / iterate.info["A"]))(iterate.w)[0]
        assert smoothed + obj.lam * obj.reg.value(iterate.w) <= obj.lower(iterate.cut) + 1e-9 * best

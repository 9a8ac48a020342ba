"""Gaussian noise: the bound on the effect of one row, the account, and the certificate under noise."""

import contextlib
import math

import numpy as np
import pytest
from scipy import integrate, stats
from tests.owners.attacker import Attacker
from tests.owners.conftest import in_one_place, pool, split, table

from riskmin import L2, linear_risk, minimize
from riskmin.losses import get_loss
from riskmin.owners.client import OwnerRefused
from riskmin.owners.owner import Owner
from riskmin.owners.protection.audit import AuditLog
from riskmin.owners.protection.noise import GaussianNoise, PrivacyAccount, delta_of, shortened_rows
from riskmin.owners.protection.policy import AnswerRefused, Policy

NOISE = {"noise_multiplier": 4.0, "max_row_norm": 2.0, "epsilon": 50.0, "max_rises": 0}


@pytest.mark.parametrize(("epsilon", "mu"), [(0.5, 0.3), (1.0, 1.0), (3.0, 0.7), (8.0, 2.0)])
def test_the_account_is_the_divergence_of_two_normal_distributions(epsilon, mu):
    """delta(epsilon) = integral of max(0, p - e^epsilon q) over the densities at distance mu."""
    p, q = stats.norm(mu).pdf, stats.norm(0).pdf
    start = epsilon / mu + mu / 2  # where p = e^epsilon q
    expected, _ = integrate.quad(lambda x: p(x) - math.exp(epsilon) * q(x), start, start + 40)
    assert delta_of(epsilon, mu) == pytest.approx(expected, rel=1e-6, abs=1e-15)


def test_the_account_composes_and_stops():
    policy = Policy(noise_multiplier=10.0, max_row_norm=1.0, epsilon=1.0, delta=1e-6)
    account = PrivacyAccount(policy)
    k = 0
    with contextlib.suppress(AnswerRefused):
        while True:
            account.charge()
            k += 1
    assert account.mu_squared == pytest.approx(k / 100)
    assert delta_of(1.0, math.sqrt(k) / 10) <= 1e-6 < delta_of(1.0, math.sqrt(k + 1) / 10)


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_noise_hides_the_change_of_an_answer_by_one_row(loss):
    """A deviation is sqrt(2) parts times 4 times the largest effect of a row, and six of them bound it."""
    X, y, _ = table(50)
    X = shortened_rows(X, 2.0)
    assert np.linalg.norm(X, axis=1).max() <= 2.0 + 1e-12
    policy = Policy(**NOISE | {"epsilon": 1e6})
    noise = GaussianNoise(policy, get_loss(loss), 1 / 50, PrivacyAccount(policy))
    rng, signs, deviation = np.random.default_rng(0), 2 * y - 1, 4 * math.sqrt(2)
    for _ in range(50):
        w, i, weight = rng.standard_normal(8) * rng.choice([0.1, 1, 10]), rng.integers(50), np.ones(50)
        weight[i] = 0.0
        # all weights are 1 / 50: without row i, the sums are those of 49 rows
        v, g = linear_risk(X, signs, loss)(w)
        v0, g0 = linear_risk(X, signs, loss, sample_weight=weight)(w)
        change, slope_change = abs(v - v0 * 49 / 50), np.linalg.norm(g - g0 * 49 / 50)
        _, _, value_error, gradient_error = noise.tangent(v, g, w)
        assert 2 * 6 * deviation * change <= value_error
        assert 6 * deviation * slope_change <= gradient_error
    # slopes along d change by the largest weight times the norms of a row and of d, at most
    d = rng.standard_normal(8)
    slopes = [noise.line(v, g @ d, w, d)[1] for _ in range(300)]
    assert np.std(slopes) == pytest.approx(deviation * 2 / 50 * np.linalg.norm(d), rel=0.25)


def test_noise_has_the_deviation_of_the_policy():
    X, y, _ = table(400)
    attacker = Attacker(Owner(X, y, policy=Policy(**NOISE | {"epsilon": 1e4})))
    answers = np.array([attacker.gradient(np.ones(8))[1] for _ in range(300)])
    # sqrt(2) parts, 4 times the sensitivity 2 / 400
    assert answers.std(0).mean() == pytest.approx(math.sqrt(2) * 4 * 2 / 400, rel=0.1)
    exact = linear_risk(shortened_rows(X, 2.0), 2 * y - 1, "hinge")(np.ones(8))[1]
    assert np.max(np.abs(answers.mean(0) - exact)) < 6 * 0.0283 / math.sqrt(300)


def test_the_certificate_holds_under_noise_and_is_wider():
    X, y, _ = table(30_000)
    owners = pool(split(X, y), Policy(**NOISE))
    risk = owners.risk("logistic")
    result = minimize(owners.objective(risk, L2(), 1.0), "bundle", tol=0.3, max_iter=15)
    exact = in_one_place(shortened_rows(X, 2.0), y, "logistic", L2(), 1.0)
    best = minimize(exact, tol=1e-8)
    assert result.lower <= best.value <= exact.value(result.w) <= result.value
    assert risk.executor.largest_widening > 1e-4
    with pytest.raises(OwnerRefused, match="without an intercept"):
        owners.risk("logistic", fit_intercept=True)
    with pytest.raises(OwnerRefused, match="slopes up to one"):
        owners.objective(owners.risk("exponential"), L2(), 1.0)


def test_the_privacy_budget_survives_a_restart(tmp_path):
    X, y, _ = table(400)
    policy = Policy(**NOISE | {"epsilon": 4.0})
    owner = Owner(X, y, policy=policy, log=AuditLog(tmp_path / "log"))
    attacker = Attacker(owner)
    answers = [attacker.gradient(np.ones(8)) is not None for _ in range(60)]
    assert 5 < sum(answers) < 60
    assert "privacy budget" in attacker.last.fields["reason"]
    owner.log.close()
    again = Owner(X, y, policy=policy, log=AuditLog(tmp_path / "log"))
    assert Attacker(again).gradient(np.ones(8)) is None
    # another coordinator has a budget of its own
    assert Attacker(again, who="alice").gradient(np.ones(8)) is not None
    again.log.close()

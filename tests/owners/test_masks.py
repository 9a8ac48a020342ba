"""Secure aggregation: the coordinator reads sums only, and the same certificate."""

import math

import numpy as np
import pytest
from tests.owners.conftest import split, table, tls_files

from riskmin import L2, Objective, linear_risk, minimize
from riskmin.owners.client import OwnerRefused
from riskmin.owners.owner import Owner
from riskmin.owners.protection.masks import MaskKey, from_parts, to_parts
from riskmin.owners.protection.policy import AnswerRefused, Policy
from riskmin.owners.server import OwnerServer


def keys(certificates, run="7"):
    names = ("north", "south", "west")
    return {name: MaskKey(name, tls_files(certificates, name), run) for name in names}


def test_masks_cancel_in_the_sum_only(certificates):
    made = keys(certificates)
    cards = [key.card() for key in made.values()]
    for key in made.values():
        key.set_peers(cards, 3)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 1000)) * 10.0 ** rng.uniform(-12, 6, (3, 1000))
    sent = [key.masked(5, row) for key, row in zip(made.values(), x, strict=True)]
    exact = np.array([math.fsum(column) for column in x.T])
    np.testing.assert_allclose(from_parts(sum(sent[1:], start=sent[0])), exact, rtol=1e-15, atol=1e-21)
    # what one owner sends is uniform: it tells nothing of the numbers, and is another one next time
    for masked in sent:
        bits = np.unpackbits(masked.view(np.uint8))
        assert abs(bits.mean() - 0.5) < 0.01
    assert np.mean(made["north"].masked(6, x[0]) == sent[0]) < 0.01
    # two of three do not suffice
    assert np.max(np.abs(from_parts(sent[0] + sent[1]))) > 1e6
    with pytest.raises(AnswerRefused, match="too large"):
        to_parts(np.array([1e9]), 3)


def test_a_coordinator_cannot_put_its_own_keys_in_place(certificates, tmp_path):
    from riskmin.owners.wire.certificates import make_authority

    made = keys(certificates)
    cards = {name: key.card() for name, key in made.items()}
    make_authority(tmp_path, ["south"], [])
    forged = MaskKey("south", tls_files(tmp_path, "south"), "7").card()
    other_run = MaskKey("south", tls_files(certificates, "south"), "8").card()
    attacks = [
        [cards["north"], forged, cards["west"]],
        [cards["north"], other_run, cards["west"]],
        [cards["north"], cards["south"] | {"public": forged["public"]}, cards["west"]],
        [cards["north"], cards["south"]],
        [cards["north"], cards["south"], cards["south"]],
        [cards["south"], cards["west"]],
        [{}, 3, None],
    ]
    for attack in attacks:
        with pytest.raises(AnswerRefused):
            made["north"].set_peers(attack, 3)
    made["north"].set_peers(list(cards.values()), 3)


@pytest.mark.parametrize(
    ("loss", "intercept"),
    [
        ("logistic", True),
        pytest.param("hinge", False, marks=pytest.mark.exhaustive),
        pytest.param("softmax", True, marks=pytest.mark.exhaustive),
    ],
)
def test_masked_runs_reach_the_pooled_optimum(serve, loss, intercept):
    X, y, _ = table(3000)
    owners = serve(split(X, y), Policy(min_owners=3))
    result = minimize(owners.objective(owners.risk(loss, fit_intercept=intercept), L2(), 1e-2), tol=3e-3)
    labels = y if loss == "softmax" else 2 * y - 1
    J = Objective(linear_risk(X, labels, loss, fit_intercept=intercept), L2(), 1e-2)
    best = minimize(J, tol=1e-6)
    assert result.status == "converged"
    assert result.lower <= best.value <= J.value(result.w) <= result.value * (1 + 1e-12)


def test_a_masked_run_goes_on_after_a_restart(serve, certificates):
    X, y, _ = table(3000)
    parts, policy = split(X, y), Policy(min_owners=3)
    owners = serve(parts, policy)

    def callback(iterate, row):
        if row["iteration"] == 3:
            old = owners.servers["west"]
            old.stop()
            tls = tls_files(certificates, "west")
            owner = Owner(**parts["west"], name="west", policy=policy, identity=tls)
            owners.servers["west"] = OwnerServer(owner, tls, f"127.0.0.1:{old.port}")

    result = minimize(owners.objective(owners.risk("logistic"), L2(), 1e-3), callback=callback, tol=1e-4)
    best = minimize(Objective(linear_risk(X, 2 * y - 1, "logistic"), L2(), 1e-3), tol=1e-8)
    assert result.status == "converged"
    assert result.lower <= best.value <= result.value * (1 + 1e-9)


def test_too_few_owners_are_refused(serve):
    X, y, _ = table(600)
    with pytest.raises(OwnerRefused, match="sums of 4 different owners"):
        serve(split(X, y), Policy(min_owners=4)).risk("logistic")
    parts = split(X, y)
    mixed = dict.fromkeys(parts, Policy()) | {"west": Policy(min_owners=2)}
    with pytest.raises(ValueError, match="some owners mask"):
        serve(parts, mixed).risk("logistic")

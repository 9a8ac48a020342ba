"""Masks: the coordinator reads sums only. Masked runs are among those of test_pooled.py."""

import math

import numpy as np
import pytest
from tests.owners.conftest import NAMES, tls_files

from riskmin.owners.protection.masks import MaskKey, from_parts, to_parts
from riskmin.owners.protection.policy import AnswerRefused
from riskmin.owners.wire.certificates import make_authority


def keys(certificates, run="7"):
    return {name: MaskKey(name, tls_files(certificates, name), run) for name in NAMES}


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

"""Attackers: each protection stops one, and without the protection the same attack succeeds."""

import random

import numpy as np
import pytest
from fuzz.mutate import mutated
from tests.owners.attacker import Attacker, bisected, distance_to_a_row
from tests.owners.conftest import pool, split, table

from riskmin import L2, Hinge, linear_risk, minimize
from riskmin.losses import get_loss
from riskmin.owners.owner import Owner
from riskmin.owners.protection.audit import AuditLog
from riskmin.owners.protection.geometry import RevealedSpan
from riskmin.owners.protection.guard import Rounding
from riskmin.owners.protection.policy import OPEN, Policy
from riskmin.owners.wire.answers import answer_result
from riskmin.owners.wire.codec import OwnerMessage, decode, encode
from riskmin.owners.wire.operations import loss_to_json

ONLY_ROWS = OPEN | {"max_leverage": Policy().max_leverage}
UNLIMITED = {"requests_per_day": 10**9, "requests_per_run": 10**9, "requests_per_second": 1e9}


def rows(n=400):
    return table(n)[:2]


def isolated(owner, seed):
    """Bisect a line until the gradient changes by one row: that row, times its weight."""
    attacker, ends = Attacker(owner), np.random.default_rng(seed).standard_normal((2, 8))
    _, a, b = bisected(lambda w: attacker.gradient(w)[1], *ends)
    return len(owner.y) * (attacker.gradient(b)[1] - attacker.gradient(a)[1])


# answers of other runs, and those before a restart, are not forgotten: see test_attacks.py
def test_differencing_reconstructs_a_row_only_without_protection():
    X, y = rows()
    assert distance_to_a_row(isolated(Owner(X, y, policy=Policy(**OPEN)), 0), X) < 1e-6
    for seed in range(3):
        found = isolated(Owner(X, y, policy=Policy(**ONLY_ROWS)), seed)
        assert not found.any() or distance_to_a_row(found, X) > 0.3


def separated(n=300, p=6):
    """Rows that a known direction separates, but for one."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((n, p))
    X[:, 0] = np.sign(X[:, 0]) * (1 + abs(X[:, 0]))
    y = (X[:, 0] > 0).astype(float)
    y[17] = 1 - y[17]
    return X, y, np.eye(p)[0] * 5


def test_gradients_and_values_of_few_active_rows_reconstruct_a_row_only_without_protection():
    X, y, w = separated()
    value, g = linear_risk(X, 2 * y - 1, Hinge())(w)
    answers, found, step = [], [], 1e-3
    for settings in (OPEN, ONLY_ROWS):
        attacker = Attacker(Owner(X, y, policy=Policy(**settings)))
        answers.append(attacker.gradient(w))
        slopes = [(attacker.gradient(w + step * e)[0] - answers[-1][0]) / step for e in np.eye(len(w))]
        found.append(distance_to_a_row(len(X) * np.array(slopes), X))
    (open_value, stolen), (raised, zero) = answers
    # `OPEN` turns all checks of answers off
    assert open_value == pytest.approx(value, rel=1e-14)
    np.testing.assert_allclose(stolen, g, rtol=1e-12, atol=1e-15)
    assert distance_to_a_row(len(X) * stolen, X) < 1e-9
    assert found[0] < 1e-6
    # the value is still an upper bound, and depends on no row but by the sizes of columns
    assert not zero.any()
    assert value <= raised
    assert found[1] > 0.5


def test_points_that_are_no_descent_end_the_service():
    X, y = rows()
    points = 100 * np.random.default_rng(0).standard_normal((20, 8))
    owner = Owner(X, y, policy=Policy(max_leverage=1.0))
    attacker = Attacker(owner)
    answers = [attacker.gradient(w) for w in points]
    assert sum(answer is not None for answer in answers) == Policy().max_rises - 1
    assert "no descent" in next(e["reason"] for e in owner.log.entries if e["decision"] == "ended")
    # neither this run nor another is answered, until the owner allows it; others are
    assert Attacker(owner).token is None
    assert Attacker(owner, who="alice").token is not None
    owner.allow("mallory")
    assert Attacker(owner).token is not None
    # without the check, all are answered
    attacker = Attacker(Owner(X, y, policy=Policy(max_rises=0)))
    assert all(attacker.gradient(w) is not None for w in points)


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_an_honest_run_with_contradicting_owners_is_answered(loss):
    """One owner has other labels than the rest: its objective rises, but not beyond the tolerance."""
    parts = split(*rows(3000))
    parts["south"]["y"] = 1 - parts["south"]["y"]
    owners = pool(parts)
    result = minimize(owners.objective(owners.risk(loss, fit_intercept=True), L2(), 1e-2), tol=1e-2)
    assert result.status == "converged"


# ---------------------------------------------------------------- budgets and policies
def test_budgets(tmp_path):
    X, y = rows()
    policy = Policy(requests_per_run=10, runs_per_day=3, losses_per_day=2, requests_per_day=60, max_rises=0)
    owner = Owner(X, y, policy=policy, log=AuditLog(tmp_path / "log"))
    attacker = Attacker(owner)
    answers = [attacker.gradient(np.full(8, 0.01 * k)) for k in range(10)]
    assert sum(answer is not None for answer in answers) == 4
    assert "requests of a run" in attacker.last.fields["reason"]
    assert Attacker(owner, "logistic").token is not None
    assert Attacker(owner, "squared_hinge").token is None  # a third loss
    assert Attacker(owner, "logistic").token is not None
    assert Attacker(owner, "logistic").token is None  # a fourth run
    owner.log.close()
    # a restart does not reset the budgets, which are counted from the log
    again = Owner(X, y, policy=policy, log=AuditLog(tmp_path / "log"))
    assert Attacker(again, "logistic").token is None
    for _ in range(60):
        again.handle("mallory", encode(OwnerMessage("describe")))
    assert "requests a day" in Attacker(again).raw("describe").fields["reason"]
    again.log.close()


def test_dimension_losses_and_rate():
    X, y = rows()
    attacker = Attacker(Owner(X, y, policy=Policy(max_weights=4)))
    assert "more than the 4 allowed" in attacker.place(np.zeros(8)).fields["reason"]
    assert Attacker(Owner(X, y, policy=Policy(losses=("Logistic",)))).token is None
    owner = Owner(X, y, policy=Policy(requests_per_second=50.0))
    kinds = [decode(owner.handle("mallory", encode(OwnerMessage("describe")))).kind for _ in range(200)]
    assert kinds.count("busy") > 100
    # a flood is one line of the log
    assert [e["what"] for e in owner.log.entries].count("flood") < 20


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("digit = 9", "no entry 'digit'"),
        ("digits = -1", "digits = -1 is not like its default"),
        ("max_rises = true", "max_rises"),
        ("digits = 20", "digits"),
        ("noise_multiplier = 2.0", "max_row_norm"),
        ("digits", "no TOML"),
    ],
)
def test_policy_files(tmp_path, text, words):
    path = tmp_path / "policy.toml"
    path.write_text('digits = 8\nlosses = ["Hinge"]\nrise_tolerance = 1\n')
    assert Policy.from_file(path) == Policy(digits=8, losses=("Hinge",), rise_tolerance=1)
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        Policy.from_file(path)


# ---------------------------------------------------------------- requests out of line
def test_replayed_and_forged_requests_are_refused():
    owner = Owner(*rows())
    attacker = Attacker(owner)
    fields = {"key": 1, "live": [1], "map": attacker.map, "problem": attacker.token, "sequence": 9}
    request = encode(OwnerMessage("cache_scores", fields, {"w": np.zeros(8)}))
    first = owner.handle("mallory", request)
    # the same bytes get the same reply, and are not computed again; later, they are a replay
    n = len(owner.log.entries)
    assert owner.handle("mallory", request) == first
    assert len(owner.log.entries) == n
    attacker.sequence = 9
    attacker.place(np.ones(8))
    assert "answered before" in decode(owner.handle("mallory", request)).fields["reason"]
    # a token is of no use to another peer
    assert decode(owner.handle("eve", request)).fields == {"what": "run"}
    common, plain = {"key": attacker.key, "map": attacker.map, "t": 0.0}, [[0.0, 1.0]]
    # differences of tangents, another loss than claimed, code of others
    for loss, mix in (
        (attacker.loss_json, [[0.0, 2.0], [1.0, -1.0]]),
        (loss_to_json(get_loss("exponential")), plain),
        ({"name": "os:system", "params": {}}, plain),
        ({"name": "Hinge", "params": {"margin": [[1]]}}, plain),
    ):
        assert attacker.ask("pull_back", **common, loss=loss, mix=mix).kind in ("refused", "invalid")
    for kind in ("scores", "labels", "scatter", "__init__", "answer"):
        assert attacker.ask(kind, {"w": np.zeros(8)}, **common).kind == "invalid"


class Recorded(Owner):
    """An owner that keeps the requests that it gets."""

    def handle(self, who, data):
        self.__dict__.setdefault("requests", []).append(data)
        return super().handle(who, data)


def test_fuzzed_messages():
    """Every reply to a mutated request is a message, and nothing else is raised."""
    n, rng = 1000, random.Random(0)
    owner = Recorded(*rows(60), policy=Policy(**UNLIMITED))
    attacker = Attacker(owner)
    attacker.gradient(np.ones(8))
    attacker.raw("describe")
    Attacker(owner, "logistic")
    sent = list(owner.requests)
    kinds = [decode(owner.handle("mallory", mutated(rng, sent[k % len(sent)]))).kind for k in range(n)]
    assert kinds.count("invalid") > n // 3
    assert set(kinds) <= {"answer", "invalid", "refused", "lost"}
    # the owner still answers
    assert Attacker(owner, who="alice").token is not None


# ---------------------------------------------------------------- answers
def test_moments_hold_no_entry_of_a_row():
    X, y = rows()
    # a share that would select one row only
    result, _ = answer_result(Attacker(Owner(X, y)).ask("sampled_moments", t=1e-9))
    np.testing.assert_allclose(result[1], X.mean(0), atol=1e-12)
    for extreme in result[3:]:
        assert not np.isin(extreme, X).any()


def test_answers_by_references_are_cuts():
    """The certificate of coarse answers: value above, and cut below, the exact risk at random points."""
    X, y = rows(200)
    risk, rng = linear_risk(X, 2 * y - 1, Hinge()), np.random.default_rng(0)
    attacker = Attacker(Owner(X, y, policy=Policy(**(OPEN | {"max_leverage": 0.1}))))
    center, coarse = rng.standard_normal(8), 0
    for _ in range(30):
        w = center + 0.02 * rng.standard_normal(8)
        value, grad, error = attacker.tangent(w)
        exact = risk(w)
        assert value >= exact[0] * (1 - 1e-12)
        coarse += not np.allclose(grad, exact[1])
        for _ in range(10):
            v = w + rng.standard_normal(8) * rng.choice([0.01, 1.0, 10.0])
            assert value + grad @ (v - w) - error <= risk(v)[0] * (1 + 1e-12)
    assert coarse > 10


def test_hessian_products():
    """Differences of gradients for a smooth loss; refused where one row has most of the curvature."""
    X, y = rows()
    attacker, rng = Attacker(Owner(X, y, policy=Policy(**ONLY_ROWS)), "logistic"), np.random.default_rng(0)
    w, d = 0.3 * rng.standard_normal(8), rng.standard_normal(8)

    def product(w):
        attacker.place(w)
        fields = {"loss": attacker.loss_json, "map": attacker.map, "b": 0.0, "key": attacker.key}
        return attacker.ask("hessian_product", {"w": d}, **fields)

    (found,), _ = answer_result(product(w))
    risk = linear_risk(X, 2 * y - 1, attacker.loss)
    np.testing.assert_allclose(found, (risk(w + 1e-5 * d)[1] - risk(w - 1e-5 * d)[1]) / 2e-5, rtol=1e-6)
    # so far out that one row only is near the boundary
    reply = product(5e3 * w)
    assert reply.kind == "refused"
    assert "too few to hide" in reply.fields["reason"]


def test_rounding_is_up_and_within_its_error():
    rng = np.random.default_rng(0)
    for digits in (2, 9, 15):
        rounding = Rounding(digits, 0.7)
        for v in rng.uniform(0, 3, 20):
            rounded, error = rounding.value(v)
            assert v <= rounded <= v + error <= v + 10.0**-digits
        g = rng.standard_normal(50) * 10.0 ** rng.uniform(-8, 8, 50)
        rounded, error = rounding.gradient(g, 3)
        assert np.max(np.abs(rounded - g)) <= error <= 10.0**-digits * np.max(np.abs(g))
        np.testing.assert_array_equal(rounded[-3:], g[-3:])


# ---------------------------------------------------------------- files
def test_the_span_of_a_file_is_that_of_the_process_before(tmp_path):
    """Rows are found by their identifiers: rows may move, come and go, and nothing is forgotten."""
    known, rng, path = np.arange(20, dtype=np.uint64), np.random.default_rng(0), tmp_path / "span"
    span = RevealedSpan(known, 0.9, path)
    for _ in range(3):
        assert not span.add(rng.standard_normal(20)).any()
    with path.open("ab") as file:  # the process was killed while it wrote
        file.write(b"1234567")
    # another order, row 0 left, a new one
    changed = np.concatenate([known[:0:-1], np.array([77], np.uint64)])
    again = RevealedSpan(changed, 0.9, path)
    assert again.rank == 3
    np.testing.assert_allclose(again.leverages[again.where][:-1], span.leverages[:0:-1])
    assert not again.add(np.ones(20)).any()
    # the same sum with one more row: the difference is that row
    third = RevealedSpan(np.append(changed, np.array([78], np.uint64)), 0.9, path)
    np.testing.assert_array_equal(np.flatnonzero(third.add(np.ones(21))), [20])
    path.write_bytes(b"x")
    with pytest.raises(ValueError, match="restore it"):
        RevealedSpan(known, 0.9, path)

"""Attackers: each protection stops one, and without the protection the same attack succeeds."""

import numpy as np
import pytest
from tests.owners.conftest import split, table

from riskmin import L2, Hinge, Objective, linear_risk, minimize
from riskmin.linear_maps.linear import SingleOutput
from riskmin.losses import get_loss
from riskmin.owners.owner import Owner
from riskmin.owners.protection.audit import AuditError, AuditLog, read_log
from riskmin.owners.protection.geometry import RevealedSpan
from riskmin.owners.protection.guard import Rounding
from riskmin.owners.protection.policy import OPEN, Policy
from riskmin.owners.wire.answers import answer_result
from riskmin.owners.wire.codec import OwnerMessage, decode, encode
from riskmin.owners.wire.operations import loss_to_json, map_digest, map_message

ONLY_ROWS = OPEN | {"max_leverage": Policy().max_leverage}


class Attacker:
    """A coordinator that sends whatever it likes, past the executor."""

    def __init__(self, owner, loss="hinge", who="mallory", lam=1e-3):
        self.owner, self.who, self.sequence, self.key = owner, who, 0, 0
        self.loss = get_loss(loss)
        classes = None if self.loss.task == "regression" else np.unique(owner.y).tolist()
        opened = self.raw(
            "open",
            loss=loss_to_json(self.loss),
            outputs=0,
            intercept=False,
            classes=classes,
            total_weight=owner.weight.sum(),
        )
        self.token = opened.fields.get("problem")
        reg = {"name": "L2", "params": {}}
        self.claimed = self.ask("claim", loss=loss_to_json(self.loss), reg=reg, lam=lam)
        message = map_message(SingleOutput())
        self.ask("map", message.arrays, **message.fields)
        self.map = map_digest(SingleOutput())

    def raw(self, kind, arrays=None, **fields):
        return decode(self.owner.handle(self.who, encode(OwnerMessage(kind, fields, arrays or {}))))

    def ask(self, kind, arrays=None, **fields):
        self.sequence += 1
        return self.raw(kind, arrays, problem=self.token, sequence=self.sequence, **fields)

    def place(self, w):
        self.key += 1
        return self.ask("cache_scores", {"w": w}, key=self.key, live=[self.key], map=self.map)

    def gradient(self, w):
        """The value and the gradient at w; None if they are refused."""
        self.place(w)
        reply = self.ask(
            "pull_back", key=self.key, loss=loss_to_json(self.loss), map=self.map, t=0.0, mix=[[0.0, 1.0]]
        )
        self.last = reply
        if reply.kind != "answer":
            return None
        (value, grad, _, _), _ = answer_result(reply)
        return value, grad


def distance_to_a_row(x, X):
    """How far a vector is from the nearest row or its negative, relative to the row."""
    sizes = np.linalg.norm(X, axis=1)
    return min(np.min(np.linalg.norm(X - s * x, axis=1) / sizes) for s in (1, -1))


def isolated_by_bisection(attacker, X, rng):
    """Bisect a line until the gradient changes by one row: that row, times its weight."""
    a, b = (rng.standard_normal(X.shape[1]) for _ in range(2))
    (_, low), (_, high) = attacker.gradient(a), attacker.gradient(b)
    for _ in range(45):
        middle = 0.5 * (a + b)
        _, g = attacker.gradient(middle)
        if np.allclose(g, low, rtol=0, atol=1e-12):
            a = middle
        else:
            b, high = middle, g
    return len(X) * (high - low)


def test_differencing_reconstructs_a_row_only_without_protection():
    X, y, _ = table(400)
    rng = np.random.default_rng(0)
    stolen = isolated_by_bisection(Attacker(Owner(X, y, policy=Policy(**OPEN))), X, rng)
    assert distance_to_a_row(stolen, X) < 1e-6
    for seed in range(3):
        attacker = Attacker(Owner(X, y, policy=Policy(**ONLY_ROWS)))
        found = isolated_by_bisection(attacker, X, np.random.default_rng(seed))
        assert not found.any() or distance_to_a_row(found, X) > 0.3


def test_neither_a_restart_nor_another_run_forgets_earlier_answers(tmp_path):
    """Two points between which one row changes its side, asked in two runs, or before and after a restart."""
    X, y, _ = table(400)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(8) for _ in range(2))
    slopes = Attacker(Owner(X, y, policy=Policy(**OPEN)))
    low = slopes.gradient(a)[1]
    for _ in range(45):
        middle = 0.5 * (a + b)
        same = np.allclose(slopes.gradient(middle)[1], low, rtol=0, atol=1e-12)
        a, b = (middle, b) if same else (a, middle)
    stolen = {}
    for name, settings in (("open", OPEN), ("rows", ONLY_ROWS)):
        owner = Owner(X, y, policy=Policy(**settings), log=AuditLog(tmp_path / f"{name}.jsonl"))
        first = Attacker(owner).gradient(a)[1]
        second = Attacker(owner).gradient(b)[1]
        owner.log.close()
        again = Owner(X, y, policy=Policy(**settings), log=AuditLog(tmp_path / f"{name}.jsonl"))
        third = Attacker(again).gradient(b)[1]
        again.log.close()
        stolen[name] = len(X) * (second - first), len(X) * (third - first)
    assert all(distance_to_a_row(difference, X) < 1e-6 for difference in stolen["open"])
    assert all(not d.any() or distance_to_a_row(d, X) > 0.3 for d in stolen["rows"])


def separated(n=300, p=6):
    """Rows that a known direction separates, but for one."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((n, p))
    X[:, 0] = np.sign(X[:, 0]) * (1 + abs(X[:, 0]))
    y = (X[:, 0] > 0).astype(float)
    y[17] = 1 - y[17]
    return X, y, np.eye(p)[0] * 5


def test_few_active_rows_are_answered_by_zero():
    X, y, w = separated()
    _, stolen = Attacker(Owner(X, y, policy=Policy(**OPEN))).gradient(w)
    assert distance_to_a_row(len(X) * stolen, X) < 1e-9
    value, g = Attacker(Owner(X, y, policy=Policy(**ONLY_ROWS))).gradient(w)
    exact = linear_risk(X, 2 * y - 1, Hinge())(w)[0]
    # the value is still an upper bound, and depends on no row but by the sizes of columns
    assert not g.any()
    assert exact <= value


def test_values_reconstruct_a_row_only_without_protection():
    X, y, w = separated()
    found = []
    for settings in (OPEN, ONLY_ROWS):
        attacker = Attacker(Owner(X, y, policy=Policy(**settings)))
        step = 1e-3
        start = attacker.gradient(w)[0]
        slopes = [(attacker.gradient(w + step * e)[0] - start) / step for e in np.eye(len(w))]
        found.append(distance_to_a_row(len(X) * np.array(slopes), X))
    assert found[0] < 1e-6
    assert found[1] > 0.5


def test_points_that_are_no_descent_end_the_service():
    X, y, _ = table(400)
    owner, rng = Owner(X, y, policy=Policy(max_leverage=1.0)), np.random.default_rng(0)
    attacker = Attacker(owner)
    answers = [attacker.gradient(100 * rng.standard_normal(8)) for _ in range(20)]
    assert sum(answer is not None for answer in answers) == Policy().max_rises - 1
    assert "no descent" in next(e["reason"] for e in owner.log.entries if e["decision"] == "ended")
    # neither this run nor another is answered, until the owner allows it; others are
    assert Attacker(owner).token is None
    assert Attacker(owner, who="alice").token is not None
    owner.allow("mallory")
    assert Attacker(owner).token is not None
    # without the check, all are answered
    attacker = Attacker(Owner(X, y, policy=Policy(max_rises=0)))
    assert all(attacker.gradient(100 * rng.standard_normal(8)) is not None for _ in range(20))


@pytest.mark.parametrize("loss", [pytest.param("hinge", marks=pytest.mark.exhaustive), "logistic"])
def test_an_honest_run_with_contradicting_owners_is_answered(serve, loss):
    """One owner has other labels than the rest: its objective rises, but not beyond the tolerance."""
    X, y, _ = table(3000)
    parts = split(X, y)
    parts["south"]["y"] = 1 - parts["south"]["y"]
    owners = serve(parts)
    result = minimize(owners.objective(owners.risk(loss, fit_intercept=True), L2(), 1e-2), tol=1e-2)
    assert result.status == "converged"


# ---------------------------------------------------------------- budgets
def test_budgets(tmp_path):
    X, y, _ = table(400)
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
    X, y, _ = table(400)
    attacker = Attacker(Owner(X, y, policy=Policy(max_weights=4)))
    assert "more than the 4 allowed" in attacker.place(np.zeros(8)).fields["reason"]
    assert Attacker(Owner(X, y, policy=Policy(losses=("Logistic",)))).token is None
    owner = Owner(X, y, policy=Policy(requests_per_second=50.0))
    kinds = [decode(owner.handle("mallory", encode(OwnerMessage("describe")))).kind for _ in range(200)]
    assert kinds.count("busy") > 100
    # a flood is one line of the log
    assert [e["what"] for e in owner.log.entries].count("flood") < 20


# ---------------------------------------------------------------- requests out of line
def test_replayed_and_forged_requests_are_refused():
    X, y, _ = table(400)
    owner = Owner(X, y, policy=Policy())
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
    w, loss = np.zeros(8), loss_to_json(attacker.loss)
    common = {"key": attacker.key, "map": attacker.map, "t": 0.0}
    # differences of tangents, another loss than claimed, code of others
    for change in (
        {"loss": loss, "mix": [[0.0, 2.0], [1.0, -1.0]]},
        {"loss": loss_to_json(get_loss("exponential")), "mix": [[0.0, 1.0]]},
        {"loss": {"name": "os:system", "params": {}}, "mix": [[0.0, 1.0]]},
        {"loss": {"name": "Hinge", "params": {"margin": [[1]]}}, "mix": [[0.0, 1.0]]},
    ):
        assert attacker.ask("pull_back", **common, **change).kind in ("refused", "invalid")
    for kind in ("scores", "labels", "scatter", "__init__", "answer"):
        assert attacker.ask(kind, {"w": w}, **common).kind == "invalid"


def test_moments_hold_no_entry_of_a_row():
    X, y, _ = table(400)
    attacker = Attacker(Owner(X, y, policy=Policy()))
    # a share that would select one row only
    result, _ = answer_result(attacker.ask("sampled_moments", t=1e-9))
    np.testing.assert_allclose(result[1], X.mean(0), atol=1e-12)
    for extreme in result[3:]:
        assert not np.isin(extreme, X).any()


# ---------------------------------------------------------------- parts
def test_answers_by_references_are_cuts():
    """The certificate of coarse answers: value above, and cut below, the exact risk at random points."""
    X, y, _ = table(200)
    risk = linear_risk(X, 2 * y - 1, Hinge())
    attacker = Attacker(Owner(X, y, policy=Policy(**(OPEN | {"max_leverage": 0.1}))))
    rng = np.random.default_rng(0)
    center = rng.standard_normal(8)
    coarse = 0
    for _ in range(30):
        w = center + 0.02 * rng.standard_normal(8)
        attacker.place(w)
        reply = attacker.ask(
            "pull_back",
            key=attacker.key,
            loss=loss_to_json(Hinge()),
            map=attacker.map,
            t=0.0,
            mix=[[0.0, 1.0]],
        )
        (value, grad, error, _), _ = answer_result(reply)
        exact = risk(w)
        assert value >= exact[0] * (1 - 1e-12)
        coarse += not np.allclose(grad, exact[1])
        for _ in range(20):
            v = w + rng.standard_normal(8) * rng.choice([0.01, 1.0, 10.0])
            assert value + grad @ (v - w) - error <= risk(v)[0] * (1 + 1e-12)
    assert coarse > 10


def test_hessian_products():
    """Differences of gradients for a smooth loss; refused where one row has most of the curvature."""
    X, y, _ = table(400)
    attacker, rng = Attacker(Owner(X, y, policy=Policy(**ONLY_ROWS)), "logistic"), np.random.default_rng(0)
    w, d = 0.3 * rng.standard_normal(8), rng.standard_normal(8)
    common = {"loss": loss_to_json(attacker.loss), "map": attacker.map, "b": 0.0}
    attacker.place(w)
    (product,), _ = answer_result(attacker.ask("hessian_product", {"w": d}, key=attacker.key, **common))
    risk = linear_risk(X, 2 * y - 1, attacker.loss)
    np.testing.assert_allclose(product, (risk(w + 1e-5 * d)[1] - risk(w - 1e-5 * d)[1]) / 2e-5, rtol=1e-6)
    # so far out that one row only is near the boundary
    attacker.place(5e3 * w)
    reply = attacker.ask("hessian_product", {"w": d}, key=attacker.key, **common)
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


def test_the_span_of_a_file_is_that_of_the_process_before(tmp_path):
    """Rows are found by their identifiers: rows may move, come and go, and nothing is forgotten."""
    rows, rng = np.arange(20, dtype=np.uint64), np.random.default_rng(0)
    span = RevealedSpan(rows, 0.9, tmp_path / "span")
    for _ in range(3):
        assert not span.add(rng.standard_normal(20)).any()
    path = tmp_path / "span"
    with path.open("ab") as file:  # the process was killed while it wrote
        file.write(b"1234567")
    changed = np.concatenate(
        [rows[::-1][:-1], np.array([77], np.uint64)]
    )  # another order, row 0 left, a new one
    again = RevealedSpan(changed, 0.9, path)
    assert again.rank == 3
    np.testing.assert_allclose(again.leverages[again.where][:-1], span.leverages[::-1][:-1])
    u = np.ones(20)
    assert not again.add(u).any()
    # the same sum with one more row: the difference is that row
    third = RevealedSpan(np.append(changed, np.array([78], np.uint64)), 0.9, path)
    np.testing.assert_array_equal(np.flatnonzero(third.add(np.ones(21))), [20])
    path.write_bytes(b"x")
    with pytest.raises(ValueError, match="restore it"):
        RevealedSpan(rows, 0.9, path)


def test_policy_files(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text('digits = 8\nlosses = ["Hinge"]\nrise_tolerance = 1\n')
    assert Policy.from_file(path) == Policy(digits=8, losses=("Hinge",), rise_tolerance=1)
    for text, reason in (
        ("digit = 9", "no entry 'digit'"),
        ("digits = -1", "digits = -1 is not like its default"),
        ("max_rises = true", "max_rises"),
        ("digits = 20", "digits"),
        ("noise_multiplier = 2.0", "max_row_norm"),
        ("digits", "no TOML"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=reason):
            Policy.from_file(path)


def test_a_changed_log_is_noticed(tmp_path):
    path = tmp_path / "log"
    log = AuditLog(path)
    for k in range(5):
        log.append(who="alice", what="pull_back", decision="answered", value=1.0 / (k + 1))
    log.close()
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(list(read_log(path))) == 5
    for changed in (lines[:2] + lines[3:], [lines[0].replace(b"alice", b"carol"), *lines[1:]], lines[::-1]):
        path.write_bytes(b"".join(changed))
        with pytest.raises(AuditError, match=r"line [123]"):
            list(read_log(path))
    # a process that was killed while it wrote a line goes on after the last whole one, and records that
    path.write_bytes(b"".join(lines) + b'{"n": 6, "ti')
    log = AuditLog(path)
    log.append(who="alice", what="pull_back", decision="answered")
    log.close()
    assert [e["decision"] for e in read_log(path)][-2:] == ["repaired", "answered"]


# ---------------------------------------------------------------- fuzzed messages
def fuzz(n, seed):
    """Send mutated requests; every reply is a message, and nothing else is raised."""
    X, y, _ = table(60)
    owner = Owner(
        X, y, policy=Policy(requests_per_day=10**9, requests_per_run=10**9, requests_per_second=1e9)
    )
    attacker, rng = Attacker(owner), np.random.default_rng(seed)
    sent = []
    handle = owner.handle
    owner.handle = lambda who, data: (sent.append(data), handle(who, data))[1]
    attacker.gradient(np.ones(8))
    attacker.raw("describe")
    Attacker(owner, "logistic")
    owner.handle = handle
    replies = {}
    for k in range(n):
        data = bytearray(sent[k % len(sent)])
        for _ in range(rng.integers(1, 4)):
            i = int(rng.integers(len(data)))
            match int(rng.integers(5)):
                case 0:
                    data[i] ^= 1 << int(rng.integers(8))
                case 1:
                    del data[i : i + int(rng.integers(1, 9))]
                case 2:
                    data[i:i] = rng.bytes(int(rng.integers(1, 9)))
                case 3:
                    data[i] = int(rng.choice(list(b'0123456789"{}[]:,-.e')))
                case 4:
                    data = data[:i]
            data = data or bytearray(b"R")
        reply = decode(owner.handle("mallory", bytes(data)))
        replies[reply.kind] = replies.get(reply.kind, 0) + 1
    assert replies["invalid"] > n // 3
    assert set(replies) <= {"answer", "invalid", "refused", "lost"}
    # the owner still answers
    assert Attacker(owner, who="alice").token is not None


def test_fuzzed_messages():
    fuzz(400, 0)


@pytest.mark.exhaustive
def test_ten_thousand_fuzzed_messages():
    fuzz(10_000, 1)


def test_oversized_messages_are_refused(serve):
    X, y, _ = table(600)
    owners = serve({"north": {"X": X, "y": y}}, Policy(max_bytes=2**22))
    from riskmin.owners.client import OwnerRefused

    with pytest.raises(OwnerRefused, match=r"longer than the policy|more than the"):
        owners.connections[0].ask(OwnerMessage("describe", {}, {"w": np.zeros(2**20)}))
    assert owners.connections[0].ask(OwnerMessage("describe")).kind == "answer"


def test_the_certificate_of_an_unprotected_run_is_the_same():
    """`OPEN` is what other tests compare with: it turns all checks of answers off."""
    X, y, w = separated()
    value, g = Attacker(Owner(X, y, policy=Policy(**OPEN))).gradient(w)
    exact = Objective(linear_risk(X, 2 * y - 1, Hinge()), L2(), 1.0).evaluate_risk(w)
    assert value == pytest.approx(exact.value, rel=1e-14)
    np.testing.assert_allclose(g, exact.gradient, rtol=1e-12, atol=1e-15)

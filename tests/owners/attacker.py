"""A coordinator that sends whatever it likes, past the executor, and measures of what it finds."""

import numpy as np

from riskmin.linear_maps.linear import SingleOutput
from riskmin.losses import get_loss
from riskmin.owners.wire.answers import answer_result
from riskmin.owners.wire.codec import OwnerMessage, decode, encode
from riskmin.owners.wire.operations import loss_to_json, map_digest, map_message


class Attacker:
    """Runs of one peer at one owner; `total` is the weight of all rows that it claims."""

    def __init__(self, owner, loss="hinge", who="mallory", lam=1e-3, total=None):
        self.owner, self.who, self.sequence, self.key = owner, who, 0, 0
        self.loss = get_loss(loss)
        self.loss_json = loss_to_json(self.loss)
        opened = self.raw(
            "open",
            loss=self.loss_json,
            outputs=0,
            intercept=False,
            classes=None if self.loss.task == "regression" else np.unique(owner.y).tolist(),
            total_weight=owner.weight.sum() if total is None else total,
        )
        self.token = opened.fields.get("problem")
        reg = {"name": "L2", "params": {}}
        self.claimed = self.ask("claim", loss=self.loss_json, reg=reg, lam=lam)
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

    def tangent(self, w):
        """The value, the gradient, and the error of the value at w; None if they are refused."""
        self.place(w)
        fields = {"key": self.key, "loss": self.loss_json, "map": self.map, "t": 0.0, "mix": [[0.0, 1.0]]}
        self.last = self.ask("pull_back", **fields)
        return answer_result(self.last)[0][:3] if self.last.kind == "answer" else None

    def gradient(self, w):
        """The value and the gradient at w; None if they are refused."""
        answer = self.tangent(w)
        return None if answer is None else answer[:2]


def distance_to_a_row(x, X):
    """How far a vector is from the nearest row or its negative, relative to the row."""
    sizes = np.linalg.norm(X, axis=1)
    return min(np.min(np.linalg.norm(X - s * x, axis=1) / sizes) for s in (1, -1))


def bisected(gradient, a, b, rounds=45, atol=1e-12):
    """Bisect the line from a to b for the point where the gradient changes: all answers, and its ends."""
    found = [gradient(a), gradient(b)]
    for _ in range(rounds):
        middle = 0.5 * (a + b)
        found.append(gradient(middle))
        same = found[-1] is None or found[0] is None or np.allclose(found[-1], found[0], rtol=0, atol=atol)
        a, b = (middle, b) if same else (a, middle)
    return [g for g in found if g is not None], a, b

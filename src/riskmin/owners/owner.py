"""A data owner: answers requests about its rows within its policy, and records each of them.

`Owner.handle` takes and returns bytes, whatever the transport: gRPC in `server.py`, or any other.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import threading
import time
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

import numpy as np

from riskmin.arrays.finite import check_finite
from riskmin.arrays.matrix import as_matrix, as_row_matrix
from riskmin.arrays.sequences import Sequences
from riskmin.core import NDArray, Shard, ShardCache, ShardStateLost
from riskmin.core.deadline import OutOfTime, TimeLimit
from riskmin.core.messages import one_line
from riskmin.driver.fingerprint import row_hashes, shard_hash
from riskmin.losses.base import Loss
from riskmin.losses.labels import encode_queries
from riskmin.losses.nondecomposable.by_query import QueryLoss, query_ends
from riskmin.owners.problem import Claim, OwnerProblem, finite_or_none, separable_form, tangent_at
from riskmin.owners.protection.audit import AuditLog, LogNotWritten
from riskmin.owners.protection.budgets import Budgets
from riskmin.owners.protection.geometry import RevealedSpan, row_identifiers
from riskmin.owners.protection.guard import GuardedTangents, SlopeBound, column_sizes
from riskmin.owners.protection.masks import MaskKey
from riskmin.owners.protection.noise import shortened_rows
from riskmin.owners.protection.policy import AnswerRefused, Policy
from riskmin.owners.wire.answers import Answer, answer_message
from riskmin.owners.wire.codec import MessageError, OwnerMessage, decode, encode
from riskmin.owners.wire.operations import (
    OPERATIONS,
    UnknownMap,
    finite_array,
    loss_from_json,
    loss_to_json,
    map_digest,
    map_from_message,
    read_arguments,
    regularizer_from_json,
)


class UnknownRun(Exception):
    """Raised if a request belongs to a run that this process does not know: the client opens it again."""


class _Run:
    """A run of a coordinator: its problem, and the last reply, which a repeated request gets again."""

    def __init__(self, peer: str, problem: OwnerProblem, outputs: int) -> None:
        self.peer, self.problem, self.outputs = peer, problem, outputs
        self.sequence, self.digest, self.reply, self.n_requests = -1, b"", b"", 0
        self.masks: MaskKey | None = None

    def answer_message(self, answer: Answer, sequence: int) -> OwnerMessage:
        """Return the message of an answer, masked if the policy asks for it."""
        message = answer_message(answer)
        if self.masks is None:
            return message
        # one vector: the numbers, the error of the gradient, and the arrays
        shapes = {name: a.shape for name, a in message.arrays.items() if name != "scalars"}
        error = np.array([answer.gradient_error])
        flat = [message.arrays["scalars"], error, *(message.arrays[name].ravel() for name in shapes)]
        fields = {"layout": message.fields["layout"], "shapes": {k: list(v) for k, v in shapes.items()}}
        return OwnerMessage("answer", fields, {"masked": self.masks.masked(sequence, np.concatenate(flat))})


class Owner:
    """Rows of one owner, and the policy by which it answers.

    Parameters
    ----------
    X : array or sparse matrix
    y : array, optional
        Labels or grades.
    qid : array, optional
        Query ids. The rows of a query must be at one owner.
    weight : array, optional
        Weights of rows, >= 0; 1 by default.
    name : str
    feature_names : list of str, optional
    policy : Policy, optional
    log : AuditLog, optional
        In memory by default.
    secret : bytes
        Key of the fingerprint of the data, so that nobody else can compute it from guessed rows.
    identity : TlsFiles, optional
        The authority, and the owner's certificate and key, by which it signs the keys of masks.

    Examples
    --------
    >>> import numpy as np
    >>> owner = Owner(np.eye(8), np.ones(8), name="hospital-a")
    >>> reply = decode(owner.handle("coordinator", encode(OwnerMessage("describe"))))
    >>> reply.fields["rows"], reply.fields["columns"], reply.fields["classes"]
    (8, 8, [1.0])
    """

    MAX_RUNS = 16
    """Runs that are kept at the same time; the one that was opened first is dropped."""
    MAX_CLASSES = 1000

    def __init__(
        self,
        X: Any,
        y: Any = None,
        qid: Any = None,
        weight: Any = None,
        *,
        name: str = "owner",
        feature_names: list[str] | None = None,
        policy: Policy | None = None,
        log: AuditLog | None = None,
        secret: bytes = b"",
        identity: Any = None,
    ) -> None:
        self.name, self.policy, self.log = name, policy or Policy(), log or AuditLog()
        self.identity = identity
        if self.policy.min_owners and identity is None:
            raise ValueError("masked answers need the owner's certificate and key: give identity")
        self.matrix = as_matrix(
            shortened_rows(X, self.policy.max_row_norm) if self.policy.noise_multiplier else X
        )
        check_finite(self.matrix)
        n = self.matrix.shape[0]
        if n * self.policy.max_leverage < 1:
            raise ValueError(
                f"{name} has {n} rows, too few to hide one behind the others (max_leverage = "
                f"{self.policy.max_leverage:g}): give more rows, or raise max_leverage"
            )
        self.y = None if y is None else np.asarray(y)
        self.qid = None if qid is None else encode_queries(qid, n)
        if self.qid is not None and query_ends(np.column_stack([self.qid, self.qid])) is None:
            # sums over queries are taken over contiguous rows
            order = np.argsort(self.qid, kind="stable")
            self.matrix, self.qid = as_matrix(as_row_matrix(self.matrix).take(order)), self.qid[order]
            self.y = None if self.y is None else self.y[order]
            weight = None if weight is None else np.asarray(weight)[order]
        self.weight = _checked_weight(weight, n)
        self.feature_names = feature_names
        self.fingerprint = self._fingerprint(secret)
        self._runs: dict[str, _Run] = {}
        self._tangents: dict[str, GuardedTangents] = {}
        # noise protects more than leverages, and is not to be combined with what depends on rows
        limit = 1.0 if self.policy.noise_multiplier else self.policy.max_leverage
        path = None if self.log.path is None else self.log.path.with_suffix(".revealed")
        self.span = RevealedSpan(row_identifiers(row_hashes(self.matrix, n)), limit, path)
        self._lock = threading.Lock()
        self.budgets = Budgets(name, self.policy, self.log)

    def _fingerprint(self, secret: bytes) -> str:
        labels = np.zeros(len(self.weight)) if self.y is None or self.y.dtype.kind not in "biuf" else self.y
        text = "" if self.y is None or self.y.dtype.kind in "biuf" else "\0".join(map(str, self.y.tolist()))
        hashed = shard_hash(Shard(self.matrix, labels, self.weight, ShardCache()), 0)
        content = f"{self.matrix.shape}:{hashed}:{text}:{self.qid is not None and self.qid.tolist()}"
        return hmac.new(secret or b"riskmin", content.encode(), hashlib.sha256).hexdigest()

    def allow(self, who: str) -> None:
        """Answer a coordinator again that was ended by a protection."""
        self.budgets.record(who, "allow", "allowed")

    # ------------------------------------------------------------ requests
    def handle(self, peer: str, data: bytes) -> bytes:
        """Return the reply to a request of a peer, whose name its certificate proves."""
        with self._lock:
            if self.budgets.over_rate(peer):
                return encode(OwnerMessage("busy", {"reason": "requests come too fast"}))
            kind = "?"
            try:
                message = decode(data, self.policy.max_bytes)
                kind = message.kind if message.kind in _HANDLERS or message.kind in OPERATIONS else "?"
                limit = TimeLimit(time.perf_counter() + self.policy.max_seconds)
                return limit.call(self._reply, peer, message, data)
            except LogNotWritten as error:
                return encode(OwnerMessage("refused", {"reason": str(error), "final": False}))
            except AnswerRefused as refusal:
                self._record_refusal(peer, kind, "ended" if refusal.final else "refused", str(refusal))
                return encode(OwnerMessage("refused", {"reason": str(refusal), "final": refusal.final}))
            except UnknownMap:
                return encode(OwnerMessage("lost", {"what": "map"}))
            except UnknownRun:
                return encode(OwnerMessage("lost", {"what": "run"}))
            except ShardStateLost:
                return encode(OwnerMessage("lost", {"what": "scores"}))
            except OutOfTime:
                self._record_refusal(peer, kind, "refused", "out of time")
                return encode(
                    OwnerMessage(
                        "refused",
                        {"reason": f"no answer within {self.policy.max_seconds:g} s", "final": False},
                    )
                )
            except Exception as error:  # whatever a request causes, the service goes on
                reason = one_line(error)[:300] if isinstance(error, ValueError) else type(error).__name__
                self._record_refusal(peer, kind, "invalid", reason)
                return encode(OwnerMessage("invalid", {"reason": reason}))

    def _record_refusal(self, peer: str, kind: str, decision: str, reason: str) -> None:
        with suppress(LogNotWritten):  # a refusal reveals nothing: it goes out without its line, too
            self.budgets.record_refusal(peer, kind, decision, reason)

    def _reply(self, peer: str, message: OwnerMessage, data: bytes) -> bytes:
        kind = message.kind
        if kind in _HANDLERS and kind in ("describe", "open"):
            self.budgets.check(peer, kind if kind == "describe" else "")
            return encode(_HANDLERS[kind](self, peer, message))
        run = self._run_of(peer, message)
        digest = hashlib.sha256(data).digest()
        sequence = message.fields.get("sequence")
        if type(sequence) is not int:
            raise MessageError("the request has no sequence number")
        if sequence == run.sequence and digest == run.digest:
            return run.reply  # the same request again, whose reply was lost on the way
        if sequence <= run.sequence:
            raise AnswerRefused(f"request {sequence} was answered before: requests are not repeated")
        self.budgets.check(peer, kind)
        run.n_requests += 1
        if run.n_requests > self.policy.requests_per_run:
            raise AnswerRefused(
                f"the budget of {self.policy.requests_per_run:,} requests of a run is used up"
            )
        if kind in _HANDLERS:
            reply = encode(_HANDLERS[kind](self, run, message))
        elif kind in OPERATIONS:
            reply = encode(self._operation(run, message))
        else:
            raise MessageError("there is no such operation")
        run.sequence, run.digest, run.reply = sequence, digest, reply
        return reply

    def _run_of(self, peer: str, message: OwnerMessage) -> _Run:
        token = message.fields.get("problem")
        run = self._runs.get(token) if type(token) is str else None
        # a token of another coordinator is unknown, too
        if run is None or run.peer != peer:
            raise UnknownRun
        return run

    def _operation(self, run: _Run, message: OwnerMessage) -> OwnerMessage:
        args = read_arguments(message.kind, message, run.problem.maps)
        if "w" in args and len(args["w"]) > self.policy.max_weights:
            raise AnswerRefused(
                f"w has {len(args['w']):,} weights, more than the {self.policy.max_weights:,} allowed"
            )
        answer = run.problem.answer(message.kind, args)
        self.budgets.record(
            run.peer,
            message.kind,
            "answered",
            run=message.fields["problem"][:8],
            norm=finite_or_none(answer.norm),
            value=finite_or_none(answer.value),
            mu_squared=None if run.problem.account is None else run.problem.account.mu_squared,
        )
        return run.answer_message(answer, message.fields["sequence"])

    # ------------------------------------------------------------ runs
    def _describe(self, peer: str, message: OwnerMessage) -> OwnerMessage:
        n, p = self.matrix.shape
        classes: list[Any] | None = None
        if self.policy.share_classes and self.y is not None:
            distinct = np.unique(self.y)
            classes = distinct.tolist() if len(distinct) <= self.MAX_CLASSES else None
        self.budgets.record(peer, "describe", "answered")
        return OwnerMessage(
            "answer",
            {
                "name": self.name,
                "rows": n,
                "columns": p,
                "weight": float(self.weight.sum()),
                "weighted": bool(np.any(self.weight != 1)),
                "labels": self.y is not None,
                "classes": classes,
                "queries": 0 if self.qid is None else int(self.qid.max()) + 1,
                "feature_names": self.feature_names,
                "fingerprint": self.fingerprint,
                "digits": self.policy.digits,
                "min_owners": self.policy.min_owners,
                "noise": bool(self.policy.noise_multiplier),
                "head": self.log.head,
            },
        )

    def _open(self, peer: str, message: OwnerMessage) -> OwnerMessage:
        fields = message.fields
        loss = loss_from_json(fields.get("loss"))
        outputs: Any = fields.get("outputs")
        total: Any = fields.get("total_weight")
        own = float(self.weight.sum())
        if type(outputs) is not int or not 0 <= outputs <= 2**16:
            raise MessageError("outputs is not the number of scores per row, or 0 for one")
        if type(total) not in (int, float) or not own * (1 - 1e-12) <= total < float("inf"):
            raise MessageError("total_weight is not the weight of all rows of all owners")
        name = type(loss).__name__
        self.budgets.check(peer, "open", name)
        if self.policy.noise_multiplier and fields.get("intercept") is not False:
            # no bound of an intercept is known, by which noise in its slope would count
            raise AnswerRefused(
                "noise is for models without an intercept: fit without, or add a column of ones"
            )
        if self.policy.losses and name not in self.policy.losses:
            raise AnswerRefused(f"{name} is not among the losses of the policy")
        separable_form(loss, 1.0)
        shard = self._shard(loss, fields.get("classes"), float(total))
        account = self.budgets.account(peer) if self.policy.noise_multiplier else None
        content = json.dumps([fields.get("classes"), outputs, float(total)])
        tangents = partial(self._find_tangents, content)
        problem = OwnerProblem(shard, self.policy, account, self.span, tangents, self._column_sizes)
        token, run = secrets.token_hex(16), _Run(peer, problem, outputs)
        card = None
        if self.policy.min_owners:
            number = fields.get("number")
            if type(number) is not str or not 0 < len(number) <= 64:
                raise MessageError("masked answers need the number of the run")
            run.masks = MaskKey(self.name, self.identity, number)
            card = run.masks.card()
        self._runs[token] = run
        while len(self._runs) > self.MAX_RUNS:
            del self._runs[next(iter(self._runs))]
        heads = _checked_heads(fields.get("heads"))
        self.budgets.record(peer, "open", "answered", run=token[:8], loss=name, heads=heads)
        total_of_queries = problem.query_total(loss) if isinstance(loss, QueryLoss) else 0.0
        return OwnerMessage("answer", {"problem": token, "query_total": total_of_queries, "card": card})

    def _find_tangents(self, content: str, loss: Loss, shard: Shard) -> GuardedTangents:
        """Return the earlier answers to a loss of the same rows, in all runs of all coordinators."""
        key = f"{content}:{json.dumps(loss_to_json(loss), sort_keys=True, default=repr)}"
        if key not in self._tangents:
            bound = SlopeBound(loss, shard.y, shard.c, self._column_sizes)
            self._tangents[key] = GuardedTangents(self.span, partial(tangent_at, loss, shard), bound)
            while len(self._tangents) > self.MAX_RUNS:
                del self._tangents[next(iter(self._tangents))]
        return self._tangents[key]

    @cached_property
    def _sizes(self) -> NDArray:
        return column_sizes(self.matrix)

    def _column_sizes(self) -> NDArray:
        return self._sizes

    def _shard(self, loss: Loss, classes: Any, total: float) -> Shard:
        """Return the rows with labels as the loss takes them, and weights c_i = s_i / total."""
        labels, X = self._labels(loss, classes), self.matrix
        if loss.multi_output and X.sparse and X.by_columns:
            X = as_row_matrix(X)
        if isinstance(loss, QueryLoss):
            ends = query_ends(labels)
            assert ends is not None
            X = Sequences(as_row_matrix(X) if X.sparse and X.by_columns else X, ends)
        c = np.full(len(labels), 1.0 / total) if np.all(self.weight == 1) else self.weight / total
        return Shard(X, labels, c, ShardCache())

    def _labels(self, loss: Loss, classes: Any) -> NDArray:
        n = self.matrix.shape[0]
        if loss.task == "novelty":
            return np.zeros(n)
        if self.y is None:
            raise ValueError(f"{self.name} has no labels, which {type(loss).__name__} needs")
        if loss.task in ("classification", "multiclass"):
            if type(classes) is not list or not 2 <= len(classes) <= self.MAX_CLASSES:
                raise MessageError("classes is not a list of the classes of all owners")
            codes = {label: j for j, label in enumerate(classes)}
            try:
                numbers = np.array([codes[label] for label in self.y.tolist()], dtype=np.float64)
            except KeyError:
                raise ValueError(
                    f"{self.name} has rows of a class that is not in the list of classes"
                ) from None
            return 2 * numbers - 1 if loss.task == "classification" else numbers
        if self.y.dtype.kind not in "biuf":
            raise ValueError(f"the labels of {self.name} are no numbers, which {type(loss).__name__} needs")
        y = self.y.astype(np.float64)
        if not isinstance(loss, QueryLoss):
            loss.check_labels(y)
            return y
        if self.qid is None:
            raise ValueError(f"{self.name} has no query ids, which {type(loss).__name__} needs")
        return np.column_stack([y, self.qid.astype(np.float64)])

    def _claim(self, run: _Run, message: OwnerMessage) -> OwnerMessage:
        fields, sizes = message.fields, None
        lam: Any = fields.get("lam")
        if type(lam) not in (int, float) or not 0 < lam < float("inf"):
            raise MessageError("lam is not a finite number > 0")
        if "sizes" in message.arrays:
            sizes = finite_array(message.arrays, "sizes")
            p = self.matrix.shape[1]
            if sizes.shape != (p * max(run.outputs, 1),) or not (sizes > 0).all():
                raise MessageError("sizes is not one positive number per weight")
        claim = Claim(
            loss_from_json(fields.get("loss")), regularizer_from_json(fields.get("reg")), float(lam), sizes
        )
        value, error = run.problem.set_claim(claim, run.outputs)
        self.budgets.record(
            run.peer,
            "claim",
            "answered",
            run=fields["problem"][:8],
            lam=lam,
            loss=repr(claim.loss),
            reg=repr(claim.reg),
        )
        return run.answer_message(Answer((value, error)), fields["sequence"])

    def _peers(self, run: _Run, message: OwnerMessage) -> OwnerMessage:
        cards = message.fields.get("cards")
        if run.masks is None or type(cards) is not list or len(cards) > 1000:
            raise MessageError("the keys of the owners are no list, or answers are not masked")
        run.masks.set_peers(cards, self.policy.min_owners)
        return OwnerMessage("answer")

    def _map(self, run: _Run, message: OwnerMessage) -> OwnerMessage:
        linear_map = map_from_message(message, self.matrix.shape[1])
        if linear_map.columns != max(run.outputs, 1):
            raise MessageError("the linear map has another number of outputs than the run")
        run.problem.add_map(map_digest(linear_map), linear_map)
        return OwnerMessage("answer")


_HANDLERS: dict[str, Any] = {
    "describe": Owner._describe,
    "open": Owner._open,
    "claim": Owner._claim,
    "map": Owner._map,
    "peers": Owner._peers,
}
"""Requests that are not sums over rows."""


def _checked_heads(heads: Any) -> dict[str, list[Any]] | None:
    """Return the heads of the other owners' logs, for this one's; raise `MessageError` for other data."""
    if heads is None:
        return None
    valid = type(heads) is dict and len(heads) <= 1000
    valid = valid and all(len(name) <= 64 and type(h) is list and len(h) == 2 for name, h in heads.items())
    if not valid or not all(type(n) is int and type(x) is str and len(x) == 64 for n, x in heads.values()):
        raise MessageError("heads are not the number and the hash of the last line of each owner's log")
    return dict(heads)


def _checked_weight(weight: Any, n: int) -> NDArray:
    """Return the weights of rows, 1 by default."""
    if weight is None:
        return np.ones(n)
    s = np.asarray(weight, dtype=np.float64)
    if s.shape != (n,) or not np.isfinite(s).all() or (s < 0).any() or not s.any():
        raise ValueError(f"the weights are not {n} finite numbers >= 0, one of them above 0")
    return s

r"""The coordinator: an executor whose shards are the rows of owners, and the pooled risk over them.

.. math:: R(w) = \sum_k R_k(w), \qquad \text{each } R_k \text{ and its gradient computed by owner } k.

Owners round their answers. If each entry of a gradient may be wrong by e, a cut may be too high by
:math:`e \sum_j |w_j|`. At the minimizer :math:`\lambda\,\Omega(w) \le J(0)`, so that this is at most
:math:`\min_\tau\; \tau J(0) / \lambda + \tau\,\Omega^*(e / \tau)`, by which the cut is lowered.
"""

from __future__ import annotations

import math
import secrets
import tomllib
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from riskmin.core import NDArray, ShardStateLost, UnsupportedProblem
from riskmin.core.deadline import check
from riskmin.core.persist import parse_nested
from riskmin.driver import fingerprint
from riskmin.executors.base import Executor, sum_tuples
from riskmin.linear_maps.linear import MultiOutput, SingleOutput, Standardized
from riskmin.losses import get_loss
from riskmin.losses.base import Loss
from riskmin.losses.nondecomposable.by_query import QueryLoss
from riskmin.owners.client import OwnerConnection, OwnerRefused
from riskmin.owners.problem import separable_form
from riskmin.owners.risk import PooledRisk
from riskmin.owners.server import TlsFiles
from riskmin.owners.wire.answers import answer_result, unmasked_result
from riskmin.owners.wire.codec import OwnerMessage
from riskmin.owners.wire.operations import (
    NAME_OF,
    loss_to_json,
    map_digest,
    map_message,
    regularizer_to_json,
    write_arguments,
)
from riskmin.owners.wire.replies import (
    answer_shapes,
    check_answers,
    checked_description,
    checked_opening,
    checked_status,
)
from riskmin.problem.column_moments import ColumnMoments, Moments
from riskmin.problem.objective import Objective
from riskmin.problem.risk import with_intercept

RECORDS: dict[str, Any] = {"column_moments": ColumnMoments, "sampled_moments": Moments}
"""Operations whose results are records: None where an owner has none."""
SINGLE = {"cache_scores", "advance"}
"""Operations whose result is one number."""


class OwnersExecutor:
    """Connections to data owners, over whose rows models are fitted; no row leaves its owner.

    Parameters
    ----------
    owners : sequence of (str, str)
        Name and HOST:PORT of each owner, in the order in which sums are taken.
    ca, cert, key : path
        Files of the authority's certificate, and of the coordinator's certificate and key.
    patience : float
        Seconds for which an owner that does not answer is asked again, before the run pauses.

    Examples
    --------
    An owner in this process, and a coordinator that knows its address and certificates:

    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> from riskmin import LinearClassifier, OwnersExecutor
    >>> from riskmin.owners.owner import Owner
    >>> from riskmin.owners.server import OwnerServer, TlsFiles
    >>> from riskmin.owners.wire.certificates import make_authority
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> make_authority(folder, ["north", "coordinator"], hosts=["127.0.0.1"])
    >>> files = {name: folder / f"{name}.pem" for name in ("ca", "north", "coordinator")}
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((3000, 3))
    >>> owner = Owner(X, np.where(X[:, 0] + rng.standard_normal(3000) > 0, "yes", "no"), name="north")
    >>> server = OwnerServer(owner, TlsFiles(files["ca"], files["north"], folder / "north.key"))
    >>> owners = OwnersExecutor(
    ...     [("north", f"127.0.0.1:{server.port}")],
    ...     ca=files["ca"],
    ...     cert=files["coordinator"],
    ...     key=folder / "coordinator.key",
    ... )
    >>> model = owners.fit(LinearClassifier("logistic", alpha=1e-2))
    >>> model.gap_ <= model.tol * model.objective_, owners.certify(model).status
    (True, 'certified')
    >>> owners.close()
    >>> server.stop()
    """

    def __init__(
        self,
        owners: Sequence[tuple[str, str]],
        *,
        ca: str | Path,
        cert: str | Path,
        key: str | Path,
        patience: float = 60.0,
    ) -> None:
        if not owners or len({name for name, _ in owners}) < len(owners):
            raise ValueError("give at least one owner, and each of them once")
        tls = TlsFiles(ca, cert, key)
        self._begin([OwnerConnection(name, address, tls, patience) for name, address in owners])

    def _begin(self, connections: Sequence[Any]) -> None:
        self.connections = list(connections)
        self.descriptions = self._describe()
        self.widening = 0.0
        """By how much rounding and noise lowered the cuts of the last fit, at most, relative to J."""

    @classmethod
    def from_connections(cls, connections: Sequence[Any]) -> Self:
        """Return the executor over connections of another kind, such as `riskmin.owners.flower` makes."""
        executor = cls.__new__(cls)
        executor._begin(connections)
        return executor

    @classmethod
    def from_file(cls, path: str | Path, patience: float | None = None) -> Self:
        """Connect to the owners of a TOML file: ca, cert, key, and [[owners]] with name and address."""
        path = Path(path)
        try:
            data = parse_nested(tomllib.loads, path.read_text(encoding="utf-8"))
            owners = [(str(each["name"]), str(each["address"])) for each in data["owners"]]
            # paths are relative to the file
            files = {name: path.parent / str(data[name]) for name in ("ca", "cert", "key")}
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} does not name ca, cert, key, and [[owners]] with name and address ({error!r}): "
                "'riskmin owners init' writes such a file"
            ) from None
        found = float(data.get("patience", 60.0)) if patience is None else patience
        return cls(owners, **files, patience=found)

    def fit(self, model: Any) -> Any:
        """Fit an estimator to the rows of all owners, and return it; see `riskmin.owners.fit.fit_owners`."""
        from riskmin.estimators._common.fit import warn_unless_converged
        from riskmin.owners.fit import fit_owners

        fitted = fit_owners(model, self)
        warn_unless_converged(fitted)
        return fitted

    def certify(self, model: Any, **limits: Any) -> Any:
        """Verify the certificate of a model; see `riskmin.owners.fit.certify_owners`."""
        from riskmin.owners.fit import certify_owners

        return certify_owners(model, self, **limits)

    def __repr__(self) -> str:
        return f"OwnersExecutor({', '.join(c.name for c in self.connections)})"

    def close(self) -> None:
        """Close all connections."""
        for connection in self.connections:
            connection.close()

    def _describe(self) -> list[dict[str, Any]]:
        waiting = [(c.name, c.start(OwnerMessage("describe"))) for c in self.connections]
        found = [checked_description(name, wait()) for name, wait in waiting]
        first = found[0]
        for other in found[1:]:
            if other["columns"] != first["columns"] or other["feature_names"] != first["feature_names"]:
                raise ValueError(
                    f"{other['name']} has other columns than {first['name']}: give the same columns, in order"
                )
        return found

    @property
    def shape(self) -> tuple[int, int]:
        """Rows of all owners, and columns."""
        return sum(d["rows"] for d in self.descriptions), self.descriptions[0]["columns"]

    @property
    def classes(self) -> NDArray:
        """The classes of all owners, sorted; raises if an owner does not share them."""
        for each in self.descriptions:
            if each["classes"] is None:
                raise ValueError(f"{each['name']} does not share its classes: give them")
        found = {label for each in self.descriptions for label in each["classes"]}
        if len({type(label) is str for label in found}) > 1:
            raise ValueError(f"classes are numbers and texts ({self._listed_classes()}): write all alike")
        return np.array(sorted(found))

    def _listed_classes(self) -> str:
        """The classes of each owner, for error messages."""
        return "; ".join(f"{d['name']} has {str(d['classes'])[:200]}" for d in self.descriptions)

    def risk(
        self, loss: str | Loss, *, fit_intercept: bool = False, classes: Sequence[Any] | None = None
    ) -> PooledRisk:
        """Return the risk of all owners' rows.

        Parameters
        ----------
        loss : Loss or str
            A loss of riskmin that is a sum over rows or queries.
        fit_intercept : bool
        classes : sequence, optional
            The classes in order, for classification; by default those that the owners share.
        """
        resolved: Loss = get_loss(loss)
        separable_form(resolved, 1.0)
        listed = None
        if resolved.task in ("classification", "multiclass"):
            listed = list(self.classes.tolist() if classes is None else classes)
            if resolved.task == "classification" and len(listed) != 2:
                raise ValueError(
                    f"{type(resolved).__name__} takes two classes, not {len(listed)} "
                    f"({self._listed_classes()}): choose a loss of several classes such as softmax"
                )
        if resolved.multi_output_targets:
            raise ValueError(f"{type(resolved).__name__} has several targets per row, and owners have one")
        outputs = len(listed) if resolved.multi_output and listed is not None else 0
        linear_map: Any = MultiOutput(outputs) if outputs else SingleOutput()
        run = OwnersRun(self, resolved, listed, outputs, fit_intercept)
        risk = PooledRisk(run.loss, linear_map, run, linear_map.dim(self.shape[1]))
        pooled: Any = with_intercept(risk) if fit_intercept else risk
        return pooled  # type: ignore[no-any-return]

    def objective(self, risk: PooledRisk, reg: Any, lam: float) -> Objective:
        """Return J(w) = lam Omega(w) + R(w), and state it to the owners, who check that it falls."""
        objective = Objective(risk, reg, lam)
        run: Any = risk.executor
        run.claim(objective)
        return objective


class OwnersRun(Executor):
    """One problem at all owners: the executor of its risk."""

    can_gather, raises_values = False, True
    MAX_COARSE = 1000
    """Requests after the first gradient by earlier slopes, after which a run ends."""

    def __init__(
        self, owners: OwnersExecutor, loss: Loss, classes: list[Any] | None, outputs: int, intercept: bool
    ) -> None:
        self.owners, self.outputs = owners, outputs
        total = math.fsum(d["weight"] for d in owners.descriptions)
        self._open_message: dict[str, Any] = {
            "loss": loss_to_json(loss),
            "classes": classes,
            "outputs": outputs,
            "intercept": intercept,
            "total_weight": total,
            # owners write these into their logs, so that lines that are removed later are missed
            "heads": {d["name"]: d["head"] for d in owners.descriptions},
        }
        self.tokens, self.n_restarts = [""] * len(owners.connections), 0
        self.masked = any(d["min_owners"] for d in owners.descriptions)
        if self.masked and not all(d["min_owners"] for d in owners.descriptions):
            raise ValueError("some owners mask answers and others do not: set min_owners in all policies")
        self.sequence = 0
        opened = self._open_all()
        query_total = math.fsum(reply["query_total"] for reply in opened)
        self.loss = separable_form(loss, query_total) if isinstance(loss, QueryLoss) else loss
        self.maps: dict[str, OwnerMessage] = {}
        self.claimed: OwnerMessage | None = None
        self.value_at_zero = math.inf
        self.objective: Objective | None = None
        self._widening: dict[str, float] = {}
        self.largest_widening = 0.0
        self._digests: list[tuple[Any, str]] = []
        self.n_coarse, self.largest_error = 0, 0.0
        """Answers with errors beyond those of rounding, and the largest error."""
        self.first_coarse, self.last_error = 0, 0.0
        # values at the best intercepts of the last points, these intercepts, and the points
        self.minima: deque[tuple[float, float, NDArray]] = deque(maxlen=128)

    def __deepcopy__(self, memo: Any) -> OwnersRun:
        """Return the run itself: its state is at the owners."""
        return self

    @property
    def n_rounds(self) -> int:
        """The number of requests to the first owner so far."""
        return int(self.owners.connections[0].n_rounds)

    # ------------------------------------------------------------ runs
    def _open_all(self) -> list[dict[str, Any]]:
        """Open the run at all owners; if they mask their answers, let them exchange keys."""
        self._open_message["number"] = secrets.token_hex(16)
        opened = [self._open(k) for k in range(len(self.tokens))]
        if self.masked:
            cards = [reply["card"] for reply in opened]
            self._ask(range(len(self.tokens)), OwnerMessage("peers", {"cards": cards}))
        return opened

    def _open(self, k: int) -> dict[str, Any]:
        reply = self.owners.connections[k].ask(OwnerMessage("open", self._open_message))
        opened = checked_opening(self.owners.connections[k].name, reply, masked=self.masked)
        self.tokens[k] = opened["problem"]
        return opened

    def _reopen(self, k: int) -> None:
        """Open the run again at an owner that was restarted, unless its rows have changed."""
        connection, before = self.owners.connections[k], self.owners.descriptions[k]
        now = checked_description(connection.name, connection.ask(OwnerMessage("describe")))
        if now["fingerprint"] != before["fingerprint"]:
            raise ValueError(
                f"the rows of {connection.name} have changed since the run began: start it again"
            )
        self.n_restarts += 1
        if self.masked:  # masks of a new key cancel only if all owners have new ones
            self._open_all()
        else:
            self._open(k)
        if self.claimed is not None:
            self._ask(range(len(self.tokens)) if self.masked else [k], self.claimed)

    def claim(self, objective: Objective) -> None:
        """State the objective to all owners."""
        reg: Any = objective.reg.penalized_part
        arrays = {"sizes": reg.sizes} if reg.is_rescaled else {}
        fields = {
            "loss": loss_to_json(self.loss),
            "reg": regularizer_to_json(reg.reg if reg.is_rescaled else reg),
            "lam": float(objective.lam),
        }
        self.claimed, self.objective = OwnerMessage("claim", fields, arrays), objective
        replies = self._ask(range(len(self.tokens)), self.claimed)
        self.value_at_zero, _ = sum_tuples([result for result, _ in self._results("claim", replies)])

    # ------------------------------------------------------------ rounds
    def _ask(self, where: Sequence[int], message: OwnerMessage) -> list[OwnerMessage]:
        """Send a request to some owners at the same time, and return their replies in order."""
        self.sequence += 1
        sent = {"sequence": self.sequence}
        long = self.owners.shape[1] * max(self.outputs, 1) * 8 > 2**20
        waiting = [
            self.owners.connections[k].start(
                OwnerMessage(
                    message.kind, {**message.fields, **sent, "problem": self.tokens[k]}, message.arrays
                ),
                long,
            )
            for k in where
        ]
        # all replies are awaited before an error is raised: no owner is left in the middle of a request
        replies: list[OwnerMessage] = []
        errors: list[Exception] = []
        for wait in waiting:
            try:
                replies.append(wait())
            except Exception as error:  # whatever it is, it is raised below
                errors.append(error)
        if errors:
            raise errors[0]
        return replies

    def _request(self, name: str, args: tuple[Any, ...]) -> list[OwnerMessage]:
        """Return the answers of all owners; what an owner has lost is sent to it again."""
        fields, arrays = write_arguments(name, args, self._digest)
        message = OwnerMessage(name, fields, arrays)
        replies: dict[int, OwnerMessage] = {}
        scores_lost = False
        todo = list(range(len(self.tokens)))
        for _ in range(4):  # a run, its map, and its answer: what is still lost then, is lost again and again
            for k, reply in zip(todo, self._ask(todo, message), strict=True):
                replies[k] = checked_status(self.owners.connections[k].name, reply)
            todo = [k for k in todo if replies[k].kind == "lost" and replies[k].fields["what"] != "scores"]
            for k in todo:
                if replies[k].fields["what"] == "run":
                    self._reopen(k)
                    scores_lost = scores_lost or "key" in fields
                elif "map" in fields:
                    self._ask([k], self.maps[fields["map"]])
            # masks cancel in the answers to one request only: all owners are asked again
            todo = list(range(len(self.tokens))) if todo and self.masked else todo
            if not todo or (scores_lost and name != "cache_scores"):
                break
        if any(reply.kind == "lost" for reply in replies.values()):
            raise ShardStateLost("the scores of a point, since an owner was restarted")
        return [replies[k] for k in range(len(self.tokens))]

    def _digest(self, linear_map: Any) -> str:
        """Return the identifier of a linear map, whose message is kept for owners that do not know it."""
        for known, digest in self._digests:
            if known is linear_map:
                return digest
        digest = map_digest(linear_map)
        self.maps.setdefault(digest, map_message(linear_map))
        # hashing the arrays of a map takes longer than a request: the last maps are recognized as objects
        self._digests = [(linear_map, digest), *self._digests[:7]]
        return digest

    def map(self, f: Callable[..., Any], *args: Any, each: Sequence[Any] = ()) -> list[Any]:
        """Return the answers of all owners to a function of their rows; raise if it is none of the table."""
        return [result for result, _ in self._answers(f, args, each)]

    def _answers(
        self, f: Callable[..., Any], args: tuple[Any, ...], each: Sequence[Any]
    ) -> list[tuple[Any, float]]:
        check()
        if f is fingerprint.shard_hash:
            return [(int(d["fingerprint"][:16], 16), 0.0) for d in self.owners.descriptions]
        if f is fingerprint.shard_rows:
            return [(d["rows"], 0.0) for d in self.owners.descriptions]
        name = NAME_OF.get(f)
        if name is None or len(each):
            raise UnsupportedProblem(
                "this step needs rows, labels or scores of single rows, which owners do not send: leave the "
                "solver out, or choose lbfgs, owlqn or bundle"
            )
        noise = any(d["noise"] for d in self.owners.descriptions)
        if self.n_coarse and self.n_rounds - self.first_coarse > self.MAX_COARSE and not noise:
            raise OwnerRefused(self.stall_note())
        return self._results(name, self._request(name, args), self._dim(args))

    def _dim(self, args: tuple[Any, ...]) -> int:
        """Return the length of w for the linear map among the arguments."""
        maps = (each.dim(self.owners.shape[1]) for each in args if hasattr(each, "without_intercepts"))
        return int(next(maps, 0))

    def _results(self, name: str, replies: list[OwnerMessage], dim: int = 0) -> list[tuple[Any, float]]:
        """Return the results of all owners, or their sum if they are masked."""
        names = [connection.name for connection in self.owners.connections]
        shapes = answer_shapes(self.owners.shape[1], max(self.outputs, 1), dim)
        check_answers(name, names, replies, shapes, masked=self.masked)
        found = [unmasked_result(replies)] if self.masked else [answer_result(reply) for reply in replies]
        return [self._result(name, *each) for each in found]

    def _result(self, name: str, result: tuple[Any, ...], error: float) -> tuple[Any, float]:
        if name in RECORDS:
            return (RECORDS[name](*result) if result else None), error
        return (result[0] if name in SINGLE else result), error

    def sum(self, f: Callable[..., tuple[Any, ...]], *args: Any, each: Sequence[Any] = ()) -> tuple[Any, ...]:
        """Return the sum of the owners' answers, in order; cuts are lowered by errors of rounding."""
        answers = self._answers(f, args, each)
        total = sum_tuples([result for result, _ in answers])
        error = math.fsum(error for _, error in answers)
        if NAME_OF[f] != "pull_back":
            return total
        value, grad, rounding, offset = total
        self.last_error = rounding
        if rounding > self.rounding_error():
            self.first_coarse = self.first_coarse or self.n_rounds
            self.n_coarse, self.largest_error = self.n_coarse + 1, max(self.largest_error, rounding)
        if not error:
            return total
        widening = error * self._error_factor(args[2])
        self.largest_widening = max(self.largest_widening, widening)
        return value, grad, rounding + widening, offset

    # ------------------------------------------------------------ errors of rounding
    def rounding_error(self) -> float:
        """Return a bound of the errors of values by the digits that owners round to."""
        digits = min(d["digits"] or 9 for d in self.owners.descriptions)
        return 2 * 10.0**-digits * self.value_at_zero

    def stall_note(self) -> str:
        """Return that owners protect few rows or add noise, if they did, and what to change."""
        if not self.n_coarse:
            return ""
        size = f"errors up to {self.largest_error / self.value_at_zero:.1g} of the objective at w = 0"
        if any(d["noise"] for d in self.owners.descriptions):
            return f"the owners' noise hides smaller gaps ({size}): raise tol, or lower noise_multiplier"
        rows = min(self.owners.descriptions, key=lambda d: int(d["rows"]))
        return (
            f"{self.n_coarse} answers would have exposed rows, which kept their earlier slopes, with {size}: "
            f"the {rows['rows']:,} rows of {rows['name']} are too few to hide behind each other in this "
            "fit, so raise tol, choose a smooth loss such as smoothed_hinge or logistic, leave the intercept "
            "out, or have the owners add rows or raise max_leverage in their policies"
        )

    def _error_factor(self, linear_map: Any) -> float:
        """Return by how much errors of one in the gradient may raise a cut where the minimizer can be."""
        digest = self._digest(linear_map)
        if digest not in self._widening:
            self._widening[digest] = self._largest_sum(linear_map)
        return self._widening[digest]

    def _largest_sum(self, linear_map: Any) -> float:
        """Return a bound of sum_j |v_j| over the weights v with lam Omega <= J(0)."""
        assert self.objective is not None
        inner = linear_map.without_intercepts
        dim = inner.dim(self.owners.shape[1])
        # v = w / s: an error in the slope of v is one of 1 / s in that of w
        scaled = isinstance(inner, Standardized)
        e = 1.0 / np.repeat(inner.scale, dim // len(inner.scale)) if scaled else np.ones(dim)
        reg, radius = self.objective.reg.penalized_part, self.value_at_zero / self.objective.lam
        with np.errstate(over="ignore"):
            # within a factor of two of the best tau
            taus = (math.ldexp(float(e.max()), k) for k in range(-80, 81))
            return min(tau * (radius + float(reg.conjugate(e / tau))) for tau in taus)

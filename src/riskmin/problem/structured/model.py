"""`Structured`: a user-defined model of structured outputs, as a loss."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from riskmin.core import Array, Shard, UnsupportedProblem, has_method
from riskmin.core.messages import check_rescaling, is_whole_number
from riskmin.executors import Serial, as_backend
from riskmin.losses.base import Loss
from riskmin.problem.linear_risk import check_weights
from riskmin.problem.structured.structured_risk import MarginRisk, OpenedExamples, PartitionRisk

REQUIRED_METHODS = {
    "max_margin": ("joint_feature", "cost", "loss_augmented_argmax"),
    "log": ("joint_feature", "log_partition"),
}
"""The methods that a model needs, by the loss."""
RESCALED_METHODS = ("rescaled_argmax", "best_of_each_cost")
"""The methods of which a model needs one if margins are rescaled, in place of the last one above."""


@dataclass(frozen=True, eq=False)
class Structured(Loss):
    r"""The loss of a user-defined model whose outputs have any structure: sequences, matchings, images.

    The model defines the joint features of an input and an output, :math:`\phi(x, y)`, and finds the best
    output. With ``joint_feature``, ``cost`` and ``loss_augmented_argmax`` it is a margin loss,

    .. math:: l(w) = \max_{y'}\; \Delta(y, y') + w^\top (\phi(x, y') - \phi(x, y)),

    with `rescaled` and one of the methods ``rescaled_argmax`` and ``best_of_each_cost`` the same with a
    scaled margin, :math:`\max_{y'}\; \Delta + \Delta^\beta\, w^\top (\phi(x, y') - \phi(x, y))`, and with
    ``joint_feature`` and ``log_partition`` it is the loss of a conditional random field,

    .. math:: l(w) = \log \sum_{y'} \exp(w^\top \phi(x, y')) - w^\top \phi(x, y).

    Parameters
    ----------
    model : object
        With these attributes:

        - ``dim``: the length of w;
        - ``joint_feature(x, y)``: an array of that length, a sparse row, or a pair (indices, values);
        - ``cost(y, other)``: the cost of predicting `other` if y is correct, ``cost(y, y) == 0``;
        - ``loss_augmented_argmax(x, y, w)``: the output with the largest
          ``cost(y, other) + w @ joint_feature(x, other)``, exactly;
        - ``rescaled_argmax(x, y, w, beta)``: the output with the largest ``cost(y, other) + cost(y, other)
          ** beta * w @ (joint_feature(x, other) - joint_feature(x, y))``, exactly;
        - ``best_of_each_cost(x, y, w)``: for every cost that outputs have, one of the outputs of that cost
          with the largest ``w @ joint_feature(x, other)``; then riskmin takes the maximum over them;
        - ``log_partition(x, w)``: the logarithm of the sum of ``exp(w @ joint_feature(x, other))`` over all
          outputs, and its gradient;
        - ``outputs(x)``, optional: all outputs of x, to check the above on small examples;
        - ``project(w)``, optional: the nearest w for which the above are exact, for checks at random w;
        - ``argmax(x, w)``, for `predict`.
    loss : "max_margin", "log" or None
        None for the one whose methods the model has.
    rescaled : bool or float
        Whether the cost scales the margin (slack rescaling) or is added to it (margin rescaling); or
        :math:`\beta`, of which True and False are 1 and 0. Costs must be nonnegative.

    Notes
    -----
    The certificate needs an exact maximum: an argmax that misses the best output makes the risk too small. So
    every output that it finds is compared with all outputs found before, at this and at other w; for a few
    examples with at most 500 `outputs`, with all outputs. If it is ever worse, a ValueError names the
    example, and no certificate is returned.

    Examples
    --------
    A matching assigns a different column to each row of a score matrix; here w weighs two such matrices.

    >>> import numpy as np
    >>> from scipy.optimize import linear_sum_assignment
    >>> from riskmin import L2, Objective, Structured, minimize
    >>> class Matching:
    ...     dim = 2
    ...     def joint_feature(self, x, y):
    ...         return x[:, np.arange(len(y)), y].sum(axis=1)
    ...     def cost(self, y, other):
    ...         return float(np.mean(y != other))
    ...     def loss_augmented_argmax(self, x, y, w):
    ...         wrong = 1 - np.eye(len(y))[y]
    ...         return linear_sum_assignment(np.tensordot(w, x, 1) + wrong / len(y), maximize=True)[1]
    ...     def argmax(self, x, w):
    ...         return linear_sum_assignment(np.tensordot(w, x, 1), maximize=True)[1]
    >>> rng = np.random.default_rng(0)
    >>> ys = [rng.permutation(5) for _ in range(20)]
    >>> xs = [np.array([np.eye(5)[y], np.zeros((5, 5))]) + rng.standard_normal((2, 5, 5)) for y in ys]
    >>> loss = Structured(Matching())
    >>> result = minimize(Objective(loss.risk(xs, ys), L2(), lam=0.01))
    >>> result.status, bool(result.w[0] > abs(result.w[1]))
    ('converged', True)
    >>> loss.predict(xs[:1], result.w)[0].shape
    (5,)
    """

    model: Any
    loss: str | None = None
    rescaled: bool | float = False

    def __post_init__(self) -> None:
        check_rescaling(self.rescaled)
        available = [kind for kind, names in self._required().items() if not self._missing(names)]
        if self.loss is not None and self.loss not in REQUIRED_METHODS:
            raise ValueError(
                f"loss={self.loss!r}: give 'max_margin' or 'log', or None for what the model has"
            )
        if self.rescaled and self.loss == "log":
            raise ValueError("rescaled is for margins: leave it False with loss='log'")
        if self.loss is None and not self.rescaled and len(available) != 1:
            raise TypeError(self._ambiguity(len(available)))
        # without a given loss, the model has the methods of exactly one
        kind = self.loss or (available[0] if available else "max_margin")
        if missing := self._missing(self._required()[kind]):
            needs = ", ".join(self._required()[kind]) + (
                f", or {RESCALED_METHODS[1]} for the last" if self.rescaled else ""
            )
            raise TypeError(f"{self._name()} has no method {missing[0]}: {kind} needs {needs}")
        object.__setattr__(self, "loss", kind)
        object.__setattr__(self, "smooth", kind == "log")
        dim = getattr(self.model, "dim", None)
        if not is_whole_number(dim, at_least=1):
            raise ValueError(f"dim of {self._name()} is {dim!r}: give the length of w, a whole number >= 1")

    @property
    def components(self) -> tuple[Any, ...]:
        """The loss, and the model."""
        return self, self.model

    def _required(self) -> dict[str, tuple[str, ...]]:
        """The methods that the model needs, by the loss; with rescaled margins there is only one loss."""
        if not self.rescaled:
            return REQUIRED_METHODS
        # the first of the two that the model has
        search = next((n for n in RESCALED_METHODS if not self._missing([n])), RESCALED_METHODS[0])
        return {"max_margin": (*REQUIRED_METHODS["max_margin"][:-1], search)}

    def _missing(self, names: Sequence[str]) -> list[str]:
        """The methods of this list that the model does not have."""
        return [name for name in names if not has_method(self.model, name)]

    def _name(self) -> str:
        return self.model.__name__ if isinstance(self.model, type) else type(self.model).__name__

    def _ambiguity(self, n_losses: int) -> str:
        """The message for a model with the methods of no loss, or of both."""
        if n_losses:
            return f"{self._name()} has methods for both losses: give loss='max_margin' or loss='log'"
        first, second = (", ".join(names) for names in REQUIRED_METHODS.values())
        return f"{self._name()} lacks methods: a model needs {first}; or {second}"

    def __repr__(self) -> str:
        kind: Any = type(self.model)
        default_repr = kind.__repr__ is object.__repr__  # shows an address, which differs between processes
        model = f"{kind.__qualname__}(dim={self.model.dim})" if default_repr else repr(self.model)
        rescaled = f", rescaled={self.rescaled!r}" if self.rescaled else ""
        return f"Structured({model}, loss={self.loss!r}{rescaled})"

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Raise: the outputs of a model have no scores, so that its risk is a function of w."""
        raise UnsupportedProblem(f"{self!r} is no function of scores: use its risk(xs, ys)")

    def predict(self, xs: Iterable[Any], w: Array) -> list[Any]:
        """The best output of each x, by the model's method ``argmax(x, w)``."""
        if self._missing(["argmax"]):
            raise TypeError(f"{self._name()} has no method argmax(x, w), which finds the best output of an x")
        return [self.model.argmax(x, w) for x in xs]

    def risk(
        self,
        xs: Iterable[Any],
        ys: Iterable[Any],
        *,
        sample_weight: Any = None,
        executor: Any = None,
        n_shards: int | None = None,
        check: bool = True,
        memory: float = 2**30,
    ) -> MarginRisk | PartitionRisk:
        r"""The risk :math:`R(w) = \sum_i c_i\, l_i(w)` of examples, with weights c of sum one.

        Parameters
        ----------
        xs, ys : sequences
            Inputs and their correct outputs: any objects that the model accepts.
        sample_weight : (n,) array, optional
        executor : Backend, optional
            ``Processes`` distributes the examples over worker processes, with a copy of the model in each;
            both must be picklable. `Serial` by default.
        n_shards : int, optional
            The number of shards of examples; by default the number of examples, but at most 8.
        check : bool
            Check the model at a few random points first.
        memory : float
            Memory for the cached features of outputs, in bytes.

        Returns
        -------
        MarginRisk or PartitionRisk
            An oracle for `Objective`.
        """
        xs, ys = list(xs), list(ys)
        if len(xs) != len(ys) or not xs:
            raise ValueError(f"there are {len(xs)} inputs and {len(ys)} outputs: give one output per input")
        c = check_weights(sample_weight, len(xs))
        # examples of weight zero are never sent
        (weighted,) = np.nonzero(c)
        count = _shard_count(n_shards, len(weighted))
        # the indices of the examples of each shard: contiguous, of about equal number
        parts = [weighted[i:j] for i, j in pairwise(np.linspace(0, len(weighted), count + 1).astype(int))]
        backend = as_backend(executor or Serial)
        # checked on the first example, before workers are started
        if not backend.is_local:
            self._check_pickles(xs[weighted[0]], ys[weighted[0]])
        lists: list[Any] = [[[list_[i] for i in part] for part in parts] for list_ in (xs, ys)]
        shards = [Shard(x, y, c[part], {}) for x, y, part in zip(*lists, parts, strict=True)]
        holder = backend.place(shards)
        dim = int(self.model.dim)
        settings = memory / len(weighted), float(self.rescaled), self._required()["max_margin"][-1]
        examples = OpenedExamples(holder, (self.model, dim, self.smooth, settings), parts)
        self._send_model(examples, check, holder.is_local)
        return (PartitionRisk if self.smooth else MarginRisk)(self, examples, dim)

    def _check_pickles(self, x: Any, y: Any) -> None:
        """Raise a TypeError if the model or the first example cannot be sent to another process."""
        for thing, name in (
            (self.model, f"the model {self._name()}"),
            (x, "the first input"),
            (y, "its output"),
        ):
            try:
                pickle.dumps(thing)
            except Exception as error:
                raise TypeError(
                    f"{name} cannot be sent to other processes ({error}): use Threads, or define it in a "
                    "module and keep open files, locks and lambdas out of it"
                ) from None

    def _send_model(self, examples: OpenedExamples, check: bool, local: bool) -> None:
        """Send the model to the shards of examples, and check both there."""
        try:
            examples.open(check)
        except AttributeError as error:
            # the message of pickle for a class that the other process cannot import
            if local or not str(error).startswith("Can't get attribute"):
                raise
            raise TypeError(
                f"the model {self._name()} cannot be found by other processes: define it in a module, "
                "not in a notebook or an interactive session"
            ) from None


def _shard_count(n_shards: int | None, n: int) -> int:
    """The requested number of shards, or the default, at most 8."""
    if n_shards is None:
        return min(8, n)
    if not is_whole_number(n_shards, at_least=1) or n_shards > n:
        raise ValueError(
            f"n_shards={n_shards!r}, but there are {n} examples: give a whole number from 1 to {n}"
        )
    return int(n_shards)

"""The operations that an owner answers, and how their arguments are written in messages.

Each is a function of a shard whose result is a sum over rows. A function that is not in the table, such as
one that returns scores or labels, has no message: an executor of owners refuses it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.core.registry import from_dict, to_dict
from riskmin.linear_maps.linear import MultiOutput, SingleOutput, Standardized, WithIntercept
from riskmin.losses import LOSSES
from riskmin.losses.base import Loss, OffsetSmoothed
from riskmin.losses.nondecomposable.by_query import QuerySeparable
from riskmin.owners.wire.codec import MessageError, OwnerMessage, encode
from riskmin.problem import column_moments, rounding, shard_ops
from riskmin.problem import explicit_intercepts as explicit
from riskmin.regularizers import L1, L2, Box, Elastic
from riskmin.solvers.bundle import stored_cuts

LOSS_CLASSES = {**LOSSES.own_classes, "OffsetSmoothed": OffsetSmoothed, "QuerySeparable": QuerySeparable}
REGULARIZER_CLASSES: dict[str, Any] = {"L1": L1, "L2": L2, "Elastic": Elastic, "Box": Box}
"""Regularizers that an owner can evaluate by their names; those of positive weights included."""


def loss_to_json(loss: Loss) -> dict[str, Any]:
    """Return a loss as a name and parameters; raise if it is not one of riskmin's."""
    data = to_dict(loss, LOSS_CLASSES)
    if ":" in data["name"]:
        raise ValueError(
            f"{type(loss).__name__} is no loss of riskmin, and owners run no code of others: choose one of "
            "'riskmin losses'"
        )
    return data


def loss_from_json(data: Any) -> Loss:
    """Return the loss of a name and parameters; raise `MessageError` for any other data."""
    loss: Loss = _object_from_json(data, LOSS_CLASSES, "loss")
    return loss


def _object_from_json(data: Any, classes: Mapping[str, Any], category: str) -> Any:
    def find(name: Any) -> Any:
        if type(name) is not str or name not in classes:
            raise MessageError(f"{name!r} is no {category} that an owner knows")
        return classes[name]

    try:
        return from_dict(_plain(data, 3), find)
    except MessageError:
        raise
    except Exception as error:  # parameters of wrong types fail in many ways
        raise MessageError(f"the {category} has wrong parameters: {error}") from None


def _plain(data: Any, depth: int) -> dict[str, Any]:
    """Return {name, params} with params of plain numbers, texts, lists of numbers, and nested objects."""
    if (
        type(data) is not dict
        or set(data) != {"name", "params"}
        or type(data["params"]) is not dict
        or not depth
    ):
        raise MessageError("a loss or regularizer is not written as a name and parameters")
    params: dict[str, Any] = {}
    for name, value in data["params"].items():
        if type(value) is dict:
            params[name] = _plain(value, depth - 1)
        elif type(value) in (int, float, str, bool, type(None)):
            params[name] = value
        elif type(value) is list and np.asarray(value).dtype.kind in "if":
            params[name] = np.asarray(value, dtype=np.float64)
        else:
            raise MessageError(f"the parameter {name!r} is neither a number, a text nor an array")
    return {"name": data["name"], "params": params}


def regularizer_to_json(reg: Any) -> dict[str, Any]:
    """Return a regularizer as a name and parameters."""
    data = to_dict(reg, REGULARIZER_CLASSES)
    if data["name"] not in REGULARIZER_CLASSES:
        raise ValueError(
            f"{reg!r} is not known to owners, who check that the claimed objective falls: "
            "choose l1, l2 or elastic"
        )
    return data


def regularizer_from_json(data: Any) -> Any:
    """Return the regularizer of a name and parameters."""
    return _object_from_json(data, REGULARIZER_CLASSES, "regularizer")


# ---------------------------------------------------------------- linear maps
def map_message(linear_map: Any) -> OwnerMessage:
    """Return the message that defines a linear map; its arrays are the shift and scale of columns."""
    with_intercept = isinstance(linear_map, WithIntercept)
    inner = linear_map.inner if with_intercept else linear_map
    arrays = {}
    if isinstance(inner, Standardized):
        arrays, inner = {"shift": inner.shift, "scale": inner.scale}, inner.inner
    if not isinstance(inner, SingleOutput | MultiOutput):
        raise ValueError(f"{type(inner).__name__} is not known to owners: choose another loss")
    outputs = inner.k if isinstance(inner, MultiOutput) else 0
    return OwnerMessage("map", {"outputs": outputs, "intercepts": with_intercept}, arrays)


def map_from_message(message: OwnerMessage, p: int) -> Any:
    """Return the linear map that a message defines, for rows of p columns."""
    outputs, intercepts = message.fields.get("outputs"), message.fields.get("intercepts")
    if type(outputs) is not int or not 0 <= outputs <= 2**16 or type(intercepts) is not bool:
        raise MessageError("a linear map needs the number of outputs, and whether it has intercepts")
    inner: Any = MultiOutput(outputs) if outputs else SingleOutput()
    if message.arrays:
        shift, scale = (finite_array(message.arrays, name, (p,)) for name in ("shift", "scale"))
        if not (scale > 0).all():
            raise MessageError("the scale of a linear map is not positive")
        inner = Standardized(inner, shift, scale)
    if intercepts and not outputs:
        raise MessageError("one intercept is minimized out, and is no part of a linear map")
    return WithIntercept(inner) if intercepts else inner


def map_digest(linear_map: Any) -> str:
    """Return the identifier of a linear map in later messages: it is sent once."""
    return hashlib.sha256(encode(map_message(linear_map))).hexdigest()[:32]


def finite_array(arrays: Mapping[str, NDArray], name: str, shape: tuple[int, ...] | None = None) -> NDArray:
    """Return an array of floats without NaN and infinity, of a given shape; raise `MessageError` else."""
    a = arrays.get(name)
    if a is None or a.dtype.kind != "f" or (shape is not None and a.shape != shape):
        raise MessageError(f"the array {name!r} is missing or has another shape or type than expected")
    if not np.isfinite(a).all():
        raise MessageError(f"the array {name!r} holds NaN or infinity")
    return a


# ---------------------------------------------------------------- arguments
@dataclass(frozen=True)
class Operation:
    """An operation of the table.

    Parameters
    ----------
    function : callable
        The function of a shard.
    arguments : tuple of str
        The kinds of its arguments, by which they are named. A "point" is at the owner, and is not sent again.
    """

    function: Callable[..., Any]
    arguments: tuple[str, ...]


OPERATIONS: dict[str, Operation] = {
    "cache_scores": Operation(shard_ops.cache_scores, ("key", "live", "map", "w")),
    "set_direction": Operation(shard_ops.set_direction, ("key", "map", "w")),
    "advance": Operation(shard_ops.advance, ("key", "map", "t")),
    "shift_scores": Operation(shard_ops.shift_scores, ("key", "shift")),
    "value_slopes": Operation(shard_ops.value_slopes, ("key", "loss", "map", "t", "b")),
    "value_grad_of_shift": Operation(shard_ops.value_grad_of_shift, ("key", "loss", "map", "shift")),
    "pull_back": Operation(shard_ops.pull_back, ("key", "loss", "map", "point", "t", "mix")),
    "hessian_product": Operation(shard_ops.hessian_product_at, ("key", "loss", "map", "w", "b")),
    "column_moments": Operation(column_moments.shard_moments, ("flag",)),
    "sampled_moments": Operation(column_moments.shard_sample_moments, ("t",)),
    "class_sums": Operation(explicit.class_sums, ("map",)),
    "score_moments": Operation(stored_cuts.score_moments, ("map", "w")),
    "term_sizes": Operation(rounding.shard_sizes, ("loss", "map", "w", "b", "t")),
}
"""All answers that an owner gives about its rows, by name."""
NAME_OF = {operation.function: name for name, operation in OPERATIONS.items()}


def write_arguments(
    name: str, args: tuple[Any, ...], digest: Callable[[Any], str] = map_digest
) -> tuple[dict[str, Any], dict[str, NDArray]]:
    """Return the fields and arrays of a request; `digest` identifies a linear map."""
    fields: dict[str, Any] = {}
    arrays: dict[str, NDArray] = {}
    for kind, value in zip(OPERATIONS[name].arguments, args, strict=True):
        if kind == "point":
            continue
        if kind in ("w", "shift"):
            arrays[kind] = np.asarray(value, dtype=np.float64)
        elif kind == "map":
            fields["map"] = digest(value)
        elif kind == "loss":
            fields["loss"] = loss_to_json(value)
        elif kind == "live":
            fields["live"] = sorted(value)
        elif kind == "mix":
            fields["mix"] = [[float(b), float(m)] for b, m in value]
        else:
            fields[kind] = value if isinstance(value, bool | int) else float(value)
    return fields, arrays


def read_arguments(name: str, message: OwnerMessage, maps: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked arguments of a request by kind; raise `MessageError` if one is not as declared."""
    sent = [kind for kind in OPERATIONS[name].arguments if kind != "point"]
    if set(message.fields) - {"problem", "sequence"} | set(message.arrays) != set(sent):
        raise MessageError(f"{name} takes {', '.join(sent)}, and no other arguments")
    return {kind: _read(kind, message, maps) for kind in sent}


def _read(kind: str, message: OwnerMessage, maps: Mapping[str, Any]) -> Any:
    if kind in ("w", "shift"):
        return finite_array(message.arrays, kind)
    value = message.fields[kind]
    if kind == "map":
        if type(value) is not str or value not in maps:
            raise UnknownMap("the linear map was not sent before")
        return maps[value]
    if kind == "loss":
        return loss_from_json(value)
    if kind == "flag" and type(value) is bool:
        return value
    if kind == "key" and type(value) is int and 0 <= value < 2**63:
        return value
    if kind in ("t", "b") and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if kind == "live" and type(value) is list and len(value) <= 2**12 and all(type(k) is int for k in value):
        return set(value)
    if kind == "mix" and type(value) is list and 1 <= len(value) <= 2:
        return _read_mixture(value)
    raise MessageError(f"the argument {kind} is not as declared")


def _read_mixture(value: list[Any]) -> list[tuple[float, float]]:
    """Return a mixture of tangents, (b_k, m_k) with m_k >= 0 of sum one."""
    for pair in value:
        if type(pair) is not list or len(pair) != 2 or not all(type(x) in (int, float) for x in pair):
            raise MessageError("a mixture is not a list of pairs of numbers")
    mix = [(float(b), float(m)) for b, m in value]
    # negative shares would return differences of tangents, in which most rows cancel
    if not all(math.isfinite(b) and m >= 0 for b, m in mix) or abs(sum(m for _, m in mix) - 1) > 1e-9:
        raise MessageError("the shares of a mixture are not positive, or their sum is not one")
    return mix


class UnknownMap(MessageError):
    """Raised if a request names a linear map that this process has not got: the client sends it again."""

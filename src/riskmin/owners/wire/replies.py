"""Checks of owners' replies: a reply that is not as declared is refused, and its owner named."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from riskmin.owners.wire.codec import MessageError, OwnerMessage


def _refuse(name: str, what: str) -> NoReturn:
    raise MessageError(f"the reply of {name} {what}: it runs another version, or does not tell the truth")


def _is_count(x: Any) -> bool:
    return type(x) is int and 0 <= x < 2**53


def _is_number(x: Any) -> bool:
    return type(x) in (int, float) and math.isfinite(x)


def _is_text(x: Any) -> bool:
    return type(x) is str and 0 < len(x) <= 4096


def _is_labels(x: Any) -> bool:
    if x is None:
        return True
    return type(x) is list and (
        all(_is_text(v) for v in x) or all(type(v) is bool or _is_number(v) for v in x)
    )


def _is_names(x: Any) -> bool:
    return x is None or (type(x) is list and all(type(v) is str for v in x))


def _is_head(x: Any) -> bool:
    return type(x) is list and len(x) == 2 and _is_count(x[0]) and type(x[1]) is str and len(x[1]) == 64


def _is_flag(x: Any) -> bool:
    return type(x) is bool


DESCRIPTION: dict[str, Callable[[Any], bool]] = {
    "name": _is_text,
    "rows": lambda x: _is_count(x) and x > 0,
    "columns": lambda x: _is_count(x) and x > 0,
    "weight": lambda x: _is_number(x) and x > 0,
    "weighted": _is_flag,
    "labels": _is_flag,
    "classes": _is_labels,
    "queries": _is_count,
    "feature_names": _is_names,
    "fingerprint": lambda x: type(x) is str and len(x) == 64 and set(x) <= set("0123456789abcdef"),
    "digits": lambda x: _is_count(x) and x <= 15,
    "min_owners": _is_count,
    "noise": _is_flag,
    "head": _is_head,
}
"""What an owner tells about itself, and how each entry is checked."""


def _checked_fields(
    name: str, reply: OwnerMessage, checks: dict[str, Callable[[Any], bool]]
) -> dict[str, Any]:
    checked_status(name, reply)
    for field, valid in checks.items():
        if field not in reply.fields or not valid(reply.fields[field]):
            _refuse(name, f"has no valid {field!r}")
    return {field: reply.fields[field] for field in checks}


def checked_status(name: str, reply: OwnerMessage) -> OwnerMessage:
    """Return a reply that is an answer, or tells what an owner has lost."""
    lost = reply.kind == "lost" and reply.fields.get("what") in ("run", "map", "scores")
    if reply.kind != "answer" and not lost:
        _refuse(name, "is no answer")
    return reply


def checked_description(name: str, reply: OwnerMessage) -> dict[str, Any]:
    """Return what an owner tells about itself."""
    found = _checked_fields(name, reply, DESCRIPTION)
    if found["feature_names"] is not None and len(found["feature_names"]) != found["columns"]:
        _refuse(name, "names more or fewer columns than it has")
    if found["name"] != name:
        _refuse(name, f"is by the name of {found['name'][:64]!r}")
    return found


def checked_opening(name: str, reply: OwnerMessage, *, masked: bool) -> dict[str, Any]:
    """Return the number of a run, and what an owner adds to it."""
    card = (lambda x: type(x) is dict) if masked else (lambda x: x is None)
    checks = {"problem": _is_text, "query_total": lambda x: _is_number(x) and x >= 0, "card": card}
    return _checked_fields(name, reply, checks)


SHAPES = {
    "claim": "ss",
    "cache_scores": "s",
    "set_direction": "",
    "advance": "s",
    "shift_scores": "",
    "value_slopes": "sss",
    "value_grad_of_shift": "sk",
    "pull_back": "swss",
    "hessian_product": "w",
    "column_moments": "spppp",
    "sampled_moments": "spp",
    "class_sums": "mk",
    "score_moments": "kk",
    "term_sizes": "ws",
}
"""The results of operations: numbers (s), arrays per column (p), output (k), both (m), and weight (w)."""


def answer_shapes(p: int, k: int, dim: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of arrays by code, for p columns, k outputs and weights of length dim."""
    return {"p": (p,), "k": (k,), "m": (p, k), "w": (dim,)}


def check_answers(
    operation: str,
    names: list[str],
    replies: list[OwnerMessage],
    shapes: dict[str, tuple[int, ...]],
    *,
    masked: bool,
) -> None:
    """Raise `MessageError` with the owner's name unless all replies are results of an operation."""
    for name, reply in zip(names, replies, strict=True):
        layout = reply.fields.get("layout")
        codes = SHAPES[operation]
        expected = "".join("s" if code == "s" else "a" for code in codes)
        # an owner without moments has an empty result
        if layout != expected and not (layout == "" and operation.endswith("moments")):
            _refuse(name, "has another layout than its operation")
        if masked:
            _check_masked(name, reply, replies[0])
        else:
            _check_arrays(name, reply, codes if layout else "", shapes)


def _check_arrays(name: str, reply: OwnerMessage, codes: str, shapes: dict[str, tuple[int, ...]]) -> None:
    error, scalars = reply.fields.get("gradient_error"), reply.arrays.get("scalars")
    if not _is_number(error) or error < 0:  # type: ignore[operator]
        _refuse(name, "has no valid error of its gradient")
    n = codes.count("s")
    if scalars is None or scalars.shape != (n,) or scalars.dtype.kind != "f" or np.isnan(scalars).any():
        _refuse(name, "has other numbers than its operation")
    for position, code in enumerate(codes):
        if code == "s":
            continue
        a = reply.arrays.get(str(position))
        if a is None or a.shape != shapes[code] or a.dtype.kind != "f" or not np.isfinite(a).all():
            _refuse(name, "has an array that is not one finite number per weight")


def _check_masked(name: str, reply: OwnerMessage, first: OwnerMessage) -> None:
    masked, shapes = reply.arrays.get("masked"), reply.fields.get("shapes")
    if masked is None or masked.dtype != np.uint64 or masked.ndim != 1 or type(shapes) is not dict:
        _refuse(name, "is not masked")
    sizes = [math.prod(shape) for shape in shapes.values() if _is_shape(shape)]
    n = reply.fields["layout"].count("s") + 1 + sum(sizes)
    if len(sizes) < len(shapes) or len(masked) != 2 * n or shapes != first.fields.get("shapes"):
        _refuse(name, "has other shapes than those of the other owners")
    positions = {str(i) for i, code in enumerate(reply.fields["layout"]) if code == "a"}
    if set(shapes) != positions:
        _refuse(name, "has other arrays than its operation")


def _is_shape(shape: Any) -> bool:
    return type(shape) is list and 1 <= len(shape) <= 2 and all(_is_count(m) for m in shape)

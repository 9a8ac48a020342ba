"""Pipelines of scikit-learn in model files: the steps before the model as skops stores them, without pickle.

skops writes the attributes of each step and the paths of the types that they need. Beyond the types that
skops itself trusts, a file may name classes of scikit-learn, but no function: some functions execute their
arguments. Anything else has to be trusted by its module.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.core.messages import MissingExtra, extra_hint
from riskmin.core.registry import UntrustedCodeError, is_trusted


def split_pipeline(model: Any) -> tuple[Any, Any, str]:
    """Return the steps before the last one as a pipeline, or None, and the last step with its name."""
    steps = getattr(model, "steps", None)
    if not isinstance(steps, list) or not steps:
        return None, model, ""
    name, last = steps[-1]
    return (model[:-1] if len(steps) > 1 else None), last, name


def pipeline_to_array(steps: Any) -> NDArray:
    """Return fitted steps as an array of bytes; raise a ValueError if one of them holds code."""
    io = _skops_io()
    try:
        data = io.dumps(steps)
    except Exception as error:  # skops raises errors of many kinds for objects that it does not know
        raise ValueError(f"a step of the pipeline cannot be saved ({error}): save the last alone") from None
    return np.frombuffer(data, dtype=np.uint8)


def pipeline_from_array(array: NDArray, trust: Collection[str]) -> Any:
    """Return the steps of `pipeline_to_array`; types of other packages must be in modules to `trust`."""
    io = _skops_io()
    data = np.asarray(array, dtype=np.uint8).tobytes()
    named = io.get_untrusted_types(data=data)
    for name in named:
        module = name.rpartition(".")[0]
        if not (_holds_data(name) or is_trusted(module, trust)):
            raise UntrustedCodeError(
                f"its pipeline needs {name}, and a file imports no code by itself: if you trust it, "
                f"load_model(path, trust=[{module!r}])"
            )
    return io.loads(data, trusted=named)


def _holds_data(name: str) -> bool:
    """Whether a path names a class of scikit-learn, or the type of arrays' entries."""
    module, _, attribute = name.rpartition(".")
    if not is_trusted(module, ["sklearn"]):
        return name == "numpy.dtype"
    return isinstance(getattr(import_module(module), attribute, None), type)


def with_last_step(steps: Any, name: str, model: Any) -> Any:
    """Return the pipeline of these steps, or of none, and the model."""
    from sklearn.pipeline import Pipeline

    return Pipeline([*(steps.steps if steps is not None else []), (name, model)])


def _skops_io() -> Any:
    try:
        import skops.io
    except ImportError as error:
        raise MissingExtra(
            f"pipelines in model files need skops ({error}): {extra_hint('pipelines')}"
        ) from None
    return skops.io
